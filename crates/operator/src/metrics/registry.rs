//! Registers metrics, and keeps their entries for the documentation.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry as PrometheusRegistry;

use super::Options;
use super::series::{AnySeries, Series, Value};

/// The condition under which a metric is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Always served; the number of series depends on gates, checks and reasons.
    Nodekeeper,
    /// Always served, under the names of controller-runtime, client-go and Prometheus clients.
    Common,
    /// Served with `--metrics-per-node`.
    PerNode,
    /// Served with `--metrics-compat-names`, under the names of kube-node-ready.
    Compat,
    /// Served with `--metrics-compat-names` and `--metrics-per-node`.
    CompatPerNode,
    /// Served by agents.
    Agent,
}

/// What a user may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Name, type and labels do not change.
    Stable,
    /// Changes are listed in the changelog.
    Beta,
    /// May be removed.
    Alpha,
}

/// The definition of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub set: Set,
    pub stability: Stability,
    pub kind: MetricType,
    /// The served name; that of a counter ends with `_total`.
    pub name: &'static str,
    pub labels: &'static [&'static str],
    /// One sentence without its full stop.
    pub help: &'static str,
}

impl Entry {
    /// The name without `_total`, which `prometheus-client` appends to every counter.
    fn bare_name(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    pub fn type_name(&self) -> &'static str {
        match self.kind {
            MetricType::Counter => "counter",
            MetricType::Histogram => "histogram",
            _ => "gauge",
        }
    }

    /// Writes the help and the type of a metric that is computed at each scrape; its series follow.
    pub fn encode<'a>(&self, encoder: &'a mut DescriptorEncoder) -> Result<MetricEncoder<'a>, fmt::Error> {
        encoder.encode_descriptor(self.bare_name(), self.help, None, self.kind)
    }
}

#[derive(Debug)]
pub struct Registry {
    pub prometheus: PrometheusRegistry,
    pub entries: Vec<Entry>,
    /// The series whose first label is a node.
    pub per_node: Vec<Box<dyn AnySeries>>,
    options: Options,
}

impl Registry {
    pub fn new(options: Options) -> Self {
        let (prometheus, entries, per_node) = (PrometheusRegistry::default(), Vec::new(), Vec::new());
        Self { prometheus, entries, per_node, options }
    }

    pub fn is_served(&self, set: Set) -> bool {
        match set {
            Set::Nodekeeper | Set::Common => true,
            Set::PerNode => self.options.per_node,
            Set::Compat => self.options.compat_names,
            Set::CompatPerNode => self.options.compat_names && self.options.per_node,
            Set::Agent => self.options.agent,
        }
    }

    /// Documents a metric if it is served; returns whether it is.
    pub fn document(&mut self, entry: Entry) -> bool {
        let served = self.is_served(entry.set);
        if served {
            self.entries.push(entry);
        }
        served
    }

    pub fn register<V: Value + Sync>(&mut self, entry: Entry, initial: V) -> Series<V> {
        let served = self.document(entry);
        let series = Series::new(entry.labels, initial, served);
        if served {
            self.prometheus.register(entry.bare_name(), entry.help, series.clone());
            if entry.labels.first() == Some(&"node") {
                self.per_node.push(Box::new(series.clone()));
            }
        }
        series
    }
}

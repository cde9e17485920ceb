//! The list of metrics: each is defined once, and it is served and documented from that definition.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry as PrometheusRegistry;

use super::Options;
use super::series::{Counter, Gauge, Histogram, Series, Value};

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
    /// The served name; that of a counter ends with `_total`.
    pub name: &'static str,
    pub labels: &'static [&'static str],
    /// One sentence without its full stop.
    pub help: &'static str,
}

impl Entry {
    /// The name without `_total`, which `prometheus-client` appends to every counter.
    pub fn bare_name(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }
}

/// Collects the definitions and registers the series that serve them.
#[derive(Debug)]
pub struct Registry {
    pub prometheus: PrometheusRegistry,
    pub entries: Vec<(Entry, &'static str)>,
    options: Options,
}

impl Registry {
    pub fn new(options: Options) -> Self {
        Self { prometheus: PrometheusRegistry::default(), entries: Vec::new(), options }
    }

    pub fn is_served(&self, set: Set) -> bool {
        match set {
            Set::Nodekeeper | Set::Common => true,
            Set::PerNode => self.options.per_node,
            Set::Compat => self.options.compat_names,
            Set::CompatPerNode => self.options.compat_names && self.options.per_node,
        }
    }

    /// Documents a metric that a collector serves.
    pub fn document(&mut self, entry: Entry, kind: MetricType) {
        if self.is_served(entry.set) {
            self.entries.push((entry, type_name(kind)));
        }
    }

    fn register<V: Value + Sync>(&mut self, entry: Entry, initial: V) -> Series<V> {
        let served = self.is_served(entry.set);
        let series = Series::new(entry.labels, initial, served);
        if served {
            self.prometheus.register(entry.bare_name(), entry.help, series.clone());
        }
        self.document(entry, V::KIND);
        series
    }

    /// Registers a counter; the series with these label values are served from the start, as 0.
    pub fn counter(&mut self, entry: Entry, known: &[&[&str]]) -> Series<Counter> {
        let series = self.register(entry, Counter::default());
        for values in known {
            series.init(values);
        }
        series
    }

    pub fn gauge(&mut self, entry: Entry) -> Series<Gauge> {
        self.register(entry, Gauge::default())
    }

    pub fn histogram(&mut self, entry: Entry, bounds: &'static [f64]) -> Series<Histogram> {
        self.register(entry, Histogram::new(bounds))
    }
}

fn type_name(kind: MetricType) -> &'static str {
    match kind {
        MetricType::Counter => "counter",
        MetricType::Histogram => "histogram",
        _ => "gauge",
    }
}

pub const fn entry(
    set: Set,
    stability: Stability,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Entry {
    Entry { set, stability, name, labels, help }
}

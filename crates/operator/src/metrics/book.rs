//! What metrics there are: each is entered once, and served and documented from that entry.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Options;
use super::series::{Count, Level, Series, Times, Value};

/// When a metric is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Always: as many series as there are gates, checks and reasons.
    Ours,
    /// Always: under the names that every controller's dashboards know.
    Usual,
    /// A series or more for each node, where asked for.
    PerNode,
    /// Under the names of kube-node-ready, where asked for.
    Seed,
    /// Those of them that have a series for each node.
    SeedPerNode,
}

/// What a user may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Name, type and labels stay.
    Stable,
    /// May change with a line in the changelog.
    Beta,
    /// May go.
    Alpha,
}

/// A metric as it is documented.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// When it is served.
    pub set: Set,
    /// What may be relied on.
    pub stability: Stability,
    /// With `_total`, as it is served.
    pub name: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// One sentence, without its full stop.
    pub help: &'static str,
}

impl Entry {
    /// As `prometheus-client` wants it, which appends `_total` to every counter itself.
    pub fn bare_name(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }
}

/// Collects the entries, and what serves them.
#[derive(Debug)]
pub struct Book {
    pub registry: Registry,
    pub entries: Vec<(Entry, &'static str)>,
    options: Options,
}

impl Book {
    /// Nothing in it yet.
    pub fn new(options: Options) -> Self {
        Self { registry: Registry::default(), entries: Vec::new(), options }
    }

    /// Whether this set is served.
    pub fn wanted(&self, set: Set) -> bool {
        match set {
            Set::Ours | Set::Usual => true,
            Set::PerNode => self.options.per_node,
            Set::Seed => self.options.seed_names,
            Set::SeedPerNode => self.options.seed_names && self.options.per_node,
        }
    }

    /// Enters what somebody else serves.
    pub fn note(&mut self, entry: Entry, kind: MetricType) {
        if self.wanted(entry.set) {
            self.entries.push((entry, kind_word(kind)));
        }
    }

    fn enter<V: Value + Sync>(&mut self, entry: Entry, blank: V) -> Series<V> {
        let wanted = self.wanted(entry.set);
        let series = Series::new(entry.labels, blank, wanted);
        if wanted {
            self.registry.register(entry.bare_name(), entry.help, series.clone());
        }
        self.note(entry, V::KIND);
        series
    }

    /// A counter, with what it starts from.
    pub fn counter(&mut self, entry: Entry, known: &[&[&str]]) -> Series<Count> {
        started(self.enter(entry, Count::default()), known)
    }

    /// A gauge.
    pub fn gauge(&mut self, entry: Entry) -> Series<Level> {
        self.enter(entry, Level::default())
    }

    /// A histogram.
    pub fn times(&mut self, entry: Entry, bounds: &'static [f64], known: &[&[&str]]) -> Series<Times> {
        started(self.enter(entry, Times::new(bounds)), known)
    }
}

fn started<V: Value>(series: Series<V>, known: &[&[&str]]) -> Series<V> {
    for values in known {
        series.start(values);
    }
    series
}

fn kind_word(kind: MetricType) -> &'static str {
    match kind {
        MetricType::Counter => "counter",
        MetricType::Histogram => "histogram",
        _ => "gauge",
    }
}

/// An entry in one line.
pub const fn entry(
    set: Set,
    stability: Stability,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Entry {
    Entry { set, stability, name, labels, help }
}

//! A number for each combination of label values: in order, and never too many of them.
//!
//! Our own, and not the families of `prometheus-client`: those have no bound, keep every label as a string of its own,
//! and cannot drop all that belongs to one node.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// More would be a fault of ours, or a worker that lies about the names of its checks.
const MOST: usize = 400;
/// What takes the place of label values past that.
const OTHER: &str = "other";
/// Between label values in a key. No value holds it.
const BETWEEN: char = '\u{1f}';

/// What a series holds.
pub trait Value: Clone + fmt::Debug + Send + 'static {
    /// What it is.
    const KIND: MetricType;
    /// Writes it after its name and labels.
    fn write(&self, encoder: MetricEncoder) -> fmt::Result;
}

/// Goes up only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count(pub u64);

/// Goes up and down.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level(pub f64);

/// How long things took.
#[derive(Clone, Debug)]
pub struct Times {
    bounds: &'static [f64],
    counts: Box<[u64]>,
    sum: f64,
}

impl Times {
    /// None yet.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0.0 }
    }

    fn add(&mut self, seconds: f64) {
        let place = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[place] += 1;
        self.sum += seconds;
    }
}

impl Value for Count {
    const KIND: MetricType = MetricType::Counter;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, f64>(&self.0, None)
    }
}

impl Value for Level {
    const KIND: MetricType = MetricType::Gauge;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&self.0)
    }
}

impl Value for Times {
    const KIND: MetricType = MetricType::Histogram;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts.iter().copied()).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.counts.iter().sum(), &buckets, None)
    }
}

/// All series of one metric. Copies share them.
#[derive(Clone, Debug)]
pub struct Series<V>(Arc<Inner<V>>);

#[derive(Debug)]
struct Inner<V> {
    labels: &'static [&'static str],
    blank: V,
    most: usize,
    cells: Mutex<BTreeMap<Box<str>, V>>,
}

impl<V: Value> Series<V> {
    /// None yet. A series by node has no bound but the nodes; one that nobody asked for holds nothing at all.
    pub fn new(labels: &'static [&'static str], blank: V, wanted: bool) -> Self {
        let most = match (wanted, labels.first()) {
            (false, _) => 0,
            (true, Some(&"node")) => usize::MAX,
            (true, _) => MOST,
        };
        let series = Self(Arc::new(Inner { labels, blank, most, cells: Mutex::default() }));
        if labels.is_empty() {
            series.start(&[]);
        }
        series
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<Box<str>, V>> {
        self.0.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the series with these label values.
    fn change(&self, values: &[&str], change: impl FnOnce(&mut V)) {
        let inner = &self.0;
        debug_assert_eq!(values.len(), inner.labels.len(), "{:?}", inner.labels);
        if inner.most == 0 {
            return;
        }
        let mut cells = self.cells();
        let mut key = key_of(values);
        if cells.len() + 1 >= inner.most && !cells.contains_key(key.as_str()) {
            key = key_of(&vec![OTHER; values.len()]);
        }
        change(cells.entry(key.into()).or_insert_with(|| inner.blank.clone()));
    }

    /// Shows a series before anything has happened: what is missing cannot be told from what never happens.
    pub fn start(&self, values: &[&str]) {
        self.change(values, |_| ());
    }

    /// Drops the series with these label values.
    pub fn remove(&self, values: &[&str]) {
        self.cells().remove(key_of(values).as_str());
    }

    /// Drops all series whose first label value is this.
    pub fn remove_all_of(&self, first: &str) {
        if self.0.most == 0 {
            return;
        }
        let mut cells = self.cells();
        let start = key_of(&[first]);
        let inside = |key: &str| {
            key.strip_prefix(&start).is_some_and(|rest| rest.is_empty() || rest.starts_with(BETWEEN))
        };
        // They stand together: nothing in a key sorts below what stands between its values.
        let from = cells.range::<str, _>((Bound::Included(start.as_str()), Bound::Unbounded));
        let keys: Vec<_> = from.map(|(key, _)| key.clone()).take_while(|key| inside(key)).collect();
        for key in keys {
            cells.remove(&key);
        }
    }

    /// Drops all.
    pub fn clear(&self) {
        self.cells().clear();
    }
}

impl Series<Count> {
    /// One more.
    pub fn inc(&self, values: &[&str]) {
        self.add(values, 1);
    }

    /// So many more.
    pub fn add(&self, values: &[&str], more: u64) {
        self.change(values, |count| count.0 += more);
    }
}

impl Series<Level> {
    /// Is so much now.
    pub fn set(&self, values: &[&str], level: f64) {
        self.change(values, |value| value.0 = level);
    }

    /// Is so much more now.
    pub fn move_by(&self, values: &[&str], by: f64) {
        self.change(values, |value| value.0 += by);
    }
}

impl Series<Times> {
    /// Took so long.
    pub fn took(&self, values: &[&str], time: Duration) {
        self.change(values, |times| times.add(time.as_secs_f64()));
    }
}

impl<V: Value + Sync> EncodeMetric for Series<V> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let cells = self.cells();
        for (key, value) in cells.iter() {
            if self.0.labels.is_empty() {
                return value.write(encoder);
            }
            let labels: Vec<(&str, &str)> = self.0.labels.iter().copied().zip(key.split(BETWEEN)).collect();
            value.write(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        V::KIND
    }

    fn is_empty(&self) -> bool {
        self.cells().is_empty()
    }
}

/// Control characters are in no name of ours; a forged report may hold them.
fn key_of(values: &[&str]) -> String {
    let mut key = String::with_capacity(values.iter().map(|value| value.len() + 1).sum());
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            key.push(BETWEEN);
        }
        key.extend(value.chars().take(253).map(|c| if c.is_control() { '?' } else { c }));
    }
    key
}

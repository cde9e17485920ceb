//! The series of one metric by label values, ordered and bounded in number.
//!
//! The families of `prometheus-client` have no bound, store every label as a string of its own, and cannot drop all
//! series of one node.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Largest number of series of a metric that is not per node. A worker can report any name for a check.
const MAX_SERIES: usize = 400;
/// Replaces the label values of series past [`MAX_SERIES`].
const OTHER: &str = "other";
/// Separates label values in a key. [`key_of`] keeps it out of the values.
const SEPARATOR: char = '\u{1f}';

pub trait Value: Clone + fmt::Debug + Send + 'static {
    const KIND: MetricType;
    /// Writes the value after its name and labels.
    fn write(&self, encoder: MetricEncoder) -> fmt::Result;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counter(u64);

impl Counter {
    pub fn new() -> Self {
        Self::default()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Gauge(f64);

impl Gauge {
    pub fn new() -> Self {
        Self::default()
    }
}

/// Observed durations in seconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Box<[u64]>,
    sum: f64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0.0 }
    }

    fn add(&mut self, seconds: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

impl Value for Counter {
    const KIND: MetricType = MetricType::Counter;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, f64>(&self.0, None)
    }
}

impl Value for Gauge {
    const KIND: MetricType = MetricType::Gauge;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&self.0)
    }
}

impl Value for Histogram {
    const KIND: MetricType = MetricType::Histogram;

    fn write(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts.iter().copied()).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.counts.iter().sum(), &buckets, None)
    }
}

/// All series of one metric. Clones share them.
#[derive(Clone, Debug)]
pub struct Series<V>(Arc<Inner<V>>);

#[derive(Debug)]
struct Inner<V> {
    labels: &'static [&'static str],
    initial: V,
    max: usize,
    cells: Mutex<BTreeMap<Box<str>, V>>,
}

impl<V: Value> Series<V> {
    /// Metrics per node (first label `node`) are not bounded. A metric that is not served stores nothing.
    pub fn new(labels: &'static [&'static str], initial: V, served: bool) -> Self {
        let max = match (served, labels.first()) {
            (false, _) => 0,
            (true, Some(&"node")) => usize::MAX,
            (true, _) => MAX_SERIES,
        };
        let series = Self(Arc::new(Inner { labels, initial, max, cells: Mutex::default() }));
        if labels.is_empty() {
            series.init(&[]);
        }
        series
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<Box<str>, V>> {
        self.0.cells.lock()
    }

    fn update(&self, values: &[&str], update: impl FnOnce(&mut V)) {
        let inner = &self.0;
        debug_assert_eq!(values.len(), inner.labels.len(), "{:?}", inner.labels);
        if inner.max == 0 {
            return;
        }
        let mut cells = self.cells();
        let mut key = key_of(values);
        if cells.len() + 1 >= inner.max && !cells.contains_key(key.as_str()) {
            key = key_of(&vec![OTHER; values.len()]);
        }
        update(cells.entry(key.into()).or_insert_with(|| inner.initial.clone()));
    }

    /// Serves the series with these label values before its first update.
    pub fn init(&self, values: &[&str]) {
        self.update(values, |_| ());
    }

    /// Removes the series with these label values.
    pub fn remove(&self, values: &[&str]) {
        self.cells().remove(key_of(values).as_str());
    }
}

/// The series of a metric of any type.
pub trait AnySeries: fmt::Debug + Send + Sync {
    /// Removes all series with this value of the first label.
    fn remove_by_first_label(&self, first: &str);
    fn clear(&self);
}

impl<V: Value + Sync> AnySeries for Series<V> {
    fn remove_by_first_label(&self, first: &str) {
        if self.0.max == 0 {
            return;
        }
        let mut cells = self.cells();
        let start = key_of(&[first]);
        let inside = |key: &str| {
            key.strip_prefix(&start).is_some_and(|rest| rest.is_empty() || rest.starts_with(SEPARATOR))
        };
        // They are contiguous: no character of a value sorts below the separator.
        let from = cells.range::<str, _>((Bound::Included(start.as_str()), Bound::Unbounded));
        let keys: Vec<_> = from.map(|(key, _)| key.clone()).take_while(|key| inside(key)).collect();
        for key in keys {
            cells.remove(&key);
        }
    }

    fn clear(&self) {
        self.cells().clear();
    }
}

impl Series<Counter> {
    pub fn inc(&self, values: &[&str]) {
        self.add(values, 1);
    }

    pub fn add(&self, values: &[&str], by: u64) {
        self.update(values, |count| count.0 += by);
    }
}

impl Series<Gauge> {
    pub fn set(&self, values: &[&str], value: f64) {
        self.update(values, |gauge| gauge.0 = value);
    }

    pub fn add(&self, values: &[&str], by: f64) {
        self.update(values, |gauge| gauge.0 += by);
    }

    /// Sets every series to 0.
    pub fn reset(&self) {
        self.cells().values_mut().for_each(|gauge| gauge.0 = 0.0);
    }
}

impl Series<Histogram> {
    pub fn observe(&self, values: &[&str], duration: Duration) {
        self.update(values, |histogram| histogram.add(duration.as_secs_f64()));
    }
}

impl<V: Value + Sync> EncodeMetric for Series<V> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let cells = self.cells();
        for (key, value) in cells.iter() {
            if self.0.labels.is_empty() {
                return value.write(encoder);
            }
            let labels: Vec<(&str, &str)> = self.0.labels.iter().copied().zip(key.split(SEPARATOR)).collect();
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

/// Replaces control characters, which a forged report may contain.
fn key_of(values: &[&str]) -> String {
    let mut key = String::with_capacity(values.iter().map(|value| value.len() + 1).sum());
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            key.push(SEPARATOR);
        }
        key.extend(value.chars().take(253).map(|c| if c.is_control() { '?' } else { c }));
    }
    key
}

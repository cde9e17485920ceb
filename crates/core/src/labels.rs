//! The few labels that are kept of each node.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Labels of a node. A list, because few are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }

    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: &str) {
        let key = key.into();
        self.0.retain(|(known, _)| *known != key);
        self.0.push((key, value.into()));
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| **known != *key);
    }

    /// Keeps only the labels with these keys. The keys, and values that are equal to one of them, are shared by all nodes.
    #[must_use]
    pub fn only(self, wanted: &BTreeSet<Arc<str>>) -> Self {
        let shared = |(key, value): (Arc<str>, Arc<str>)| {
            let key = wanted.get(&key)?.clone();
            Some((key, wanted.get(&value).cloned().unwrap_or(value)))
        };
        let mut kept: Vec<(Arc<str>, Arc<str>)> = self.0.into_iter().filter_map(shared).collect();
        kept.shrink_to_fit();
        Self(kept)
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        Self(all.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

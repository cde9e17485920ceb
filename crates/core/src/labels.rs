//! The few labels that are kept of each node.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;

type Pair = (Arc<str>, Arc<str>);

/// Labels of a node, ordered by key. A list, because few are kept; shared, because nodes of one group have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Arc<[Pair]>);

impl Labels {
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }

    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: &str) {
        let added: Pair = (key.into(), value.into());
        *self = std::iter::once(added).chain(self.0.iter().cloned()).collect();
    }

    pub fn remove(&mut self, key: &str) {
        *self = self.0.iter().filter(|(known, _)| **known != *key).cloned().collect();
    }

    /// Whether nothing else has these labels.
    fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Borrow<[Pair]> for Labels {
    fn borrow(&self) -> &[Pair] {
        &self.0
    }
}

/// Of equal keys the first counts.
impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let all = all.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self(in_order(all).into())
    }
}

fn in_order(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs.dedup_by(|second, first| second.0 == first.0);
    pairs
}

/// Which labels are kept of nodes, and texts that many nodes have in common, each stored once.
#[derive(Debug, Default)]
pub struct NodeTexts {
    /// The keys of labels, and the types of conditions, that are kept.
    pub wanted: BTreeSet<Arc<str>>,
    texts: BTreeSet<Arc<str>>,
    labels: BTreeSet<Labels>,
    /// What no node has any more is dropped when there are so many.
    prune_at: usize,
}

impl NodeTexts {
    /// Fewer texts are not worth a search for those that can be dropped.
    const MIN_PRUNE: usize = 1000;

    /// The shared copy of a text.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.texts.insert(new.clone());
        self.prune();
        new
    }

    /// The shared copy of those labels that are kept. Of equal keys the first counts.
    pub fn labels<'a>(&mut self, all: impl Iterator<Item = (&'a str, &'a str)>) -> Labels {
        let mut kept: Vec<Pair> = Vec::new();
        for (key, value) in all {
            if let Some(key) = self.wanted.get(key).cloned() {
                kept.push((key, self.text(value)));
            }
        }
        let kept = in_order(kept);
        if let Some(known) = self.labels.get(kept.as_slice()) {
            return known.clone();
        }
        let new = Labels(kept.into());
        self.labels.insert(new.clone());
        self.prune();
        new
    }

    fn prune(&mut self) {
        if self.texts.len() + self.labels.len() < self.prune_at.max(Self::MIN_PRUNE) {
            return;
        }
        self.labels.retain(|labels| !labels.is_unique());
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.prune_at = 2 * (self.texts.len() + self.labels.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_keys_the_first_counts() {
        let mut labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!((labels.get("a"), labels.get("b"), labels.get("c")), (Some("2"), Some("1"), None));
        labels.insert("b", "4");
        assert_eq!(labels, [("a", "2"), ("b", "4")].into_iter().collect());
        labels.remove("a");
        assert_eq!(labels, [("b", "4")].into_iter().collect());
    }

    #[test]
    fn equal_labels_are_stored_once_and_only_while_a_node_has_them() {
        let mut texts = NodeTexts { wanted: ["zone".into()].into(), ..NodeTexts::default() };
        let in_a = || [("zone", "a"), ("host", "x")].into_iter();
        let (first, second) = (texts.labels(in_a()), texts.labels(in_a()));
        assert!(Arc::ptr_eq(&first.0, &second.0));
        assert_eq!(first, [("zone", "a")].into_iter().collect());
        for number in 0..5 * NodeTexts::MIN_PRUNE {
            texts.labels([("zone", number.to_string().as_str())].into_iter());
        }
        assert!(texts.labels.len() < NodeTexts::MIN_PRUNE, "{} sets are left", texts.labels.len());
        assert!(texts.texts.len() < 2 * NodeTexts::MIN_PRUNE, "{} texts are left", texts.texts.len());
        assert!(Arc::ptr_eq(&first.0, &texts.labels(in_a()).0), "those in use stay");
    }
}

//! A JSON object of few keys.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{AnyValue, Value};

/// A key with its length and first bytes in one number: most keys differ there, so that the text is rarely read.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    tag: u64,
    text: Arc<str>,
}

/// How many bytes of a text its tag has, besides the length.
const TAGGED: usize = 7;

fn tag(text: &str) -> u64 {
    let mut bytes = [0; 8];
    let first = text.len().min(TAGGED);
    bytes[..first].copy_from_slice(&text.as_bytes()[..first]);
    bytes[TAGGED] = u8::try_from(text.len()).unwrap_or(u8::MAX);
    u64::from_le_bytes(bytes)
}

impl From<Arc<str>> for Key {
    fn from(text: Arc<str>) -> Self {
        Self { tag: tag(&text), text }
    }
}

/// A map of few keys, sorted.
#[derive(Clone, Default)]
pub struct Map(Arc<Vec<(Key, Value)>>);

impl Map {
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn share_with(&mut self, earlier: &Self) {
        for (key, value) in Arc::make_mut(&mut self.0) {
            if let Some(before) = earlier.get(&key.text) {
                value.share_with(before);
            }
        }
    }

    /// The place of a key. Maps are small: looking at each key is cheapest.
    fn find(&self, key: &str) -> Option<usize> {
        let tag = tag(key);
        let is_short = key.len() <= TAGGED;
        self.0.iter().position(|(other, _)| other.tag == tag && (is_short || *other.text == *key))
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).map(|at| &self.0[at].1)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        let at = self.find(key)?;
        Some(&mut Arc::make_mut(&mut self.0)[at].1)
    }

    /// The value of a key, which is null if it is new.
    pub fn entry(&mut self, key: &str) -> &mut Value {
        let at = self.find(key).unwrap_or_else(|| {
            let at = self.0.partition_point(|(other, _)| *other.text < *key);
            Arc::make_mut(&mut self.0).insert(at, (Arc::<str>::from(key).into(), Value::Null));
            at
        });
        &mut Arc::make_mut(&mut self.0)[at].1
    }

    pub fn insert(&mut self, key: &str, value: impl Into<Value>) {
        *self.entry(key) = value.into();
    }

    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.find(key)?;
        Some(Arc::make_mut(&mut self.0).remove(at).1)
    }

    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn iter(&self) -> Entries<'_> {
        self.into_iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        Arc::make_mut(&mut self.0).iter_mut().map(|(key, value)| (&*key.text, value))
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| &*key.text)
    }

    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        Arc::make_mut(&mut self.0).iter_mut().map(|(_, value)| value)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Value) -> bool) {
        Arc::make_mut(&mut self.0).retain_mut(|(key, value)| keep(&key.text, value));
    }
}

impl<K: Into<Arc<str>>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut all: Vec<(Key, Value)> =
            entries.into_iter().map(|(key, value)| (key.into().into(), value.into())).collect();
        if !all.is_sorted_by(|a, b| a.0.text < b.0.text) {
            // Of two values of one key the last counts. The sort is stable.
            all.reverse();
            all.sort_by(|a, b| a.0.text.cmp(&b.0.text));
            all.dedup_by(|later, first| later.0 == first.0);
        }
        Self(Arc::new(all))
    }
}

impl Extend<(Arc<str>, Value)> for Map {
    fn extend<I: IntoIterator<Item = (Arc<str>, Value)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(&key, value);
        }
    }
}

/// The entries of a map, in the order of their keys.
pub struct Entries<'m>(std::slice::Iter<'m, (Key, Value)>);

impl<'m> Iterator for Entries<'m> {
    type Item = (&'m str, &'m Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (&*key.text, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Entries<'_> {}

impl<'m> IntoIterator for &'m Map {
    type Item = (&'m str, &'m Value);
    type IntoIter = Entries<'m>;
    fn into_iter(self) -> Entries<'m> {
        Entries(self.0.iter())
    }
}

impl IntoIterator for Map {
    type Item = (Arc<str>, Value);
    type IntoIter = std::iter::Map<std::vec::IntoIter<(Key, Value)>, fn((Key, Value)) -> Self::Item>;
    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter().map(|(key, value)| (key.text, value))
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.0 == other.0
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_map(AnyValue)? {
            Value::Object(map) => Ok(map),
            _ => Err(serde::de::Error::custom("expected a JSON object")),
        }
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    #[test]
    fn keys_are_found_added_and_removed() {
        let mut map: Map = [("b", 1_i64), ("a", 2), ("b", 3)].into_iter().collect();
        assert_eq!((map.len(), map.get("b")), (2, Some(&json!(3))));
        map.insert("aa", "x");
        assert_eq!(map.keys().collect::<Vec<_>>(), ["a", "aa", "b"]);
        assert_eq!(map.remove("a"), Some(json!(2)));
        assert_eq!(map.remove("a"), None);
        assert!(map.get_mut("missing").is_none() && !map.contains_key("a"));
        map.retain(|key, _| key == "aa");
        assert_eq!(json!(map), json!({"aa": "x"}));
    }

    #[test]
    fn keys_that_begin_alike_are_told_apart() {
        let long = "x".repeat(300);
        let keys = ["", "creatio", "creation", "creationTimestamp", "creationTimestamq", &*long, &long[1..]];
        let map: Map = keys.iter().zip(0_i64..).map(|(key, n)| (*key, n)).collect();
        for (key, n) in keys.iter().zip(0_i64..) {
            assert_eq!(map.get(key), Some(&json!(n)), "{key}");
        }
        assert!(!map.contains_key("creatiom") && !map.contains_key(&long[2..]));
    }
}

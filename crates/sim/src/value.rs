//! JSON values whose copies share their parts.
//!
//! The store keeps every version of an object, and most versions differ in one field. A copy of a [`Value`] is a
//! reference; a change copies only the maps and lists on its path. Equal parts mostly are the same part, so comparing
//! two versions is cheap too.

mod map;

pub use map::{Entries, Map};

use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Number;

/// A [`Value`] in the notation of [`serde_json::json`].
#[macro_export]
macro_rules! json {
    ($($json:tt)+) => { $crate::value::Value::from(::serde_json::json!($($json)+)) };
}
pub use crate::json;

#[derive(Clone, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(Arc<str>),
    Array(Arc<Vec<Self>>),
    Object(Map),
}

static NULL: Value = Value::Null;

impl Value {
    /// Whether both are the same part of memory, or equal scalars. Different parts may still be equal.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => Arc::ptr_eq(a, b),
            (Self::Object(a), Self::Object(b)) => a.is_same(b),
            (Self::Array(_) | Self::Object(_), _) | (_, Self::Array(_) | Self::Object(_)) => false,
            (a, b) => a == b,
        }
    }

    /// Replaces parts by the equal parts of an earlier version, so that both share them.
    pub fn share_with(&mut self, earlier: &Self) {
        if self.is_same(earlier) {
            return;
        }
        if let (Self::Object(map), Self::Object(before)) = (&mut *self, earlier) {
            map.share_with(before);
        }
        if *self == *earlier {
            *self = earlier.clone();
        }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(key)
    }

    #[must_use]
    pub fn as_object(&self) -> Option<&Map> {
        if let Self::Object(map) = self { Some(map) } else { None }
    }

    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        if let Self::Object(map) = self { Some(map) } else { None }
    }

    #[must_use]
    pub fn as_array(&self) -> Option<&Vec<Self>> {
        if let Self::Array(list) = self { Some(list) } else { None }
    }

    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Self>> {
        if let Self::Array(list) = self { Some(Arc::make_mut(list)) } else { None }
    }

    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        if let Self::Number(number) = self { number.as_i64() } else { None }
    }

    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { number.as_u64() } else { None }
    }

    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.as_f64() } else { None }
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    #[must_use]
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    #[must_use]
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    /// The value as another type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_value(self.into())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => Arc::ptr_eq(a, b) || a == b,
            (Self::Object(a), Self::Object(b)) => a == b,
            _ => false,
        }
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == Some(*other)
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<bool> for Value {
    fn eq(&self, other: &bool) -> bool {
        self.as_bool() == Some(*other)
    }
}

impl PartialEq<i64> for Value {
    fn eq(&self, other: &i64) -> bool {
        self.as_i64() == Some(*other)
    }
}

impl Index<&str> for Value {
    type Output = Self;
    fn index(&self, key: &str) -> &Self {
        self.get(key).unwrap_or(&NULL)
    }
}

impl Index<usize> for Value {
    type Output = Self;
    fn index(&self, at: usize) -> &Self {
        self.as_array().and_then(|list| list.get(at)).unwrap_or(&NULL)
    }
}

impl IndexMut<&str> for Value {
    /// A new key is null, and null becomes a map.
    ///
    /// # Panics
    /// If the value is neither a map nor null.
    fn index_mut(&mut self, key: &str) -> &mut Self {
        if self.is_null() {
            *self = Self::Object(Map::default());
        }
        match self {
            Self::Object(map) => map.entry(key),
            _ => unreachable!("{key} of a value that is no map"),
        }
    }
}

impl IndexMut<usize> for Value {
    /// # Panics
    /// If the value is no list, or has fewer elements.
    fn index_mut(&mut self, at: usize) -> &mut Self {
        match self.as_array_mut() {
            Some(list) => &mut list[at],
            None => unreachable!("element {at} of a value that is no list"),
        }
    }
}

impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Bool(flag),
            serde_json::Value::Number(number) => Self::Number(number),
            serde_json::Value::String(text) => Self::String(text.into()),
            serde_json::Value::Array(list) => list.into_iter().map(Self::from).collect(),
            serde_json::Value::Object(map) => Self::Object(map.into_iter().collect()),
        }
    }
}

impl From<&Value> for serde_json::Value {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::String(text.as_ref().to_owned()),
            Value::Array(list) => Self::Array(list.iter().map(Self::from).collect()),
            Value::Object(map) => {
                Self::Object(map.iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
            }
        }
    }
}

impl From<Vec<Value>> for Value {
    fn from(list: Vec<Value>) -> Self {
        Self::Array(Arc::new(list))
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Object(map)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number.into())
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Self {
        Self::Array(Arc::new(items.into_iter().collect()))
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => number.serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(list) => serializer.collect_seq(list.iter()),
            Self::Object(map) => map.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries: Vec<(String, Value)> = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Object(entries.into_iter().collect()))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&serde_json::Value::from(self), f)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&serde_json::Value::from(self), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_copies_and_their_other_parts_alone() {
        let old = json!({"spec": {"a": [1, 2]}, "status": {"ready": false}});
        let mut new = old.clone();
        assert!(new.is_same(&old));
        new["status"]["ready"] = json!(true);
        assert_eq!(old["status"]["ready"], false);
        assert_eq!(new["status"]["ready"], true);
        assert!(new["spec"].is_same(&old["spec"]) && !new["status"].is_same(&old["status"]));
        assert_ne!(new, old);
        new["status"]["ready"] = json!(false);
        assert!(new == old && !new.is_same(&old));
    }

    #[test]
    fn equal_parts_of_an_earlier_version_are_shared_again() {
        let old =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"a": [1, 2]}, "status": {"ready": false}});
        let mut new = json!({"metadata": {"labels": {"a": "b"}, "uid": "u"}, "spec": {"a": [1, 2]}});
        new.share_with(&old);
        assert!(new["spec"].is_same(&old["spec"]));
        assert!(new["metadata"]["labels"].is_same(&old["metadata"]["labels"]));
        assert_eq!(new, json!({"metadata": {"labels": {"a": "b"}, "uid": "u"}, "spec": {"a": [1, 2]}}));
        let mut equal = json!({"spec": {"a": [1, 2]}});
        equal.share_with(&json!({"spec": {"a": [2, 1]}}));
        assert_eq!(equal["spec"]["a"], json!([1, 2]));
    }

    #[test]
    fn json_is_read_and_written_as_serde_json_does_it() {
        let text = r#"{"b":[1,-2,2.5,null,true,"ü\n\"x\""],"a":{"z":{},"y":[]},"b2":"","a":{"k":18446744073709551615}}"#;
        let (mine, theirs): (Value, serde_json::Value) =
            (serde_json::from_str(text).unwrap(), serde_json::from_str(text).unwrap());
        assert_eq!(serde_json::to_string(&mine).unwrap(), serde_json::to_string(&theirs).unwrap());
        assert_eq!(mine.to_string(), theirs.to_string());
        assert_eq!(mine, Value::from(theirs.clone()));
        assert_eq!(serde_json::Value::from(&mine), theirs);
        assert!(serde_json::from_str::<Value>("{").is_err());
    }
}

//! Reads only some fields of objects of the API server: most of an object is never looked at, and decoding it is most of
//! what a watch costs.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

/// Reads an object of JSON as k8s-openapi does: unknown keys are skipped, null is the same as a missing key, and the last
/// of equal keys counts.
macro_rules! part {
    ($name:ident { $($field:ident: $type:ty = $key:literal),* $(,)? }) => {
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(super) struct $name {
            $(pub(super) $field: Option<$type>,)*
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Keys;

                impl<'de> serde::de::Visitor<'de> for Keys {
                    type Value = $name;

                    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        out.write_str(concat!("the object ", stringify!($name)))
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        const KEYS: &[&str] = &[$($key),*];
                        let mut found = $name::default();
                        while let Some(key) = map.next_key_seed($crate::partial::OneOf(KEYS))? {
                            match key {
                                $(Some($key) => found.$field = map.next_value()?,)*
                                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                            }
                        }
                        Ok(found)
                    }
                }

                from.deserialize_map(Keys)
            }
        }
    };
}

/// Lets an `Api` read a part, which has a field `metadata`, where it would read the whole.
macro_rules! resource {
    ($part:ty, $whole:ty) => {
        impl kube::Resource for $part {
            type DynamicType = ();
            type Scope = <$whole as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use {part, resource};

/// Finds a key among those that are of interest, without an allocation.
pub(crate) struct OneOf(pub &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for OneOf {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for OneOf {
    type Value = Option<&'static str>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().copied().find(|known| *known == key))
    }
}

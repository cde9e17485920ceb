//! The part of a Node that its view needs. A watch decodes this instead of the whole Node: most of a Node is never read,
//! and its hundreds of pieces would leave holes between the views that stay.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{CORDONED, Taint, VERIFY};
use crate::partial::{OneOf, part, resource};
use crate::reasons::NETWORK_VERIFIED;
use crate::record;

/// Pairs of texts in the order in which they were read, in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs {
    text: String,
    /// Where each text ends: key, value, key, value.
    ends: Vec<usize>,
}

impl Pairs {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> {
        let start = |index: usize| if index == 0 { 0 } else { self.ends[index - 1] };
        let text = move |index: usize| &self.text[start(index)..self.ends[index]];
        (0..self.ends.len() / 2).map(move |pair| (text(2 * pair), text(2 * pair + 1)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The annotations that a view needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    pub record: Option<String>,
    pub verify: Option<String>,
    pub cordoned: bool,
}

impl Annotations {
    fn add(&mut self, key: &str, value: Cow<'_, str>) {
        match key {
            record::ANNOTATION => self.record = Some(value.into_owned()),
            VERIFY => self.verify = Some(value.into_owned()),
            CORDONED => self.cordoned = true,
            _ => {}
        }
    }
}

/// What a view needs of a Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialNode {
    /// Only name, uid, resourceVersion and the times of creation and deletion.
    pub(super) metadata: ObjectMeta,
    pub(super) labels: Pairs,
    pub(super) annotations: Option<Annotations>,
    pub(super) unschedulable: bool,
    pub(super) taints: Vec<Taint>,
    /// Type and status of each condition.
    pub(super) conditions: Pairs,
    /// Status and reason of the first condition `NetworkVerified`.
    pub(super) network_verified: Option<(String, String)>,
    pub(super) boot_id: String,
}

impl From<&Node> for PartialNode {
    fn from(node: &Node) -> Self {
        let (metadata, spec, status) = (&node.metadata, node.spec.as_ref(), node.status.as_ref());
        let info = status.and_then(|status| status.node_info.as_ref());
        let mut part = Self {
            metadata: ObjectMeta {
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                creation_timestamp: metadata.creation_timestamp.clone(),
                deletion_timestamp: metadata.deletion_timestamp.clone(),
                ..ObjectMeta::default()
            },
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
            ..Self::default()
        };
        for (key, value) in metadata.labels.iter().flatten() {
            part.labels.push(key);
            part.labels.push(value);
        }
        part.annotations = metadata.annotations.as_ref().map(|all| {
            let mut needed = Annotations::default();
            for (key, value) in all {
                needed.add(key, value.as_str().into());
            }
            needed
        });
        for taint in spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten() {
            part.taints.push(Taint { key: taint.key.as_str().into(), effect: taint.effect.as_str().into() });
        }
        for condition in status.and_then(|status| status.conditions.as_ref()).into_iter().flatten() {
            part.add_condition(&condition.type_, &condition.status, condition.reason.as_deref());
        }
        part
    }
}

impl PartialNode {
    fn add_condition(&mut self, kind: &str, status: &str, reason: Option<&str>) {
        self.conditions.push(kind);
        self.conditions.push(status);
        if kind == NETWORK_VERIFIED && self.network_verified.is_none() {
            self.network_verified = Some((status.to_owned(), reason.unwrap_or_default().to_owned()));
        }
    }

    pub(super) fn created(&self) -> Timestamp {
        self.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }
}

resource!(PartialNode, Node);

part!(Fields { metadata: Metadata = "metadata", spec: Spec = "spec", status: Status = "status" });
part!(Metadata {
    name: String = "name",
    uid: String = "uid",
    resource_version: String = "resourceVersion",
    created: Time = "creationTimestamp",
    deleted: Time = "deletionTimestamp",
    labels: Pairs = "labels",
    annotations: Annotations = "annotations",
});
part!(Spec { unschedulable: bool = "unschedulable", taints: Vec<TaintFields> = "taints" });
part!(TaintFields { key: Box<str> = "key", effect: Box<str> = "effect" });
part!(Status { conditions: Conditions = "conditions", info: Info = "nodeInfo" });
part!(Info { boot_id: String = "bootID" });
part!(Condition { kind: String = "type", status: String = "status", reason: String = "reason" });

impl<'de> Deserialize<'de> for PartialNode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Fields { metadata, spec, status } = Fields::deserialize(from)?;
        let Metadata { name, uid, resource_version, created, deleted, labels, annotations } =
            metadata.unwrap_or_default();
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let taint = |taint: TaintFields| Taint {
            key: taint.key.unwrap_or_default(),
            effect: taint.effect.unwrap_or_default(),
        };
        let Conditions(conditions) = status.conditions.unwrap_or_default();
        Ok(Self {
            metadata: ObjectMeta {
                name,
                uid,
                resource_version,
                creation_timestamp: created,
                deletion_timestamp: deleted,
                ..ObjectMeta::default()
            },
            labels: labels.unwrap_or_default(),
            annotations,
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.into_iter().flatten().map(taint).collect(),
            boot_id: status.info.and_then(|info| info.boot_id).unwrap_or_default(),
            ..conditions
        })
    }
}

/// Appends a text to pairs.
struct Push<'a>(&'a mut Pairs);

impl<'de> DeserializeSeed<'de> for Push<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Push<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.push(text);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Labels;

        impl<'de> Visitor<'de> for Labels {
            type Value = Pairs;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Pairs::default();
                while map.next_key_seed(Push(&mut pairs))?.is_some() {
                    map.next_value_seed(Push(&mut pairs))?;
                }
                Ok(pairs)
            }
        }

        from.deserialize_map(Labels)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Needed;

        impl<'de> Visitor<'de> for Needed {
            type Value = Annotations;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut needed = Annotations::default();
                while let Some(key) = map.next_key_seed(OneOf(&[record::ANNOTATION, VERIFY, CORDONED]))? {
                    match key {
                        Some(key) => needed.add(key, map.next_value::<String>()?.into()),
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(needed)
            }
        }

        from.deserialize_map(Needed)
    }
}

/// A node of which only the conditions are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conditions(PartialNode);

impl<'de> Deserialize<'de> for Conditions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Conditions;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("conditions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Conditions, A::Error> {
                let mut node = PartialNode::default();
                while let Some(Condition { kind, status, reason }) = list.next_element()? {
                    let (kind, status) = (kind.unwrap_or_default(), status.unwrap_or_default());
                    node.add_condition(&kind, &status, reason.as_deref());
                }
                Ok(Conditions(node))
            }
        }

        from.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests;

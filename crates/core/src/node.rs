//! The few fields of a Node that we keep.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::GateTaint;
use crate::record::{self, Record, VerificationScope};
use crate::report::Verdict;

/// Taints by which an autoscaler says that it is removing the node.
const TERMINATING: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

/// Whoever puts this on a node asks for a worker now, whatever its value.
pub const VERIFY: &str = "nodekeeper.dev/verify";
/// The mark of a cordon of ours: the name of the `NodeRemediation` that it is for.
pub const CORDONED: &str = "nodekeeper.dev/cordoned-for";
/// The type of the condition that a gate may write on its nodes.
pub const CONDITION: &str = "NetworkVerified";

/// A taint as a node bears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: Box<str>,
    /// Its effect.
    pub effect: Box<str>,
}

/// Labels of a node, by key. Few: those that somebody looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    /// The value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }

    /// Adds a label, or changes its value.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: &str) {
        let key = key.into();
        self.0.retain(|(known, _)| *known != key);
        self.0.push((key, value.into()));
    }

    /// Removes a label.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| **known != *key);
    }

    /// Keeps only these labels. Their keys are shared by all nodes, and so are values that are among these words.
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

/// A Node, as far as anything here is decided by it. Small: there is one for each node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, as Kubernetes has them")]
pub struct NodeView {
    /// Its name, which another machine may have tomorrow.
    pub name: Arc<str>,
    /// Its uid: with `boot_id` it says which machine this is, in which life.
    pub uid: Box<str>,
    /// Changes with each boot.
    pub boot_id: Box<str>,
    /// For guarded writes. A number on every server that we claim; 0 where it is none.
    pub resource_version: u64,
    /// When it was made.
    pub created: Timestamp,
    /// Somebody deleted it, or an autoscaler is about to.
    pub terminating: bool,
    /// What its kubelet says.
    pub ready: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// In the order in which the node bears them.
    pub taints: Vec<Taint>,
    /// Those of its labels that somebody looks at.
    pub labels: Labels,
    /// The status of each condition that a gate waits for, by type.
    pub conditions: Labels,
    /// Whether it has any label at all; JSON Patch must know.
    pub has_labels: bool,
    /// Whether it has any annotation at all; JSON Patch must know.
    pub has_annotations: bool,
    /// Our annotation, as it stands there.
    pub record: Option<Box<str>>,
    /// When we first saw it so, on our own clock.
    pub record_seen_at: Duration,
    /// Since when its record has blamed it in the same round, on our own clock. Of one that does not: as above.
    pub failing_since: Duration,
    /// We cordoned it.
    pub marked: bool,
    /// Somebody asks for a worker now; with which word.
    pub verify: Option<Box<str>>,
    /// Status and reason of our condition, as they stand there.
    pub published: Option<Box<(String, String)>>,
}

impl NodeView {
    /// The round of its last verdict, if that blames the node.
    #[must_use]
    pub fn failing_scope(&self) -> Option<VerificationScope> {
        let record = Record::read(self.record.as_deref(), &self.uid)?;
        (record.verdict == Some(Verdict::Failed) && !record.is_open()).then_some(record.round)
    }

    /// Keeps what is needed of a Node.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let (metadata, spec, status) = (&node.metadata, node.spec.as_ref(), node.status.as_ref());
        let taints: Vec<Taint> = spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .map(|taint| Taint { key: taint.key.as_str().into(), effect: taint.effect.as_str().into() })
            .collect();
        let terminating = metadata.deletion_timestamp.is_some()
            || taints.iter().any(|taint| TERMINATING.contains(&&*taint.key));
        let conditions = || status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let annotations = metadata.annotations.as_ref();
        let annotation = |key: &str| annotations?.get(key).map(|value| value.as_str().into());
        Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            boot_id: status
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.boot_id.as_str().into())
                .unwrap_or_default(),
            resource_version: metadata
                .resource_version
                .as_deref()
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            terminating,
            ready: conditions().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            taints,
            labels: metadata
                .labels
                .iter()
                .flatten()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect(),
            conditions: conditions()
                .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
                .collect(),
            has_labels: metadata.labels.as_ref().is_some_and(|labels| !labels.is_empty()),
            has_annotations: annotations.is_some(),
            record: annotation(record::ANNOTATION),
            record_seen_at: Duration::ZERO,
            failing_since: Duration::ZERO,
            marked: annotations.is_some_and(|all| all.contains_key(CORDONED)),
            verify: annotation(VERIFY),
            published: conditions()
                .find(|condition| condition.type_ == CONDITION)
                .map(|own| Box::new((own.status.clone(), own.reason.clone().unwrap_or_default()))),
        }
    }

    /// Drops the labels and conditions that are not in `wanted`.
    #[must_use]
    pub fn with_labels(self, wanted: &BTreeSet<Arc<str>>) -> Self {
        Self { labels: self.labels.only(wanted), conditions: self.conditions.only(wanted), ..self }
    }

    /// Whether it bears a taint of this key.
    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| *taint.key == *key)
    }

    /// Where in the node's list the given taints are, lowest first.
    #[must_use]
    pub fn positions(&self, taints: &[GateTaint]) -> Vec<usize> {
        let is_one = |taint: &Taint| {
            taints.iter().any(|own| *own.key == *taint.key && own.effect.as_str() == &*taint.effect)
        };
        (0..self.taints.len()).filter(|i| is_one(&self.taints[*i])).collect()
    }
}

//! A trimmed view of a Node.

mod field_manager;
mod partial;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::GateTaint;
use crate::id::Id;
use crate::labels::{Labels, NodeTexts};
use crate::record::{Record, VerificationScope};
use crate::report::Verdict;

pub use field_manager::taints_manager;
pub use partial::PartialNode;

/// Taints that an autoscaler puts on a node that it is removing.
const TERMINATING: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

/// A user sets this annotation to have the node verified now. Its value does not matter.
pub const VERIFY: &str = "nodekeeper.dev/verify";
/// The annotation of a node that a `NodeRemediation` cordoned; its value is that object's name.
pub const CORDONED: &str = "nodekeeper.dev/cordoned-for";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: Box<str>,
    pub effect: Box<str>,
}

/// What decisions need of a Node. It is kept small, because there is one for each node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, as Kubernetes has them")]
pub struct NodeView {
    /// Not unique over time: another machine may get the same name.
    pub name: Arc<str>,
    pub uid: Id,
    pub boot_id: Id,
    /// For guarded writes. A number on every supported API server; 0 where it is none.
    pub resource_version: u64,
    pub created: Timestamp,
    /// The node has a deletion timestamp, or an autoscaler's taint says that it will be deleted.
    pub terminating: bool,
    pub ready: bool,
    pub unschedulable: bool,
    /// In the order of `spec.taints`: JSON patches address them by index.
    pub taints: Vec<Taint>,
    /// Only the labels of `gate::wanted_labels`.
    pub labels: Labels,
    /// The status of each condition that a gate waits for, by type.
    pub conditions: Labels,
    /// Whether the node has any label, for JSON patches.
    pub has_labels: bool,
    /// Whether the node has any annotation, for JSON patches.
    pub has_annotations: bool,
    /// The record annotation, parsed and validated: its uid is this node's, and its number is plausible.
    pub record: Option<Box<Record>>,
    /// The text of the record annotation, kept only where `record` does not serialise to exactly this text. JSON patches
    /// test the text.
    pub record_text: Option<Box<str>>,
    /// When this process first observed the record, on its monotonic clock.
    pub record_seen_at: Duration,
    /// Since when the gates that hold the node have found it Failed in the same scopes, on the monotonic clock; equal to
    /// `record_seen_at` if none does.
    pub failing_since: Duration,
    /// The node has the annotation [`CORDONED`].
    pub marked: bool,
    /// The value of the annotation [`VERIFY`].
    pub verify: Option<Box<str>>,
    /// Status and reason of the node's condition `NetworkVerified`.
    pub network_verified: Option<Box<(String, String)>>,
}

impl NodeView {
    /// The scopes in which the last verdict is Failed, and whose gates hold the node.
    pub fn failing_scopes(&self) -> impl Iterator<Item = &VerificationScope> {
        let sections = self.record.as_deref().into_iter().flat_map(Record::sections);
        let failing = |section: &&Record| section.verdict == Some(Verdict::Failed) && !section.is_open();
        sections.filter(failing).map(|section| &section.scope)
    }

    /// The text of the record annotation as it stands in the cluster.
    #[must_use]
    pub fn record_annotation(&self) -> Option<Cow<'_, str>> {
        let serialised = || self.record.as_ref().map(|record| Cow::Owned(record.to_annotation()));
        self.record_text.as_deref().map(Cow::Borrowed).or_else(serialised)
    }

    /// Parses the record annotation. An annotation that is no valid record of this node is kept as text only.
    pub fn set_record_annotation(&mut self, text: Option<&str>) {
        self.record = Record::read(text, &self.uid).map(Box::new);
        let is_kept =
            |text: &&str| self.record.as_ref().is_none_or(|record| record.to_annotation() != **text);
        self.record_text = text.filter(is_kept).map(Into::into);
    }

    /// The view of a node with all its labels.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let part = PartialNode::from(node);
        Self {
            labels: part.labels.iter().collect(),
            conditions: part.conditions.iter().collect(),
            ..Self::of(&part)
        }
    }

    /// The view of a node with the labels that are wanted, and with texts that it shares with other nodes.
    #[must_use]
    pub fn trimmed(node: &PartialNode, texts: &mut NodeTexts) -> Self {
        let mut view = Self {
            // The last of equal keys counts.
            labels: texts.labels(node.labels.iter().rev()),
            conditions: texts.labels(node.conditions.iter()),
            ..Self::of(node)
        };
        if let Some(record) = &mut view.record {
            for text in record.texts_mut() {
                *text = texts.text(text).into();
            }
        }
        view
    }

    /// Everything but labels and conditions.
    fn of(node: &PartialNode) -> Self {
        let PartialNode { metadata, annotations, taints, .. } = node;
        let needed = annotations.as_ref();
        let is_terminating = |taint: &Taint| TERMINATING.contains(&&*taint.key);
        let mut view = Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            boot_id: node.boot_id.as_str().into(),
            resource_version: metadata
                .resource_version
                .as_deref()
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            created: node.created(),
            terminating: metadata.deletion_timestamp.is_some() || taints.iter().any(is_terminating),
            ready: node.conditions.iter().any(|condition| condition == ("Ready", "True")),
            unschedulable: node.unschedulable,
            taints: taints.clone(),
            has_labels: !node.labels.is_empty(),
            has_annotations: annotations.is_some(),
            marked: needed.is_some_and(|needed| needed.cordoned),
            verify: needed.and_then(|needed| needed.verify.as_deref()).map(Into::into),
            network_verified: node.network_verified.clone().map(Box::new),
            ..Self::default()
        };
        view.set_record_annotation(needed.and_then(|needed| needed.record.as_deref()));
        view
    }

    /// Whether another state of the node differs only in its resourceVersion.
    #[must_use]
    pub fn is_same_state(&self, other: &Self) -> bool {
        Self { resource_version: other.resource_version, ..self.clone() } == *other
    }

    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| *taint.key == *key)
    }

    /// The indices of the given taints in `spec.taints`, in ascending order.
    #[must_use]
    pub fn positions(&self, taints: &[GateTaint]) -> Vec<usize> {
        let is_one = |taint: &Taint| {
            taints.iter().any(|own| *own.key == *taint.key && own.effect.as_str() == &*taint.effect)
        };
        (0..self.taints.len()).filter(|i| is_one(&self.taints[*i])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"uid":"u","number":3,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":2,"attempts":1,"verdict":"Failed","why":"dns","at":"2026-11-15T12:00:00Z"}"#;

    fn view(text: Option<&str>) -> NodeView {
        let mut view = NodeView { uid: "u".into(), ..NodeView::default() };
        view.set_record_annotation(text);
        assert_eq!(view.record_annotation().as_deref(), text, "a patch must test what stands in the cluster");
        view
    }

    #[test]
    fn text_is_kept_only_where_serialising_differs() {
        let plain = view(Some(RECORD));
        assert_eq!(plain.record_text, None);
        let unknown_key = RECORD.replace("\"why\"", "\"newer\":1,\"why\"");
        let other_order = RECORD.replace("\"uid\":\"u\",\"number\":3", "\"number\":3,\"uid\":\"u\"");
        for text in [unknown_key, other_order] {
            let kept = view(Some(&text));
            assert_eq!((kept.record_text.as_deref(), &kept.record), (Some(&*text), &plain.record));
        }
        assert_eq!(view(None), NodeView { uid: "u".into(), ..NodeView::default() });
    }

    #[test]
    fn g08_sections_of_other_gates_need_no_text() {
        let [first, second] =
            ["g", "h"].map(|gate| RECORD.replace("\"gateUid\":\"g\"", &format!("\"gateUid\":\"{gate}\"")));
        let nested = second.replacen("\"uid\":\"u\",", "", 1);
        let two = format!("{},\"others\":[{nested}]}}", first.trim_end_matches('}').to_owned());
        let kept = view(Some(&two));
        assert_eq!((kept.record_text.as_deref(), kept.failing_scopes().count()), (None, 2));
        // Only the controller's own form is put together again from the sections.
        let strange = two.replace(&nested, &second);
        assert_eq!(view(Some(&strange)).record_text.as_deref(), Some(&*strange));
    }

    #[test]
    fn a_heartbeat_is_the_same_state_and_any_other_change_is_not() {
        let before = view(Some(RECORD));
        let heartbeat = NodeView { resource_version: 9, ..before.clone() };
        assert!(before.is_same_state(&heartbeat) && heartbeat.is_same_state(&before));
        let taint = Taint { key: "k".into(), effect: "NoSchedule".into() };
        let tainted = NodeView { resource_version: 9, taints: [taint].into(), ..before.clone() };
        let booted = NodeView { resource_version: 9, boot_id: "c".into(), ..before.clone() };
        for other in [tainted, booted, view(None)] {
            assert!(!before.is_same_state(&other), "{other:?}");
        }
    }

    #[test]
    fn an_invalid_record_is_kept_as_text_only() {
        let other_node = RECORD.replace("\"uid\":\"u\"", "\"uid\":\"v\"");
        for text in ["", "[]", r#"{"uid":"u","number":4294967295}"#, &other_node] {
            let kept = view(Some(text));
            assert_eq!((kept.record_text.as_deref(), kept.record), (Some(text), None));
        }
    }
}

//! The record of a node's verification: one annotation, which only the controller writes.

mod sections;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::FailedCheck;
use crate::id::Id;
use crate::report::Verdict;
use crate::text::{SharedText, clean};

pub const ANNOTATION: &str = "nodekeeper.dev/record";

/// Bytes.
const WHY_LIMIT: usize = 512;
/// A higher number is not plausible and was not written by the controller.
pub(crate) const MAX_WORKER_NUMBER: u32 = 1 << 30;

/// The counts and the last verdict of a node. A new leader continues from here.
///
/// Each gate of a node has its own section. The section that was written last is the record itself, the others are in
/// [`Record::others`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Missing keys have defaults: records outlive upgrades and rollbacks.
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and a key of the annotation")]
pub struct Record {
    /// The Node's uid. A record that was copied from another node is not valid. Empty in [`Record::others`].
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub uid: Id,
    /// The highest number of a worker of any gate whose result is recorded.
    pub number: u32,
    /// What the verdict is about. The counts restart with another scope.
    #[serde(rename = "round")]
    pub scope: VerificationScope,
    /// Workers that ended in this scope.
    pub workers: u32,
    /// Workers of this scope that ended with Passed or Failed.
    pub attempts: u32,
    /// Inconclusive workers since the last Passed or Failed.
    #[serde(rename = "silent", skip_serializing_if = "is_zero")]
    pub inconclusive_streak: u32,
    pub verdict: Option<Verdict>,
    /// The explanation of the verdict.
    pub why: SharedText,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedCheck>,
    /// When the verdict was recorded.
    pub at: Option<Timestamp>,
    /// Why the last worker was inconclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<InconclusiveReason>,
    /// Seconds that the workers of this scope took, with the backoffs before them. `deadlines.gateSeconds` limits it.
    #[serde(rename = "spent", skip_serializing_if = "is_zero")]
    pub elapsed_seconds: u32,
    /// The gate removed its taint and has not put it back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// The gate put its taint back and has not removed it since.
    #[serde(rename = "regated", skip_serializing_if = "std::ops::Not::not")]
    pub retainted: bool,
    /// The gate audited when it removed its taint, so the verdict held up no node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub audited: bool,
    /// How often in a row somebody put the taint back, or removed the label, soon after the gate had admitted the node.
    #[serde(skip_serializing_if = "is_zero")]
    pub reverted: u32,
    /// Key of the verified label that the gate set. Removing the label requests another worker.
    #[serde(skip_serializing_if = "SharedText::is_empty")]
    pub label: SharedText,
    /// The label was not set, or was removed, because another gate with the same label holds the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlabelled: bool,
    /// Somebody requested a verification, and so far only other gates have answered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub requested: bool,
    /// Key of the gate's taint on the node. It identifies the taint after the gate is deleted. Where a node has several
    /// gates it is kept when the gate removes the taint, because it tells whose section this is.
    #[serde(skip_serializing_if = "SharedText::is_empty")]
    pub taint: SharedText,
    /// The sections of the node's other gates, the one that was written last first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Self>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Why a worker came to no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InconclusiveReason {
    /// The image could not be pulled.
    ImagePull,
    /// The scheduler did not place the pod.
    Unscheduled,
    /// The kubelet did not start the container.
    NotStarted,
    Evicted,
    OutOfMemory,
    /// The worker ended without a valid report.
    NoReport,
    /// The worker did not end in time.
    Overdue,
    /// Cluster DNS has no ready endpoints.
    ClusterDns,
    /// The same check fails on control nodes.
    SharedDependency,
    /// A reason of this worker alone.
    #[serde(other)]
    Other,
}

impl InconclusiveReason {
    /// Whether the reason kept the worker from running, rather than from a verdict.
    #[must_use]
    pub fn prevents_running(self) -> bool {
        !matches!(self, Self::ClusterDns | Self::SharedDependency | Self::Other)
    }

    /// Completes "the workers of N nodes cannot run: ".
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::ImagePull => "their image cannot be pulled",
            Self::Unscheduled => "the scheduler refuses them",
            Self::NotStarted => "the kubelet does not start them",
            Self::Evicted => "they are evicted",
            Self::OutOfMemory => "they run out of memory",
            Self::NoReport => "they end without a report",
            Self::Overdue => "they do not end",
            Self::ClusterDns => "the cluster's DNS does not run",
            Self::SharedDependency => "the same check fails on control nodes",
            Self::Other => "for another reason",
        }
    }
}

/// The result of one worker.
#[derive(Clone, Debug)]
pub struct WorkerResult<'a> {
    /// The Node's uid.
    pub uid: Id,
    pub scope: VerificationScope,
    pub number: u32,
    pub verdict: Verdict,
    pub why: &'a str,
    pub failed: Vec<FailedCheck>,
    pub cause: Option<InconclusiveReason>,
    /// Seconds that the worker took, with the backoff before it.
    pub elapsed_seconds: u32,
    /// Restart the counts although the scope is the same.
    pub restart: bool,
    pub at: Timestamp,
}

/// What a verdict is about: one boot of the node, and one generation of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerificationScope {
    pub boot_id: Id,
    pub gate_uid: Id,
    pub gate_generation: i64,
}

impl Record {
    /// Parses the annotation of the node with this uid. None if it is no valid record of this node.
    #[must_use]
    pub fn read<U: ?Sized>(annotation: Option<&str>, uid: &U) -> Option<Self>
    where
        Id: PartialEq<U>,
    {
        let record = serde_json::from_str::<Self>(annotation?).ok()?.normalised();
        // A kubelet may annotate its own node, so the number is checked.
        (record.uid == *uid && record.number < MAX_WORKER_NUMBER).then_some(record)
    }

    #[must_use]
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record after one more worker ended. The caller compares [`Record::number`], so that no worker counts twice.
    #[must_use]
    pub fn after(&self, result: WorkerResult<'_>) -> Self {
        let WorkerResult { uid, scope, number, verdict, why, failed, cause, elapsed_seconds, restart, at } =
            result;
        let before = if self.continues(&scope) && !restart { self.clone() } else { Self::default() };
        let is_conclusive = verdict != Verdict::Inconclusive;
        Self {
            uid,
            number,
            scope,
            workers: before.workers.saturating_add(1),
            attempts: before.attempts.saturating_add(is_conclusive.into()),
            inconclusive_streak: if is_conclusive { 0 } else { before.inconclusive_streak.saturating_add(1) },
            verdict: Some(verdict),
            why: clean(why, WHY_LIMIT).into(),
            failed,
            at: Some(at),
            cause,
            elapsed_seconds: before.elapsed_seconds.saturating_add(elapsed_seconds),
            open: self.is_open(),
            retainted: self.retainted,
            audited: false,
            reverted: self.reverted,
            label: self.label.clone(),
            unlabelled: self.unlabelled,
            requested: false,
            taint: self.taint.clone(),
            others: self.others.clone(),
        }
    }

    /// The record once the gate removed its taint and set this label.
    #[must_use]
    pub fn opened(self, label: &str) -> Self {
        Self {
            open: true,
            retainted: false,
            label: label.into(),
            unlabelled: false,
            taint: SharedText::default(),
            elapsed_seconds: 0,
            ..self
        }
    }

    /// The record once the gate put its taint back. The node has all its attempts and the whole deadline before it: what it
    /// failed while it was verified led to the taint.
    #[must_use]
    pub fn retaint(self) -> Self {
        Self {
            open: false,
            retainted: true,
            workers: 0,
            attempts: 0,
            inconclusive_streak: 0,
            elapsed_seconds: 0,
            ..self
        }
    }

    /// Whether the gate removed its taint and has not put it back. Records of the first release have no `open`.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open || (self.verdict == Some(Verdict::Passed) && !self.retainted)
    }

    /// Whether an audit admitted the node, which no worker of the gate has passed since. Whoever verifies a node sets a label.
    #[must_use]
    pub fn is_admitted_by_audit(&self) -> bool {
        let has_not_passed = self.verdict != Some(Verdict::Passed);
        has_not_passed && (self.audited || (self.open && self.label.is_empty()))
    }

    /// Whether a worker of this scope continues the counts. A Passed verdict ends them.
    #[must_use]
    pub fn continues(&self, scope: &VerificationScope) -> bool {
        self.scope == *scope && self.verdict != Some(Verdict::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first release writes it. Every later release must read it.
    const FIRST: &str = r#"{"uid":"u","number":3,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":2,"attempts":1,"silent":1,"verdict":"Failed","why":"dns","at":"2026-11-15T12:00:00Z"}"#;

    #[test]
    fn records_of_any_release_are_read() {
        let read = Record::read(Some(FIRST), "u").expect("it is a record");
        assert_eq!((read.number, read.attempts, read.verdict), (3, 1, Some(Verdict::Failed)));
        assert_eq!(read.to_annotation(), FIRST);
        let newer = FIRST.replace("\"why\"", "\"fromTheFuture\":[1],\"why\"");
        assert_eq!(Record::read(Some(&newer), "u"), Some(read));
        let older =
            Record::read(Some(r#"{"uid":"u","number":7}"#), "u").expect("what is missing has a default");
        assert_eq!(older.number, 7);
    }

    /// Records with every key, exactly as commit 6b13452 writes them.
    const WRITTEN_BY_6B13452: [&str; 3] = [
        r#"{"uid":"u","number":0,"round":{"bootId":"","gateUid":"","gateGeneration":0},"workers":0,"attempts":0,"verdict":null,"why":"","at":null}"#,
        r#"{"uid":"u","number":7,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":5,"attempts":2,"silent":3,"verdict":"Inconclusive","why":"nodes that work fail alike: dns kubernetes.: Timeout (no answer)","failed":[{"name":"dns","target":"kubernetes.","reason":"Timeout"},{"name":"exec"}],"at":"2026-11-15T12:00:00.123456789Z","cause":"SharedDependency","spent":61,"regated":true,"taint":"node-ready/unverified"}"#,
        r#"{"uid":"u","number":8,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":6,"attempts":3,"verdict":"Passed","why":"5 checks passed in 120 ms","at":"2026-11-15T12:00:00Z","open":true,"label":"node-ready/verified"}"#,
    ];

    #[test]
    fn records_of_6b13452_round_trip_byte_for_byte() {
        for text in WRITTEN_BY_6B13452 {
            assert_eq!(Record::read(Some(text), "u").expect("it is a record").to_annotation(), text);
        }
        let full = Record::read(Some(WRITTEN_BY_6B13452[1]), "u").expect("it is a record");
        assert_eq!((full.inconclusive_streak, full.elapsed_seconds, full.retainted), (3, 61, true));
        assert_eq!((full.scope.gate_generation, full.failed.len()), (2, 2));
        assert_eq!(full.cause, Some(InconclusiveReason::SharedDependency));
    }

    #[test]
    fn implausible_records_are_rejected() {
        assert_eq!(Record::read(Some(FIRST), "another"), None);
        assert_eq!(Record::read(Some(r#"{"uid":"u","number":4294967295}"#), "u"), None);
        assert_eq!(Record::read(Some("[]"), "u"), None);
        assert_eq!(Record::read(None, "u"), None);
    }
}

//! What we remember about a node: one annotation on it, written by us alone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::FailedCheck;
use crate::report::Verdict;
use crate::text::clean;

/// The annotation that holds the record.
pub const ANNOTATION: &str = "nodekeeper.dev/record";

/// Longer texts say no more.
const WHY_LIMIT: usize = 512;
/// No node has so many in its life.
pub(crate) const MAX_WORKER_NUMBER: u32 = 1 << 30;

/// Counts and the last verdict. Whoever leads next goes on from here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// What is missing is as it was before anybody wrote it: records outlive releases, in both directions.
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// uid of the Node: an annotation that was copied to another counts for nothing.
    pub uid: String,
    /// The highest number of a worker whose end is recorded here.
    pub number: u32,
    /// What this round is about. Another boot or another gate begins another.
    #[serde(rename = "round")]
    pub scope: VerificationScope,
    /// Workers that ended in this round.
    pub workers: u32,
    /// Those of them that ended with a verdict: Passed or Failed.
    pub attempts: u32,
    /// Those that could not tell since the last verdict.
    #[serde(rename = "silent", skip_serializing_if = "is_zero")]
    pub inconclusive_streak: u32,
    /// The last verdict.
    pub verdict: Option<Verdict>,
    /// What led to it, for people.
    pub why: String,
    /// The checks that failed, if some did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedCheck>,
    /// When it was recorded.
    pub at: Option<Timestamp>,
    /// Why the last worker could not tell, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<InconclusiveReason>,
    /// Seconds that workers took in this scope, with the pauses before them: what the gate's deadline is about.
    #[serde(rename = "spent", skip_serializing_if = "is_zero")]
    pub elapsed_seconds: u32,
    /// We let the node in, and have not tainted it since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// We tainted it again, and have not let it in since.
    #[serde(rename = "regated", skip_serializing_if = "std::ops::Not::not")]
    pub retainted: bool,
    /// Key of the label that it got when it was let in: whoever removes it asks for another look.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Key of the taint by which it is held: who deletes the gate leaves a node that nobody serves.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub taint: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Why a worker could not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InconclusiveReason {
    /// Its image could not be had.
    ImagePull,
    /// The scheduler did not let it on the node.
    Unscheduled,
    /// The kubelet did not get it started.
    NotStarted,
    /// The kubelet or somebody else threw it out.
    Evicted,
    /// It had too little memory.
    OutOfMemory,
    /// It ended without a word that can be believed.
    NoReport,
    /// It did not end.
    Overdue,
    /// The cluster's DNS does not run.
    ClusterDns,
    /// It failed what nodes that work fail as well.
    SharedDependency,
    /// Something that says nothing about others.
    #[serde(other)]
    Other,
}

impl InconclusiveReason {
    /// Whether it means that a worker cannot run, whatever its node is like.
    #[must_use]
    pub fn prevents_running(self) -> bool {
        !matches!(self, Self::ClusterDns | Self::SharedDependency | Self::Other)
    }

    /// For people.
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
            Self::SharedDependency => "nodes that work fail alike",
            Self::Other => "for another reason",
        }
    }
}

/// How one worker ended.
#[derive(Clone, Debug)]
pub struct WorkerResult<'a> {
    /// uid of the Node.
    pub uid: &'a str,
    /// What it looked at.
    pub scope: VerificationScope,
    /// Its number.
    pub number: u32,
    /// What it found.
    pub verdict: Verdict,
    /// For people.
    pub why: &'a str,
    /// The checks that failed.
    pub failed: Vec<FailedCheck>,
    /// Why it could not tell.
    pub cause: Option<InconclusiveReason>,
    /// Seconds that it took, with the pause before it.
    pub elapsed_seconds: u32,
    /// Somebody asked for a round of its own.
    pub restart: bool,
    /// When.
    pub at: Timestamp,
}

/// What a verdict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerificationScope {
    /// The boot that is looked at.
    pub boot_id: String,
    /// uid of the gate.
    pub gate_uid: String,
    /// Generation of the gate.
    pub gate_generation: i64,
}

impl Record {
    /// Reads the annotation of the node with this uid. What is not ours, or of another node, is no record.
    #[must_use]
    pub fn read(annotation: Option<&str>, uid: &str) -> Option<Self> {
        let record: Self = serde_json::from_str(annotation?).ok()?;
        // A kubelet may annotate its own node: a number that we would not reach in a lifetime is not ours.
        (record.uid == uid && record.number < MAX_WORKER_NUMBER).then_some(record)
    }

    /// The annotation's text.
    #[must_use]
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record after one more worker ended. The same worker never counts twice: whoever calls this has looked at
    /// [`Record::number`].
    #[must_use]
    pub fn after(&self, ending: WorkerResult<'_>) -> Self {
        let WorkerResult { uid, scope, number, verdict, why, failed, cause, elapsed_seconds, restart, at } =
            ending;
        let before = if self.continues(&scope) && !restart { self.clone() } else { Self::default() };
        let tells = verdict != Verdict::Inconclusive;
        Self {
            uid: uid.to_owned(),
            number,
            scope,
            workers: before.workers.saturating_add(1),
            attempts: before.attempts.saturating_add(tells.into()),
            inconclusive_streak: if tells { 0 } else { before.inconclusive_streak.saturating_add(1) },
            verdict: Some(verdict),
            why: clean(why, WHY_LIMIT),
            failed,
            at: Some(at),
            cause,
            elapsed_seconds: before.elapsed_seconds.saturating_add(elapsed_seconds),
            open: self.is_open(),
            retainted: self.retainted,
            label: self.label.clone(),
            taint: self.taint.clone(),
        }
    }

    /// The node was let in, and got this label.
    #[must_use]
    pub fn opened(self, label: &str) -> Self {
        Self {
            open: true,
            retainted: false,
            label: label.to_owned(),
            taint: String::new(),
            elapsed_seconds: 0,
            ..self
        }
    }

    /// The node was tainted again.
    #[must_use]
    pub fn retaint(self) -> Self {
        Self { open: false, retainted: true, ..self }
    }

    /// Whether we let the node in. Records of the first release say so by their verdict alone.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open || (self.verdict == Some(Verdict::Passed) && !self.retainted)
    }

    /// Whether a worker of this round goes on where the record ends. A verdict that opened the gate ended its round.
    #[must_use]
    pub fn continues(&self, scope: &VerificationScope) -> bool {
        self.scope == *scope && self.verdict != Some(Verdict::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first release writes it. It has to be read for ever.
    const FIRST: &str = r#"{"uid":"u","number":3,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":2,"attempts":1,"silent":1,"verdict":"Failed","why":"dns","at":"2026-11-15T12:00:00Z"}"#;

    #[test]
    fn a_record_of_any_release_is_read() {
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
    fn what_cannot_be_ours_is_no_record() {
        assert_eq!(Record::read(Some(FIRST), "another"), None);
        assert_eq!(Record::read(Some(r#"{"uid":"u","number":4294967295}"#), "u"), None);
        assert_eq!(Record::read(Some("[]"), "u"), None);
        assert_eq!(Record::read(None, "u"), None);
    }
}

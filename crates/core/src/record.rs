//! What we remember about a node: one annotation on it, written by us alone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::report::Verdict;

/// The annotation that holds the record.
pub const ANNOTATION: &str = "nodekeeper.dev/record";

/// Longer texts say no more.
const WHY_LIMIT: usize = 512;

/// Counts and the last verdict. Whoever leads next goes on from here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// uid of the Node: an annotation that was copied to another counts for nothing.
    pub uid: String,
    /// The highest number of a worker whose end is recorded here.
    pub number: u32,
    /// What this round is about. Another boot or another gate begins another.
    pub round: Round,
    /// Workers that ended in this round.
    pub workers: u32,
    /// Those of them that ended with a verdict: Passed or Failed.
    pub attempts: u32,
    /// The last verdict.
    pub verdict: Option<Verdict>,
    /// What led to it, for people.
    pub why: String,
    /// When it was recorded.
    pub at: Option<Timestamp>,
}

/// What a verdict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Round {
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
        (record.uid == uid).then_some(record)
    }

    /// The annotation's text.
    #[must_use]
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record after one more worker ended. The same worker never counts twice: whoever calls this has looked at
    /// [`Record::number`].
    #[must_use]
    pub fn after(
        &self,
        uid: &str,
        round: Round,
        number: u32,
        verdict: Verdict,
        why: &str,
        at: Timestamp,
    ) -> Self {
        let same_round = self.round == round && self.verdict != Some(Verdict::Passed);
        let (workers, attempts) = if same_round { (self.workers, self.attempts) } else { (0, 0) };
        let counts = u32::from(verdict != Verdict::Inconclusive);
        Self {
            uid: uid.to_owned(),
            number,
            round,
            workers: workers.saturating_add(1),
            attempts: attempts.saturating_add(counts),
            verdict: Some(verdict),
            why: why.chars().take(WHY_LIMIT).collect(),
            at: Some(at),
        }
    }
}

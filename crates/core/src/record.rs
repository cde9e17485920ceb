//! What we remember about a node: one annotation on it, written by us alone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::report::Verdict;
use crate::text::clean;

/// The annotation that holds the record.
pub const ANNOTATION: &str = "nodekeeper.dev/record";

/// Longer texts say no more.
const WHY_LIMIT: usize = 512;
const MOST_WORKERS: u32 = 1 << 30;

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
    pub round: Round,
    /// Workers that ended in this round.
    pub workers: u32,
    /// Those of them that ended with a verdict: Passed or Failed.
    pub attempts: u32,
    /// Those that could not tell since the last verdict.
    pub silent: u32,
    /// The last verdict.
    pub verdict: Option<Verdict>,
    /// What led to it, for people.
    pub why: String,
    /// When it was recorded.
    pub at: Option<Timestamp>,
}

/// What a verdict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
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
        // A kubelet may annotate its own node: a number that we would not reach in a lifetime is not ours.
        (record.uid == uid && record.number < MOST_WORKERS).then_some(record)
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
        let (workers, attempts, silent) =
            if same_round { (self.workers, self.attempts, self.silent) } else { (0, 0, 0) };
        let tells = verdict != Verdict::Inconclusive;
        Self {
            uid: uid.to_owned(),
            number,
            round,
            workers: workers.saturating_add(1),
            attempts: attempts.saturating_add(tells.into()),
            silent: if tells { 0 } else { silent.saturating_add(1) },
            verdict: Some(verdict),
            why: clean(why, WHY_LIMIT),
            at: Some(at),
        }
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

    #[test]
    fn what_cannot_be_ours_is_no_record() {
        assert_eq!(Record::read(Some(FIRST), "another"), None);
        assert_eq!(Record::read(Some(r#"{"uid":"u","number":4294967295}"#), "u"), None);
        assert_eq!(Record::read(Some("[]"), "u"), None);
        assert_eq!(Record::read(None, "u"), None);
    }
}

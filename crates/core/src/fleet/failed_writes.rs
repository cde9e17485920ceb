//! Writes that the API server does not accept, for the status of the gate or policy that they are for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A write whose outcome is unknown is tried again; after so long it is reported like one that is refused.
const REPORTED_AFTER: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct FailedWrite {
    gate: String,
    /// When the first of the writes that failed in a row failed.
    since: Duration,
    message: String,
    reported: bool,
}

/// The nodes, or other objects, whose last write failed.
#[derive(Debug, Default)]
pub struct FailedWrites {
    nodes: BTreeMap<Arc<str>, FailedWrite>,
}

/// The failed writes of one gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedWritesSummary {
    pub nodes: usize,
    /// One of the nodes.
    pub example: String,
    /// What the API server answered for that node.
    pub message: String,
}

impl FailedWrites {
    /// Remembers that a write about a node failed. Returns whether this is to be reported and was not reported yet.
    pub fn insert(
        &mut self,
        node: &Arc<str>,
        gate: &str,
        message: &str,
        is_refused: bool,
        now: Duration,
    ) -> bool {
        let new =
            || FailedWrite { gate: gate.to_owned(), since: now, message: String::new(), reported: false };
        let failed = self.nodes.entry(node.clone()).or_insert_with(new);
        if failed.gate != gate {
            *failed = new();
        }
        let is_long = now.saturating_sub(failed.since) >= REPORTED_AFTER;
        let is_news = (is_refused || is_long) && !(failed.reported && failed.message == message);
        if is_news || !failed.reported {
            message.clone_into(&mut failed.message);
        }
        failed.reported |= is_news;
        is_news
    }

    /// Forgets a node whose write landed, which needs none any more, or which is gone. Returns the gate whose status
    /// changes by that.
    pub fn remove(&mut self, node: &str) -> Option<String> {
        self.nodes.remove(node).filter(|failed| failed.reported).map(|failed| failed.gate)
    }

    /// The writes of a gate that are reported.
    #[must_use]
    pub fn summary(&self, gate: &str) -> Option<FailedWritesSummary> {
        let mut failed = self.nodes.iter().filter(|(_, failed)| failed.reported && failed.gate == gate);
        let (node, first) = failed.next()?;
        Some(FailedWritesSummary {
            nodes: 1 + failed.count(),
            example: node.to_string(),
            message: first.message.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn g01_a_refused_write_is_reported_once_until_it_lands() {
        let (mut writes, node) = (FailedWrites::default(), Arc::from("n"));
        assert!(writes.insert(&node, "g", "denied", true, at(0)));
        assert!(!writes.insert(&node, "g", "denied", true, at(1)), "reported already");
        assert!(writes.insert(&node, "g", "denied by another policy", true, at(2)), "another reason is news");
        let summary = writes.summary("g").expect("it is refused");
        assert_eq!((summary.nodes, &*summary.message), (1, "denied by another policy"));
        assert_eq!(writes.summary("other"), None);
        assert_eq!(writes.remove("n").as_deref(), Some("g"));
        assert_eq!((writes.remove("n"), writes.summary("g")), (None, None));
    }

    #[test]
    fn g01_a_write_that_fails_for_a_minute_is_reported() {
        let (mut writes, node) = (FailedWrites::default(), Arc::from("n"));
        assert!(!writes.insert(&node, "g", "503", false, at(0)));
        assert!(!writes.insert(&node, "g", "500", false, at(59)));
        assert_eq!(writes.summary("g"), None);
        assert_eq!(writes.remove("n"), None, "the status never named it");
        assert!(!writes.insert(&node, "g", "503", false, at(60)), "a write has landed since");
        assert!(writes.insert(&node, "g", "500", false, at(120)));
        assert_eq!(writes.summary("g").map(|summary| summary.message).as_deref(), Some("500"));
    }
}

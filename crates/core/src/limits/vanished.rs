//! Workers that disappear before they have ended: another controller deletes them at once, or their Node is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So many are created again without a pause: a user may delete one.
const FREE: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// What happened longer ago is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(5);

/// How many workers of each node disappeared in a row, and when the last one did.
#[derive(Debug, Default)]
pub struct VanishedWorkers(BTreeMap<Arc<str>, (u32, Duration)>);

impl VanishedWorkers {
    /// A worker of the node disappeared.
    pub fn insert(&mut self, node: &str, now: Duration) {
        self.0.retain(|_, (_, last)| now.saturating_sub(*last) < FORGOTTEN_AFTER);
        let (count, last) = self.0.entry(node.into()).or_default();
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// A worker of the node ended, or the node is gone.
    pub fn remove(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// How long the next worker of the node has to wait.
    #[must_use]
    pub fn wait(&self, node: &str, now: Duration) -> Option<Duration> {
        let (count, last) = self.0.get(node)?;
        let doublings = count.checked_sub(FREE + 1)?;
        let pause = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        (*last + pause.min(LONGEST_PAUSE)).checked_sub(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_workers_vanish_gets_them_ever_more_rarely() {
        let mut vanished = VanishedWorkers::default();
        let mut now = Duration::from_secs(100);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            vanished.insert("n1", now);
            let wait = vanished.wait("n1", now).unwrap_or_default();
            pauses.push(wait.as_secs());
            now += wait;
            assert_eq!(vanished.wait("n1", now), None, "the pause ends");
        }
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(vanished.wait("n2", now), None, "other nodes do not wait");
        vanished.remove("n1");
        vanished.insert("n1", now);
        assert_eq!(vanished.wait("n1", now), None, "a worker ended meanwhile");
    }

    #[test]
    fn what_vanished_long_ago_is_forgotten() {
        let mut vanished = VanishedWorkers::default();
        for second in [0, 1, 2, 3] {
            vanished.insert("n1", Duration::from_secs(second));
        }
        vanished.insert("n1", Duration::from_mins(6));
        assert_eq!(vanished.wait("n1", Duration::from_mins(6)), None);
    }
}

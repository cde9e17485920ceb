//! A delaying, rate-limited work queue for one controller: ordered, without duplicates, with backoff after failures.
//!
//! It reads no clock and starts nothing. A key that is being processed is not handed out a second time; added
//! meanwhile, it is handed out again once it is done, but not before it is due.

use std::collections::BTreeMap;
use std::time::Duration;

use super::reconciler::Action;

const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// When a key is handed out, compared with others that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    #[default]
    Normal,
    /// Before all others, because something was completed that others wait for.
    Urgent,
}

/// The state of a queue for its metrics. Counters are since the last call of [`WorkQueue::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Keys that are due now.
    pub depth: usize,
    pub adds: u64,
    pub retries: u64,
    /// The sum of the times for which the keys in processing have been processed.
    pub unfinished: Duration,
    /// The longest of these times.
    pub longest: Duration,
}

#[derive(Debug)]
pub struct WorkQueue<K> {
    due: BTreeMap<K, Place>,
    order: BTreeMap<(Duration, u64), K>,
    /// The keys of `due` with [`Priority::Urgent`], which are handed out before those of `order`.
    urgent: BTreeMap<(Duration, u64), K>,
    /// Keys that are due now and wait behind all others. A plain list, because it may hold every node of the cluster.
    backlog: Vec<K>,
    /// Keys in processing, and when that began.
    processing: BTreeMap<K, Duration>,
    /// Keys that were added while they were in processing: the highest priority, and the earliest time they are due.
    dirty: BTreeMap<K, (Priority, Duration)>,
    failures: BTreeMap<K, u32>,
    sequence: u64,
    adds: u64,
    retries: u64,
}

/// Where a key is in the queue: its priority, when it is due, and a number that keeps keys in order.
type Place = (Priority, (Duration, u64));

impl<K: Ord + Clone> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    #[must_use]
    pub fn new() -> Self {
        Self {
            due: BTreeMap::new(),
            order: BTreeMap::new(),
            urgent: BTreeMap::new(),
            backlog: Vec::new(),
            processing: BTreeMap::new(),
            dirty: BTreeMap::new(),
            failures: BTreeMap::new(),
            sequence: 0,
            adds: 0,
            retries: 0,
        }
    }

    /// Adds a key that is due at `at`. A key in backoff stays in backoff: an object that changes often must not turn
    /// its own failure into a storm of requests.
    pub fn add(&mut self, key: K, at: Duration, priority: Priority) {
        if self.processing.contains_key(&key) {
            let dirty = self.dirty.entry(key).or_insert((priority, at));
            *dirty = (priority.max(dirty.0), at.min(dirty.1));
        } else if !self.failures.contains_key(&key) || !self.due.contains_key(&key) {
            self.put(key, at, priority);
        }
    }

    /// Adds many keys that are due now and are handed out when no other key is due.
    pub fn add_backlog(&mut self, keys: Vec<K>) {
        self.adds += u64::try_from(keys.len()).unwrap_or_default();
        if self.backlog.is_empty() {
            self.backlog = keys;
            self.backlog.reverse();
        } else {
            self.backlog.splice(0..0, keys.into_iter().rev());
        }
    }

    /// Hands out the next key that is due, and since when it is; it must be given back with [`WorkQueue::done`].
    pub fn take(&mut self, now: Duration) -> Option<(K, Duration)> {
        let is_due = |order: &BTreeMap<(Duration, u64), K>| {
            order.first_key_value().is_some_and(|((at, _), _)| *at <= now)
        };
        let order = if is_due(&self.urgent) { &mut self.urgent } else { &mut self.order };
        let first = if is_due(order) { order.pop_first() } else { None };
        let (key, at) = match first {
            Some(((at, _), key)) => {
                self.due.remove(&key);
                (key, at)
            }
            None => (self.take_backlog()?, now),
        };
        self.processing.insert(key.clone(), now);
        Some((key, at))
    }

    fn take_backlog(&mut self) -> Option<K> {
        while let Some(key) = self.backlog.pop() {
            if self.backlog.is_empty() {
                self.backlog = Vec::new();
            }
            if self.processing.contains_key(&key) {
                let dirty = self.dirty.entry(key).or_default();
                dirty.1 = Duration::ZERO;
            } else if !self.failures.contains_key(&key) {
                if let Some(place) = self.due.remove(&key) {
                    self.remove_place(place);
                }
                return Some(key);
            }
        }
        None
    }

    /// When the next key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        if self.backlog.is_empty() {
            let firsts = [&self.urgent, &self.order].into_iter().filter_map(BTreeMap::first_key_value);
            firsts.map(|((at, _), _)| *at).min()
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Ends the processing of a key. `result` says when it is due again: at the next change, after a time, or after its
    /// backoff.
    pub fn done(&mut self, key: K, result: Result<Action, ()>, now: Duration) {
        self.processing.remove(&key);
        let dirty = self.dirty.remove(&key);
        match result {
            Err(()) => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                self.retries += 1;
                let backoff = FIRST_BACKOFF.saturating_mul(1 << (*failures - 1).min(10)).min(LONGEST_BACKOFF);
                self.put(key, now + backoff, Priority::Normal);
                return;
            }
            Ok(Action::RequeueAfter(after)) => {
                self.put(key.clone(), now.saturating_add(after), Priority::Normal);
            }
            Ok(Action::AwaitChange) => {}
        }
        self.failures.remove(&key);
        if let Some((priority, at)) = dirty {
            self.put(key, at.max(now), priority);
        }
    }

    /// Walks over all keys that are due, so it is meant for every few seconds and not for every key.
    pub fn stats(&mut self, now: Duration) -> QueueStats {
        let due = |order: &BTreeMap<(Duration, u64), K>| order.range(..=(now, u64::MAX)).count();
        let worked = self.processing.values().map(|since| now.saturating_sub(*since));
        QueueStats {
            depth: self.backlog.len() + [&self.urgent, &self.order].map(due).iter().sum::<usize>(),
            adds: std::mem::take(&mut self.adds),
            retries: std::mem::take(&mut self.retries),
            unfinished: worked.clone().sum(),
            longest: worked.max().unwrap_or_default(),
        }
    }

    /// Schedules a key; the earlier of two times wins, and the higher of two priorities.
    fn put(&mut self, key: K, at: Duration, priority: Priority) {
        let known = self.due.get(&key).copied();
        let (mut at, mut priority) = (at, priority);
        if let Some((known_priority, (known_at, _))) = known {
            if known_at <= at && known_priority >= priority {
                return;
            }
            (at, priority) = (at.min(known_at), priority.max(known_priority));
        }
        if let Some(place) = known {
            self.remove_place(place);
        }
        self.sequence += 1;
        self.adds += 1;
        let place = (at, self.sequence);
        self.due.insert(key.clone(), (priority, place));
        match priority {
            Priority::Normal => &mut self.order,
            Priority::Urgent => &mut self.urgent,
        }
        .insert(place, key);
    }

    fn remove_place(&mut self, (priority, place): Place) {
        match priority {
            Priority::Normal => &mut self.order,
            Priority::Urgent => &mut self.urgent,
        }
        .remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn take(queue: &mut WorkQueue<&'static str>, now: Duration) -> Option<&'static str> {
        queue.take(now).map(|(key, _)| key)
    }

    #[test]
    fn keys_are_handed_out_once_and_in_order() {
        let mut queue = WorkQueue::new();
        for key in ["b", "a", "b"] {
            queue.add(key, at(1), Priority::Normal);
        }
        assert_eq!(take(&mut queue, at(0)), None);
        assert_eq!(take(&mut queue, at(1)), Some("b"));
        assert_eq!(take(&mut queue, at(1)), Some("a"));
        assert_eq!(take(&mut queue, at(1)), None);
    }

    #[test]
    fn a_key_added_in_processing_is_due_when_it_is_done() {
        let mut queue = WorkQueue::new();
        queue.add("a", at(0), Priority::Normal);
        assert_eq!(take(&mut queue, at(0)), Some("a"));
        queue.add("a", at(0), Priority::Normal);
        assert_eq!(take(&mut queue, at(0)), None);
        queue.done("a", Ok(Action::AwaitChange), at(3));
        assert_eq!(take(&mut queue, at(3)), Some("a"));
        queue.done("a", Ok(Action::AwaitChange), at(3));
        assert_eq!(take(&mut queue, at(9)), None);
    }

    #[test]
    fn a_key_added_in_processing_is_still_delayed() {
        let mut queue = WorkQueue::new();
        queue.add("a", at(0), Priority::Normal);
        assert_eq!(take(&mut queue, at(0)), Some("a"));
        queue.add("a", at(7), Priority::Normal);
        queue.add("a", at(5), Priority::Normal);
        queue.add("a", at(6), Priority::Normal);
        queue.done("a", Ok(Action::RequeueAfter(at(60))), at(3));
        assert_eq!(queue.next_due(), Some(at(5)), "the first change counts");
        assert_eq!((take(&mut queue, at(4)), take(&mut queue, at(5))), (None, Some("a")));
        queue.add("a", at(9), Priority::Normal);
        queue.add_backlog(vec!["a"]);
        assert_eq!(take(&mut queue, at(5)), None);
        queue.done("a", Ok(Action::AwaitChange), at(6));
        assert_eq!(take(&mut queue, at(6)), Some("a"), "a backlog is due at once");
    }

    #[test]
    fn a_change_replaces_a_later_requeue() {
        let mut queue = WorkQueue::new();
        queue.add("a", at(0), Priority::Normal);
        take(&mut queue, at(0));
        queue.done("a", Ok(Action::RequeueAfter(at(60))), at(0));
        assert_eq!(queue.next_due(), Some(at(60)));
        queue.add("a", at(5), Priority::Normal);
        assert_eq!((queue.next_due(), take(&mut queue, at(5))), (Some(at(5)), Some("a")));
        queue.done("a", Ok(Action::AwaitChange), at(5));
        assert_eq!(queue.next_due(), None, "the recheck was replaced");
    }

    #[test]
    fn backoff_grows_and_is_not_cut_short_by_changes() {
        let mut queue = WorkQueue::new();
        queue.add("a", at(0), Priority::Normal);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(take(&mut queue, now), Some("a"));
            queue.add("a", now, Priority::Normal);
            queue.done("a", Err(()), now);
            queue.add("a", now, Priority::Normal);
            let next = queue.next_due().expect("it is due");
            pauses.push(next.saturating_sub(now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        take(&mut queue, now);
        queue.done("a", Ok(Action::AwaitChange), now);
        queue.add("a", now, Priority::Normal);
        assert_eq!(queue.next_due(), Some(now), "a success is a new beginning");
    }

    #[test]
    fn stats_count_depth_adds_retries_and_unfinished_work() {
        let mut queue = WorkQueue::new();
        for key in ["a", "b", "b", "c", "d"] {
            queue.add(key, at(1), Priority::Normal);
        }
        assert_eq!((take(&mut queue, at(2)), take(&mut queue, at(3))), (Some("a"), Some("b")));
        let (unfinished, longest) = (at(10 + 9), at(10));
        assert_eq!(queue.stats(at(12)), QueueStats { depth: 2, adds: 4, retries: 0, unfinished, longest });
        queue.done("a", Err(()), at(12));
        queue.done("b", Ok(Action::RequeueAfter(at(60))), at(12));
        let stats = QueueStats { depth: 2, adds: 2, retries: 1, ..QueueStats::default() };
        assert_eq!(queue.stats(at(12)), stats, "what is due later is not in the way yet");
    }

    #[test]
    fn t05_a_key_added_in_processing_is_not_lost_to_a_requeue() {
        let mut queue = WorkQueue::new();
        queue.add("a", at(0), Priority::Normal);
        take(&mut queue, at(0));
        queue.add("a", at(1), Priority::Normal);
        queue.done("a", Ok(Action::RequeueAfter(at(60))), at(2));
        assert_eq!(take(&mut queue, at(2)), Some("a"));
    }

    #[test]
    fn a_backlog_waits_behind_keys_that_are_due() {
        let mut queue = WorkQueue::new();
        queue.add_backlog(vec!["a", "b", "c"]);
        queue.add("b", at(0), Priority::Normal);
        queue.add("later", at(9), Priority::Normal);
        let mut taken = Vec::new();
        while let Some(key) = take(&mut queue, at(1)) {
            taken.push(key);
            queue.done(key, Ok(Action::AwaitChange), at(1));
        }
        assert_eq!(taken, ["b", "a", "b", "c"]);
        assert_eq!(queue.next_due(), Some(at(9)));
    }

    #[test]
    fn urgent_keys_come_first_and_stay_urgent() {
        let mut queue = WorkQueue::new();
        queue.add_backlog(vec!["backlog"]);
        for key in ["a", "b", "c", "busy"] {
            queue.add(key, at(1), Priority::Normal);
        }
        queue.add("c", at(2), Priority::Urgent);
        queue.add("c", at(1), Priority::Normal);
        queue.add("later", at(9), Priority::Normal);
        queue.add("later", at(9), Priority::Urgent);
        assert_eq!(queue.next_due(), Some(Duration::ZERO));
        assert_eq!(queue.take(at(2)), Some(("c", at(1))), "it is due since its first change");
        assert_eq!(take(&mut queue, at(2)), Some("a"));
        queue.add("a", at(2), Priority::Urgent);
        queue.add("a", at(2), Priority::Normal);
        queue.done("a", Ok(Action::RequeueAfter(at(60))), at(2));
        let rest: Vec<_> = std::iter::from_fn(|| take(&mut queue, at(2))).collect();
        assert_eq!(rest, ["a", "b", "busy", "backlog"]);
        assert_eq!(queue.next_due(), Some(at(9)));
    }
}

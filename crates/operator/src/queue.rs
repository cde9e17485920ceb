//! Our reconcile queue: ordered, without duplicates, with a time for each key and a growing pause after failures.
//!
//! It knows no clock and starts nothing. A key that is being worked on is never handed out a second time; what happens
//! to it meanwhile makes it come again afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How the work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Settled,
    /// To be looked at again after this time, whatever changes.
    Again(Duration),
    /// It failed: to be tried again after a pause that grows.
    Failed,
}

/// How a queue stands, and what happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Keys that are due.
    pub depth: usize,
    /// Keys that were put in since.
    pub adds: u64,
    /// Those of them that had failed.
    pub retries: u64,
    /// How long the keys that are worked on have been, all together.
    pub unfinished: Duration,
    /// How long the longest of them has been.
    pub longest: Duration,
}

/// Keys and when they are due.
#[derive(Debug)]
pub struct Queue<K> {
    due: BTreeMap<K, (Duration, u64)>,
    order: BTreeMap<(Duration, u64), K>,
    /// And since when.
    working: BTreeMap<K, Duration>,
    /// Came up again while they were worked on.
    dirty: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
    tickets: u64,
    adds: u64,
    retries: u64,
}

impl<K: Ord + Clone> Queue<K> {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            due: BTreeMap::new(),
            order: BTreeMap::new(),
            working: BTreeMap::new(),
            dirty: BTreeSet::new(),
            failures: BTreeMap::new(),
            tickets: 0,
            adds: 0,
            retries: 0,
        }
    }

    /// A key has to be looked at. One that is pausing after a failure goes on pausing: a busy object must not
    /// turn its own failure into a storm.
    pub fn add(&mut self, key: K, now: Duration) {
        if self.working.contains_key(&key) {
            self.dirty.insert(key);
        } else if !self.failures.contains_key(&key) || !self.due.contains_key(&key) {
            self.put(key, now);
        }
    }

    /// Whether a key waits, or is being worked on.
    pub fn knows(&self, key: &K) -> bool {
        self.due.contains_key(key) || self.working.contains_key(key)
    }

    /// The next key that is due, to be given back with [`Queue::done`].
    pub fn take(&mut self, now: Duration) -> Option<K> {
        let (&at, key) = self.order.first_key_value()?;
        if at.0 > now {
            return None;
        }
        let key = key.clone();
        self.order.remove(&at);
        self.due.remove(&key);
        self.working.insert(key.clone(), now);
        Some(key)
    }

    /// When the next key is due.
    pub fn next(&self) -> Option<Duration> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// The work on a key ended.
    pub fn done(&mut self, key: K, outcome: Outcome, now: Duration) {
        self.working.remove(&key);
        let dirty = self.dirty.remove(&key);
        match outcome {
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                self.retries += 1;
                let pause = FIRST_PAUSE.saturating_mul(1 << (*failures - 1).min(10)).min(LONGEST_PAUSE);
                self.put(key, now + pause);
                return;
            }
            Outcome::Again(after) => self.put(key.clone(), now.saturating_add(after)),
            Outcome::Settled => {}
        }
        self.failures.remove(&key);
        if dirty {
            self.put(key, now);
        }
    }

    /// How it stands. Walks over all that is due: to be asked now and then, not at every turn.
    pub fn numbers(&mut self, now: Duration) -> Numbers {
        let worked = self.working.values().map(|since| now.saturating_sub(*since));
        Numbers {
            depth: self.order.range(..=(now, u64::MAX)).count(),
            adds: std::mem::take(&mut self.adds),
            retries: std::mem::take(&mut self.retries),
            unfinished: worked.clone().sum(),
            longest: worked.max().unwrap_or_default(),
        }
    }

    /// The earlier time wins.
    fn put(&mut self, key: K, at: Duration) {
        match self.due.get(&key) {
            Some((earlier, _)) if *earlier <= at => return,
            Some(place) => drop(self.order.remove(place)),
            None => {}
        }
        self.tickets += 1;
        self.adds += 1;
        self.due.insert(key.clone(), (at, self.tickets));
        self.order.insert((at, self.tickets), key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_come_once_and_in_order() {
        let mut queue = Queue::new();
        for key in ["b", "a", "b"] {
            queue.add(key, at(1));
        }
        assert_eq!(queue.take(at(0)), None);
        assert_eq!(queue.take(at(1)), Some("b"));
        assert_eq!(queue.take(at(1)), Some("a"));
        assert_eq!(queue.take(at(1)), None);
    }

    #[test]
    fn a_key_at_work_comes_again_afterwards_and_not_before() {
        let mut queue = Queue::new();
        queue.add("a", at(0));
        assert_eq!(queue.take(at(0)), Some("a"));
        queue.add("a", at(0));
        assert_eq!(queue.take(at(0)), None);
        queue.done("a", Outcome::Settled, at(3));
        assert_eq!(queue.take(at(3)), Some("a"));
        queue.done("a", Outcome::Settled, at(3));
        assert_eq!(queue.take(at(9)), None);
    }

    #[test]
    fn an_event_comes_before_a_recheck() {
        let mut queue = Queue::new();
        queue.add("a", at(0));
        queue.take(at(0));
        queue.done("a", Outcome::Again(at(60)), at(0));
        assert_eq!(queue.next(), Some(at(60)));
        queue.add("a", at(5));
        assert_eq!((queue.next(), queue.take(at(5))), (Some(at(5)), Some("a")));
        queue.done("a", Outcome::Settled, at(5));
        assert_eq!(queue.next(), None, "the recheck was replaced");
    }

    #[test]
    fn failures_pause_longer_each_time_whatever_happens_meanwhile() {
        let mut queue = Queue::new();
        queue.add("a", at(0));
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(queue.take(now), Some("a"));
            queue.add("a", now);
            queue.done("a", Outcome::Failed, now);
            queue.add("a", now);
            let next = queue.next().expect("it is due");
            pauses.push(next.saturating_sub(now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        queue.take(now);
        queue.done("a", Outcome::Settled, now);
        queue.add("a", now);
        assert_eq!(queue.next(), Some(now), "a success is a new beginning");
    }

    #[test]
    fn it_tells_how_it_stands() {
        let mut queue = Queue::new();
        for key in ["a", "b", "b", "c", "d"] {
            queue.add(key, at(1));
        }
        assert_eq!((queue.take(at(2)), queue.take(at(3))), (Some("a"), Some("b")));
        let (unfinished, longest) = (at(10 + 9), at(10));
        assert_eq!(queue.numbers(at(12)), Numbers { depth: 2, adds: 4, retries: 0, unfinished, longest });
        queue.done("a", Outcome::Failed, at(12));
        queue.done("b", Outcome::Again(at(60)), at(12));
        let numbers = Numbers { depth: 2, adds: 2, retries: 1, ..Numbers::default() };
        assert_eq!(queue.numbers(at(12)), numbers, "what is due later is not in the way yet");
    }
}

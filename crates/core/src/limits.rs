//! How many workers may run at once, and which node gets the next one.

mod vanished;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gate::Slots;
use crate::worker::{Progress, WorkerView};
use jiff::Timestamp;

pub use vanished::VanishedWorkers;

/// A worker that has not started after this frees its slot.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// The least time between two workers of periodic re-checks.
const PERIODIC_INTERVAL: Duration = Duration::from_secs(1);
/// A refusal that was not repeated for so long is forgotten.
const STALE: Duration = Duration::from_mins(5);
/// So many creations in a row whose outcome is unknown, within no less than [`FAILING_FOR`], count as a refusal: a webhook
/// that fails is a 500.
const MIN_FAILURES: u32 = 3;
const FAILING_FOR: Duration = Duration::from_secs(30);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// A node that waits for a worker. Nodes with fewer workers so far come first, then older ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingNode {
    pub workers: u32,
    pub created: Timestamp,
    pub node: String,
    pub gate: String,
}

/// The API server refused a worker of a gate; the next one is tried after a backoff.
#[derive(Clone, Debug)]
struct CreateBackoff {
    why: String,
    pause: Duration,
    until: Duration,
    /// One node is trying again for all.
    trying: bool,
}

/// What became of the creation of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    Created,
    /// The API server refuses the pod; its message.
    Refused(String),
    /// The server's answer is unknown, or the same request may succeed later; its message.
    Failed(String),
}

/// First workers of nodes, and later ones.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerCount {
    first: usize,
    another: usize,
}

impl WorkerCount {
    fn add(&mut self, number: u32, count: usize) {
        *(if number == 1 { &mut self.first } else { &mut self.another }) += count;
    }
}

/// Limits the workers of all gates.
#[derive(Debug)]
pub struct WorkerLimiter {
    most: usize,
    /// Workers whose creation is under way, and which are not in the cache yet.
    starting: WorkerCount,
    waiting: BTreeSet<PendingNode>,
    backoffs: BTreeMap<String, CreateBackoff>,
    /// By gate: creations in a row that failed, and when the first of them did.
    failures: BTreeMap<String, (u32, Duration)>,
    /// When the next worker of a periodic re-check may start.
    next_periodic: Duration,
}

impl WorkerLimiter {
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            starting: WorkerCount::default(),
            waiting: BTreeSet::new(),
            backoffs: BTreeMap::new(),
            failures: BTreeMap::new(),
            next_periodic: Duration::ZERO,
        }
    }

    /// Whether a gate may start one more worker.
    pub fn free<'a>(
        &self,
        gate: &str,
        workers: impl Iterator<Item = &'a WorkerView>,
        now: Duration,
    ) -> Slots {
        let room = self.room(workers, now);
        let may_create = self.may_create(gate, now);
        let another = may_create && room.another > 0;
        Slots { first: may_create && room.first > 0, another, periodic: another && now >= self.next_periodic }
    }

    /// How many workers count against the limit.
    pub fn taken<'a>(&self, workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> usize {
        self.starting.first + self.starting.another + workers.filter(|worker| takes_slot(worker, now)).count()
    }

    /// How many more workers may start. Retries leave half of the slots to first workers.
    fn room<'a>(&self, workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> WorkerCount {
        let mut busy = self.starting;
        for worker in workers.filter(|worker| takes_slot(worker, now)) {
            busy.add(worker.identity.number, 1);
        }
        let left = self.most.saturating_sub(busy.first + busy.another);
        WorkerCount { first: left, another: left.min((self.most / 2).max(1).saturating_sub(busy.another)) }
    }

    fn may_create(&self, gate: &str, now: Duration) -> bool {
        self.backoffs.get(gate).is_none_or(|backoff| !backoff.trying && now >= backoff.until)
    }

    /// Reserves a slot for a worker that is about to be created.
    pub fn reserve(&mut self, gate: &str, number: u32, periodic: bool, now: Duration) {
        self.starting.add(number, 1);
        if periodic {
            self.next_periodic = now + PERIODIC_INTERVAL;
        }
        if let Some(backoff) = self.backoffs.get_mut(gate) {
            backoff.trying = true;
        }
    }

    /// Releases the slot of a worker that is not created after all.
    pub fn cancel(&mut self, gate: &str, number: u32) {
        let count = if number == 1 { &mut self.starting.first } else { &mut self.starting.another };
        *count = count.saturating_sub(1);
        if let Some(backoff) = self.backoffs.get_mut(gate) {
            backoff.trying = false;
        }
    }

    /// Ends the reservation: the cache counts the worker from here on. Returns whether the reason for which the API
    /// server refuses workers of the gate changed.
    pub fn finish(&mut self, gate: &str, number: u32, creation: Creation, now: Duration) -> bool {
        self.cancel(gate, number);
        let why = match creation {
            Creation::Created => {
                self.failures.remove(gate);
                return self.backoffs.remove(gate).is_some();
            }
            Creation::Refused(why) => why,
            Creation::Failed(why) => {
                let (count, since) = self.failures.entry(gate.to_owned()).or_insert((0, now));
                *count = count.saturating_add(1);
                if *count >= MIN_FAILURES && now.saturating_sub(*since) >= FAILING_FOR {
                    why
                } else if let Some(refusal) = self.refusal(gate, now) {
                    // The one that tried again for all has not succeeded, so the backoff goes on.
                    refusal
                } else {
                    self.backoffs.remove(gate);
                    return false;
                }
            }
        };
        let before = self.backoffs.get(gate);
        let changed = before.is_none_or(|backoff| backoff.why != why);
        let (pause, until) = match before {
            None => (FIRST_BACKOFF, now + FIRST_BACKOFF),
            // Requests that were sent together are refused together: that is one refusal.
            Some(backoff) if now < backoff.until => (backoff.pause, backoff.until),
            Some(backoff) => {
                let pause = (backoff.pause * 2).min(LONGEST_BACKOFF);
                (pause, now + pause)
            }
        };
        self.backoffs.insert(gate.to_owned(), CreateBackoff { why, pause, until, trying: false });
        changed
    }

    /// Why the API server refuses workers of a gate.
    #[must_use]
    pub fn refusal(&self, gate: &str, now: Duration) -> Option<String> {
        let fresh = |backoff: &&CreateBackoff| now < backoff.until + STALE;
        self.backoffs.get(gate).filter(fresh).map(|backoff| backoff.why.clone())
    }

    /// Forgets a deleted gate.
    pub fn forget(&mut self, gate: &str) {
        self.backoffs.remove(gate);
        self.failures.remove(gate);
    }

    /// Queues a node for the next free slot.
    pub fn wait(&mut self, node: PendingNode) {
        self.waiting.insert(node);
    }

    /// Takes the nodes for which there are slots now out of the queue.
    pub fn admit<'a>(&mut self, workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> Vec<String> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let mut room = self.room(workers, now);
        let mut probed = BTreeSet::new();
        let mut chosen = Vec::new();
        for place in &self.waiting {
            if room.first == 0 || (place.workers > 0 && room.another == 0) {
                // The nodes after it had no fewer workers.
                break;
            }
            // Where the server refused workers, one node tries again for all.
            if !self.may_create(&place.gate, now)
                || (self.backoffs.contains_key(&place.gate) && !probed.insert(place.gate.clone()))
            {
                continue;
            }
            room.first -= 1;
            if place.workers > 0 {
                room.another -= 1;
            }
            chosen.push(place.clone());
        }
        for place in &chosen {
            self.waiting.remove(place);
        }
        chosen.into_iter().map(|place| place.node).collect()
    }

    /// When a slot becomes free though no worker changes.
    pub fn next_wakeup<'a>(
        &self,
        workers: impl Iterator<Item = &'a WorkerView>,
        now: Duration,
    ) -> Option<Duration> {
        if self.waiting.is_empty() {
            return None;
        }
        let slow = workers
            .filter(|worker| takes_slot(worker, now) && !matches!(worker.progress, Progress::Running))
            .map(|worker| worker.first_seen + START_TIMEOUT);
        let refused = self.backoffs.values().filter(|backoff| !backoff.trying).map(|backoff| backoff.until);
        slow.chain(refused).filter(|at| *at > now).min()
    }
}

/// Whether a worker counts against a limit of running workers. One that is being deleted does not: on a node without a
/// kubelet it may stay for ever.
pub(crate) fn takes_slot(worker: &WorkerView, now: Duration) -> bool {
    match worker.progress {
        Progress::Running => !worker.deleting,
        Progress::Waiting(..) | Progress::Unscheduled(_) => {
            !worker.deleting && now.saturating_sub(worker.first_seen) < START_TIMEOUT
        }
        Progress::Reported(_) | Progress::Inconclusive(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::checks::WorkerIdentity;

    use super::*;

    fn worker(number: u32, progress: Progress) -> WorkerView {
        WorkerView {
            name: format!("w{number}"),
            uid: String::new(),
            resource_version: String::new(),
            first_seen: Duration::ZERO,
            unscheduled_since: Duration::ZERO,
            deleting: false,
            node_name: String::new(),
            identity: WorkerIdentity { number, ..WorkerIdentity::default() },
            progress,
        }
    }

    fn pending(workers: u32, node: &str) -> PendingNode {
        PendingNode { workers, created: Timestamp::UNIX_EPOCH, node: node.into(), gate: "g".into() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn refused(why: &str) -> Creation {
        Creation::Refused(why.into())
    }

    #[test]
    fn g06_creations_that_fail_for_long_count_as_refused() {
        let mut limiter = WorkerLimiter::new(10);
        let failed = || Creation::Failed("failed calling webhook".into());
        for (seconds, reported) in [(0, false), (10, false), (29, false), (30, true), (40, false)] {
            limiter.reserve("g", 1, false, at(seconds));
            assert_eq!(limiter.finish("g", 1, failed(), at(seconds)), reported, "{seconds}");
        }
        assert_eq!(limiter.refusal("g", at(40)).as_deref(), Some("failed calling webhook"));
        assert!(!limiter.free("g", [].iter(), at(40)).first, "one node tries for all");
        limiter.reserve("g", 1, false, at(60));
        assert!(limiter.finish("g", 1, Creation::Created, at(60)) && limiter.refusal("g", at(60)).is_none());
        limiter.reserve("g", 1, false, at(61));
        assert!(!limiter.finish("g", 1, failed(), at(61)), "the count begins again");
    }

    #[test]
    fn g07_a_refusal_goes_on_while_creations_fail() {
        let mut limiter = WorkerLimiter::new(10);
        let failed = || Creation::Failed("two requests changed the quota at once".into());
        limiter.reserve("g", 1, false, at(0));
        assert!(limiter.finish("g", 1, refused("quota"), at(0)));
        let is_free = |limiter: &WorkerLimiter, seconds| limiter.free("g", [].iter(), at(seconds)).first;
        assert!(!is_free(&limiter, 0) && is_free(&limiter, 1));
        limiter.reserve("g", 1, false, at(1));
        assert!(!limiter.finish("g", 1, failed(), at(1)), "the refusal is reported already");
        assert!(!is_free(&limiter, 1), "the next one waits");
        assert!(!is_free(&limiter, 2) && is_free(&limiter, 3));
        let later = 3 + STALE.as_secs();
        limiter.reserve("g", 1, false, at(later));
        assert!(
            !limiter.finish("g", 1, failed(), at(later)) && is_free(&limiter, later),
            "that one was long ago"
        );
    }

    #[test]
    fn g07_the_refusals_of_one_burst_are_one_refusal() {
        let mut limiter = WorkerLimiter::new(100);
        for _ in 0..50 {
            limiter.reserve("g", 1, false, at(0));
        }
        for _ in 0..50 {
            limiter.finish("g", 1, refused("quota"), at(0));
        }
        assert!(limiter.free("g", [].iter(), at(1)).first, "the first pause is a second");
    }

    #[test]
    fn t03_retries_count_against_the_limit() {
        let limiter = WorkerLimiter::new(4);
        let busy = |first: u32, another: u32| {
            let first = (0..first).map(|_| worker(1, Progress::Running));
            let all: Vec<_> = first.chain((0..another).map(|_| worker(2, Progress::Running))).collect();
            let Slots { first, another, .. } = limiter.free("g", all.iter(), at(0));
            (first, another)
        };
        assert_eq!(busy(3, 0), (true, true));
        assert_eq!(busy(4, 0), (false, false), "a retry takes no more than what is left");
        assert_eq!(busy(2, 2), (false, false));
        assert_eq!(busy(1, 2), (true, false), "half of the slots are for first workers");
    }

    #[test]
    fn f15_retries_leave_half_of_the_slots_to_new_nodes() {
        let mut limiter = WorkerLimiter::new(4);
        let retries = [worker(2, Progress::Running), worker(9, Progress::Running)];
        let free = limiter.free("g", retries.iter(), at(0));
        assert_eq!(free, Slots { first: true, another: false, periodic: false });
        for (workers, node) in [(3, "hopeless"), (1, "also"), (0, "new"), (0, "newer")] {
            limiter.wait(pending(workers, node));
        }
        assert_eq!(limiter.admit(retries.iter(), at(0)), ["new", "newer"]);
        assert_eq!(limiter.admit([].iter(), at(0)), ["also", "hopeless"]);
    }

    #[test]
    fn a_worker_that_does_not_start_frees_its_slot() {
        let mut limiter = WorkerLimiter::new(1);
        let stuck = [worker(1, Progress::Unscheduled(String::new()))];
        limiter.wait(pending(0, "n"));
        assert!(limiter.admit(stuck.iter(), at(59)).is_empty());
        assert_eq!(limiter.next_wakeup(stuck.iter(), at(59)), Some(at(60)));
        assert_eq!(limiter.admit(stuck.iter(), at(60)), ["n"]);
    }

    #[test]
    fn one_node_tries_for_all_where_workers_are_refused() {
        let mut limiter = WorkerLimiter::new(10);
        limiter.reserve("g", 1, false, at(0));
        assert!(limiter.finish("g", 1, refused("quota"), at(0)), "news for the gate's status");
        for node in ["a", "b", "c"] {
            limiter.wait(pending(0, node));
        }
        assert!(limiter.admit([].iter(), at(0)).is_empty());
        assert_eq!(limiter.next_wakeup([].iter(), at(0)), Some(at(1)));
        assert_eq!(limiter.admit([].iter(), at(1)), ["a"]);
        limiter.reserve("g", 1, false, at(0));
        assert!(limiter.admit([].iter(), at(1)).is_empty(), "one at a time");
        assert!(!limiter.finish("g", 1, refused("quota"), at(1)));
        assert_eq!(limiter.next_wakeup([].iter(), at(1)), Some(at(3)), "the pause grows");
        assert_eq!(limiter.admit([].iter(), at(3)), ["b"]);
        limiter.reserve("g", 1, false, at(0));
        assert!(limiter.finish("g", 1, Creation::Created, at(3)), "it is over");
        assert_eq!(limiter.admit([].iter(), at(3)), ["c"]);
    }

    #[test]
    fn a_refused_gate_does_not_hold_up_another() {
        let mut limiter = WorkerLimiter::new(10);
        limiter.reserve("g", 1, false, at(0));
        limiter.finish("g", 1, refused("no such account"), at(0));
        assert_eq!(
            limiter.free("other", [].iter(), at(0)),
            Slots { first: true, another: true, periodic: true }
        );
        assert_eq!(
            limiter.free("g", [].iter(), at(0)),
            Slots { first: false, another: false, periodic: false }
        );
    }
}

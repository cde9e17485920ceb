//! How workers are shared out: so many at once, newcomers first, and none where the server takes none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::gate::Slots;
use nodekeeper_core::worker::{Progress, WorkerView};

/// A worker that has not started by then no longer counts against the others.
const STARTING: Duration = Duration::from_mins(1);
/// Workers that nobody asked for start no more often.
const PERIODIC: Duration = Duration::from_secs(1);
/// A refusal that nobody met again for so long says nothing any more.
const STALE: Duration = Duration::from_mins(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Who waits for a worker: fewest workers so far first, then the oldest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// How many workers the node had.
    pub workers: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Its name.
    pub node: String,
    /// Its gate.
    pub gate: String,
}

/// The server did not take a worker of this gate.
#[derive(Clone, Debug)]
struct Refusal {
    why: String,
    pause: Duration,
    until: Duration,
    /// One of them tries again, alone.
    trying: bool,
}

/// How many workers there are.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    first: usize,
    another: usize,
}

impl Busy {
    fn add(&mut self, number: u32, count: usize) {
        *(if number == 1 { &mut self.first } else { &mut self.another }) += count;
    }
}

/// The line before the slots.
#[derive(Debug)]
pub struct Line {
    most: usize,
    /// Being made right now, and not in the views yet.
    starting: Busy,
    waiting: BTreeSet<Place>,
    refusals: BTreeMap<String, Refusal>,
    /// When the next worker may start that nobody asked for.
    next_periodic: Duration,
}

impl Line {
    /// A line for so many workers at once.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            starting: Busy::default(),
            waiting: BTreeSet::new(),
            refusals: BTreeMap::new(),
            next_periodic: Duration::ZERO,
        }
    }

    /// Whether a gate may start one more.
    pub fn free<'a>(
        &self,
        gate: &str,
        workers: impl Iterator<Item = &'a WorkerView>,
        now: Duration,
    ) -> Slots {
        let room = self.room(workers, now);
        let open = self.is_open(gate, now);
        let another = open && room.another > 0;
        Slots { first: open && room.first > 0, another, periodic: another && now >= self.next_periodic }
    }

    /// How many slots are taken.
    pub fn taken<'a>(&self, workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> usize {
        self.starting.first + self.starting.another + workers.filter(|worker| takes_slot(worker, now)).count()
    }

    /// How many more may start. Those that had one before leave half of the slots to newcomers.
    fn room<'a>(&self, workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> Busy {
        let mut busy = self.starting;
        for worker in workers.filter(|worker| takes_slot(worker, now)) {
            busy.add(worker.identity.number, 1);
        }
        let left = self.most.saturating_sub(busy.first + busy.another);
        Busy { first: left, another: left.min((self.most / 2).max(1).saturating_sub(busy.another)) }
    }

    fn is_open(&self, gate: &str, now: Duration) -> bool {
        self.refusals.get(gate).is_none_or(|refusal| !refusal.trying && now >= refusal.until)
    }

    /// A worker is about to be made.
    pub fn starts(&mut self, gate: &str, number: u32, periodic: bool, now: Duration) {
        self.starting.add(number, 1);
        if periodic {
            self.next_periodic = now + PERIODIC;
        }
        if let Some(refusal) = self.refusals.get_mut(gate) {
            refusal.trying = true;
        }
    }

    /// It was made, or not; from here on the views count it. Returns whether the gate's refusal came, went or changed.
    pub fn started(
        &mut self,
        gate: &str,
        number: u32,
        refused: Option<String>,
        made: bool,
        now: Duration,
    ) -> bool {
        let count = if number == 1 { &mut self.starting.first } else { &mut self.starting.another };
        *count = count.saturating_sub(1);
        let Some(why) = refused else {
            if made {
                return self.refusals.remove(gate).is_some();
            }
            if let Some(refusal) = self.refusals.get_mut(gate) {
                refusal.trying = false;
            }
            return false;
        };
        let before = self.refusals.get(gate);
        let pause = before.map_or(FIRST_PAUSE, |refusal| (refusal.pause * 2).min(LONGEST_PAUSE));
        let changed = before.is_none_or(|refusal| refusal.why != why);
        self.refusals.insert(gate.to_owned(), Refusal { why, pause, until: now + pause, trying: false });
        changed
    }

    /// Why the server takes no workers of this gate.
    pub fn refusal(&self, gate: &str, now: Duration) -> Option<String> {
        let fresh = |refusal: &&Refusal| now < refusal.until + STALE;
        self.refusals.get(gate).filter(fresh).map(|refusal| refusal.why.clone())
    }

    /// A gate is gone, and takes its refusal along.
    pub fn forget(&mut self, gate: &str) {
        self.refusals.remove(gate);
    }

    /// A node wants a worker, and there is no slot for it.
    pub fn wait(&mut self, place: Place) {
        self.waiting.insert(place);
    }

    /// The nodes whose turn it is.
    pub fn admitted<'a>(
        &mut self,
        workers: impl Iterator<Item = &'a WorkerView>,
        now: Duration,
    ) -> Vec<String> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let mut room = self.room(workers, now);
        let mut probed = BTreeSet::new();
        let mut chosen = Vec::new();
        for place in &self.waiting {
            if room.first == 0 || (place.workers > 0 && room.another == 0) {
                // Who comes later had more workers still.
                break;
            }
            // Where the server refused, one node finds out whether it still does.
            if !self.is_open(&place.gate, now)
                || (self.refusals.contains_key(&place.gate) && !probed.insert(place.gate.clone()))
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

    /// When a slot becomes free though nothing happens.
    pub fn wakes<'a>(
        &self,
        workers: impl Iterator<Item = &'a WorkerView>,
        now: Duration,
    ) -> Option<Duration> {
        if self.waiting.is_empty() {
            return None;
        }
        let slow = workers
            .filter(|worker| takes_slot(worker, now) && !matches!(worker.progress, Progress::Running))
            .map(|worker| worker.first_seen + STARTING);
        let refused = self.refusals.values().filter(|refusal| !refusal.trying).map(|refusal| refusal.until);
        slow.chain(refused).filter(|at| *at > now).min()
    }
}

fn takes_slot(worker: &WorkerView, now: Duration) -> bool {
    match worker.progress {
        Progress::Running => !worker.deleting,
        Progress::Waiting(..) | Progress::Unscheduled(_) => {
            !worker.deleting && now.saturating_sub(worker.first_seen) < STARTING
        }
        Progress::Reported(_) | Progress::Inconclusive(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::checks::WorkerIdentity;

    use super::*;

    fn worker(number: u32, progress: Progress) -> WorkerView {
        WorkerView {
            name: format!("w{number}"),
            uid: String::new(),
            resource_version: String::new(),
            first_seen: Duration::ZERO,
            deleting: false,
            node_name: String::new(),
            identity: WorkerIdentity { number, ..WorkerIdentity::default() },
            progress,
        }
    }

    fn place(workers: u32, node: &str) -> Place {
        Place { workers, created: Timestamp::UNIX_EPOCH, node: node.into(), gate: "g".into() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn f15_those_that_failed_leave_half_of_the_slots_to_newcomers() {
        let mut line = Line::new(4);
        let retries = [worker(2, Progress::Running), worker(9, Progress::Running)];
        let free = line.free("g", retries.iter(), at(0));
        assert_eq!(free, Slots { first: true, another: false, periodic: false });
        for (workers, node) in [(3, "hopeless"), (1, "also"), (0, "new"), (0, "newer")] {
            line.wait(place(workers, node));
        }
        assert_eq!(line.admitted(retries.iter(), at(0)), ["new", "newer"]);
        assert_eq!(line.admitted([].iter(), at(0)), ["also", "hopeless"]);
    }

    #[test]
    fn a_worker_that_does_not_start_frees_its_slot_and_somebody_is_woken() {
        let mut line = Line::new(1);
        let stuck = [worker(1, Progress::Unscheduled(String::new()))];
        line.wait(place(0, "n"));
        assert!(line.admitted(stuck.iter(), at(59)).is_empty());
        assert_eq!(line.wakes(stuck.iter(), at(59)), Some(at(60)));
        assert_eq!(line.admitted(stuck.iter(), at(60)), ["n"]);
    }

    #[test]
    fn where_the_server_refuses_one_node_tries_for_all() {
        let mut line = Line::new(10);
        line.starts("g", 1, false, at(0));
        assert!(line.started("g", 1, Some("quota".into()), false, at(0)), "news for the gate's status");
        for node in ["a", "b", "c"] {
            line.wait(place(0, node));
        }
        assert!(line.admitted([].iter(), at(0)).is_empty());
        assert_eq!(line.wakes([].iter(), at(0)), Some(at(1)));
        assert_eq!(line.admitted([].iter(), at(1)), ["a"]);
        line.starts("g", 1, false, at(0));
        assert!(line.admitted([].iter(), at(1)).is_empty(), "one at a time");
        assert!(!line.started("g", 1, Some("quota".into()), false, at(1)));
        assert_eq!(line.wakes([].iter(), at(1)), Some(at(3)), "the pause grows");
        assert_eq!(line.admitted([].iter(), at(3)), ["b"]);
        line.starts("g", 1, false, at(0));
        assert!(line.started("g", 1, None, true, at(3)), "it is over");
        assert_eq!(line.admitted([].iter(), at(3)), ["c"]);
    }

    #[test]
    fn a_gate_that_is_refused_holds_up_no_other() {
        let mut line = Line::new(10);
        line.starts("g", 1, false, at(0));
        line.started("g", 1, Some("no such account".into()), false, at(0));
        assert_eq!(
            line.free("other", [].iter(), at(0)),
            Slots { first: true, another: true, periodic: true }
        );
        assert_eq!(line.free("g", [].iter(), at(0)), Slots { first: false, another: false, periodic: false });
    }
}

//! The gate's controller: observes, lets `core` decide, applies.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use nodekeeper_core::gate::{Decision, Effect, GateView, Observed, decide, serving};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::worker::{Progress, WorkerView};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::account::Account;
use crate::apply::{Trouble, Writer};
use crate::clock::Clock;
use crate::metrics::{Failure, Metrics};
use crate::queue::Outcome;
use crate::views::Views;

/// A look at one node ends after so many decisions; whatever is left comes again.
const DECISIONS: usize = 6;
const READ: Duration = Duration::from_secs(5);
/// A worker that has not started by then no longer counts against the others.
const STARTING: Duration = Duration::from_mins(1);

/// Nodes that want a worker: fewest workers so far first, then the oldest.
type Line = BTreeSet<(u32, Timestamp, String)>;

/// How workers are shared out.
#[derive(Debug, Default)]
struct Slots {
    /// Being made right now, and not in the views yet.
    starting: usize,
    waiting: Line,
}

/// Looks after all nodes, one at a time each.
pub struct Gate {
    client: Client,
    clock: Clock,
    views: Arc<Mutex<Views>>,
    writer: Writer,
    most_workers: usize,
    slots: Mutex<Slots>,
    metrics: Arc<Metrics>,
}

impl Gate {
    /// A controller for one term.
    pub fn new(
        client: Client,
        clock: Clock,
        views: Arc<Mutex<Views>>,
        writer: Writer,
        most_workers: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { client, clock, views, writer, most_workers, slots: Mutex::default(), metrics }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at one node and does what is to be done. After a doubtful write the node is read anew first.
    pub async fn look_at(&self, name: &str, doubtful: bool) -> (Outcome, bool) {
        if doubtful && let Err(trouble) = self.read(name).await {
            return unread(name, &trouble);
        }
        let known = self.views().nodes.get(name).cloned();
        if let Some(node) = known
            && let Err(trouble) = self.writer.refresh(&node).await
        {
            warn!(node = name, %trouble, "a worker cannot be read");
            return (Outcome::Failed, true);
        }
        for _ in 0..DECISIONS {
            let Some((node, gate, decision)) = self.decide(name) else {
                self.metrics.forget_node(name);
                return (Outcome::Settled, false);
            };
            if decision.effects.is_empty() {
                return (self.settle(&node, &decision), false);
            }
            info!(node = name, state = ?decision.state, why = decision.why, "decided");
            let applied = self.apply(&node, gate.as_ref(), &decision).await;
            match applied {
                Ok(()) => {}
                Err(Trouble::Conflict(why) | Trouble::Gone(why)) => {
                    debug!(node = name, why, "conflict");
                    if let Err(trouble) = self.read(name).await {
                        return unread(name, &trouble);
                    }
                    let now = self.views().nodes.get(name).map(|node| node.resource_version.clone());
                    if now.as_ref() == Some(&node.resource_version) {
                        // Nothing changed, so it will be refused again: not a conflict.
                        warn!(node = name, why, "refused");
                        return (Outcome::Failed, true);
                    }
                }
                Err(trouble @ (Trouble::NotLeader | Trouble::Refused(_))) => {
                    warn!(node = name, %trouble, "not done");
                    return (Outcome::Failed, false);
                }
                Err(trouble @ Trouble::Doubtful(_)) => {
                    warn!(node = name, %trouble, "not done");
                    return (Outcome::Failed, true);
                }
            }
        }
        warn!(node = name, decisions = DECISIONS, "still not settled");
        (Outcome::Failed, true)
    }

    /// What is to be done now. A worker that is to start has its slot from here on.
    fn decide(&self, name: &str) -> Option<(NodeView, Option<GateView>, Decision)> {
        let views = self.views();
        let node = views.nodes.get(name)?.clone();
        let gate = serving(views.gates.all(), &node).cloned();
        let workers = views.workers_of(&node.uid);
        let elapsed = self.clock.elapsed();
        let mut slots = self.slots();
        let slot_free = busy(views.workers.all(), elapsed) + slots.starting < self.most_workers;
        let seen = Observed {
            node: &node,
            gate: gate.as_ref(),
            workers: &workers,
            slot_free,
            now: self.clock.now(),
            elapsed,
        };
        let decision = decide(&seen);
        let attempts = Record::read(node.record.as_deref(), &node.uid).map_or(0, |record| record.attempts);
        let at = gate.as_ref().map_or("", |gate| gate.name.as_str());
        self.metrics.node_is(&node.name, at, decision.state, node.created, attempts);
        if starts(&decision) {
            slots.starting += 1;
        }
        Some((node, gate, decision))
    }

    async fn apply(
        &self,
        node: &NodeView,
        gate: Option<&GateView>,
        decision: &Decision,
    ) -> Result<(), Trouble> {
        let mut result = Ok(());
        let workers = self.views().workers_of(&node.uid);
        for effect in &decision.effects {
            let started = self.clock.elapsed();
            result = self.writer.apply(node, gate, effect).await;
            let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
            let (gate, took) = (gate.map_or("", |gate| &gate.name), elapsed.saturating_sub(started));
            let account = Account { node, gate, workers: &workers, now, elapsed, took };
            account.tell(&self.metrics, effect, &result);
            if result.is_err() {
                break;
            }
        }
        if starts(decision) {
            // From here on the views count it, if it was made.
            self.slots().starting -= 1;
        }
        result
    }

    fn settle(&self, node: &NodeView, decision: &Decision) -> Outcome {
        debug!(node = node.name, state = ?decision.state, why = decision.why, "nothing to do");
        if decision.wants_slot {
            let record = Record::read(node.record.as_deref(), &node.uid);
            let place = (record.map_or(0, |record| record.workers), node.created, node.name.clone());
            self.slots().waiting.insert(place);
        }
        decision.recheck_in.map_or(Outcome::Settled, Outcome::Again)
    }

    /// The nodes whose turn it is, because slots are free now.
    pub fn admitted(&self) -> Vec<String> {
        let busy = busy(self.views().workers.all(), self.clock.elapsed());
        let mut slots = self.slots();
        let taken = busy + slots.starting;
        self.metrics.workers_active(taken);
        let mut names = Vec::new();
        for _ in taken..self.most_workers {
            let Some((_, _, name)) = slots.waiting.pop_first() else { break };
            names.push(name);
        }
        names
    }

    /// Reads a node from the server, past every cache.
    async fn read(&self, name: &str) -> Result<(), Trouble> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match timeout(READ, nodes.get_opt(name)).await {
            Ok(Ok(Some(node))) => {
                self.views().nodes.learn(NodeView::new(&node), self.clock.elapsed());
                Ok(())
            }
            // The watch will say so too.
            Ok(Ok(None)) => Err(Trouble::Gone("the node".into())),
            Ok(Err(error)) => {
                self.metrics.failed(name, Failure::ReadNode);
                Err(Trouble::Doubtful(error.to_string()))
            }
            Err(_) => {
                self.metrics.failed(name, Failure::ReadNode);
                Err(Trouble::Doubtful("timeout".into()))
            }
        }
    }
}

fn starts(decision: &Decision) -> bool {
    decision.effects.iter().any(|effect| matches!(effect, Effect::StartWorker(_)))
}

/// How many workers take a slot.
fn busy<'a>(workers: impl Iterator<Item = &'a WorkerView>, now: Duration) -> usize {
    let takes_one = |worker: &&WorkerView| match worker.progress {
        Progress::Running => !worker.deleting,
        Progress::Waiting(_) | Progress::Unscheduled(_) => {
            !worker.deleting && now.saturating_sub(worker.first_seen) < STARTING
        }
        Progress::Reported(_) | Progress::Silent(_) => false,
    };
    workers.filter(takes_one).count()
}

/// What becomes of a node that could not be read. One that is gone is settled: if another of its name comes, the watch
/// says so.
fn unread(name: &str, trouble: &Trouble) -> (Outcome, bool) {
    debug!(node = name, %trouble, "cannot be read");
    if matches!(trouble, Trouble::Gone(_)) { (Outcome::Settled, false) } else { (Outcome::Failed, true) }
}

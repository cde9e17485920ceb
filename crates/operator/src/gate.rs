//! The gate's controller: observes, lets `core` decide, applies.

mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use nodekeeper_core::api::{CauseSource, FailureAction};
use nodekeeper_core::autoscaler::Autoscalers;
use nodekeeper_core::fleet::{FleetIndex, NodeStatus};
use nodekeeper_core::gate::{
    DaemonPod, Decision, Effect, Fleet, GateView, Observed, Ownership, State, decide, ownership,
};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::remediate::evidence_ttl;
use nodekeeper_core::worker::WorkerView;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::account::Account;
use crate::apply::{Trouble, Writer};
use crate::clock::Clock;
use crate::metrics::{Failure, Metrics, state_word};
use crate::queue::Outcome;
use crate::remediate::told_elsewhere;
use crate::slots::{Line, Place};
use crate::views::Views;

/// A look at one node ends after so many decisions; whatever is left comes again.
const DECISIONS: usize = 6;
const READ: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(10);

/// How long a server that refused a condition is not asked for another.
const UNPUBLISHED: Duration = Duration::from_mins(10);

/// What was told about a node, that no write of ours remembers.
#[derive(Debug, Default)]
struct Told {
    uid: String,
    notices: BTreeSet<(&'static str, u32)>,
}

/// A node, all that was seen with it, and what is to be done.
struct Look {
    node: NodeView,
    gate: Option<GateView>,
    /// It bears the gate's taint.
    held: bool,
    workers: Vec<WorkerView>,
    decision: Decision,
}

/// Looks after all nodes, one at a time each.
pub struct Gate {
    client: Client,
    clock: Clock,
    views: Arc<Mutex<Views>>,
    writer: Arc<Writer>,
    line: Mutex<Line>,
    fleet: Arc<Mutex<FleetIndex>>,
    metrics: Arc<Metrics>,
    /// Gates whose figures changed since somebody asked.
    touched: Mutex<BTreeSet<Arc<str>>>,
    told: Mutex<BTreeMap<String, Told>>,
    autoscalers: Mutex<Option<(Duration, Autoscalers)>>,
    /// Gates whose nodes' conditions the server does not take, and until when it is not asked again.
    unpublished: Mutex<BTreeMap<String, Duration>>,
}

impl Gate {
    /// A controller for one term.
    pub fn new(
        client: Client,
        clock: Clock,
        views: Arc<Mutex<Views>>,
        writer: Arc<Writer>,
        most_workers: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            clock,
            views,
            writer,
            line: Mutex::new(Line::new(most_workers)),
            fleet: metrics.fleet(),
            metrics,
            touched: Mutex::default(),
            told: Mutex::default(),
            autoscalers: Mutex::default(),
            unpublished: Mutex::default(),
        }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        locked(&self.views)
    }

    /// Whether nothing is to be done about a node, now or later, until something changes. That is so of most nodes most
    /// of the time: they need no place in the queue.
    pub fn is_settled(&self, name: &str) -> bool {
        let Some(look) = self.decide(name, false) else {
            self.forget(name);
            return true;
        };
        let Decision { effects, recheck_in, wants_slot, wants_pods, .. } = &look.decision;
        effects.is_empty() && recheck_in.is_none() && wants_slot.is_none() && !wants_pods
    }

    /// Looks at one node and does what is to be done. After a doubtful write the node is read anew first.
    pub async fn look_at(&self, name: &str, doubtful: bool) -> (Outcome, bool) {
        if doubtful && let Err(trouble) = self.read(name).await {
            return self.unread(name, &trouble);
        }
        let known = self.views().nodes.get(name).cloned();
        if let Some(node) = known
            && let Err(trouble) = self.writer.refresh(&node).await
        {
            warn!(node = name, %trouble, "a worker cannot be read");
            return (Outcome::Failed, true);
        }
        for _ in 0..DECISIONS {
            if !self.views().synced() {
                // What is missing means nothing.
                return (Outcome::Failed, true);
            }
            let Some(look) = self.decide(name, true) else {
                self.forget(name);
                return (Outcome::Settled, false);
            };
            let Look { node, decision, .. } = &look;
            if decision.effects.is_empty() {
                return (self.settle(&look), false);
            }
            info!(node = name, state = ?decision.state, why = decision.why, "decided");
            match self.apply(&look).await {
                Ok(()) => {}
                Err(Trouble::Conflict(why) | Trouble::Gone(why)) => {
                    debug!(node = name, why, "conflict");
                    if let Err(trouble) = self.read(name).await {
                        return self.unread(name, &trouble);
                    }
                    let now = self.views().nodes.get(name).map(|node| node.resource_version);
                    if now == Some(node.resource_version) {
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

    /// What is to be done now. With `in_earnest`, a worker that is to start has its slot from here on.
    fn decide(&self, name: &str, in_earnest: bool) -> Option<Look> {
        let mut views = self.views();
        let node = views.nodes.get(name)?.clone();
        let served = ownership(views.gates.all(), &node);
        let at = served.gate().map_or("", |gate| gate.name.as_str());
        let workers = views.workers_of(&node.uid);
        let daemons: Option<Vec<DaemonPod>> = views.daemons_of(name);
        let elapsed = self.clock.elapsed();
        let mut line = locked(&self.line);
        let refused = line.refusal(at, elapsed).is_some();
        let mut decision = decide(&Observed {
            node: &node,
            served,
            workers: &workers,
            daemons: daemons.as_deref(),
            slots: line.free(at, views.workers.all(), elapsed),
            fleet: Fleet {
                ran_elsewhere: self.ran_elsewhere(&views, served, &node),
                ..locked(&self.fleet).fleet(at, refused)
            },
            down: views.the_policy().map_or(&[], |policy| &policy.status.down),
            asked: asked(&views, at, &node),
            now: self.clock.now(),
            elapsed,
        });
        if let Some(number) = starts(&decision).filter(|_| in_earnest) {
            line.starts(at, number, decision.periodic, elapsed);
        }
        self.leave_out_what_was_told(&node, &mut decision);
        if locked(&self.unpublished).get(at).is_some_and(|until| elapsed < *until) {
            decision.effects.retain(|effect| !matches!(effect, Effect::SetNodeCondition(_)));
        }
        self.count(&node, served, &views, &decision);
        let gate = served.gate().filter(|_| in_earnest).cloned();
        let held = matches!(served, Ownership::Gated(_));
        // A glance may find that they are needed. That they are no longer, only whoever acts on them may say.
        if in_earnest || decision.wants_pods {
            views.want_pods(name, decision.wants_pods, elapsed);
        }
        Some(Look { node, gate, held, workers, decision })
    }

    /// Whether a worker of the gate told something about another node lately. Asked only where something depends on it.
    fn ran_elsewhere(&self, views: &Views, served: Ownership<'_>, node: &NodeView) -> bool {
        let Ownership::Gated(gate) = served else { return false };
        let lately = evidence_ttl(views.the_policy());
        gate.spec.on_stuck == FailureAction::Replace
            && told_elsewhere(views, gate, &node.uid, &self.clock, lately)
    }

    /// Remembers where a node stands.
    fn count(&self, node: &NodeView, served: Ownership<'_>, views: &Views, decision: &Decision) {
        let record = Record::read(node.record.as_deref(), &node.uid).unwrap_or_default();
        let mut fleet = locked(&self.fleet);
        let status = NodeStatus {
            at: fleet.name(match served {
                Ownership::Gated(gate) | Ownership::Verified(gate) => &gate.name,
                Ownership::Unserved(taint, _) => taint,
                Ownership::Released | Ownership::Unmanaged => "",
            }),
            state: decision.state,
            // A node that nothing can be looked at on says nothing about others.
            cause: record
                .cause
                .filter(|_| matches!(served, Ownership::Gated(_)) && decision.state != State::Waiting),
            // Those that are tainted in this moment count already: others are decided meanwhile.
            retainted: record.retainted
                || decision.effects.iter().any(|one| matches!(one, Effect::Retaint(_))),
            created_at: node.created.as_second(),
            retries: record.attempts.saturating_sub(1),
            took: None,
        };
        if matches!(served, Ownership::Gated(_)) && is_new(fleet.get(&node.name)) {
            info!(node = &*node.name, state = state_word(decision.state), "Node added to queue");
        }
        let mut touched = fleet.set(&node.name, Some(status));
        if !touched.is_empty() {
            // What one gate does or does not serve concerns the others.
            touched.extend(views.gates.all().map(|gate| Arc::from(gate.name.as_str())));
        }
        if decision.state == State::Waiting && !touched.is_empty() {
            info!(node = &*node.name, why = decision.why, "Node waits");
        }
        locked(&self.touched).extend(touched);
    }

    /// The node is gone.
    fn forget(&self, name: &str) {
        let touched = locked(&self.fleet).set(&name.into(), None);
        locked(&self.touched).extend(touched);
        locked(&self.told).remove(name);
        self.metrics.forget_node(name);
        self.views().want_pods(name, false, self.clock.elapsed());
    }

    /// What goes with no other write is decided again and again, and told dedup_key.
    fn leave_out_what_was_told(&self, node: &NodeView, decision: &mut Decision) {
        let is_repeated =
            |effect: &Effect| matches!(effect, Effect::EmitEvent(event) if event.dedup_key.is_some());
        let mut all = locked(&self.told);
        if !decision.effects.iter().any(is_repeated) {
            all.remove(&*node.name);
            return;
        }
        let Some(told) = all.get(&*node.name).filter(|told| *told.uid == *node.uid) else { return };
        decision.effects.retain(|effect| match effect {
            Effect::EmitEvent(event) => {
                event.dedup_key.is_none_or(|number| !told.notices.contains(&(event.reason, number)))
            }
            _ => true,
        });
    }

    fn has_told(&self, node: &NodeView, effect: &Effect) {
        let Effect::EmitEvent(event) = effect else { return };
        let Some(number) = event.dedup_key else { return };
        let mut all = locked(&self.told);
        let told = all.entry(node.name.to_string()).or_default();
        if *told.uid != *node.uid {
            *told = Told { uid: node.uid.to_string(), notices: BTreeSet::new() };
        }
        told.notices.insert((event.reason, number));
    }

    async fn apply(&self, look: &Look) -> Result<(), Trouble> {
        let Look { node, gate, held, workers, decision } = look;
        let gate = gate.as_ref();
        let at = gate.map_or("", |gate| gate.name.as_str());
        let mut untold = Ok(());
        for effect in &decision.effects {
            let started = self.clock.elapsed();
            let mut result = self.writer.apply(node, gate, effect).await;
            let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
            let took = elapsed.saturating_sub(started);
            Account { node, gate: at, held: *held, workers, now, elapsed, took }.tell(
                &self.metrics,
                effect,
                &result,
            );
            if let Effect::StartWorker(identity) = effect {
                self.started(at, identity.number, &result);
            }
            if let (Effect::SetNodeCondition(_), Err(Trouble::Refused(why))) = (effect, &result) {
                // A courtesy to others: it holds up nothing.
                warn!(gate = at, why, "no condition on nodes: the chart allows it with rbac.nodeConditions");
                locked(&self.unpublished).insert(at.to_owned(), elapsed + UNPUBLISHED);
                result = Ok(());
            }
            match (effect, result) {
                (_, Ok(())) => self.has_told(node, effect),
                // What is done and said beside it does not wait for a word that nobody heard.
                (Effect::EmitEvent(_), Err(trouble)) => untold = Err(trouble),
                (_, Err(trouble)) => return Err(trouble),
            }
        }
        untold
    }

    /// A worker was made or not: the slot that it had is the views' business now.
    fn started(&self, gate: &str, number: u32, result: &Result<(), Trouble>) {
        let refused = match result {
            Err(Trouble::Refused(why)) => Some(why.clone()),
            _ => None,
        };
        let changed = locked(&self.line).started(gate, number, refused, result.is_ok(), self.clock.elapsed());
        if changed {
            locked(&self.touched).insert(gate.into());
        }
    }

    fn settle(&self, look: &Look) -> Outcome {
        let Look { node, gate, decision, .. } = look;
        debug!(node = &*node.name, state = ?decision.state, why = decision.why, "nothing to do");
        if let (Some(gate), Some(workers)) = (gate.as_ref(), decision.wants_slot) {
            locked(&self.line).wait(Place {
                workers,
                created: node.created,
                node: node.name.to_string(),
                gate: gate.name.clone(),
            });
        }
        // Never at dedup_key: whoever decides the same again would do nothing else.
        decision.recheck_in.map_or(Outcome::Settled, |wait| Outcome::Again(wait.max(SOON)))
    }

    /// The nodes whose turn it is, because slots are free now.
    pub fn admitted(&self) -> Vec<String> {
        let views = self.views();
        let (mut line, now) = (locked(&self.line), self.clock.elapsed());
        self.metrics.workers_active(line.taken(views.workers.all(), now));
        line.admitted(views.workers.all(), now)
    }

    /// When a slot becomes free though nothing happens.
    pub fn wakes(&self) -> Option<Duration> {
        let views = self.views();
        locked(&self.line).wakes(views.workers.all(), self.clock.elapsed())
    }

    /// Gates whose status may have to be written.
    pub fn touched(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut *locked(&self.touched))
    }

    /// Reads a node from the server, past every cache.
    async fn read(&self, name: &str) -> Result<(), Trouble> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match timeout(READ, nodes.get_opt(name)).await {
            Ok(Ok(Some(node))) => {
                self.views().learn_node(&node, self.clock.elapsed());
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

    /// What becomes of a node that could not be read. One that is gone is settled: if another of its name comes, the
    /// watch says so.
    fn unread(&self, name: &str, trouble: &Trouble) -> (Outcome, bool) {
        debug!(node = name, %trouble, "cannot be read");
        if matches!(trouble, Trouble::Gone(_)) {
            self.forget(name);
            return (Outcome::Settled, false);
        }
        (Outcome::Failed, true)
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When what a gate asked the node's replacement for was seen.
fn asked(views: &Views, gate: &str, node: &NodeView) -> Option<Timestamp> {
    let request = views.requests.get(&node.uid)?;
    let cause =
        request.spec.causes.iter().find(|cause| cause.source == CauseSource::Gate && cause.name == gate)?;
    Some(cause.observed_at.unwrap_or(request.created))
}

/// The number of the worker that a decision starts.
fn starts(decision: &Decision) -> Option<u32> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::StartWorker(identity) => Some(identity.number),
        _ => None,
    })
}

/// Whether no gate had the node so far. One may come before its gate, which the chart makes last.
fn is_new(was: Option<&NodeStatus>) -> bool {
    was.is_none_or(|was| matches!(was.state, State::Ungated | State::Unserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_comes_before_its_gate_is_new_to_it() {
        let was = |state| NodeStatus {
            at: "default".into(),
            state,
            cause: None,
            retainted: false,
            created_at: 0,
            retries: 0,
            took: None,
        };
        assert!(is_new(None));
        for state in [State::Ungated, State::Unserved] {
            assert!(is_new(Some(&was(state))), "{state:?}");
        }
        for state in [State::Verified, State::Waiting, State::Unverified, State::Pending, State::Failed] {
            assert!(!is_new(Some(&was(state))), "{state:?}");
        }
    }
}

//! What all nodes say together: how many stand where, and what a gate says about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{Enforcement, NodeCounts, NodeGateStatus, NodeSelector};
use crate::condition::{Finding, conditions};
use crate::gate::{Fleet, GateView, State, ownership};
use crate::node::NodeView;
use crate::reasons;
use crate::record::InconclusiveReason;

/// So many nodes whose workers cannot run for the same reason are no coincidence, if they are most of those that try.
const MIN_COMMON_FAILURES: u32 = 3;

/// Where one node stands. Small: there is one for each node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its gate; of a node that no gate serves, the taint; of a node that is nobody's, nothing.
    pub at: Arc<str>,
    /// Where it stands.
    pub state: State,
    /// Why its last worker could not tell.
    pub cause: Option<InconclusiveReason>,
    /// It had been let in, and is tainted again.
    pub retainted: bool,
    /// When it created_at, in seconds since 1970.
    pub created_at: i64,
    /// Attempts after the first, in its round.
    pub retries: u32,
    /// Milliseconds that the worker worker_ms which gave it its last verdict.
    pub worker_ms: Option<u32>,
}

/// The nodes of one gate, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    states: BTreeMap<State, u32>,
    causes: BTreeMap<InconclusiveReason, u32>,
    retainted: u32,
}

impl GateCounts {
    /// How many stand there.
    #[must_use]
    pub fn count(&self, state: State) -> u32 {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// The reason for which workers of several nodes cannot run.
    #[must_use]
    pub fn cannot_run(&self) -> Option<(InconclusiveReason, u32)> {
        let (cause, count) =
            self.causes.iter().filter(|(cause, _)| cause.prevents_running()).max_by_key(|all| all.1)?;
        let trying =
            [State::Unverified, State::Pending, State::InProgress, State::Inconclusive, State::Stuck];
        let trying: u32 = trying.into_iter().map(|state| self.count(state)).sum();
        (*count >= MIN_COMMON_FAILURES && count * 2 > trying).then_some((*cause, *count))
    }

    fn shift(&mut self, status: &NodeStatus, more: bool) {
        shift(self.states.entry(status.state).or_default(), more);
        if let Some(cause) = status.cause {
            shift(self.causes.entry(cause).or_default(), more);
        }
        if status.retainted {
            shift(&mut self.retainted, more);
        }
    }

    fn is_empty(&self) -> bool {
        self.states.values().all(|count| *count == 0)
    }

    fn counts(&self) -> NodeCounts {
        let count = |states: &[State]| {
            let sum: u32 = states.iter().map(|state| self.count(*state)).sum();
            i32::try_from(sum).unwrap_or(i32::MAX)
        };
        let waiting = count(&[State::Waiting]);
        let verifying = count(&[State::Unverified, State::Pending, State::InProgress]);
        let (inconclusive, stuck) = (count(&[State::Inconclusive]), count(&[State::Stuck]));
        let failed = count(&[State::Failed]);
        NodeCounts {
            gated: waiting + verifying + inconclusive + stuck + failed,
            waiting,
            verifying,
            inconclusive,
            stuck,
            failed,
            verified: count(&[State::Verified]),
        }
    }
}

/// All nodes.
#[derive(Debug, Default)]
pub struct FleetIndex {
    nodes: BTreeMap<Arc<str>, NodeStatus>,
    by_gate: BTreeMap<Arc<str>, GateCounts>,
    /// Each name once, however many nodes bear it.
    names: BTreeSet<Arc<str>>,
}

impl FleetIndex {
    /// The one copy of a name.
    pub fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        self.names.insert(new.clone());
        new
    }

    /// A node stands here now, or nowhere. Returns the gates whose figures changed.
    pub fn set(&mut self, node: &Arc<str>, mut now: Option<NodeStatus>) -> Vec<Arc<str>> {
        let before = self.nodes.get(node);
        if let (Some(now), Some(before)) = (&mut now, before) {
            now.worker_ms = before.worker_ms;
        }
        if before == now.as_ref() {
            return Vec::new();
        }
        let before = match now.clone() {
            Some(status) => self.nodes.insert(node.clone(), status),
            None => self.nodes.remove(node),
        };
        let mut touched = Vec::new();
        for (status, more) in [(before, false), (now, true)] {
            let Some(status) = status else { continue };
            let counts = self.by_gate.entry(status.at.clone()).or_default();
            counts.shift(&status, more);
            if counts.is_empty() {
                self.by_gate.remove(&status.at);
            }
            if !touched.contains(&status.at) {
                touched.push(status.at);
            }
        }
        touched
    }

    /// A worker gave this node its verdict, and worker_ms so long.
    pub fn set_worker_ms(&mut self, node: &str, milliseconds: u32) {
        if let Some(status) = self.nodes.get_mut(node) {
            status.worker_ms = Some(milliseconds);
        }
    }

    /// Where a node stands.
    #[must_use]
    pub fn get(&self, node: &str) -> Option<&NodeStatus> {
        self.nodes.get(node)
    }

    /// Where all nodes stand.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeStatus)> {
        self.nodes.iter().map(|(name, status)| (&**name, status))
    }

    /// The figures of a gate.
    #[must_use]
    pub fn counts(&self, gate: &str) -> GateCounts {
        self.by_gate.get(gate).cloned().unwrap_or_default()
    }

    /// What the nodes of a gate mean to one of them.
    #[must_use]
    pub fn fleet(&self, gate: &str, refused: bool) -> Fleet {
        let Some(counts) = self.by_gate.get(gate) else {
            return Fleet { cannot_run: refused, ..Fleet::default() };
        };
        Fleet {
            cannot_run: refused || counts.cannot_run().is_some(),
            open: counts.count(State::Verified),
            retainted: counts.retainted,
            ran_elsewhere: false,
        }
    }

    /// A node that stands there, as an example.
    #[must_use]
    pub fn example(&self, at: &str, state: State) -> Option<&str> {
        self.nodes().find(|(_, status)| *status.at == *at && status.state == state).map(|(name, _)| name)
    }
}

fn shift(count: &mut u32, more: bool) {
    *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
}

/// All that a gate's status is made from.
#[derive(Clone, Debug)]
pub struct GateStatusInput<'a> {
    /// The gate.
    pub gate: &'a GateView,
    /// Its figures.
    pub counts: &'a GateCounts,
    /// Why the API server takes no workers.
    pub refused: Option<&'a str>,
    /// Nodes that it would serve, and another gate does; which.
    pub shadowed_by: Option<(&'a str, usize)>,
    /// Nodes that bear its taint and that no gate serves; one of them.
    pub unserved: Option<(&'a str, u32)>,
    /// Whether autoscalers know its taint.
    pub autoscalers: Finding,
}

/// What a gate says about itself. Times are kept where nothing changed.
#[must_use]
pub fn status(input: &GateStatusInput<'_>, before: &NodeGateStatus, now: &str) -> NodeGateStatus {
    let generation = input.gate.generation;
    let mut findings =
        vec![workers(input), cluster_dns(input), shadowed(input), unserved(input), input.autoscalers.clone()];
    findings.insert(0, ready(input, &findings));
    NodeGateStatus {
        observed_generation: generation,
        nodes: input.counts.counts(),
        conditions: conditions(findings, &before.conditions, generation, now),
    }
}

fn ready(input: &GateStatusInput<'_>, findings: &[Finding]) -> Finding {
    let of = |status, reason, message: &str| Finding::new(reasons::READY, status, reason, message);
    let hindrance = |type_| findings.iter().find(|one| one.type_ == type_ && one.status == "True");
    match input.gate.spec.enforcement {
        _ if input.gate.deleting => {
            of("False", reasons::DELETING, "the gate is being deleted and serves no node")
        }
        Enforcement::Paused => of(
            "False",
            reasons::PAUSED,
            "`spec.enforcement` is 'Paused': tainted nodes stay tainted until it is 'Enforce'",
        ),
        Enforcement::DryRun => of(
            "False",
            reasons::DRY_RUN,
            "`spec.enforcement` is 'DryRun': workers run, and no node is let in; see the Events of the nodes",
        ),
        Enforcement::Enforce => {
            match [reasons::WORKERS_CANNOT_RUN, reasons::CLUSTER_DNS_NOT_RUNNING]
                .into_iter()
                .find_map(hindrance)
            {
                Some(finding) => of("False", finding.reason, &finding.message),
                None => of("True", reasons::SERVING, "nodes that bear the taint are verified and let in"),
            }
        }
    }
}

fn workers(input: &GateStatusInput<'_>) -> Finding {
    let of =
        |status, reason, message: String| Finding::new(reasons::WORKERS_CANNOT_RUN, status, reason, message);
    if let Some(why) = input.refused {
        return of(
            "True",
            reasons::CREATE_REFUSED,
            format!("no worker pod can be made: {why}. No node is blamed, and it is tried again"),
        );
    }
    match input.counts.cannot_run() {
        Some((cause, count)) => {
            let why = cause.describe();
            of(
                "True",
                reasons::COMMON_FAILURE,
                format!(
                    "the workers of {count} nodes cannot run: {why}. No node is blamed; see their Events"
                ),
            )
        }
        None => {
            of("False", reasons::WORKERS_RUN, "nothing is known that would keep workers from running".into())
        }
    }
}

fn cluster_dns(input: &GateStatusInput<'_>) -> Finding {
    let of = |status, reason, message: String| {
        Finding::new(reasons::CLUSTER_DNS_NOT_RUNNING, status, reason, message)
    };
    match input.counts.causes.get(&InconclusiveReason::ClusterDns).copied().unwrap_or_default() {
        0 => of(
            "False",
            reasons::NOT_OBSERVED,
            "no worker found the cluster's DNS without ready endpoints".into(),
        ),
        count => {
            let taint = input.gate.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default();
            of(
                "True",
                reasons::NO_READY_ENDPOINTS,
                format!(
                    "{count} nodes wait for the cluster's DNS, which has no ready endpoints. If all nodes are gated, CoreDNS must tolerate the taint {taint}, or some nodes must not bear it"
                ),
            )
        }
    }
}

fn shadowed(input: &GateStatusInput<'_>) -> Finding {
    match input.shadowed_by {
        Some((other, 0)) => Finding::new(
            reasons::SHADOWED,
            "True",
            reasons::LOWER_PRECEDENCE,
            format!(
                "gate {other} has the same taint, selects all nodes that this one does, and goes before it: this gate serves none; change `spec.priority`, `spec.taints` or `spec.nodeSelector`"
            ),
        ),
        Some((other, count)) => Finding::new(
            reasons::SHADOWED,
            "True",
            reasons::LOWER_PRECEDENCE,
            format!(
                "{count} nodes that this gate selects are served by gate {other}, which goes before it; change `spec.priority`, `spec.taints` or `spec.nodeSelector`"
            ),
        ),
        None => Finding::new(
            reasons::SHADOWED,
            "False",
            reasons::NO_OVERLAP,
            "no other gate goes before this one",
        ),
    }
}

fn unserved(input: &GateStatusInput<'_>) -> Finding {
    match input.unserved {
        Some((node, count)) => {
            let taint = input.gate.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default();
            Finding::new(
                reasons::NODES_UNSERVED,
                "True",
                reasons::NOT_SELECTED,
                format!(
                    "{count} nodes bear a taint of this gate, and no gate selects them, {node} for example; change `spec.nodeSelector`, or free them: `kubectl taint node {node} {taint}-`"
                ),
            )
        }
        None => Finding::new(
            reasons::NODES_UNSERVED,
            "False",
            reasons::ALL_SERVED,
            "every node that bears the taint is served by a gate",
        ),
    }
}

/// The gate that serves nodes which this one would serve, and how many; none of them if there are no such nodes yet.
#[must_use]
pub fn shadowing_gate<'a>(
    gate: &GateView,
    gates: &[&GateView],
    nodes: impl Iterator<Item = &'a NodeView>,
) -> Option<(String, usize)> {
    let others = || gates.iter().filter(|other| other.uid != gate.uid && !other.deleting);
    others().next()?;
    let mut winner = None;
    let mut count = 0;
    for node in nodes.filter(|node| gate.holds(node)) {
        if let Some(other) =
            ownership(gates.iter().copied(), node).gate().filter(|other| other.uid != gate.uid)
        {
            winner.get_or_insert_with(|| other.name.clone());
            count += 1;
        }
    }
    if winner.is_some() {
        return winner.map(|name| (name, count));
    }
    let covers = |other: &&&GateView| {
        let (theirs, ours) = (&other.spec.node_selector, &gate.spec.node_selector);
        other.precedes(gate)
            && gate.spec.taints.iter().all(|taint| other.spec.taints.contains(taint))
            && (*theirs == NodeSelector::default() || theirs == ours)
    };
    others().find(covers).map(|other| (other.name.clone(), 0))
}

#[cfg(test)]
mod tests;

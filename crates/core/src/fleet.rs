//! What all nodes say together: how many stand where, and what a gate says about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{Enforcement, GatedNode, NodeCounts, NodeGateStatus, NodeSelector};
use crate::condition::{Finding, conditions};
use crate::gate::{Fleet, GateView, State, ownership};
use crate::node::NodeView;
use crate::record::{InconclusiveReason, Record};

/// So many nodes whose workers cannot run for the same reason are no coincidence, if they are most of those that try.
const ALIKE: u32 = 3;

/// More nodes than this are not listed in the status of a gate.
const MAX_GATED_NODES: usize = 20;

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
    /// Milliseconds that the worker took which gave it its last verdict.
    pub took: Option<u32>,
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
            self.causes.iter().filter(|(cause, _)| cause.is_about_running()).max_by_key(|all| all.1)?;
        let trying =
            [State::Unverified, State::Pending, State::InProgress, State::Inconclusive, State::Stuck];
        let trying: u32 = trying.into_iter().map(|state| self.count(state)).sum();
        (*count >= ALIKE && count * 2 > trying).then_some((*cause, *count))
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
            now.took = before.took;
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

    /// A worker gave this node its verdict, and took so long.
    pub fn took(&mut self, node: &str, milliseconds: u32) {
        if let Some(status) = self.nodes.get_mut(node) {
            status.took = Some(milliseconds);
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
pub struct Seen<'a> {
    /// The gate.
    pub gate: &'a GateView,
    /// Its figures.
    pub counts: &'a GateCounts,
    /// What [`gated_nodes`] returns.
    pub gated_nodes: Vec<GatedNode>,
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
pub fn status(seen: &Seen<'_>, before: &NodeGateStatus, now: &str) -> NodeGateStatus {
    let generation = seen.gate.generation;
    let mut findings =
        vec![workers(seen), cluster_dns(seen), shadowed(seen), unserved(seen), seen.autoscalers.clone()];
    findings.insert(0, ready(seen, &findings));
    NodeGateStatus {
        observed_generation: generation,
        nodes: seen.counts.counts(),
        gated_nodes: seen.gated_nodes.clone(),
        conditions: conditions(findings, &before.conditions, generation, now),
    }
}

fn ready(seen: &Seen<'_>, findings: &[Finding]) -> Finding {
    let of = |status, reason, message: &str| Finding::new("Ready", status, reason, message);
    let hindrance = |type_| findings.iter().find(|one| one.type_ == type_ && one.status == "True");
    match seen.gate.spec.enforcement {
        _ if seen.gate.deleting => of("False", "Deleting", "the gate is being deleted and serves no node"),
        Enforcement::Paused => of(
            "False",
            "Paused",
            "`spec.enforcement` is 'Paused': tainted nodes stay tainted until it is 'Enforce'",
        ),
        Enforcement::DryRun => of(
            "False",
            "DryRun",
            "`spec.enforcement` is 'DryRun': workers run, and no node is let in; see the Events of the nodes",
        ),
        Enforcement::Enforce => {
            match ["WorkersCannotRun", "ClusterDNSNotRunning"].into_iter().find_map(hindrance) {
                Some(finding) => of("False", finding.reason, &finding.message),
                None => of("True", "Serving", "nodes that bear the taint are verified and let in"),
            }
        }
    }
}

fn workers(seen: &Seen<'_>) -> Finding {
    let of = |status, reason, message: String| Finding::new("WorkersCannotRun", status, reason, message);
    if let Some(why) = seen.refused {
        return of(
            "True",
            "CreateRefused",
            format!("no worker pod can be made: {why}. No node is blamed, and it is tried again"),
        );
    }
    match seen.counts.cannot_run() {
        Some((cause, count)) => {
            let why = cause.describe();
            of(
                "True",
                "FailingAlike",
                format!(
                    "the workers of {count} nodes cannot run: {why}. No node is blamed; see their Events"
                ),
            )
        }
        None => of("False", "WorkersRun", "nothing is known that would keep workers from running".into()),
    }
}

fn cluster_dns(seen: &Seen<'_>) -> Finding {
    let of = |status, reason, message: String| Finding::new("ClusterDNSNotRunning", status, reason, message);
    match seen.counts.causes.get(&InconclusiveReason::ClusterDns).copied().unwrap_or_default() {
        0 => of("False", "NotSeen", "no worker found the cluster's DNS without ready endpoints".into()),
        count => {
            let taint = seen.gate.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default();
            of(
                "True",
                "NoReadyEndpoints",
                format!(
                    "{count} nodes wait for the cluster's DNS, which has no ready endpoints. If all nodes are gated, CoreDNS must tolerate the taint {taint}, or some nodes must not bear it"
                ),
            )
        }
    }
}

fn shadowed(seen: &Seen<'_>) -> Finding {
    match seen.shadowed_by {
        Some((other, 0)) => Finding::new(
            "Shadowed",
            "True",
            "AnotherGateWins",
            format!(
                "gate {other} has the same taint, selects all nodes that this one does, and goes before it: this gate serves none; change `spec.priority`, `spec.taints` or `spec.nodeSelector`"
            ),
        ),
        Some((other, count)) => Finding::new(
            "Shadowed",
            "True",
            "AnotherGateWins",
            format!(
                "{count} nodes that this gate selects are served by gate {other}, which goes before it; change `spec.priority`, `spec.taints` or `spec.nodeSelector`"
            ),
        ),
        None => Finding::new("Shadowed", "False", "NoOverlap", "no other gate goes before this one"),
    }
}

fn unserved(seen: &Seen<'_>) -> Finding {
    match seen.unserved {
        Some((node, count)) => {
            let taint = seen.gate.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default();
            Finding::new(
                "NodesUnserved",
                "True",
                "NotSelected",
                format!(
                    "{count} nodes bear a taint of this gate, and no gate selects them, {node} for example; change `spec.nodeSelector`, or free them: `kubectl taint node {node} {taint}-`"
                ),
            )
        }
        None => Finding::new(
            "NodesUnserved",
            "False",
            "AllServed",
            "every node that bears the taint is served by a gate",
        ),
    }
}

/// The nodes that a gate has held longest, at most [`MAX_GATED_NODES`].
#[must_use]
pub fn gated_nodes<'a>(
    fleet: &FleetIndex,
    gate: &str,
    nodes: impl Iterator<Item = &'a NodeView>,
) -> Vec<GatedNode> {
    let mut gated: Vec<_> = nodes
        .filter_map(|node| {
            let status = fleet.get(&node.name).filter(|status| *status.at == *gate)?;
            let reason = match status.state {
                State::Waiting => "Waiting",
                State::Unverified | State::Pending | State::InProgress => "Verifying",
                State::Inconclusive => "Inconclusive",
                State::Stuck => "Stuck",
                State::Failed => "Failed",
                State::Ungated | State::Unserved | State::Verified | State::Terminating => return None,
            };
            let record = || Record::read(node.record.as_deref(), &node.uid);
            let since = if status.retainted { record().and_then(|record| record.at) } else { None };
            Some((since.unwrap_or(node.created), &*node.name, reason))
        })
        .collect();
    gated.sort_unstable();
    gated.truncate(MAX_GATED_NODES);
    let gated = gated.into_iter().map(|(since, name, reason)| GatedNode {
        name: name.to_owned(),
        reason: reason.to_owned(),
        since: since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    gated.collect()
}

/// The gate that serves nodes which this one would serve, and how many; none of them if there are no such nodes yet.
#[must_use]
pub fn shadow<'a>(
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
        other.goes_before(gate)
            && gate.spec.taints.iter().all(|taint| other.spec.taints.contains(taint))
            && (*theirs == NodeSelector::default() || theirs == ours)
    };
    others().find(covers).map(|other| (other.name.clone(), 0))
}

#[cfg(test)]
mod tests;

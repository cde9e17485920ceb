//! The status of a NodeGate: its counts and conditions.

use super::{FailedWritesSummary, FleetIndex, GateCounts};
use crate::api::{AuditCounts, Enforcement, GatedNode, NodeGateStatus, NodeSelector};
use crate::condition::{Finding, conditions, without};
use crate::gate::{GateView, State, ownership};
use crate::id::Id;
use crate::node::NodeView;
use crate::reasons;
use crate::record::InconclusiveReason;
use crate::report::Verdict;

/// How many nodes the status of a gate lists.
const MAX_GATED_NODES: usize = 20;

#[derive(Clone, Debug)]
pub struct GateStatusInput<'a> {
    pub gate: &'a GateView,
    pub counts: &'a GateCounts,
    /// The result of [`gated_nodes`].
    pub gated_nodes: Vec<GatedNode>,
    /// The result of [`audit`].
    pub audit: Option<AuditCounts>,
    /// Why the API server refuses worker pods, if it does.
    pub refused: Option<&'a str>,
    /// The controller may not watch pods.
    pub pods_forbidden: bool,
    /// Writes about nodes that the API server does not accept.
    pub failed_writes: Option<FailedWritesSummary>,
    /// The gate that serves nodes of this gate, and the number of those nodes; see [`shadowing_gate`].
    pub shadowed_by: Option<(&'a str, usize)>,
    /// The nodes that have a taint of the gate and no gate, if there are any.
    pub unserved: Option<Unserved<'a>>,
    /// The condition `AutoscalerCompatible`.
    pub autoscalers: Finding,
    /// The condition `ConfigurationApplied`, if the installation brought the gate.
    pub configuration: Option<Finding>,
}

/// Nodes that have one taint of a gate and that no gate selects.
#[derive(Clone, Copy, Debug)]
pub struct Unserved<'a> {
    /// The key of the taint.
    pub taint: &'a str,
    /// The name of one of them.
    pub node: &'a str,
    pub count: u32,
}

/// The gate's new status. A condition keeps its transition time while its status stays the same.
#[must_use]
pub fn status(input: &GateStatusInput<'_>, before: &NodeGateStatus, now: &str) -> NodeGateStatus {
    let generation = input.gate.generation;
    let mut findings = vec![
        workers(input),
        writes(input),
        cluster_dns(input),
        shadowed(input),
        unserved(input),
        input.autoscalers.clone(),
    ];
    findings.insert(0, ready(input, &findings));
    let before = match &input.configuration {
        Some(_) => before.conditions.clone(),
        None => without(&before.conditions, reasons::CONFIGURATION_APPLIED),
    };
    findings.extend(input.configuration.clone());
    NodeGateStatus {
        observed_generation: generation,
        nodes: input.counts.counts(),
        gated_nodes: input.gated_nodes.clone(),
        audit: input.audit.clone(),
        conditions: conditions(findings, &before, generation, now),
    }
}

/// The nodes that a gate has held longest, at most [`MAX_GATED_NODES`].
#[must_use]
pub fn gated_nodes<'a>(
    fleet: &FleetIndex,
    gate: &GateView,
    nodes: impl Iterator<Item = &'a NodeView>,
) -> Vec<GatedNode> {
    let mut gated: Vec<_> = nodes
        .filter_map(|node| {
            let status = fleet.get(&node.name).filter(|status| *status.at == *gate.name)?;
            let reason = match status.state {
                State::Waiting => "Waiting",
                State::Unverified | State::Pending | State::InProgress => "Verifying",
                State::Inconclusive => "Inconclusive",
                State::Stuck => "Stuck",
                State::Failed => "Failed",
                State::Ungated | State::Unserved | State::Verified | State::Audited | State::Terminating => {
                    return None;
                }
            };
            let record = node.record.as_ref().filter(|_| status.retainted);
            let since = record.and_then(|record| record.section(&*gate.uid).unwrap_or(record).at);
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

/// What a gate that audits would have done with the nodes that are there; none for other gates without such nodes.
#[must_use]
pub fn audit<'a>(gate: &GateView, nodes: impl Iterator<Item = &'a NodeView>) -> Option<AuditCounts> {
    let uid = Id::from(&gate.uid);
    let mut counts = AuditCounts::default();
    let mut held: Vec<&str> = Vec::new();
    for node in nodes {
        let section = node.record.as_ref().and_then(|record| record.section(&uid));
        let Some(record) = section.filter(|record| record.audited) else { continue };
        if record.verdict == Some(Verdict::Passed) {
            counts.passed += 1;
        } else {
            counts.would_hold += 1;
            held.push(&node.name);
        }
    }
    held.sort_unstable();
    counts.nodes = held.into_iter().take(MAX_GATED_NODES).map(str::to_owned).collect();
    let is_shown = gate.spec.enforcement == Enforcement::Audit || counts != AuditCounts::default();
    is_shown.then_some(counts)
}

fn ready(input: &GateStatusInput<'_>, findings: &[Finding]) -> Finding {
    let of = |status, reason, message: &str| Finding::new(reasons::READY, status, reason, message);
    let is_blocking = |finding: &&Finding| {
        [reasons::WORKERS_CANNOT_RUN, reasons::WRITES_REFUSED, reasons::CLUSTER_DNS_NOT_RUNNING]
            .contains(&finding.type_)
            && finding.status == "True"
    };
    let has_nothing_to_gate = input.autoscalers.reason == reasons::NOTHING_TO_GATE;
    match input.gate.spec.enforcement {
        _ if input.gate.deleting => {
            of("False", reasons::DELETING, "the gate is being deleted and serves no node")
        }
        Enforcement::Paused => of(
            "False",
            reasons::PAUSED,
            "`spec.enforcement` is `Paused`: tainted nodes stay tainted until it is `Enforce`",
        ),
        Enforcement::Audit => match findings.iter().find(is_blocking) {
            Some(finding) => of("False", finding.reason, &finding.message),
            None if has_nothing_to_gate => of("True", reasons::NOTHING_TO_GATE, &input.autoscalers.message),
            None => of(
                "True",
                reasons::AUDITING,
                "`spec.enforcement` is `Audit`: every node is admitted, and `status.audit` counts those that would be held",
            ),
        },
        Enforcement::DryRun => of(
            "False",
            reasons::DRY_RUN,
            "`spec.enforcement` is `DryRun`: workers run and no taint is removed; see the Events of the nodes",
        ),
        Enforcement::Enforce => match findings.iter().find(is_blocking) {
            Some(finding) => of("False", finding.reason, &finding.message),
            None if has_nothing_to_gate => of("True", reasons::NOTHING_TO_GATE, &input.autoscalers.message),
            None => of("True", reasons::SERVING, "the gate verifies tainted nodes and removes their taint"),
        },
    }
}

fn workers(input: &GateStatusInput<'_>) -> Finding {
    let of =
        |status, reason, message: String| Finding::new(reasons::WORKERS_CANNOT_RUN, status, reason, message);
    if let Some(why) = input.refused {
        let message = format!(
            "the API server refuses worker pods: {why}. It does not count against any node; the gate retries"
        );
        return of("True", reasons::CREATE_REFUSED, message);
    }
    if input.pods_forbidden && !input.gate.spec.wait_for.daemon_sets.is_empty() {
        let message = "`spec.waitFor.daemonSets` needs the right to list and watch pods in all namespaces, which the controller does not have; the chart grants it with `rbac.daemonSetPods`";
        return of("True", reasons::MISSING_RIGHTS, message.into());
    }
    match input.counts.cannot_run() {
        Some((cause, count)) => {
            let why = cause.describe();
            let message = format!(
                "the workers of {count} nodes cannot run: {why}. It does not count against any node; see the Events of the nodes"
            );
            of("True", reasons::COMMON_FAILURE, message)
        }
        None => of("False", reasons::WORKERS_RUN, "nothing is known that keeps workers from running".into()),
    }
}

fn writes(input: &GateStatusInput<'_>) -> Finding {
    let of = |status, reason, message: String| Finding::new(reasons::WRITES_REFUSED, status, reason, message);
    let Some(FailedWritesSummary { nodes, example, message }) = &input.failed_writes else {
        return of("False", reasons::NOT_OBSERVED, "the API server accepts the writes of the gate".into());
    };
    let message = format!(
        "the API server does not accept writes about {nodes} nodes, which stay as they are; for example node {example}: {message}. Change the role, admission policy or webhook that the message names; the gate retries"
    );
    of("True", reasons::WRITE_REFUSED, message)
}

fn cluster_dns(input: &GateStatusInput<'_>) -> Finding {
    let of = |status, reason, message: String| {
        Finding::new(reasons::CLUSTER_DNS_NOT_RUNNING, status, reason, message)
    };
    match input.counts.causes.get(&InconclusiveReason::ClusterDns).copied().unwrap_or_default() {
        0 => of("False", reasons::NOT_OBSERVED, "no worker found cluster DNS without ready endpoints".into()),
        count => {
            let taint = first_taint(input);
            let message = format!(
                "{count} nodes wait for cluster DNS, which has no ready endpoints. If all nodes are gated, CoreDNS must tolerate the taint {taint}, or some nodes must not have it"
            );
            of("True", reasons::NO_READY_ENDPOINTS, message)
        }
    }
}

fn shadowed(input: &GateStatusInput<'_>) -> Finding {
    let of = |status, reason, message: String| Finding::new(reasons::SHADOWED, status, reason, message);
    let Some((other, count)) = input.shadowed_by else {
        return of("False", reasons::NO_OVERLAP, "no other gate has precedence over this one".into());
    };
    let what = match count {
        0 => format!(
            "gate {other} has the same taint, selects all nodes of this gate and has precedence: this gate serves no node"
        ),
        count => format!("gate {other} has precedence and serves {count} nodes that this gate selects"),
    };
    let message = format!("{what}; change `spec.priority`, `spec.taints` or `spec.nodeSelector`");
    of("True", reasons::LOWER_PRECEDENCE, message)
}

fn unserved(input: &GateStatusInput<'_>) -> Finding {
    let of = |status, reason, message: String| Finding::new(reasons::NODES_UNSERVED, status, reason, message);
    match input.unserved {
        Some(Unserved { taint, node, count }) => {
            let message = format!(
                "{count} nodes have a taint of this gate and no gate selects them, for example {node}; change `spec.nodeSelector`, or free them: `kubectl taint node {node} {taint}-`"
            );
            of("True", reasons::NOT_SELECTED, message)
        }
        None => of("False", reasons::ALL_SERVED, "a gate serves every node with the taint".into()),
    }
}

fn first_taint<'a>(input: &GateStatusInput<'a>) -> &'a str {
    input.gate.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default()
}

/// The gate that has precedence for nodes of this gate, and their number. The number is 0 if the other gate covers this
/// one and there is no such node yet.
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
    for node in nodes.filter(|node| gate.gates(node)) {
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

//! Agents: pods of a DaemonSet that run the checks of their own node in their own process, and open its gate themselves.

use std::time::Duration;

use jiff::SignedDuration;

use super::assignment::record_for;
use super::{GateView, Observed, scope, scope_of};
use crate::api::{FailureAction, Mode, NodeGateSpec};
use crate::node::NodeView;
use crate::report::Verdict;
use crate::worker::{Progress, WorkerView};

/// How long the controller waits for an agent that is not Ready before it verifies the node with a worker pod. The pod of
/// a DaemonSet takes up to 20 s to start on a new node.
const AGENT_GRACE: Duration = Duration::from_mins(1);

/// The agent of a node, as the controller observes its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentPod {
    /// No agents verify the nodes of this gate.
    #[default]
    NotExpected,
    /// The pod is Ready: the agent verifies the node.
    Ready,
    /// The node has had no Ready agent since this time on the monotonic clock.
    MissingSince(Duration),
}

/// A node that is left to its agent.
pub(super) struct LeftToAgent {
    pub why: &'static str,
    /// When the controller verifies the node itself; not before a change of the agent's pod if none.
    pub for_at_most: Option<SignedDuration>,
}

impl Observed<'_> {
    /// Whether the controller starts no worker on the node, because its agent verifies it.
    pub(super) fn left_to_agent(&self, gate: &GateView) -> Option<LeftToAgent> {
        if needs_worker_pod(&gate.spec).is_some() {
            return None;
        }
        match self.agent {
            AgentPod::NotExpected => None,
            AgentPod::Ready => {
                Some(LeftToAgent { why: "the agent on the node verifies it", for_at_most: None })
            }
            AgentPod::MissingSince(since) => {
                let left = AGENT_GRACE.checked_sub(self.elapsed.saturating_sub(since))?;
                let left = SignedDuration::try_from(left).ok().filter(jiff::SignedDuration::is_positive)?;
                Some(LeftToAgent { why: "the agent on the node is not Ready yet", for_at_most: Some(left) })
            }
        }
    }
}

/// What of a gate only a worker pod can do, and no agent; the path of the field.
#[must_use]
pub fn needs_worker_pod(spec: &NodeGateSpec) -> Option<&'static str> {
    let has_authority = |target: &crate::checks::HttpTarget| target.ca.is_some();
    if !spec.checks.exec.is_empty() {
        Some("spec.checks.exec")
    } else if !spec.worker.init_containers.is_empty() {
        Some("spec.worker.initContainers")
    } else if spec.checks.http.iter().flat_map(|http| &http.targets).any(has_authority) {
        Some("spec.checks.http.targets[].ca")
    } else if !spec.wait_for.daemon_sets.is_empty() {
        Some("spec.waitFor.daemonSets")
    } else {
        None
    }
}

/// How an agent looks after its node, whatever the gate says about worker pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTiming {
    /// Whether the node is verified again after it passed.
    pub mode: Mode,
    /// How often it is verified again, also after its attempts are used up.
    pub interval: Duration,
}

/// The spec of a gate as an agent enforces it. An agent never asks for the replacement of its node: the controller does,
/// from the record.
#[must_use]
pub fn of_agent(spec: &NodeGateSpec, timing: AgentTiming) -> NodeGateSpec {
    let seconds = i32::try_from(timing.interval.as_secs()).unwrap_or(i32::MAX);
    let mut spec = spec.clone();
    spec.mode = timing.mode;
    spec.continuous.period_seconds = seconds;
    spec.retry.recheck_period_seconds = seconds;
    spec.on_failure = FailureAction::KeepTainted;
    spec.on_stuck = FailureAction::KeepTainted;
    spec
}

/// Whether a worker that passed on a verified node says only what the record says already. An agent does not record that:
/// it would write its Node at each interval.
#[must_use]
pub fn confirms(node: &NodeView, gate: &GateView, gates: &[&GateView], worker: &WorkerView) -> bool {
    let record = record_for(node, gate, gates);
    let has_passed =
        matches!(&worker.progress, Progress::Reported(report) if report.verdict == Verdict::Passed);
    has_passed
        && node.ready
        && !gate.gates(node)
        && record.verdict == Some(Verdict::Passed)
        && record.is_open()
        && record.scope == scope(node, gate)
        && scope_of(&worker.identity) == record.scope
        && !record.requested
        && node.verify.is_none()
        && (record.unlabelled || node.labels.get(&gate.spec.verified_label.key).is_some())
}

//! The policy, gone over again and again: what is reserved, what is compared with, what is history.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use nodekeeper_core::api::{ActEnforcement, Condition, RemediationPolicyStatus};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::GateView;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::control::{
    ControlGroupResult, MAX_RUNNING_CONTROLS, eligible_nodes, expired_controls,
};
use nodekeeper_core::remediate::{
    BlockReason, Policy, PolicyInput, Remediation, Target, prune, reconcile_policy_status,
};
use nodekeeper_core::topology::zone;
use nodekeeper_core::worker::WorkerView;
use tokio::time::timeout;
use tracing::warn;

use super::{READ, Remediator, answered, compared_in, minute};
use crate::apply::Trouble;
use crate::queue::Outcome;
use crate::views::Views;

/// How often while something is going on, and else.
const BUSY: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_hours(1);
/// So much history goes at once.
const PRUNED: usize = 50;

impl Remediator {
    /// Goes over the policy once.
    pub async fn keep_policy(&self) -> Outcome {
        match self.keep().await {
            Ok(wait) => Outcome::Again(wait),
            Err(Trouble::Conflict(_) | Trouble::Gone(_)) => Outcome::Again(super::SOON),
            Err(trouble) => {
                warn!(%trouble, "the policy is not gone over");
                Outcome::Failed
            }
        }
    }

    async fn keep(&self) -> Result<Duration, Trouble> {
        self.prune().await?;
        self.free_nodes().await?;
        // Whoever takes the policy away leaves what it began.
        for control in self.spent_controls() {
            self.writer.remove_control(&control).await?;
        }
        let policy = self.views().the_policy().cloned();
        let Some(policy) = policy else {
            if let Some(spec) = &self.file {
                self.writer.make_policy(spec).await?;
            }
            return Ok(if self.views().controls.all().next().is_some() { BUSY } else { IDLE });
        };
        let group_stats = self.group_stats(Some(&policy));
        let (status, is_busy) = {
            let views = self.views();
            let requests: Vec<&Remediation> = views.requests.all().collect();
            let compared = comparisons(&views, &policy, self);
            let is_there = |uid: &str| views.nodes.all().any(|node| *node.uid == *uid);
            let status = reconcile_policy_status(&PolicyInput {
                policy: &policy,
                requests: &requests,
                group_stats: &group_stats,
                is_there: &is_there,
                compared: &compared,
                now: self.clock.now(),
            });
            let pending = requests.iter().any(|request| !request.is_complete());
            let is_busy = pending
                || status.breaker.open
                || !status.down.is_empty()
                || status.cooldown_until.is_some()
                || policy.paused(self.clock.now()).is_some()
                || status.reservations.iter().any(|one| one.ended.is_none())
                || views.controls.all().next().is_some();
            (status, is_busy)
        };
        if is_news(&status, &policy.status) {
            self.writer.report_policy(&policy, &status).await?;
        }
        self.compare(&policy).await?;
        Ok(if is_busy { BUSY } else { IDLE })
    }

    /// History that is old enough goes.
    async fn prune(&self) -> Result<(), Trouble> {
        let doomed: Vec<Remediation> = {
            let views = self.views();
            let requests: Vec<&Remediation> = views.requests.all().collect();
            let old = prune(views.the_policy(), &requests, self.clock.now());
            old.into_iter().take(PRUNED).cloned().collect()
        };
        for request in doomed {
            self.writer.remove_request(&request).await?;
        }
        Ok(())
    }

    /// A cordon of ours whose act is over, or whose request somebody deleted, goes.
    async fn free_nodes(&self) -> Result<(), Trouble> {
        let marked: Vec<NodeView> = self.views().nodes.all().filter(|node| node.marked).cloned().collect();
        for node in marked {
            let is_held = {
                let views = self.views();
                let request = views.requests.get(&node.uid);
                let policy = views.the_policy();
                request
                    .is_some_and(|request| policy.is_some_and(|policy| policy.reservation(request).is_some()))
            };
            if is_held || node.terminating {
                continue;
            }
            let nodes: Api<Node> = Api::all(self.client.clone());
            if let Some(live) = answered(timeout(READ, nodes.get_opt(&node.name)).await)? {
                self.writer.reopen(&Target::new(&live)).await?;
            }
        }
        Ok(())
    }

    /// Starts the workers on nodes that work which are due.
    async fn compare(&self, policy: &Policy) -> Result<(), Trouble> {
        let size = usize::try_from(policy.spec.control_group.size).unwrap_or_default();
        if size == 0 || policy.spec.enforcement == ActEnforcement::DryRun {
            return Ok(());
        }
        for (gate, in_zone) in self.wanted(policy) {
            for (node, identity) in self.chosen(&gate, &in_zone, size) {
                self.writer.start_control(&node, &gate, &identity).await?;
            }
        }
        Ok(())
    }

    fn spent_controls(&self) -> Vec<WorkerView> {
        let views = self.views();
        let zone_of = |node: &str| views.nodes.get(node).map(|node| zone(node).to_owned());
        let all: Vec<&WorkerView> = views.controls.all().collect();
        expired_controls(&all, zone_of, self.clock.elapsed()).into_iter().cloned().collect()
    }

    /// The gates and zones that somebody wants to have compared: once, and as long as something is down there.
    fn wanted(&self, policy: &Policy) -> Vec<(GateView, String)> {
        let views = self.views();
        let due = |gate: &GateView, in_zone: &str| compared_in(&views, gate, in_zone, &self.clock).is_due();
        places(&views, policy, &[BlockReason::Comparing])
            .into_iter()
            .filter_map(|(gate, in_zone)| Some((views.gates.get(&gate)?.clone(), in_zone)))
            .filter(|(gate, in_zone)| due(gate, in_zone))
            .collect()
    }

    fn chosen(&self, gate: &GateView, in_zone: &str, size: usize) -> Vec<(NodeView, WorkerIdentity)> {
        let views = self.views();
        let running = views.controls.all().filter(|control| !control.has_ended()).count();
        let number = minute(&self.clock);
        let there = eligible_nodes(views.nodes.all(), gate, in_zone, number);
        if running + size > MAX_RUNNING_CONTROLS || there.len() < size {
            return Vec::new();
        }
        let identity = |node: &NodeView| WorkerIdentity {
            node_uid: node.uid.to_string(),
            boot_id: node.boot_id.to_string(),
            gate_uid: gate.uid.clone(),
            gate_generation: gate.generation,
            number,
        };
        there.into_iter().take(size).map(|node| (node.clone(), identity(node))).collect()
    }
}

/// The gates and zones of requests that are held so, and of what is down.
fn places(views: &Views, policy: &Policy, holds: &[BlockReason]) -> BTreeSet<(String, String)> {
    let held = |request: &&Remediation| {
        let approved = request.condition("Approved");
        !request.is_complete()
            && approved.is_some_and(|approved| holds.iter().any(|hold| approved.reason == hold.as_str()))
    };
    let asked = views.requests.all().filter(held).filter_map(|request| {
        let (gate, _) = request.gate_cause()?;
        let node = views.nodes.get(&request.spec.node.name)?;
        Some((gate.to_owned(), zone(node).to_owned()))
    });
    let down = policy.status.down.iter().map(|down| (down.gate.clone(), down.zone.clone()));
    asked.chain(down).filter(|(gate, _)| views.gates.get(gate).is_some()).collect()
}

/// The last runs that anybody could want to know about.
fn comparisons(
    views: &Views,
    policy: &Policy,
    remediator: &Remediator,
) -> Vec<(String, String, ControlGroupResult)> {
    places(views, policy, &[BlockReason::Comparing, BlockReason::SharedDependencyDown])
        .into_iter()
        .filter_map(|(gate, in_zone)| {
            let compared = compared_in(views, views.gates.get(&gate)?, &in_zone, &remediator.clock);
            Some((gate, in_zone, compared))
        })
        .collect()
}

/// Figures in messages are no reason to write.
fn is_news(next: &RemediationPolicyStatus, before: &RemediationPolicyStatus) -> bool {
    let words = |status: &RemediationPolicyStatus| -> Vec<(String, String, String)> {
        let word = |one: &Condition| (one.type_.clone(), one.status.clone(), one.reason.clone());
        status.conditions.iter().map(word).collect()
    };
    let bare = |status: &RemediationPolicyStatus| RemediationPolicyStatus {
        conditions: Vec::new(),
        ..status.clone()
    };
    bare(next) != bare(before) || words(next) != words(before)
}

//! Remediation's controller: reads what an act would be about, lets `core` decide, does one step.

mod act;
mod policy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Error};
use nodekeeper_core::api::{CauseSource, CauseVerdict, RemediationPolicySpec, RemediationPolicyStatus};
use nodekeeper_core::gate::{EventSpec, GateView};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::remediate::control::{ControlGroupResult, eligible_nodes};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::{NodeClaims, Replacement, find};
use nodekeeper_core::remediate::{
    Approval, BlockReason, Blocked, EvaluationInput, GroupStats, Policy, Remediation, Target, cluster_block,
    control_group_block, evaluate, evidence_ttl,
};
use nodekeeper_core::report::Verdict;
use nodekeeper_core::topology::zone;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::apply::{Trouble, Writer};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::providers::claims_for;
use crate::queue::Outcome;
use crate::views::Views;

const READ: Duration = Duration::from_secs(5);
/// For so long the count of all nodes is good enough.
const SURVEY: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
/// How often a request that is held is looked at though nothing changed: what holds it mostly says when it is over.
const HELD: Duration = Duration::from_mins(5);
/// What is not over yet is looked at again after this.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// What was read for one decision.
struct Around {
    target: Option<Target>,
    pods: Vec<PodView>,
    replacement: Replacement,
}

/// Looks after all requests, one at a time each.
pub struct Remediator {
    client: Client,
    clock: Clock,
    views: Arc<Mutex<Views>>,
    writer: Arc<Writer>,
    metrics: Arc<Metrics>,
    /// The policy that a configuration file stands for.
    file: Option<RemediationPolicySpec>,
    /// By request: how often evictions were refused in a row, and what the server said last.
    refused: Mutex<BTreeMap<String, (u32, String)>>,
    /// All nodes, counted, and when: many requests are looked at in the same moment.
    surveyed: Mutex<Option<(Duration, Arc<GroupStats>)>>,
}

impl Remediator {
    /// A controller for one term.
    pub fn new(
        client: Client,
        clock: Clock,
        views: Arc<Mutex<Views>>,
        writer: Arc<Writer>,
        metrics: Arc<Metrics>,
        file: Option<RemediationPolicySpec>,
    ) -> Self {
        Self {
            client,
            clock,
            views,
            writer,
            metrics,
            file,
            refused: Mutex::default(),
            surveyed: Mutex::default(),
        }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        locked(&self.views)
    }

    /// Looks at one request and does one step.
    pub async fn look_at(&self, name: &str) -> Outcome {
        let known = self.views().requests.get(name).cloned();
        let Some(request) = known else {
            locked(&self.refused).remove(name);
            return Outcome::Settled;
        };
        let policy = self.views().the_policy().cloned();
        let reserved = policy.as_ref().and_then(|policy| policy.reservation(&request)).cloned();
        if reserved.is_none() {
            if request.is_complete() {
                locked(&self.refused).remove(name);
                return Outcome::Settled;
            }
            if let Some(held) = self.held_unread(&request, policy.as_ref()) {
                return self.hold(&request, &held).await;
            }
        }
        let around = match self.read(&request, policy.as_ref()).await {
            Ok(around) => around,
            Err(trouble) => {
                warn!(node = request.spec.node.name, %trouble, "cannot be read");
                return Outcome::Failed;
            }
        };
        match reserved {
            Some(reservation) => self.act(&request, policy.as_ref(), &reservation, &around).await,
            None => self.evaluate(&request, policy.as_ref(), &around).await,
        }
    }

    /// What holds it, as far as that is known without asking the server: where many nodes fail, that is most of it.
    fn held_unread(&self, request: &Remediation, policy: Option<&Policy>) -> Option<Blocked> {
        let group_stats = self.group_stats(policy);
        let views = self.views();
        let requests: Vec<&Remediation> = views.requests.all().collect();
        if let Some(held) = cluster_block(policy, &requests, &group_stats, self.clock.now()) {
            return Some(held);
        }
        let compares = [BlockReason::Comparing.as_str(), BlockReason::SharedDependencyDown.as_str()];
        let is_waiting =
            request.condition("Approved").is_some_and(|now| compares.contains(&now.reason.as_str()));
        let (policy, node) = (policy.filter(|_| is_waiting)?, views.nodes.get(&request.spec.node.name)?);
        let gate = views.gates.get(request.gate_cause()?.0)?;
        let compared = ControlGroupResult {
            since_failure: self.since_failure(node),
            ..compared_in(&views, gate, zone(node), &self.clock)
        };
        // One that was let in, or that is another node, is found out by reading it.
        let same = *node.uid == *request.spec.node.uid && !node.terminating && node.failing_scope().is_some();
        control_group_block(policy, request, zone(node), &compared).filter(|_| same)
    }

    /// For how long the node has failed. What others showed meanwhile counts, though it fails again and again.
    fn since_failure(&self, node: &NodeView) -> Duration {
        self.clock.elapsed().saturating_sub(node.failing_since)
    }

    /// Counts all nodes.
    fn group_stats(&self, policy: Option<&Policy>) -> Arc<GroupStats> {
        let elapsed = self.clock.elapsed();
        let mut last = locked(&self.surveyed);
        if let Some((_, group_stats)) = last.as_ref().filter(|(at, _)| elapsed < *at + SURVEY) {
            return group_stats.clone();
        }
        let default = RemediationPolicySpec::default();
        let spec = policy.map_or(&default, |policy| &policy.spec);
        let window = SignedDuration::from_secs(spec.breaker.window_seconds.into());
        let views = self.views();
        let gates: Vec<&GateView> = views.gates.all().collect();
        let group_stats = Arc::new(GroupStats::new(views.nodes.all(), &gates, self.clock.now() - window));
        *last = Some((elapsed, group_stats.clone()));
        group_stats
    }

    /// Reads the node, its pods and who would replace it from the server, past every cache.
    async fn read(&self, request: &Remediation, policy: Option<&Policy>) -> Result<Around, Trouble> {
        let name = &request.spec.node.name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = answered(timeout(READ, nodes.get_opt(name)).await)?;
        let gone = Around { target: None, pods: Vec::new(), replacement: Replacement::None };
        let Some(node) = node else { return Ok(gone) };
        let target = Target::new(&node);
        if target.identity.uid != request.spec.node.uid {
            return Ok(gone);
        }
        let pods: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods = answered(timeout(READ, pods.list(&params)).await)?;
        let claims = claims_for(&self.client, &target).await;
        if let NodeClaims::Unreadable(why) = &claims {
            warn!(node = name, why, "nothing is deleted");
        }
        let deletes = policy.is_some_and(|policy| policy.deletes_node_object_for(request));
        let replacement = find(&target, &claims, deletes);
        Ok(Around { target: Some(target), pods: pods.items.iter().map(PodView::new).collect(), replacement })
    }

    async fn evaluate(&self, request: &Remediation, policy: Option<&Policy>, around: &Around) -> Outcome {
        let group_stats = self.group_stats(policy);
        let approval = {
            let views = self.views();
            let requests: Vec<&Remediation> = views.requests.all().collect();
            let compared = self.compared(&views, request, around.target.as_ref());
            evaluate(&EvaluationInput {
                request,
                policy,
                target: around.target.as_ref(),
                pods: &around.pods,
                replacement: &around.replacement,
                group_stats: &group_stats,
                requests: &requests,
                compared: &compared,
                ran_elsewhere: ran_elsewhere(&views, request, policy, &self.clock),
                now: self.clock.now(),
            })
        };
        match (approval, policy) {
            (Approval::Blocked(held), _) => self.hold(request, &held).await,
            (Approval::Approved(status), Some(policy)) => self.approve(request, policy, &status).await,
            (Approval::Approved(_), None) => Outcome::Failed,
        }
    }

    /// How nodes that work fare with the checks of the gate that asks.
    fn compared(&self, views: &Views, request: &Remediation, target: Option<&Target>) -> ControlGroupResult {
        let gate = request.gate_cause().and_then(|(gate, _)| views.gates.get(gate));
        let (Some(gate), Some(target)) = (gate, target) else { return ControlGroupResult::default() };
        let node = views.nodes.get(&target.identity.name).filter(|node| *node.uid == *target.identity.uid);
        let since_failure = node.map_or(Duration::ZERO, |node| self.since_failure(node));
        ControlGroupResult { since_failure, ..compared_in(views, gate, &target.zone, &self.clock) }
    }

    /// Reserves the act. Only whoever wrote that goes on.
    async fn approve(
        &self,
        request: &Remediation,
        policy: &Policy,
        status: &RemediationPolicyStatus,
    ) -> Outcome {
        let node = &request.spec.node;
        match self.writer.report_policy(policy, status).await {
            Ok(()) => {
                info!(node = node.name, "Remediation approved");
                let note = format!("its replacement was approved: {}", why(request));
                self.tell(request, &EventSpec::new(false, "RemediationApproved", "Approve", note)).await;
                Outcome::Again(SOON)
            }
            Err(Trouble::Conflict(why) | Trouble::Gone(why)) => {
                debug!(node = node.name, why, "the policy changed meanwhile");
                Outcome::Again(SOON)
            }
            Err(trouble) => {
                warn!(node = node.name, %trouble, "not approved");
                Outcome::Failed
            }
        }
    }

    /// Says why nothing is done.
    async fn hold(&self, request: &Remediation, held: &Blocked) -> Outcome {
        let before = request.condition("Approved").map(|condition| condition.reason.clone());
        let is_news = before.as_deref() != Some(held.reason.as_str());
        if is_news {
            let node = &request.spec.node.name;
            info!(node, reason = held.reason.as_str(), why = held.message, "Remediation held");
            let gate = request.gate_cause().map_or("", |(gate, _)| gate);
            self.metrics.remediation_blocked(gate, held.reason.as_str());
        }
        // Figures in a message are no reason to write it anew.
        let reopened = request.finished_at().is_some() != held.reason.is_end();
        let ends_again = held.reason.is_end() && !request.is_complete();
        if is_news || reopened || ends_again {
            let status = request.status_with(held.findings(), self.clock.now());
            if let Err(trouble) = self.writer.report_request(request, &status).await {
                return Self::unwritten(request, &trouble);
            }
        }
        if is_news && !held.reason.is_end() && held.reason != BlockReason::Comparing {
            let note = format!("it is not replaced: {}", held.message);
            self.tell(request, &EventSpec::new(true, "RemediationBlocked", held.reason.as_str(), note)).await;
        }
        if held.reason.is_end() {
            return Outcome::Settled;
        }
        Outcome::Again(held.requeue_after.unwrap_or(HELD).clamp(SOON, HELD))
    }

    fn unwritten(request: &Remediation, trouble: &Trouble) -> Outcome {
        match trouble {
            // The watch says what it is now.
            Trouble::Conflict(_) | Trouble::Gone(_) => Outcome::Again(FIRST_PAUSE),
            _ => {
                warn!(node = request.spec.node.name, %trouble, "not written");
                Outcome::Failed
            }
        }
    }

    /// What an Event says stands in a condition too: it is not worth a second try.
    async fn tell(&self, request: &Remediation, event: &EventSpec) {
        if let Err(trouble) = self.writer.tell_of(&request.spec.node, event).await {
            warn!(node = request.spec.node.name, reason = event.reason, %trouble, "no Event");
        }
    }
}

fn why(request: &Remediation) -> String {
    request.spec.causes.first().map(|cause| cause.message.clone()).unwrap_or_default()
}

/// How nodes that work fare with the checks of a gate in a zone.
fn compared_in(views: &Views, gate: &GateView, in_zone: &str, clock: &Clock) -> ControlGroupResult {
    let number = minute(clock);
    let there = eligible_nodes(views.nodes.all(), gate, in_zone, number).len();
    let is_in = |node: &str| views.nodes.get(node).is_some_and(|node| zone(node) == in_zone);
    let controls = views.controls.all().filter(|control| !control.deleting);
    ControlGroupResult::new(gate, controls, is_in, there, clock.elapsed(), number)
}

/// Runs on nodes that work are told apart by the minute in which they began.
fn minute(clock: &Clock) -> u32 {
    u32::try_from(clock.now().as_second() / 60).unwrap_or_default()
}

/// Whether a worker of the gate that asks told something about another node while evidence is fresh.
fn ran_elsewhere(views: &Views, request: &Remediation, policy: Option<&Policy>, clock: &Clock) -> bool {
    let is_stuck = |cause: &&nodekeeper_core::api::RemediationCause| {
        cause.source == CauseSource::Gate && cause.verdict == CauseVerdict::Stuck
    };
    let Some(cause) = request.spec.causes.iter().find(is_stuck) else { return false };
    let Some(gate) = views.gates.get(&cause.name) else { return false };
    told_elsewhere(views, gate, &request.spec.node.uid, clock, evidence_ttl(policy))
}

/// Whether a worker of this gate told something about another node within so long.
pub fn told_elsewhere(
    views: &Views,
    gate: &GateView,
    uid: &str,
    clock: &Clock,
    within: SignedDuration,
) -> bool {
    let now = clock.now();
    views.nodes.all().filter(|node| *node.uid != *uid).any(|node| {
        Record::read(node.record.as_deref(), &node.uid).is_some_and(|record| {
            record.round.gate_uid == gate.uid
                && record.round.gate_generation == gate.generation
                && matches!(record.verdict, Some(Verdict::Passed | Verdict::Failed))
                && record.at.is_some_and(|at| now.duration_since(at) < within)
        })
    })
}

fn answered<T>(answer: Result<Result<T, Error>, tokio::time::error::Elapsed>) -> Result<T, Trouble> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Trouble::Doubtful(error.to_string())),
        Err(_) => Err(Trouble::Doubtful("timeout".into())),
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Remediation's controller: reads what an act would be about, lets `core` decide, does one step.

mod policy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Error};
use nodekeeper_core::api::{
    CauseSource, CauseVerdict, NodeRemediationStatus, RemediationPolicySpec, RemediationPolicyStatus,
    Reservation,
};
use nodekeeper_core::condition::Finding;
use nodekeeper_core::gate::{GateView, Notice};
use nodekeeper_core::record::Record;
use nodekeeper_core::remediate::act::{Acting, Next, Step, next};
use nodekeeper_core::remediate::control::{Compared, candidates};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::{Claims, Machine, find};
use nodekeeper_core::remediate::{
    Consideration, Held, Hold, Policy, Request, Seen, Survey, Target, consider, standstill, zone,
};
use nodekeeper_core::report::Verdict;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::apply::{Evicted, Trouble, Writer};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::providers::claims_for;
use crate::queue::Outcome;
use crate::views::Views;

const READ: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(100);
/// How often a request that is held is looked at though nothing changed.
const HELD: Duration = Duration::from_mins(1);
/// The same of one that would be held anyway.
const DRY: Duration = Duration::from_mins(5);
/// Evictions that were refused are asked for again after this, then after twice as long, and so on.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What was read for one decision.
struct Around {
    target: Option<Target>,
    pods: Vec<PodView>,
    machine: Machine,
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
        Self { client, clock, views, writer, metrics, file, refused: Mutex::default() }
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
            if request.is_history() {
                locked(&self.refused).remove(name);
                return Outcome::Settled;
            }
            if let Some(held) = self.standstill(policy.as_ref()) {
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
            None => self.consider(&request, policy.as_ref(), &around).await,
        }
    }

    fn standstill(&self, policy: Option<&Policy>) -> Option<Held> {
        let survey = self.survey(policy);
        let views = self.views();
        let requests: Vec<&Request> = views.requests.all().collect();
        standstill(policy, &requests, &survey, self.clock.now())
    }

    /// Counts all nodes.
    fn survey(&self, policy: Option<&Policy>) -> Survey {
        let default = RemediationPolicySpec::default();
        let spec = policy.map_or(&default, |policy| &policy.spec);
        let window = SignedDuration::from_secs(spec.breaker.window_seconds.into());
        let views = self.views();
        let gates: Vec<&GateView> = views.gates.all().collect();
        Survey::new(views.nodes.all(), &gates, self.clock.now() - window)
    }

    /// Reads the node, its pods and who would replace it from the server, past every cache.
    async fn read(&self, request: &Request, policy: Option<&Policy>) -> Result<Around, Trouble> {
        let name = &request.spec.node.name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = answered(timeout(READ, nodes.get_opt(name)).await)?;
        let gone = Around { target: None, pods: Vec::new(), machine: Machine::Nobody };
        let Some(node) = node else { return Ok(gone) };
        let target = Target::new(&node);
        if target.identity.uid != request.spec.node.uid {
            return Ok(gone);
        }
        let pods: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods = answered(timeout(READ, pods.list(&params)).await)?;
        let claims = claims_for(&self.client, &target).await;
        if let Claims::Unreadable(why) = &claims {
            warn!(node = name, why, "nothing is deleted");
        }
        let machine = find(&target, &claims, deletes_node_objects(request, policy));
        Ok(Around { target: Some(target), pods: pods.items.iter().map(PodView::new).collect(), machine })
    }

    async fn consider(&self, request: &Request, policy: Option<&Policy>, around: &Around) -> Outcome {
        let survey = self.survey(policy);
        let consideration = {
            let views = self.views();
            let requests: Vec<&Request> = views.requests.all().collect();
            let compared = compared(&views, request, around.target.as_ref(), &self.clock);
            consider(&Seen {
                request,
                policy,
                target: around.target.as_ref(),
                pods: &around.pods,
                machine: &around.machine,
                survey: &survey,
                requests: &requests,
                compared: &compared,
                ran_elsewhere: ran_elsewhere(&views, request, policy, &self.clock),
                now: self.clock.now(),
            })
        };
        match (consideration, policy) {
            (Consideration::Hold(held) | Consideration::Compare(held), _) => self.hold(request, &held).await,
            (Consideration::Approve(status), Some(policy)) => self.approve(request, policy, &status).await,
            (Consideration::Approve(_), None) => Outcome::Failed,
        }
    }

    /// Reserves the act. Only whoever wrote that goes on.
    async fn approve(&self, request: &Request, policy: &Policy, status: &RemediationPolicyStatus) -> Outcome {
        let node = &request.spec.node;
        match self.writer.report_policy(policy, status).await {
            Ok(()) => {
                info!(node = node.name, "Remediation approved");
                let note = format!("its replacement was approved: {}", why(request));
                self.tell(request, &Notice::new(false, "RemediationApproved", "Approve", note)).await;
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
    async fn hold(&self, request: &Request, held: &Held) -> Outcome {
        let before = request.condition("Approved").map(|condition| condition.reason.clone());
        let is_news = before.as_deref() != Some(held.hold.as_str());
        if is_news {
            let node = &request.spec.node.name;
            info!(node, reason = held.hold.as_str(), why = held.message, "Remediation held");
            let gate = request.blamed_by().map_or("", |(gate, _)| gate);
            self.metrics.remediation_blocked(gate, held.hold.as_str());
        }
        // Figures in a message are no reason to write it anew.
        let reopened = request.finished().is_some() != held.hold.is_end();
        if is_news || reopened {
            let status = request.status_with(held.findings(), self.clock.now());
            if let Err(trouble) = self.writer.report_request(request, &status).await {
                return Self::unwritten(request, &trouble);
            }
        }
        if is_news && !held.hold.is_end() && held.hold != Hold::Comparing {
            let note = format!("it is not replaced: {}", held.message);
            self.tell(request, &Notice::new(true, "RemediationBlocked", held.hold.as_str(), note)).await;
        }
        if held.hold.is_end() {
            return Outcome::Settled;
        }
        let usual = if held.hold == Hold::DryRun { DRY } else { HELD };
        Outcome::Again(held.again_in.unwrap_or(usual).clamp(SOON, DRY))
    }

    fn unwritten(request: &Request, trouble: &Trouble) -> Outcome {
        match trouble {
            // The watch says what it is now.
            Trouble::Conflict(_) | Trouble::Gone(_) => Outcome::Again(FIRST_PAUSE),
            _ => {
                warn!(node = request.spec.node.name, %trouble, "not written");
                Outcome::Failed
            }
        }
    }

    /// Does the next step of what was approved.
    async fn act(
        &self,
        request: &Request,
        policy: Option<&Policy>,
        reservation: &Reservation,
        around: &Around,
    ) -> Outcome {
        let blocked = locked(&self.refused).get(&request.name).map(|(_, why)| why.clone());
        let next = next(&Acting {
            request,
            policy,
            reservation,
            target: around.target.as_ref(),
            pods: &around.pods,
            machine: &around.machine,
            blocked: blocked.as_deref().filter(|why| !why.is_empty()),
            now: self.clock.now(),
        });
        let pause = match self.step(request, around, &next.step).await {
            Ok(pause) => pause,
            Err(Trouble::Conflict(why) | Trouble::Gone(why)) => {
                debug!(node = request.spec.node.name, why, "changed meanwhile");
                return Outcome::Again(SOON);
            }
            Err(trouble) => {
                warn!(node = request.spec.node.name, step = ?next.step, %trouble, "not done");
                return Outcome::Failed;
            }
        };
        self.record(request, around, next, pause).await
    }

    /// Returns how long to wait, where the server asks for patience.
    async fn step(
        &self,
        request: &Request,
        around: &Around,
        step: &Step,
    ) -> Result<Option<Duration>, Trouble> {
        let Some(target) = &around.target else { return Ok(None) };
        let node = &target.identity.name;
        match step {
            Step::Wait => Ok(None),
            Step::Cordon => self.writer.cordon(target, request).await.map(|()| Some(SOON)),
            Step::Uncordon => self.writer.uncordon(target).await.map(|()| None),
            Step::Evict(pods) => self.evict(request, pods).await.map(Some),
            Step::DeleteClaim(claim) => {
                let note = format!("its NodeClaim {} is deleted: {}", claim.name, why(request));
                self.tell(request, &Notice::new(true, "NodeReplacementRequested", "DeleteNodeClaim", note))
                    .await;
                self.writer.delete_claim(claim, node).await.map(|()| None)
            }
            Step::DeleteNode => {
                let note = format!("its Node object is deleted: {}", why(request));
                self.tell(request, &Notice::new(true, "NodeReplacementRequested", "DeleteNode", note)).await;
                self.writer.delete_node(target).await.map(|()| None)
            }
        }
    }

    async fn evict(&self, request: &Request, pods: &[PodView]) -> Result<Duration, Trouble> {
        let mut blocked = None;
        for pod in pods {
            match self.writer.evict(pod).await? {
                Evicted::Going => debug!(pod = pod.name, namespace = pod.namespace, "evicted"),
                Evicted::Blocked(why) => blocked = Some(why),
            }
        }
        let mut refused = locked(&self.refused);
        let Some(why) = blocked else {
            refused.remove(&request.name);
            return Ok(FIRST_PAUSE);
        };
        let times = refused.get(&request.name).map_or(0, |(times, _)| *times);
        info!(node = request.spec.node.name, why, "Eviction refused");
        refused.insert(request.name.clone(), (times.saturating_add(1), why));
        Ok((FIRST_PAUSE * 2_u32.saturating_pow(times.min(8))).min(LONGEST_PAUSE))
    }

    /// Writes how far it is, and says so when it ends.
    async fn record(
        &self,
        request: &Request,
        around: &Around,
        next: Next,
        pause: Option<Duration>,
    ) -> Outcome {
        let is_end = next.is_end();
        let succeeded = next.findings.iter().any(|one| one.type_ == "Succeeded" && one.status == "True");
        let ending = next.findings.iter().find(|one| one.type_ == "Succeeded").map(|one| one.message.clone());
        let status = self.status(request, around, next.findings);
        if status != request.status
            && let Err(trouble) = self.writer.report_request(request, &status).await
        {
            return Self::unwritten(request, &trouble);
        }
        if !is_end {
            return Outcome::Again(pause.or(next.again_in).unwrap_or(FIRST_PAUSE));
        }
        locked(&self.refused).remove(&request.name);
        let result = if succeeded { "succeeded" } else { "given_up" };
        let provider = if status.provider.is_empty() { "none" } else { &status.provider };
        self.metrics.remediated(provider, "replace", result);
        let why = ending.unwrap_or_default();
        info!(node = request.spec.node.name, result, why, "Remediation ended");
        if !succeeded {
            let note = format!("its replacement was given up: {why}");
            self.tell(request, &Notice::new(true, "RemediationGivenUp", "GiveUp", note)).await;
        }
        Outcome::Again(SOON)
    }

    fn status(&self, request: &Request, around: &Around, findings: Vec<Finding>) -> NodeRemediationStatus {
        let mut status = request.status_with(findings, self.clock.now());
        if around.target.is_some() {
            around.machine.provider().clone_into(&mut status.provider);
            if let Machine::Claim(claim) = &around.machine {
                status.machine.clone_from(&claim.name);
            }
        }
        status
    }

    /// What an Event says stands in a condition too: it is not worth a second try.
    async fn tell(&self, request: &Request, notice: &Notice) {
        if let Err(trouble) = self.writer.tell_of(&request.spec.node, notice).await {
            warn!(node = request.spec.node.name, reason = notice.reason, %trouble, "no Event");
        }
    }
}

fn why(request: &Request) -> String {
    request.spec.causes.first().map(|cause| cause.message.clone()).unwrap_or_default()
}

fn deletes_node_objects(request: &Request, policy: Option<&Policy>) -> bool {
    let named = |name: &str| {
        policy.is_some_and(|policy| {
            policy.spec.delete_node_object_for.iter().any(|one| one == name || one == "*")
        })
    };
    request.spec.causes.iter().any(|cause| named(&cause.name))
}

/// How nodes that work fare with the checks of the gate that asks.
fn compared(views: &Views, request: &Request, target: Option<&Target>, clock: &Clock) -> Compared {
    let gate = request.blamed_by().and_then(|(gate, _)| views.gates.get(gate));
    let (Some(gate), Some(target)) = (gate, target) else { return Compared::default() };
    compared_in(views, gate, &target.zone, clock)
}

/// The same of a gate in a zone.
fn compared_in(views: &Views, gate: &GateView, in_zone: &str, clock: &Clock) -> Compared {
    let number = minute(clock);
    let there = candidates(views.nodes.all(), gate, in_zone, number).len();
    let is_in = |node: &str| views.nodes.get(node).is_some_and(|node| zone(node) == in_zone);
    let controls = views.controls.all().filter(|control| !control.deleting);
    Compared::new(gate, controls, is_in, there, clock.elapsed(), number)
}

/// Runs on nodes that work are told apart by the minute in which they began.
fn minute(clock: &Clock) -> u32 {
    u32::try_from(clock.now().as_second() / 60).unwrap_or_default()
}

/// Whether a worker of the gate that asks told something about another node while evidence is fresh.
fn ran_elsewhere(views: &Views, request: &Request, policy: Option<&Policy>, clock: &Clock) -> bool {
    let is_stuck = |cause: &&nodekeeper_core::api::RemediationCause| {
        cause.source == CauseSource::Gate && cause.verdict == CauseVerdict::Stuck
    };
    let Some(cause) = request.spec.causes.iter().find(is_stuck) else { return false };
    let Some(gate) = views.gates.get(&cause.name) else { return false };
    let seconds = policy.map_or(600, |policy| policy.spec.evidence_seconds);
    told_elsewhere(views, gate, &request.spec.node.uid, clock, SignedDuration::from_secs(seconds.into()))
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

//! What was approved is done, one step at a time.

use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::api::{NodeRemediationStatus, Reservation};
use nodekeeper_core::condition::Finding;
use nodekeeper_core::gate::EventSpec;
use nodekeeper_core::remediate::act::{ActInput, NextStep, Step, next};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::Replacement;
use nodekeeper_core::remediate::{Policy, Remediation};
use tracing::{debug, info, warn};

use super::{Around, FIRST_PAUSE, Remediator, SOON, locked, why};
use crate::apply::{Evicted, Trouble};
use crate::queue::Outcome;

/// Evictions that were refused are asked for again after [`FIRST_PAUSE`], then after twice as long, up to this.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

impl Remediator {
    /// Does the next step of what was approved.
    pub(super) async fn act(
        &self,
        request: &Remediation,
        policy: Option<&Policy>,
        reservation: &Reservation,
        around: &Around,
    ) -> Outcome {
        let blocked = locked(&self.refused).get(&request.name).map(|(_, why)| why.clone());
        let next = next(&ActInput {
            request,
            policy,
            reservation,
            target: around.target.as_ref(),
            pods: &around.pods,
            replacement: &around.replacement,
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
        self.record(request, reservation, around, next, pause).await
    }

    /// Returns how long to wait, where the server asks for patience.
    async fn step(
        &self,
        request: &Remediation,
        around: &Around,
        step: &Step,
    ) -> Result<Option<Duration>, Trouble> {
        let Some(target) = &around.target else { return Ok(None) };
        let node = &target.identity.name;
        match step {
            Step::Wait => Ok(None),
            Step::Cordon => self.writer.shut(target, request).await.map(|()| Some(SOON)),
            Step::Uncordon => self.writer.reopen(target).await.map(|()| None),
            Step::Evict(pods) => self.send_off(request, pods).await.map(Some),
            Step::Replace(replacement) => {
                let note = format!("{}: {}", replacement.message(), why(request));
                let event = EventSpec::new(true, "NodeReplacementRequested", replacement.action(), note);
                self.tell(request, &event).await;
                match replacement {
                    Replacement::Karpenter(claim) => {
                        self.writer.delete_claim(claim, node).await.map(|()| None)
                    }
                    Replacement::NodeObject => self.writer.delete_node(target).await.map(|()| None),
                    Replacement::None | Replacement::NodeClaimMissing | Replacement::Unknown(_) => Ok(None),
                }
            }
        }
    }

    async fn send_off(&self, request: &Remediation, pods: &[PodView]) -> Result<Duration, Trouble> {
        let mut blocked = None;
        for pod in pods {
            match self.writer.send_off(pod).await? {
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
        request: &Remediation,
        reservation: &Reservation,
        around: &Around,
        next: NextStep,
        pause: Option<Duration>,
    ) -> Outcome {
        let is_end = next.is_end();
        let succeeded = next.findings.iter().any(|one| one.type_ == "Succeeded" && one.status == "True");
        let ending = next.findings.iter().find(|one| one.type_ == "Succeeded").map(|one| one.message.clone());
        // Who reserved it may have had a clock ahead of ours.
        let status = Self::status(request, around, next.findings, self.clock.now().max(reservation.at));
        let is_news = status != request.status;
        if is_news && let Err(trouble) = self.writer.report_request(request, &status).await {
            return Self::unwritten(request, &trouble);
        }
        if !is_end {
            return Outcome::Again(pause.or(next.requeue_after).unwrap_or(FIRST_PAUSE));
        }
        if !is_news {
            // It was told. Whoever counts has not heard of it yet.
            return Outcome::Again(FIRST_PAUSE);
        }
        locked(&self.refused).remove(&request.name);
        let result = if succeeded { "succeeded" } else { "given_up" };
        let provider = if status.provider.is_empty() { "none" } else { &status.provider };
        self.metrics.remediated(provider, "replace", result);
        let why = ending.unwrap_or_default();
        info!(node = request.spec.node.name, result, why, "Remediation ended");
        if !succeeded {
            let note = format!("its replacement was given up: {why}");
            self.tell(request, &EventSpec::new(true, "RemediationGivenUp", "GiveUp", note)).await;
        }
        Outcome::Again(FIRST_PAUSE)
    }

    fn status(
        request: &Remediation,
        around: &Around,
        findings: Vec<Finding>,
        now: Timestamp,
    ) -> NodeRemediationStatus {
        let mut status = request.status_with(findings, now);
        if around.target.is_some() {
            around.replacement.provider().clone_into(&mut status.provider);
            if !around.replacement.machine().is_empty() {
                around.replacement.machine().clone_into(&mut status.machine);
            }
        }
        status
    }
}

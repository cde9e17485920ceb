//! The control group: verified nodes on which the checks of a gate run, to tell a broken node from a shared outage.

use std::time::Duration;

use super::{BlockReason, Blocked, format_time};
use crate::api::{CauseSource, CauseVerdict, FailedCheck, RemediationCause, SharedOutage};
use crate::checks::WorkerIdentity;
use crate::gate::GateView;
use crate::id::Id;
use crate::jitter::stable_hash;
use crate::node::NodeView;
use crate::outage::{matches_outage, to_failed_check};
use crate::report::{CheckResult, Outcome, Report, Verdict};
use crate::topology::zone;
use crate::worker::{Progress, WorkerView};

/// Within this time all remediations of a gate and zone share one run.
pub const RUN_INTERVAL: Duration = Duration::from_mins(1);
/// How many control workers run at the same time. They do not count against the gate's own limit of workers.
pub const MAX_RUNNING_CONTROLS: usize = 5;
/// A run that started before this time no longer approves a remediation.
const RUN_VALID_FOR: Duration = Duration::from_mins(2);
/// The pods of a run that started before this time are deleted.
pub const RUN_EXPIRES_AFTER: Duration = Duration::from_mins(4);

/// What is known about the control group of a gate in a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlGroupResult {
    /// How many nodes are eligible as controls.
    pub eligible: usize,
    /// The last run, unless it has expired.
    pub run: Option<ControlRun>,
    /// How long the node has been failing. A run that started before says nothing about it, because the shared dependency
    /// may have failed in between.
    pub since_failure: Duration,
}

/// One run of the checks on the control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRun {
    pub age: Duration,
    /// The progress of each control worker, with the name of its node.
    pub controls: Vec<(String, Progress)>,
}

impl ControlRun {
    fn has_ended(&self) -> bool {
        self.controls.iter().all(|(_, progress)| progress.has_ended())
    }

    fn reports(&self) -> impl Iterator<Item = (&str, &Report)> {
        self.controls.iter().filter_map(|(node, progress)| match progress {
            Progress::Reported(report) => Some((node.as_str(), report)),
            _ => None,
        })
    }
}

/// Whether the checks of a cause run on the control group. A stuck node and a person's request name none.
pub(super) fn is_compared(cause: &RemediationCause) -> bool {
    cause.source == CauseSource::Gate && !cause.checks.is_empty()
}

/// The result of a comparison of a node with the control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Enough controls pass the checks that the node fails.
    ControlsPassed,
    /// A run has to start.
    Due,
    Running,
    /// A control fails the same check; which one, where and why.
    ControlsFailed(String),
    /// Only this many nodes could be compared with.
    TooFewControls(usize),
}

impl ControlGroupResult {
    /// The last run of a gate's control workers in a zone, selected from all control workers. `elapsed` is on the clock of
    /// [`WorkerView::first_seen`]. `minute` is on the clock of the workers' numbers: after a change of leader all workers
    /// are first seen at the same time, and only their numbers tell how old they are.
    #[must_use]
    pub fn new<'a>(
        gate: &GateView,
        controls: impl IntoIterator<Item = &'a WorkerView>,
        in_zone: impl Fn(&str) -> bool,
        eligible: usize,
        elapsed: Duration,
        minute: u32,
    ) -> Self {
        let is_of_gate = |control: &&WorkerView| {
            let WorkerIdentity { gate_uid, gate_generation, .. } = &control.identity;
            *gate_uid == gate.uid && *gate_generation == gate.generation && in_zone(&control.node_name)
        };
        let controls: Vec<&WorkerView> = controls.into_iter().filter(is_of_gate).collect();
        let newest = controls.iter().map(|control| control.identity.number).max();
        let run: Vec<&&WorkerView> =
            controls.iter().filter(|control| Some(control.identity.number) == newest).collect();
        let started = run.iter().map(|control| control.first_seen).min();
        // The run may have started at the very end of its minute.
        let min_age = minute.saturating_sub(newest.unwrap_or_default()).saturating_sub(1);
        let run = started.map(|started| ControlRun {
            age: elapsed.saturating_sub(started).max(Duration::from_mins(min_age.into())),
            controls: run.iter().map(|one| (one.node_name.clone(), one.progress.clone())).collect(),
        });
        let run = run.filter(|run| run.age < RUN_EXPIRES_AFTER);
        Self { eligible, run, since_failure: Duration::ZERO }
    }

    /// Compares a node that fails these checks with the control group.
    #[must_use]
    pub fn compare(&self, size: usize, checks: &[FailedCheck]) -> Comparison {
        if size == 0 {
            return Comparison::ControlsPassed;
        }
        let Some(run) = &self.run else { return self.next_run(size) };
        let failure = run.reports().find_map(|(node, report)| Some((node, first_failure(report, checks)?)));
        if let Some((node, result)) = failure {
            let reason = if result.reason.is_empty() { "failed" } else { &result.reason };
            let message = format!("{} {} on {node}: {reason}", result.name, result.target);
            return Comparison::ControlsFailed(message);
        }
        let passed = run.reports().filter(|(_, report)| passes(report, checks)).count();
        let is_after_failure = run.age <= self.since_failure;
        if passed >= size && is_after_failure && run.age < RUN_VALID_FOR {
            return Comparison::ControlsPassed;
        }
        if !run.has_ended() || (!is_after_failure && run.age < RUN_INTERVAL) {
            return Comparison::Running;
        }
        if run.age < RUN_INTERVAL { Comparison::TooFewControls(passed) } else { self.next_run(size) }
    }

    /// Whether a run may start: at most one in [`RUN_INTERVAL`], and never two at the same time.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.run.as_ref().is_none_or(|run| run.age >= RUN_INTERVAL && run.has_ended())
    }

    fn next_run(&self, size: usize) -> Comparison {
        if self.eligible < size { Comparison::TooFewControls(self.eligible) } else { Comparison::Due }
    }
}

fn is_result_of(result: &CheckResult, check: &FailedCheck) -> bool {
    let result = to_failed_check(result);
    result.name == check.name && (result.target == check.target || check.target.is_empty())
}

fn first_failure<'a>(report: &'a Report, checks: &[FailedCheck]) -> Option<&'a CheckResult> {
    let failed = |result: &&CheckResult| {
        result.outcome == Outcome::Failed && checks.iter().any(|check| is_result_of(result, check))
    };
    report.checks.iter().find(failed)
}

fn passes(report: &Report, checks: &[FailedCheck]) -> bool {
    checks.iter().all(|check| {
        let mut results = report.checks.iter().filter(|result| is_result_of(result, check)).peekable();
        // A passed report may omit results to fit its size limit. A skipped check has not passed.
        (results.peek().is_some() || report.verdict == Verdict::Passed)
            && results.all(|result| result.outcome == Outcome::Passed)
    })
}

fn skips(report: &Report, check: &FailedCheck) -> bool {
    let mut results = report.checks.iter().filter(|result| is_result_of(result, check)).peekable();
    results.peek().is_some() && results.all(|result| result.outcome == Outcome::Skipped)
}

/// The nodes that may serve as controls: verified by the gate, in the zone, schedulable and ready. Their order depends on
/// `number`, so that each run uses other nodes.
#[must_use]
pub fn eligible_nodes<'a>(
    nodes: impl IntoIterator<Item = &'a NodeView>,
    gate: &GateView,
    in_zone: &str,
    number: u32,
) -> Vec<&'a NodeView> {
    let gate_uid = Id::from(&gate.uid);
    let is_verified = |node: &NodeView| {
        let section = node.record.as_ref().and_then(|record| record.section(&gate_uid));
        section
            .is_some_and(|section| section.is_open() && !section.audited && !section.is_admitted_by_audit())
    };
    let is_eligible = |node: &&NodeView| {
        zone(node) == in_zone
            && node.ready
            && !node.unschedulable
            && !node.terminating
            && node.positions(&gate.spec.taints).is_empty()
            && is_verified(node)
    };
    let mut eligible: Vec<&NodeView> = nodes.into_iter().filter(is_eligible).collect();
    eligible.sort_by_cached_key(|node| stable_hash(&node.uid.to_string(), number));
    eligible
}

/// The control workers to delete: those that have expired, and those that have ended and were followed by a newer run of
/// the same gate and zone.
#[must_use]
pub fn expired_controls<'a>(
    controls: &[&'a WorkerView],
    zone_of: impl Fn(&str) -> Option<String>,
    elapsed: Duration,
) -> Vec<&'a WorkerView> {
    let scope = |control: &WorkerView| (control.identity.gate_uid.clone(), zone_of(&control.node_name));
    let is_followed = |control: &WorkerView| {
        let is_newer = |other: &WorkerView| other.identity.number > control.identity.number;
        controls.iter().any(|other| is_newer(other) && scope(other) == scope(control))
    };
    let is_old = |control: &WorkerView| elapsed.saturating_sub(control.first_seen) >= RUN_EXPIRES_AFTER;
    let is_expired = |control: &&WorkerView| {
        !control.deleting && (is_old(control) || (control.has_ended() && is_followed(control)))
    };
    controls.iter().copied().filter(is_expired).collect()
}

/// Whether one of the causes belongs to a known outage of the zone. Causes of recyclers and of stuck nodes name no check,
/// so they may belong to any outage.
pub(super) fn known_outage(
    outages: &[SharedOutage],
    causes: &[&RemediationCause],
    zone: &str,
) -> Result<(), Blocked> {
    let is_shared = |outage: &&SharedOutage| {
        let is_from = |cause: &&RemediationCause| {
            cause.source == CauseSource::Recycler
                || cause.verdict == CauseVerdict::Stuck
                || cause.checks.iter().any(|check| matches_outage(outage, &check.name, &check.target))
        };
        outage.zone == zone && causes.iter().any(is_from)
    };
    let Some(outage) = outages.iter().find(is_shared) else { return Ok(()) };
    let message = format!(
        "verified nodes fail {} {} since {}: fix this shared dependency, replacing the node would not help",
        outage.check,
        outage.target,
        format_time(outage.since)
    );
    let blocked = Blocked::new(BlockReason::SharedDependencyDown, message);
    Err(Blocked { requeue_after: Some(RUN_INTERVAL), ..blocked })
}

/// The checks that fail on any control of the run.
#[must_use]
pub fn failing_checks(run: &ControlRun) -> Vec<FailedCheck> {
    let mut failing: Vec<FailedCheck> = run
        .reports()
        .flat_map(|(_, report)| &report.checks)
        .filter(|result| result.outcome == Outcome::Failed)
        .map(to_failed_check)
        .collect();
    failing.sort();
    failing.dedup_by(|a, b| a.name == b.name && a.target == b.target);
    failing
}

/// Whether the outage has ended: at least one control passes the check, and `size` controls pass or skip it. A control
/// skips a check for which it has nothing to test.
#[must_use]
pub fn has_recovered(run: &ControlRun, size: usize, outage: &SharedOutage) -> bool {
    let (name, target) = (outage.check.clone(), outage.target.clone());
    let check = FailedCheck { name, target, reason: String::new() };
    let passed = run.reports().filter(|(_, report)| passes(report, std::slice::from_ref(&check))).count();
    let skipped = run.reports().filter(|(_, report)| skips(report, &check)).count();
    passed > 0 && passed + skipped >= size.max(1)
}

//! The control group: before a node is blamed, nodes that work are looked at with the same checks.

use std::time::Duration;

use super::{BlockReason, Blocked, format_time};
use crate::api::{CauseSource, FailedCheck, RemediationCause, SharedOutage};
use crate::checks::WorkerIdentity;
use crate::gate::GateView;
use crate::jitter::stable_hash;
use crate::node::NodeView;
use crate::outage::{matches_outage, to_failed_check};
use crate::report::{CheckResult, Outcome, Report, Verdict};
use crate::topology::zone;
use crate::worker::{Progress, WorkerView};

/// One run for a gate and a zone serves all who ask within this.
pub const SHARED: Duration = Duration::from_mins(1);
/// So many of them run at once, at most, besides all other workers.
pub const MOST: usize = 5;
/// What began longer ago than this says nothing about now.
const FRESH: Duration = Duration::from_mins(2);
/// A run that began longer ago than this is of no use to anybody: its pods are removed.
pub const STALE: Duration = Duration::from_mins(4);

/// What is known of a run on nodes that work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// So many nodes could be looked at.
    pub candidates: usize,
    /// The last run, if it is not stale.
    pub run: Option<Run>,
    /// For how long the node has failed. What was seen of others before that says nothing about it: whatever they share
    /// may have broken in between.
    pub since_failure: Duration,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How long ago it began.
    pub age: Duration,
    /// How far each of its workers is.
    pub controls: Vec<(String, Progress)>,
}

impl Run {
    fn has_ended(&self) -> bool {
        self.controls.iter().all(|(_, progress)| progress.has_ended())
    }
}

/// What a comparison comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The others pass what it fails.
    NodeIsWorse,
    /// They have to be looked at.
    Due,
    /// They are being looked at.
    Running,
    /// Others fail alike; which, and what.
    Shared(String),
    /// Only so many could be compared with.
    TooFew(usize),
}

impl Compared {
    /// The last run of a gate's control workers in a zone, from all control workers. `elapsed` is on the clock of their
    /// [`WorkerView::first_seen`]. `minute` is on the clock of their numbers: who has led for a moment only has seen all
    /// of them just now, and what they say may be old all the same.
    #[must_use]
    pub fn new<'a>(
        gate: &GateView,
        controls: impl IntoIterator<Item = &'a WorkerView>,
        in_zone: impl Fn(&str) -> bool,
        candidates: usize,
        elapsed: Duration,
        minute: u32,
    ) -> Self {
        let is_ours = |control: &&WorkerView| {
            let WorkerIdentity { gate_uid, gate_generation, .. } = &control.identity;
            *gate_uid == gate.uid && *gate_generation == gate.generation && in_zone(&control.node_name)
        };
        let ours: Vec<&WorkerView> = controls.into_iter().filter(is_ours).collect();
        let newest = ours.iter().map(|control| control.identity.number).max();
        let run: Vec<&&WorkerView> =
            ours.iter().filter(|control| Some(control.identity.number) == newest).collect();
        let began = run.iter().map(|control| control.first_seen).min();
        // The minute in which it began may have been all but over.
        let least = minute.saturating_sub(newest.unwrap_or_default()).saturating_sub(1);
        let run = began.map(|began| Run {
            age: elapsed.saturating_sub(began).max(Duration::from_mins(least.into())),
            controls: run.iter().map(|one| (one.node_name.clone(), one.progress.clone())).collect(),
        });
        Self { candidates, run: run.filter(|run| run.age < STALE), since_failure: Duration::ZERO }
    }

    /// Whether the node fails what others pass.
    #[must_use]
    pub fn judge(&self, size: usize, checks: &[FailedCheck]) -> Comparison {
        if size == 0 {
            return Comparison::NodeIsWorse;
        }
        let Some(run) = &self.run else {
            return if self.candidates < size {
                Comparison::TooFew(self.candidates)
            } else {
                Comparison::Due
            };
        };
        let reports: Vec<(&str, &Report)> = run
            .controls
            .iter()
            .filter_map(|(node, progress)| match progress {
                Progress::Reported(report) => Some((node.as_str(), report)),
                _ => None,
            })
            .collect();
        let alike = reports.iter().find_map(|(node, report)| Some((node, fails(report, checks)?)));
        if let Some((node, what)) = alike {
            let reason = if what.reason.is_empty() { "fails" } else { &what.reason };
            return Comparison::Shared(format!("{} {} on {node}: {reason}", what.name, what.target));
        }
        let passed = reports.iter().filter(|(_, report)| passes(report, checks)).count();
        let is_after = run.age <= self.since_failure;
        if passed >= size && is_after && run.age < FRESH {
            return Comparison::NodeIsWorse;
        }
        if !run.has_ended() || (!is_after && run.age < SHARED) {
            return Comparison::Running;
        }
        if run.age < SHARED { Comparison::TooFew(passed) } else { self.again(size) }
    }

    /// Whether another run may begin: one a minute, and never two at once.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.run.as_ref().is_none_or(|run| run.age >= SHARED && run.has_ended())
    }

    fn again(&self, size: usize) -> Comparison {
        if self.candidates < size { Comparison::TooFew(self.candidates) } else { Comparison::Due }
    }
}

fn same(result: &CheckResult, check: &FailedCheck) -> bool {
    let result = to_failed_check(result);
    result.name == check.name && (result.target == check.target || check.target.is_empty())
}

fn fails<'a>(report: &'a Report, checks: &[FailedCheck]) -> Option<&'a CheckResult> {
    let failed = |result: &&CheckResult| {
        result.outcome == Outcome::Failed && checks.iter().any(|check| same(result, check))
    };
    report.checks.iter().find(failed)
}

fn passes(report: &Report, checks: &[FailedCheck]) -> bool {
    checks.iter().all(|check| {
        let mut results = report.checks.iter().filter(|result| same(result, check)).peekable();
        // A report that passed may leave results out to fit. One that was skipped says nothing.
        (results.peek().is_some() || report.verdict == Verdict::Passed)
            && results.all(|result| result.outcome == Outcome::Passed)
    })
}

/// The nodes on which a gate's checks are run to compare with: verified by it, in the zone, and working. Others each
/// time, by what looks like chance.
#[must_use]
pub fn candidates<'a>(
    nodes: impl IntoIterator<Item = &'a NodeView>,
    gate: &GateView,
    in_zone: &str,
    number: u32,
) -> Vec<&'a NodeView> {
    let fits = |node: &&NodeView| {
        zone(node) == in_zone
            && node.ready
            && !node.unschedulable
            && !node.terminating
            && node.positions(&gate.spec.taints).is_empty()
            && node
                .record
                .as_deref()
                .is_some_and(|record| record.is_open() && record.scope.gate_uid == gate.uid)
    };
    let mut fitting: Vec<&NodeView> = nodes.into_iter().filter(fits).collect();
    fitting.sort_by_cached_key(|node| stable_hash(&node.uid, number));
    fitting
}

/// Those control workers that are of no more use to anybody: stale, or ended and followed by others in the same place.
#[must_use]
pub fn spent<'a>(
    controls: &[&'a WorkerView],
    zone_of: impl Fn(&str) -> Option<String>,
    elapsed: Duration,
) -> Vec<&'a WorkerView> {
    let place = |control: &WorkerView| (control.identity.gate_uid.clone(), zone_of(&control.node_name));
    let is_followed = |control: &WorkerView| {
        let is_newer = |other: &WorkerView| other.identity.number > control.identity.number;
        controls.iter().any(|other| is_newer(other) && place(other) == place(control))
    };
    let is_stale = |control: &WorkerView| elapsed.saturating_sub(control.first_seen) >= STALE;
    let is_spent = |control: &&WorkerView| {
        !control.deleting && (is_stale(control) || (control.has_ended() && is_followed(control)))
    };
    controls.iter().copied().filter(is_spent).collect()
}

/// Whether what the node fails is known not to work on others. What a recycler counted there may come from anything
/// that is down.
pub(super) fn known_outage(
    down: &[SharedOutage],
    causes: &[&RemediationCause],
    zone: &str,
) -> Result<(), Blocked> {
    let is_shared = |down: &&SharedOutage| {
        let is_from = |cause: &&RemediationCause| {
            cause.source == CauseSource::Recycler
                || cause.checks.iter().any(|check| matches_outage(down, &check.name, &check.target))
        };
        down.zone == zone && causes.iter().any(is_from)
    };
    match down.iter().find(is_shared) {
        Some(down) => {
            let message = format!(
                "verified nodes fail alike since {}: {} {}. It is not the node",
                format_time(down.since),
                down.check,
                down.target
            );
            Err(Blocked {
                again_in: Some(SHARED),
                ..Blocked::new(BlockReason::SharedDependencyDown, message)
            })
        }
        None => Ok(()),
    }
}

/// What the reports of a run say about what is or may be down in a zone: failing checks, and whether all else of them
/// passed on so many nodes as are needed.
#[must_use]
pub fn failing(run: &Run) -> Vec<FailedCheck> {
    let reports = run.controls.iter().filter_map(|(_, progress)| match progress {
        Progress::Reported(report) => Some(report),
        _ => None,
    });
    let mut failing: Vec<FailedCheck> = reports
        .flat_map(|report| &report.checks)
        .filter(|result| result.outcome == Outcome::Failed)
        .map(to_failed_check)
        .collect();
    failing.sort();
    failing.dedup_by(|a, b| a.name == b.name && a.target == b.target);
    failing
}

/// Whether a check works again: a node passed it, and so many did or had nothing to try. On the node that has the only
/// server of a kind nobody ever tries it, and what is down must not stay so for that.
#[must_use]
pub fn has_recovered(run: &Run, size: usize, down: &SharedOutage) -> bool {
    let check = FailedCheck { name: down.check.clone(), target: down.target.clone(), reason: String::new() };
    let count = |so: &dyn Fn(&Report) -> bool| {
        let so = |(_, progress): &&(String, Progress)| match progress {
            Progress::Reported(report) => so(report),
            _ => false,
        };
        run.controls.iter().filter(so).count()
    };
    let passed = count(&|report| passes(report, std::slice::from_ref(&check)));
    passed > 0 && passed + count(&|report| skips(report, &check)) >= size.max(1)
}

fn skips(report: &Report, check: &FailedCheck) -> bool {
    let mut results = report.checks.iter().filter(|result| same(result, check)).peekable();
    results.peek().is_some() && results.all(|result| result.outcome == Outcome::Skipped)
}

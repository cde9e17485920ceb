//! What became of a worker, read from its containers.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::{CHECK_PREFIX, CONTAINER, Progress};
use crate::checks::WorkerIdentity;
use crate::record::InconclusiveReason;
use crate::report::{self, CheckResult, Outcome, Report, Verdict};
use crate::text::clean;

/// Exit codes by which a program says that something is wrong. Above are those of shells and signals: it did not run,
/// or was ended.
const SAYS_NO: std::ops::RangeInclusive<i32> = 1..=125;
/// What a container of the user's says, and may be long.
const WORDS: usize = 200;

/// How the kubelet says that it knows nothing of a container: of one that it never started, when the pod's time is up.
const UNKNOWN: &str = "ContainerStatusUnknown";
const DEADLINE: &str = "DeadlineExceeded";

/// Read from the containers by their names, never from the phase alone.
pub(super) fn progress(pod: &Pod, identity: &WorkerIdentity) -> Progress {
    let Some(status) = pod.status.as_ref() else {
        return Progress::Waiting(InconclusiveReason::NotStarted, String::new());
    };
    if let Some(refused) = refused_by_init(status, identity) {
        return refused;
    }
    let worker = status_of(status, CONTAINER);
    if let Some(terminated) = worker.and_then(ended) {
        return with_checks(outcome(terminated, identity), pod, status);
    }
    let is_running = worker.and_then(|one| one.state.as_ref()).is_some_and(|state| state.running.is_some());
    if is_over(status) {
        return ended_early(pod, status, is_running);
    }
    if let Some((cause, why)) = held_up(pod, status).filter(|_| !is_running) {
        return Progress::Waiting(cause, why);
    }
    let mut conditions = status.conditions.iter().flatten();
    if let Some(refused) = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False") {
        return Progress::Unscheduled(refused.message.clone().unwrap_or_default());
    }
    if is_running {
        Progress::Running
    } else {
        Progress::Waiting(InconclusiveReason::NotStarted, String::new())
    }
}

fn status_of<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    status.container_statuses.iter().flatten().find(|container| container.name == name)
}

/// The pod is over, and its worker said nothing.
fn ended_early(pod: &Pod, status: &PodStatus, is_running: bool) -> Progress {
    match status.reason.as_deref() {
        // A deadline is only how the waiting ended: what it was for is what somebody can mend.
        Some(DEADLINE) if !is_running => {
            let (cause, why) = held_up(pod, status).unwrap_or_else(never_started);
            Progress::Inconclusive(cause, why)
        }
        reason => {
            let cause = if reason == Some("Evicted") {
                InconclusiveReason::Evicted
            } else {
                InconclusiveReason::NoReport
            };
            let reason = reason.unwrap_or("no reason given");
            Progress::Inconclusive(cause, format!("the pod ended before its worker did: {reason}"))
        }
    }
}

fn never_started() -> (InconclusiveReason, String) {
    (InconclusiveReason::NotStarted, format!("{DEADLINE} before it started"))
}

/// What keeps the first container that has not started.
fn held_up(pod: &Pod, status: &PodStatus) -> Option<(InconclusiveReason, String)> {
    let init = status.init_container_statuses.iter().flatten();
    let ours = init.chain(status_of(status, CONTAINER)).filter_map(waiting);
    let beside =
        checks(pod).filter_map(|(name, container)| image_trouble(name, status_of(status, container)?));
    ours.filter(|(_, why)| !why.starts_with("PodInitializing")).chain(beside).next()
}

/// The checks of the user's, as the pod was made with them, and their containers. The statuses may lack one.
fn checks(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|one| Some((one.name.strip_prefix(CHECK_PREFIX)?, one.name.as_str())))
}

fn is_over(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
}

fn waiting(container: &ContainerStatus) -> Option<(InconclusiveReason, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let image = reason.contains("Image");
    let why = match &waiting.message {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason,
    };
    Some((if image { InconclusiveReason::ImagePull } else { InconclusiveReason::NotStarted }, why))
}

fn image_trouble(name: &str, container: &ContainerStatus) -> Option<(InconclusiveReason, String)> {
    let (cause, why) = waiting(container).filter(|(cause, _)| *cause == InconclusiveReason::ImagePull)?;
    Some((cause, format!("check {name}: {why}")))
}

/// An init container that says no is a failed check of its name. One that could not say anything blames nobody.
fn refused_by_init(status: &PodStatus, identity: &WorkerIdentity) -> Option<Progress> {
    let (name, end) = status
        .init_container_statuses
        .iter()
        .flatten()
        .find_map(|one| Some((&one.name, ended(one).filter(|end| end.exit_code != 0)?)))?;
    Some(match said_no(name, end) {
        Ok(result) => Progress::Reported(Report::judge(identity.clone(), vec![result], 0)),
        Err((cause, why)) => Progress::Inconclusive(cause, why),
    })
}

/// The verdict of the worker and of the containers beside it that are checks of their own. One of them that cannot tell
/// takes nothing back of what the others say.
fn with_checks(worker: Progress, pod: &Pod, status: &PodStatus) -> Progress {
    let Progress::Reported(report) = worker else { return worker };
    let Report { identity, verdict, checks: mut results, ms, left_out, .. } = report;
    let mut unsure = None;
    for (name, container) in checks(pod) {
        let container = status_of(status, container);
        let said = match container.and_then(ended) {
            Some(end) if end.exit_code == 0 => Ok(CheckResult::new(name, "", Outcome::Passed, "", "")),
            Some(end) => said_no(name, end),
            None => match container.and_then(|one| image_trouble(name, one)) {
                Some(trouble) => Err(trouble),
                None if is_over(status) => Err(did_not_end(name, container, status)),
                None => return Progress::Running,
            },
        };
        results.push(said.unwrap_or_else(|(cause, why)| {
            let result = CheckResult::new(name, "", Outcome::Inconclusive, reason_of(cause), &why);
            unsure = unsure.take().or(Some((cause, why)));
            result
        }));
    }
    let judged = Report { left_out, ..Report::judge(identity, results, ms) };
    match unsure.filter(|_| judged.verdict == Verdict::Inconclusive) {
        Some((InconclusiveReason::ImagePull, why)) if !is_over(status) => {
            Progress::Waiting(InconclusiveReason::ImagePull, why)
        }
        // Nothing else leaves it open, so that what kept the check is why.
        Some((cause, why)) if verdict != Verdict::Inconclusive => Progress::Inconclusive(cause, why),
        _ => Progress::Reported(judged),
    }
}

fn did_not_end(
    name: &str,
    container: Option<&ContainerStatus>,
    status: &PodStatus,
) -> (InconclusiveReason, String) {
    let state = container.and_then(|one| one.state.as_ref());
    let is_running = state.is_some_and(|state| state.running.is_some());
    if status.reason.as_deref() == Some(DEADLINE) && !is_running {
        let (cause, why) = never_started();
        return (cause, format!("check {name}: {why}"));
    }
    (InconclusiveReason::NoReport, format!("check {name} did not end"))
}

/// How a container ended that ran.
fn ended(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let end = container.state.as_ref()?.terminated.as_ref()?;
    (end.started_at.is_some() || end.reason.as_deref() != Some(UNKNOWN)).then_some(end)
}

/// A container of the user's that did not end well: a failed check, or one that could not tell.
fn said_no(name: &str, end: &ContainerStateTerminated) -> Result<CheckResult, (InconclusiveReason, String)> {
    let code = end.exit_code;
    let words = clean(end.message.as_deref().unwrap_or_default().trim(), WORDS);
    if SAYS_NO.contains(&code) {
        let message =
            if words.is_empty() { format!("exit code {code}") } else { format!("exit code {code}: {words}") };
        return Ok(CheckResult::new(name, "", Outcome::Failed, "ExitCode", &message));
    }
    let reason = end.reason.as_deref().unwrap_or_default();
    Err((cause_of(reason), format!("container {name} ended with exit code {code} ({reason}) {words}")))
}

/// For the result of a check.
fn reason_of(cause: InconclusiveReason) -> &'static str {
    match cause {
        InconclusiveReason::OutOfMemory => "OutOfMemory",
        InconclusiveReason::ImagePull => "ImagePull",
        InconclusiveReason::NotStarted => "NotStarted",
        _ => "NoReport",
    }
}

fn cause_of(reason: &str) -> InconclusiveReason {
    if reason == "OOMKilled" { InconclusiveReason::OutOfMemory } else { InconclusiveReason::NoReport }
}

/// Believes a report only if it is about what this worker was made for, and agrees with its exit code.
fn outcome(terminated: &ContainerStateTerminated, identity: &WorkerIdentity) -> Progress {
    let code = terminated.exit_code;
    let reason = terminated.reason.as_deref().unwrap_or_default();
    let message = terminated.message.as_deref().unwrap_or_default();
    let silent = |why: String| Progress::Inconclusive(cause_of(reason), format!("exit code {code} {why}"));
    if message.is_empty() {
        return silent(format!("without a report ({reason})"));
    }
    match report::parse(message) {
        Err(error) => silent(format!("with a report that cannot be read: {error}")),
        Ok(report) if report.identity != *identity => silent("with a report about something else".into()),
        Ok(report) if i32::from(report.exit_code()) == code => Progress::Reported(report),
        Ok(report) => silent(format!("contradicts the report, {}", report.verdict)),
    }
}

//! Derives the progress of a worker from its container statuses.

use super::partial::{ContainerStatus, PartialPod, Status, Terminated};
use super::{CHECK_PREFIX, CONTAINER, EXEC_CHECKS, INIT_CONTAINERS, Progress};
use crate::checks::WorkerIdentity;
use crate::record::InconclusiveReason;
use crate::report::{self, CheckResult, Outcome, Report, Verdict};
use crate::text::clean;

/// Exit codes of a failed check. Higher codes come from shells and signals: the program did not run or was killed.
const FAILURE_EXIT_CODES: std::ops::RangeInclusive<i32> = 1..=125;
/// Bytes of an exec check's termination message that are kept.
const EXEC_MESSAGE_LIMIT: usize = 200;

/// The kubelet's reason for a container that it never started, once the pod's deadline has passed.
const UNKNOWN: &str = "ContainerStatusUnknown";
const DEADLINE: &str = "DeadlineExceeded";

/// The progress of the worker. It is read from the containers by name, never from the pod's phase alone.
pub(super) fn progress(pod: &PartialPod, identity: &WorkerIdentity) -> Progress {
    let Some(status) = pod.status.as_ref() else {
        return Progress::Waiting(InconclusiveReason::NotStarted, String::new());
    };
    if let Some(failed) = failed_init_container(pod, status, identity) {
        return failed;
    }
    let worker = status_of(status, CONTAINER);
    if let Some(terminated) = worker.and_then(ended) {
        return with_checks(outcome(terminated, identity), pod, status);
    }
    let is_running = worker.is_some_and(ContainerStatus::is_running);
    if has_pod_ended(status) {
        return ended_early(pod, status, is_running);
    }
    if let Some((cause, why)) = waiting_reason(pod, status).filter(|_| !is_running) {
        return Progress::Waiting(cause, why);
    }
    let mut conditions = status.conditions.iter().flatten();
    if let Some(unscheduled) = conditions
        .find(|one| one.kind.as_deref() == Some("PodScheduled") && one.status.as_deref() == Some("False"))
    {
        return Progress::Unscheduled(unscheduled.message.clone().unwrap_or_default());
    }
    if is_running {
        Progress::Running
    } else {
        Progress::Waiting(InconclusiveReason::NotStarted, String::new())
    }
}

fn status_of<'a>(status: &'a Status, name: &str) -> Option<&'a ContainerStatus> {
    status.containers.iter().flatten().find(|container| container.name() == name)
}

/// The pod ended before its worker container did.
fn ended_early(pod: &PartialPod, status: &Status, is_running: bool) -> Progress {
    if let Some((name, end)) = failed_init_containers(status).next() {
        let why = format!(
            "init container {name}, which the gate did not ask for, ended with exit code {}",
            end.exit_code()
        );
        return Progress::Inconclusive(InconclusiveReason::Other, why);
    }
    match status.reason.as_deref() {
        // The reason for which the container waited is more useful than the deadline.
        Some(DEADLINE) if !is_running => {
            let (cause, why) = waiting_reason(pod, status).unwrap_or_else(never_started);
            Progress::Inconclusive(cause, why)
        }
        reason => {
            let cause = if reason == Some("Evicted") {
                InconclusiveReason::Evicted
            } else {
                InconclusiveReason::NoReport
            };
            let reason = reason.unwrap_or("no reason given");
            Progress::Inconclusive(cause, format!("the pod ended before its worker: {reason}"))
        }
    }
}

fn never_started() -> (InconclusiveReason, String) {
    (InconclusiveReason::NotStarted, format!("{DEADLINE} before the container started"))
}

/// Why the first container that has not started waits.
fn waiting_reason(pod: &PartialPod, status: &Status) -> Option<(InconclusiveReason, String)> {
    let init = status.init_containers.iter().flatten();
    let worker = init.chain(status_of(status, CONTAINER)).filter_map(waiting);
    let exec_checks =
        checks(pod).filter_map(|(name, container)| image_pull_failure(name, status_of(status, container)?));
    worker.filter(|(_, why)| !why.starts_with("PodInitializing")).chain(exec_checks).next()
}

/// The names of the exec checks and of their containers, from the pod's spec: the statuses may lack one.
fn checks(pod: &PartialPod) -> impl Iterator<Item = (&str, &str)> {
    let names = pod.spec.containers.iter().flatten().filter_map(|container| container.name.as_deref());
    let checks = names.filter_map(|name| Some((name.strip_prefix(CHECK_PREFIX)?, name)));
    checks.filter(|(check, _)| is_named(pod, EXEC_CHECKS, check))
}

/// Whether a container is one that the gate asked for, and that this annotation therefore names. Older releases did not
/// tell, and all counted.
fn is_named(pod: &PartialPod, annotation: &str, container: &str) -> bool {
    let names = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
    names.is_none_or(|names| names.split(',').any(|name| name == container))
}

fn has_pod_ended(status: &Status) -> bool {
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

fn image_pull_failure(name: &str, container: &ContainerStatus) -> Option<(InconclusiveReason, String)> {
    let (cause, why) = waiting(container).filter(|(cause, _)| *cause == InconclusiveReason::ImagePull)?;
    Some((cause, format!("check {name}: {why}")))
}

/// An init container of the gate that fails is a failed check of its name. One that was killed makes the worker
/// inconclusive. Others say nothing about the node, and a sidecar among them is killed after the worker has passed.
fn failed_init_container(pod: &PartialPod, status: &Status, identity: &WorkerIdentity) -> Option<Progress> {
    let (name, end) =
        failed_init_containers(status).find(|(name, _)| is_named(pod, INIT_CONTAINERS, name))?;
    Some(match exec_failure(name, end) {
        Ok(result) => Progress::Reported(Report::judge(identity.clone(), vec![result], 0)),
        Err((cause, why)) => Progress::Inconclusive(cause, why),
    })
}

fn failed_init_containers(status: &Status) -> impl Iterator<Item = (&str, &Terminated)> {
    let all = status.init_containers.iter().flatten();
    all.filter_map(|one| Some((one.name(), ended(one).filter(|end| end.exit_code() != 0)?)))
}

/// Adds the results of the exec checks to the worker's report.
fn with_checks(worker: Progress, pod: &PartialPod, status: &Status) -> Progress {
    let Progress::Reported(report) = worker else { return worker };
    let Report { identity, verdict, checks: mut results, ms, left_out, .. } = report;
    let mut inconclusive = None;
    for (name, container) in checks(pod) {
        let container = status_of(status, container);
        let result = match container.and_then(ended) {
            Some(end) if end.exit_code() == 0 => Ok(CheckResult::new(name, "", Outcome::Passed, "", "")),
            Some(end) => exec_failure(name, end),
            None => match container.and_then(|one| image_pull_failure(name, one)) {
                Some(failure) => Err(failure),
                None if has_pod_ended(status) => Err(did_not_end(name, container, status)),
                None => return Progress::Running,
            },
        };
        results.push(result.unwrap_or_else(|(cause, why)| {
            let result = CheckResult::new(name, "", Outcome::Inconclusive, check_reason(cause), &why);
            inconclusive = inconclusive.take().or(Some((cause, why)));
            result
        }));
    }
    let judged = Report { left_out, ..Report::judge(identity, results, ms) };
    match inconclusive.filter(|_| judged.verdict == Verdict::Inconclusive) {
        Some((InconclusiveReason::ImagePull, why)) if !has_pod_ended(status) => {
            Progress::Waiting(InconclusiveReason::ImagePull, why)
        }
        // Only the exec check makes the report inconclusive, so its reason is the worker's.
        Some((cause, why)) if verdict != Verdict::Inconclusive => Progress::Inconclusive(cause, why),
        _ => Progress::Reported(judged),
    }
}

fn did_not_end(
    name: &str,
    container: Option<&ContainerStatus>,
    status: &Status,
) -> (InconclusiveReason, String) {
    let is_running = container.is_some_and(ContainerStatus::is_running);
    if status.reason.as_deref() == Some(DEADLINE) && !is_running {
        let (cause, why) = never_started();
        return (cause, format!("check {name}: {why}"));
    }
    (InconclusiveReason::NoReport, format!("check {name} did not end"))
}

/// The termination of a container that ran.
fn ended(container: &ContainerStatus) -> Option<&Terminated> {
    let end = container.state.as_ref()?.terminated.as_ref()?;
    (end.started_at.is_some() || end.reason.as_deref() != Some(UNKNOWN)).then_some(end)
}

/// The result of an exec check or init container with a non-zero exit code.
fn exec_failure(name: &str, end: &Terminated) -> Result<CheckResult, (InconclusiveReason, String)> {
    let code = end.exit_code();
    let message = clean(end.message.as_deref().unwrap_or_default().trim(), EXEC_MESSAGE_LIMIT);
    if FAILURE_EXIT_CODES.contains(&code) {
        let message = if message.is_empty() {
            format!("exit code {code}")
        } else {
            format!("exit code {code}: {message}")
        };
        return Ok(CheckResult::new(name, "", Outcome::Failed, "ExitCode", &message));
    }
    let reason = end.reason.as_deref().unwrap_or_default();
    Err((cause_of(reason), format!("container {name} ended with exit code {code} ({reason}) {message}")))
}

fn check_reason(cause: InconclusiveReason) -> &'static str {
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

/// Accepts a report only if its identity is this worker's and its verdict agrees with the exit code.
fn outcome(terminated: &Terminated, identity: &WorkerIdentity) -> Progress {
    let code = terminated.exit_code();
    let reason = terminated.reason.as_deref().unwrap_or_default();
    let message = terminated.message.as_deref().unwrap_or_default();
    let invalid = |why: String| Progress::Inconclusive(cause_of(reason), format!("exit code {code} {why}"));
    if message.is_empty() {
        return invalid(format!("without a report ({reason})"));
    }
    match report::parse(message) {
        Err(error) => invalid(format!("with a report that cannot be read: {error}")),
        Ok(report) if report.identity != *identity => invalid("with a report of another worker".into()),
        Ok(report) if i32::from(report.exit_code()) == code => Progress::Reported(report),
        Ok(report) => invalid(format!("contradicts the report, {}", report.verdict)),
    }
}

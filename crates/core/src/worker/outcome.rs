//! What became of a worker, read from its containers.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::{CHECK_PREFIX, CONTAINER, Progress};
use crate::checks::Subject;
use crate::record::Cause;
use crate::report::{self, CheckResult, Outcome, Report};
use crate::text::clean;

/// Exit codes by which a program says that something is wrong. Above are those of shells and signals: it did not run,
/// or was ended.
const SAYS_NO: std::ops::RangeInclusive<i32> = 1..=125;
/// What a container of the user's says, and may be long.
const WORDS: usize = 200;

/// Read from the containers by their names, never from the phase alone.
pub(super) fn progress(pod: &Pod, subject: &Subject) -> Progress {
    let Some(status) = pod.status.as_ref() else {
        return Progress::Waiting(Cause::NotStarted, String::new());
    };
    if let Some(refused) = refused_by_init(status, subject) {
        return refused;
    }
    let containers = || status.container_statuses.iter().flatten();
    let worker =
        containers().find(|container| container.name == CONTAINER).and_then(|one| one.state.as_ref());
    if let Some(terminated) = worker.and_then(|state| state.terminated.as_ref()) {
        let checks = containers().filter(|container| container.name.starts_with(CHECK_PREFIX));
        return with_checks(outcome(terminated, subject), checks, subject, is_over(status));
    }
    if is_over(status) {
        let reason = status.reason.as_deref().unwrap_or("no reason given");
        let cause = if reason == "Evicted" { Cause::Evicted } else { Cause::NoReport };
        return Progress::Silent(cause, format!("the pod ended before its worker did: {reason}"));
    }
    let init = status.init_container_statuses.iter().flatten();
    let states = init.filter_map(|one| one.state.as_ref()).chain(worker);
    if let Some(waiting) = states.filter_map(waiting).find(|(_, why)| !why.starts_with("PodInitializing")) {
        return Progress::Waiting(waiting.0, waiting.1);
    }
    let mut conditions = status.conditions.iter().flatten();
    if let Some(refused) = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False") {
        return Progress::Unscheduled(refused.message.clone().unwrap_or_default());
    }
    if worker.is_some_and(|state| state.running.is_some()) {
        Progress::Running
    } else {
        Progress::Waiting(Cause::NotStarted, String::new())
    }
}

fn is_over(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
}

fn waiting(state: &ContainerState) -> Option<(Cause, String)> {
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let image = reason.contains("Image");
    let why = match &waiting.message {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason,
    };
    Some((if image { Cause::ImagePull } else { Cause::NotStarted }, why))
}

/// An init container that says no is a failed check of its name. One that could not say anything blames nobody.
fn refused_by_init(status: &PodStatus, subject: &Subject) -> Option<Progress> {
    let (name, end) = status
        .init_container_statuses
        .iter()
        .flatten()
        .find_map(|one| Some((&one.name, ended(one).filter(|end| end.exit_code != 0)?)))?;
    Some(match said_no(name, end) {
        Ok(result) => Progress::Reported(Report::judge(subject.clone(), vec![result], 0)),
        Err((cause, why)) => Progress::Silent(cause, why),
    })
}

/// The verdict of the worker and of the containers beside it that are checks of their own.
fn with_checks<'a>(
    worker: Progress,
    checks: impl Iterator<Item = &'a ContainerStatus>,
    subject: &Subject,
    over: bool,
) -> Progress {
    let Progress::Reported(report) = worker else { return worker };
    let (mut results, ms, number_of_ours) = (report.checks, report.ms, report.left_out);
    for one in checks {
        let name = one.name.trim_start_matches(CHECK_PREFIX);
        match ended(one) {
            None if over => return Progress::Silent(Cause::NoReport, format!("check {name} did not end")),
            None => return Progress::Running,
            Some(end) if end.exit_code == 0 => {
                results.push(CheckResult::new(name, "", Outcome::Passed, "", ""));
            }
            Some(end) => match said_no(name, end) {
                Ok(result) => results.push(result),
                Err((cause, why)) => return Progress::Silent(cause, why),
            },
        }
    }
    let judged = Report::judge(subject.clone(), results, ms);
    Progress::Reported(Report { left_out: number_of_ours, ..judged })
}

fn ended(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// A container of the user's that did not end well: a failed check, or one that could not tell.
fn said_no(name: &str, end: &ContainerStateTerminated) -> Result<CheckResult, (Cause, String)> {
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

fn cause_of(reason: &str) -> Cause {
    if reason == "OOMKilled" { Cause::OutOfMemory } else { Cause::NoReport }
}

/// Believes a report only if it is about what this worker was made for, and agrees with its exit code.
fn outcome(terminated: &ContainerStateTerminated, subject: &Subject) -> Progress {
    let code = terminated.exit_code;
    let reason = terminated.reason.as_deref().unwrap_or_default();
    let message = terminated.message.as_deref().unwrap_or_default();
    let silent = |why: String| Progress::Silent(cause_of(reason), format!("exit code {code} {why}"));
    if message.is_empty() {
        return silent(format!("without a report ({reason})"));
    }
    match report::parse(message) {
        Err(error) => silent(format!("with a report that cannot be read: {error}")),
        Ok(report) if report.subject != *subject => silent("with a report about something else".into()),
        Ok(report) if i32::from(report.exit_code()) == code => Progress::Reported(report),
        Ok(report) => silent(format!("contradicts the report, {}", report.verdict)),
    }
}

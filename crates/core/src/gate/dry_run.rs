//! A gate that only says what it would do: workers run, and no Node is written.
//!
//! With no record to write, the newest worker is what is remembered: it stays until the next one starts.

use std::time::Duration;

use jiff::SignedDuration;

use super::prerequisites::{Unmet, unmet};
use super::{Decision, Effect, EventSpec, GateView, Observed, State, identity, remove, round, round_of};
use crate::record::Record;
use crate::report::Verdict;
use crate::worker::{Progress, WorkerView};

pub(super) fn decide(seen: &Observed<'_>, gate: &GateView, record: &Record) -> Decision {
    let newest = seen.workers.iter().max_by_key(|worker| worker.identity.number);
    match newest {
        None => start(seen, gate, record.number),
        Some(worker) if !worker.has_ended() => {
            let allowed = u64::from(gate.spec.deadlines.worker_seconds.unsigned_abs()) + 60;
            let age = seen.elapsed.saturating_sub(worker.first_seen);
            match Duration::from_secs(allowed).checked_sub(age) {
                Some(left) if !left.is_zero() && !worker.deleting => Decision {
                    recheck_in: Some(left),
                    ..Decision::new(State::InProgress, "dry run: a worker looks at the node")
                },
                _ => Decision::new(State::Pending, "dry run: an overdue worker is removed")
                    .with(remove(seen.workers))
                    .again_in(SignedDuration::from_mins(1)),
            }
        }
        // A newer one may have been recorded and be gone: no number is used twice.
        Some(worker) if record.number > worker.identity.number => start(seen, gate, record.number),
        Some(worker) if round_of(&worker.identity) != round(seen.node, gate) => {
            start(seen, gate, worker.identity.number)
        }
        Some(worker) => ended(seen, gate, worker),
    }
}

fn ended(seen: &Observed<'_>, gate: &GateView, worker: &WorkerView) -> Decision {
    let (state, passed, what) = match &worker.progress {
        Progress::Reported(report) => match report.verdict {
            Verdict::Passed => (State::Unverified, true, format!("would be let in: {}", report.summary())),
            Verdict::Failed => (State::Failed, false, format!("would stay tainted: {}", report.summary())),
            Verdict::Inconclusive => {
                (State::Inconclusive, false, format!("could not tell: {}", report.summary()))
            }
        },
        Progress::Inconclusive(_, why) => (State::Inconclusive, false, format!("could not tell: {why}")),
        _ => (State::InProgress, false, "looks".to_owned()),
    };
    let note = format!("dry run of gate {}, worker {}: {what}", gate.name, worker.identity.number);
    let told = EventSpec {
        dedup_key: Some(worker.identity.number),
        ..EventSpec::new(!passed, "NodeGateDryRun", "Check", note.clone())
    };
    let told = Effect::EmitEvent(told);
    if passed {
        return Decision::new(state, note).with([told]);
    }
    let pause = Duration::from_secs(gate.spec.retry.recheck_period_seconds.unsigned_abs().into());
    match pause.checked_sub(seen.elapsed.saturating_sub(worker.first_seen)).filter(|left| !left.is_zero()) {
        Some(left) => Decision { recheck_in: Some(left), ..Decision::new(state, note).with([told]) },
        None => start(seen, gate, worker.identity.number),
    }
}

fn start(seen: &Observed<'_>, gate: &GateView, last: u32) -> Decision {
    let node = seen.node;
    if !node.ready || node.boot_id.is_empty() || node.unschedulable {
        return Decision::new(State::Waiting, "dry run: the node is not Ready, or cordoned");
    }
    match unmet(seen, &gate.spec.wait_for) {
        Some(Unmet::OnNode(why)) => return Decision::new(State::Waiting, format!("dry run: {why}")),
        Some(Unmet::OnPods(why)) => {
            return Decision { wants_pods: true, ..Decision::new(State::Waiting, format!("dry run: {why}")) };
        }
        None => {}
    }
    if !(if last == 0 { seen.slots.first } else { seen.slots.another }) {
        return Decision {
            wants_slot: Some(last),
            ..Decision::new(State::Unverified, "dry run: the node waits for a free slot")
        };
    }
    let number = last.saturating_add(1);
    Decision::new(State::Pending, format!("dry run: worker {number} starts"))
        .with([Effect::StartWorker(identity(node, gate, number))])
        .with(remove(seen.workers))
}

//! `DryRun`: workers run, Events say what the gate would do, and no Node is written.
//!
//! No record is written, so the newest worker keeps the state: it stays until the next one starts.

use std::time::Duration;

use jiff::SignedDuration;

use super::prerequisites::{Unmet, unmet};
use super::{
    Decision, Effect, EventSpec, GateView, Observed, State, identity, remove_workers, scope, scope_of,
};
use crate::jitter::stable_hash;
use crate::reasons;
use crate::record::Record;
use crate::report::Verdict;
use crate::worker::{Progress, WorkerView};

pub(super) fn decide(observed: &Observed<'_>, gate: &GateView, record: &Record) -> Decision {
    let newest = observed.workers.iter().max_by_key(|worker| worker.identity.number);
    match newest {
        None => start(observed, gate, record.number),
        Some(worker) if !worker.has_ended() => {
            let allowed = u64::from(gate.spec.deadlines.worker_seconds.unsigned_abs()) + 60;
            let age = observed.elapsed.saturating_sub(worker.first_seen);
            match Duration::from_secs(allowed).checked_sub(age) {
                Some(left) if !left.is_zero() && !worker.deleting => Decision {
                    recheck_in: Some(left),
                    ..Decision::new(State::InProgress, "dry run: a worker runs on the node")
                },
                _ => Decision::new(State::Pending, "dry run: an overdue worker is removed")
                    .with(remove_workers(observed.workers))
                    .requeue_after(SignedDuration::from_mins(1)),
            }
        }
        // A later worker may be recorded and deleted: no number is used twice.
        Some(worker) if record.number > worker.identity.number => start(observed, gate, record.number),
        Some(worker) if scope_of(&worker.identity) != scope(observed.node, gate) => {
            start(observed, gate, worker.identity.number)
        }
        Some(worker) => ended(observed, gate, worker),
    }
}

fn ended(observed: &Observed<'_>, gate: &GateView, worker: &WorkerView) -> Decision {
    let (state, passed, result) = match &worker.progress {
        Progress::Reported(report) => {
            let summary = report.summary();
            match report.verdict {
                Verdict::Passed => {
                    (State::Unverified, true, format!("the taint would be removed: {summary}"))
                }
                Verdict::Failed => (State::Failed, false, format!("the node would stay tainted: {summary}")),
                Verdict::Inconclusive => (State::Inconclusive, false, format!("inconclusive: {summary}")),
            }
        }
        Progress::Inconclusive(_, why) => (State::Inconclusive, false, format!("inconclusive: {why}")),
        _ => (State::InProgress, false, "running".to_owned()),
    };
    let note = format!("dry run of gate {}, worker {}: {result}", gate.name, worker.identity.number);
    let event = EventSpec {
        // No record keeps the numbers: one is used again after the pod was deleted.
        dedup_key: Some(event_key(&worker.uid)),
        ..EventSpec::new(!passed, reasons::NODE_GATE_DRY_RUN, "Check", note.clone())
    };
    let decision = Decision::new(state, note).with([Effect::EmitEvent(event)]);
    if passed {
        return decision;
    }
    let period = Duration::from_secs(gate.spec.retry.recheck_period_seconds.unsigned_abs().into());
    match period
        .checked_sub(observed.elapsed.saturating_sub(worker.first_seen))
        .filter(|left| !left.is_zero())
    {
        Some(left) => Decision { recheck_in: Some(left), ..decision },
        None => start(observed, gate, worker.identity.number),
    }
}

fn event_key(pod_uid: &str) -> u32 {
    let [a, b, c, d, ..] = stable_hash(pod_uid, 0).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn start(observed: &Observed<'_>, gate: &GateView, last: u32) -> Decision {
    let node = observed.node;
    if !node.ready || node.unschedulable {
        return Decision::new(State::Waiting, "dry run: the node is not Ready, or cordoned");
    }
    match unmet(observed, &gate.spec.wait_for) {
        Some(Unmet::OnNode(why)) => return Decision::new(State::Waiting, format!("dry run: {why}")),
        Some(Unmet::OnPods(why)) => {
            return Decision { wants_pods: true, ..Decision::new(State::Waiting, format!("dry run: {why}")) };
        }
        None => {}
    }
    if let Some(left) = observed.left_to_agent(gate) {
        return Decision::new(State::Unverified, format!("dry run: {}", left.why)).left_to_agent(&left);
    }
    if !(if last == 0 { observed.slots.first } else { observed.slots.another }) {
        return Decision {
            wants_slot: Some(last),
            wants_pods: !gate.spec.wait_for.daemon_sets.is_empty(),
            ..Decision::new(State::Unverified, "dry run: the node waits for a free worker slot")
        };
    }
    let number = last.saturating_add(1);
    Decision::new(State::Pending, format!("dry run: worker {number} starts"))
        .with([Effect::StartWorker(identity(node, gate, number))])
        .with(remove_workers(observed.own_workers(gate)))
}

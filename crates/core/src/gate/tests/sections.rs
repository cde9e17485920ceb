//! Nodes with several gates, each of which has its own section of the record.

use std::collections::BTreeMap;

use super::*;
use crate::api::{Mode, NodeCondition, OnReboot, VerifiedLabel};

const WIDE: &str = "node-ready/unverified";
const STRICT: &str = "strict/unverified";
const LABEL: &str = "node-ready/verified";

/// Nothing limits the workers.
struct Calm;

impl Surroundings for Calm {
    fn slots(&self, _: &str) -> Slots {
        Slots { first: true, another: true, periodic: true }
    }

    fn fleet(&self, _: &GateView, _: &NodeView, _: bool) -> Fleet {
        Fleet::default()
    }

    fn requested_at(&self, _: &str, _: &NodeView) -> Option<Timestamp> {
        None
    }

    fn agent(&self, _: &str, _: &NodeView) -> AgentPod {
        AgentPod::NotExpected
    }
}

/// A gate of its own uid. Both gates set the same label, as by default.
fn gate_of(name: &str, taint: &str) -> GateView {
    let mut gate = GateView { name: name.into(), uid: format!("gate-{name}"), ..gate() };
    gate.spec.taints = vec![GateTaint { key: taint.into(), ..GateTaint::default() }];
    gate
}

/// One node with its gates, and the API server as far as the effects need it.
struct World {
    node: NodeView,
    gates: Vec<GateView>,
    workers: Vec<WorkerView>,
    /// Seconds.
    later: i64,
}

impl World {
    /// A new node with the taints of two gates, of which the gate `wide` has precedence.
    fn new() -> Self {
        let mut wide = gate_of("wide", WIDE);
        wide.spec.priority = 1;
        let mut node = node();
        node.taints = [WIDE, STRICT, "foreign"].map(taint).into();
        Self { node, gates: vec![gate_of("strict", STRICT), wide], workers: Vec::new(), later: 0 }
    }

    /// A node that both gates verified.
    fn verified() -> Self {
        let mut world = Self::new();
        for number in [1, 2] {
            world.start(number);
            world.end(Outcome::Passed);
        }
        world
    }

    fn gate(&mut self, name: &str) -> &mut GateView {
        self.gates.iter_mut().find(|gate| gate.name == name).expect("the gate exists")
    }

    fn evaluate(&self) -> Evaluated<'_> {
        let inputs = NodeInputs {
            node: &self.node,
            workers: &self.workers,
            daemons: None,
            outages: Some(&[]),
            ready_since: Duration::ZERO,
            confirmed_at: None,
            now: now() + SignedDuration::from_secs(self.later),
            elapsed: Duration::from_secs(self.later.unsigned_abs()),
        };
        evaluate(inputs, &self.gates, &Calm)
    }

    /// Decides once and applies the effects.
    fn step(&mut self) -> Decision {
        let evaluated = self.evaluate();
        let (decision, gate) = (evaluated.decision.clone(), evaluated.ownership.gate().cloned());
        for effect in &decision.effects {
            let gate = gate.as_ref().unwrap_or(&self.gates[0]);
            match effect {
                Effect::StartWorker(identity) => {
                    let mut worker = worker(identity.number, Progress::Running);
                    (worker.identity, worker.first_seen) =
                        (identity.clone(), Duration::from_secs(self.later.unsigned_abs()));
                    self.workers.push(worker);
                }
                Effect::RemoveWorker { uid, .. } => self.workers.retain(|worker| worker.uid != *uid),
                Effect::RemoveTaint(record) | Effect::Admit(record) => {
                    self.node
                        .taints
                        .retain(|taint| gate.spec.taints.iter().all(|own| *own.key != *taint.key));
                    if !record.unlabelled {
                        let VerifiedLabel { key, value } = &gate.spec.verified_label;
                        self.node.labels.insert(key.as_str(), value);
                    }
                    self.write(record);
                }
                Effect::Retaint(record) => {
                    self.node.taints.extend(gate.spec.taints.iter().map(|own| taint(&own.key)));
                    self.node.labels.remove(&gate.spec.verified_label.key);
                    self.write(record);
                }
                Effect::PatchRecord(record) => self.write(record),
                _ => {}
            }
        }
        decision
    }

    fn write(&mut self, record: &Record) {
        set_record(&mut self.node, record);
        self.node.record_seen_at = Duration::from_secs(self.later.unsigned_abs());
        self.node.verify = None;
    }

    /// Expects that this worker starts. Returns the gate that started it.
    fn start(&mut self, number: u32) -> String {
        let gate = self.evaluate().ownership.gate().map(|gate| gate.name.clone());
        let decision = self.step();
        assert_eq!(starts(&decision), Some(number), "{decision:?}");
        gate.expect("a gate decided")
    }

    /// The newest worker ends.
    fn end(&mut self, outcome: Outcome) -> Decision {
        let worker = self.workers.iter_mut().max_by_key(|worker| worker.identity.number).expect("a worker");
        let result = CheckResult::new("dns", "kubernetes.", outcome, "Timeout", "no answer");
        worker.progress = Progress::Reported(Report::judge(worker.identity.clone(), vec![result], 5));
        self.step()
    }

    fn section(&self, gate: &str) -> &Record {
        let record = self.node.record.as_ref().expect("a record");
        record.section(format!("gate-{gate}").as_str()).expect("a section")
    }

    fn taints(&self) -> Vec<&str> {
        self.node.taints.iter().map(|taint| &*taint.key).collect()
    }

    fn is_labelled(&self) -> bool {
        self.node.labels.get(LABEL).is_some()
    }

    /// The gate that the node counts for, and its state.
    fn counted(&self) -> (Option<String>, State) {
        let counted = self.evaluate().counted;
        (counted.ownership.gate().map(|gate| gate.name.clone()), counted.state)
    }

    fn assert_idle(&self) {
        let evaluated = self.evaluate();
        assert_eq!(evaluated.decision.effects, vec![], "{:?}", self.node.record);
        assert_eq!(evaluated.decision.state, State::Verified);
    }
}

#[test]
fn g08_two_gates_verify_a_node_one_after_the_other() {
    let mut world = World::new();
    assert_eq!(world.start(1), "wide");
    world.end(Outcome::Passed);
    assert_eq!((world.taints(), world.is_labelled()), (vec![STRICT, "foreign"], false), "it is still gated");
    assert_eq!(world.counted(), (Some("strict".into()), State::Pending));
    assert_eq!(world.start(2), "strict");
    world.end(Outcome::Passed);
    assert_eq!((world.taints(), world.is_labelled()), (vec!["foreign"], true));
    world.assert_idle();
    assert_eq!(world.counted(), (Some("wide".into()), State::Verified));
    let also: Vec<_> =
        world.evaluate().counted.also_verified_by.iter().map(|gate| gate.name.clone()).collect();
    assert_eq!(also, ["strict"]);
    for gate in ["wide", "strict"] {
        let Record { open, unlabelled, attempts, .. } = world.section(gate);
        assert_eq!((*open, *unlabelled, *attempts), (true, false, 1), "{gate}");
    }
}

#[test]
fn g14_an_audit_does_not_judge_its_worker_where_another_gate_holds_the_node_by_the_same_taint() {
    for enforcement in [Enforcement::Enforce, Enforcement::Paused] {
        let mut world = World::new();
        world.gate("wide").spec.enforcement = Enforcement::Audit;
        world.node.taints = vec![taint(WIDE)];
        assert_eq!(world.start(1), "wide");
        let mut holds = gate_of("holds", WIDE);
        holds.spec.enforcement = enforcement;
        world.gates.push(holds);
        for outcome in [Outcome::Failed, Outcome::Passed] {
            world.end(outcome);
            assert_eq!(world.taints(), [WIDE], "{enforcement:?} {outcome:?}: the node is held");
        }
    }
}

#[test]
fn g08_attempts_of_one_gate_are_no_attempts_of_the_other() {
    let mut world = World::new();
    for number in 1..=3 {
        world.later += 60;
        assert_eq!(world.start(number), "wide");
        world.end(Outcome::Failed);
    }
    world.later += 60;
    world.start(4);
    world.end(Outcome::Passed);
    assert_eq!(world.start(5), "strict");
    world.end(Outcome::Failed);
    assert_eq!((world.section("strict").attempts, world.section("wide").attempts), (1, 4));
    assert_eq!(world.counted(), (Some("strict".into()), State::Unverified));
}

#[test]
fn g08_each_gate_verifies_again_by_its_own_mode() {
    let mut world = World::verified();
    world.gate("strict").spec.mode = Mode::Continuous;
    let wait = world.evaluate().decision.recheck_in.expect("the period of the gate of lower precedence");
    assert!(wait >= Duration::from_hours(3), "{wait:?}");
    world.later = 9 * 3600;
    assert_eq!(world.start(3), "strict");
    assert_eq!(world.counted(), (Some("wide".into()), State::Verified));
    world.end(Outcome::Failed);
    assert_eq!((world.section("strict").attempts, world.section("wide").attempts), (1, 1));
    // Both have a period now.
    world.gate("wide").spec.mode = Mode::Continuous;
    assert_eq!(world.start(4), "wide", "the one with precedence comes first");
    world.end(Outcome::Passed);
    world.later += 600;
    assert_eq!(world.start(5), "strict", "the last worker did not pass");
}

#[test]
fn g08_the_stricter_gate_taints_the_node_again_by_itself() {
    let mut world = World::verified();
    world.gate("strict").spec.on_reboot = OnReboot::Regate;
    world.gate("wide").spec.on_reboot = OnReboot::Ignore;
    world.node.boot_id = "boot-2".into();
    let evaluated = world.evaluate();
    assert_eq!(
        evaluated.counted.ownership.gate().map(|gate| &*gate.name),
        Some("strict"),
        "it counts at once"
    );
    world.step();
    assert_eq!((world.taints(), world.is_labelled()), (vec!["foreign", STRICT], false));
    assert_eq!(world.start(3), "strict");
    world.end(Outcome::Passed);
    assert_eq!((world.taints(), world.is_labelled()), (vec!["foreign"], true));
    world.assert_idle();
    assert_eq!(world.section("wide").number, 1, "it ignores reboots");
}

#[test]
fn g08_after_a_reboot_both_gates_verify() {
    let mut world = World::verified();
    world.node.boot_id = "boot-2".into();
    assert_eq!(world.start(3), "wide");
    world.end(Outcome::Passed);
    assert_eq!(world.start(4), "strict");
    world.end(Outcome::Passed);
    world.assert_idle();
    assert!(
        world.node.record.as_ref().expect("a record").sections().all(|one| one.scope.boot_id == "boot-2")
    );
}

#[test]
fn g08_a_request_is_answered_by_both_gates() {
    let mut world = World::verified();
    world.node.verify = Some("now".into());
    assert_eq!(world.start(3), "wide");
    world.end(Outcome::Passed);
    assert_eq!(world.node.verify, None);
    assert_eq!(world.start(4), "strict");
    world.end(Outcome::Passed);
    world.assert_idle();
}

#[test]
fn g08_a_label_that_somebody_removed_starts_one_worker() {
    let mut world = World::verified();
    world.node.labels = Labels::default();
    world.start(3);
    world.end(Outcome::Passed);
    assert!(world.is_labelled());
    world.assert_idle();
}

#[test]
fn g08_a_withheld_label_is_set_without_a_worker() {
    let mut world = World::new();
    world.start(1);
    world.end(Outcome::Passed);
    // A user admits the node.
    world.node.taints = vec![taint("foreign")];
    let decision = world.step();
    assert_eq!((starts(&decision), world.is_labelled()), (None, true), "{decision:?}");
    world.assert_idle();
}

#[test]
fn g08_gates_with_labels_of_their_own_set_them_at_once() {
    let mut world = World::new();
    world.gate("wide").spec.verified_label.key = "wide".into();
    world.start(1);
    world.end(Outcome::Passed);
    assert_eq!(world.node.labels.get("wide"), Some("true"));
}

#[test]
fn g08_a_gate_that_was_created_again_keeps_its_section() {
    for remade in ["wide", "strict"] {
        let mut world = World::verified();
        let other = if remade == "wide" { "strict" } else { "wide" };
        world.gate(remade).uid = "gate-new".into();
        world.gate(other).spec.on_reboot = OnReboot::Ignore;
        world.assert_idle();
        world.node.boot_id = "boot-2".into();
        assert_eq!(world.start(3), remade);
        world.end(Outcome::Passed);
        world.assert_idle();
        let record = world.node.record.as_ref().expect("a record");
        assert_eq!((record.sections().count(), &record.scope.gate_uid), (2, &Id::from("gate-new")));
    }
}

#[test]
fn g08_no_gate_takes_the_section_of_a_deleted_one_with_another_taint() {
    let mut world = World::new();
    world.start(1);
    world.end(Outcome::Passed);
    let wide = world.gates.pop().expect("the gate wide");
    assert_eq!(world.start(2), "strict");
    world.end(Outcome::Passed);
    world.gates.push(GateView { uid: "gate-new".into(), ..wide });
    world.node.boot_id = "boot-2".into();
    assert_eq!(world.start(3), "wide", "it verifies the node again");
}

#[test]
fn g08_a_node_of_a_deleted_gate_stays_unserved() {
    let mut world = World::new();
    world.start(1);
    world.end(Outcome::Failed);
    world.gates.pop();
    world.node.taints = [STRICT, "custom"].map(taint).into();
    let mut record = world.node.record.as_deref().expect("a record").clone();
    record.taint = "custom".into();
    world.write(&record);
    assert_eq!(world.start(2), "strict");
    world.end(Outcome::Passed);
    assert_eq!(world.evaluate().decision.state, State::Unserved, "the deleted gate's taint is still there");
}

#[test]
fn g08_a_worker_is_evaluated_by_its_own_gate() {
    let mut world = World::verified();
    world.gate("strict").spec.on_reboot = OnReboot::Ignore;
    world.gate("wide").spec.on_reboot = OnReboot::Ignore;
    world.gate("strict").spec.mode = Mode::Continuous;
    world.later = 8 * 3600;
    assert_eq!(world.start(3), "strict");
    // Somebody taints the node for the other gate meanwhile.
    world.node.taints.push(taint(WIDE));
    let evaluated = world.evaluate();
    assert_eq!(evaluated.ownership.gate().map(|gate| &*gate.name), Some("strict"));
    assert_eq!(world.counted(), (Some("wide".into()), State::Unverified), "it is gated");
    world.end(Outcome::Passed);
    assert_eq!(world.section("strict").number, 3);
    assert!(world.taints().contains(&WIDE) && world.section("strict").unlabelled, "{:?}", world.node);
    assert_eq!(world.section("wide").verdict, Some(Verdict::Passed), "it has no verdict of the other gate");
    assert_eq!(world.start(4), "wide");
    world.end(Outcome::Passed);
    assert!(world.is_labelled());
    world.assert_idle();
}

#[test]
fn g08_a_worker_of_a_paused_gate_is_no_verdict_of_another() {
    let mut world = World::verified();
    world.gate("strict").spec.mode = Mode::Continuous;
    world.later = 8 * 3600;
    world.start(3);
    world.gate("strict").spec.enforcement = Enforcement::Paused;
    let verdict = world.section("wide").clone();
    let decision = world.step();
    assert_eq!(recorded(&decision).map(|record| record.number), Some(3), "the number is used: {decision:?}");
    let Record { verdict: is, why, attempts, .. } = world.section("wide");
    assert_eq!((is, why, attempts), (&verdict.verdict, &verdict.why, &verdict.attempts));
    world.step();
    assert_eq!(world.workers, [], "the paused gate removes it");
    world.assert_idle();
}

#[test]
fn g08_a_gate_leaves_the_ended_workers_of_another_alone() {
    let mut world = World::verified();
    world.gate("strict").spec.mode = Mode::Continuous;
    world.later = 8 * 3600;
    world.start(3);
    world.end(Outcome::Failed);
    let names: Vec<_> = world.workers.iter().map(|worker| worker.identity.number).collect();
    assert_eq!(names, [3], "kept for its logs");
    world.step();
    world.step();
    assert_eq!(world.workers.len(), 1);
    world.gates.retain(|gate| gate.name != "strict");
    world.step();
    assert_eq!(world.workers, [], "its gate is gone");
}

#[test]
fn g08_a_gate_that_waits_does_not_keep_the_other_from_its_turn() {
    let mut world = World::verified();
    world.node.verify = Some("now".into());
    world.start(3);
    world.end(Outcome::Inconclusive);
    // The first gate waits for its next worker; the other one answers the request meanwhile.
    assert_eq!(world.start(4), "strict");
    world.end(Outcome::Passed);
    let wait = world.evaluate().decision.recheck_in.expect("the backoff of the first gate");
    assert!(wait < Duration::from_mins(1), "{wait:?}");
}

#[test]
fn g08_a_condition_that_is_refused_does_not_keep_the_other_gate_from_its_turn() {
    let mut world = World::verified();
    world.gate("wide").spec.node_condition = NodeCondition::NetworkVerified;
    let decision = world.evaluate().decision;
    assert!(matches!(decision.effects[..], [Effect::SetNodeCondition(_)]), "{decision:?}");
    // The condition is not written, so it is decided again and again.
    world.node.taints.push(taint(STRICT));
    assert_eq!(world.start(3), "strict");
}

#[test]
fn g08_a_record_of_one_gate_becomes_the_first_of_two_sections() {
    let mut world = World::new();
    world.gates.remove(0);
    world.node.taints = vec![taint(WIDE)];
    world.start(1);
    world.end(Outcome::Passed);
    let text = world.node.record_annotation().expect("a record").into_owned();
    assert!(!text.contains("others") && !text.contains(WIDE), "as releases for one gate wrote it: {text}");
    world.gates.push(gate_of("strict", STRICT));
    world.node.taints = vec![taint(STRICT)];
    assert_eq!(world.start(2), "strict");
    world.end(Outcome::Passed);
    assert_eq!((world.section("wide").number, &*world.section("wide").taint), (1, WIDE));
    assert_eq!(world.node.record.as_ref().expect("a record").number, 2);
    world.assert_idle();
}

proptest! {
    /// Whatever happens to a node with two gates, a taint is removed only by the gate whose worker passed, numbers only
    /// rise, no verdict is attributed to the other gate, and in the end both gates open it.
    #[test]
    fn g08_two_gates_never_judge_for_each_other(
        happens in prop::collection::vec((0_u8..7, any_progress()), 1..40),
        continuous: bool,
    ) {
        let mut world = World::new();
        if continuous {
            world.gate("strict").spec.mode = Mode::Continuous;
        }
        for (what, outcome) in happens {
            world.later += 20;
            match what {
                0 => world.node.taints.push(taint(WIDE)),
                1 => world.node.taints.push(taint(STRICT)),
                2 => world.node.labels = Labels::default(),
                3 => world.node.verify = Some("now".into()),
                4 => world.node.boot_id = format!("boot-{}", world.later).into(),
                5 => world.node.taints.clear(),
                _ => world.later += 7 * 3600,
            }
            let before = sections(&world);
            let last = world.node.record.as_ref().map_or(0, |record| record.number);
            let running = world.workers.iter().filter(|worker| !worker.has_ended()).count();
            prop_assert!(running <= 1);
            let decider = world.evaluate().ownership.gate().map(|gate| gate.uid.clone());
            let decision = match outcome.filter(|_| running == 1) {
                Some(outcome) => world.end(outcome),
                None => world.step(),
            };
            if let Some(number) = starts(&decision) {
                prop_assert!(number > last, "{number} after {last}");
            }
            for (gate, section) in sections(&world) {
                if Some(&gate) != decider.as_ref() && let Some(before) = &before[&gate] {
                    let section = section.expect("nothing is lost");
                    prop_assert_eq!((&section.verdict, section.open, section.attempts, &section.why), (&before.verdict, before.open, before.attempts, &before.why));
                }
            }
        }
        for _ in 0..40 {
            world.later += 400;
            if world.workers.iter().any(|worker| !worker.has_ended()) {
                world.end(Outcome::Passed);
            } else {
                world.step();
            }
        }
        world.gate("strict").spec.mode = Mode::Bootstrap;
        let left = world.node.taints.iter().filter(|taint| *taint.key == *WIDE || *taint.key == *STRICT).count();
        prop_assert_eq!(left, 0);
    }
}

fn sections(world: &World) -> BTreeMap<String, Option<Record>> {
    let record = world.node.record.as_deref();
    let of = |gate: &GateView| {
        (gate.uid.clone(), record.and_then(|record| record.section(gate.uid.as_str())).cloned())
    };
    world.gates.iter().map(of).collect()
}

//! Whether what was seen may still be acted on.

use super::*;

#[test]
fn what_was_seen_is_fresh_for_its_time_and_no_longer() {
    let held = |world: &mut World, seconds: i64| {
        world.now = at(0) + SignedDuration::from_secs(seconds);
        world.hold()
    };
    for world in [&mut World::new(), &mut World::by_person()] {
        assert_eq!(
            (held(world, 0), held(world, 600), held(world, 601)),
            (None, None, Some(BlockReason::EvidenceExpired))
        );
        world.policy().spec.evidence_seconds = 60;
        assert_eq!((held(world, 60), held(world, 61)), (None, Some(BlockReason::EvidenceExpired)));
    }
}

#[test]
fn a_clock_that_is_ahead_does_not_make_it_fresh_for_ever() {
    let mut world = World::by_person();
    world.request.spec.causes = vec![cause(CauseSource::Person, at(60))];
    world.now = at(59);
    assert_eq!(world.hold(), None, "a minute is forgiven");
    world.now = at(59) - SignedDuration::from_secs(1);
    let held = world.held();
    assert_eq!(held.hold, BlockReason::EvidenceExpired);
    assert!(held.message.contains("person ada") && held.message.contains("`observedAt`"), "{}", held.message);
}

#[test]
fn a_person_who_does_not_say_when_asked_when_the_object_was_made() {
    let mut world = World::by_person();
    world.request.spec.causes[0].observed_at = None;
    world.request.created = at(0);
    assert_eq!(world.hold(), None);
    world.now = at(11);
    assert_eq!(world.hold(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn a_gate_is_believed_only_by_what_the_node_bears_now() {
    let gate = |change: fn(&mut Record)| {
        World::with(|world| change(world.target().record.as_mut().expect("there is one"))).hold()
    };
    assert_eq!(gate(|_| ()), None);
    assert_eq!(
        gate(|record| record.verdict = Some(Verdict::Inconclusive)),
        Some(BlockReason::EvidenceExpired)
    );
    assert_eq!(gate(|record| record.at = None), Some(BlockReason::EvidenceExpired));
    assert_eq!(gate(|record| record.scope.boot_id = "boot-0".into()), Some(BlockReason::OtherBoot));
    assert_eq!(gate(|record| record.open = true), Some(BlockReason::NodeRecovered));
    assert_eq!(gate(|record| record.verdict = Some(Verdict::Passed)), Some(BlockReason::NodeRecovered));
    assert_eq!(World::with(|world| world.target().record = None).hold(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn a_verdict_that_the_gate_did_not_ask_with_revives_nothing() {
    let held = World::with(|world| world.target().record = Some(failed_record("n1", at(1)))).held();
    assert_eq!(held.hold, BlockReason::EvidenceExpired);
    assert!(held.message.contains("ask again"), "{}", held.message);
}

#[test]
fn who_is_stuck_is_blamed_only_where_others_could_tell() {
    let stuck = |ran_elsewhere| {
        let mut world = World::new();
        world.request.spec.causes[0].verdict = CauseVerdict::Stuck;
        world.request.spec.causes[0].checks = vec![];
        let inconclusive =
            Record { verdict: Some(Verdict::Inconclusive), failed: vec![], ..failed_record("n1", at(0)) };
        world.target().record = Some(inconclusive);
        world.ran_elsewhere = ran_elsewhere;
        world.compared = Compared::default();
        world
    };
    let burnt = stuck(true).approved().fuses;
    assert_eq!(
        (burnt.len(), &*burnt[0].check),
        (1, "Stuck"),
        "replacements that are stuck alike are a loop, too"
    );
    let held = stuck(false).held();
    assert!(
        held.hold == BlockReason::EvidenceExpired && held.message.contains("same image"),
        "{}",
        held.message
    );
}

#[test]
fn what_came_to_an_end_is_not_replayed_until_it_is_seen_again() {
    let mut world = World::by_person();
    let given_up = vec![Finding::new("Succeeded", "False", "Paused", "")];
    world.request.status = world.request.status_with(given_up, at(0));
    let held = world.held();
    assert!(
        held.hold == BlockReason::EvidenceExpired && held.message.contains("nothing new"),
        "{}",
        held.message
    );
    world.request.spec.causes[0].observed_at = Some(at(0) + SignedDuration::from_secs(1));
    assert_eq!(world.hold(), None);
}

#[test]
fn one_fresh_cause_is_enough_and_only_it_decides() {
    let mut world = World::by_person();
    let stale = RemediationCause { checks: vec![check("tcp", "x:1")], ..cause(CauseSource::Gate, at(-90)) };
    world.request.spec.causes.insert(0, stale);
    world.compared = Compared::default();
    assert_eq!(world.approved().fuses, vec![], "what the gate said then is neither compared nor counted");
    world.policy().status.down = vec![down("a", "tcp", "x:1")];
    assert_eq!(world.hold(), None);
    world.request.spec.causes = vec![];
    assert_eq!(world.hold(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn i05_what_waited_through_a_pause_is_dropped() {
    let mut world = World::by_person();
    world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(30) });
    assert_eq!(world.hold(), Some(BlockReason::Paused));
    world.now = at(30);
    assert_eq!(world.hold(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn i04_evidence_of_another_life_is_void() {
    let mut world = World::new();
    world.target().identity.boot_id = "boot-2".into();
    assert_eq!(world.hold(), Some(BlockReason::OtherBoot));
    world.request.spec.node.boot_id = String::new();
    assert_eq!(world.hold(), Some(BlockReason::OtherBoot), "the record says which boot it is about");
}

#[test]
fn the_gate_that_asked_last_is_the_one_that_blames() {
    let mut older = cause(CauseSource::Gate, at(0));
    older.name = "older".into();
    let request =
        request("n1", vec![older, cause(CauseSource::Person, at(9)), cause(CauseSource::Gate, at(1))]);
    assert_eq!(request.gate_cause().map(|(gate, _)| gate), Some("default"));
}

/// Otherwise it would come to an end anew at every look, and be written each time.
#[test]
fn an_end_is_not_before_the_wish_whatever_the_clock_says() {
    let mut request = request("x", vec![cause(CauseSource::Gate, at(10))]);
    let over = Blocked::new(BlockReason::NodeRecovered, "it passed").findings();
    request.status = request.status_with(over.clone(), at(5));
    assert!(request.is_history());
    assert_eq!(request.status_with(over, at(6)), request.status, "nothing new");
    request.spec.causes[0].observed_at = Some(at(11));
    assert!(!request.is_history(), "somebody asks again");
}

//! The budget.

use proptest::prelude::*;

use super::*;

/// How many minutes ago, which group and zone, and whether it ended.
type PastApproval = (i64, &'static str, &'static str, bool);

/// A world with these approvals, some minutes ago. Those that ended did so at once.
fn with_approvals(approvals: &[PastApproval]) -> World {
    let mut world = World::by_person();
    world.now = at(0);
    world.policy().spec.budget = crate::api::Budget {
        max_in_flight_per_group: 9,
        max_in_flight_per_zone: 9,
        max_in_flight: 9,
        max_per_hour: 99,
        max_group_percent_per_hour: 100,
    };
    for (i, (ago, group, zone, ended)) in approvals.iter().enumerate() {
        let approved = at(-ago);
        world.policy().status.reservations.push(Reservation {
            group: (*group).into(),
            zone: (*zone).into(),
            ended: ended.then_some(approved),
            ..reservation(&format!("x{i}"), approved)
        });
    }
    world
}

/// The field of the budget that the message names.
fn limiting_field(world: &World) -> Option<String> {
    let Approval::Blocked(blocked) = world.evaluate() else { return None };
    assert_eq!(blocked.reason, BlockReason::BudgetSpent, "{}", blocked.message);
    blocked.message.split("spec.budget.").nth(1)?.split('`').next().map(str::to_owned)
}

#[test]
fn in_flight_limits_hold_for_group_zone_and_cluster() {
    let table: [(&[PastApproval], Option<&str>); 6] = [
        (&[(1, "pool", "b", false)], Some("maxInFlightPerGroup")),
        (&[(1, "other", "a", false)], Some("maxInFlightPerZone")),
        (&[(1, "other", "b", false)], None),
        (&[(1, "other", "b", false), (1, "third", "c", false)], Some("maxInFlight")),
        (&[(1, "pool", "a", true)], None),
        (&[(90, "pool", "b", false)], Some("maxInFlightPerGroup")),
    ];
    for (approvals, expected) in table {
        let mut world = with_approvals(approvals);
        let budget =
            crate::api::Budget { max_per_hour: 99, max_group_percent_per_hour: 100, ..Default::default() };
        world.policy().spec.budget = budget;
        assert_eq!(limiting_field(&world).as_deref(), expected, "{approvals:?}");
    }
}

#[test]
fn the_hourly_limit_is_a_sliding_window() {
    let approvals = [(59, "b", "b", true), (30, "c", "c", true), (1, "d", "d", true)];
    let mut world = with_approvals(&approvals);
    world.policy().spec.budget.max_per_hour = 3;
    assert_eq!(limiting_field(&world).as_deref(), Some("maxPerHour"));
    assert_eq!(world.blocked().requeue_after, Some(Duration::from_mins(1)), "when the oldest is an hour old");
    world.now = at(1) - SignedDuration::from_nanos(1);
    assert_eq!(limiting_field(&world).as_deref(), Some("maxPerHour"));
    world.now = at(1);
    assert_eq!(world.block_reason(), None);
    world.policy().status.reservations[0].at = at(30);
    assert_eq!(
        limiting_field(&world).as_deref(),
        Some("maxPerHour"),
        "a clock that went back does not free anything"
    );
}

#[test]
fn a_group_loses_at_most_its_percentage_in_an_hour() {
    for (size, percent, allowed) in [
        (1, 10, 1),
        (9, 10, 1),
        (10, 10, 1),
        (19, 10, 1),
        (20, 10, 2),
        (29, 10, 2),
        (30, 10, 3),
        (9, 0, 0),
        (10, 100, 10),
    ] {
        let lost = |count: usize| {
            let mut world = with_approvals(&vec![(5, "pool", "b", true); count]);
            world.policy().spec.budget.max_group_percent_per_hour = percent;
            world.target().unschedulable = true;
            world.group_stats = group(size, 0);
            limiting_field(&world)
        };
        if allowed > 0 {
            assert_eq!(lost(allowed - 1), None, "{size} nodes, {percent} %");
        }
        assert_eq!(lost(allowed).as_deref(), Some("maxGroupPercentPerHour"), "{size} nodes, {percent} %");
    }
    let mut others = with_approvals(&[(5, "other", "b", true)]);
    others.policy().spec.budget.max_group_percent_per_hour = 10;
    others.group_stats = group(9, 9);
    assert_eq!(others.block_reason(), None, "those of other groups do not count");
}

#[test]
fn a_group_keeps_a_schedulable_node() {
    let open = |count, change: Change| {
        let mut world = World::by_person();
        world.group_stats = group(20, count);
        change(&mut world);
        world.block_reason()
    };
    assert_eq!((open(2, |_| ()), open(1, |_| ())), (None, Some(BlockReason::LastOpenNode)));
    assert_eq!(open(0, |world| world.target().unschedulable = true), None, "a cordoned one is not open");
    assert_eq!(
        World::with(|world| world.group_stats = group(20, 0)).block_reason(),
        None,
        "one that is blocked is not open"
    );
    let other_goes: Change = |world| {
        world.policy().spec.budget.max_in_flight_per_group = 9;
        let going = Reservation { group: "pool".into(), ..reservation("x", at(0)) };
        world.policy().status.reservations = vec![going];
        world.policy().spec.budget.max_group_percent_per_hour = 100;
    };
    assert_eq!((open(2, other_goes), open(3, other_goes)), (Some(BlockReason::LastOpenNode), None));
}

#[test]
fn r01_r13_a_schedulable_node_is_ready_and_not_gated() {
    let last = |change: Change| {
        let mut world = World::by_person();
        world.target().record = Some(failed_record("n1", at(0)));
        world.group_stats = group(2, 1);
        change(&mut world);
        world.block_reason()
    };
    assert_eq!(last(|_| ()), Some(BlockReason::LastOpenNode), "a user freed it, whatever its record says");
    assert_eq!(last(|world| world.target().view.taints = vec![gate_taint()]), None, "its gate holds it");
    assert_eq!(last(|world| world.target().view.ready = false), None, "the other node is the open one");
}

/// Writes the conditions as the operator does.
fn write(request: &mut Remediation, findings: Vec<Finding>, now: Timestamp) {
    let is_approval = findings.iter().any(|one| one.type_ == "Approved" && one.status == "True");
    let approved_at = if is_approval && !request.is_approved() { Some(now) } else { request.approved_at() };
    request.status = NodeRemediationStatus { approved_at, ..request.status_with(findings, now) };
}

fn going_on() -> Vec<Finding> {
    vec![
        Finding::new("Approved", "True", "WithinBudget", ""),
        Finding::new("Succeeded", "Unknown", "InProgress", ""),
    ]
}

fn given_up() -> Vec<Finding> {
    vec![Finding::new("Approved", "False", "Paused", ""), Finding::new("Succeeded", "False", "Paused", "")]
}

#[test]
fn a_lost_status_is_rebuilt_from_the_remediations() {
    let mut other = request("x", vec![cause(CauseSource::Person, at(0))]);
    write(&mut other, going_on(), at(0));
    let mut world = World::by_person();
    world.others = vec![other];
    assert!(
        limiting_field(&world).is_some_and(|field| field == "maxInFlightPerGroup"),
        "its group is unknown"
    );
    let restored = policy::status_of(world.policy.as_ref().expect("one"), &world.others).reservations;
    assert_eq!((&*restored[0].remediation, restored[0].at, restored[0].ended), ("x", at(0), None));
    write(&mut world.others[0], given_up(), at(1));
    assert_eq!(world.block_reason(), None, "it came to an end");
    world.policy().spec.budget.max_per_hour = 1;
    assert_eq!(limiting_field(&world).as_deref(), Some("maxPerHour"), "and was approved all the same");
    world.now = at(10);
    world.request.spec.causes = vec![cause(CauseSource::Person, at(9))];
    assert_eq!(limiting_field(&world).as_deref(), Some("maxPerHour"));
    world.now = at(60);
    world.request.spec.causes = vec![cause(CauseSource::Person, at(59))];
    assert_eq!(world.block_reason(), None);
}

#[test]
fn r05_a_node_in_replacement_is_not_approved_for_another_request() {
    let mut world = World::by_person();
    world.policy().spec.budget = crate::api::Budget {
        max_in_flight_per_group: 9,
        max_in_flight_per_zone: 9,
        max_in_flight: 9,
        max_per_hour: 99,
        max_group_percent_per_hour: 100,
    };
    let earlier = Reservation { uid: "a deleted request".into(), ..reservation("n1", at(0)) };
    world.policy().status.reservations = vec![earlier];
    let blocked = world.blocked();
    assert!(
        blocked.reason == BlockReason::BudgetSpent && blocked.message.contains("already"),
        "{}",
        blocked.message
    );
}

/// It was approved at noon and given up; later it was requested again, and is blocked.
pub(super) fn given_up_and_requested_again() -> Remediation {
    let mut request = request("n1", vec![cause(CauseSource::Person, at(0))]);
    write(&mut request, going_on(), at(0));
    write(&mut request, given_up(), at(15));
    request.spec.causes = vec![cause(CauseSource::Person, at(20))];
    let blocked = Blocked::new(BlockReason::BudgetSpent, "3 remediations were approved in the last hour");
    write(&mut request, blocked.findings(), at(21));
    request
}

#[test]
fn r03_a_given_up_act_leaves_no_reservation_in_flight() {
    let request = given_up_and_requested_again();
    let restored = |minutes| policy::status_at(&policy(), std::slice::from_ref(&request), at(minutes));
    let early = restored(22).reservations;
    assert!(early.len() == 1 && early[0].ended.is_some(), "it counts for the hour: {early:?}");
    assert_eq!(restored(61).reservations, [], "and no longer");
}

#[derive(Clone, Debug)]
enum Event {
    /// The replacement of this node is requested and evaluated.
    Ask(u8),
    Succeed(u8),
    GiveUp(u8),
    Minutes(i64),
    ReconcileStatus,
    LoseStatus,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        6 => (0..12_u8).prop_map(Event::Ask),
        2 => (0..12_u8).prop_map(Event::Succeed),
        2 => (0..12_u8).prop_map(Event::GiveUp),
        3 => (0..40_i64).prop_map(Event::Minutes),
        2 => Just(Event::ReconcileStatus),
        1 => Just(Event::LoseStatus),
    ];
    prop::collection::vec(one, 1..80)
}

/// A cluster of twelve nodes in two groups and three zones, and the truth about what was approved.
struct Cluster {
    policy: Policy,
    requests: Vec<Remediation>,
    /// Which node, when, and until when.
    approvals: Vec<(usize, Timestamp, Option<Timestamp>)>,
    now: Timestamp,
}

impl Cluster {
    fn place(node: usize) -> (String, String) {
        (format!("pool-{}", node % 2), format!("zone-{}", node % 3))
    }

    fn in_flight(&self) -> impl Iterator<Item = usize> {
        self.approvals.iter().filter(|(.., ended)| ended.is_none()).map(|(node, ..)| *node)
    }

    fn group_stats() -> GroupStats {
        let facts = || GroupCounts { size: 100, schedulable: 100, verdicts: vec![] };
        let groups = [("pool-0".to_owned(), facts()), ("pool-1".to_owned(), facts())].into();
        GroupStats { groups, verdicts: VerdictCounts::default() }
    }

    fn ask(&mut self, node: usize) {
        if self.in_flight().any(|one| one == node)
            || self.requests[node].condition("Succeeded").is_some_and(|is| is.status == "True")
        {
            return;
        }
        self.requests[node].spec.causes = vec![cause(CauseSource::Person, self.now)];
        let mut world = World::by_person();
        let (group, zone) = Self::place(node);
        let name = self.requests[node].name.clone();
        world.target = Some(Target { group, zone, record: None, ..target(&name) });
        world.policy = Some(self.policy.clone());
        world.request = self.requests[node].clone();
        world.others = self.requests.iter().filter(|one| one.name != name).cloned().collect();
        (world.group_stats, world.now) = (Self::group_stats(), self.now);
        match world.evaluate() {
            Approval::Approved(status) => {
                self.policy.status = *status;
                write(&mut self.requests[node], going_on(), self.now);
                self.approvals.push((node, self.now, None));
            }
            Approval::Blocked(blocked) => {
                write(&mut self.requests[node], blocked.findings(), self.now);
            }
        }
    }

    fn end(&mut self, node: usize, findings: Vec<Finding>) {
        let now = self.now;
        if let Some(approval) =
            self.approvals.iter_mut().find(|(one, _, ended)| *one == node && ended.is_none())
        {
            approval.2 = Some(now);
            write(&mut self.requests[node], findings, now);
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Ask(node) => self.ask(usize::from(*node)),
            Event::Succeed(node) => {
                let done = vec![
                    Finding::new("Approved", "True", "WithinBudget", ""),
                    Finding::new("Succeeded", "True", "Replaced", ""),
                ];
                self.end(usize::from(*node), done);
            }
            Event::GiveUp(node) => self.end(usize::from(*node), given_up()),
            Event::Minutes(minutes) => self.now += SignedDuration::from_mins(*minutes),
            Event::ReconcileStatus => {
                self.policy.status = policy::status_at(&self.policy, &self.requests, self.now);
            }
            Event::LoseStatus => self.policy.status = RemediationPolicyStatus::default(),
        }
        // A remediation that takes longer fails.
        let late = |(_, began, ended): &&(usize, Timestamp, Option<Timestamp>)| {
            ended.is_none() && self.now.duration_since(*began) >= MAX_DURATION
        };
        let late: Vec<usize> = self.approvals.iter().filter(late).map(|(node, ..)| *node).collect();
        for node in late {
            self.end(node, given_up());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_sequence_of_events_exceeds_the_budget(events in events(), per_hour in 1..5_i32, in_flight in 1..4_i32) {
        let mut policy = policy();
        policy.spec.budget = crate::api::Budget {
            max_in_flight_per_group: 2, max_in_flight_per_zone: 1, max_in_flight: in_flight, max_per_hour: per_hour, max_group_percent_per_hour: 100,
        };
        let requests = (0..12).map(|node| request(&format!("n{node:02}"), vec![])).collect();
        let mut cluster = Cluster { policy, requests, approvals: vec![], now: at(0) };
        for event in &events {
            cluster.apply(event);
            let going: Vec<(String, String)> = cluster.in_flight().map(Cluster::place).collect();
            prop_assert!(going.len() <= usize::try_from(in_flight).expect("few"));
            for (group, zone) in &going {
                prop_assert!(going.iter().filter(|(other, _)| other == group).count() <= 2);
                prop_assert!(going.iter().filter(|(_, other)| other == zone).count() <= 1);
            }
            for (_, began, _) in &cluster.approvals {
                let within = |other: &Timestamp| (SignedDuration::ZERO..BUDGET_WINDOW).contains(&other.duration_since(*began));
                // A node that was approved, given up and approved again while the status was lost counts once.
                let mut nodes: Vec<usize> =
                    cluster.approvals.iter().filter(|(_, other, _)| within(other)).map(|(node, ..)| *node).collect();
                nodes.sort_unstable();
                nodes.dedup();
                prop_assert!(nodes.len() <= usize::try_from(per_hour).expect("few"), "{:?}", cluster.approvals);
            }
        }
    }
}

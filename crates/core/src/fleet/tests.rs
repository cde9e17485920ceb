use jiff::Timestamp;

use super::*;
use crate::api::{Condition, NodeGateSpec, NodeGateStatus};
use crate::condition::Finding;
use crate::gate::GateView;
use crate::node::NodeView;
use crate::record::Record;
use crate::report::Verdict;

fn node_status(state: State, cause: Option<InconclusiveReason>) -> NodeStatus {
    NodeStatus {
        at: "g".into(),
        state,
        cause,
        retainted: false,
        also_verified_by: Box::default(),
        created_at: 0,
        retries: 0,
        worker_ms: None,
    }
}

fn gate() -> GateView {
    GateView {
        name: "g".into(),
        uid: "u".into(),
        resource_version: String::new(),
        generation: 4,
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        last_applied: None,
        spec: NodeGateSpec::default(),
        status: NodeGateStatus::default(),
    }
}

fn status_input<'a>(gate: &'a GateView, counts: &'a GateCounts) -> GateStatusInput<'a> {
    let autoscalers = Finding::new("AutoscalerCompatible", "True", "NoAutoscaler", "");
    GateStatusInput {
        gate,
        counts,
        gated_nodes: Vec::new(),
        audit: None,
        refused: None,
        pods_forbidden: false,
        failed_writes: None,
        shadowed_by: None,
        unserved: None,
        autoscalers,
        configuration: None,
    }
}

#[test]
fn the_condition_of_a_configured_gate_comes_and_goes() {
    let (gate, counts) = (gate(), GateCounts::default());
    let configuration = Some(Finding::new("ConfigurationApplied", "True", "Applied", ""));
    let configured = GateStatusInput { configuration, ..status_input(&gate, &counts) };
    let with = status(&configured, &NodeGateStatus::default(), "now");
    assert_eq!(condition(&with, "ConfigurationApplied").reason, "Applied");
    let without = status(&status_input(&gate, &counts), &with, "later");
    assert!(without.conditions.iter().all(|one| one.type_ != "ConfigurationApplied"), "{without:?}");
    assert_eq!(without.conditions.len() + 1, with.conditions.len());
}

fn condition<'a>(status: &'a NodeGateStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|one| one.type_ == type_).expect("a condition")
}

#[test]
fn each_node_is_counted_once() {
    let mut fleet = FleetIndex::default();
    for name in ["a", "b", "c"] {
        assert_eq!(fleet.set(&name.into(), Some(node_status(State::InProgress, None))), ["g".into()]);
    }
    assert!(fleet.set(&"a".into(), Some(node_status(State::InProgress, None))).is_empty(), "nothing changed");
    fleet.set(&"a".into(), Some(node_status(State::Verified, None)));
    fleet.set(&"b".into(), Some(node_status(State::Failed, None)));
    let counts = fleet.counts("g").counts();
    assert_eq!((counts.gated, counts.verifying, counts.verified, counts.failed), (2, 1, 1, 1));
    for name in ["a", "b", "c"] {
        fleet.set(&name.into(), None);
    }
    assert_eq!(fleet.counts("g"), GateCounts::default());
    assert!(
        fleet.by_gate.is_empty() && fleet.nodes.is_empty(),
        "the counts of a gate without nodes are dropped"
    );
}

#[test]
fn three_nodes_with_the_same_cause_are_a_common_failure() {
    let mut fleet = FleetIndex::default();
    fleet.set(&"a".into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::ImagePull))));
    fleet.set(&"b".into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::ImagePull))));
    fleet.set(&"c".into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::OutOfMemory))));
    assert!(!fleet.fleet("g", false).cannot_run, "two causes");
    fleet.set(&"c".into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::ImagePull))));
    assert!(fleet.fleet("g", false).cannot_run);
    let status = status(&status_input(&gate(), &fleet.counts("g")), &NodeGateStatus::default(), "now");
    let found = condition(&status, "WorkersCannotRun");
    assert!(found.status == "True" && found.message.contains("image"), "{found:?}");
    assert_eq!(condition(&status, "Ready").status, "False");
}

#[test]
fn cluster_dns_without_endpoints_is_reported_with_the_fix() {
    let mut fleet = FleetIndex::default();
    fleet.set(&"a".into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::ClusterDns))));
    let status = status(&status_input(&gate(), &fleet.counts("g")), &NodeGateStatus::default(), "now");
    let found = condition(&status, "ClusterDNSNotRunning");
    assert!(
        found.status == "True" && found.message.contains("must tolerate the taint node-ready/unverified")
    );
}

#[test]
fn conditions_keep_their_transition_time() {
    let (gate, counts) = (gate(), GateCounts::default());
    let first = status(&status_input(&gate, &counts), &NodeGateStatus::default(), "t1");
    let again = status(&status_input(&gate, &counts), &first, "t2");
    assert_eq!(again, first);
    let refused = GateStatusInput { refused: Some("quota"), ..status_input(&gate, &counts) };
    let then = status(&refused, &first, "t3");
    assert_eq!(condition(&then, "WorkersCannotRun").last_transition_time, "t3");
    assert_eq!(condition(&then, "Shadowed").last_transition_time, "t1");
    assert_eq!((then.observed_generation, condition(&then, "Ready").observed_generation), (4, 4));
}

#[test]
fn g01_refused_writes_are_a_condition_with_the_servers_message() {
    let (gate, counts) = (gate(), GateCounts::default());
    let message = "the removal of the taint: policy 'frozen' denied the request".to_owned();
    let failed_writes =
        Some(FailedWritesSummary { nodes: 2, example: "n1".into(), message: message.clone() });
    let refused = GateStatusInput { failed_writes, ..status_input(&gate, &counts) };
    let found = status(&refused, &NodeGateStatus::default(), "now");
    assert!(condition(&found, "WritesRefused").message.contains(&message), "{found:?}");
    let ready = condition(&found, "Ready");
    assert_eq!((&*ready.status, &*ready.reason), ("False", "WriteRefused"));
}

#[test]
fn g09_a_missing_right_to_watch_pods_is_named() {
    let (mut gate, counts) = (gate(), GateCounts::default());
    let workers = |gate: &GateView| {
        let forbidden = GateStatusInput { pods_forbidden: true, ..status_input(gate, &counts) };
        condition(&status(&forbidden, &NodeGateStatus::default(), "now"), "WorkersCannotRun").clone()
    };
    assert_eq!(workers(&gate).status, "False", "this gate needs no pods");
    let set = crate::api::DaemonSetRef { namespace: "kube-system".into(), name: "cni".into() };
    gate.spec.wait_for.daemon_sets = vec![set];
    let found = workers(&gate);
    assert!(found.status == "True" && found.message.contains("rbac.daemonSetPods"), "{found:?}");
}

#[test]
fn g15_a_gate_without_tainted_nodes_says_so() {
    let (mut gate, counts) = (gate(), GateCounts::default());
    for enforcement in [crate::api::Enforcement::Enforce, crate::api::Enforcement::Audit] {
        gate.spec.enforcement = enforcement;
        let autoscalers = Finding::new("AutoscalerCompatible", "Unknown", "NothingToGate", "add it");
        let input = GateStatusInput { autoscalers, ..status_input(&gate, &counts) };
        let found = status(&input, &NodeGateStatus::default(), "now");
        let ready = condition(&found, "Ready");
        assert_eq!((&*ready.status, &*ready.reason, &*ready.message), ("True", "NothingToGate", "add it"));
    }
}

#[test]
fn g14_the_status_counts_what_an_audit_would_have_held() {
    let mut gate = gate();
    assert_eq!(audit(&gate, [].into_iter()), None);
    gate.spec.enforcement = crate::api::Enforcement::Audit;
    let node = |name: &str, verdict| {
        let mut record = Record { audited: true, verdict: Some(verdict), ..Record::default() };
        record.scope.gate_uid = "u".into();
        NodeView { name: name.into(), record: Some(Box::new(record)), ..NodeView::default() }
    };
    let nodes = [node("b", Verdict::Failed), node("a", Verdict::Inconclusive), node("c", Verdict::Passed)];
    let counts = audit(&gate, nodes.iter()).expect("counts");
    assert_eq!(
        (counts.passed, counts.would_hold, counts.nodes),
        (1, 2, vec!["a".to_owned(), "b".to_owned()])
    );
}

#[test]
fn a_shadowed_gate_names_the_other_gate() {
    let (gate, counts) = (gate(), GateCounts::default());
    let shadowed = GateStatusInput { shadowed_by: Some(("first", 2)), ..status_input(&gate, &counts) };
    let found = status(&shadowed, &NodeGateStatus::default(), "now");
    let found = condition(&found, "Shadowed");
    assert!(found.status == "True" && found.message.contains("gate first"), "{found:?}");
}

#[test]
fn at_most_a_tenth_and_at_least_one_is_retainted() {
    let fleet = |open, retainted| Fleet { open, retainted, ..Fleet::default() };
    assert!(fleet(1, 0).may_retaint() && !fleet(8, 1).may_retaint());
    assert!(fleet(99, 9).may_retaint() && !fleet(90, 10).may_retaint());
}

#[test]
fn a_gate_with_precedence_shadows() {
    let (low, mut high) = (gate(), gate());
    high.name = "high".into();
    high.uid = "v".into();
    high.spec.priority = 1;
    let all = [&low, &high];
    assert_eq!(shadowing_gate(&low, &all, [].iter()), Some(("high".into(), 0)), "without any node");
    assert_eq!(shadowing_gate(&high, &all, [].iter()), None);
    let gated = NodeView {
        taints: vec![crate::node::Taint { key: "node-ready/unverified".into(), effect: "NoSchedule".into() }],
        ..NodeView::default()
    };
    assert_eq!(shadowing_gate(&low, &all, [gated.clone()].iter()), Some(("high".into(), 1)));
    let mut selective = high;
    selective.spec.node_selector.match_labels.insert("pool".into(), "gpu".into());
    assert_eq!(shadowing_gate(&low, &[&low, &selective], [gated].iter()), None);
}

#[test]
fn a_minority_is_no_common_failure() {
    let mut fleet = FleetIndex::default();
    for name in ["a", "b", "c"] {
        fleet.set(&name.into(), Some(node_status(State::Inconclusive, Some(InconclusiveReason::ImagePull))));
    }
    assert!(fleet.fleet("g", false).cannot_run);
    for name in ["d", "e", "f"] {
        fleet.set(&name.into(), Some(node_status(State::InProgress, None)));
    }
    assert!(!fleet.fleet("g", false).cannot_run, "three of six");
}

#[test]
fn nodes_that_failed_count_among_those_whose_workers_run() {
    let mut fleet = FleetIndex::default();
    for name in ["a", "b", "c"] {
        fleet.set(&name.into(), Some(node_status(State::Failed, Some(InconclusiveReason::ImagePull))));
    }
    assert!(fleet.fleet("g", false).cannot_run);
    for name in ["d", "e", "f"] {
        fleet.set(&name.into(), Some(node_status(State::Failed, None)));
    }
    assert!(!fleet.fleet("g", false).cannot_run, "three of six");
}

#[test]
fn unserved_nodes_are_freed_of_the_taint_that_they_have() {
    let (gate, counts) = (gate(), GateCounts::default());
    let unserved = Unserved { taint: "second/taint", node: "n1", count: 2 };
    let input = GateStatusInput { unserved: Some(unserved), ..status_input(&gate, &counts) };
    let found = status(&input, &NodeGateStatus::default(), "now");
    let message = &condition(&found, "NodesUnserved").message;
    assert!(message.contains("`kubectl taint node n1 second/taint-`"), "{message}");
}

#[test]
fn the_nodes_gated_longest_are_listed_with_their_reason() {
    let mut fleet = FleetIndex::default();
    let at = |second| Timestamp::from_second(second).expect("a time");
    let mut nodes: Vec<NodeView> = (0..25)
        .map(|i| NodeView { name: format!("n{i:02}").into(), created: at(100 - i), ..NodeView::default() })
        .collect();
    for node in &nodes {
        fleet.set(&node.name, Some(node_status(State::InProgress, None)));
    }
    fleet.set(&nodes[24].name, Some(node_status(State::Verified, None)));
    fleet.set(&nodes[23].name, Some(node_status(State::Failed, None)));
    let retainted = NodeStatus { retainted: true, ..node_status(State::Waiting, None) };
    fleet.set(&nodes[0].name, Some(retainted));
    let record = Record { at: Some(at(7)), ..Record::default() };
    nodes[0].record = Some(Box::new(record));
    let listed = gated_nodes(&fleet, &gate(), nodes.iter());
    let all: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
    assert_eq!(all.len(), 20);
    assert_eq!(&all[..3], [("n00", "Waiting"), ("n23", "Failed"), ("n22", "Verifying")]);
    assert_eq!(listed[0].since, "1970-01-01T00:00:07Z");
    let other = GateView { name: "other".into(), ..gate() };
    assert!(gated_nodes(&fleet, &other, nodes.iter()).is_empty());
}

#[test]
fn g08_a_node_of_two_gates_is_verified_once_and_limits_both() {
    let mut fleet = FleetIndex::default();
    let also: Box<[Arc<str>]> = Box::new(["strict".into()]);
    for i in 0..20 {
        let status = NodeStatus { also_verified_by: also.clone(), ..node_status(State::Verified, None) };
        fleet.set(&format!("n{i}").into(), Some(status));
    }
    assert_eq!((fleet.counts("g").counts().verified, fleet.counts("strict").counts().verified), (20, 0));
    assert_eq!((fleet.fleet("g", false).open, fleet.fleet("strict", false).open), (20, 20));
    // The stricter gate taints one of them.
    let retainted =
        NodeStatus { at: "strict".into(), retainted: true, ..node_status(State::Unverified, None) };
    fleet.set(&"n0".into(), Some(retainted));
    let strict = fleet.fleet("strict", false);
    assert_eq!((strict.open, strict.retainted, fleet.fleet("g", false).open), (19, 1, 19));
    for i in 0..20 {
        fleet.set(&format!("n{i}").into(), None);
    }
    assert_eq!(fleet.by_gate, BTreeMap::new(), "nothing is left");
}

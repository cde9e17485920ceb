//! What a reconcile of the policy does.

use super::control::{control, gate, verified};
use super::*;
use crate::gate::GateView;
use crate::node::NodeView;
use crate::reasons::{CONFIGURATION_APPLIED, EDITED_BY_HAND};
use crate::remediate::housekeeping::{PolicyEffect, cordons_to_remove, decide_policy};
use crate::worker::WorkerView;

struct Cluster {
    nodes: Vec<NodeView>,
    gates: Vec<GateView>,
    controls: Vec<WorkerView>,
    remediations: Vec<Remediation>,
    policy: Option<Policy>,
}

impl Cluster {
    /// Three verified nodes of zone a, and one whose remediation waits for the control group.
    fn comparing() -> Self {
        let mut failing = verified("n1");
        failing.record = Some(failed_record("uid-n1", at(0)).into());
        let nodes = vec![failing, verified("n2"), verified("n3"), verified("n4")];
        let mut waiting = request("uid-n1", vec![cause(CauseSource::Gate, at(0))]);
        waiting.spec.node.name = "n1".into();
        let comparing = Blocked::new(BlockReason::Comparing, "verified nodes run the checks");
        waiting.status = waiting.status_with(comparing.findings(), at(0));
        Self {
            nodes,
            gates: vec![gate()],
            controls: Vec::new(),
            remediations: vec![waiting],
            policy: Some(policy()),
        }
    }

    fn view(&self) -> ClusterView<'_> {
        ClusterView {
            nodes: self.nodes.iter().collect(),
            gates: self.gates.iter().collect(),
            controls: self.controls.iter().collect(),
            remediations: self.remediations.iter().collect(),
            policy: self.policy.as_ref(),
            now: at(1),
            elapsed: Duration::from_secs(1_000),
        }
    }

    /// The nodes for which control workers are created, and what these verify.
    fn created_workers(&self) -> Vec<(String, WorkerIdentity)> {
        let effects =
            decide_policy(&self.view(), &self.view().group_stats(), Vec::new(), &PolicyFindings::default())
                .effects;
        let created = |effect: PolicyEffect| match effect {
            PolicyEffect::CreateControlWorker { node, identity, .. } => {
                Some((node.name.to_string(), identity))
            }
            _ => None,
        };
        effects.into_iter().filter_map(created).collect()
    }

    /// The nodes for which control workers are created.
    fn created(&self) -> Vec<String> {
        self.created_workers().into_iter().map(|(node, _)| node).collect()
    }
}

#[test]
fn control_workers_run_on_verified_nodes_while_one_waits() {
    let mut cluster = Cluster::comparing();
    let created = cluster.created();
    assert!(created.len() == 2 && !created.contains(&"n1".to_owned()), "{created:?}");
    cluster.controls = (0..4).map(|i| control(&format!("x{i}"), 1, 9, 990)).collect();
    assert_eq!(cluster.created(), [""; 0], "4 of 5 control workers run already");
    cluster.controls.clear();
    cluster.remediations.clear();
    assert_eq!(cluster.created(), [""; 0], "no remediation waits");
}

#[test]
fn a_control_run_counts_though_the_last_leaders_clock_was_ahead() {
    let mut cluster = Cluster::comparing();
    let ahead = cluster.view().run_number() + 1;
    let ended = |node, seen| WorkerView { progress: dns(Outcome::Failed), ..control(node, ahead, 1, seen) };
    cluster.controls = vec![ended("n2", 900), ended("n3", 900)];
    let created = cluster.created_workers();
    assert_eq!(created.len(), 2, "the last run is older than a minute");
    for (node, identity) in created {
        let pod = control(&node, identity.number, 1, 1_000);
        cluster.controls.push(WorkerView { identity, progress: dns(Outcome::Passed), ..pod });
    }
    assert_eq!(cluster.created(), [""; 0], "the new run is the last one");
    let names: Vec<&str> = cluster.controls[2..].iter().map(|control| &*control.name).collect();
    let view = cluster.view();
    let effects = decide_policy(&view, &view.group_stats(), Vec::new(), &PolicyFindings::default()).effects;
    let is_deleted = |name: &&&str| {
        effects.iter().any(
            |effect| matches!(effect, PolicyEffect::DeleteControlWorker(control) if control.name == **name),
        )
    };
    assert_eq!(names.iter().find(is_deleted), None, "it is not superseded");
}

#[test]
fn g08_control_workers_of_two_gates_run_on_different_nodes() {
    let mut cluster = Cluster::comparing();
    let other = GateView { name: "other".into(), uid: "gate-2".into(), ..gate() };
    cluster.nodes.push(verified("n5"));
    for node in &mut cluster.nodes {
        let record = node.record.as_deref().expect("it has one");
        let mut section = Record { uid: crate::id::Id::default(), ..record.clone() };
        section.scope.gate_uid = "gate-2".into();
        node.record = Some(Record { others: vec![section], ..record.clone() }.into());
    }
    cluster.gates.push(other);
    let mut second = cause(CauseSource::Gate, at(0));
    second.name = "other".into();
    cluster.remediations[0].spec.causes.push(second);
    let mut created = cluster.created();
    created.sort();
    assert_eq!(created, ["n2", "n3", "n4", "n5"]);
    cluster.nodes.pop();
    let mut created = cluster.created_workers();
    created.retain(|(_, identity)| identity.gate_uid == "gate-2");
    assert_eq!(created, [], "the other gate waits for the next number");
}

#[test]
fn a_dry_run_starts_no_control_worker() {
    let mut cluster = Cluster::comparing();
    if let Some(policy) = &mut cluster.policy {
        policy.spec.enforcement = ActEnforcement::DryRun;
    }
    assert_eq!(cluster.created(), [""; 0]);
}

#[test]
fn the_condition_of_a_configured_policy_is_written_and_removed() {
    let mut cluster = Cluster::comparing();
    let written = |cluster: &Cluster, message: Option<&str>| {
        let found =
            message.map(|message| Finding::new(CONFIGURATION_APPLIED, "False", EDITED_BY_HAND, message));
        let view = cluster.view();
        let effects = decide_policy(
            &view,
            &view.group_stats(),
            Vec::new(),
            &PolicyFindings { configuration: found.as_ref(), ..PolicyFindings::default() },
        )
        .effects;
        effects.into_iter().find_map(|effect| match effect {
            PolicyEffect::UpdateStatus(status) => Some(*status),
            _ => None,
        })
    };
    let message = |status: &RemediationPolicyStatus| {
        let condition = status.conditions.iter().find(|one| one.type_ == CONFIGURATION_APPLIED);
        condition.map(|condition| condition.message.clone())
    };
    for (told, wanted) in
        [(Some("one field"), Some("one field")), (Some("two fields"), Some("two fields")), (None, None)]
    {
        let status = written(&cluster, told).expect("the status changes");
        assert_eq!(message(&status).as_deref(), wanted);
        if let Some(policy) = &mut cluster.policy {
            policy.status = status;
        }
        assert_eq!(written(&cluster, told), None, "{told:?} is written once");
    }
}

#[test]
fn a_cordon_of_ours_goes_with_its_reservation() {
    let mut cluster = Cluster::comparing();
    cluster.nodes[0].marked = true;
    let count = |cluster: &Cluster| cordons_to_remove(&cluster.view()).len();
    assert_eq!(count(&cluster), 1, "nothing is reserved");
    let reservation = Reservation {
        remediation: "uid-n1".into(),
        uid: "request-uid-n1".into(),
        boot_id: "boot-1".into(),
        node: "n1".into(),
        group: String::new(),
        zone: "a".into(),
        at: at(0),
        ended: None,
    };
    if let Some(policy) = &mut cluster.policy {
        policy.status.reservations.push(reservation);
    }
    assert_eq!(count(&cluster), 0, "the act goes on");
    cluster.policy = None;
    assert_eq!(count(&cluster), 1);
    let deleted = [Finding::new("Approved", "True", "", ""), Finding::new("Replaced", "True", "", "")];
    cluster.remediations[0].status = cluster.remediations[0].status_with(deleted.into(), at(1));
    assert_eq!(count(&cluster), 0, "its machine is being deleted, whatever has become of the policy");
    cluster.remediations.clear();
    cluster.nodes[0].terminating = true;
    assert_eq!(count(&cluster), 0);
}

#[test]
fn r10_a_terminating_node_stays_cordoned() {
    let mut cluster = Cluster::comparing();
    cluster.policy = None;
    let effects = |terminating| {
        let cordoned = vec![Target { terminating, ..target("uid-n1") }];
        let view = cluster.view();
        decide_policy(&view, &view.group_stats(), cordoned, &PolicyFindings::default()).effects
    };
    assert!(matches!(effects(false)[..], [PolicyEffect::Uncordon(_)]));
    assert_eq!(effects(true), [], "its deletion began after the cache was read");
}

#[test]
fn r15_control_workers_that_are_terminating_free_their_slots() {
    let mut cluster = Cluster::comparing();
    let running = |i: i32| WorkerView { progress: Progress::Running, ..control(&format!("x{i}"), 1, 9, 990) };
    cluster.controls = (0..5).map(running).collect();
    assert_eq!(cluster.created(), [""; 0]);
    for control in &mut cluster.controls[..2] {
        control.deleting = true;
    }
    assert_eq!(cluster.created().len(), 2, "their kubelet may be gone for ever");
}

#[test]
fn r20_permissions_are_asked_for_while_the_policy_enforces() {
    let mut cluster = Cluster::comparing();
    cluster.remediations.clear();
    let requeue = |cluster: &Cluster| {
        let view = cluster.view();
        decide_policy(&view, &view.group_stats(), Vec::new(), &PolicyFindings::default()).requeue_after
    };
    assert_eq!(requeue(&cluster), Duration::from_mins(5));
    if let Some(policy) = &mut cluster.policy {
        policy.spec.enforcement = ActEnforcement::DryRun;
    }
    assert_eq!(requeue(&cluster), Duration::from_hours(1));
}

#[test]
fn r20_the_status_says_which_permissions_are_still_missing() {
    let mut cluster = Cluster::comparing();
    cluster.remediations.clear();
    let updated = |cluster: &Cluster, missing: &[Right]| {
        let view = cluster.view();
        let effects = decide_policy(
            &view,
            &view.group_stats(),
            Vec::new(),
            &PolicyFindings { missing_rights: missing, ..PolicyFindings::default() },
        )
        .effects;
        effects.into_iter().find_map(|effect| match effect {
            PolicyEffect::UpdateStatus(status) => Some(*status),
            _ => None,
        })
    };
    let missing = needed_rights(&policy().spec);
    let status = updated(&cluster, &missing).expect("it is news");
    if let Some(policy) = &mut cluster.policy {
        policy.status = status;
    }
    assert_eq!(updated(&cluster, &missing), None);
    let fewer = updated(&cluster, &missing[2..]).expect("somebody granted the others");
    let ready = fewer.conditions.iter().find(|one| one.type_ == "Ready").expect("it is there");
    assert!(!ready.message.contains("pods/eviction"), "{}", ready.message);
}

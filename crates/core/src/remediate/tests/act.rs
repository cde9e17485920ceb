//! What was approved, step by step.

use super::*;
use crate::api::{BreakerState, Drain, Evictable};
use crate::remediate::act::{ActInput, NextStep, Step, next};
use crate::remediate::drain::{DrainPlan, plan};

use Evictable::{Evict, Refuse};

/// A remediation that was approved at noon, and what is observed of it.
#[derive(Clone)]
struct Scene {
    request: Remediation,
    policy: Option<Policy>,
    target: Option<Target>,
    gates: Vec<GateView>,
    pods: Vec<PodView>,
    replacement: Replacement,
    blocked: Option<String>,
    now: Timestamp,
}

impl Scene {
    fn new() -> Self {
        Self {
            request: request("n1", vec![cause(CauseSource::Gate, at(0))]),
            policy: Some(policy()),
            target: Some(target("n1")),
            gates: vec![replacing_gate()],
            pods: vec![],
            replacement: Replacement::Karpenter(claim("c1")),
            blocked: None,
            now: at(1),
        }
    }

    /// We cordoned the node.
    fn cordoned() -> Self {
        let mut scene = Self::new();
        scene.cordon();
        scene
    }

    fn target(&mut self) -> &mut Target {
        self.target.as_mut().expect("there is one")
    }

    fn policy(&mut self) -> &mut Policy {
        self.policy.as_mut().expect("there is one")
    }

    fn cordon(&mut self) {
        self.target().unschedulable = true;
        self.target().cordoned_for = Some("n1".into());
    }

    fn next(&self) -> NextStep {
        let gates: Vec<&GateView> = self.gates.iter().collect();
        next(&ActInput {
            request: &self.request,
            policy: self.policy.as_ref(),
            reservation: &reservation("n1", at(0)),
            target: self.target.as_ref(),
            gates: &gates,
            pods: &self.pods,
            replacement: &self.replacement,
            blocked: self.blocked.as_deref(),
            now: self.now,
        })
    }

    /// As the operator does: the step, then what is said about it.
    fn step(&mut self) -> NextStep {
        let next = self.next();
        match &next.step {
            Step::Wait => {}
            Step::Cordon => self.cordon(),
            Step::Uncordon => {
                self.target().unschedulable = false;
                self.target().cordoned_for = None;
            }
            Step::Evict(pods) => self.pods.retain(|pod| !pods.contains(pod)),
            Step::Replace(_) => self.target = None,
        }
        next
    }

    fn say(&mut self, next: &NextStep) {
        self.request.status = self.request.status_with(next.findings.clone(), self.now);
    }

    fn run(mut self) -> Self {
        for _ in 0..20 {
            let next = self.step();
            self.say(&next);
            if next.is_end() {
                return self;
            }
        }
        panic!("no end: {:?}", self.next());
    }

    fn ended(&self) -> (&str, &str) {
        let succeeded = self.request.condition("Succeeded").expect("it is there");
        (&succeeded.status, &succeeded.reason)
    }
}

fn said<'a>(next: &'a NextStep, type_: &str) -> Option<(&'a str, &'a str)> {
    next.findings.iter().find(|one| one.type_ == type_).map(|one| (one.status, one.reason))
}

#[test]
fn a_node_is_cordoned_drained_and_replaced_in_this_order() {
    let mut scene = Scene::new();
    scene.pods = vec![pod("p"), PodView { stays: true, ..pod("daemon") }];
    let first = scene.step();
    assert_eq!(first.step, Step::Cordon);
    assert_eq!(said(&first, "Approved"), Some(("True", "WithinBudget")));
    let second = scene.step();
    assert_eq!(
        (second.step, said(&scene.next(), "Drained")),
        (Step::Evict(vec![pod("p")]), Some(("True", "Drained")))
    );
    let third = scene.step();
    assert_eq!(
        third.step,
        Step::Replace(Replacement::Karpenter(claim("c1"))),
        "its NodeClaim, and not its Node"
    );
    assert_eq!(said(&third, "Succeeded"), Some(("Unknown", "InProgress")));
    let last = scene.next();
    assert!(last.is_end() && said(&last, "Succeeded") == Some(("True", "Replaced")));
    let mut bare = Scene::cordoned();
    bare.replacement = Replacement::NodeObject;
    assert_eq!(bare.next().step, Step::Replace(Replacement::NodeObject));
}

#[test]
fn a_crash_after_any_step_leads_to_the_same_end() {
    // The next leader observes the finished steps, with or without their conditions.
    for done in 0..5 {
        for reported in 0..=done {
            let mut scene = Scene::new();
            scene.pods = vec![pod("p"), pod("q")];
            for i in 0..done {
                let next = scene.step();
                if i < reported {
                    scene.say(&next);
                }
            }
            let end = scene.run();
            assert!(end.target.is_none() && end.pods.is_empty(), "after {done} steps");
            assert_eq!(end.ended(), ("True", "Replaced"), "after {done} steps, {reported} reported");
        }
    }
}

type SceneChange = fn(&mut Scene);

#[test]
fn a_limit_stops_a_remediation_in_flight() {
    let reasons: [(&str, SceneChange); 12] = [
        ("NodeRebooted", |scene| scene.target().identity.boot_id = "boot-2".into()),
        ("DryRun", |scene| scene.policy = None),
        ("DryRun", |scene| scene.policy().spec.enforcement = ActEnforcement::DryRun),
        ("Paused", |scene| scene.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(9) })),
        ("OptedOut", |scene| scene.target().opted_out = Some("nodekeeper.dev/do-not-disrupt")),
        ("OptedOut", |scene| {
            scene.pods = vec![PodView { opted_out: Some("nodekeeper.dev/do-not-disrupt"), ..pod("p") }];
        }),
        ("NoProvider", |scene| scene.replacement = Replacement::None),
        ("TimedOut", |scene| scene.now = at(60)),
        ("NodeRecovered", |scene| scene.target().record = Some(failed_record("n1", at(0)).opened("label"))),
        ("SharedDependencyDown", |scene| scene.policy().status.down = vec![down("a", "dns", "kubernetes.")]),
        ("BreakerOpen", |scene| {
            scene.policy().status.breaker = BreakerState { open: true, below_threshold_since: None }
        }),
        ("Recovering", |scene| scene.policy().status.cooldown_until = Some(at(9))),
    ];
    for (reason, change) in reasons {
        let mut ours = Scene::cordoned();
        change(&mut ours);
        let next = ours.next();
        assert_eq!((next.step.clone(), next.is_end()), (Step::Uncordon, true), "{reason}");
        assert_eq!(
            (said(&next, "Approved"), said(&next, "Succeeded")),
            (Some(("False", reason)), Some(("False", reason)))
        );
        let mut theirs = ours.clone();
        theirs.target().cordoned_for = None;
        assert_eq!(theirs.next().step, Step::Wait, "{reason}: a person's cordon is never undone");
        theirs.target().cordoned_for = Some("another".into());
        assert_eq!(theirs.next().step, Step::Wait, "{reason}");
        let end = ours.run();
        let target = end.target.expect("it is still there");
        assert_eq!((target.unschedulable, target.cordoned_for), (false, None), "{reason}");
    }
}

#[test]
fn r01_no_step_is_taken_after_the_gate_withdrew() {
    for (change, words) in super::evidence::WITHDRAWALS {
        let mut world = World::with(change);
        let mut scene = Scene::new();
        let (taints, gate) = (world.target().view.taints.clone(), world.gates.pop());
        scene.gates = gate.into_iter().collect();
        scene.target().view.taints = taints;
        let next = scene.next();
        assert_eq!((&next.step, next.is_end()), (&Step::Wait, true), "no cordon: {words}");
        assert_eq!(said(&next, "Approved"), Some(("False", "EvidenceExpired")), "{words}");
        scene.cordon();
        for pods in [vec![pod("p")], vec![]] {
            scene.pods = pods;
            let next = scene.next();
            assert_eq!((&next.step, next.is_end()), (&Step::Uncordon, true), "{words}");
        }
    }
}

#[test]
fn r05_a_reservation_is_for_one_boot() {
    let mut scene = Scene::cordoned();
    scene.request = request("n1", vec![cause(CauseSource::Person, at(0))]);
    // The gate requested the replacement again after the reboot.
    scene.request.spec.node.boot_id = "boot-2".into();
    scene.target().identity.boot_id = "boot-2".into();
    assert_eq!(said(&scene.next(), "Approved"), Some(("False", "NodeRebooted")));
    scene.request.spec.node.boot_id = String::new();
    assert_eq!(said(&scene.next(), "Approved"), Some(("False", "NodeRebooted")));
}

#[test]
fn r11_only_causes_that_were_fresh_at_the_approval_count() {
    let mut scene = Scene::cordoned();
    scene.target().record = Some(failed_record("n1", at(0)).opened("label"));
    scene.request.spec.causes.push(cause(CauseSource::Person, at(-30)));
    assert_eq!(said(&scene.next(), "Succeeded"), Some(("False", "NodeRecovered")), "that cause had expired");
    scene.request.spec.causes[1].observed_at = Some(at(-5));
    scene.now = at(30);
    assert_eq!(
        scene.next().step,
        Step::Replace(Replacement::Karpenter(claim("c1"))),
        "it was fresh at the approval, and a drain may take longer than evidence lasts"
    );
    scene.request.spec.causes[1].observed_at = Some(at(20));
    assert_eq!(said(&scene.next(), "Succeeded"), Some(("False", "NodeRecovered")), "it came later");
}

#[test]
fn r16_an_act_is_checked_like_an_approval() {
    let changes: [(&str, SceneChange); 4] = [
        ("NodeGone", |scene| scene.request.spec.node.provider_id = "cloud://other".into()),
        ("ControlPlane", |scene| scene.target().control_plane = true),
        ("EvidenceExpired", |scene| scene.request.spec.causes[0].observed_at = Some(at(-11))),
        ("EvidenceExpired", |scene| scene.target().record = None),
    ];
    for (reason, change) in changes {
        let mut scene = Scene::cordoned();
        change(&mut scene);
        let next = scene.next();
        assert_eq!((&next.step, said(&next, "Approved")), (&Step::Uncordon, Some(("False", reason))));
    }
    let mut confirmed = Scene::cordoned();
    confirmed.target().record = Some(failed_record("n1", at(5)));
    assert!(!confirmed.next().is_end(), "a worker that ran at the approval failed too");
    confirmed.request.spec.causes[0].observed_at = Some(at(5));
    assert!(!confirmed.next().is_end(), "and its gate requested the replacement again");
}

#[test]
fn a_failed_remediation_is_not_resumed() {
    let mut scene = Scene::cordoned();
    scene.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(2) });
    let mut scene = scene.run();
    assert_eq!(scene.ended(), ("False", "Paused"));
    scene.now = at(3);
    let next = scene.next();
    assert_eq!(
        (&next.step, &next.findings[..], next.is_end()),
        (&Step::Wait, &[][..], true),
        "no second cordon"
    );
    scene.cordon();
    assert_eq!(scene.next().step, Step::Uncordon, "where that failed, it is tried again");
    scene.request.status.conditions[0].last_transition_time = at(-9).to_string();
    scene.request.status.conditions[1].last_transition_time = at(-9).to_string();
    assert_eq!(
        scene.next().step,
        Step::Replace(Replacement::Karpenter(claim("c1"))),
        "an end of before is not this one's"
    );
}

#[test]
fn the_annotation_is_removed_even_without_a_cordon() {
    let mut scene = Scene::cordoned();
    scene.target().unschedulable = false;
    scene.policy = None;
    assert_eq!(scene.next().step, Step::Uncordon, "or the next cordon of a person would be taken for ours");
}

#[test]
fn a_cordon_of_a_user_stays_after_a_failed_drain() {
    let mut scene = Scene::new();
    scene.target().unschedulable = true;
    scene.pods = vec![pod("p")];
    assert_eq!(scene.next().step, Step::Evict(vec![pod("p")]));
    scene.now = at(15);
    assert_eq!(scene.next().step, Step::Wait);
}

#[test]
fn r10_a_terminating_node_is_awaited_until_it_is_gone() {
    let going: [SceneChange; 2] = [
        |scene| scene.target().terminating = true,
        |scene| scene.replacement = Replacement::Karpenter(NodeClaimView { deleting: true, ..claim("c1") }),
    ];
    for change in going {
        let mut scene = Scene::cordoned();
        change(&mut scene);
        scene.policy = None;
        let next = scene.next();
        assert_eq!((&next.step, next.is_end()), (&Step::Wait, false), "what was deleted cannot be given up");
        assert_eq!(said(&next, "Replaced"), Some(("True", "Requested")));
        scene.now = at(60);
        let next = scene.next();
        assert_eq!((&next.step, next.is_end()), (&Step::Wait, false), "it stays cordoned and in flight");
        assert_eq!(
            (said(&next, "Approved"), said(&next, "Succeeded")),
            (Some(("True", "WithinBudget")), Some(("Unknown", "DeletionTimedOut")))
        );
        scene.say(&next);
        scene.now = at(600);
        assert!(!scene.next().is_end());
        let failed = vec![Finding::new("Succeeded", "False", "Paused", "")];
        scene.request.status = scene.request.status_with(failed, scene.now);
        assert_eq!(scene.next().step, Step::Wait, "not even one that was given up is uncordoned");
    }
    let mut reused = Scene::cordoned();
    reused.target().identity.uid = "n2".into();
    let next = reused.next();
    assert_eq!((&next.step, next.is_end()), (&Step::Wait, true), "another node of that name is left alone");
    assert_eq!(said(&next, "Succeeded"), Some(("True", "Replaced")));
}

#[test]
fn an_unreadable_provider_deletes_nothing() {
    for replacement in [Replacement::Unknown("403".into()), Replacement::NodeClaimMissing] {
        let mut scene = Scene::cordoned();
        scene.replacement = replacement;
        let next = scene.next();
        assert_eq!((&next.step, next.is_end()), (&Step::Wait, false));
        assert_eq!(said(&next, "Replaced"), Some(("False", "ProviderUnreadable")));
        scene.now = at(60);
        assert_eq!(scene.next().step, Step::Uncordon);
    }
    let mut scene = Scene::cordoned();
    scene.target().registered = false;
    assert_eq!(said(&scene.next(), "Replaced"), Some(("False", "NotRegistered")));
}

#[test]
fn a_blocked_drain_names_the_budget_and_times_out() {
    let mut scene = Scene::cordoned();
    scene.pods = vec![pod("p")];
    scene.blocked = Some("the disruption budget shop needs 2 healthy pods".into());
    let next = scene.next();
    let drained = next.findings.iter().find(|one| one.type_ == "Drained").expect("it is there");
    assert_eq!((next.step, drained.reason), (Step::Evict(vec![pod("p")]), "Draining"));
    assert!(drained.message.contains("budget shop"), "{}", drained.message);
    scene.now = at(15);
    let next = scene.next();
    assert_eq!((&next.step, next.is_end()), (&Step::Uncordon, true));
    assert_eq!(
        (said(&next, "Drained"), said(&next, "Succeeded")),
        (Some(("False", "DrainTimedOut")), Some(("False", "DrainTimedOut")))
    );
    assert!(
        next.findings.iter().all(|one| one.message.contains("budget shop") && one.message.contains("shop/p"))
    );
}

fn planned(pods: &[PodView], spec: &Drain, seconds: i64) -> DrainPlan {
    plan(pods, spec, at(0), at(0) + SignedDuration::from_secs(seconds))
}

#[test]
fn the_drain_evicts_pods_and_waits_for_them() {
    let spec = Drain::default();
    let stays = PodView { stays: true, managed: false, ..pod("daemon") };
    assert_eq!(planned(&[], &spec, 0), DrainPlan::Done);
    assert_eq!(planned(std::slice::from_ref(&stays), &spec, 9_999), DrainPlan::Done);
    let finished = PodView { finished: true, managed: false, ..pod("job") };
    assert_eq!(planned(&[stays, finished.clone()], &spec, 0), DrainPlan::Evict(vec![finished]));
    let going = PodView { deletion_timestamp: Some(at(1)), managed: false, ..pod("going") };
    let waits = planned(std::slice::from_ref(&going), &spec, 0);
    assert!(matches!(&waits, DrainPlan::Waiting(why) if why.contains("shop/going")), "{waits:?}");
    assert_eq!(planned(&[going.clone(), pod("p")], &spec, 0), DrainPlan::Evict(vec![pod("p")]));
    let many: Vec<PodView> = (0..60).map(|i| pod(&format!("p{i}"))).collect();
    assert_eq!(planned(&many, &spec, 0), DrainPlan::Evict(many), "refused ones keep no other from its turn");
    let at_360 = planned(std::slice::from_ref(&going), &spec, 360);
    assert!(matches!(planned(&[going], &spec, 359), DrainPlan::Waiting(_)));
    assert!(matches!(&at_360, DrainPlan::Refused("PodStuck", why) if why.contains("300 s")), "{at_360:?}");
    assert!(matches!(planned(&[pod("p")], &spec, 899), DrainPlan::Evict(_)));
    assert!(matches!(planned(&[pod("p")], &spec, 900), DrainPlan::Refused("DrainTimedOut", _)));
}

#[test]
fn a_pod_that_must_not_be_evicted_names_the_field() {
    let (storage, lonely) =
        (PodView { has_empty_dir: true, ..pod("s") }, PodView { managed: false, ..pod("l") });
    let both = PodView { has_empty_dir: true, ..lonely.clone() };
    let spec = |empty_dir_pods, unmanaged_pods| Drain { empty_dir_pods, unmanaged_pods, ..Drain::default() };
    let refused = |pod: &PodView, spec: &Drain| match planned(std::slice::from_ref(pod), spec, 0) {
        DrainPlan::Refused("PodNotEvictable", why) => why.split('`').nth(1).map(str::to_owned),
        _ => None,
    };
    let (storage_field, lonely_field) =
        (Some("spec.drain.emptyDirPods".to_owned()), Some("spec.drain.unmanagedPods".to_owned()));
    assert_eq!(refused(&storage, &Drain::default()), None);
    assert_eq!(refused(&lonely, &Drain::default()), lonely_field);
    assert_eq!(refused(&storage, &spec(Refuse, Evict)), storage_field);
    assert_eq!(refused(&lonely, &spec(Refuse, Evict)), None);
    assert_eq!(refused(&both, &spec(Refuse, Evict)), storage_field);
    assert_eq!(refused(&both, &spec(Evict, Refuse)), lonely_field);
    assert_eq!(refused(&both, &spec(Evict, Evict)), None);
    let finished = PodView { finished: true, ..both };
    assert_eq!(refused(&finished, &spec(Refuse, Refuse)), None);
}

#[test]
fn a_pod_view_reads_owners_phase_and_volumes() {
    let view = |json| PodView::new(&serde_json::from_value(json).expect("a pod"));
    let owned = |kind: &str| {
        view(serde_json::json!({"metadata": {"name": "p", "namespace": "n", "uid": "u",
            "annotations": {"nodekeeper.dev/do-not-disrupt": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": true}]}}))
    };
    assert!(owned("DaemonSet").stays && owned("Node").stays);
    assert_eq!(owned("DaemonSet").opted_out, None, "it is not disrupted");
    let set = owned("ReplicaSet");
    assert_eq!((set.stays, set.managed, set.opted_out), (false, true, Some("nodekeeper.dev/do-not-disrupt")));
    assert!(
        view(serde_json::json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})).stays
    );
    let lonely = view(serde_json::json!({
        "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}, "status": {"phase": "Running"},
    }));
    assert!(lonely.has_empty_dir && !lonely.managed && !lonely.stays && !lonely.finished);
    assert!(view(serde_json::json!({"status": {"phase": "Succeeded"}})).finished);
}

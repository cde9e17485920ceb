use serde_json::{Value, json};

use super::*;
use crate::api::NodeGateSpec;
use crate::checks::Assignment;
use crate::node::Taint;
use crate::report::{CheckResult, Outcome, Report};

fn node() -> NodeView {
    // The longest name that a node can have.
    let taints = vec![Taint { key: "nvidia.com/gpu".into(), effect: "NoSchedule".into() }];
    let uid = "5f0c0c1e-3a0e-4a0b-9a4e-1d1f0c7b2a11".into();
    NodeView { name: "n".repeat(253).into(), uid, taints, ..NodeView::default() }
}

fn subject() -> Subject {
    Subject {
        node_uid: node().uid.into(),
        boot_id: "boot".into(),
        gate_uid: "gate".into(),
        gate_generation: 2,
        number: u32::MAX,
    }
}

fn made() -> Pod {
    let template = Template {
        namespace: "nodekeeper-system".into(),
        image: "image:1".into(),
        service_account: "worker".into(),
        priority_class: "nodekeeper-worker".into(),
        ..Template::default()
    };
    let mut pod = pod(&template, &node(), &NodeGateSpec::default(), &subject()).expect("it is JSON");
    pod.metadata.uid = Some("pod-uid".into());
    pod
}

fn with_status(status: Value) -> Progress {
    let mut pod = made();
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    WorkerView::new(&pod).expect("a worker").progress
}

fn ended(code: i32, message: &str) -> Progress {
    let state = json!({"terminated": {"exitCode": code, "message": message}});
    // Another container comes first: it must not be mistaken for ours.
    let other = json!({"name": "other", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": report(Outcome::Passed).to_message(4096)}}});
    let own = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    with_status(json!({"phase": "Failed", "containerStatuses": [other, own]}))
}

fn report(outcome: Outcome) -> Report {
    Report::judge(subject(), vec![CheckResult::new("dns", "x", outcome, "", "")], 1)
}

#[test]
fn f04_a_name_fits_whatever_the_node_is_called() {
    let pod = made();
    let name = pod.metadata.name.expect("a name");
    assert!(name.len() <= 63, "{name}");
    let labels = pod.metadata.labels.expect("labels");
    assert!(labels.values().all(|value| value.len() <= 63), "{labels:?}");
}

#[test]
fn f05_it_is_pinned_by_name_and_not_by_hostname() {
    let pod = serde_json::to_value(made()).expect("JSON");
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], json!(*node().name));
    assert_eq!(pod["spec"]["nodeSelector"], json!(null));
}

#[test]
fn it_tolerates_the_gate_and_restricts_itself() {
    let pod = serde_json::to_value(made()).expect("JSON");
    let tolerated: Vec<(&str, &str)> = pod["spec"]["tolerations"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| Some((one["key"].as_str()?, one["effect"].as_str()?)))
        .collect();
    for taint in [("node-ready/unverified", "NoSchedule"), ("node.kubernetes.io/not-ready", "NoExecute")] {
        assert!(tolerated.contains(&taint), "{tolerated:?}");
    }
    assert!(tolerated.contains(&("nvidia.com/gpu", "NoSchedule")), "what else it bears keeps no worker away");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], json!(true));
    assert_eq!(pod["spec"]["restartPolicy"], json!("Never"));
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], json!(*node().uid));
}

#[test]
fn it_is_told_all_it_needs_and_ends_before_it_is_ended() {
    let pod = serde_json::to_value(made()).expect("JSON");
    let told = pod["spec"]["containers"][0]["env"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["name"] == Assignment::ENV);
    let told: Assignment =
        serde_json::from_str(told.expect("told")["value"].as_str().expect("text")).expect("JSON");
    assert_eq!(told.subject, subject());
    assert!(
        i64::from(told.deadline_seconds) < pod["spec"]["activeDeadlineSeconds"].as_i64().expect("a number")
    );
}

#[test]
fn a_verdict_is_read_from_our_container() {
    for outcome in [Outcome::Passed, Outcome::Failed, Outcome::Inconclusive] {
        let report = report(outcome);
        let read = ended(report.exit_code().into(), &report.to_message(4096));
        assert_eq!(read, Progress::Reported(report));
    }
}

#[test]
fn what_does_not_add_up_is_no_verdict() {
    let passed = report(Outcome::Passed).to_message(4096);
    let mut foreign = report(Outcome::Passed);
    foreign.subject.number = 1;
    for (code, message) in [
        (0, String::new()),
        (0, "ok".into()),
        (1, passed.clone()),
        (137, passed.clone()),
        (0, report(Outcome::Failed).to_message(4096)),
        (0, foreign.to_message(4096)),
    ] {
        let read = ended(code, &message);
        assert!(matches!(read, Progress::Silent(..)), "{code} {message}: {read:?}");
    }
}

#[test]
fn a_pod_that_never_ran_says_why() {
    let evicted = with_status(json!({"phase": "Failed", "reason": "Evicted"}));
    assert!(
        matches!(&evicted, Progress::Silent(Cause::Evicted, why) if why.contains("Evicted")),
        "{evicted:?}"
    );
    let waiting = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}});
    let pulling = with_status(json!({"phase": "Pending", "containerStatuses": [waiting]}));
    assert_eq!(pulling, Progress::Waiting(Cause::ImagePull, "ErrImagePull: not found".into()));
    assert_eq!(with_status(json!({"phase": "Pending"})), Progress::Waiting(Cause::NotStarted, String::new()));
}

#[test]
fn a_pod_that_the_scheduler_refuses_says_why() {
    let condition = json!({"type": "PodScheduled", "status": "False", "message": "untolerated taint"});
    let refused = with_status(json!({"phase": "Pending", "conditions": [condition]}));
    assert_eq!(refused, Progress::Unscheduled("untolerated taint".into()));
}

#[test]
fn a_pod_of_somebody_else_is_no_worker() {
    let mut pod = made();
    pod.metadata.annotations = None;
    assert_eq!(WorkerView::new(&pod), None);
    let mut pod = made();
    pod.metadata.name = Some("by-hand".into());
    assert_eq!(WorkerView::new(&pod), None, "the name reserves the number");
    let mut pod = made();
    pod.spec.as_mut().expect("a spec").node_name = Some("another".into());
    assert!(matches!(WorkerView::new(&pod).expect("a worker").progress, Progress::Silent(..)));
}

fn gate_with(worker: crate::api::Worker) -> NodeGateSpec {
    NodeGateSpec { worker, ..NodeGateSpec::default() }
}

fn init(security: &Value) -> crate::api::InitContainer {
    serde_json::from_value(json!({
        "name": "driver", "image": "i:1", "command": ["probe"], "env": [{"name": "A", "value": "b"}],
        "volumeMounts": [{"name": "run", "mountPath": "/run/driver"}], "securityContext": security,
    }))
    .expect("an init container")
}

fn with_volume(volume: &Value, security: &Value) -> crate::api::Worker {
    let volume = serde_json::from_value(volume.clone()).expect("a volume");
    crate::api::Worker { init_containers: vec![init(security)], volumes: vec![volume], ..Default::default() }
}

#[test]
fn f19_init_containers_have_their_volumes_and_are_confined() {
    let worker = with_volume(&json!({"name": "run", "emptyDir": {}}), &json!({"runAsUser": 7}));
    let pod = pod(&Template::default(), &node(), &gate_with(worker), &subject()).expect("it is allowed");
    let pod = serde_json::to_value(pod).expect("JSON");
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "run", "emptyDir": {}}]));
    let container = &pod["spec"]["initContainers"][0];
    assert_eq!(container["volumeMounts"][0]["mountPath"], json!("/run/driver"));
    assert_eq!(container["securityContext"]["runAsUser"], json!(7));
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], json!(false));
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn f17_nobody_becomes_root_by_writing_a_gate() {
    let empty = json!({"name": "run", "emptyDir": {}});
    let host = json!({"name": "run", "hostPath": {"path": "/run/driver/x"}});
    let refused = |worker: &crate::api::Worker, allowed: &Allowed| allowed.permits(worker, "own").err();
    let none = Allowed::default();
    for security in [
        json!({"privileged": true}),
        json!({"runAsUser": 0}),
        json!({"runAsNonRoot": false}),
        json!({"allowPrivilegeEscalation": true}),
    ] {
        let worker = with_volume(&empty, &security);
        let error = refused(&worker, &none).expect("it is refused").to_string();
        assert!(error.contains("worker.allowed.privileged") && error.contains("[driver]"), "{error}");
        assert_eq!(refused(&worker, &Allowed { privileged: true, ..Allowed::default() }), None, "{security}");
    }
    let worker = with_volume(&host, &json!({}));
    let paths = |path: &str| Allowed { host_paths: vec![path.into()], ..Allowed::default() };
    assert!(refused(&worker, &none).is_some() && refused(&worker, &paths("/run/dri")).is_some());
    assert_eq!(refused(&worker, &paths("/run/driver/")), None);
    let outside =
        with_volume(&json!({"name": "run", "hostPath": {"path": "/run/driver/../../etc"}}), &json!({}));
    assert!(refused(&outside, &paths("/run/driver")).is_some(), "nobody climbs out");
    let account = crate::api::Worker { service_account_name: Some("admin".into()), ..Default::default() };
    assert!(refused(&account, &none).is_some());
    let lost = crate::api::Worker { init_containers: vec![init(&json!({}))], ..Default::default() };
    let error = refused(&lost, &none).expect("its volume is missing").to_string();
    assert!(error.contains("spec.worker.volumes"), "{error}");
}

fn init_ended(code: i32, reason: &str) -> Progress {
    let end = json!({"exitCode": code, "reason": reason, "message": "no driver\n"});
    let status = json!({"name": "driver", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": end}});
    with_status(json!({"phase": "Failed", "initContainerStatuses": [status]}))
}

#[test]
fn an_init_container_that_says_no_is_a_failed_check_of_its_name() {
    for code in [1, 125] {
        let Progress::Reported(report) = init_ended(code, "Error") else { panic!("{code}") };
        assert_eq!(report.verdict, crate::report::Verdict::Failed);
        assert!(
            report.summary().contains("driver") && report.summary().contains("no driver"),
            "{}",
            report.summary()
        );
    }
    for code in [126, 127, 137] {
        assert!(matches!(init_ended(code, "Error"), Progress::Silent(Cause::NoReport, _)), "{code}");
    }
    assert!(matches!(init_ended(137, "OOMKilled"), Progress::Silent(Cause::OutOfMemory, _)));
}

fn beside(code: Option<i32>, phase: &str) -> Progress {
    let report = report(Outcome::Passed);
    let own = json!({"terminated": {"exitCode": 0, "message": report.to_message(4096)}});
    let other = code.map_or_else(|| json!({"running": {}}), |code| json!({"terminated": {"exitCode": code}}));
    let one = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    with_status(json!({"phase": phase, "containerStatuses": [one("check-gpu", other), one("worker", own)]}))
}

#[test]
fn a_container_beside_ours_is_a_check_of_its_own() {
    let verdict = |progress| match progress {
        Progress::Reported(report) => Some(report.verdict),
        _ => None,
    };
    assert_eq!(beside(None, "Running"), Progress::Running, "it is waited for");
    assert_eq!(verdict(beside(Some(0), "Succeeded")), Some(crate::report::Verdict::Passed));
    assert_eq!(verdict(beside(Some(3), "Failed")), Some(crate::report::Verdict::Failed));
    assert!(matches!(beside(Some(127), "Failed"), Progress::Silent(..)));
    assert!(matches!(beside(None, "Failed"), Progress::Silent(..)));
}

#[test]
fn an_image_of_the_users_is_a_container_beside_ours() {
    let mut gate = NodeGateSpec::default();
    gate.checks.exec = vec![
        serde_json::from_value(json!({"name": "gpu", "image": "probe:1", "command": ["nvidia-smi"]}))
            .expect("a check"),
    ];
    let pod = pod(&Template::default(), &node(), &gate, &subject()).expect("it is allowed");
    let pod = serde_json::to_value(pod).expect("JSON");
    let beside = &pod["spec"]["containers"][1];
    assert_eq!((&beside["name"], &beside["command"]), (&json!("check-gpu"), &json!(["nvidia-smi"])));
    assert_eq!(beside["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn a_report_fits_its_share_of_what_the_kubelet_keeps() {
    let told = |pod: Pod| -> Assignment {
        let env = pod.spec.expect("a spec").containers.remove(0).env.expect("an environment");
        let told = env.into_iter().find(|var| var.name == Assignment::ENV).and_then(|var| var.value);
        serde_json::from_str(&told.expect("told")).expect("JSON")
    };
    assert_eq!(told(made()).report_bytes, None);
    let worker = crate::api::Worker {
        init_containers: vec![init(&json!({})); 4],
        volumes: vec![crate::api::Volume { name: "run".into(), ..Default::default() }],
        ..Default::default()
    };
    let pod = pod(&Template::default(), &node(), &gate_with(worker), &subject()).expect("it is allowed");
    assert_eq!(told(pod).report_bytes, Some(12_288 / 5));
}

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
    NodeView { name: "n".repeat(253), uid, taints, ..NodeView::default() }
}

fn subject() -> Subject {
    Subject {
        node_uid: node().uid,
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
    assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], json!(node().name));
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
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], json!(node().uid));
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

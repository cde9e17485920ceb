use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::api::NodeGateSpec;
use crate::checks::Assignment;
use crate::node::Taint;
use crate::report::{CheckResult, Outcome, Report, Verdict};

fn node() -> NodeView {
    // The longest name that a node can have.
    let taints = vec![Taint { key: "nvidia.com/gpu".into(), effect: "NoSchedule".into() }];
    let uid = "5f0c0c1e-3a0e-4a0b-9a4e-1d1f0c7b2a11".into();
    NodeView { name: "n".repeat(253).into(), uid, taints, ..NodeView::default() }
}

fn subject() -> WorkerIdentity {
    WorkerIdentity {
        node_uid: node().uid.to_string(),
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

/// As a watch would show the pod.
fn view(pod: &Pod) -> Option<WorkerView> {
    let text = serde_json::to_string(pod).expect("JSON");
    WorkerView::new(&serde_json::from_str(&text).expect("a pod"))
}

fn with_status(status: Value) -> Progress {
    let mut pod = made();
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    view(&pod).expect("a worker").progress
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
fn f04_the_pod_name_fits_for_the_longest_node_name() {
    let pod = made();
    let name = pod.metadata.name.expect("a name");
    assert!(name.len() <= 63, "{name}");
    let labels = pod.metadata.labels.expect("labels");
    assert!(labels.values().all(|value| value.len() <= 63), "{labels:?}");
}

#[test]
fn f05_the_pod_is_pinned_by_node_name_not_by_hostname() {
    let pod = serde_json::to_value(made()).expect("JSON");
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0], json!(*node().name));
    assert_eq!(pod["spec"]["nodeSelector"], json!(null));
}

#[test]
fn the_pod_tolerates_the_taints_and_has_no_privileges() {
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
fn the_worker_ends_before_its_pod_deadline() {
    let pod = serde_json::to_value(made()).expect("JSON");
    let told = pod["spec"]["containers"][0]["env"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["name"] == Assignment::ENV);
    let told: Assignment =
        serde_json::from_str(told.expect("told")["value"].as_str().expect("text")).expect("JSON");
    assert_eq!(told.identity, subject());
    assert!(
        i64::from(told.deadline_seconds) < pod["spec"]["activeDeadlineSeconds"].as_i64().expect("a number")
    );
}

#[test]
fn the_verdict_is_read_from_the_worker_container() {
    for outcome in [Outcome::Passed, Outcome::Failed, Outcome::Inconclusive] {
        let report = report(outcome);
        let read = ended(report.exit_code().into(), &report.to_message(4096));
        assert_eq!(read, Progress::Reported(report));
    }
}

#[test]
fn a_report_that_contradicts_the_exit_code_is_no_verdict() {
    let passed = report(Outcome::Passed).to_message(4096);
    let mut foreign = report(Outcome::Passed);
    foreign.identity.number = 1;
    for (code, message) in [
        (0, String::new()),
        (0, "ok".into()),
        (1, passed.clone()),
        (137, passed.clone()),
        (0, report(Outcome::Failed).to_message(4096)),
        (0, foreign.to_message(4096)),
    ] {
        let read = ended(code, &message);
        assert!(matches!(read, Progress::Inconclusive(..)), "{code} {message}: {read:?}");
    }
}

#[test]
fn a_pod_that_never_ran_has_a_reason() {
    let evicted = with_status(json!({"phase": "Failed", "reason": "Evicted"}));
    assert!(
        matches!(&evicted, Progress::Inconclusive(InconclusiveReason::Evicted, why) if why.contains("Evicted")),
        "{evicted:?}"
    );
    let waiting = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}});
    let pulling = with_status(json!({"phase": "Pending", "containerStatuses": [waiting]}));
    assert_eq!(pulling, Progress::Waiting(InconclusiveReason::ImagePull, "ErrImagePull: not found".into()));
    assert_eq!(
        with_status(json!({"phase": "Pending"})),
        Progress::Waiting(InconclusiveReason::NotStarted, String::new())
    );
}

#[test]
fn an_unschedulable_pod_has_the_schedulers_message() {
    let condition = json!({"type": "PodScheduled", "status": "False", "message": "untolerated taint"});
    let refused = with_status(json!({"phase": "Pending", "conditions": [condition]}));
    assert_eq!(refused, Progress::Unscheduled("untolerated taint".into()));
}

#[test]
fn a_foreign_pod_is_not_a_worker() {
    let mut pod = made();
    pod.metadata.annotations = None;
    assert_eq!(view(&pod), None);
    let mut pod = made();
    pod.metadata.name = Some("by-hand".into());
    assert_eq!(view(&pod), None, "the name reserves the number");
    let mut pod = made();
    pod.spec.as_mut().expect("a spec").node_name = Some("another".into());
    assert!(matches!(view(&pod).expect("a worker").progress, Progress::Inconclusive(..)));
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
fn f19_init_containers_have_volumes_and_no_privileges() {
    let worker = with_volume(&json!({"name": "run", "emptyDir": {}}), &json!({"runAsUser": 7}));
    let pod = pod(&Template::default(), &node(), &gate_with(worker), &subject()).expect("it is allowed");
    let pod = serde_json::to_value(pod).expect("JSON");
    assert_eq!(pod["spec"]["volumes"][0], json!({"name": "run", "emptyDir": {}}));
    let container = &pod["spec"]["initContainers"][0];
    assert_eq!(container["volumeMounts"][0]["mountPath"], json!("/run/driver"));
    assert_eq!(container["securityContext"]["runAsUser"], json!(7));
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], json!(false));
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
}

#[test]
fn f17_writing_a_gate_does_not_grant_root() {
    let empty = json!({"name": "run", "emptyDir": {}});
    let host = json!({"name": "run", "hostPath": {"path": "/run/driver/x"}});
    let refused = |worker: &crate::api::Worker, allowed: &Allowed| {
        let template = Template { allowed: allowed.clone(), ..Template::default() };
        template.permits(&gate_with(worker.clone())).err()
    };
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

/// Of a pod whose gate asked for the init container `driver`.
fn with_init(status: &Value) -> Progress {
    let mut pod = made();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("nodekeeper.dev/init-containers".into(), "first,driver".into());
    pod.status = Some(serde_json::from_value(status.clone()).expect("a status"));
    view(&pod).expect("a worker").progress
}

fn init_ended(code: i32, reason: &str) -> Progress {
    let end = json!({"terminated": {"exitCode": code, "reason": reason, "message": "no driver\n"}});
    with_init(&json!({"phase": "Failed", "initContainerStatuses": [one("driver", &end)]}))
}

#[test]
fn g02_injected_init_containers_say_nothing_about_the_node() {
    let failed = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    let injected =
        with_init(&json!({"phase": "Failed", "initContainerStatuses": [one("mesh-init", &failed)]}));
    let Progress::Inconclusive(InconclusiveReason::Other, why) = injected else { panic!("{injected:?}") };
    assert!(why.contains("mesh-init") && why.contains("exit code 1"), "{why}");
    let own = with_init(&json!({"phase": "Failed",
        "initContainerStatuses": [one("mesh-init", &failed), one("driver", &failed)]}));
    assert!(matches!(own, Progress::Reported(_)), "the gate's own still counts: {own:?}");
}

#[test]
fn g02_a_sidecar_that_is_killed_after_the_worker_changes_no_verdict() {
    let killed = json!({"terminated": {"exitCode": 143, "reason": "Error"}});
    for outcome in [Outcome::Passed, Outcome::Failed] {
        let report = report(outcome);
        let end = json!({"terminated": {"exitCode": report.exit_code(), "message": report.to_message(4096)}});
        let status = json!({"phase": "Failed", "containerStatuses": [one("worker", &end)],
            "initContainerStatuses": [one("mesh-proxy", &killed)]});
        assert_eq!(with_init(&status), Progress::Reported(report));
    }
}

#[test]
fn g02_injected_containers_are_no_exec_checks() {
    let report = report(Outcome::Passed);
    let end = json!({"terminated": {"exitCode": 0, "message": report.to_message(4096)}});
    let failed = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    for (is_told, counts) in [(true, false), (false, true)] {
        let mut pod = made();
        let injected = serde_json::from_value(json!({"name": "check-mesh"})).expect("a container");
        pod.spec.as_mut().expect("a spec").containers.push(injected);
        if !is_told {
            // An older release created it.
            pod.metadata.annotations.get_or_insert_default().remove("nodekeeper.dev/exec-checks");
        }
        let status = json!({"phase": "Failed",
            "containerStatuses": [one("worker", &end), one("check-mesh", &failed)]});
        pod.status = Some(serde_json::from_value(status).expect("a status"));
        let Progress::Reported(judged) = view(&pod).expect("a worker").progress else { panic!("no report") };
        assert_eq!(judged.checks.iter().any(|check| check.name == "mesh"), counts);
    }
}

#[test]
fn an_init_container_of_a_pod_of_an_older_release_counts() {
    let mut pod = made();
    pod.metadata.annotations.get_or_insert_default().remove("nodekeeper.dev/init-containers");
    let failed = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    let status = json!({"phase": "Failed", "initContainerStatuses": [one("driver", &failed)]});
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    assert!(matches!(view(&pod).expect("a worker").progress, Progress::Reported(_)));
}

#[test]
fn a_failed_init_container_is_a_failed_check() {
    for code in [1, 125] {
        let Progress::Reported(report) = init_ended(code, "Error") else { panic!("{code}") };
        assert_eq!(report.verdict, Verdict::Failed);
        assert!(
            report.summary().contains("driver") && report.summary().contains("no driver"),
            "{}",
            report.summary()
        );
    }
    for code in [126, 127, 137] {
        assert!(
            matches!(init_ended(code, "Error"), Progress::Inconclusive(InconclusiveReason::NoReport, _)),
            "{code}"
        );
    }
    assert!(matches!(
        init_ended(137, "OOMKilled"),
        Progress::Inconclusive(InconclusiveReason::OutOfMemory, _)
    ));
}

fn one(name: &str, state: &Value) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state})
}

/// Of a pod with the check `gpu`, and one whose name begins twice as its container's does.
fn with_checks(status: Value) -> Progress {
    let mut pod = made();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("nodekeeper.dev/exec-checks".into(), "gpu,check-disk".into());
    let containers = &mut pod.spec.as_mut().expect("a spec").containers;
    for name in ["check-gpu", "check-check-disk"] {
        containers.push(serde_json::from_value(json!({"name": name})).expect("a container"));
    }
    pod.status = Some(serde_json::from_value(status).expect("a status"));
    view(&pod).expect("a worker").progress
}

/// The worker ended so, one check passed, and the other is in this state.
fn beside(worker: Outcome, state: &Value, status: &Value) -> Progress {
    let report = report(worker);
    let own = json!({"terminated": {"exitCode": report.exit_code(), "message": report.to_message(4096)}});
    let passed = json!({"terminated": {"exitCode": 0}});
    let mut status = status.clone();
    status["containerStatuses"] =
        json!([one("check-gpu", state), one("check-check-disk", &passed), one("worker", &own)]);
    with_checks(status)
}

fn verdict(progress: &Progress) -> Option<Verdict> {
    match progress {
        Progress::Reported(report) => Some(report.verdict),
        _ => None,
    }
}

fn exits(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

fn cannot_pull() -> Value {
    json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}})
}

/// What the kubelet makes of a container that it never started.
fn unknown() -> Value {
    json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"}})
}

#[test]
fn an_exec_container_is_a_check() {
    let (running, over) = (json!({"phase": "Running"}), json!({"phase": "Failed"}));
    let runs = json!({"running": {}});
    assert_eq!(beside(Outcome::Passed, &runs, &running), Progress::Running, "it is waited for");
    assert!(matches!(
        beside(Outcome::Passed, &runs, &over),
        Progress::Inconclusive(InconclusiveReason::NoReport, _)
    ));
    let Progress::Reported(passed) = beside(Outcome::Passed, &exits(0), &json!({"phase": "Succeeded"}))
    else {
        panic!("all have passed")
    };
    assert_eq!(passed.verdict, Verdict::Passed);
    let names: Vec<&str> = passed.checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["dns", "gpu", "check-disk"]);
    assert_eq!(verdict(&beside(Outcome::Passed, &exits(3), &over)), Some(Verdict::Failed));
}

#[test]
fn an_inconclusive_exec_check_does_not_undo_a_failure() {
    let over = json!({"phase": "Failed"});
    let oom = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    for state in [&exits(127), &oom, &json!({"running": {}}), &cannot_pull()] {
        let told = beside(Outcome::Failed, state, &over);
        assert_eq!(verdict(&told), Some(Verdict::Failed), "{state}");
        let known = beside(Outcome::Inconclusive, state, &over);
        assert_eq!(
            verdict(&known),
            Some(Verdict::Inconclusive),
            "{state}: what the worker found out is kept"
        );
    }
    assert!(matches!(
        beside(Outcome::Passed, &exits(127), &over),
        Progress::Inconclusive(InconclusiveReason::NoReport, _)
    ));
    assert!(matches!(
        beside(Outcome::Passed, &oom, &over),
        Progress::Inconclusive(InconclusiveReason::OutOfMemory, _)
    ));
}

#[test]
fn an_exec_check_without_a_status_has_not_ended() {
    let passed = report(Outcome::Passed).to_message(4096);
    let own = json!({"terminated": {"exitCode": 0, "message": passed}});
    let told = |phase: &str| with_checks(json!({"phase": phase, "containerStatuses": [one("worker", &own)]}));
    assert_eq!(told("Running"), Progress::Running);
    assert!(matches!(told("Succeeded"), Progress::Inconclusive(InconclusiveReason::NoReport, _)));
}

#[test]
fn an_exec_image_that_cannot_be_pulled_is_named() {
    let pulled =
        Progress::Waiting(InconclusiveReason::ImagePull, "check gpu: ErrImagePull: not found".into());
    let running = json!({"phase": "Running"});
    assert_eq!(beside(Outcome::Passed, &cannot_pull(), &running), pulled);
    assert_eq!(verdict(&beside(Outcome::Failed, &cannot_pull(), &running)), Some(Verdict::Failed));
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    assert_eq!(beside(Outcome::Passed, &creating, &running), Progress::Running);
    let before = |state: Value| {
        let both = [one("worker", &state), one("check-gpu", &cannot_pull())];
        with_checks(json!({"phase": "Pending", "containerStatuses": both}))
    };
    assert_eq!(before(json!({"waiting": {"reason": "PodInitializing"}})), pulled);
    assert_eq!(before(json!({"running": {}})), Progress::Running, "what the worker finds may be worse");
    let deadline = json!({"phase": "Failed", "reason": "DeadlineExceeded"});
    let late = beside(Outcome::Passed, &cannot_pull(), &deadline);
    assert!(
        matches!(&late, Progress::Inconclusive(InconclusiveReason::ImagePull, why) if why.contains("not found")),
        "{late:?}"
    );
    let lost = beside(Outcome::Passed, &unknown(), &deadline);
    assert!(
        matches!(&lost, Progress::Inconclusive(InconclusiveReason::NotStarted, why) if why.contains("gpu")),
        "{lost:?}"
    );
}

#[test]
fn a_deadline_does_not_hide_the_reason_of_the_wait() {
    let over = |state: &Value| {
        let status = [one("worker", state)];
        with_status(json!({"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": status}))
    };
    assert_eq!(
        over(&cannot_pull()),
        Progress::Inconclusive(InconclusiveReason::ImagePull, "ErrImagePull: not found".into())
    );
    let nothing = Progress::Inconclusive(
        InconclusiveReason::NotStarted,
        "DeadlineExceeded before the container started".into(),
    );
    assert_eq!(over(&unknown()), nothing);
    assert_eq!(with_status(json!({"phase": "Failed", "reason": "DeadlineExceeded"})), nothing);
    let ran = over(&json!({"running": {}}));
    assert!(
        matches!(&ran, Progress::Inconclusive(InconclusiveReason::NoReport, why) if why.contains("DeadlineExceeded")),
        "{ran:?}"
    );
    let init = json!({"phase": "Failed", "reason": "DeadlineExceeded",
        "initContainerStatuses": [one("driver", &unknown())]});
    assert_eq!(with_status(init), nothing, "an init container that never ran says nothing");
}

#[test]
fn g10_the_kubelet_expands_nothing_in_an_assignment() {
    let mut gate = NodeGateSpec::default();
    gate.checks.http =
        serde_json::from_value(json!({"targets": [{"url": "http://a/$(HOME)/$$"}]})).expect("checks");
    let pod = pod(&Template::default(), &node(), &gate, &subject()).expect("it is allowed");
    let env = pod.spec.expect("a spec").containers.remove(0).env.expect("an environment");
    let told =
        env.into_iter().find(|var| var.name == Assignment::ENV).and_then(|var| var.value).expect("told");
    assert!(told.contains("http://a/$$(HOME)/$$$$"), "the kubelet turns `$$` into `$`: {told}");
}

#[test]
fn an_exec_check_becomes_a_container() {
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
fn g10_the_report_fits_the_containers_share_of_the_message() {
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
    assert_eq!(told(pod).report_bytes, Some(12_288 / 7));
}

/// The pod of a worker with these checks, and an init container that mounts a ConfigMap.
fn with_access(checks: &Value) -> Value {
    let mut gate = gate_with(with_volume(&json!({"name": "run", "configMap": {"name": "ca"}}), &json!({})));
    gate.checks = serde_json::from_value(checks.clone()).expect("checks");
    gate.checks.exec.push(serde_json::from_value(json!({"name": "gpu", "image": "i:1"})).expect("a check"));
    let pod = pod(&Template::default(), &node(), &gate, &subject()).expect("it is allowed");
    serde_json::to_value(pod).expect("JSON")
}

#[test]
fn only_the_worker_container_has_a_token_and_if_needed() {
    let skip = ["dns", "api", "tcp", "services", "peers"];
    let http = |url: &str| json!({"http": {"targets": [{"url": url}]}, "skip": skip});
    for (checks, expected) in [
        (json!({"api": {}}), vec!["serviceAccountToken", "configMap", "downwardAPI"]),
        (http("https://example.com/"), vec!["configMap"]),
        (http("http://example.com/"), vec![]),
    ] {
        let pod = with_access(&checks);
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], json!(false));
        let sources = spec["volumes"][1]["projected"]["sources"].as_array().cloned().unwrap_or_default();
        let kinds: Vec<&String> = sources.iter().filter_map(|one| one.as_object()?.keys().next()).collect();
        assert_eq!(kinds, expected, "{checks}");
        let mounts = |container: &Value| container["volumeMounts"].to_string().contains("serviceaccount");
        assert_eq!(mounts(&spec["containers"][0]), !expected.is_empty(), "{checks}");
        assert!(!mounts(&spec["containers"][1]) && !mounts(&spec["initContainers"][0]), "{checks}");
    }
    let token = &with_access(&json!({"api": {}}))["spec"]["volumes"][1]["projected"]["sources"][0];
    assert_eq!(token["serviceAccountToken"]["expirationSeconds"], json!(600));
    let taken = with_volume(&json!({"name": "nodekeeper-access", "emptyDir": {}}), &json!({}));
    let error = Template::default().permits(&gate_with(taken)).expect_err("reserved").to_string();
    assert!(error.contains("nodekeeper-access") && error.contains("choose another"), "{error}");
}

#[test]
fn the_ca_of_a_url_is_mounted_and_assigned_as_a_file() {
    let target = |url: &str| json!({"url": url, "ca": {"name": "corp", "key": "root.pem"}});
    let pod = with_access(
        &json!({"http": {"targets": [target("https://a/"), target("https://b/")]}, "skip": ["api"]}),
    );
    let sources = &pod["spec"]["volumes"][1]["projected"]["sources"];
    let item = json!({"key": "root.pem", "path": "corp/root.pem"});
    assert_eq!(*sources, json!([{"configMap": {"name": "corp", "items": [item]}}]), "once for both");
    let worker = &pod["spec"]["containers"][0];
    let mount = json!({"name": "nodekeeper-ca", "mountPath": "/etc/nodekeeper/ca", "readOnly": true});
    assert_eq!(worker["volumeMounts"][0], mount);
    assert_eq!(worker["volumeMounts"].as_array().map(Vec::len), Some(2), "volumes of users are not mounted");
    let assigned = worker["env"][2]["value"].as_str().expect("an assignment");
    let checks = serde_json::from_str::<Assignment>(assigned).expect("JSON").checks;
    let target = &checks.http.as_ref().expect("http").targets[0];
    assert_eq!((target.ca_file.as_deref(), &target.ca), (Some("/etc/nodekeeper/ca/corp/root.pem"), &None));
    assert_eq!(checks.assigned(), ["dns", "tcp", "services", "peers", "http"]);
}

#[test]
fn f17_a_gate_reads_only_the_secrets_that_are_allowed() {
    let from_secret = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    let projected = json!([{"secret": {"name": "s"}}, {"downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]);
    let specs = [
        json!({"worker": {"env": from_secret}}),
        json!({"worker": {"initContainers": [{"name": "a", "image": "i", "env": from_secret}]}}),
        json!({"checks": {"exec": [{"name": "a", "image": "i", "env": from_secret}]}}),
        json!({"worker": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}),
        json!({"worker": {"volumes": [{"name": "v", "projected": {"sources": projected}}]}}),
    ];
    let template = |secrets: &[&str]| {
        let secrets = secrets.iter().map(|name| (*name).to_owned()).collect();
        Template { allowed: Allowed { secrets, ..Allowed::default() }, ..Template::default() }
    };
    for spec in specs {
        let gate: NodeGateSpec = serde_json::from_value(spec.clone()).expect("a gate");
        let refused = pod(&template(&["t"]), &node(), &gate, &subject()).expect_err("it is not allowed");
        let error = refused.to_string();
        assert!(error.contains("Secret 's'") && error.contains("worker.allowed.secrets"), "{spec}: {error}");
        pod(&template(&["s"]), &node(), &gate, &subject()).expect("it is allowed");
    }
}

#[test]
fn u06_a_gate_uses_only_images_and_classes_that_are_allowed() {
    let template = |images: &[&str], classes: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let allowed =
            Allowed { images: texts(images), priority_classes: texts(classes), ..Allowed::default() };
        Template {
            image: "r/own:1".into(),
            priority_class: "system-own".into(),
            allowed,
            ..Template::default()
        }
    };
    let refused = |template: &Template, field: &str, value: &str| {
        let gate: NodeGateSpec = serde_json::from_value(json!({"worker": {field: value}})).expect("a gate");
        pod(template, &node(), &gate, &subject()).err().map(|error| error.to_string())
    };
    let by_default = template(&[], &[]);
    assert_eq!(refused(&by_default, "image", "r/own:1"), None);
    for image in ["r/own:2", "r/own", "r/other:1"] {
        let error = refused(&by_default, "image", image).expect("it is not allowed");
        assert!(error.contains("`spec.worker.image`") && error.contains(image), "{error}");
        assert!(error.contains("worker.allowed.images"), "{error}");
    }
    let images = template(&["r/own", "r/team/", "r/pinned:1"], &[]);
    for image in
        ["r/own", "r/own:2", "r/own@sha256:0", "r/own/x:1", "r/team/w:1", "r/pinned:1", "r/pinned:1@sha256:0"]
    {
        assert_eq!(refused(&images, "image", image), None, "{image}");
    }
    for image in ["r/owner:1", "r/teams/w:1", "r/pinned:10", "r/pinned:2", "x/r/own:1"] {
        assert!(refused(&images, "image", image).is_some(), "{image}");
    }
    assert!(refused(&template(&[""], &[]), "image", "r/x:1").is_some(), "an empty text allows nothing");
    for class in ["high", "system-own"] {
        assert_eq!(refused(&by_default, "priorityClassName", class), None, "{class}");
    }
    let error = refused(&by_default, "priorityClassName", "system-node-critical").expect("it is not allowed");
    assert!(
        error.contains("`spec.worker.priorityClassName`") && error.contains("system-node-critical"),
        "{error}"
    );
    assert!(error.contains("worker.allowed.priorityClasses"), "{error}");
    let critical = template(&[], &["system-node-critical"]);
    assert_eq!(refused(&critical, "priorityClassName", "system-node-critical"), None);
}

#[test]
fn u05_quantities_are_numbers_or_text_of_known_resources() {
    let worker = |resources: Value| -> crate::api::Worker {
        serde_json::from_value(json!({"resources": resources})).expect("a worker")
    };
    let gate = gate_with(worker(json!({"requests": {"cpu": 1, "nvidia.com/gpu": "2"}})));
    let pod = pod(&Template::default(), &node(), &gate, &subject()).expect("both are known");
    let pod = serde_json::to_value(pod).expect("JSON");
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "1", "nvidia.com/gpu": "2"}));
    let unknown = gate_with(worker(json!({"limits": {"gpu": 1}})));
    let error = Template::default().permits(&unknown).expect_err("it is unknown").to_string();
    assert!(error.contains("spec.worker.resources") && error.contains("'gpu'"), "{error}");
}

#[test]
fn u05_a_toleration_without_an_operator_is_equal() {
    let toleration = json!({"tolerations": [{"key": "a", "value": "b", "effect": "NoExecute"}]});
    let gate = gate_with(serde_json::from_value(toleration).expect("a worker"));
    let pod = pod(&Template::default(), &node(), &gate, &subject()).expect("it is allowed");
    let tolerations = pod.spec.expect("a spec").tolerations.expect("tolerations");
    assert_eq!(tolerations.last().and_then(|last| last.operator.as_deref()), Some("Equal"));
}

#[test]
fn u05_naming_a_check_adds_to_the_default_set() {
    let assigned = |checks: Value| -> crate::checks::Checks {
        let checks: crate::checks::Checks = serde_json::from_value(checks).expect("checks");
        checks.resolve()
    };
    let defaults = ["dns", "api", "tcp", "services", "peers"];
    assert_eq!(assigned(json!({})).assigned(), defaults);
    let named = assigned(json!({"dns": {"names": ["a."]}, "clock": {}}));
    assert_eq!(named.assigned(), [&defaults[..], &["clock"]].concat());
    let dns = named.dns.expect("dns");
    assert_eq!(
        (dns.names, dns.optional.len()),
        (vec!["a.".to_owned()], 0),
        "and no name outside of the cluster"
    );
    assert_eq!(assigned(json!({"skip": ["peers"]})).assigned(), defaults[..4]);
}

#[test]
fn an_exec_check_cannot_have_the_name_of_a_built_in_one() {
    let crd = <crate::api::NodeGate as kube::CustomResourceExt>::crd();
    let crd = serde_json::to_string(&crd).expect("JSON");
    let (_, rule) = crd.split_once("!(self.name in [").expect("a rule about `checks.exec[].name`");
    let taken: Vec<&str> = rule.split(']').next().expect("a list").split(", ").collect();
    for name in crate::checks::Checks::OF_WORKER.into_iter().chain([CONTAINER]) {
        assert!(taken.contains(&format!("'{name}'").as_str()), "{name} is not in {taken:?}");
    }
}

//! The gate while the API server refuses its writes, another controller undoes them, or a watch says nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use jiff::SignedDuration;
use kube::client::Body;
use nodekeeper_core::configured::{Adoption, ConfiguredObject, ObjectKey, ObjectKind};
use nodekeeper_sim::faults::{Faults, Rates};
use nodekeeper_sim::object::{condition, is_deleting, name, set, text};
use nodekeeper_sim::transport::{BoxError, Transport};
use nodekeeper_sim::value::{Value, json};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tower::{ServiceExt as _, service_fn};

use super::controls::with_lost_answers;
use super::refusals::{Refusals, Rule};
use super::test_cluster::{TestCluster, max_in_window, permissive_policy};
use crate::gate::{NAMESPACE, taint};

/// A condition of the gate, if it has this status.
fn gate_condition(test: &TestCluster, type_: &str, status: &str) -> Option<(String, String)> {
    let gate = test.api.get("nodekeeper.dev/nodegates", "", "default").expect("setup created it");
    let found = condition(&gate, type_).filter(|one| text(one, "status") == status)?;
    Some((text(found, "reason").to_owned(), text(found, "message").to_owned()))
}

fn count(test: &TestCluster, field: &str) -> i64 {
    let gate = test.api.get("nodekeeper.dev/nodegates", "", "default").expect("setup created it");
    gate["status"]["nodes"][field].as_i64().unwrap_or_default()
}

fn events(test: &TestCluster, reason: &str) -> Vec<String> {
    let all = test.api.all("events");
    let about = all.iter().filter(|event| text(event, "reason") == reason);
    about.map(|event| text(event, "message").to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn g01_a_refused_opening_is_reported_and_not_counted() {
    for code in [403, 422, 500] {
        let rule: Rule = ("PATCH", "/api/v1/nodes/", "/spec/taints", code);
        let mut test = TestCluster::new(1, &permissive_policy());
        let refusals = Refusals::new(rule);
        test.start_with(refusals.client(&test));
        test.join("n0", "a");
        let named = |test: &TestCluster| {
            gate_condition(test, "WritesRefused", "True")
                .is_some_and(|(_, message)| message.contains("'frozen'"))
        };
        test.until("the refusal is reported", 4, named).await;
        assert_eq!((count(&test, "verified"), count(&test, "gated")), (0, 1), "{code}");
        assert!(gate_condition(&test, "Ready", "False").is_some(), "{code}");
        let before = refusals.times().len();
        sleep(Duration::from_mins(10)).await;
        let times = refusals.times();
        assert!(times.len() > before, "{code}: it is tried again");
        let burst = max_in_window(&times[before..], SignedDuration::from_mins(1));
        assert!(burst <= 8, "{code}: {burst} in a minute");
        let events = events(&test, "NodeWriteRefused");
        assert!(events.len() == 1 && events[0].contains("'frozen'"), "{code}: {events:?}");
        refusals.lift();
        test.until("the node is verified", 2, |test| test.is_verified("n0")).await;
        let accepted = |test: &TestCluster| gate_condition(test, "WritesRefused", "False").is_some();
        test.until("the condition is false again", 1, accepted).await;
        assert_eq!((count(&test, "verified"), count(&test, "gated")), (1, 0), "{code}");
    }
}

/// The node fails again and again, and no worker can be deleted.
#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_be_deleted_is_reported_once() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let refusals = Refusals::with_the_same_message(("DELETE", "/pods/nodekeeper-", "", 403));
    test.start_with(refusals.client(&test));
    test.fail_dns("n0");
    test.join("n0", "a");
    sleep(Duration::from_mins(10)).await;
    assert!(refusals.times().len() >= 8, "with each worker it is tried again");
    assert!(gate_condition(&test, "WritesRefused", "True").is_some());
    let reported = events(&test, "NodeWriteRefused");
    assert_eq!(reported.len(), 1, "{reported:?}");
    refusals.lift();
    let accepted = |test: &TestCluster| gate_condition(test, "WritesRefused", "False").is_some();
    test.until("the condition is false again", 5, accepted).await;
}

/// Another controller deletes each worker, which its kubelet then ends. None of them can be recorded, so that nothing but the
/// count of this process holds back the next one.
#[tokio::test(start_paused = true)]
async fn workers_that_are_deleted_and_cannot_be_recorded_come_ever_more_rarely() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let refusals = Refusals::new(("PATCH", "/api/v1/nodes/", "", 403));
    test.start_with(refusals.client(&test));
    let created = Arc::new(Mutex::new(Vec::new()));
    let (log, clock) = (created.clone(), test.cluster.clock().clone());
    test.cluster.observe(Box::new(move |change| {
        if change.collection == "pods" && change.before.is_none() {
            log.lock().push(clock.now());
        }
    }));
    test.join("n0", "a");
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(10) {
        for pod in test.api.all("pods").iter().filter(|pod| !is_deleting(pod)) {
            test.api.delete(pod, None).expect("it is there");
        }
        sleep(Duration::from_millis(10)).await;
    }
    let times = created.lock().clone();
    let burst = max_in_window(&times, SignedDuration::from_mins(1));
    assert!(times.len() >= 8 && burst <= 9, "{} workers, {burst} in a minute", times.len());
    refusals.lift();
    test.until("the node is verified", 3, |test| test.is_verified("n0")).await;
}

fn configured(spec: serde_json::Value) -> Vec<ConfiguredObject> {
    let key = ObjectKey { kind: ObjectKind::NodeGate, name: "default".into() };
    vec![ConfiguredObject { key, spec, adoption: Adoption::KeepLive }]
}

/// The API server refuses to change the gate of the installation, or to create it again.
#[tokio::test(start_paused = true)]
async fn u02_a_refused_configuration_is_backed_off_and_reported() {
    for code in [403, 422, 500] {
        let mut test = TestCluster::new(1, &permissive_policy());
        let refusals = Refusals::new(("PATCH", "/nodegates/default", "last-applied", code));
        test.start_installed(refusals.client(&test), configured(serde_json::json!({"priority": 3})));
        let refused = |test: &TestCluster| {
            gate_condition(test, "ConfigurationApplied", "False")
                .is_some_and(|(reason, message)| reason == "ApplyRefused" && message.contains("'frozen'"))
        };
        test.until("the refusal is reported", 2, refused).await;
        let before = refusals.times().len();
        sleep(Duration::from_mins(10)).await;
        let times = refusals.times();
        assert!(times.len() > before, "{code}: it is tried again");
        let burst = max_in_window(&times[before..], SignedDuration::from_mins(1));
        assert!(burst <= 8, "{code}: {burst} in a minute");
        refusals.lift();
        let edited = |test: &TestCluster| {
            gate_condition(test, "ConfigurationApplied", "False").is_some_and(|(reason, message)| {
                reason == "EditedByHand" && message.contains("spec.priority")
            })
        };
        test.until("the gate is adopted", 2, edited).await;
    }
    let mut test = TestCluster::new(1, &permissive_policy());
    let gate = |test: &TestCluster| test.api.get("nodekeeper.dev/nodegates", "", "default");
    test.api.delete(&gate(&test).expect("setup created it"), None).expect("it has no finalizer");
    let refusals = Refusals::new(("POST", "/nodegates", "", 422));
    test.start_installed(refusals.client(&test), configured(serde_json::json!({"priority": 3})));
    sleep(Duration::from_mins(10)).await;
    let burst = max_in_window(&refusals.times(), SignedDuration::from_mins(1));
    assert!((1..=10).contains(&burst), "{burst} in a minute");
    refusals.lift();
    let applied = |test: &TestCluster| {
        gate(test).is_some() && gate_condition(test, "ConfigurationApplied", "True").is_some()
    };
    test.until("the gate is created", 2, applied).await;
}

/// Another controller makes the node what it was whenever that has changed.
#[tokio::test(start_paused = true)]
async fn g03_a_controller_that_reverts_the_gate_causes_no_storm() {
    let put_taint: fn(&mut Value) = |node| set(node, "spec.taints", json!([taint()]));
    let remove_label: fn(&mut Value) = |node| set(node, "metadata.labels", json!({}));
    for (revert, what) in [(put_taint, "taint"), (remove_label, "label")] {
        let mut test = TestCluster::new(1, &permissive_policy());
        test.start_controller();
        test.join("n0", "a");
        test.until("the node is verified", 5, |test| test.is_verified("n0")).await;
        let mut reverted = Vec::new();
        for _ in 0..2 * 3600 {
            sleep(Duration::from_secs(1)).await;
            if test.is_verified("n0") {
                let node = test.node("n0").expect("it is there");
                reverted.push(test.now());
                test.api.change(&node, None, revert).expect("the node is valid");
            }
        }
        assert!((4..=12).contains(&reverted.len()), "{what}: {reverted:?}");
        let events = events(&test, "NodeReverted");
        assert!(!events.is_empty() && events.len() <= 3 && events[0].contains(what), "{what}: {events:?}");
    }
}

/// Lists pods in pages, and answers every watch of them with a stream that says nothing.
fn with_silent_pods(test: &TestCluster) -> kube::Client {
    let transport = Transport::new(&test.cluster, "replica-0");
    let service = service_fn(move |request: Request<Body>| {
        let transport = transport.clone();
        async move {
            let query = request.uri().query().unwrap_or_default();
            if !request.uri().path().ends_with("/pods") || !query.contains("watch=true") {
                return transport.oneshot(request).await;
            }
            sleep(Duration::from_millis(1)).await;
            if query.contains("sendInitialEvents") {
                let answer = json!({"kind": "Status", "message": "not supported", "code": 422}).to_string();
                let body = Full::new(Bytes::from(answer)).map_err(|never| match never {}).boxed_unsync();
                return Ok(Response::builder().status(422).body(body)?);
            }
            let nothing = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            let body = StreamBody::new(nothing).map_err(|never| match never {}).boxed_unsync();
            Ok::<_, BoxError>(Response::new(body))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn g04_a_worker_is_not_given_up_by_a_silent_watch() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_with(with_silent_pods(&test));
    test.join("n0", "a");
    test.until("the node is verified", 5, |test| test.is_verified("n0")).await;
    assert_eq!(events(&test, "NodeVerificationInconclusive"), Vec::<String>::new());
    assert_eq!(events(&test, "NodeVerified").len(), 1);
}

/// The controller finds the second worker when it creates it again, and its watch shows it later. Then the lease is lost and
/// taken again.
#[tokio::test(start_paused = true)]
async fn a_worker_that_the_watch_showed_late_is_known_to_the_next_term() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let faults = Faults::new(1, Rates::NONE, Arc::default());
    let client = with_lost_answers(&test, &faults, "nodekeeper-", 1..2);
    test.start_with(client);
    test.fail_dns("n0");
    test.join("n0", "a");
    let failures = |test: &TestCluster| events(test, "NodeCheckFailed").len();
    test.until("the first worker fails", 2, |test| failures(test) == 1).await;
    faults.stall_watches("pods");
    let is_second = |pod: &Arc<Value>| name(pod).ends_with("-2");
    test.until("the second worker is there", 1, |test| test.api.all("pods").iter().any(is_second)).await;
    sleep(Duration::from_secs(2)).await;
    faults.resume_watches("pods");
    test.until("the second worker fails", 2, |test| failures(test) == 2).await;
    let lease = test.api.all("coordination.k8s.io/leases");
    let lease = lease.iter().find(|lease| name(lease) == "kube-node-ready-leader").expect("one leads");
    let now = format!("{:.6}", test.now());
    let take = |lease: &mut Value| {
        set(lease, "spec.holderIdentity", json!("other_1"));
        set(lease, "spec.renewTime", json!(now));
    };
    test.api.change(lease, None, take).expect("it is valid");
    // The watch of workers is busy, so that nothing is listed again for the next term.
    let labels = json!({"app.kubernetes.io/name": "nodekeeper", "app.kubernetes.io/component": "worker"});
    let pod = json!({"metadata": {"name": "busy", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.com/web:1"}]}});
    test.api.create("v1", "Pod", NAMESPACE, pod).expect("it is valid");
    let busy = |test: &TestCluster| test.api.get("pods", NAMESPACE, "busy").expect("it is there");
    for number in 0..300 {
        let change = |pod: &mut Value| set(pod, "metadata.annotations.number", json!(number.to_string()));
        test.api.change(&busy(&test), None, change).expect("it is valid");
        sleep(Duration::from_millis(100)).await;
    }
    test.heal_dns("n0");
    test.until("the node is verified", 5, |test| test.is_verified("n0")).await;
    test.api.delete(&busy(&test), None).expect("it is there");
    test.until("no worker is left over", 1, |test| test.api.all("pods").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn g06_worker_creations_that_fail_for_long_are_reported() {
    // A webhook that cannot be called, and a ResourceQuota that two requests change at once.
    for code in [500, 409] {
        let mut test = TestCluster::new(1, &permissive_policy());
        let refusals = Refusals::new(("POST", "/pods", "", code));
        test.start_with(refusals.client(&test));
        for node in ["n0", "n1", "n2"] {
            test.join(node, "a");
        }
        let named = |test: &TestCluster| {
            let found = gate_condition(test, "WorkersCannotRun", "True");
            found.is_some_and(|(reason, message)| reason == "CreateRefused" && message.contains("'frozen'"))
        };
        test.until("the failure is reported", 3, named).await;
        let before = refusals.times().len();
        sleep(Duration::from_mins(5)).await;
        let burst = max_in_window(&refusals.times()[before..], SignedDuration::from_mins(1));
        assert!((1..=8).contains(&burst), "{code}: one node tries for all: {burst} in a minute");
        refusals.lift();
        let verified = |test: &TestCluster| ["n0", "n1", "n2"].iter().all(|node| test.is_verified(node));
        test.until("the nodes are verified", 2, verified).await;
    }
}

//! The API server refuses requests of the controller for a long time: an admission policy, a webhook, a missing right.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use nodekeeper_sim::object::{condition, is_true, text};
use nodekeeper_sim::transport::{BoxError, Transport};
use nodekeeper_sim::value::json;
use parking_lot::Mutex;
use tokio::time::sleep;
use tower::{ServiceExt as _, service_fn};

use super::test_cluster::{TestCluster, group, max_in_window, permissive_policy};

/// A review that is refused is answered: the access is not permitted.
const REVIEWS: &str = "/selfsubjectaccessreviews";

/// Which requests are refused: the method, a part of the path, a part of the body, and the status code.
pub type Rule = (&'static str, &'static str, &'static str, u16);

#[derive(Default)]
struct State {
    rule: Option<Rule>,
    /// When the rule was applied.
    times: Vec<Timestamp>,
    /// All requests get the same message. Otherwise it has a number.
    same_message: bool,
}

/// A rule, until it is lifted, and when it was applied.
#[derive(Clone)]
pub struct Refusals(Arc<Mutex<State>>);

impl Refusals {
    pub fn new(rule: Rule) -> Self {
        Self(Arc::new(Mutex::new(State { rule: Some(rule), ..State::default() })))
    }

    pub fn with_the_same_message(rule: Rule) -> Self {
        let refusals = Self::new(rule);
        refusals.0.lock().same_message = true;
        refusals
    }

    pub fn apply(&self, rule: Rule) {
        self.0.lock().rule = Some(rule);
    }

    pub fn lift(&self) {
        self.0.lock().rule = None;
    }

    pub fn times(&self) -> Vec<Timestamp> {
        self.0.lock().times.clone()
    }

    pub fn client(&self, test: &TestCluster) -> kube::Client {
        let (refusals, clock) = (self.clone(), test.cluster.clock().clone());
        let transport = Transport::new(&test.cluster, "replica-0");
        let service = service_fn(move |request: Request<Body>| {
            let (refusals, clock, transport) = (refusals.clone(), clock.clone(), transport.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let applies = |(method, path, content, _): &Rule| {
                    parts.method == *method
                        && format!("{}?", parts.uri.path()).contains(path)
                        && String::from_utf8_lossy(&body).contains(content)
                };
                let rule = refusals.0.lock().rule.filter(applies);
                let Some((.., code)) = rule else {
                    return transport.oneshot(Request::from_parts(parts, Body::from(body))).await;
                };
                sleep(Duration::from_millis(1)).await;
                let number = {
                    let mut state = refusals.0.lock();
                    state.times.push(clock.now());
                    if state.same_message { 1 } else { state.times.len() }
                };
                let answer = if parts.uri.path().contains(REVIEWS) {
                    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                        "metadata": {}, "spec": {}, "status": {"allowed": false}})
                } else {
                    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                        "message": format!("policy 'frozen' denied the request, its no. {number}"),
                        "reason": "Invalid", "code": code})
                };
                let answer = Full::new(Bytes::from(answer.to_string())).boxed_unsync();
                Ok::<_, BoxError>(Response::builder().status(code).body(answer)?)
            }
        });
        kube::Client::new(service, "default")
    }
}

fn replacement_events(test: &TestCluster) -> usize {
    let events = test.api.all("events");
    events.iter().filter(|event| text(event, "reason") == "NodeReplacementRequested").count()
}

#[tokio::test(start_paused = true)]
async fn r04_a_refused_request_is_backed_off_and_reported() {
    let rules: [Rule; 4] = [
        ("DELETE", "/nodeclaims/", "", 403),
        ("DELETE", "/nodeclaims/", "", 422),
        ("PATCH", "/api/v1/nodes/", "/spec/unschedulable", 422),
        ("PATCH", "/remediationpolicies/default/status", "", 422),
    ];
    for rule in rules {
        let mut policy = permissive_policy();
        // Control workers are created after the policy's status was written.
        policy["controlGroup"] = json!({"size": 0});
        let mut test = TestCluster::new(1, &policy);
        let refusals = Refusals::new(rule);
        test.start_with(refusals.client(&test));
        test.add_healthy_nodes(3, "a").await;
        let pool = group("pool", 1, 1);
        test.karpenter(pool.clone());
        let reported = |test: &TestCluster| {
            let request = test.request(&pool.node(0));
            let said = request.as_ref().and_then(|request| condition(request, "Succeeded"));
            said.is_some_and(|said| {
                text(said, "reason") == "RequestRefused" && text(said, "message").contains("'frozen'")
            })
        };
        test.until("the refusal is reported", 10, reported).await;
        let before = refusals.times().len();
        sleep(Duration::from_mins(5)).await;
        let times = refusals.times();
        assert!(times.len() > before, "{rule:?}: it is tried again");
        // Of the policy's status the policy controller writes the other half.
        let burst = max_in_window(&times[before..], SignedDuration::from_mins(1));
        assert!(burst <= 8, "{rule:?}: {burst} in a minute");
        assert_eq!(replacement_events(&test), 0, "{rule:?}: nothing was deleted");
        refusals.lift();
        test.until("the node is replaced", 15, |test| test.is_verified(&pool.node(1))).await;
        assert_eq!((test.deletions().len(), replacement_events(&test)), (1, 1), "{rule:?}");
    }
}

/// The first pod of the node has two budgets, for which the API server answers 500.
#[tokio::test(start_paused = true)]
async fn r07_an_eviction_that_fails_does_not_stop_the_others() {
    let mut policy = permissive_policy();
    policy["deleteNodeObjectFor"] = json!([{"source": "Person", "name": "*"}]);
    let mut test = TestCluster::new(1, &policy);
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    for budget in ["one", "other"] {
        test.add_budget(budget, "guarded", 0);
    }
    test.deploy("a-guarded", "guarded", "good-a-0").await;
    test.deploy("b-free", "free", "good-a-0").await;
    test.request_remediation("good-a-0");
    test.until("the other pod is evicted", 5, |test| test.api.get("pods", "default", "b-free").is_none())
        .await;
    let reported = |test: &TestCluster| {
        let request = test.request("good-a-0");
        let drained = request.as_ref().and_then(|request| condition(request, "Drained"));
        drained.is_some_and(|drained| {
            text(drained, "reason") == "Draining"
                && text(drained, "message").contains("default/a-guarded")
                && text(drained, "message").contains("PodDisruptionBudget")
        })
    };
    test.until("the answer is reported", 2, reported).await;
    assert!(test.api.get("pods", "default", "a-guarded").is_some());
    let budget = test.api.get("policy/poddisruptionbudgets", "default", "other").expect("it is there");
    test.api.delete(&budget, None).expect("it is there");
    test.until("the node is gone", 5, |test| test.node("good-a-0").is_none()).await;
}

/// The answers differ, as those with the name of a leader or a time do. Each is written to the status.
#[tokio::test(start_paused = true)]
async fn r04_refused_evictions_are_backed_off_whatever_else_changes() {
    let mut policy = permissive_policy();
    policy["deleteNodeObjectFor"] = json!([{"source": "Person", "name": "*"}]);
    let mut test = TestCluster::new(1, &policy);
    let refusals = Refusals::new(("POST", "/eviction", "", 500));
    test.start_with(refusals.client(&test));
    test.add_healthy_nodes(3, "a").await;
    for pod in ["a", "b", "c"] {
        test.deploy(pod, "free", "good-a-0").await;
    }
    test.request_remediation("good-a-0");
    test.until("all three are tried", 5, |_| refusals.times().len() >= 3).await;
    sleep(Duration::from_mins(5)).await;
    let times = refusals.times();
    let burst = max_in_window(&times, SignedDuration::from_mins(1));
    // After 0, 5, 15 and 35 seconds.
    assert!((9..=12).contains(&burst), "{burst} in a minute: {times:?}");
    refusals.lift();
    test.until("the node is gone", 5, |test| test.node("good-a-0").is_none()).await;
}

/// The status of a remediation cannot be written, so that the policy's condition has to say it.
#[tokio::test(start_paused = true)]
async fn r04_a_refused_status_of_a_remediation_is_backed_off_and_reported() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let refusals = Refusals::new(("PATCH", "/noderemediations/", "\"/status\"", 422));
    test.start_with(refusals.client(&test));
    test.add_healthy_nodes(3, "a").await;
    let pool = group("pool", 1, 1);
    test.karpenter(pool.clone());
    let reported = |test: &TestCluster| {
        let policy = test.policy();
        condition(&policy, "Ready").is_some_and(|ready| {
            text(ready, "reason") == "WriteRefused"
                && text(ready, "message").contains("the status of NodeRemediation")
                && text(ready, "message").contains("'frozen'")
        })
    };
    test.until("the refusal is reported", 10, reported).await;
    sleep(Duration::from_mins(5)).await;
    let burst = max_in_window(&refusals.times(), SignedDuration::from_mins(1));
    assert!(burst <= 20, "{burst} in a minute");
    assert!(test.deletions().is_empty());
    refusals.lift();
    test.until("the node is replaced", 20, |test| test.is_verified(&pool.node(1))).await;
    test.until("the report is withdrawn", 5, |test| !reported(test)).await;
}

/// A watch that is forbidden leaves an empty cache. Nothing was deleted, and the act goes on.
#[tokio::test(start_paused = true)]
async fn a_forbidden_watch_uncordons_no_node_in_replacement() {
    for collection in ["/remediationpolicies?", "/noderemediations?"] {
        let mut policy = permissive_policy();
        policy["deleteNodeObjectFor"] = json!([{"source": "Person", "name": "*"}]);
        let mut test = TestCluster::new(1, &policy);
        // Not the reads of one object, whose path ends with its name.
        let rule = ("GET", collection, "", 403);
        let refusals = Refusals::new(rule);
        refusals.lift();
        test.start_with(refusals.client(&test));
        test.add_healthy_nodes(3, "a").await;
        test.deploy("stays", "guarded", "good-a-0").await;
        test.add_budget("guarded", "guarded", 1);
        test.request_remediation("good-a-0");
        let is_cordoned = |test: &TestCluster| {
            test.node("good-a-0").is_some_and(|node| is_true(&node, "spec.unschedulable"))
        };
        test.until("the node is cordoned", 5, is_cordoned).await;
        refusals.apply(rule);
        for _ in 0..100 {
            sleep(Duration::from_secs(5)).await;
            assert!(is_cordoned(&test), "{collection}: the node was uncordoned");
        }
        assert!(!refusals.times().is_empty(), "the server ends each watch within five minutes");
        refusals.lift();
        let budget = test.api.get("policy/poddisruptionbudgets", "default", "guarded");
        test.api.delete(&budget.expect("it is there"), None).expect("nothing keeps it");
        test.until("the node is gone", 10, |test| test.node("good-a-0").is_none()).await;
    }
}

/// The status of the policy cannot be written. Control workers are started nevertheless.
#[tokio::test(start_paused = true)]
async fn r18_a_refused_policy_status_does_not_stop_control_runs() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let refusals = Refusals::new(("PATCH", "/remediationpolicies/default/status", "", 422));
    test.start_with(refusals.client(&test));
    test.add_healthy_nodes(3, "a").await;
    test.karpenter(group("pool", 1, 1));
    test.until("control workers start", 10, |test| test.controls().len() >= 2).await;
    assert!(!refusals.times().is_empty());
}

/// The status says already that it was refused, and is refused again in the same words. Then there is nothing to write, which does
/// not mean that it would be accepted.
#[tokio::test(start_paused = true)]
async fn r04_a_policy_status_that_is_refused_again_is_backed_off() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let rule = ("PATCH", "/remediationpolicies/default/status", "", 422);
    let refusals = Refusals::with_the_same_message(rule);
    let (again, written) = (refusals.clone(), Arc::new(Mutex::new(false)));
    let landed = written.clone();
    test.cluster.observe(Box::new(move |change| {
        let ready = change.after.as_ref().and_then(|after| condition(after, "Ready"));
        if change.collection.ends_with("/remediationpolicies")
            && ready.is_some_and(|ready| text(ready, "reason") == "WriteRefused")
        {
            again.apply(rule);
            *landed.lock() = true;
        }
    }));
    test.start_with(refusals.client(&test));
    test.add_healthy_nodes(3, "a").await;
    test.until("it is refused", 5, |_| refusals.times().len() >= 3).await;
    refusals.lift();
    test.until("the status says so", 5, |_| *written.lock()).await;
    let before = refusals.times().len();
    sleep(Duration::from_mins(5)).await;
    let burst = max_in_window(&refusals.times()[before..], SignedDuration::from_mins(1));
    assert!((1..=6).contains(&burst), "{burst} in a minute");
}

/// Control workers that have ended cannot be deleted, or none can be created.
#[tokio::test(start_paused = true)]
async fn r04_what_the_policy_cannot_tidy_up_is_backed_off_and_reported() {
    for (rule, named) in [
        (("DELETE", "/pods/nodekeeper-control-", "", 422), "deletion of a control worker pod"),
        (("POST", "/pods", "nodekeeper-control-", 404), "a control worker pod"),
    ] {
        let mut test = TestCluster::new(1, &permissive_policy());
        let refusals = Refusals::new(rule);
        test.start_with(refusals.client(&test));
        test.add_healthy_nodes(3, "a").await;
        test.karpenter(group("pool", 1, 1));
        let reported = |test: &TestCluster| {
            let policy = test.policy();
            condition(&policy, "Ready").is_some_and(|ready| {
                text(ready, "reason") == "WriteRefused"
                    && text(ready, "message").contains(named)
                    && text(ready, "message").contains("'frozen'")
            })
        };
        test.until("the refusal is reported", 15, reported).await;
        sleep(Duration::from_mins(5)).await;
        let burst = max_in_window(&refusals.times(), SignedDuration::from_mins(1));
        // A change of a control worker or of a remediation is a reason to try at once.
        assert!(burst <= 20, "{rule:?}: {burst} in a minute");
        refusals.lift();
        test.until("the report is withdrawn", 5, |test| !reported(test)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn r20_nothing_begins_without_the_permissions_to_finish_it() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let refusals = Refusals::new(("POST", REVIEWS, "eviction", 201));
    test.start_with(refusals.client(&test));
    test.add_healthy_nodes(3, "a").await;
    let pool = group("pool", 1, 1);
    test.karpenter(pool.clone());
    test.until("the block is reported", 10, |test| test.reason(&pool.node(0)) == "MissingRights").await;
    sleep(Duration::from_mins(30)).await;
    let policy = test.policy();
    let ready = condition(&policy, "Ready").expect("it is there");
    assert_eq!((text(ready, "status"), text(ready, "reason")), ("False", "MissingRights"));
    assert!(text(ready, "message").contains("create pods/eviction:"), "{ready}");
    assert!(policy["status"].get("reservations").is_none(), "{policy}");
    let node = test.node(&pool.node(0)).expect("it was not replaced");
    assert!(node["spec"].get("unschedulable").is_none(), "{node}");
    assert!(refusals.times().len() < 25, "asked every few minutes: {}", refusals.times().len());
    refusals.lift();
    test.until("the node is replaced", 20, |test| test.is_verified(&pool.node(1))).await;
    assert_eq!(test.deletions().len(), 1);
}

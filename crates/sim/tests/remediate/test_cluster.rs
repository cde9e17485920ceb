//! A cluster whose machines are replaced, and controllers that tests can kill.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::configured::ConfiguredObject;
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::actors::autoscaler::Autoscaler;
use nodekeeper_sim::actors::cloud::{Cloud, Flaws, Group};
use nodekeeper_sim::actors::karpenter::Karpenter;
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::faults::{Faults, Rates};
use nodekeeper_sim::network::{Fault, Outage};
use nodekeeper_sim::object::{condition, items, name, set, text, uid};
use nodekeeper_sim::transport::Transport;
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, Options};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gate::{TAINT, setup, taint, template};

pub const CLAIMS: &str = "karpenter.sh/nodeclaims";
const API: &str = "nodekeeper.dev/v1alpha1";
const POLICIES: &str = "nodekeeper.dev/remediationpolicies";

/// A deletion or eviction by a controller.
#[derive(Clone, Debug)]
pub struct Disruption {
    pub at: Timestamp,
    /// `nodes`, `pods` or the collection of `NodeClaims`.
    pub what: String,
    pub name: String,
}

pub struct TestCluster {
    pub cluster: Cluster,
    pub kubelets: Kubelets,
    pub api: Local,
    cloud: Cloud,
    disruptions: Arc<Mutex<Vec<Disruption>>>,
    /// When and on which node control workers were created.
    controls: Arc<Mutex<Vec<(Timestamp, String)>>>,
    controllers: Vec<JoinHandle<()>>,
    started: u64,
    seed: u64,
    karpenter: Option<Karpenter>,
    autoscaler: Option<Autoscaler>,
    _actors: Actors,
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.kill_controllers();
    }
}

/// A group in zone a whose first `broken` machines never pass.
pub fn group(name: &str, size: usize, broken: u64) -> Group {
    let flaws = Flaws::of(move |number| if number < broken { vec![Fault::Dns] } else { Vec::new() });
    Group {
        name: name.into(),
        size,
        zones: vec!["a".into()],
        taints: vec![taint()],
        flaws,
        ..Group::default()
    }
}

/// A policy that limits nothing.
pub fn permissive_policy() -> Value {
    json!({
        "enforcement": "Enforce",
        "budget": {"maxInFlightPerGroup": 50, "maxInFlightPerZone": 50, "maxInFlight": 50, "maxPerHour": 100, "maxGroupPercentPerHour": 100},
        "breaker": {"openPercent": 100},
        "deleteNodeObjectFor": [{"source": "Gate", "name": "default"}],
    })
}

impl TestCluster {
    /// Creates a gate with `onFailure: Replace`, and a policy.
    pub fn new(seed: u64, policy: &Value) -> Self {
        let cluster = Cluster::new(Options::simulated(seed));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, seed, Arc::new(Workers));
        setup(&cluster);
        let cloud = Cloud::new(&cluster, &kubelets);
        let (disruptions, controls) = (Arc::default(), Arc::default());
        watch(&cluster, &disruptions, &controls);
        let api = cluster.local("test");
        let body = json!({"apiVersion": API, "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": policy});
        api.create(API, "RemediationPolicy", "", body).expect("the policy is valid");
        let test = Self {
            cluster,
            kubelets,
            api,
            cloud,
            disruptions,
            controls,
            controllers: Vec::new(),
            started: 0,
            seed,
            karpenter: None,
            autoscaler: None,
            _actors: actors,
        };
        test.change_gate(|gate| {
            set(gate, "spec.onFailure", json!("Replace"));
            set(gate, "spec.retry", json!({"maxRetries": 1, "recheckPeriodSeconds": 60}));
        });
        test
    }

    pub fn change_gate(&self, change: impl FnOnce(&mut Value)) {
        let gate = self.api.get("nodekeeper.dev/nodegates", "", "default").expect("setup created it");
        self.api.change(&gate, None, change).expect("the gate is valid");
    }

    pub fn change_policy(&self, change: impl FnOnce(&mut Value)) {
        self.api.change(&self.policy(), None, change).expect("the policy is valid");
    }

    pub fn policy(&self) -> Arc<Value> {
        self.api.get(POLICIES, "", "default").expect("there is a policy")
    }

    /// Starts another controller. The first one leads.
    pub fn start_controller(&mut self) {
        let client = self.cluster.client("replica-0");
        self.start_with(client);
    }

    pub fn start_controller_with_faults(&mut self, rates: Rates) -> Faults {
        let faults = Faults::new(self.seed, rates, Arc::default());
        let client = Transport::new(&self.cluster, "replica-0").with_faults(faults.clone()).client();
        self.start_with(client);
        faults
    }

    pub fn start_with(&mut self, client: kube::Client) {
        self.start_installed(client, Vec::new());
    }

    /// Starts a controller of an installation with these objects.
    pub fn start_installed(&mut self, client: kube::Client, objects: Vec<ConfiguredObject>) {
        self.started += 1;
        let settings =
            Settings::new(template(), format!("replica-0_{}", self.started), self.seed + self.started);
        let settings = Settings { objects, ..settings };
        let clock = self.cluster.clock().clone();
        let clock = Clock::new(move || clock.now());
        self.controllers.push(tokio::spawn(run(client, settings, clock, std::future::pending())));
    }

    /// Aborts all controllers.
    pub fn kill_controllers(&mut self) {
        for controller in self.controllers.drain(..) {
            controller.abort();
        }
    }

    pub fn karpenter(&mut self, pool: Group) {
        let started = Karpenter::start(&self.cluster, &self.cloud, self.seed, vec![pool]);
        self.karpenter = Some(started.expect("the pool is valid"));
    }

    pub fn autoscaler(&mut self, group: Group) {
        self.autoscaler = Some(Autoscaler::start(&self.cluster, &self.cloud, self.seed, vec![group]));
    }

    pub fn join(&self, name: &str, zone: &str) {
        let (name, zone) = (name.to_owned(), zone.to_owned());
        self.kubelets.join(NodeSpec { name, zone, taints: vec![taint()], ..NodeSpec::default() });
    }

    /// Adds nodes `good-ZONE-0` and so on, and waits until they are verified.
    pub async fn add_healthy_nodes(&self, count: usize, zone: &str) {
        for n in 0..count {
            self.join(&format!("good-{zone}-{n}"), zone);
        }
        self.until("healthy nodes are verified", 5, |test| {
            (0..count).all(|n| test.is_verified(&format!("good-{zone}-{n}")))
        })
        .await;
    }

    pub fn node(&self, name: &str) -> Option<Arc<Value>> {
        self.api.get("nodes", "", name)
    }

    pub fn is_verified(&self, name: &str) -> bool {
        let gated = |node: &Value| items(node, "spec.taints").iter().any(|taint| text(taint, "key") == TAINT);
        self.node(name)
            .is_some_and(|node| !gated(&node) && node["metadata"]["labels"].get(crate::gate::LABEL).is_some())
    }

    /// The number of nodes, and how many of them are verified.
    pub fn nodes(&self) -> (usize, usize) {
        let all = self.api.all("nodes");
        (all.len(), all.iter().filter(|node| self.is_verified(name(node))).count())
    }

    pub fn fail_dns(&self, node: &str) {
        self.cluster.network().fail(Outage::Node(node.into()));
    }

    pub fn heal_dns(&self, node: &str) {
        self.cluster.network().heal(&Outage::Node(node.into()));
    }

    /// A budget for the pods with this label that always needs as many healthy pods.
    pub fn add_budget(&self, name: &str, app: &str, min_available: i64) {
        let body = json!({"metadata": {"name": name},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}}});
        self.api.create("policy/v1", "PodDisruptionBudget", "default", body).expect("it is valid");
    }

    /// Runs a pod of a `ReplicaSet` on a node.
    pub async fn deploy(&self, name: &str, app: &str, node: &str) {
        let set = json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [
                {"name": "main", "image": "example.com/web:1"}]}}}});
        let set = self.api.create("apps/v1", "ReplicaSet", "default", set).expect("it is valid");
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid(&set), "controller": true});
        let body = json!({"metadata": {"name": name, "labels": {"app": app}, "ownerReferences": [owner]},
            "spec": {"nodeName": node, "containers": [
                {"name": "main", "image": "example.com/web:1", "command": ["serve"]}]}});
        self.api.create("v1", "Pod", "default", body).expect("it is valid");
        self.until("the pod runs", 2, |test| {
            let pod = test.api.get("pods", "default", name);
            pod.is_some_and(|pod| text(&pod, "status.phase") == "Running")
        })
        .await;
    }

    /// Creates a remediation as a user.
    pub fn request_remediation(&self, node: &str) {
        let node = self.node(node).expect("the node is there");
        let body = json!({"apiVersion": API, "kind": "NodeRemediation", "metadata": {"name": uid(&node)}, "spec": {
            "node": {"name": name(&node), "uid": uid(&node)},
            "causes": [{"source": "Person", "name": "user", "message": "it is old"}]}});
        self.api.create(API, "NodeRemediation", "", body).expect("the request is valid");
    }

    /// The last remediation of a node of this name.
    pub fn request(&self, node: &str) -> Option<Arc<Value>> {
        let all = self.api.all("nodekeeper.dev/noderemediations").into_iter();
        let about = all.filter(|request| text(request, "spec.node.name") == node);
        about.max_by_key(|request| text(request, "metadata.creationTimestamp").to_owned())
    }

    /// The reason of the Approved condition of a node's remediation.
    pub fn reason(&self, node: &str) -> String {
        let request = self.request(node);
        let approved = request.as_ref().and_then(|request| condition(request, "Approved"));
        approved.map(|approved| text(approved, "reason").to_owned()).unwrap_or_default()
    }

    /// Reason and message of a condition of the policy, if it is True.
    pub fn true_condition(&self, type_: &str) -> Option<(String, String)> {
        let policy = self.policy();
        let said = condition(&policy, type_).filter(|one| text(one, "status") == "True")?;
        Some((text(said, "reason").to_owned(), text(said, "message").to_owned()))
    }

    pub fn deletions(&self) -> Vec<Disruption> {
        let disruptions = self.disruptions.lock();
        disruptions.iter().filter(|act| act.what != "pods").cloned().collect()
    }

    pub fn controls(&self) -> Vec<(Timestamp, String)> {
        self.controls.lock().clone()
    }

    pub fn now(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    pub async fn until(&self, what: &str, minutes: u64, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let said: Vec<String> = self
                .api
                .all("nodekeeper.dev/noderemediations")
                .iter()
                .take(3)
                .map(|request| format!("{}: {}", text(request, "spec.node.name"), request["status"]))
                .collect();
            assert!(
                start.elapsed() < Duration::from_mins(minutes),
                "timed out: {what}; nodes {:?}; disruptions {:?}; policy {}; requests {said:?}",
                self.nodes(),
                self.deletions(),
                self.policy()["status"]
            );
            sleep(Duration::from_secs(1)).await;
        }
    }
}

fn watch(
    cluster: &Cluster,
    disruptions: &Arc<Mutex<Vec<Disruption>>>,
    controls: &Arc<Mutex<Vec<(Timestamp, String)>>>,
) {
    let (disruptions, controls) = (disruptions.clone(), controls.clone());
    cluster.observe(Box::new(move |change| {
        if !change.user.starts_with("replica") {
            return;
        }
        let what = change.collection.as_str();
        let is_act = matches!(what, "nodes" | CLAIMS) || change.is_eviction();
        if let Some(object) = change.deleted().filter(|_| is_act) {
            let act = Disruption { at: change.at, what: what.to_owned(), name: name(object).to_owned() };
            disruptions.lock().push(act);
        }
        if let ("pods", None, Some(pod)) = (what, &change.before, &change.after)
            && pod["metadata"]["labels"]["app.kubernetes.io/component"] == "control"
        {
            let node = text(&items(pod, "metadata.ownerReferences")[0], "name").to_owned();
            controls.lock().push((change.at, node));
        }
    }));
}

/// The largest number of timestamps within any window of this length.
pub fn max_in_window(times: &[Timestamp], span: SignedDuration) -> usize {
    let within =
        |from: &Timestamp| times.iter().filter(|at| *at >= from && at.duration_since(*from) < span).count();
    times.iter().map(within).max().unwrap_or_default()
}

//! A cluster whose machines are replaced, and controllers that die when the test says so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
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
use nodekeeper_sim::wire::Wire;
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, Options};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gate::{TAINT, furnish, taint, template};

pub const CLAIMS: &str = "karpenter.sh/nodeclaims";
const API: &str = "nodekeeper.dev/v1alpha1";
const POLICIES: &str = "nodekeeper.dev/remediationpolicies";

/// Something destructive that a controller did.
#[derive(Clone, Debug)]
pub struct Act {
    pub at: Timestamp,
    /// `nodes`, `pods` or the collection of `NodeClaims`.
    pub what: String,
    pub name: String,
}

pub struct Stage {
    pub cluster: Cluster,
    pub kubelets: Kubelets,
    pub api: Local,
    cloud: Cloud,
    acts: Arc<Mutex<Vec<Act>>>,
    /// When control workers were made, and on which node.
    controls: Arc<Mutex<Vec<(Timestamp, String)>>>,
    controllers: Vec<JoinHandle<()>>,
    started: u64,
    seed: u64,
    karpenter: Option<Karpenter>,
    autoscaler: Option<Autoscaler>,
    _actors: Actors,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A pool or group in zone a, the first so many machines of which never pass.
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

/// Room for everything that a test is not about.
pub fn roomy() -> Value {
    json!({
        "enforcement": "Enforce",
        "budget": {"inFlightPerGroup": 50, "inFlightPerZone": 50, "inFlight": 50, "perHour": 100, "groupPercent": 100},
        "breaker": {"openPercent": 100},
        "deleteNodeObjectFor": ["default"],
    })
}

impl Stage {
    /// A gate that wants hopeless nodes replaced, and a policy.
    pub fn new(seed: u64, policy: &Value) -> Self {
        let cluster = Cluster::new(Options::simulated(seed));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, seed, Arc::new(Workers));
        furnish(&cluster);
        let cloud = Cloud::new(&cluster, &kubelets);
        let (acts, controls) = (Arc::default(), Arc::default());
        watch(&cluster, &acts, &controls);
        let api = cluster.local("test");
        let body = json!({"apiVersion": API, "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": policy});
        api.create(API, "RemediationPolicy", "", body).expect("the policy is valid");
        let stage = Self {
            cluster,
            kubelets,
            api,
            cloud,
            acts,
            controls,
            controllers: Vec::new(),
            started: 0,
            seed,
            karpenter: None,
            autoscaler: None,
            _actors: actors,
        };
        stage.change_gate(|gate| {
            set(gate, "spec.onFailure", json!("Replace"));
            set(gate, "spec.retry", json!({"maxRetries": 1, "recheckPeriodSeconds": 60}));
        });
        stage
    }

    pub fn change_gate(&self, change: impl FnOnce(&mut Value)) {
        let gate = self.api.get("nodekeeper.dev/nodegates", "", "default").expect("furnished");
        self.api.change(&gate, None, change).expect("the gate is valid");
    }

    pub fn change_policy(&self, change: impl FnOnce(&mut Value)) {
        self.api.change(&self.policy(), None, change).expect("the policy is valid");
    }

    pub fn policy(&self) -> Arc<Value> {
        self.api.get(POLICIES, "", "default").expect("there is a policy")
    }

    /// One more controller. The first leads; others wait for its lease.
    pub fn lead(&mut self) {
        let client = self.cluster.client("replica-0");
        self.start(client);
    }

    /// One whose requests and answers get lost.
    pub fn lead_with(&mut self, rates: Rates) {
        let faults = Faults::new(self.seed, rates, Arc::default());
        let client = Wire::new(&self.cluster, "replica-0").with_faults(faults).client();
        self.start(client);
    }

    fn start(&mut self, client: kube::Client) {
        self.started += 1;
        let settings =
            Settings::new(template(), format!("replica-0_{}", self.started), self.seed + self.started);
        let clock = self.cluster.clock().clone();
        let clock = Clock::new(move || clock.now());
        self.controllers.push(tokio::spawn(run(client, settings, clock, std::future::pending())));
    }

    /// All controllers die where they are.
    pub fn kill(&mut self) {
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

    /// Nodes that work and are let in: `good-ZONE-0` and so on.
    pub async fn good(&self, count: usize, zone: &str) {
        for n in 0..count {
            self.join(&format!("good-{zone}-{n}"), zone);
        }
        self.until("good nodes are open", 5, |stage| {
            (0..count).all(|n| stage.is_open(&format!("good-{zone}-{n}")))
        })
        .await;
    }

    pub fn node(&self, name: &str) -> Option<Arc<Value>> {
        self.api.get("nodes", "", name)
    }

    pub fn is_open(&self, name: &str) -> bool {
        let gated = |node: &Value| items(node, "spec.taints").iter().any(|taint| text(taint, "key") == TAINT);
        self.node(name)
            .is_some_and(|node| !gated(&node) && node["metadata"]["labels"].get(crate::gate::LABEL).is_some())
    }

    /// How many nodes there are, and how many of them are open.
    pub fn nodes(&self) -> (usize, usize) {
        let all = self.api.all("nodes");
        (all.len(), all.iter().filter(|node| self.is_open(name(node))).count())
    }

    pub fn fail_dns(&self, node: &str) {
        self.cluster.network().fail(Outage::Node(node.into()));
    }

    pub fn heal_dns(&self, node: &str) {
        self.cluster.network().heal(&Outage::Node(node.into()));
    }

    /// Somebody asks for a node to be replaced.
    pub fn ask(&self, node: &str) {
        let node = self.node(node).expect("the node is there");
        let body = json!({"apiVersion": API, "kind": "NodeRemediation", "metadata": {"name": uid(&node)}, "spec": {
            "node": {"name": name(&node), "uid": uid(&node)},
            "causes": [{"source": "Person", "name": "somebody", "message": "it is old"}]}});
        self.api.create(API, "NodeRemediation", "", body).expect("the request is valid");
    }

    /// The last request about nodes of this name.
    pub fn request(&self, node: &str) -> Option<Arc<Value>> {
        let all = self.api.all("nodekeeper.dev/noderemediations").into_iter();
        let about = all.filter(|request| text(request, "spec.node.name") == node);
        about.max_by_key(|request| text(request, "metadata.creationTimestamp").to_owned())
    }

    /// Why a node is not replaced, in one word.
    pub fn reason(&self, node: &str) -> String {
        let request = self.request(node);
        let approved = request.as_ref().and_then(|request| condition(request, "Approved"));
        approved.map(|approved| text(approved, "reason").to_owned()).unwrap_or_default()
    }

    /// Reason and message of a condition of the policy, if it is True.
    pub fn says(&self, type_: &str) -> Option<(String, String)> {
        let policy = self.policy();
        let said = condition(&policy, type_).filter(|one| text(one, "status") == "True")?;
        Some((text(said, "reason").to_owned(), text(said, "message").to_owned()))
    }

    /// The deletions of Nodes and `NodeClaims` by controllers.
    pub fn deletions(&self) -> Vec<Act> {
        let acts = self.acts.lock().expect("nobody panics with it");
        acts.iter().filter(|act| act.what != "pods").cloned().collect()
    }

    pub fn controls(&self) -> Vec<(Timestamp, String)> {
        self.controls.lock().expect("nobody panics with it").clone()
    }

    pub fn now(&self) -> Timestamp {
        self.cluster.clock().now()
    }

    pub async fn until(&self, what: &str, minutes: u64, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let said: Vec<String> = self
                .api
                .all("nodekeeper.dev/noderemediations")
                .iter()
                .take(3)
                .map(|request| format!("{}: {}", text(request, "spec.node.name"), request["status"]))
                .collect();
            assert!(
                start.elapsed() < Duration::from_mins(minutes),
                "never so: {what}; nodes {:?}; acts {:?}; policy {}; requests {said:?}",
                self.nodes(),
                self.deletions(),
                self.policy()["status"]
            );
            sleep(Duration::from_secs(1)).await;
        }
    }
}

fn watch(cluster: &Cluster, acts: &Arc<Mutex<Vec<Act>>>, controls: &Arc<Mutex<Vec<(Timestamp, String)>>>) {
    let (acts, controls) = (acts.clone(), controls.clone());
    cluster.observe(Box::new(move |change| {
        if !change.writer().starts_with("replica") {
            return;
        }
        let what = change.collection.as_str();
        let is_act = matches!(what, "nodes" | CLAIMS) || change.is_eviction();
        if let Some(object) = change.deleted().filter(|_| is_act) {
            let act = Act { at: change.at, what: what.to_owned(), name: name(object).to_owned() };
            acts.lock().expect("nobody panics with it").push(act);
        }
        if let ("pods", None, Some(pod)) = (what, &change.before, &change.after)
            && pod["metadata"]["labels"]["app.kubernetes.io/component"] == "control"
        {
            let node = text(&items(pod, "metadata.ownerReferences")[0], "name").to_owned();
            controls.lock().expect("nobody panics with it").push((change.at, node));
        }
    }));
}

/// The most of these that fall into any span of this length.
pub fn most_within(times: &[Timestamp], span: SignedDuration) -> usize {
    let within =
        |from: &Timestamp| times.iter().filter(|at| *at >= from && at.duration_since(*from) < span).count();
    times.iter().map(within).max().unwrap_or_default()
}

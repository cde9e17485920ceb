//! The stand-ins for Karpenter and an autoscaler replace deleted machines.

use std::sync::Arc;
use std::time::Duration;

use nodekeeper_sim::actors::autoscaler::{self, Autoscaler};
use nodekeeper_sim::actors::cloud::{Cloud, Flaws, Group};
use nodekeeper_sim::actors::karpenter::{Karpenter, POOL};
use nodekeeper_sim::actors::kubelet::{FakeRuntime, Kubelets};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::network::Fault;
use nodekeeper_sim::object::{condition_status, has_finalizer, is_deleting, items, name, set, text, uid};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::{Cluster, Options};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

const CLAIMS: &str = "karpenter.sh/nodeclaims";
const GATE: &str = "node-ready/unverified";

/// The deletions in order: `nodes/NAME deleted by USER`.
type Deletions = Arc<Mutex<Vec<String>>>;

struct Bench {
    api: Local,
    cluster: Cluster,
    cloud: Cloud,
    deletions: Deletions,
    _actors: Actors,
}

fn group(size: usize) -> Group {
    Group {
        name: "pool".into(),
        size,
        zones: vec!["a".into(), "b".into()],
        taints: vec![json!({"key": GATE, "value": "true", "effect": "NoSchedule"})],
        ..Group::default()
    }
}

impl Bench {
    fn new() -> Self {
        let cluster = Cluster::new(Options::simulated(7));
        let deletions = Deletions::default();
        let seen = deletions.clone();
        cluster.observe(Box::new(move |change| {
            if change.deleted().is_some() && matches!(change.collection.as_str(), "nodes" | "pods" | CLAIMS) {
                let how = if change.is_eviction() { "evicted" } else { "deleted" };
                let line = format!("{}/{} {how} by {}", change.collection, change.key, change.user);
                seen.lock().push(line);
            }
        }));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, 7, Arc::new(FakeRuntime));
        let cloud = Cloud::new(&cluster, &kubelets);
        Self { api: cluster.local("test"), cluster, cloud, deletions, _actors: actors }
    }

    fn karpenter(&self, pool: Group) -> Karpenter {
        Karpenter::start(&self.cluster, &self.cloud, 7, vec![pool]).expect("the pool is valid")
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let wait = async {
            while !condition(self) {
                sleep(Duration::from_millis(500)).await;
            }
        };
        let said = || self.deletions.lock().clone();
        assert!(timeout(Duration::from_mins(10), wait).await.is_ok(), "timed out: {what}; {:?}", said());
    }

    fn node(&self, name: &str) -> Option<Arc<Value>> {
        self.api.get("nodes", "", name)
    }

    fn expect_node(&self, name: &str) -> Arc<Value> {
        self.node(name).expect("the node is there")
    }

    fn claim(&self, node: &str) -> Option<Arc<Value>> {
        let node = self.node(node)?;
        let owner = text(items(&node, "metadata.ownerReferences").first()?, "name").to_owned();
        self.api.get(CLAIMS, "", &owner)
    }

    fn registered(&self, node: &str) -> bool {
        self.node(node).is_some_and(|n| n["metadata"]["labels"]["karpenter.sh/registered"] == "true")
    }

    /// Removes the startup taint, as a gate does.
    fn open(&self, node: &str) {
        let opened = self.api.change(&self.expect_node(node), None, |node| {
            let mut taints = items(node, "spec.taints").to_vec();
            taints.retain(|t| text(t, "key") != GATE);
            set(node, "spec.taints", json!(taints));
        });
        opened.expect("the node can be changed");
    }

    fn tainted(&self, node: &str, key: &str) -> bool {
        self.node(node).is_some_and(|n| items(&n, "spec.taints").iter().any(|t| text(t, "key") == key))
    }

    fn run(&self, pod: &str, node: &str) {
        let body = json!({"metadata": {"name": pod, "labels": {"app": "a"}}, "spec": {"nodeName": node,
            "containers": [{"name": "main", "image": "example.com/x:1", "command": ["serve"]}]}});
        self.api.create("v1", "Pod", "default", body).expect("the pod is valid");
    }

    fn deleted(&self) -> Vec<String> {
        self.deletions.lock().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_registered_and_then_initialized() {
    let bench = Bench::new();
    let pool = group(3);
    let _karpenter = bench.karpenter(pool.clone());
    let first = pool.node(0);
    bench.until("the node is there", |b| b.node(&first).is_some()).await;
    // Karpenter sets a startup taint again that was removed before registration.
    assert!(bench.tainted(&first, "karpenter.sh/unregistered") && !bench.registered(&first));
    bench.open(&first);
    bench.until("it is registered", |b| b.registered(&first)).await;
    assert!(bench.tainted(&first, GATE) && !bench.tainted(&first, "karpenter.sh/unregistered"));
    let (node, claim) = (bench.expect_node(&first), bench.claim(&first).expect("it has a claim"));
    assert_eq!(node["metadata"]["labels"][POOL], "pool");
    assert!(
        has_finalizer(&node, "karpenter.sh/termination") && has_finalizer(&claim, "karpenter.sh/termination")
    );
    assert_eq!(text(&claim, "status.nodeName"), first);
    assert_eq!(text(&claim, "status.providerID"), text(&node, "spec.providerID"));
    assert_ne!(name(&claim), first);
    let hash = |o: &Value| o["metadata"]["annotations"]["karpenter.sh/nodepool-hash"].clone();
    assert!(hash(&claim).as_str().is_some() && hash(&claim) == hash(&node));
    assert_eq!(condition_status(&claim, "Launched"), "True");

    bench
        .until("it waits for the taint", |b| {
            b.claim(&first).is_some_and(|c| c["status"].to_string().contains("StartupTaintsExist"))
        })
        .await;
    bench.open(&first);
    bench
        .until("it is initialized", |b| {
            b.expect_node(&first)["metadata"]["labels"]["karpenter.sh/initialized"] == "true"
                && b.claim(&first).is_some_and(|c| condition_status(&c, "Initialized") == "True")
        })
        .await;
    assert_eq!(bench.api.all(CLAIMS).len(), 3);
    assert_eq!(bench.api.all("nodes").len(), 3);
    assert!(bench.deleted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_claim_is_drained_removed_and_replaced() {
    let bench = Bench::new();
    let pool = group(1);
    let _karpenter = bench.karpenter(pool.clone());
    let (old, new) = (pool.node(0), pool.node(1));
    bench.until("it is registered", |b| b.registered(&old)).await;
    let (node, claim) = (bench.expect_node(&old), bench.claim(&old).expect("it has a claim"));
    bench.run("p", &old);
    let running = |b: &Bench| {
        b.api.get("pods", "default", "p").is_some_and(|p| condition_status(&p, "Ready") == "True")
    };
    bench.until("p runs", running).await;
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    let budget =
        bench.api.create("policy/v1", "PodDisruptionBudget", "default", budget).expect("it is valid");
    sleep(Duration::from_secs(1)).await;

    bench.api.delete(&claim, None).expect("the claim can be deleted");
    bench.until("the node is tainted", |b| b.tainted(&old, "karpenter.sh/disrupted")).await;
    // The drain waits for the budget.
    sleep(Duration::from_mins(5)).await;
    assert!(bench.node(&old).is_some_and(|n| is_deleting(&n)) && running(&bench));
    assert!(bench.cloud.has(text(&node, "spec.providerID")));
    bench.until("the replacement is registered", |b| b.registered(&new)).await;

    bench.api.delete(&budget, None).expect("the budget can be deleted");
    bench.until("the node is gone", |b| b.node(&old).is_none()).await;
    bench.until("the claim is gone", |b| b.api.get(CLAIMS, "", name(&claim)).is_none()).await;
    assert!(!bench.cloud.has(text(&node, "spec.providerID")));
    let by_whom = [
        format!("{CLAIMS}/{} deleted by test", name(&claim)),
        format!("nodes/{old} deleted by karpenter"),
        "pods/default/p evicted by karpenter".to_owned(),
    ];
    assert_eq!(bench.deleted(), by_whom);
    let replacement = bench.expect_node(&new);
    assert!(bench.tainted(&new, GATE), "a replacement is gated again");
    for path in ["metadata.uid", "spec.providerID", "status.nodeInfo.bootID"] {
        assert_ne!(text(&replacement, path), text(&node, path), "{path}");
    }
    assert_eq!(bench.api.all(CLAIMS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_deletes_its_claim() {
    let bench = Bench::new();
    let pool = group(1);
    let _karpenter = bench.karpenter(pool.clone());
    let (old, new) = (pool.node(0), pool.node(1));
    bench.until("it is registered", |b| b.registered(&old)).await;
    let claim = bench.claim(&old).expect("it has a claim");
    bench.api.delete(&bench.expect_node(&old), None).expect("the node can be deleted");
    bench.until("the replacement is registered", |b| b.registered(&new) && b.node(&old).is_none()).await;
    assert!(bench.api.get(CLAIMS, "", name(&claim)).is_none());
    let by_whom =
        [format!("nodes/{old} deleted by test"), format!("{CLAIMS}/{} deleted by karpenter", name(&claim))];
    assert_eq!(bench.deleted(), by_whom);
}

#[tokio::test(start_paused = true)]
async fn flaws_are_chosen_by_number() {
    let bench = Bench::new();
    let broken = Flaws::of(|number| if number == 0 { Vec::new() } else { vec![Fault::Dns] });
    let pool = Group { flaws: broken, ..group(1) };
    let _karpenter = bench.karpenter(pool.clone());
    let resolves = |number: u64| bench.cluster.network().resolves(&pool.node(number), "a");
    for number in 0..3 {
        bench.until("it is registered", |b| b.registered(&pool.node(number))).await;
        assert_eq!(resolves(number), number == 0, "{number}");
        let claim = bench.claim(&pool.node(number)).expect("it has a claim");
        bench.api.delete(&claim, None).expect("the claim can be deleted");
        bench.until("it is gone", |b| b.node(&pool.node(number)).is_none()).await;
        assert!(resolves(number), "the faults of a machine end with it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_is_read_when_a_replacement_is_made() {
    let bench = Bench::new();
    let pool = group(1);
    let _karpenter = bench.karpenter(pool.clone());
    bench.until("it is registered", |b| b.registered(&pool.node(0))).await;
    let before = bench.claim(&pool.node(0)).expect("it has a claim");
    let template = bench.api.get("karpenter.sh/nodepools", "", "pool").expect("there is a pool");
    let changed =
        bench.api.change(&template, None, |p| set(p, "spec.template.spec.startupTaints", json!([])));
    changed.expect("the pool can be changed");
    bench.api.delete(&before, None).expect("the claim can be deleted");
    bench.until("the replacement is registered", |b| b.registered(&pool.node(1))).await;
    assert!(!bench.tainted(&pool.node(1), GATE));
    let after = bench.claim(&pool.node(1)).expect("it has a claim");
    let hash = |o: &Value| o["metadata"]["annotations"]["karpenter.sh/nodepool-hash"].clone();
    assert_ne!(hash(&before), hash(&after));
}

#[tokio::test(start_paused = true)]
async fn a_group_replaces_a_deleted_node_but_not_its_machine() {
    let bench = Bench::new();
    let pool = Group { flaws: Flaws::of(|n| if n < 3 { Vec::new() } else { vec![Fault::Dns] }), ..group(3) };
    let _autoscaler = Autoscaler::start(&bench.cluster, &bench.cloud, 7, vec![pool.clone()]);
    let ready =
        |b: &Bench, n: u64| b.node(&pool.node(n)).is_some_and(|n| condition_status(&n, "Ready") == "True");
    bench.until("all are Ready", |b| (0..3).all(|n| ready(b, n))).await;
    let first = bench.expect_node(&pool.node(0));
    assert_eq!(first["metadata"]["labels"][autoscaler::GROUP], "pool");
    bench.api.delete(&first, None).expect("the node can be deleted");
    bench.until("the replacement is Ready", |b| ready(b, 3)).await;
    sleep(Duration::from_mins(5)).await;
    assert!(bench.cloud.has(text(&first, "spec.providerID")), "the machine was not terminated");
    assert!(bench.node(&pool.node(0)).is_none(), "a kubelet registers once");
    assert!(bench.tainted(&pool.node(3), GATE));
    assert!(!bench.cluster.network().resolves(&pool.node(3), "b"));
    assert_eq!(bench.api.all("nodes").len(), 3);
    assert_eq!(bench.deleted(), [format!("nodes/{} deleted by test", pool.node(0))]);
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_terminated_machine_is_replaced() {
    let bench = Bench::new();
    let pool = group(1);
    let _autoscaler = Autoscaler::start(&bench.cluster, &bench.cloud, 7, vec![pool.clone()]);
    let ready =
        |b: &Bench, n: u64| b.node(&pool.node(n)).is_some_and(|n| condition_status(&n, "Ready") == "True");
    bench.until("it is Ready", |b| ready(b, 0)).await;
    let first = bench.expect_node(&pool.node(0));
    bench.cloud.terminate(text(&first, "spec.providerID"));
    bench.until("the replacement is Ready", |b| ready(b, 1)).await;
    assert_ne!(uid(&first), uid(&bench.expect_node(&pool.node(1))));
    assert_eq!(
        bench.deleted(),
        [format!("nodes/{} deleted by cloud-node-lifecycle-controller", pool.node(0))]
    );
}

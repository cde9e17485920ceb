//! Simulated kubelets report pods and machines as real ones do.

use std::sync::Arc;
use std::time::Duration;

use nodekeeper_sim::actors::kubelet::{FakeRuntime, FalseReport, Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::network::Outage;
use nodekeeper_sim::object::{at, condition, condition_status, is_deleting, items, name, number, text, uid};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::{Cluster, Options};
use tokio::time::{Instant, timeout};

/// A cluster with the machine `n1` in zone `a`.
struct Bench {
    api: Local,
    cluster: Cluster,
    kubelets: Kubelets,
    _actors: Actors,
}

impl Bench {
    async fn new() -> Self {
        let cluster = Cluster::new(Options::simulated(7));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, 7, Arc::new(FakeRuntime));
        kubelets.join(NodeSpec { name: "n1".into(), zone: "a".into(), ..NodeSpec::default() });
        let bench = Self { api: cluster.local("test"), cluster, kubelets, _actors: actors };
        bench.until("n1 is Ready", |b| b.ready() == "True").await;
        bench
    }

    /// Waits for a condition, for at most five virtual minutes.
    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let mut changes = self.api.watch(&["nodes", "pods", "events", "coordination.k8s.io/leases"]);
        let wait = async {
            while !condition(self) {
                changes.next().await;
            }
        };
        let pods = || self.api.all("pods").iter().map(|p| p["status"].to_string()).collect::<Vec<_>>();
        assert!(timeout(Duration::from_mins(5), wait).await.is_ok(), "timed out: {what}; pods: {:?}", pods());
    }

    fn node(&self) -> Arc<Value> {
        self.api.get("nodes", "", "n1").expect("n1 is registered")
    }

    fn ready(&self) -> String {
        self.api.get("nodes", "", "n1").map(|n| condition_status(&n, "Ready").to_owned()).unwrap_or_default()
    }

    fn boot_id(&self) -> String {
        text(&self.node(), "status.nodeInfo.bootID").to_owned()
    }

    fn create(&self, pod: &str, command: &[&str], spec: &Value) -> Arc<Value> {
        let mut whole = json!({"restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example.com/x:1", "command": command}]});
        for (key, value) in spec.as_object().expect("a spec is an object") {
            whole[key] = value.clone();
        }
        let body = json!({"metadata": {"name": pod}, "spec": whole});
        self.api.create("v1", "Pod", "default", body).expect("the pod is valid")
    }

    fn pod(&self, pod: &str) -> Option<Arc<Value>> {
        self.api.get("pods", "default", pod)
    }

    fn phase(&self, pod: &str) -> String {
        self.pod(pod).map(|p| text(&p, "status.phase").to_owned()).unwrap_or_default()
    }

    async fn ends(&self, pod: &str) -> Arc<Value> {
        self.until(&format!("{pod} ends"), |b| matches!(b.phase(pod).as_str(), "Succeeded" | "Failed")).await;
        self.pod(pod).expect("it has just been seen")
    }
}

fn state(pod: &Value) -> &Value {
    &items(pod, "status.containerStatuses").first().expect("it has one container")["state"]
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_and_succeeds() {
    let bench = Bench::new().await;
    bench.create("p", &["sleep", "5"], &json!({}));
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    let running = bench.pod("p").unwrap();
    assert_eq!(text(&running, "spec.nodeName"), "n1");
    assert_eq!(condition_status(&running, "Ready"), "True");
    assert!(!text(&running, "status.podIP").is_empty() && !text(&running, "status.startTime").is_empty());
    let result = bench.ends("p").await;
    assert_eq!(text(&result, "status.phase"), "Succeeded");
    assert_eq!(number(state(&result), "terminated.exitCode"), Some(0));
    assert_eq!(text(state(&result), "terminated.reason"), "Completed");
    assert_eq!(condition_status(&result, "Ready"), "False");
}

#[tokio::test(start_paused = true)]
async fn exit_code_and_termination_message_are_reported() {
    let bench = Bench::new().await;
    bench.create("p", &["exit", "3", "dns failed"], &json!({}));
    let result = bench.ends("p").await;
    assert_eq!(text(&result, "status.phase"), "Failed");
    assert_eq!(number(state(&result), "terminated.exitCode"), Some(3));
    assert_eq!(text(state(&result), "terminated.reason"), "Error");
    assert_eq!(text(state(&result), "terminated.message"), "dns failed");
}

#[tokio::test(start_paused = true)]
async fn a_long_termination_message_is_truncated_at_a_character() {
    let bench = Bench::new().await;
    bench.create("one", &["exit", "1", &"ä".repeat(4000)], &json!({}));
    let message = |pod: &Value| text(state(pod), "terminated.message").to_owned();
    assert_eq!(message(&*bench.ends("one").await).len(), 4096);
    let container = |n: usize| json!({"name": format!("c{n}"), "image": "x:1", "command": ["exit", "0", "x".repeat(5000)]});
    let six: Vec<Value> = (0..6).map(container).collect();
    bench.create("six", &[], &json!({"containers": six}));
    assert_eq!(message(&*bench.ends("six").await).len(), 12 * 1024 / 6);
}

#[tokio::test(start_paused = true)]
async fn a_pod_past_its_deadline_fails() {
    let bench = Bench::new().await;
    bench.create("p", &["serve"], &json!({"activeDeadlineSeconds": 10}));
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    let result = bench.ends("p").await;
    assert_eq!(
        (text(&result, "status.phase"), text(&result, "status.reason")),
        ("Failed", "DeadlineExceeded")
    );
    assert_eq!(number(state(&result), "terminated.exitCode"), Some(137));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_terminates_before_it_is_removed() {
    let bench = Bench::new().await;
    let pod = bench.create("p", &["serve"], &json!({}));
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    bench.api.delete(&pod, None).unwrap();
    assert!(is_deleting(&bench.pod("p").unwrap()), "a running pod is not gone at once");
    let deleted_at = Instant::now();
    bench.until("p is gone", |b| b.pod("p").is_none()).await;
    assert!(deleted_at.elapsed() < Duration::from_secs(30), "it stopped on SIGTERM");
    let result = bench
        .cluster
        .state()
        .store
        .since(0)
        .any(|c| c.after.as_ref().is_some_and(|p| name(p) == "p" && state_code(p) == Some(137)));
    assert!(result, "its termination was not reported");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ignores_sigterm_is_killed_after_its_grace() {
    let bench = Bench::new().await;
    for (pod, shortened, seconds) in [("p", None, 30), ("q", Some(5), 5)] {
        let made = bench.create(pod, &["stubborn"], &json!({}));
        bench.until("it runs", |b| b.phase(pod) == "Running").await;
        let asked = Instant::now();
        bench.api.delete(&made, None).unwrap();
        if shortened.is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            bench.api.delete(&made, shortened).unwrap();
        }
        bench.until("it is gone", |b| b.pod(pod).is_none()).await;
        assert_eq!(asked.elapsed().as_secs(), seconds, "{pod}");
    }
}

fn state_code(pod: &Value) -> Option<i64> {
    items(pod, "status.containerStatuses").first().and_then(|c| number(c, "state.terminated.exitCode"))
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_is_deleted_at_once() {
    let bench = Bench::new().await;
    bench.create("p", &["true"], &json!({}));
    let result = bench.ends("p").await;
    bench.api.delete(&result, None).unwrap();
    assert!(bench.pod("p").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_an_image_that_cannot_be_pulled() {
    let bench = Bench::new().await;
    bench.create(
        "p",
        &["true"],
        &json!({"activeDeadlineSeconds": 60,
        "containers": [{"name": "main", "image": "example.com/missing:1"}]}),
    );
    let waiting = |b: &Bench| {
        b.pod("p").is_some_and(|p| {
            !items(&p, "status.containerStatuses").is_empty()
                && text(state(&p), "waiting.reason") == "ImagePullBackOff"
        })
    };
    bench.until("p waits for its image", waiting).await;
    let pod = bench.pod("p").unwrap();
    assert_eq!(text(&pod, "status.phase"), "Pending");
    assert_eq!(number(&items(&pod, "status.containerStatuses")[0], "restartCount"), Some(0));
    assert_eq!(text(&*bench.ends("p").await, "status.reason"), "DeadlineExceeded");
}

#[tokio::test(start_paused = true)]
async fn out_of_memory_is_reported_as_oom_killed() {
    let bench = Bench::new().await;
    bench.create("p", &["oom"], &json!({}));
    let result = bench.ends("p").await;
    assert_eq!(text(state(&result), "terminated.reason"), "OOMKilled");
    assert_eq!(number(state(&result), "terminated.exitCode"), Some(137));
}

#[tokio::test(start_paused = true)]
async fn restart_policies_are_respected() {
    let bench = Bench::new().await;
    bench.create("always", &["sleep", "1"], &json!({"restartPolicy": "Always"}));
    bench.create("on-failure", &["exit", "0"], &json!({"restartPolicy": "OnFailure"}));
    let restarts = |b: &Bench| {
        let pod = b.pod("always")?;
        number(items(&pod, "status.containerStatuses").first()?, "restartCount")
    };
    bench.until("always is restarted twice", |b| restarts(b) >= Some(2)).await;
    assert_eq!(bench.phase("always"), "Running");
    assert_eq!(text(&*bench.ends("on-failure").await, "status.phase"), "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_container_restarts_and_becomes_ready() {
    let bench = Bench::new().await;
    bench.create("p", &["sleep", "30"], &json!({"restartPolicy": "Always"}));
    let status = |b: &Bench| b.pod("p").and_then(|p| items(&p, "status.containerStatuses").first().cloned());
    let again = |b: &Bench| {
        status(b)
            .is_some_and(|s| number(&s, "restartCount") == Some(1) && s["state"].get("running").is_some())
    };
    bench.until("it runs again", again).await;
    let pod = bench.pod("p").unwrap();
    assert_eq!((text(&pod, "status.phase"), condition_status(&pod, "Ready")), ("Running", "True"));
    assert_eq!(number(&status(&bench).unwrap(), "lastState.terminated.exitCode"), Some(0));
    let backing_off =
        |b: &Bench| status(b).is_some_and(|s| text(&s, "state.waiting.reason") == "CrashLoopBackOff");
    bench.until("it backs off", backing_off).await;
    assert_eq!(
        (bench.phase("p").as_str(), condition_status(&bench.pod("p").unwrap(), "Ready")),
        ("Running", "False")
    );
}

#[tokio::test(start_paused = true)]
async fn init_containers_come_first_and_can_fail_the_pod() {
    let bench = Bench::new().await;
    let init = |command: &[&str]| json!([{"name": "init", "image": "x:1", "command": command}]);
    bench.create("good", &["true"], &json!({"initContainers": init(&["exit", "0", "with a message"])}));
    bench.create("bad", &["true"], &json!({"initContainers": init(&["false"])}));
    assert_eq!(text(&*bench.ends("good").await, "status.phase"), "Succeeded");
    let bad = bench.ends("bad").await;
    assert_eq!(text(&bad, "status.phase"), "Failed");
    assert_eq!(state_code(&bad), None, "a container ran after a failed init container");
    assert_eq!(condition_status(&bad, "Initialized"), "False");
    bench.create(
        "stuck",
        &["true"],
        &json!({"restartPolicy": "OnFailure", "initContainers": init(&["false"])}),
    );
    let tries = |b: &Bench| {
        let pod = b.pod("stuck")?;
        number(items(&pod, "status.initContainerStatuses").first()?, "restartCount")
    };
    bench.until("its init container is tried again", |b| tries(b) >= Some(2)).await;
    assert_eq!(bench.phase("stuck"), "Pending");
}

#[tokio::test(start_paused = true)]
async fn native_sidecars_run_beside_the_containers_and_do_not_decide_about_the_pod() {
    let bench = Bench::new().await;
    let sidecar = |command: &[&str]| json!({"initContainers": [{"name": "mesh", "image": "x:1", "command": command, "restartPolicy": "Always"}]});
    let mesh = |pod: &Value| items(pod, "status.initContainerStatuses")[0].clone();
    bench.create("good", &["sleep", "30"], &sidecar(&["serve"]));
    bench.until("both run", |b| b.phase("good") == "Running").await;
    let running = bench.pod("good").unwrap();
    assert!(at(&mesh(&running), "state.running").is_some(), "{running}");
    assert_eq!(condition_status(&running, "Initialized"), "True");
    let good = bench.ends("good").await;
    assert_eq!(text(&good, "status.phase"), "Succeeded");
    assert_eq!(number(&mesh(&good), "state.terminated.exitCode"), Some(143), "it ends with the pod");

    bench.create("bad", &["sleep", "60"], &sidecar(&["false"]));
    let bad = bench.ends("bad").await;
    assert_eq!(text(&bad, "status.phase"), "Succeeded");
    assert!(number(&mesh(&bad), "restartCount") >= Some(2), "{bad}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_may_have_containers_injected() {
    use nodekeeper_sim::registry::injection::{INJECTED, LABEL};
    let bench = Bench::new().await;
    for (container, list, ..) in INJECTED {
        let namespace = bench.api.get("namespaces", "", "default").unwrap();
        let change = |namespace: &mut Value| namespace["metadata"]["labels"][LABEL] = json!(container);
        bench.api.change(&namespace, None, change).unwrap();
        bench.create(container, &["true"], &json!({}));
        let pod = bench.pod(container).unwrap();
        assert_eq!(text(&items(&pod, &format!("spec.{list}"))[0], "name"), container);
        assert_eq!(text(&items(&pod, &format!("spec.{list}"))[0], "imagePullPolicy"), "IfNotPresent");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_and_belongs_to_the_node() {
    let bench = Bench::new().await;
    let lease = |b: &Bench| b.api.get("coordination.k8s.io/leases", "kube-node-lease", "n1");
    let first = lease(&bench).expect("the lease is made with the node");
    assert_eq!(text(&items(&first, "metadata.ownerReferences")[0], "uid"), uid(&bench.node()));
    let renewed =
        |b: &Bench| lease(b).is_some_and(|l| text(&l, "spec.renewTime") > text(&first, "spec.renewTime"));
    bench.until("the lease is renewed", renewed).await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_kills_containers_and_changes_the_boot_id() {
    let bench = Bench::new().await;
    bench.create("p", &["serve"], &json!({}));
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    let (boot, id) = (bench.boot_id(), uid(&bench.node()).to_owned());
    bench.kubelets.reboot("n1", Duration::from_secs(20));
    bench.until("n1 has another boot id", |b| b.boot_id() != boot).await;
    assert_eq!(uid(&bench.node()), id, "a reboot is not a new node");
    let result = bench.ends("p").await;
    assert_eq!((text(&result, "status.phase"), state_code(&result)), ("Failed", Some(255)));
    bench
        .until("the reboot is an event", |b| {
            b.api.all("events").iter().any(|e| text(e, "reason") == "Rebooted")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn power_on_cancels_a_pending_reboot() {
    let bench = Bench::new().await;
    let boot = bench.boot_id();
    bench.kubelets.reboot("n1", Duration::from_secs(30));
    bench.kubelets.power_on("n1");
    bench.until("n1 has another boot id", |b| b.boot_id() != boot).await;
    let boot = bench.boot_id();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(bench.boot_id(), boot, "the pending reboot was not cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_dead_machine_becomes_unreachable_and_its_pods_are_evicted() {
    let bench = Bench::new().await;
    bench.kubelets.join(NodeSpec { name: "n2".into(), zone: "b".into(), ..NodeSpec::default() });
    let pinned = json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}, "tolerations": [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]});
    bench.create("p", &["serve"], &pinned);
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    bench.kubelets.power_off("n1");
    bench.until("n1 is Unknown", |b| b.ready() == "Unknown").await;
    let tainted = |b: &Bench| {
        items(&b.node(), "spec.taints")
            .iter()
            .any(|t| text(t, "key") == "node.kubernetes.io/unreachable" && text(t, "effect") == "NoExecute")
    };
    bench.until("n1 is tainted", tainted).await;
    bench.until("p is being deleted", |b| b.pod("p").is_some_and(|p| is_deleting(&p))).await;
    // The pod stays until its kubelet is back.
    bench.kubelets.power_on("n1");
    bench.until("p is gone", |b| b.pod("p").is_none()).await;
    bench
        .until("n1 is Ready and free of taints", |b| {
            b.ready() == "True" && items(&b.node(), "spec.taints").is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_that_is_deleted_are_removed() {
    let bench = Bench::new().await;
    bench.create("p", &["serve"], &json!({}));
    bench.until("p runs", |b| b.phase("p") == "Running").await;
    bench.kubelets.power_off("n1");
    bench.api.delete(&bench.node(), None).unwrap();
    bench.until("p is gone", |b| b.pod("p").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_recreates_a_deleted_node_only_at_boot() {
    let bench = Bench::new().await;
    bench.api.delete(&bench.node(), None).unwrap();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(bench.api.get("nodes", "", "n1").is_none(), "a kubelet registers when it starts, not later");
    bench.kubelets.reboot("n1", Duration::from_secs(1));
    bench.until("n1 is registered again", |b| b.ready() == "True").await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_can_report_falsely() {
    let bench = Bench::new().await;
    bench.kubelets.set_false_report(
        "n1",
        FalseReport {
            ready: Some(false),
            exit_code: Some(0),
            labels: [("false_label".into(), "yes".into())].into(),
        },
    );
    bench.until("n1 reports not ready", |b| b.ready() == "False").await;
    assert_eq!(bench.node()["metadata"]["labels"]["false_label"], "yes");
    bench.kubelets.set_false_report("n1", FalseReport { exit_code: Some(0), ..FalseReport::default() });
    bench.until("n1 reports ready", |b| b.ready() == "True").await;
    bench.create("p", &["false"], &json!({}));
    assert_eq!(text(&*bench.ends("p").await, "status.phase"), "Succeeded", "the container was run");
}

#[tokio::test(start_paused = true)]
async fn dns_can_be_down_for_a_node_a_zone_or_all() {
    let bench = Bench::new().await;
    let network = bench.cluster.network().clone();
    for (i, (outage, resolves)) in [
        (Outage::Node("n1".into()), false),
        (Outage::Node("n2".into()), true),
        (Outage::Zone("a".into()), false),
        (Outage::Zone("b".into()), true),
        (Outage::All, false),
    ]
    .into_iter()
    .enumerate()
    {
        network.fail(outage.clone());
        let pod = format!("p{i}");
        bench.create(&pod, &["resolve"], &json!({}));
        assert_eq!(text(&*bench.ends(&pod).await, "status.phase") == "Succeeded", resolves, "{outage:?}");
        network.heal(&outage);
    }
    bench.create("healed", &["resolve"], &json!({}));
    assert_eq!(text(&*bench.ends("healed").await, "status.phase"), "Succeeded");
    assert!(condition(&bench.node(), "Ready").is_some());
}

//! The README of kube-node-ready, followed on real nodes: "How it works" 1 to 7, "Re-run verification", and the
//! commands of "Troubleshooting". Release, namespace and deployment have other names.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::api::{NodeGateSpec, Retry};
use nodekeeper_core::checks::{Checks, Dns, Exec};
use nodekeeper_core::worker::name;
use nodekeeper_e2e::nodes::{Node, TOOL_IMAGE};
use serde_json::json;

use crate::real::Real;
use crate::shell::{Seen, Watching, Worker, heading};
use crate::world::{TAINT, World as _};

/// A name inside the cluster and one outside.
const NAMES: [&str; 2] = ["kubernetes.default.svc.cluster.local.", "outside.test."];
/// An exec check that runs until it is released.
const HOLD: &str = "hold";
/// The observed fields of a node.
const COLUMNS: &str = r#"-o=jsonpath=label={.metadata.labels.node-ready/verified} taints={.spec.taints[*].key} record={.metadata.annotations.nodekeeper\.dev/record}{"\n"}"#;
const CONTROLLERS: &str = "-n nodekeeper-system -l app.kubernetes.io/component=controller";
const WORKERS: &str = "-n nodekeeper-system -l app.kubernetes.io/component=worker";

/// Few attempts, then a long pause, so that the status of a failed node can be read.
pub fn gate() -> NodeGateSpec {
    let dns = Dns { names: NAMES.map(str::to_owned).into(), ..Dns::default() };
    let hold = Exec {
        name: HOLD.into(),
        image: TOOL_IMAGE.into(),
        command: Vec::new(),
        args: vec!["pause".into()],
        env: Vec::new(),
    };
    NodeGateSpec {
        checks: Checks { dns: Some(dns), exec: vec![hold], ..Checks::default() },
        retry: Retry { max_retries: 2, ..Retry::default() },
        ..NodeGateSpec::default()
    }
}

/// A DNS server on every node, which its pods ask first, so that it can be broken alone.
pub fn start_dns(world: &Real) -> Result<()> {
    heading("Cluster DNS, one server a node");
    world.kubectl("scale deployment/coredns --replicas=3 -n kube-system")?;
    world
        .kubectl(r#"patch service kube-dns -n kube-system -p {"spec":{"internalTrafficPolicy":"Local"}}"#)?;
    world.show("rollout status deployment/coredns -n kube-system --timeout=90s")?;
    Ok(())
}

/// Steps 1 to 7 on the first node, with all nodes gated.
pub fn how_it_works(world: &Real) -> Result<()> {
    let nodes = world.nodes();
    let (first, second) = (&nodes[0], &nodes[1]);
    heading("Verify installation");
    world.show("get deployment -n nodekeeper-system nodekeeper-controller")?;
    let running = world.show(&format!("get pods {CONTROLLERS}"))?;
    ensure!(running.matches("Running").count() == 2, "two replicas, not:\n{running}");
    let described = world.kubectl("describe deployment -n nodekeeper-system nodekeeper-controller")?;
    ensure!(described.contains("2 available"), "{described}");
    for right in ["list nodes", "create pods -n nodekeeper-system"] {
        let account = "--as=system:serviceaccount:nodekeeper-system:nodekeeper-controller";
        world.show(&format!("auth can-i {right} {account}"))?;
    }

    a_new_node_is_detected(world, &nodes)?;
    for node in &nodes {
        let worker = world.until("a finished worker", || {
            Ok(world.workers_on(node)?.into_iter().find(|worker| worker.exit_code().is_some()))
        })?;
        is_pinned_and_tolerates(&worker, node)?;
        checks_execute(world, &worker, node)?;
    }
    world.show(&format!("get pods {WORKERS} -o wide"))?;
    a_stuck_worker_is_created_again(world, second)?;
    results_are_acted_on(world, first)?;

    heading("The exec check is removed: the other nodes are verified with the changed gate");
    world.kubectl(r#"patch nodegate default --type=json -p [{"op":"remove","path":"/spec/checks/exec"}]"#)?;
    for node in &nodes {
        world.until("an open node", || Ok(world.see(node)?.is_open().then_some(())))?;
    }
    world.show("get nodes -L node-ready/verified")?;
    world.show("get nodegates")?;
    Ok(())
}

fn a_new_node_is_detected(world: &Real, nodes: &[String]) -> Result<()> {
    heading("1. Node created with taint");
    for node in nodes {
        let seen = world.see(node)?;
        let taint = json!({"key": TAINT, "value": "true", "effect": "NoSchedule"});
        let taints = seen.0["spec"]["taints"].as_array().context("no taints")?;
        ensure!(taints.contains(&taint), "{node} came without its taint: {taints:?}");
        ensure!(!seen.is_labelled(), "{node} came with the label");
    }
    world.show("get node node-1 -o jsonpath={.spec.taints}{\"\\n\"}")?;

    heading("2. Controller detects unverified node");
    for node in nodes {
        says(world, node, "Node added to queue")?;
        says(world, node, "Creating worker pod")?;
    }
    Ok(())
}

/// Asserts that the controller's log contains this message for the node.
pub fn says(world: &Real, node: &str, msg: &str) -> Result<()> {
    let (msg, of_node) = (format!("\"msg\":\"{msg}"), format!("\"node\":\"{node}\""));
    let line = world.until(&format!("a line in the log with {msg} and {of_node}"), || {
        let log = world.cluster.run_kubectl(&[
            "logs",
            "-n",
            "nodekeeper-system",
            "-l",
            "app.kubernetes.io/component=controller",
            "--tail=-1",
        ])?;
        Ok(log.lines().find(|line| line.contains(&msg) && line.contains(&of_node)).map(str::to_owned))
    })?;
    println!("$ kubectl logs {CONTROLLERS}\n{line}");
    Ok(())
}

fn is_pinned_and_tolerates(worker: &Worker, node: &str) -> Result<()> {
    heading(&format!("3. Worker pod created: {} for {node}", worker.name()));
    let spec = &worker.0["spec"];
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    ensure!(terms["nodeSelectorTerms"] == json!([{"matchFields": [field]}]), "it is for others too: {terms}");
    let tolerations = spec["tolerations"].as_array().context("it tolerates nothing")?;
    ensure!(tolerations.iter().any(|one| one["key"] == TAINT), "it does not tolerate the taint");
    ensure!(spec["nodeName"] == node, "it is on {}", spec["nodeName"]);
    Ok(())
}

fn checks_execute(world: &Real, worker: &Worker, node: &str) -> Result<()> {
    heading("4. Verification checks execute");
    let log = world.show(&format!("logs -n nodekeeper-system {} -c worker", worker.name()))?;
    for name in NAMES {
        for step in ["Starting DNS check", "DNS check passed"] {
            let both = |line: &&str| line.contains(step) && line.contains(name);
            ensure!(log.lines().find(both).is_some(), "{step} of {name} is not in the log");
        }
    }
    for check in ["API", "TCP", "Service", "Peer"] {
        ensure!(log.contains(&format!("{check} check passed")), "{check} did not pass");
    }
    ensure!(log.contains(r#""msg":"All checks passed""#), "it did not pass");
    ensure!(worker.exit_code() == Some(0), "it passed and ended with {:?}", worker.exit_code());
    ensure!(world.see(node)?.is_gated(), "{node} was untainted before all checks were done");
    Ok(())
}

/// "Worker pod stuck": its exec check never ends. A deleted worker is created again, without using up an attempt.
fn a_stuck_worker_is_created_again(world: &Real, node: &str) -> Result<()> {
    heading("Worker pod stuck");
    let stuck = world.workers_on(node)?.pop().context("no worker")?;
    let described = world.kubectl(&format!("describe pod -n nodekeeper-system {}", stuck.name()))?;
    ensure!(described.contains("Running") && described.contains("Events:"), "{described}");
    world.show(&format!("get node {node} -o jsonpath={{.spec.taints}}{{\"\\n\"}}"))?;
    world.show(&format!("delete pod -n nodekeeper-system {}", stuck.name()))?;
    let another = world.until("another worker", || {
        Ok(world.workers_on(node)?.into_iter().find(|worker| worker.name() != stuck.name()))
    })?;
    let seen = world.see(node)?;
    let record = seen.record().context("no record")?;
    println!("{} took its place; attempts: {}; {}", another.name(), record.attempts, record.why);
    ensure!(record.attempts == 0 && seen.is_gated(), "it cost the node something: {record:?}");
    Ok(())
}

fn results_are_acted_on(world: &Real, node: &str) -> Result<()> {
    heading("5. Results reported");
    let worker = world.workers_on(node)?.pop().context("no worker")?;
    let held = worker.container("check-hold")["containerID"].as_str().context("it does not run")?;
    world.node(node)?.end_container(held)?;
    says(world, node, "Worker completed successfully")?;
    says(world, node, "Node verified")?;
    world.until("metrics that know of one that passed", || {
        let passed = world.metric("nodekeeper_verifications_total", &["default", "passed"])?;
        Ok((passed >= 1.0).then_some(()))
    })?;

    heading("6. Success: node marked ready");
    let seen = world.see(node)?;
    ensure!(seen.is_open(), "{}", seen.0);
    world.show(&format!("get node {node} -L node-ready/verified"))?;

    heading("7. Worker pod cleaned up");
    world.until("no worker", || Ok(world.workers_on(node)?.is_empty().then_some(())))?;
    Ok(())
}

/// "Re-run verification", in each documented way. The node works, so it is never tainted.
pub fn re_run(world: &Real, node: &str) -> Result<()> {
    heading("Re-run verification: the label is removed");
    let (_, states) =
        in_place(world, node, |_| world.show(&format!("label node {node} node-ready/verified-")).map(drop))?;
    ensure!(states.contains("label= "), "the label was never away");

    heading("Re-run verification: on request");
    let ask = format!("annotate node {node} nodekeeper.dev/verify=now");
    let (seen, _) = in_place(world, node, |_| world.show(&ask).map(drop))?;
    let annotations = &seen.0["metadata"]["annotations"];
    ensure!(annotations["nodekeeper.dev/verify"].is_null(), "the annotation is kept: {annotations}");
    Ok(())
}

/// A node that was switched off and on is verified in place too.
pub fn reboot(world: &Real, node: &str) -> Result<()> {
    heading(&format!("Re-run verification: {node} is booted again"));
    // The node's own DNS server would start with it and is not part of this test.
    let cost = "controller.kubernetes.io/pod-deletion-cost=-1";
    let of_node = format!("--field-selector=spec.nodeName={node}");
    world.kubectl(&format!("annotate pod -n kube-system -l k8s-app=kube-dns {of_node} {cost}"))?;
    world.kubectl(
        r#"patch service kube-dns -n kube-system -p {"spec":{"internalTrafficPolicy":"Cluster"}}"#,
    )?;
    world.kubectl("scale deployment/coredns --replicas=2 -n kube-system")?;
    world.until("no DNS on it", || {
        let left =
            world.cluster.run_kubectl(&["get", "pods", "-n=kube-system", "-l=k8s-app=kube-dns", &of_node])?;
        Ok(left.is_empty().then_some(()))
    })?;
    let (boot, _) = in_place(world, node, |before| {
        let machine = world.node(node)?;
        // A kubelet is Ready before kube-proxy has its rules. A worker at that moment would find no Services, and the
        // node would be tainted rightly. The node is cordoned meanwhile.
        world.show(&format!("cordon {node}"))?;
        machine.power_off()?;
        machine.boot()?;
        world.until("a new boot", || Ok((world.see(node)?.boot_id() != before.boot_id()).then_some(())))?;
        world.until("Services on it", || Ok(resolve_on(world, machine).ok()))?;
        world.show(&format!("uncordon {node}")).map(drop)
    })?;
    let record = boot.record().context("no record")?;
    ensure!(record.scope.boot_id == boot.boot_id(), "it is about another boot: {record:?}");
    println!("boot {} is verified", boot.boot_id());
    Ok(())
}

/// Changes a verified node and waits for one more worker. Returns the node's state and all states in between, which
/// were never tainted.
fn in_place(world: &Real, node: &str, act: impl FnOnce(&Seen) -> Result<()>) -> Result<(Seen, String)> {
    let watched = Watching::start(world, &["get", "node", node, "--watch", COLUMNS])?;
    let words = ["get", "pods", "-n", "nodekeeper-system", "--watch", "--output-watch-events"];
    let pods = Watching::start(world, &words)?;
    let before = world.see(node)?;
    act(&before)?;
    let seen = world.until("one more worker, and the label", || {
        Ok(Some(world.see(node)?).filter(|seen| seen.number() > before.number() && seen.is_open()))
    })?;

    let record = seen.record().context("no record")?;
    let worker = name(&record.uid.to_string(), record.number);
    let is = |line: &str, event: &str| line.starts_with(event) && line.contains(&worker);
    let said =
        pods.sees("the deletion of the worker", |said| said.lines().any(|line| is(line, "DELETED")))?;
    print!("{said}");
    ensure!(said.lines().any(|line| is(line, "ADDED")), "the creation of {worker} was not seen");

    let recorded = format!(r#""number":{},"#, record.number);
    let said = watched.sees("the last record", |said| said.contains(&recorded))?;
    let states: Vec<&str> = said.lines().filter_map(|line| line.split(" record=").next()).collect();
    let states = states.join("\n");
    println!("{states}\nworker {}: {}", record.number, record.why);
    ensure!(!states.contains(TAINT), "it was tainted in between:\n{states}");
    Ok((seen, states))
}

/// "Run worker locally", outside the cluster and on a node.
pub fn worker_by_hand(world: &Real) -> Result<()> {
    heading("The worker, run by hand");
    let kubeconfig = world.cluster.kubeconfig_path();
    println!("$ nodekeeper-worker --only api,tcp,services");
    let done = Command::new(world.worker())
        .args(["--only", "api,tcp,services"])
        .env_clear()
        .env("KUBECONFIG", &kubeconfig)
        .output()?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    print!("{said}");
    ensure!(done.status.success() && said.matches("ok ").count() >= 4, "{}", done.status);

    println!("$ nodekeeper-worker --only dns --dns-server 10.96.0.10      # on a node");
    let said = resolve_on(world, world.cluster.nodes().first().context("no nodes")?)?;
    print!("{said}");
    ensure!(said.contains("10.96.0.1"), "the name did not resolve");
    Ok(())
}

/// Runs the worker on a node with the cluster's DNS by its Service address.
fn resolve_on(world: &Real, node: &Node) -> Result<String> {
    let worker = world.worker().to_string_lossy().into_owned();
    node.exec_in(&[worker.as_str(), "--only", "dns", "--dns-server", "10.96.0.10"])
}

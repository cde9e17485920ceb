//! Enforced remediation on real nodes: no node is replaced during a DNS outage, and a node that a user wants replaced
//! is drained within its budgets.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, ensure};
use nodekeeper_core::api::{Deadlines, FailureAction, NodeGateSpec, Retry};
use nodekeeper_core::node::CORDONED;
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::nodes::TOOL_IMAGE;
use serde_json::{Value, json};

use crate::real::Real;
use crate::shell::{Seen, heading};
use crate::world::World as _;

/// Two attempts, then a replacement.
pub fn gate() -> NodeGateSpec {
    NodeGateSpec {
        retry: Retry { max_retries: 1, recheck_period_seconds: 10, ..Retry::default() },
        deadlines: Deadlines { check_seconds: 2, worker_seconds: 60, ..Deadlines::default() },
        on_failure: FailureAction::Replace,
        ..NodeGateSpec::default()
    }
}

/// Without limits other than those tested here.
pub fn policy() -> Value {
    json!({
        "enforcement": "Enforce",
        "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}],
        "budget": {"maxGroupPercentPerHour": 100},
        "breaker": {"openPercent": 100},
        "controlGroup": {"recoverySeconds": 20},
        "drain": {"timeoutSeconds": 20, "podOvertimeSeconds": 15},
    })
}

fn condition(object: &Value, type_: &str, status: &str, reason: &str) -> Option<String> {
    let all = object["status"]["conditions"].as_array()?;
    let is = |one: &&Value| one["type"] == type_ && one["status"] == status && one["reason"] == reason;
    all.iter().find(is)?["message"].as_str().map(str::to_owned)
}

impl Real {
    /// Waits until an object has this condition, with `words` in its message.
    fn says(&self, object: &str, what: (&str, &str, &str), words: &str) -> Result<String> {
        let message = self.until(&format!("{object} has the condition {what:?} {words:?}"), || {
            let said = condition(&self.json(&format!("get {object}"))?, what.0, what.1, what.2);
            Ok(said.filter(|message| message.contains(words)))
        })?;
        println!("{object}: {what:?}: {message}");
        Ok(message)
    }

    fn uids(&self) -> Result<BTreeSet<String>> {
        let nodes = self.json("get nodes")?;
        let nodes = nodes["items"].as_array().context("no nodes")?;
        Ok(nodes.iter().filter_map(|node| node["metadata"]["uid"].as_str().map(str::to_owned)).collect())
    }

    fn all_open(&self) -> Result<()> {
        for node in self.nodes() {
            self.until("an open node", || Ok(Some(self.see(&node)?).filter(Seen::is_open)))?;
        }
        Ok(())
    }

    fn gate_again(&self, node: &str) -> Result<()> {
        self.show(&format!("taint node {node} node-ready/unverified=true:NoSchedule"))?;
        self.show(&format!("label node {node} node-ready/verified-"))?;
        Ok(())
    }

    /// Applies a file.
    fn create(&self, name: &str, object: &Value) -> Result<()> {
        let file = self.cluster.folder().join(name);
        std::fs::write(&file, object.to_string())?;
        self.show(&format!("create --filename={}", file.display())).map(drop)
    }
}

/// DNS fails on all nodes, which are gated one after the other, and the policy would replace all of them. At first
/// the control group fails alike; then there is no control group left.
pub fn nothing_is_deleted_while_dns_is_down(world: &Real) -> Result<()> {
    heading("All nodes are verified, in one zone, and each has DNS servers elsewhere");
    world.kubectl("scale deployment/coredns --replicas=3 -n kube-system")?;
    world.show("rollout status deployment/coredns -n kube-system --timeout=90s")?;
    world.all_open()?;
    let nodes = world.nodes();
    let before = world.uids()?;
    for node in &nodes {
        world.kubectl(&format!("label node {node} topology.kubernetes.io/zone=zone-a --overwrite"))?;
    }
    heading("DNS is down on all of them, and one is before the gate");
    for node in &nodes {
        world.node(node)?.break_dns()?;
    }
    world.gate_again(&nodes[0])?;
    let down = ("SharedDependencyDown", "True", "ControlsFail");
    world.says("remediationpolicy default", down, "dns")?;
    heading("All of them are before the gate");
    for node in &nodes[1..] {
        world.gate_again(node)?;
    }
    for node in &nodes {
        let held = world.until("a node that does not pass", || {
            let seen = world.see(node)?;
            let verdict = seen.record().and_then(|record| record.verdict);
            Ok((seen.is_gated() && verdict != Some(Verdict::Passed)).then_some(seen))
        })?;
        println!("{node}: {}", held.record().context("no record")?.why);
    }
    world.show("get noderemediations --output=wide")?;
    ensure!(world.uids()? == before, "a node was deleted");

    heading("DNS is back");
    // At once: a node that recovers much later than the others would be broken by itself, and replaced.
    std::thread::scope(|scope| {
        let heal = |node: &String| world.node(node).and_then(nodekeeper_e2e::nodes::Node::heal_dns);
        let healing: Vec<_> = nodes.iter().map(|node| scope.spawn(move || heal(node))).collect();
        healing.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("healing DNS panicked"))?)
    })?;
    world.all_open()?;
    world.says("remediationpolicy default", ("SharedDependencyDown", "False", "NotObserved"), "")?;
    world.says("remediationpolicy default", ("Ready", "True", "Enforcing"), "")?;
    world.show("get noderemediations --output=wide")?;
    ensure!(world.uids()? == before, "a node was deleted");
    Ok(())
}

/// A user requests the replacement of a working node. A budget blocks the drain: this is reported, the drain is given
/// up, and the node is uncordoned. Without the budget the pods are evicted and the Node is deleted.
pub fn a_budget_delays_the_deletion_of_a_node(world: &Real) -> Result<()> {
    let victim = quiet_node(world)?;
    heading(&format!("{victim} has pods that may not go"));
    let uid = deploy(world, &victim)?;
    let before = pods(world)?;
    // The node may be the one that failed during the outage: its request has the same name.
    world.kubectl(&format!("delete noderemediation {uid} --ignore-not-found"))?;
    ask(world, &victim, &uid)?;
    let request = format!("noderemediation {uid}");
    let marked = world.until("a cordon of the controller", || {
        let seen = world.see(&victim)?;
        Ok((seen.0["spec"]["unschedulable"] == true).then_some(seen))
    })?;
    ensure!(marked.0["metadata"]["annotations"][CORDONED] == *uid, "a cordon without the annotation");
    world.says(&request, ("Drained", "False", "Draining"), "web-budget")?;
    world.says(&request, ("Succeeded", "False", "DrainTimedOut"), "web-budget")?;
    let freed = world.see(&victim)?;
    ensure!(freed.0["spec"]["unschedulable"].is_null(), "still cordoned: {}", freed.0["spec"]);
    ensure!(freed.0["metadata"]["annotations"][CORDONED].is_null(), "the cordon annotation is kept");
    ensure!(pods(world)? == before, "pods were evicted despite their budget");

    heading("The budget is deleted, and the replacement is requested again");
    world.show("delete poddisruptionbudget web-budget")?;
    world.show(&format!("delete {request}"))?;
    world.kubectl(
        r#"patch remediationpolicy default --type=merge --patch={"spec":{"drain":{"timeoutSeconds":120}}}"#,
    )?;
    ask(world, &victim, &uid)?;
    world.says(&request, ("Succeeded", "True", "Replaced"), "")?;
    let left = pods(world)?;
    ensure!(left.is_disjoint(&before), "the node went before its pods: {left:?}");
    ensure!(!world.uids()?.contains(&uid), "{victim} is still there");
    world.says(&request, ("Drained", "True", "Drained"), "")?;
    world.show("get nodes")?;
    Ok(())
}

/// A node without a controller pod, so that the controller does not move.
fn quiet_node(world: &Real) -> Result<String> {
    let controllers = world.pods("controller", None)?;
    let runs_one = |node: &String| controllers.iter().any(|pod| pod["spec"]["nodeName"] == node.as_str());
    world.nodes().into_iter().find(|node| !runs_one(node)).context("a controller on every node")
}

/// Creates two pods on the node that a budget protects. Returns the node's uid.
fn deploy(world: &Real, node: &str) -> Result<String> {
    let labels = json!({"app": "web"});
    let container =
        json!({"name": "web", "image": TOOL_IMAGE, "args": ["pause"], "imagePullPolicy": "Never"});
    let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 2,
        "containers": [container]});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let selector = json!({"matchLabels": labels});
    world.create(
        "deployment.json",
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": selector, "template": template}}),
    )?;
    world.create(
        "budget.json",
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web-budget"},
            "spec": {"minAvailable": 2, "selector": selector}}),
    )?;
    world.show("rollout status deployment/web --timeout=60s")?;
    world.until("a budget that counts both", || {
        let budget = world.json("get poddisruptionbudget web-budget")?;
        Ok((budget["status"]["currentHealthy"] == 2).then_some(()))
    })?;
    Ok(world.see(node)?.0["metadata"]["uid"].as_str().context("no uid")?.to_owned())
}

fn ask(world: &Real, node: &str, uid: &str) -> Result<()> {
    let boot = world.see(node)?.boot_id();
    let spec = json!({"node": {"name": node, "uid": uid, "bootID": boot},
        "causes": [{"source": "Person", "name": "ada", "message": "its disk is failing"}]});
    world.create(
        "remediation.json",
        &json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": uid},
            "spec": spec}),
    )
}

/// The uids of the pods of the budget, including terminating ones.
fn pods(world: &Real) -> Result<BTreeSet<String>> {
    let found = world.json("get pods --selector=app=web")?;
    let pods = found["items"].as_array().context("no list")?;
    Ok(pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect())
}

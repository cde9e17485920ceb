//! Remediation, enforced, on real nodes: DNS that is down for all blames nobody, and a node that somebody wants replaced
//! is drained as its budgets allow.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::api::{Deadlines, FailureAction, NodeGateSpec, Retry};
use nodekeeper_core::node::CORDONED;
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::nodes::TOOL_IMAGE;
use serde_json::{Value, json};

use crate::real::Real;
use crate::shell::{Seen, heading};
use crate::world::World as _;

/// Two attempts, and then a replacement.
pub fn gate() -> NodeGateSpec {
    NodeGateSpec {
        retry: Retry { max_retries: 1, recheck_period_seconds: 10, ..Retry::default() },
        deadlines: Deadlines { check_seconds: 2, worker_seconds: 60, ..Deadlines::default() },
        on_failure: FailureAction::Replace,
        ..NodeGateSpec::default()
    }
}

/// With no other brake than those that are shown here.
pub fn policy() -> Value {
    json!({
        "enforcement": "Enforce",
        "deleteNodeObjectFor": ["*"],
        "budget": {"groupPercent": 100},
        "breaker": {"openPercent": 100},
        "controlGroup": {"recoverySeconds": 5},
        "drain": {"totalSeconds": 20, "podSeconds": 15},
    })
}

/// A condition of an object, if it is so.
fn condition(object: &Value, type_: &str, status: &str, reason: &str) -> Option<String> {
    let all = object["status"]["conditions"].as_array()?;
    let is = |one: &&Value| one["type"] == type_ && one["status"] == status && one["reason"] == reason;
    all.iter().find(is)?["message"].as_str().map(str::to_owned)
}

impl Real {
    /// Waits until an object says this, with these words.
    fn says(&self, object: &str, what: (&str, &str, &str), words: &str) -> Result<String> {
        let message = self.until(&format!("{object} says {what:?} {words:?}"), || {
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

    /// As people do it: from a file.
    fn create(&self, name: &str, object: &Value) -> Result<()> {
        let file = self.cluster.folder().join(name);
        std::fs::write(&file, object.to_string())?;
        self.show(&format!("create --filename={}", file.display())).map(drop)
    }
}

/// DNS goes down on all nodes, one after the other is before the gate again, and the policy would have all of them
/// replaced. First there are others to compare with, who fail alike; then there is nobody left.
pub fn nothing_is_deleted_while_dns_is_down(world: &Real) -> Result<()> {
    heading("All nodes are let in, in one zone, and each has DNS servers elsewhere");
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
    for node in &nodes {
        world.node(node)?.heal_dns()?;
    }
    world.all_open()?;
    world.says("remediationpolicy default", ("SharedDependencyDown", "False", "NotSeen"), "")?;
    world.says("remediationpolicy default", ("Ready", "True", "Enforcing"), "")?;
    world.show("get noderemediations --output=wide")?;
    ensure!(world.uids()? == before, "a node was deleted");
    Ok(())
}

/// Somebody wants a node replaced that works. A budget lets none of its pods go: that is said, given up, and the node is
/// free again. Without the budget the pods go, and then the Node.
pub fn a_budget_is_waited_for_and_then_the_node_goes(world: &Real) -> Result<()> {
    let victim = quiet_node(world)?;
    heading(&format!("{victim} has pods that may not go"));
    let uid = deploy(world, &victim)?;
    let before = pods(world)?;
    ask(world, &victim, &uid)?;
    let request = format!("noderemediation {uid}");
    let marked = world.until("a cordon of ours", || {
        let seen = world.see(&victim)?;
        Ok((seen.0["spec"]["unschedulable"] == true).then_some(seen))
    })?;
    ensure!(marked.0["metadata"]["annotations"][CORDONED] == *uid, "a cordon without our mark");
    world.says(&request, ("Drained", "False", "Draining"), "web-budget")?;
    world.says(&request, ("Succeeded", "False", "DrainTimedOut"), "web-budget")?;
    let freed = world.see(&victim)?;
    ensure!(freed.0["spec"]["unschedulable"].is_null(), "still cordoned: {}", freed.0["spec"]);
    ensure!(freed.0["metadata"]["annotations"][CORDONED].is_null(), "our mark stays");
    ensure!(pods(world)? == before, "pods went though their budget says no");

    heading("The budget is gone, and somebody asks again");
    world.show("delete poddisruptionbudget web-budget")?;
    world.show(&format!("delete {request}"))?;
    world.kubectl(
        r#"patch remediationpolicy default --type=merge --patch={"spec":{"drain":{"totalSeconds":120}}}"#,
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

/// One without a controller: what that does while it moves is another story.
fn quiet_node(world: &Real) -> Result<String> {
    let controllers = world.pods("controller", None)?;
    let runs_one = |node: &String| controllers.iter().any(|pod| pod["spec"]["nodeName"] == node.as_str());
    world.nodes().into_iter().find(|node| !runs_one(node)).context("a controller on every node")
}

/// Two pods on the node, both of which have to be there. Gives the node's uid.
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

/// The uids of the pods that the budget is about, those that are going included.
fn pods(world: &Real) -> Result<BTreeSet<String>> {
    let found = world.json("get pods --selector=app=web")?;
    let pods = found["items"].as_array().context("no list")?;
    Ok(pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect())
}

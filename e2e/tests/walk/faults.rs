//! "8. Failure handling": three real nodes, each with another network fault. The right check fails, the reason is
//! reported everywhere, and a recovered node is untainted.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::report::{Outcome, Verdict};
use nodekeeper_e2e::nodes::Node;

use crate::readme::says;
use crate::real::Real;
use crate::shell::{Seen, heading};
use crate::world::World as _;

struct Fault {
    what: &'static str,
    inflict: fn(&Node) -> Result<()>,
    heal: fn(&Node) -> Result<()>,
    /// The failing checks: the first reported one, and all others.
    checks: &'static [&'static str],
    /// Parts of the reported message.
    message: [&'static str; 3],
    /// The expected line of the worker's log.
    logged: &'static str,
}

const FAULTS: [Fault; 3] = [
    Fault {
        what: "DNS does not answer",
        inflict: Node::break_dns,
        heal: Node::heal_dns,
        // The peers are DNS servers on other nodes, whose port is blocked.
        checks: &["dns", "peers"],
        message: ["dns", "kubernetes.default.svc.cluster.local.", "Timeout"],
        logged: "DNS check failed",
    },
    Fault {
        what: "pods on other nodes cannot be reached",
        inflict: Node::break_pod_to_pod,
        heal: Node::heal_pod_to_pod,
        checks: &["peers"],
        message: ["peers", "kube-system/kube-dns", "Timeout"],
        logged: "Peer check failed",
    },
    Fault {
        what: "the address of the Service default/kubernetes is dead",
        inflict: Node::break_api_service,
        heal: Node::heal_api_service,
        // Services cannot be read either.
        checks: &["api", "tcp", "services"],
        message: ["api", "10.96.0.1", "Timeout"],
        logged: "API check failed",
    },
];

/// Each node gets a fault and its taint, fails all its attempts, recovers and is untainted. Returns a node without a
/// controller pod.
pub fn each_fault_is_found_and_reported(world: &Real) -> Result<String> {
    let broken = assign(world)?;
    for (node, fault) in &broken {
        heading(&format!("8. Failure handling. {node}: {}", fault.what));
        (fault.inflict)(world.node(node)?)?;
        world.show(&format!("taint node {node} node-ready/unverified=true:NoSchedule"))?;
        world.show(&format!("label node {node} node-ready/verified-"))?;
    }
    for (node, fault) in &broken {
        is_found(world, node, fault)?;
        is_reported(world, node, fault)?;
    }
    world.show("get nodes -L node-ready/verified")?;
    world.show("get pods -n nodekeeper-system -l app.kubernetes.io/component=worker -o wide")?;

    heading("The nodes heal");
    for (node, fault) in &broken {
        (fault.heal)(world.node(node)?)?;
        // Otherwise they would be checked again after five minutes.
        world.show(&format!("annotate node {node} nodekeeper.dev/verify=now"))?;
    }
    for (node, _) in &broken {
        let open = world.until("an open node", || Ok(Some(world.see(node)?).filter(Seen::is_open)))?;
        println!("{node}: {}", open.record().context("no record")?.why);
        world.until("no worker", || Ok(world.workers_on(node)?.is_empty().then_some(())))?;
    }
    Ok(broken.into_iter().next_back().context("no nodes")?.0)
}

/// The node that cannot reach the API server must not run the controller.
fn assign(world: &Real) -> Result<Vec<(String, &'static Fault)>> {
    let mut nodes = world.nodes();
    let controllers = world.pods("controller", None)?;
    let runs_one = |node: &String| controllers.iter().any(|pod| pod["spec"]["nodeName"] == node.as_str());
    nodes.sort_by_key(|node| !runs_one(node));
    ensure!(nodes.last().is_some_and(|node| !runs_one(node)), "a controller on every node");
    Ok(nodes.into_iter().zip(&FAULTS).collect())
}

/// Asserts that the right check failed each time and that the node stays tainted.
fn is_found(world: &Real, node: &str, fault: &Fault) -> Result<()> {
    heading(&format!("What is seen of {node}: {}", fault.what));
    let seen = world.until("a node whose attempts are used up", || {
        let seen = world.see(node)?;
        Ok(seen.record().is_some_and(|record| record.attempts >= 3).then_some(seen))
    })?;
    ensure!(seen.is_gated() && !seen.is_labelled(), "a broken node was untainted");
    let record = seen.record().context("no record")?;
    ensure!(record.verdict == Some(Verdict::Failed), "{record:?}");
    println!("record: {}", record.why);
    names_it(&record.why, fault)?;

    let worker = world.workers_on(node)?.pop().context("the last worker and its log are deleted")?;
    let report = worker.report()?;
    let failed = report.checks.iter().filter(|check| check.outcome == Outcome::Failed);
    let failed: BTreeSet<&str> = failed.map(|check| check.name.as_str()).collect();
    ensure!(failed == fault.checks.iter().copied().collect(), "other checks failed: {report:?}");
    ensure!(worker.exit_code() == Some(1), "exit code {:?}", worker.exit_code());
    let log = world.kubectl(&format!("logs -n nodekeeper-system {}", worker.name()))?;
    let line = log.lines().find(|line| line.contains(fault.logged)).context("the log line is missing")?;
    println!("{line}");
    let last = log.lines().last().unwrap_or_default();
    ensure!(last.contains(r#""msg":"Checks failed""#), "{last}");
    Ok(())
}

/// Asserts that the failure is in the node's Events, the controller's log and the metrics. The record is written
/// first.
fn is_reported(world: &Real, node: &str, fault: &Fault) -> Result<()> {
    let given_up = |line: &&str| line.contains("NodeVerificationFailed");
    let ours = world.until("an Event that it is given up", || {
        let described = world.quietly(&format!("describe node {node}"))?;
        let events = described.split("Events:").nth(1).context("no Events")?;
        let ours: Vec<&str> = events.lines().filter(|line| line.contains("nodekeeper")).collect();
        Ok(ours.iter().any(given_up).then(|| ours.join("\n")))
    })?;
    println!("$ kubectl describe node {node}\n{ours}");
    for attempt in 1..=3 {
        let attempt_message = format!("attempt {attempt} of 3 failed: ");
        let line =
            ours.lines().find(|line| line.contains("NodeCheckFailed") && line.contains(&attempt_message));
        names_it(line.with_context(|| format!("no Event contains {attempt_message:?}:\n{ours}"))?, fault)?;
    }
    says(world, node, "Worker completed: checks failed")?;
    for check in fault.checks {
        world.until(&format!("metrics that know of 3 times that {check} failed"), || {
            let counted = world.metric("nodekeeper_check_failures_total", &[check])?;
            Ok((counted >= 3.0).then_some(()))
        })?;
    }
    Ok(())
}

fn names_it(text: &str, fault: &Fault) -> Result<()> {
    let missing: Vec<_> = fault.message.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} is missing in: {text}");
    Ok(())
}

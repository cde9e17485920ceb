//! Agents: the failure scenarios of kube-node-ready's DaemonSet mode, on a real control plane with agents as processes, and
//! on real nodes with the DaemonSet of the chart.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::api::NodeGateSpec;
use nodekeeper_core::report::Verdict;
use nodekeeper_sim::loopback;
use serde_json::{Value, json};

use crate::fake_kubelet::FakeKubeletWorld;
use crate::real::Real;
use crate::scenarios::{event_on, get, is_gated, no_workers_left, record, until};
use crate::shell::{Watching, heading};
use crate::world::{LABEL, TAINT, World, gate};

const AGENTS: &str = "-n nodekeeper-system -l app.kubernetes.io/component=agent";
/// Short, so that three failures in a row take half a minute.
const CONTINUOUS: &[&str] = &["--mode", "continuous", "--check-interval", "10s", "--check-timeout", "2s"];

/// Agents alone: no gate, no controller and no CustomResourceDefinition.
pub async fn agents_without_a_controller(world: &mut FakeKubeletWorld) -> Result<()> {
    let nodes = world.nodes();
    let mut agents = Vec::new();
    for node in &nodes {
        agents.push(world.start_agent(node, CONTINUOUS).await?);
    }
    for node in &nodes {
        until(world, node, "open", |node| !is_gated(node)).await?;
        event_on(world, node, "NodeVerified", "passed").await?;
    }
    a_blip_warns(world, &nodes[0]).await?;
    three_failures_taint_until_the_node_heals(world, &nodes[0]).await?;
    an_agent_survives_its_api_server(world, &nodes[1]).await?;
    for agent in agents {
        ensure!(agent.stop().await? == Some(0), "an agent that is stopped exits cleanly");
    }
    Ok(())
}

/// One failure is an Event; the node stays untainted.
async fn a_blip_warns(world: &impl World, node: &str) -> Result<()> {
    world.break_dns(node).await?;
    event_on(world, node, "NodeCheckFailed", "failure 1 of 3").await?;
    world.heal_dns(node).await?;
    let recovered = until(world, node, "passed again", |node| {
        record(node).is_some_and(|record| record.verdict == Some(Verdict::Passed))
    });
    let recovered = recovered.await?;
    ensure!(!is_gated(&recovered), "one failure tainted the node");
    Ok(())
}

async fn three_failures_taint_until_the_node_heals(world: &impl World, node: &str) -> Result<()> {
    world.break_dns(node).await?;
    let tainted = until(world, node, "tainted", is_gated).await?;
    ensure!(
        tainted.metadata.labels.is_none_or(|labels| !labels.contains_key(LABEL)),
        "a tainted node bears the label"
    );
    event_on(world, node, "NodeGated", "failure 3 of 3").await?;
    world.heal_dns(node).await?;
    until(world, node, "open", |node| !is_gated(node)).await?;
    Ok(())
}

/// The API server restarts: its connections are closed, and it refuses new ones for a while.
async fn an_agent_survives_its_api_server(world: &FakeKubeletWorld, node: &str) -> Result<()> {
    world.set_api(node, loopback::Api::Refuse).await?;
    // Longer than an interval, so that checks fail meanwhile.
    tokio::time::sleep(Duration::from_secs(15)).await;
    world.set_api(node, loopback::Api::Healthy).await?;
    ensure!(!is_gated(&get(world, node).await?), "{node} was tainted for a restart of the API server");
    // The agent goes on: it answers a request of a user.
    world.remove_label(node).await?;
    let has_label = |node: &k8s_openapi::api::core::v1::Node| {
        node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL))
    };
    until(world, node, "labelled again", has_label).await?;
    Ok(())
}

/// An agent on nodes that a controller gates too, which does not know of agents: both keep one record, so none undoes what the
/// other did.
pub async fn an_agent_beside_a_controller(world: &mut FakeKubeletWorld) -> Result<()> {
    let nodes = world.nodes();
    let spec = NodeGateSpec { mode: nodekeeper_core::api::Mode::Continuous, ..gate() };
    world.start_controller(&spec).await?;
    let mut agents = Vec::new();
    for node in &nodes {
        agents.push(
            world
                .start_agent(node, &["--gate", "default", "--mode", "continuous", "--check-interval", "10s"])
                .await?,
        );
    }
    for node in &nodes {
        until(world, node, "open", |node| !is_gated(node)).await?;
    }
    no_workers_left(world).await?;
    let before = get(world, &nodes[0]).await?;
    // Two intervals: neither writes again what both know.
    tokio::time::sleep(Duration::from_secs(25)).await;
    let after = get(world, &nodes[0]).await?;
    ensure!(
        before.metadata.annotations == after.metadata.annotations && !is_gated(&after),
        "the record was written again: {:?} {:?}",
        before.metadata.annotations,
        after.metadata.annotations
    );
    three_failures_taint_until_the_node_heals(world, &nodes[0]).await?;
    no_workers_left(world).await?;
    for agent in agents {
        ensure!(agent.stop().await? == Some(0), "an agent that is stopped exits cleanly");
    }
    Ok(())
}

/// The scenarios of `ARCHITECTURE.md` of kube-node-ready, with the DaemonSet of the chart on real nodes.
pub async fn daemon_set_on_real_nodes(world: &mut Real) -> Result<()> {
    let nodes = world.nodes();
    let (healthy, broken, last) = (&nodes[0], &nodes[1], &nodes[2]);
    world.break_dns(broken).await?;
    world.install_values(&values("daemonset"), &[]).await?;
    heading("Node initialization flow");
    for node in [healthy, last] {
        until(world, node, "open", |node| !is_gated(node)).await?;
        print_times(world, node)?;
    }
    ensure!(world.quietly("get crds -o name")?.is_empty(), "agents need no CustomResourceDefinition");
    dns_failure(world, broken)?;
    heading("Scenario 2: a transient network blip");
    a_blip_warns(world, healthy).await?;
    heading("Scenario 2: three failures in a row");
    three_failures_taint_until_the_node_heals(world, healthy).await?;
    heading("Scenario 1: recovery");
    world.heal_dns(broken).await?;
    until(world, broken, "open", |node| !is_gated(node)).await?;
    world.until("a metric that says so", || {
        Ok((metric(world, broken, "nodekeeper_agent_gave_up")? < 0.5).then_some(()))
    })?;
    check_by_hand(world)?;
    node_removal(world, last)?;
    heading("A controller takes over what agents do not verify");
    world.upgrade_values(&values("both"), &["nodegate/default"]).await?;
    world.kubectl(&format!("taint node {last} {TAINT}=true:NoSchedule"))?;
    until(world, last, "open", |node| !is_gated(node)).await?;
    ensure!(world.workers_on(last)?.is_empty(), "the agent verifies the node, and no worker");
    Ok(())
}

fn values(mode: &str) -> Value {
    json!({
        "deploymentMode": mode,
        "crds": {"enabled": mode == "both"},
        "agent": {"mode": "continuous", "checkInterval": "10s"},
        "gate": {"spec": {"deadlines": {"checkSeconds": 2}}},
    })
}

/// How long each step took since the Node was created, for the closing note: a test asserts on no clock.
fn print_times(world: &Real, node: &str) -> Result<()> {
    let seen = world.see(node)?;
    let pod = world.pods("agent", Some(node))?.pop().context("no agent")?;
    let started = &pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
    let (created, at) = (&pod["metadata"]["creationTimestamp"], seen.record().context("no record")?.at);
    println!("{node}: pod created {created}, agent started {started}, node open {at:?}");
    let log = world.quietly(&format!("logs -n nodekeeper-system {}", name(&pod)?))?;
    for line in log.lines().filter(|line| line.contains("starting") || line.contains("checks ended")).take(2)
    {
        println!("{line}");
    }
    Ok(())
}

/// Scenario 1: six attempts, and the node stays tainted with a reason.
fn dns_failure(world: &Real, node: &str) -> Result<()> {
    heading("Scenario 1: DNS failure");
    world.until("six attempts", || {
        let record = world.see(node)?.record();
        Ok(record.filter(|record| record.attempts >= 6))
    })?;
    ensure!(world.see(node)?.is_gated(), "a broken node was untainted");
    let events = world.events_of(node)?;
    for event in &events {
        println!("{event}");
    }
    ensure!(events.iter().any(|event| event.contains("NodeVerificationFailed")), "{events:?}");
    world.until("metrics of the failure", || {
        let failures = metric(world, node, "node_check_failures_total{node=\"node-2\",check=\"dns\"}")?;
        let gave_up = metric(world, node, "nodekeeper_agent_gave_up")?;
        Ok((failures >= 6.0 && gave_up > 0.5).then_some(()))
    })?;
    ensure!(metric(world, node, "node_check_status{")? < 0.5, "the node did not pass");
    Ok(())
}

/// The value of a metric of a node's agent.
fn metric(world: &Real, node: &str, start: &str) -> Result<f64> {
    let pod = world.pods("agent", Some(node))?.pop().context("no agent")?;
    let path = format!("/api/v1/namespaces/nodekeeper-system/pods/{}:8080/proxy/metrics", name(&pod)?);
    let text = world.quietly(&format!("get --raw {path}"))?;
    let line = text.lines().find(|line| line.starts_with(start)).with_context(|| format!("no {start}"))?;
    Ok(line.rsplit(' ').next().context("a line without a number")?.parse()?)
}

fn name(pod: &Value) -> Result<&str> {
    pod["metadata"]["name"].as_str().context("a pod without a name")
}

fn check_by_hand(world: &Real) -> Result<()> {
    heading("Check by hand");
    let check = "exec -n nodekeeper-system daemonset/nodekeeper-agent -- nodekeeper check";
    let said = world.show(check)?;
    ensure!(said.contains("Passed: 5 checks passed"), "{said}");
    let said = world.show(&format!("{check} --only dns kubernetes.default"))?;
    ensure!(said.contains("kubernetes.default") && said.contains("Passed: 1 check"), "{said}");
    Ok(())
}

/// Scenario 3: the pod gets SIGTERM and ends cleanly.
fn node_removal(world: &Real, node: &str) -> Result<()> {
    heading("Scenario 3: node removal");
    let pod = world.pods("agent", Some(node))?.pop().context("no agent")?;
    let column = "-o=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}{\"\\n\"}";
    let ended =
        Watching::start(world, &["get", "pod", "-n", "nodekeeper-system", name(&pod)?, "--watch", column])?;
    world.show(&format!("cordon {node}"))?;
    let began = Instant::now();
    world.show(&format!("delete pod -n nodekeeper-system {} --wait", name(&pod)?))?;
    println!("the pod ended in {:.1} s", began.elapsed().as_secs_f64());
    let codes = ended.sees("the end of the pod", |said| said.lines().any(|line| !line.is_empty()))?;
    ensure!(codes.lines().rfind(|line| !line.is_empty()) == Some("0"), "exit codes: {codes}");
    world.show(&format!("uncordon {node}"))?;
    world.until("another agent", || {
        let pods = world.pods("agent", Some(node))?;
        Ok(pods.into_iter().find(|other| other["metadata"]["uid"] != pod["metadata"]["uid"]))
    })?;
    ensure!(world.see(node)?.is_open(), "the node stays verified");
    world.show(&format!("get pods {AGENTS} -o wide")).map(drop)
}

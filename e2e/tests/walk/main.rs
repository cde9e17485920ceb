//! Whole scenarios, written once and run in three worlds:
//!
//! - the embedded cluster, on a paused clock, with the checks in process;
//! - a real control plane, with fake kubelets that run the real worker as a process;
//! - three real nodes, with the controller as a pod from the chart, and DNS broken by nftables.
//!
//! On real nodes also: the README of kube-node-ready followed with kubectl, enforced remediation, and agents, which run on the
//! real control plane too.

mod agents;
mod fake_kubelet;
mod faults;
mod readme;
mod real;
mod replacement;
mod scenarios;
mod shell;
mod simulated;
mod state;
mod world;

use anyhow::{Result, anyhow};
use nodekeeper_e2e::or_skip;
use nodekeeper_e2e::scenario::on_a_paused_clock;
use tokio::sync::Mutex;

use fake_kubelet::FakeKubeletWorld;
use real::Real;
use simulated::Simulated;
use world::{Dns, World as _};

/// Tests on the real clock run one at a time: their checks time out when a build or another cluster uses the cores.
static TURN: Mutex<()> = Mutex::const_new(());

#[test]
fn a_broken_node_is_gated_until_it_recovers_simulated() -> Result<()> {
    on_a_paused_clock(async {
        scenarios::a_broken_node_is_gated_until_it_recovers(Simulated::start(Dns::Runs)?).await
    })
}

#[test]
fn a_fully_gated_cluster_starts_simulated() -> Result<()> {
    on_a_paused_clock(async { scenarios::a_fully_gated_cluster_starts(Simulated::start(Dns::NotYet)?).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_node_is_gated_until_it_recovers_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(FakeKubeletWorld::start(Dns::Runs).await)? else { return Ok(()) };
    scenarios::a_broken_node_is_gated_until_it_recovers(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fully_gated_cluster_starts_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(FakeKubeletWorld::start(Dns::NotYet).await)? else { return Ok(()) };
    scenarios::a_fully_gated_cluster_starts(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_node_is_gated_until_it_recovers_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(Real::start(Dns::Runs).await)? else { return Ok(()) };
    scenarios::a_broken_node_is_gated_until_it_recovers(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fully_gated_cluster_starts_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(Real::start(Dns::NotYet).await)? else { return Ok(()) };
    scenarios::a_fully_gated_cluster_starts(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kube_node_ready_readme_works_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(Real::start(Dns::NotYet).await)? else { return Ok(()) };
    // The error comes last: only the end of a log may be kept.
    follow(&mut world).await.map_err(|error| anyhow!("{}\n{error:#}", world.state()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remediation_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(Real::start(Dns::Runs).await)? else { return Ok(()) };
    replace(&mut world).await.map_err(|error| anyhow!("{}\n{error:#}", world.state()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(FakeKubeletWorld::start(Dns::Runs).await)? else { return Ok(()) };
    let done = agents::agents_without_a_controller(&mut world).await;
    done.map_err(|error| anyhow!("{}\n{error:#}", world.agent_logs()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_beside_a_controller_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(FakeKubeletWorld::start(Dns::Runs).await)? else { return Ok(()) };
    let done = agents::an_agent_beside_a_controller(&mut world).await;
    done.map_err(|error| anyhow!("{}\n{error:#}", world.agent_logs()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(Real::start(Dns::Runs).await)? else { return Ok(()) };
    agents::daemon_set_on_real_nodes(&mut world)
        .await
        .map_err(|error| anyhow!("{}\n{error:#}", world.state()))
}

/// First nodes that must not be replaced, then one that is.
async fn replace(world: &mut Real) -> Result<()> {
    world.install(&replacement::gate(), replacement::policy()).await?;
    replacement::nothing_is_deleted_while_dns_is_down(world)?;
    replacement::a_budget_delays_the_deletion_of_a_node(world)
}

/// Follows the README of kube-node-ready from start to end.
async fn follow(world: &mut Real) -> Result<()> {
    readme::start_dns(world)?;
    world.start_controller(&readme::gate()).await?;
    readme::how_it_works(world)?;
    let quiet = faults::each_fault_is_found_and_reported(world)?;
    readme::re_run(world, &quiet)?;
    readme::reboot(world, &quiet)?;
    readme::worker_by_hand(world)
}

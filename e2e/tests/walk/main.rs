//! The first walk: nodes through the gate, told once and run in three worlds.
//!
//! - the embedded cluster, on a paused clock, with the checks in process;
//! - a real control plane, with kubelets that are hollow but for running the real worker as a process;
//! - three real nodes, with the controller as a pod from the chart, and DNS broken by nftables.
//!
//! And once more on real nodes, as a person meets them: with the README of the seed in one hand and kubectl in the other;
//! and with remediation enforced.

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
use tokio::sync::Mutex;

use fake_kubelet::FakeKubeletWorld;
use real::Real;
use simulated::{Simulated, on_a_paused_clock};
use world::{Dns, World as _};

/// Whoever runs on the real clock runs alone: their checks time out when a build or another cluster has the cores.
static TURN: Mutex<()> = Mutex::const_new(());

#[test]
fn a_broken_node_is_held_until_it_heals_simulated() -> Result<()> {
    on_a_paused_clock(async {
        scenarios::a_broken_node_is_held_until_it_heals(Simulated::start(Dns::Runs)?).await
    })
}

#[test]
fn every_node_is_gated_and_the_cluster_comes_up_simulated() -> Result<()> {
    on_a_paused_clock(async {
        scenarios::every_node_is_gated_and_the_cluster_comes_up(Simulated::start(Dns::NotYet)?).await
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_node_is_held_until_it_heals_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(FakeKubeletWorld::start(Dns::Runs).await)? else { return Ok(()) };
    scenarios::a_broken_node_is_held_until_it_heals(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_is_gated_and_the_cluster_comes_up_on_a_real_control_plane() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(FakeKubeletWorld::start(Dns::NotYet).await)? else { return Ok(()) };
    scenarios::every_node_is_gated_and_the_cluster_comes_up(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_node_is_held_until_it_heals_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(Real::start(Dns::Runs).await)? else { return Ok(()) };
    scenarios::a_broken_node_is_held_until_it_heals(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_is_gated_and_the_cluster_comes_up_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(world) = or_skip(Real::start(Dns::NotYet).await)? else { return Ok(()) };
    scenarios::every_node_is_gated_and_the_cluster_comes_up(world).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_of_the_seed_is_true_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(Real::start(Dns::NotYet).await)? else { return Ok(()) };
    // The error comes last: the end of a log may be all that there is.
    follow(&mut world).await.map_err(|error| anyhow!("{}\n{error:#}", world.state()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_spared_and_replaced_on_real_nodes() -> Result<()> {
    let _turn = TURN.lock().await;
    let Some(mut world) = or_skip(Real::start(Dns::Runs).await)? else { return Ok(()) };
    replace(&mut world).await.map_err(|error| anyhow!("{}\n{error:#}", world.state()))
}

/// First what must not be replaced, and then what is.
async fn replace(world: &mut Real) -> Result<()> {
    world.install(&replacement::gate(), replacement::policy()).await?;
    replacement::nothing_is_deleted_while_dns_is_down(world)?;
    replacement::a_budget_is_waited_for_and_then_the_node_goes(world)
}

/// The README, from its first line to its last.
async fn follow(world: &mut Real) -> Result<()> {
    readme::start_dns(world)?;
    world.start_controller(&readme::gate()).await?;
    readme::how_it_works(world)?;
    let quiet = faults::each_is_found_and_told(world)?;
    readme::re_run(world, &quiet)?;
    readme::reboot(world, &quiet)?;
    readme::worker_by_hand(world)
}

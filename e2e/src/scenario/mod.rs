//! What scenarios share: the interface of their worlds, and helpers that act through the API.

#![expect(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "they are called by tests, which compare what they return"
)]

pub mod fake_kubelet;
pub mod fault_proxy;
pub mod pod_observer;
pub mod remediation;
pub mod steps;
pub mod worker;
pub mod world;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::time::sleep;

/// Runs a scenario on the embedded cluster, whose time passes only while nothing else happens.
pub fn on_a_paused_clock(scenario: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(scenario)
}

/// Polls until `ask` returns true, for up to a minute.
pub async fn eventually(what: &str, mut ask: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !ask().await.with_context(|| format!("waiting for {what}"))? {
        if Instant::now() > deadline {
            bail!("waited a minute for {what}");
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

//! Runs the conformance suite against the server of the kubeconfig in `CONFORMANCE_KUBECONFIG`.
//! Arguments: a part of `group/case`, to run only these.

use std::time::Instant;

use anyhow::{Context as _, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use nodekeeper_e2e::conformance;

#[tokio::main]
async fn main() -> Result<()> {
    let Ok(path) = std::env::var("CONFORMANCE_KUBECONFIG") else {
        println!("CONFORMANCE_KUBECONFIG is not set: nothing to run against");
        return Ok(());
    };
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let concurrency = std::env::var("CONFORMANCE_CONCURRENCY").map_or(Ok(8), |n| n.parse())?;
    let kubeconfig = Kubeconfig::read_from(path)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    config.default_retry = false;
    let client = kube::Client::try_from(config).context("no client")?;

    let start = Instant::now();
    let outcomes = conformance::run(client, filter.as_deref(), concurrency).await;
    let mut failed = 0;
    for outcome in &outcomes {
        let (result, millis) =
            (if outcome.result.is_ok() { "ok" } else { "FAILED" }, outcome.took.as_millis());
        println!("{:18} {:58} {result:6} {millis:6}", outcome.group, outcome.name);
    }
    for outcome in &outcomes {
        if let Err(error) = &outcome.result {
            failed += 1;
            println!("\n--- {}/{}\n{error:#}", outcome.group, outcome.name);
        }
    }
    println!("\n{:.1} s", start.elapsed().as_secs_f64());
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    std::process::exit(i32::from(failed > 0));
}

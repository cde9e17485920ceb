//! From one controller to the next: one that is asked to stop, and one that is gone.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, sleep, timeout};

use crate::fake_kubelet::{has_gate_taint, pass};
use crate::process::Controller;
use crate::real_cluster::{PATIENCE, RealCluster};
use crate::table::{Table, percentile, short};
use crate::watch::watch;

const GRACEFUL: usize = 5;
const CRASHES: usize = 3;

/// A follower looks at the lease every two seconds: leaders end at different moments between two looks.
const APART: Duration = Duration::from_millis(400);

/// How a leader ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Graceful,
    Crash,
}

pub async fn run(product: Product) -> Result<Table> {
    let real = RealCluster::start().await?;
    real.make_gate().await?;
    let mut leader = real.lead(&product.controller, "controller-0").await?;
    let ends = [vec![End::Graceful; GRACEFUL], vec![End::Crash; CRASHES]].concat();
    let (mut graceful, mut crash) = (Vec::new(), Vec::new());
    for (n, end) in ends.into_iter().enumerate() {
        let next = real.start_controller(&product.controller, &format!("controller-{}", n + 1))?;
        next.settle(PATIENCE).await?;
        let seconds = once(&real, n, leader, end).await.with_context(|| next.log_tail())?;
        if end == End::Graceful {
            graceful.push(seconds);
        } else {
            crash.push(seconds);
        }
        leader = next;
    }
    leader.stop().await?;
    let mut table = Table::new("Failover");
    let of = |runs: &[f64], hundredths| percentile(runs, hundredths).context("no runs");
    table.budget("graceful, longest", of(&graceful, 100)?, 2.0, "s");
    table.figure("graceful, median", format!("{} s", short(of(&graceful, 50)?)));
    table.budget("crash, longest", of(&crash, 100)?, 18.0, "s");
    table.figure("crash, median", format!("{} s", short(of(&crash, 50)?)));
    table.note(format!(
        "Two controllers as processes on a real control plane, {GRACEFUL} times SIGTERM and {CRASHES} times SIGKILL. From the \
         signal to the leader to the gate that its successor opens: a worker's report comes in as soon as the leader is \
         gone. The moments are spread over the two seconds between two looks of the follower."
    ));
    Ok(table)
}

/// Ends the leader while a node waits, and returns when its successor has opened the gate.
async fn once(real: &RealCluster, n: usize, leader: Controller, end: End) -> Result<f64> {
    let name = format!("failover-{n}");
    real.join(std::slice::from_ref(&name)).await?;
    let pod = real.worker_of(&name).await?;
    sleep(APART * u32::try_from(n)?).await;
    let start = Instant::now();
    match end {
        End::Graceful => leader.stop().await?,
        End::Crash => leader.crash(),
    }
    pass(&real.pods(), &pod).await?;
    let mut node = watch(real.nodes(), "", &format!("metadata.name={name}"));
    let opened = async { while node.next().await.as_ref().is_some_and(has_gate_taint) {} };
    timeout(PATIENCE, opened).await.with_context(|| format!("nobody opens {name}"))?;
    Ok(start.elapsed().as_secs_f64())
}

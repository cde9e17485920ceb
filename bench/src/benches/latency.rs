//! The time from the end of a worker to the removal of the taint: one node on an idle cluster.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, sleep, timeout};

use crate::fake_kubelet::{has_gate_taint, pass};
use crate::real_cluster::{PATIENCE, RealCluster};
use crate::table::{Table, percentile, short};
use crate::watch::watch;

const RUNS: usize = 30;
/// For remaining work of the last node.
const REST: Duration = Duration::from_millis(500);

pub async fn run(product: Product) -> Result<Table> {
    let real = RealCluster::start().await?;
    real.make_gate().await?;
    let controller = real.lead(&product.controller, "controller").await?;
    let (mut sent, mut accepted) = (Vec::new(), Vec::new());
    for n in 0..RUNS {
        let (since_sent, since_accepted) =
            once(&real, &format!("latency-{n}")).await.with_context(|| controller.log_tail())?;
        sent.push(since_sent.as_secs_f64() * 1000.0);
        accepted.push(since_accepted.as_secs_f64() * 1000.0);
    }
    controller.stop().await?;
    let mut table = Table::new("Report to untainted node: one node, idle cluster");
    let of = |figures: &[f64], hundredths| percentile(figures, hundredths).context("no runs");
    table.budget("since the report was accepted, median", of(&accepted, 50)?, 50.0, "ms");
    table.budget("since the report was accepted, p90", of(&accepted, 90)?, 50.0, "ms");
    table.figure("since the report was sent, median", format!("{} ms", short(of(&sent, 50)?)));
    table.figure("since the report was sent, p90", format!("{} ms", short(of(&sent, 90)?)));
    table.note(format!(
        "{RUNS} runs on a real kube-apiserver and etcd. From the moment at which the write of the pod's status was sent, or \
         answered, to the moment at which a watch shows the Node without the taint."
    ));
    Ok(table)
}

async fn once(real: &RealCluster, name: &str) -> Result<(Duration, Duration)> {
    real.join(&[name.to_owned()]).await?;
    let pod = real.worker_of(name).await?;
    let mut node = watch(real.nodes(), "", &format!("metadata.name={name}"));
    node.next().await.context("the watch ended")?;
    sleep(REST).await;
    let opened = async move {
        while let Some(node) = node.next().await {
            if !has_gate_taint(&node) {
                return Some(Instant::now());
            }
        }
        None
    };
    // Watched from before the write, so that it is not missed while the response is in flight.
    let opened = tokio::spawn(timeout(PATIENCE, opened));
    // A new connection would cost 40 ms more: its first request waits for an acknowledgement.
    real.pods().get(&pod.name_any()).await?;
    let sent = Instant::now();
    pass(&real.pods(), &pod).await?;
    let accepted = Instant::now();
    let opened =
        opened.await?.ok().flatten().with_context(|| format!("the taint of {name} is not removed"))?;
    Ok((opened - sent, opened.saturating_duration_since(accepted)))
}

//! A thousand nodes at once on a real API server, beside the floor: a client that does nothing but the writes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::ListParams;
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, timeout};

use super::baseline;
use crate::fake_kubelet::{IN_FLIGHT, Kubelets, has_gate_taint};
use crate::real_cluster::{RealCluster, names};
use crate::table::{Table, short};
use crate::watch::watch;

const NODES: usize = 1000;
const ROUNDS: usize = 2;
const PATIENCE: Duration = Duration::from_mins(5);

/// How long one run took.
#[derive(Clone, Copy, Debug)]
struct Took {
    open: f64,
    cleared: f64,
    cpu: f64,
}

pub async fn run(product: Product) -> Result<Table> {
    let real = RealCluster::start().await?;
    let mut kubelets = Kubelets::start(&real.client);
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let nodes = names(&format!("ours-{round}"), NODES);
        ours.push(with_controller(&real, &product, &nodes).await?);
        real.clear().await?;
        let nodes = names(&format!("floor-{round}"), NODES);
        floors.push(with_floor(&real, &nodes).await?);
        real.clear().await?;
        kubelets.check()?;
        eprintln!("bench: round {round}: {:?}, floor {:?}", ours[round], floors[round]);
    }
    let best =
        |of: fn(&Took) -> f64, runs: &[Took]| runs.iter().map(of).min_by(f64::total_cmp).context("no rounds");
    let (open, floor) = (best(|took| took.open, &ours)?, best(|took| took.open, &floors)?);
    let mut table = Table::new("1,000 nodes at once, real API server");
    table.figure("the floor: all open", format!("{} s", short(floor)));
    table.figure("the controller: all open", format!("{} s", short(open)));
    table.budget("ratio", open / floor, 1.25, "");
    let seconds = |of, runs: &[Took]| Ok::<_, anyhow::Error>(format!("{} s", short(best(of, runs)?)));
    table.figure("the floor: no pod left", seconds(|took| took.cleared, &floors)?);
    table.figure("the controller: no pod left", seconds(|took| took.cleared, &ours)?);
    table.figure("the controller: CPU", seconds(|took| took.cpu, &ours)?);
    let all = |runs: &[Took]| runs.iter().map(|took| short(took.open)).collect::<Vec<_>>().join(", ");
    table.note(format!(
        "{ROUNDS} rounds each, in turns, the better one counts (controller {} s, floor {} s). Etcd, kube-apiserver, \
         kube-controller-manager, kube-scheduler, hollow kubelets that end every worker at once, and the bench share \
         the machine. The clock begins when the gate is made, or the first pod is; it ends when a watch has seen every \
         Node without the taint. The floor has {IN_FLIGHT} requests in flight and does for each node: make a Pod of the same \
         shape, see it end in a watch, patch the Node, delete the Pod. The controller writes an Event besides, and runs \
         100 workers at once.",
        all(&ours),
        all(&floors)
    ));
    Ok(table)
}

async fn with_controller(real: &RealCluster, product: &Product, nodes: &[String]) -> Result<Took> {
    real.join(nodes).await?;
    let controller = real.lead(&product.controller, "controller").await?;
    let before = controller.cpu()?;
    let start = Instant::now();
    real.make_gate().await?;
    let open = all_open(real, nodes).await.with_context(|| controller.log_tail())?;
    real.no_workers().await?;
    let cleared = start.elapsed().as_secs_f64();
    let cpu = controller.cpu()?.saturating_sub(before).as_secs_f64();
    real.delete_gate().await?;
    controller.stop().await?;
    Ok(Took { open: (open - start).as_secs_f64(), cleared, cpu })
}

async fn with_floor(real: &RealCluster, nodes: &[String]) -> Result<Took> {
    real.join(nodes).await?;
    let known = real.nodes().list(&ListParams::default()).await?.items;
    let start = Instant::now();
    let (open, worked) = tokio::join!(all_open(real, nodes), timeout(PATIENCE, baseline::run(real, &known)));
    worked.context("the floor takes for ever")??;
    let open = open?;
    real.no_workers().await?;
    Ok(Took { open: (open - start).as_secs_f64(), cleared: start.elapsed().as_secs_f64(), cpu: 0.0 })
}

/// When the last of them was seen without the taint.
async fn all_open(real: &RealCluster, nodes: &[String]) -> Result<Instant> {
    let mut held: BTreeSet<String> = nodes.iter().cloned().collect();
    let opened = async {
        let mut seen = watch(real.nodes(), "", "");
        while let Some(node) = seen.next().await {
            if !has_gate_taint(&node) {
                held.remove(&node.name_any());
            }
            if held.is_empty() {
                return Some(Instant::now());
            }
        }
        None
    };
    let opened = timeout(PATIENCE, opened).await.ok().flatten();
    ensure!(opened.is_some(), "{} of {} are not open after {PATIENCE:?}", held.len(), nodes.len());
    opened.context("the watch ends")
}

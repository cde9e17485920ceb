//! A thousand nodes at once on a real API server, compared with the baseline.

use std::collections::BTreeMap;
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
use crate::table::{Table, percentile, short};
use crate::watch::watch;

const NODES: usize = 1000;
const ROUNDS: usize = 2;
const REPORT_SECONDS: f64 = 1.0;
const PATIENCE: Duration = Duration::from_mins(5);

#[derive(Clone, Copy, Debug)]
struct Timing {
    open: f64,
    /// The median of the times from a worker's report to its untainted node.
    report: f64,
    cleared: f64,
    cpu: f64,
}

pub async fn run(product: Product) -> Result<Table> {
    let real = RealCluster::start().await?;
    let mut kubelets = Kubelets::start(&real.client);
    let (mut controllers, mut baselines) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let nodes = names(&format!("controller-{round}"), NODES);
        controllers.push(with_controller(&real, &kubelets, &product, &nodes).await?);
        real.clear().await?;
        let nodes = names(&format!("baseline-{round}"), NODES);
        baselines.push(with_baseline(&real, &kubelets, &nodes).await?);
        real.clear().await?;
        kubelets.check()?;
        eprintln!("bench: round {round}: {:?}, baseline {:?}", controllers[round], baselines[round]);
    }
    let best = |of: fn(&Timing) -> f64, runs: &[Timing]| {
        runs.iter().map(of).min_by(f64::total_cmp).context("no rounds")
    };
    let (open, baseline) = (best(|took| took.open, &controllers)?, best(|took| took.open, &baselines)?);
    let mut table = Table::new("1,000 nodes at once, real API server");
    table.figure("baseline: all untainted", format!("{} s", short(baseline)));
    table.figure("controller: all untainted", format!("{} s", short(open)));
    table.budget("ratio", open / baseline, 1.25, "");
    let seconds = |of, runs: &[Timing]| Ok::<_, anyhow::Error>(format!("{} s", short(best(of, runs)?)));
    table.figure("baseline: report to untainted, median", seconds(|took| took.report, &baselines)?);
    let report = best(|took| took.report, &controllers)?;
    table.budget("controller: report to untainted, median", report, REPORT_SECONDS, "s");
    table.figure("baseline: no pod left", seconds(|took| took.cleared, &baselines)?);
    table.figure("controller: no pod left", seconds(|took| took.cleared, &controllers)?);
    table.figure("controller: CPU", seconds(|took| took.cpu, &controllers)?);
    let all = |runs: &[Timing]| runs.iter().map(|took| short(took.open)).collect::<Vec<_>>().join(", ");
    table.note(format!(
        "{ROUNDS} runs each, alternating; the better one counts (controller {} s, baseline {} s). Etcd, kube-apiserver, \
         kube-controller-manager, kube-scheduler, a fake kubelet that ends every worker at once, and the bench share \
         the machine. The time starts when the gate or the first pod is created and ends when a watch has shown every Node without \
         the taint. Report to untainted: from the answer to the write of a worker's report to the moment at which the watch \
         shows its Node without the taint. The baseline has {IN_FLIGHT} requests in flight and for each node creates a Pod of the same shape, \
         sees it end in a watch, patches the Node and deletes the Pod. The controller also writes an Event, and runs \
         100 workers at once.",
        all(&controllers),
        all(&baselines)
    ));
    Ok(table)
}

async fn with_controller(
    real: &RealCluster,
    kubelets: &Kubelets,
    product: &Product,
    nodes: &[String],
) -> Result<Timing> {
    real.join(nodes).await?;
    let controller = real.lead(&product.controller, "controller").await?;
    let before = controller.cpu()?;
    let start = Instant::now();
    real.make_gate().await?;
    let opened = all_open(real, nodes).await.with_context(|| controller.log_tail())?;
    real.no_workers().await?;
    let cleared = start.elapsed().as_secs_f64();
    let cpu = controller.cpu()?.saturating_sub(before).as_secs_f64();
    real.delete_gate().await?;
    controller.stop().await?;
    timing(start, &opened, kubelets, cleared, cpu)
}

async fn with_baseline(real: &RealCluster, kubelets: &Kubelets, nodes: &[String]) -> Result<Timing> {
    real.join(nodes).await?;
    let known = real.nodes().list(&ListParams::default()).await?.items;
    let start = Instant::now();
    let (opened, worked) =
        tokio::join!(all_open(real, nodes), timeout(PATIENCE, baseline::run(real, &known)));
    worked.context("the baseline timed out")??;
    let opened = opened?;
    real.no_workers().await?;
    timing(start, &opened, kubelets, start.elapsed().as_secs_f64(), 0.0)
}

fn timing(
    start: Instant,
    opened: &BTreeMap<String, Instant>,
    kubelets: &Kubelets,
    cleared: f64,
    cpu: f64,
) -> Result<Timing> {
    let reports = kubelets.take_reports();
    let since_report = |(node, at): (&String, &Instant)| {
        reports.get(node).map(|reported| at.saturating_duration_since(*reported).as_secs_f64())
    };
    let report: Vec<f64> = opened.iter().filter_map(since_report).collect();
    let last = opened.values().max().context("no nodes")?;
    Ok(Timing {
        open: (*last - start).as_secs_f64(),
        report: percentile(&report, 50).context("no reports")?,
        cleared,
        cpu,
    })
}

/// When a watch has shown each of them without the taint.
async fn all_open(real: &RealCluster, nodes: &[String]) -> Result<BTreeMap<String, Instant>> {
    let mut opened = BTreeMap::new();
    let all = async {
        let mut seen = watch(real.nodes(), "", "");
        while opened.len() < nodes.len() {
            let node = seen.next().await?;
            if !has_gate_taint(&node) {
                opened.entry(node.name_any()).or_insert_with(Instant::now);
            }
        }
        Some(())
    };
    let ended = timeout(PATIENCE, all).await.ok().flatten();
    ensure!(
        ended.is_some(),
        "{} of {} nodes are tainted after {PATIENCE:?}",
        nodes.len() - opened.len(),
        nodes.len()
    );
    Ok(opened)
}

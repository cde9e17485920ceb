//! The memory of the controller, from 0 to 50,000 nodes: fresh, after heartbeats, and after another list.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, sleep};

use super::{PATIENCE, Setup, with_fleet};
use crate::counting_server::CountingServer;
use crate::fleet::Change;
use crate::process::{Memory, Process};
use crate::table::{Table, short};

const SIZES: [usize; 4] = [0, 1_000, 10_000, 50_000];
const BASE_MIB: f64 = 14.0;
const LOOK: Duration = Duration::from_millis(50);

/// The memory of one controller, in this order.
struct Measured {
    nodes: usize,
    /// All nodes are cached and decided about.
    fresh: Memory,
    /// Each node has written its status once since then.
    aged: Memory,
    /// The watch was refused with 410 Gone, and all nodes were listed again.
    relisted: Memory,
}

pub async fn run(product: Product) -> Result<Table> {
    let mut table = Table::new("Memory of the controller");
    for (setup, node_kb) in [(Setup::Gate, 0.8), (Setup::Everything, 1.5)] {
        let mut measured = Vec::new();
        for nodes in SIZES {
            let one = measure(&product, nodes, setup).await.with_context(|| format!("at {nodes} nodes"))?;
            let [fresh, aged, relisted] = [one.fresh, one.aged, one.relisted].map(|memory| mib(memory.now));
            let what = match setup {
                Setup::Gate => format!("{nodes} nodes"),
                Setup::Everything => format!("{nodes} nodes, all features"),
            };
            eprintln!("bench: {what}: fresh {fresh:.1}, aged {aged:.1}, listed again {relisted:.1} MiB");
            let most = BASE_MIB + count(nodes) * node_kb * 1000.0 / 1024.0 / 1024.0;
            table.budget(format!("{what}, fresh"), fresh, most, "MiB");
            if nodes > 0 {
                table.budget(format!("{what}, aged"), aged, most, "MiB");
                table.budget(format!("{what}, listed again"), relisted, most, "MiB");
            }
            table.figure(format!("{what}, at most"), format!("{} MiB", short(mib(one.relisted.most))));
            measured.push(one);
        }
        let (first, last) = (&measured[1], &measured[measured.len() - 1]);
        let bytes = (mib(last.relisted.now) - mib(first.relisted.now)) * 1024.0 * 1024.0;
        let slope = bytes / count(last.nodes - first.nodes) / 1000.0;
        let what = if setup == Setup::Gate { "one more node" } else { "one more node, all features" };
        table.budget(format!("{what} (1k to 50k)"), slope, node_kb, "KB");
    }
    table.note(
        "The static binary of the image, as a process of its own, over TLS, with the environment of the image. Nodes are \
         9.7 KB of JSON each with 29 labels, served by the bench's own server (streamed list, bookmark, watch); one in a \
         hundred is new and not Ready, the others were verified by this release (the text of a record that an older one wrote \
         takes 0.3 KB more until the next verdict); each writes its status once in five minutes. VmRSS when \
         the controller has used less than a tenth of a CPU for three seconds, and VmHWM. Fresh: after the first list. \
         Aged: after each node has written its status once more, as fast as the watch is read. Listed again: after the \
         server has then refused the watch with 410 Gone. All features: remediation is enforced, the gate replaces \
         nodes, and the metrics have the names of kube-node-ready and series for each node; they are not scraped.",
    );
    Ok(table)
}

async fn measure(product: &Product, nodes: usize, setup: Setup) -> Result<Measured> {
    let folder = tempfile::tempdir()?;
    let (controller, server) = with_fleet(product, nodes, folder.path(), setup).await?;
    let fresh = controller.memory()?;
    if nodes == 0 {
        return Ok(Measured { nodes, fresh, aged: fresh, relisted: fresh });
    }
    let fleet = server.fleet().context("no fleet")?;
    fleet.show(Change::Round);
    until(&controller, "a round of heartbeats", || fleet.rounds() > 0).await?;
    controller.settle(PATIENCE).await?;
    let aged = controller.memory()?;
    relist(&controller, &server).await?;
    Ok(Measured { nodes, fresh, aged, relisted: controller.memory()? })
}

async fn relist(controller: &Process, server: &CountingServer) -> Result<()> {
    let lists = server.lists();
    server.fleet().context("no fleet")?.show(Change::Expired);
    until(controller, "another list", || server.lists() > lists).await?;
    controller.settle(PATIENCE).await
}

async fn until(controller: &Process, what: &str, so: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !so() {
        ensure!(Instant::now() < end, "there was never {what}: {}", controller.log_tail());
        sleep(LOOK).await;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are small")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[expect(clippy::cast_precision_loss, reason = "node counts are small")]
fn count(nodes: usize) -> f64 {
    nodes as f64
}

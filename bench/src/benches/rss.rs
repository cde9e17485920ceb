//! The memory of the controller, from 0 to 50,000 nodes.

use anyhow::{Context as _, Result};
use nodekeeper_e2e::product::Product;

use super::with_fleet;
use crate::process::Memory;
use crate::table::{Table, short};

const SIZES: [usize; 4] = [0, 1_000, 10_000, 50_000];
const BASE_MIB: f64 = 16.0;
const NODE_KB: f64 = 1.0;

pub async fn run(product: Product) -> Result<Table> {
    let mut table = Table::new("Memory of the controller");
    let mut measured = Vec::new();
    for nodes in SIZES {
        let memory = measure(&product, nodes).await.with_context(|| format!("at {nodes} nodes"))?;
        eprintln!("bench: {nodes} nodes: {memory:?}");
        let most = BASE_MIB + count(nodes) * NODE_KB * 1000.0 / 1024.0 / 1024.0;
        table.budget(format!("{nodes} nodes, settled"), mib(memory.now), most, "MiB");
        table.figure(format!("{nodes} nodes, at most"), format!("{} MiB", short(mib(memory.most))));
        measured.push((nodes, memory));
    }
    let (first, last) = (measured[1], measured[measured.len() - 1]);
    let bytes = (mib(last.1.now) - mib(first.1.now)) * 1024.0 * 1024.0;
    let slope = bytes / count(last.0 - first.0) / 1000.0;
    table.budget("one more node (1k to 50k)", slope, NODE_KB, "KB");
    table.note(
        "The static binary of the image, as a process of its own, over TLS. Nodes are 9.7 KB of JSON each with 29 labels, \
         served by the bench's own server (streamed list, bookmark, watch); one in a hundred is new and not Ready, the \
         others are verified; each writes its status once in five minutes. VmRSS when the controller has used less \
         than a tenth of a CPU for three seconds, and VmHWM.",
    );
    Ok(table)
}

async fn measure(product: &Product, nodes: usize) -> Result<Memory> {
    let folder = tempfile::tempdir()?;
    let (controller, _front) = with_fleet(&product.controller, nodes, folder.path()).await?;
    controller.memory()
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are small")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[expect(clippy::cast_precision_loss, reason = "node counts are small")]
fn count(nodes: usize) -> f64 {
    nodes as f64
}

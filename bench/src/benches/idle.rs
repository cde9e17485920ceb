//! The cost of an idle controller that only receives heartbeats.

use std::time::Duration;

use anyhow::Result;
use nodekeeper_e2e::product::Product;
use tokio::time::{Instant, sleep};

use super::{Setup, with_fleet};
use crate::counting_server::Counts;
use crate::table::{Table, short};

const NODES: usize = 10_000;
const WINDOW: Duration = Duration::from_secs(30);

pub async fn run(product: Product) -> Result<Table> {
    let folder = tempfile::tempdir()?;
    let (controller, server) = with_fleet(&product, NODES, folder.path(), Setup::Gate).await?;
    let (asked, used, start) = (server.counts(), controller.cpu()?, Instant::now());
    sleep(WINDOW).await;
    let seconds = start.elapsed().as_secs_f64();
    let used = controller.cpu()?.saturating_sub(used).as_secs_f64();
    let more = difference(&server.counts(), &asked);
    let mut table = Table::new("Idle, 10,000 nodes");
    let requests = f64::from(u32::try_from(more.values().sum::<u64>())?);
    table.budget("API requests", requests / seconds, 1.0, "/s");
    table.budget("CPU", used / seconds * 100.0, 0.5, "% of one core");
    table.figure("requests", list(&more));
    table.note(format!(
        "{} s, counted by the server. Each node writes its status once in five minutes: {} watch events a second.",
        short(seconds),
        short(f64::from(u32::try_from(NODES)?) / crate::fleet::HEARTBEAT.as_secs_f64())
    ));
    Ok(table)
}

pub(super) fn difference(now: &Counts, before: &Counts) -> Counts {
    let more = now.iter().map(|(what, n)| (what.clone(), n - before.get(what).unwrap_or(&0)));
    more.filter(|(_, n)| *n > 0).collect()
}

pub(super) fn list(counts: &Counts) -> String {
    let parts: Vec<String> = counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
    parts.join(", ")
}

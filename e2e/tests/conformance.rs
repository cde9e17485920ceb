//! Runs the same cases on the embedded cluster and on a real one. Where they differ, the embedded cluster is wrong.
//!
//! Arguments: a part of `group/case` to run only matching cases. `KUBE` chooses the version of the real control
//! plane, `CONFORMANCE_KUBECONFIG` another server instead.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use nodekeeper_e2e::conformance::{self, Outcome};
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_sim::actors::{self, Timing};
use nodekeeper_sim::{Cluster as Embedded, Options};

/// Concurrent cases. A real server on two cores is not faster with more.
const CONCURRENCY: usize = 8;

fn main() -> Result<()> {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let filter = filter.as_deref();
    let start = Instant::now();
    let embedded = on_embedded(filter)?;
    let embedded_took = start.elapsed();
    let start = Instant::now();
    let real = tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(on_real(filter))?;
    let real_took = start.elapsed();

    let failed = print_table(&embedded, real.as_deref());
    print_failures("embedded", &embedded);
    print_failures("real", real.as_deref().unwrap_or_default());
    let all = embedded.len() + real.as_ref().map_or(0, Vec::len);
    println!("\nembedded {:.1} s, real {:.1} s", embedded_took.as_secs_f64(), real_took.as_secs_f64());
    let skipped = if real.is_none() { format!(", {} skipped", embedded.len()) } else { String::new() };
    println!("{} passed, {failed} failed{skipped}", all - failed);
    std::process::exit(i32::from(failed > 0 || all == 0));
}

/// In process, on a paused clock.
fn on_embedded(filter: Option<&str>) -> Result<Vec<Outcome>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(async {
        let cluster = Embedded::new(Options::simulated(1));
        // The same setting as the real controller manager of these tests.
        let timing = Timing {
            node_monitor_period: Duration::from_secs(1),
            node_monitor_grace: Duration::from_secs(10),
            ..Timing::default()
        };
        let _actors = actors::start(&cluster, timing);
        conformance::run(cluster.client("conformance"), filter, CONCURRENCY).await
    }))
}

/// On a real control plane; `None` if this machine cannot run one.
async fn on_real(filter: Option<&str>) -> Result<Option<Vec<Outcome>>> {
    if let Some(path) = std::env::var_os("CONFORMANCE_KUBECONFIG") {
        let kubeconfig = Kubeconfig::read_from(path)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        let client =
            Client::try_from(config).context("CONFORMANCE_KUBECONFIG: no client can be made of it")?;
        return Ok(Some(conformance::run(client, filter, CONCURRENCY).await));
    }
    let Some(cluster) = or_skip(Cluster::control_plane().await)? else { return Ok(None) };
    let outcomes = conformance::run(cluster.client()?, filter, CONCURRENCY).await;
    cluster.stop();
    Ok(Some(outcomes))
}

/// Prints one line per case and per group. Returns the number of failures.
fn print_table(embedded: &[Outcome], real: Option<&[Outcome]>) -> usize {
    let word = |outcome: &Outcome| if outcome.result.is_ok() { "ok" } else { "FAILED" };
    let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut failed = 0;
    println!("{:<18} {:<58} {:<8} {:<8}", "GROUP", "CASE", "EMBEDDED", "REAL");
    for (i, case) in embedded.iter().enumerate() {
        let other = real.and_then(|real| real.get(i));
        let bad = [Some(case), other].into_iter().flatten().filter(|o| o.result.is_err()).count();
        failed += bad;
        let group = groups.entry(case.group).or_default();
        group[0] += 1;
        group[1] += usize::from(case.result.is_err());
        group[2] += usize::from(other.is_some_and(|o| o.result.is_err()));
        println!(
            "{:<18} {:<58} {:<8} {:<8}",
            case.group,
            case.name,
            word(case),
            other.map_or("skipped", word)
        );
    }
    println!("\n{:<18} {:>5} {:>15} {:>11}", "GROUP", "CASES", "FAILED EMBEDDED", "FAILED REAL");
    for (name, [cases, embedded, real]) in groups {
        println!("{name:<18} {cases:>5} {embedded:>15} {real:>11}");
    }
    failed
}

fn print_failures(target: &str, outcomes: &[Outcome]) {
    for outcome in outcomes {
        if let Err(error) = &outcome.result {
            println!("\n--- {target}: {}/{}\n{error:#}", outcome.group, outcome.name);
        }
    }
}

//! Selects and runs benchmarks, and writes their results.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use nodekeeper_e2e::product::Product;
use nodekeeper_e2e::{is_unavailable, or_skip};
use tokio::time::timeout;

use crate::table::Table;
use crate::{benches, machine};

/// The timeout of a benchmark: the slowest takes four minutes on two cores.
const LONGEST: Duration = Duration::from_mins(15);

type Run = fn(Product) -> LocalBoxFuture<'static, Result<Table>>;

/// Name, description and function.
const BENCHES: &[(&str, &str, Run)] = &[
    ("worker", "size, memory and time of the worker", |p| benches::worker::run(p).boxed_local()),
    ("requests", "API requests for one node", |p| benches::requests::run(p).boxed_local()),
    ("rss", "memory of the controller at 0, 1k, 10k and 50k nodes", |p| benches::rss::run(p).boxed_local()),
    ("idle", "requests and CPU of an idle controller, 10k nodes", |p| benches::idle::run(p).boxed_local()),
    ("latency", "report to untainted node: one node", |p| benches::latency::run(p).boxed_local()),
    ("thousand", "1,000 nodes at once, compared with the baseline", |p| {
        benches::thousand::run(p).boxed_local()
    }),
    ("real-nodes", "Ready to untainted on three real nodes", |p| benches::real_nodes::run(p).boxed_local()),
    ("agent", "memory, requests and CPU of an agent", |p| benches::agent::run(p).boxed_local()),
    ("failover", "from one controller to the next", |p| benches::failover::run(p).boxed_local()),
];

pub struct Selection {
    /// The names of selected benchmarks; empty for all.
    only: Vec<String>,
    /// A controller to measure instead of the one built here.
    controller: Option<PathBuf>,
}

/// Parses the arguments. `None` if they only ask for help.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Selection>> {
    let (mut only, mut controller) = (Vec::new(), None);
    let names: Vec<&str> = BENCHES.iter().map(|(name, ..)| *name).collect();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => {
                let name = arguments.next().context("--only needs the name of a benchmark")?;
                if !names.contains(&name.as_str()) {
                    bail!("there is no benchmark {name}: give one of {}", names.join(", "));
                }
                only.push(name);
            }
            "--controller" => {
                let file = arguments.next().context("--controller needs a file")?;
                controller = Some(std::path::absolute(file)?);
            }
            "--help" | "-h" => {
                println!("usage: nodekeeper-bench [--only NAME]... [--controller FILE]\n");
                println!(
                    "  --controller FILE  measure this controller: an older release, or a script that runs a profiler\n"
                );
                for (name, what, _) in BENCHES {
                    println!("  {name:<11} {what}");
                }
                return Ok(None);
            }
            unknown => bail!("unknown argument {unknown}: see --help"),
        }
    }
    Ok(Some(Selection { only, controller }))
}

/// Runs the selected benchmarks in order. Results are written only after a complete run.
pub async fn run(selection: &Selection, mut product: Product) -> Result<ExitCode> {
    if let Some(other) = &selection.controller {
        product.controller.clone_from(other);
    }
    let mut results = format!("# Benchmark results\n\nWritten by `make bench`. {}\n", machine::describe());
    let mut failed = Vec::new();
    for (name, what, run) in BENCHES {
        if !selection.only.is_empty() && !selection.only.iter().any(|only| only == name) {
            continue;
        }
        eprintln!("bench: {name}: {what} ...");
        let found = timeout(LONGEST, run(product.clone())).await;
        let found = found.unwrap_or_else(|_| bail!("timed out after {LONGEST:?}"));
        match found {
            Ok(table) => {
                println!("\n{table}");
                write!(results, "\n{table}")?;
            }
            Err(error) if is_unavailable(&error) => {
                let why = format!("{error:#}");
                // Reports the skip; an error if CI=true.
                or_skip::<()>(Err(error))?;
                write!(results, "\n## {name}\n\nSKIPPED: {why}\n")?;
            }
            Err(error) => {
                eprintln!("bench: {name} could not be measured: {error:#}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        eprintln!("bench: FAILED: {}; no results are written", failed.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    if selection.only.is_empty() && selection.controller.is_none() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("RESULTS.md");
        std::fs::write(&file, results).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("bench: written to bench/RESULTS.md");
    } else {
        eprintln!("bench: only a whole run of what is built here is written to bench/RESULTS.md");
    }
    Ok(ExitCode::SUCCESS)
}

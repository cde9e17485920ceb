//! `make bench`: measures the costs of the shipped programs and compares them with their budgets.

mod benches;
mod counting_server;
mod fake_kubelet;
mod fleet;
mod machine;
mod process;
mod real_cluster;
mod runner;
mod table;
mod watch;

use std::process::ExitCode;

use nodekeeper_e2e::product::Product;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn run() -> anyhow::Result<ExitCode> {
    let Some(selection) = runner::parse(std::env::args().skip(1))? else { return Ok(ExitCode::SUCCESS) };
    let product = Product::build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            biased;
            // Dropping the benchmark stops its processes and removes its folders.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
            _ = terminate.recv() => Ok(ExitCode::from(INTERRUPTED)),
            done = runner::run(&selection, product) => done,
        }
    });
    runtime.shutdown_background();
    done
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

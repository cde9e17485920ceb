//! `nodekeeper demo` sets up signals, a temporary folder and the real clock, and runs the demo.
//!
//! ```text
//!  machines ──► runner ──► cluster (API server, kubelets, real workers, real controller)
//!                 │  ◄── observer (state of each machine) ◄──┘
//!                 ├──► screen ◄── frame ◄── line
//!                 ├──► verify (first act: did every machine end as expected?)
//!                 └──► remediation_act (second act: one machine is replaced; an outage replaces none)
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cluster;
mod frame;
mod line;
mod machines;
mod observer;
mod remediation_act;
mod runner;
mod screen;
mod verify;
mod writes;

use anyhow::{Context as _, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};

use runner::Runner;

/// Flags of `nodekeeper demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Keep the cluster running until Ctrl-C, and print kubectl commands to try
    #[arg(long)]
    pub keep: bool,
    /// Address that the API server of the demo listens on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// File to write the kubeconfig to [default: a temporary file, removed at the end]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Path of the worker binary [default: nodekeeper-worker in the folder of this binary]
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
}

/// Runs the demo to its end, or until a signal.
pub fn run(demo: &Demo) -> Result<()> {
    // Outlives the runtime: workers write into it until the last task has ended.
    let folder = tempfile::Builder::new()
        .prefix("nodekeeper-demo-")
        .tempdir()
        .context("cannot create a temporary folder; set TMPDIR to one that is writable")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run_until_signal(demo, folder.path()))
}

async fn run_until_signal(demo: &Demo, folder: &Path) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut runner = Runner::start(demo, folder).await?;
    let result = tokio::select! {
        result = runner.run() => Some(result),
        () = signals.recv() => None,
    };
    if result.is_some() && demo.keep {
        if let Some(Err(error)) = &result {
            eprintln!("error: {error:#}");
        }
        tokio::select! {
            () = runner.keep() => {}
            () = signals.recv() => {}
        }
    }
    runner.stop().await;
    match result {
        Some(result) => result,
        None => bail!("stopped before the end"),
    }
}

struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    async fn recv(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

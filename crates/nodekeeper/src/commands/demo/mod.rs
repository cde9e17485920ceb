//! Edge: `nodekeeper demo` joins the machine to the show: signals, a temporary folder, the real clock.
//!
//! ```text
//!  cast ──► show ──► stage (cluster, kubelets, real workers, real controller)
//!            │  ◄── eye (what is committed, and what it means) ◄──┘
//!            ├──► screen ◄── frame ◄── line
//!            ├──► ending (was all as it should be?)
//!            └──► second (one is replaced, and an outage replaces nobody)
//! ```

mod cast;
mod ending;
mod eye;
mod frame;
mod line;
mod screen;
mod second;
mod show;
mod stage;
mod writes;

use anyhow::{Context as _, Result, bail};
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Demo;
use show::Show;

/// Runs the demo to its end, or until it is told to stop.
pub fn run(demo: &Demo) -> Result<()> {
    // Outlives the runtime: workers write into it until the last task is gone.
    let folder = tempfile::Builder::new()
        .prefix("nodekeeper-demo-")
        .tempdir()
        .context("cannot make a temporary folder; TMPDIR says where")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(play(demo, folder.path()))
}

async fn play(demo: &Demo, folder: &Path) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut show = Show::open(demo, folder).await?;
    let told = tokio::select! {
        told = show.tell() => Some(told),
        () = signals.come() => None,
    };
    if told.is_some() && demo.keep {
        if let Some(Err(error)) = &told {
            eprintln!("error: {error:#}");
        }
        tokio::select! {
            () = show.keep() => {}
            () = signals.come() => {}
        }
    }
    show.close().await;
    match told {
        Some(told) => told,
        None => bail!("stopped before the end"),
    }
}

/// Whoever asks us to stop.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    async fn come(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

//! Edge: a controller as a process of its own, and what the kernel says about it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// Where workers run, and where the lease is.
pub const NAMESPACE: &str = "nodekeeper-system";
/// Waits for the end of whoever holds the other end of the pipe, however it comes, and then ends the process.
const WATCHDOG: &str = "trap '' INT TERM HUP; cat >/dev/null; kill -9 \"$1\"";

/// What a process keeps in memory, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub now: u64,
    pub most: u64,
}

/// A running controller. Dropping it kills it; so does our own end.
pub struct Controller {
    // Dropped before the process: it must not act on a number that is somebody else's by then.
    _watchdog: Ended,
    process: Ended,
    log: PathBuf,
}

/// Killed and waited for when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Controller {
    /// Starts one under this name. Its log is in the folder.
    pub fn start(binary: &Path, kubeconfig: &Path, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let process = Command::new(binary)
            .args(["controller", "--namespace", NAMESPACE, "--identity", name])
            .args(["--worker-image", "nodekeeper.local/nodekeeper-worker:bench"])
            // Two of them run on one machine.
            .args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .envs(
                std::env::vars_os()
                    .filter(|(name, _)| name == "MALLOC_ARENA_MAX" || name == "GLIBC_TUNABLES"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            // Ctrl-C is for us.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let process = Ended(process);
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &process.0.id().to_string()])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        Ok(Self { _watchdog: Ended(watchdog), process, log })
    }

    fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// What it keeps in memory.
    pub fn memory(&self) -> Result<Memory> {
        memory(self.id()).with_context(|| format!("the controller is gone: {}", self.log_tail()))
    }

    /// What it has used of the processors since it started.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The name may contain anything; after it come the state and, eleven fields on, the times.
        let fields = stat.rsplit_once(") ").context("no such stat")?.1;
        let ticks: Vec<u64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        let ticks = ticks.iter().sum::<u64>();
        Ok(Duration::from_millis(ticks * 1000 / clock_ticks_per_second()))
    }

    /// Returns when it has next to nothing to do: it has used less than a tenth of a processor for three seconds. An
    /// error if that does not come.
    pub async fn settle(&self, patience: Duration) -> Result<()> {
        const LOOK: Duration = Duration::from_secs(1);
        let end = Instant::now() + patience;
        let mut quiet = 0;
        let mut before = self.cpu()?;
        while quiet < 3 {
            sleep(LOOK).await;
            let used = self.cpu()?;
            quiet = if used.saturating_sub(before) * 10 < LOOK { quiet + 1 } else { 0 };
            before = used;
            ensure!(Instant::now() < end, "still busy after {patience:?}: {}", self.log_tail());
        }
        Ok(())
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(mut self) -> Result<()> {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(id, Signal::TERM)?;
        let end = Instant::now() + Duration::from_secs(20);
        while self.process.0.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "it does not stop: {}", self.log_tail());
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Ends it as a power cut does.
    pub fn crash(self) {
        drop(self);
    }

    /// The end of what it wrote.
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

/// What a process keeps in memory.
pub fn memory(id: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
    };
    match (kib("VmRSS:"), kib("VmHWM:")) {
        (Some(now), Some(most)) => Ok(Memory { now, most }),
        // A process that has ended and was not waited for has none.
        _ => bail!("it has no memory any more"),
    }
}

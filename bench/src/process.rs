//! Edge: a controller or an agent in its own process, and its resource usage as the kernel reports it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nodekeeper_e2e::product::CONTROLLER_VARIABLE;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// The namespace of the workers and of the lease.
pub const NAMESPACE: &str = "nodekeeper-system";
/// The image of the workers.
pub const WORKER_IMAGE: &str = "nodekeeper.local/nodekeeper-worker:bench";
/// Waits until the other end of its stdin is closed, and then kills the process.
const WATCHDOG: &str = "trap '' INT TERM HUP; cat >/dev/null; kill -9 \"$1\"";

/// In KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub now: u64,
    /// What of `now` is no page of the binary.
    pub anonymous: u64,
    pub most: u64,
}

/// A running controller or agent. It is killed when this is dropped, and when the bench exits.
pub struct Process {
    // Dropped before the process: afterwards the process id may belong to another process.
    _watchdog: Ended,
    running: Ended,
    log: PathBuf,
}

/// Killed and waited for when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a controller with this identity. Its log is in the folder.
    pub fn controller(binary: &Path, kubeconfig: &Path, folder: &Path, name: &str) -> Result<Self> {
        Self::controller_with(binary, kubeconfig, folder, name, &[])
    }

    /// Starts a controller with more flags.
    pub fn controller_with(
        binary: &Path,
        kubeconfig: &Path,
        folder: &Path,
        name: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        command
            .args(["controller", "--namespace", NAMESPACE, "--identity", name])
            .args(["--worker-image", WORKER_IMAGE])
            // Two controllers run on one machine.
            .args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
            .args(flags);
        Self::start(command, kubeconfig, folder, name)
    }

    /// Starts an agent with these flags.
    pub fn agent(binary: &Path, kubeconfig: &Path, folder: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("agent").args(flags);
        Self::start(command, kubeconfig, folder, "agent")
    }

    fn start(mut command: Command, kubeconfig: &Path, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let process = command
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .envs([CONTROLLER_VARIABLE])
            .envs(std::env::vars_os().filter(|(name, _)| name == "GLIBC_TUNABLES"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            // Ctrl-C must reach only the bench.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let process = Ended(process);
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &process.0.id().to_string()])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        Ok(Self { _watchdog: Ended(watchdog), running: process, log })
    }

    fn id(&self) -> u32 {
        self.running.0.id()
    }

    pub fn memory(&self) -> Result<Memory> {
        memory(self.id()).with_context(|| format!("it has exited: {}", self.log_tail()))
    }

    /// The CPU time since its start.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The name may contain anything; after it come the state and, eleven fields on, the times.
        let fields = stat.rsplit_once(") ").context("no such stat")?.1;
        let ticks: Vec<u64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        let ticks = ticks.iter().sum::<u64>();
        Ok(Duration::from_millis(ticks * 1000 / clock_ticks_per_second()))
    }

    /// The CPU time of the threads that it has now, without the rounding of [`Self::cpu`] to ticks of 10 ms.
    pub fn cpu_of_threads(&self) -> Result<Duration> {
        let mut used = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
            let nanoseconds = stat.split(' ').next().context("no such schedstat")?.parse()?;
            used += Duration::from_nanos(nanoseconds);
        }
        Ok(used)
    }

    /// Returns when it has used less than a tenth of a CPU for three seconds. Fails after `patience`.
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

    /// Sends SIGTERM and waits until it has exited.
    pub async fn stop(mut self) -> Result<()> {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(id, Signal::TERM)?;
        let end = Instant::now() + Duration::from_secs(20);
        while self.running.0.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "it does not stop: {}", self.log_tail());
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Sends SIGKILL.
    pub fn crash(self) {
        drop(self);
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

pub fn memory(id: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
    };
    match (kib("VmRSS:"), kib("RssAnon:"), kib("VmHWM:")) {
        (Some(now), Some(anonymous), Some(most)) => Ok(Memory { now, anonymous, most }),
        // A process that has exited and was not waited for has no memory.
        _ => bail!("the process has exited"),
    }
}

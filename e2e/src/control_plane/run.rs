//! The folder and the processes of one cluster, and their certain end: when dropped, after a panic, and after
//! `kill -9`.
//!
//! Three things see to it. Every process writes itself into the folder's `pids` before it becomes a
//! component. A reaper, a tiny shell script in a process group of its own, waits for our end of a pipe to be
//! closed, which the kernel does if we cannot, and then ends the recorded processes and removes the folder.
//! If the reaper was killed too, the next start does its work: we hold a lock on the folder's `owner` file
//! for as long as we live.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::{fs::DirBuilderExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::text;

const REAPER: &str = include_str!("reaper.sh");
const RECORDED: &str = include_str!("recorded.sh");
const PATIENCE: Duration = Duration::from_secs(20);

/// A running cluster's folder and processes. Dropping it ends both.
pub(super) struct Run {
    folder: PathBuf,
    components: Vec<(&'static str, Child)>,
    reaper: Child,
    /// Locked; the lock goes with us.
    _owner: File,
}

impl Run {
    /// Makes a new folder in `runs`, and removes what dead owners left there.
    pub(super) fn create(runs: &Path) -> anyhow::Result<Self> {
        private_folder(runs)?;
        // One start at a time, or one would take another's half-made folder for a dead one.
        let starting = File::create(runs.join("lock"))?;
        starting.lock()?;
        sweep(runs)?;

        let folder = unused_folder(runs)?;
        let owner = File::create(folder.join("owner"))?;
        owner.lock()?;
        fs::write(folder.join("pids"), "")?;
        fs::create_dir(folder.join("log"))?;
        let reaper = reaper(&folder, Stdio::piped())?;
        Ok(Self { folder, components: Vec::new(), reaper, _owner: owner })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a component in the folder, with its output in `log/NAME.log`.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        program: &Path,
        flags: &[String],
    ) -> anyhow::Result<()> {
        let log = File::create(self.log(name))?;
        let child = Command::new("sh")
            .args(["-c", RECORDED, "recorded"])
            .arg(self.folder.join("pids"))
            .arg(program)
            .args(flags)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for us; the reaper sees to the rest.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.components.push((name, child));
        Ok(())
    }

    /// An error, with the end of its log, if a component has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for (name, child) in &mut self.components {
            if let Some(status) = child.try_wait()? {
                let name = *name;
                bail!("{name} ended with {status}:\n{}", self.log_tail(name));
            }
        }
        Ok(())
    }

    /// The end of every component's log.
    pub(super) fn log_tails(&self) -> String {
        let tails = self.components.iter().map(|(name, _)| format!("--- {name}\n{}\n", self.log_tail(name)));
        tails.collect()
    }

    fn log_tail(&self, name: &str) -> String {
        let log = fs::read(self.log(name)).unwrap_or_default();
        text::tail(&String::from_utf8_lossy(&log), 20).to_owned()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(name).with_extension("log")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        drop(self.reaper.stdin.take());
        wait(&mut self.reaper)?;
        if self.folder.exists() {
            // Somebody killed the reaper.
            reap(&self.folder)?;
        }
        for (_, child) in &mut self.components {
            wait(child)?;
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("e2e: cannot clean up {}: {error:#}", self.folder.display());
        }
    }
}

/// Removes the clusters whose owners, and reapers, are dead.
fn sweep(runs: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && is_abandoned(&entry.path()) {
            reap(&entry.path())?;
        }
    }
    Ok(())
}

fn is_abandoned(folder: &Path) -> bool {
    match File::open(folder.join("owner")) {
        Ok(owner) => owner.try_lock().is_ok(),
        // Its making or its removal was cut short.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn reap(folder: &Path) -> anyhow::Result<()> {
    wait(&mut reaper(folder, Stdio::null())?)?;
    Ok(())
}

fn reaper(folder: &Path, stdin: Stdio) -> anyhow::Result<Child> {
    Command::new("sh")
        .args(["-c", REAPER, "reaper"])
        .arg(folder)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start the reaper")
}

fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            bail!("process {} does not end", child.id());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Named after us, for people who look.
fn unused_folder(runs: &Path) -> anyhow::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        let folder = runs.join(format!("{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        match DirBuilder::new().mode(0o700).create(&folder) {
            // A process with our number in another container, on the same cache.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.with_context(|| format!("cannot create {}", folder.display()))?;
                return Ok(folder);
            }
        }
    }
}

fn private_folder(folder: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot create {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn dropping_a_run_ends_its_processes_and_removes_its_folder() {
        let runs = tempfile::tempdir().unwrap();
        let mut run = Run::create(runs.path()).unwrap();
        run.spawn("sleeper", Path::new("sleep"), &["600".into()]).unwrap();
        run.check().unwrap();
        let (folder, pid) = (run.folder().to_owned(), run.components[0].1.id());
        drop(run);
        assert!(!folder.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_component_that_ends_is_an_error_with_the_end_of_its_log() {
        let runs = tempfile::tempdir().unwrap();
        let mut run = Run::create(runs.path()).unwrap();
        run.spawn("talker", Path::new("sh"), &["-c".into(), "echo the reason; exit 3".into()]).unwrap();
        wait(&mut run.components[0].1).unwrap();
        let error = run.check().unwrap_err().to_string();
        assert!(error.contains("talker") && error.contains("the reason"), "{error}");
    }

    #[test]
    fn a_reused_pid_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        let mut stranger = sleeper();
        fs::write(run.join("pids"), format!("{} 1\n", stranger.id())).unwrap();
        reap(&run).unwrap();
        assert!(!run.exists());
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_start_sweeps_what_dead_owners_left_and_only_that() {
        let runs = tempfile::tempdir().unwrap();
        let abandoned = runs.path().join("1-1");
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join("owner"), "").unwrap();
        fs::write(abandoned.join("pids"), "").unwrap();
        let half_made = runs.path().join("1-2");
        fs::create_dir(&half_made).unwrap();

        let first = Run::create(runs.path()).unwrap();
        let second = Run::create(runs.path()).unwrap();
        assert!(!abandoned.exists() && !half_made.exists());
        assert!(first.folder().exists() && second.folder().exists());
    }

    #[test]
    fn what_cannot_be_recorded_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("started");
        let status = Command::new("sh")
            .args(["-c", RECORDED, "recorded"])
            .arg(folder.path().join("gone/pids"))
            .arg("touch")
            .arg(&started)
            .status();
        assert!(!status.unwrap().success());
        assert!(!started.exists());
    }
}

//! The folder and the processes of one cluster, and their removal: when dropped, after a panic, and after `kill -9`.
//!
//! Every process writes its id into the folder's `pids` before it becomes a component. A reaper, a small shell script
//! in its own process group, waits until the other end of its pipe is closed, which the kernel does if this process
//! is killed, and then kills the recorded processes and removes the folder. If the reaper was killed too, the next
//! start does its work: a live owner holds a lock on the folder's `owner` file.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io,
    os::unix::{fs::DirBuilderExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{machine, progress::progress, text};

const REAPER: &str = include_str!("reaper.sh");
const RECORDED: &str = include_str!("recorded.sh");
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder and processes of a running cluster. Dropping it removes both.
pub(crate) struct Run {
    launcher: Launcher,
    components: Vec<(String, Process)>,
    reaper: Child,
    /// Locked while this process lives.
    _owner: File,
}

impl Run {
    /// Creates a folder in `runs`, and removes the remains of dead owners.
    pub(crate) fn create(runs: &Path) -> anyhow::Result<Self> {
        let _starting = lock(runs)?;
        if let Err(error) = remove_abandoned(runs) {
            // The error is reported but does not prevent the start.
            progress(&format!("{error:#}"));
        }

        let folder = unused_folder(runs)?;
        let owner = File::create(folder.join("owner"))?;
        owner.lock()?;
        fs::write(folder.join("pids"), "")?;
        fs::create_dir(folder.join("log"))?;
        let reaper = reaper(&folder, Stdio::piped())?;
        Ok(Self { launcher: Launcher { folder }, components: Vec::new(), reaper, _owner: owner })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.launcher.folder
    }

    /// Starts processes that may exit before the cluster stops.
    pub(crate) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Starts a component. From then on its exit is an error.
    pub(crate) fn spawn(&mut self, name: &str, words: &[OsString], stdin: Stdio) -> anyhow::Result<()> {
        let process = self.launcher.start(name, words, stdin)?;
        self.components.push((name.to_owned(), process));
        Ok(())
    }

    /// Fails with the end of the log if a component has exited.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for (name, process) in &mut self.components {
            if let Some(status) = process.0.try_wait()? {
                bail!("{name} ended with {status}:\n{}", self.launcher.log_tail(name));
            }
        }
        Ok(())
    }

    pub(crate) fn log_tails(&self) -> String {
        let logs = fs::read_dir(self.folder().join("log")).into_iter().flatten().flatten();
        let mut names: Vec<_> = logs.filter_map(|log| log.file_name().into_string().ok()).collect();
        names.sort();
        let names = names.iter().filter_map(|name| name.strip_suffix(".log"));
        let tails: Vec<_> =
            names.map(|name| format!("--- {name}\n{}\n", self.launcher.log_tail(name))).collect();
        tails.concat()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        drop(self.reaper.stdin.take());
        let status = wait(&mut self.reaper)?;
        if self.folder().exists() {
            // The reaper was killed.
            return reap(self.folder());
        }
        reaped(status, self.folder())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            progress(&format!("cannot clean up {}: {error:#}", self.folder().display()));
        }
    }
}

/// Starts processes that stop with the cluster.
#[derive(Clone)]
pub(crate) struct Launcher {
    folder: PathBuf,
}

impl Launcher {
    /// Starts a program in the cluster's folder and writes its output to `log/NAME.log`.
    pub(crate) fn start(&self, name: &str, words: &[OsString], stdin: Stdio) -> anyhow::Result<Process> {
        let log = File::options().create(true).append(true).open(self.log(name))?;
        let child = machine::command("sh")
            .args(["-c", RECORDED, "recorded"])
            .arg(self.folder.join("pids"))
            .args(words)
            .current_dir(&self.folder)
            .stdin(stdin)
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C must reach only this process; the reaper stops the others.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Process(child))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn log_tail(&self, name: &str) -> String {
        let log = fs::read(self.log(name)).unwrap_or_default();
        text::tail(&String::from_utf8_lossy(&log), 20).to_owned()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(name).with_extension("log")
    }
}

/// A started process. Dropping it kills it.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Returns when the process has exited, or fails after a timeout.
    pub(crate) fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        wait(&mut self.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Harmless if it has exited already: its id is not reused before it is waited for.
        let ended = self.0.kill().map_err(Into::into).and_then(|()| self.wait());
        if let Err(error) = ended {
            eprintln!("e2e: cannot end process {}: {error:#}", self.0.id());
        }
    }
}

/// Removes the clusters in `runs` whose owners and reapers are dead.
pub(crate) fn sweep(runs: &Path) -> anyhow::Result<()> {
    let _starting = lock(runs)?;
    remove_abandoned(runs)
}

/// Serialises starts: otherwise one could mistake another's incomplete folder for a dead one.
fn lock(runs: &Path) -> anyhow::Result<File> {
    private_folder(runs)?;
    let starting = File::create(runs.join("lock"))?;
    starting.lock()?;
    Ok(starting)
}

fn remove_abandoned(runs: &Path) -> anyhow::Result<()> {
    let mut left = Vec::new();
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && is_abandoned(&entry.path()) {
            left.extend(reap(&entry.path()).err().map(|error| format!("{error:#}")));
        }
    }
    ensure!(left.is_empty(), "{}", left.join("\n"));
    Ok(())
}

fn is_abandoned(folder: &Path) -> bool {
    match File::open(folder.join("owner")) {
        Ok(owner) => owner.try_lock().is_ok(),
        // Its creation or removal was interrupted.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn reap(folder: &Path) -> anyhow::Result<()> {
    reaped(wait(&mut reaper(folder, Stdio::null())?)?, folder)
}

/// Fails with what is left, and where, if the reaper could not remove a folder.
fn reaped(status: ExitStatus, folder: &Path) -> anyhow::Result<()> {
    let mut ending = folder.as_os_str().to_owned();
    ending.push(".ending");
    let ending = PathBuf::from(ending);
    let left = fs::read_to_string(ending.join("left")).unwrap_or_default();
    ensure!(
        status.success(),
        "SOMETHING IS LEFT of a cluster; the next start tries again (the reaper ended with {status}):\n{}\n{left}",
        ending.display()
    );
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

/// The name contains the process id, for debugging.
fn unused_folder(runs: &Path) -> anyhow::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        let folder = runs.join(format!("{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        match DirBuilder::new().mode(0o700).create(&folder) {
            // Another container on the same cache has a process with the same id.
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
    fn dropping_a_run_kills_its_processes_and_removes_its_folder() {
        let runs = tempfile::tempdir().unwrap();
        let mut run = Run::create(runs.path()).unwrap();
        run.spawn("sleeper", &["sleep".into(), "600".into()], Stdio::null()).unwrap();
        run.check().unwrap();
        let (folder, pid) = (run.folder().to_owned(), run.components[0].1.id());
        drop(run);
        assert!(!folder.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn an_exited_component_reports_the_end_of_its_log() {
        let runs = tempfile::tempdir().unwrap();
        let mut run = Run::create(runs.path()).unwrap();
        let words = ["sh", "-c", "echo the reason; exit 3"].map(OsString::from);
        run.spawn("talker", &words, Stdio::null()).unwrap();
        run.components[0].1.wait().unwrap();
        let error = run.check().unwrap_err().to_string();
        assert!(error.contains("talker") && error.contains("the reason"), "{error}");
    }

    #[test]
    fn a_reused_pid_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        let mut other_process = sleeper();
        fs::write(run.join("pids"), format!("{} 1\n", other_process.id())).unwrap();
        reap(&run).unwrap();
        assert!(!run.exists());
        assert!(other_process.try_wait().unwrap().is_none());
        other_process.kill().unwrap();
        other_process.wait().unwrap();
    }

    #[test]
    fn remains_of_a_reaper_are_reported() {
        let runs = tempfile::tempdir().unwrap();
        let folder = runs.path().join("1-1");
        let ended_with = |code: &str| Command::new("sh").args(["-c", code]).status().unwrap();
        reaped(ended_with("exit 0"), &folder).unwrap();
        let ending = runs.path().join("1-1.ending");
        fs::create_dir(&ending).unwrap();
        fs::write(ending.join("left"), "control group /a/b\n").unwrap();
        let error = reaped(ended_with("exit 1"), &folder).unwrap_err().to_string();
        assert!(error.contains("control group /a/b") && error.contains("1-1.ending"), "{error}");
        reaped(ended_with("kill -9 $$"), &folder).unwrap_err();
    }

    #[test]
    fn a_start_removes_only_remains_of_dead_owners() {
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
    fn a_process_that_cannot_be_recorded_does_not_start() {
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

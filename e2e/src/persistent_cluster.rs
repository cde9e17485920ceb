//! A cluster that keeps running between commands, owned by a background process.
//!
//! In the cache, `cluster/owner` is locked by that process and contains its process id and identity; `cluster/about`
//! says how to reach the cluster and exists once it is ready; `cluster/log` is its log.

use std::{
    fs::{self, File},
    future::pending,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, id},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    Cluster,
    assets::{AssetsError, Settings},
    control_plane::{self, Options},
    machine::{self, MachineError},
    nodes::{NodeOptions, TOOL_IMAGE},
    progress::progress,
    text::shell_word,
};

/// The first start builds Kubernetes.
const START_PATIENCE: Duration = Duration::from_mins(30);
const END_PATIENCE: Duration = Duration::from_mins(1);

/// The only persistent cluster of a cache.
pub struct PersistentCluster {
    settings: Settings,
    folder: PathBuf,
}

impl PersistentCluster {
    #[must_use]
    pub fn of(settings: Settings) -> Self {
        Self { folder: settings.cache.join("cluster"), settings }
    }

    /// Starts `holder` with `arguments`, which must call [`PersistentCluster::hold`]. Shows its log until the cluster
    /// is ready, and returns how to reach it. Returns at once if the cluster is running.
    pub fn up(&self, holder: &Path, arguments: &[String]) -> anyhow::Result<String> {
        let _one_at_a_time = self.lock()?;
        let mut child = None;
        if self.is_held() {
            if let Ok(about) = fs::read_to_string(self.about()) {
                return Ok(format!("It is up already.\n{about}"));
            }
        } else {
            if let Err(error) = control_plane::sweep(&self.settings) {
                // The error is reported but does not prevent the start.
                progress(&format!("{error:#}"));
            }
            self.forget()?;
            fs::create_dir_all(&self.folder)?;
            let log = File::create(self.log())?;
            // Not affected by Ctrl-C in this terminal, nor by its end.
            let words = machine::command("setsid")
                .arg(holder)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn();
            child = Some(words.context("cannot start a process in the background")?);
        }
        self.follow(child)
    }

    /// Shows the log until the cluster is ready or has failed.
    fn follow(&self, mut child: Option<Child>) -> anyhow::Result<String> {
        let deadline = Instant::now() + START_PATIENCE;
        let mut log = File::open(self.log())?;
        let mut shown = Vec::new();
        loop {
            let ended = match &mut child {
                Some(child) => child.try_wait()?.map(|status| status.code()),
                None => (!self.is_held()).then_some(None),
            };
            let from = shown.len();
            log.read_to_end(&mut shown)?;
            io::stderr().write_all(&shown[from..])?;
            if let Ok(about) = fs::read_to_string(self.about()) {
                return Ok(about);
            }
            if let Some(code) = ended {
                let reason = String::from_utf8_lossy(&shown).trim().to_owned();
                fs::remove_dir_all(&self.folder)?;
                // Exits with the same code as the background process.
                ensure!(code != Some(3), MachineError::InBackground { reason });
                bail!("the cluster did not start, see above");
            }
            ensure!(Instant::now() < deadline, "waited {START_PATIENCE:?}, see {}", self.log().display());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts the cluster and keeps it until this process exits; then the cluster's reaper stops it.
    pub async fn hold(&self, nodes: NodeOptions) -> anyhow::Result<()> {
        let mut owner = File::options().create(true).truncate(false).write(true).open(self.owner())?;
        owner.try_lock().context("a cluster is up, or starting")?;
        owner.set_len(0)?;
        write!(owner, "{} {}", id(), identity(id()).context("no identity of this process")?)?;
        let count = nodes.count;
        let cluster = Cluster::start(Options::new(self.settings.clone()).with_nodes(nodes)).await?;
        let unfinished = self.folder.join(".about");
        fs::write(&unfinished, about(&cluster, count))?;
        fs::rename(unfinished, self.about())?;
        pending().await
    }

    /// Stops the cluster and returns when nothing is left. Also removes the remains of a crash.
    pub fn down(&self) -> anyhow::Result<String> {
        let _one_at_a_time = self.lock()?;
        let was_up = self.is_held();
        if was_up {
            let owner = fs::read_to_string(self.owner())?;
            let (pid, its) = owner.split_once(' ').context("invalid owner file")?;
            let pid: u32 = pid.parse().context("invalid owner file")?;
            // In another container on the same cache, this process id may belong to any process.
            ensure!(
                identity(pid).as_deref() == Some(its),
                "the cluster is owned by process {pid} of another container: stop it there"
            );
            Command::new("kill").arg(pid.to_string()).output()?;
            let deadline = Instant::now() + END_PATIENCE;
            while self.is_held() || self.has_folder_of(pid)? {
                if Instant::now() >= deadline {
                    ensure!(!self.is_held(), "waited {END_PATIENCE:?} for process {pid} to end");
                    // The reaper could not stop a process. The following code tries again and reports it.
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        let swept = control_plane::sweep(&self.settings);
        self.forget()?;
        swept?;
        Ok(if was_up { "The cluster is stopped." } else { "No cluster is running." }.into())
    }

    fn forget(&self) -> anyhow::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The name of a cluster's folder begins with the process id of its owner.
    fn has_folder_of(&self, pid: u32) -> anyhow::Result<bool> {
        let mut names =
            fs::read_dir(self.settings.cache.join("run"))?.flatten().map(|entry| entry.file_name());
        Ok(names.any(|name| name.to_string_lossy().starts_with(&format!("{pid}-"))))
    }

    fn lock(&self) -> anyhow::Result<File> {
        let cache = &self.settings.cache;
        let failed = |source| AssetsError::File { action: "cannot write to", path: cache.clone(), source };
        fs::create_dir_all(cache).map_err(failed)?;
        let lock = File::create(cache.join("cluster.lock")).map_err(failed)?;
        lock.lock()?;
        Ok(lock)
    }

    fn is_held(&self) -> bool {
        File::open(self.owner()).is_ok_and(|owner| owner.try_lock().is_err())
    }

    fn owner(&self) -> PathBuf {
        self.folder.join("owner")
    }

    fn about(&self) -> PathBuf {
        self.folder.join("about")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }
}

/// The start time and the PID namespace of a process, which identify it uniquely.
fn identity(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name is in parentheses and may contain parentheses.
    let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?;
    let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(format!("{start} {}", namespace.display()))
}

fn about(cluster: &Cluster, nodes: usize) -> String {
    let [kubeconfig, kubectl] =
        [cluster.kubeconfig_path(), cluster.kubectl()].map(|path| shell_word(&path.to_string_lossy()));
    format!(
        "A cluster with {nodes} nodes is up; its logs are in {}. To reach it:\n\
         \n  export KUBECONFIG={kubeconfig}\n\
         \nTo try:\n\
         \n  {kubectl} get nodes -o wide\
         \n  {kubectl} run hello --image={TOOL_IMAGE} --restart=Never -- lookup kubernetes.default\
         \n  {kubectl} logs hello\n\
         \n`make cluster-down` ends it.",
        cluster.folder().join("log").display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_does_not_kill_another_process_with_the_same_id() {
        let cache = tempfile::tempdir().unwrap();
        let cluster = PersistentCluster::of(Settings {
            kube: String::new(),
            prebuilt: None,
            cache: cache.path().to_owned(),
        });
        fs::create_dir(&cluster.folder).unwrap();
        let mut other_process = Command::new("sleep").arg("600").spawn().unwrap();
        let its = identity(other_process.id()).unwrap();
        for other in [its.replacen(char::is_numeric, "", 1), its.replace("pid:[", "pid:[1")] {
            let owner = File::create(cluster.owner()).unwrap();
            owner.lock().unwrap();
            fs::write(cluster.owner(), format!("{} {other}", other_process.id())).unwrap();
            let error = cluster.down().unwrap_err().to_string();
            assert!(error.contains("another container"), "{error}");
        }
        assert!(other_process.try_wait().unwrap().is_none(), "it was killed");
        other_process.kill().unwrap();
        other_process.wait().unwrap();
    }
}

//! A cluster with nodes leaves no processes and files behind, however it ends.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, ensure};
use nodekeeper_e2e::{
    assets::{Assets, BINARIES, NodeAssets, Settings},
    machine, or_skip,
};

use super::eventually;

/// Start times of a cluster's processes by process id.
type Processes = BTreeMap<u32, String>;

#[tokio::test]
async fn nothing_is_left_after_down_or_a_crash_of_the_owner() -> anyhow::Result<()> {
    let Some(place) = or_skip(Place::new())? else { return Ok(()) };

    let said = place.cluster(&["up", "--nodes", "1"])?;
    assert!(said.contains("export KUBECONFIG=") && said.contains("1 nodes"), "{said}");
    let run = place.run()?;
    let again = place.cluster(&["up", "--nodes", "1"])?;
    assert!(again.contains("already") && again.contains(&said), "{again}");
    assert_eq!(place.run()?, run, "a second cluster was started");
    let processes = processes_of(&run)?;
    // Network, forwarder, control plane and node, and what runs on the node.
    assert!(processes.len() > 10, "{processes:?}");
    place.cluster(&["down"])?;
    assert_eq!(traces(&run, &processes), Vec::<String>::new());
    assert!(place.cluster(&["down"])?.contains("No cluster"));

    // The owner is killed: the reaper removes the cluster.
    place.cluster(&["up", "--nodes", "1"])?;
    let run = place.run()?;
    let processes = processes_of(&run)?;
    kill(place.owner()?);
    eventually("the reaper", async || Ok(traces(&run, &processes).is_empty())).await?;

    // The owner and the reaper are killed: the next command removes the cluster.
    place.cluster(&["up", "--nodes", "1"])?;
    let run = place.run()?;
    let processes = processes_of(&run)?;
    let owner = place.owner()?;
    kill(child_named(owner, "sh").context("it has no reaper")?);
    kill(owner);
    assert!(traces(&run, &processes).len() > 10, "processes exited early");
    assert!(place.cluster(&["down"])?.contains("No cluster"));
    assert_eq!(traces(&run, &processes), Vec::<String>::new());
    Ok(())
}

/// A separate cache, so that no other start cleans up.
struct Place {
    cache: tempfile::TempDir,
}

impl Place {
    fn new() -> anyhow::Result<Self> {
        let settings = Settings::from_env()?;
        machine::ensure_nodes_can_run(&settings.cache)?;
        let (assets, nodes) = (Assets::ensure(&settings)?, NodeAssets::ensure(&settings)?);
        // In the cache that was checked: another folder may be on an overlay.
        fs::create_dir_all(&settings.cache)?;
        let place = Self { cache: tempfile::Builder::new().prefix("the-end-").tempdir_in(&settings.cache)? };
        fs::create_dir(place.binaries())?;
        let ours = [nodes.kubelet, nodes.kube_proxy, nodes.coredns, nodes.testtool];
        for path in BINARIES.map(|binary| assets.path(binary)).into_iter().chain(ours) {
            symlink(&path, place.binaries().join(path.file_name().context("no name")?))?;
        }
        Ok(place)
    }

    fn binaries(&self) -> PathBuf {
        self.cache.path().join("binaries")
    }

    fn cluster(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_cluster"))
            .args(arguments)
            .env("NODEKEEPER_CACHE", self.cache.path())
            .env("KUBEBUILDER_ASSETS", self.binaries())
            .output()?;
        ensure!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        Ok(String::from_utf8(stdout)?.trim().to_owned())
    }

    fn run(&self) -> anyhow::Result<PathBuf> {
        let entries = fs::read_dir(self.cache.path().join("run"))?.flatten();
        entries.map(|entry| entry.path()).find(|path| path.is_dir()).context("no cluster")
    }

    fn owner(&self) -> anyhow::Result<u32> {
        let owner = fs::read_to_string(self.cache.path().join("cluster/owner"))?;
        Ok(owner.split(' ').next().context("no owner")?.parse()?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.cluster(&["down"]) {
            eprintln!("{error:#}");
        }
    }
}

/// The recorded processes, and all in the cluster's control groups.
fn processes_of(run: &Path) -> anyhow::Result<Processes> {
    let group = group_of(run);
    let recorded = fs::read_to_string(run.join("pids"))?;
    let recorded: Vec<u32> =
        recorded.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    let all = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        recorded.contains(pid) || groups.contains(&format!("/{group}/"))
    };
    Ok(all.filter(is_its).filter_map(|pid| Some((pid, start_of(pid)?))).collect())
}

/// What is left of a cluster.
fn traces(run: &Path, processes: &Processes) -> Vec<String> {
    let mut traces: Vec<_> = processes
        .iter()
        .filter(|(pid, start)| start_of(**pid).as_ref() == Some(start))
        .map(|(pid, _)| format!("process {pid} {}", name_of(*pid)))
        .collect();
    let ending = run.with_extension("ending");
    let hierarchies = fs::read_dir("/sys/fs/cgroup").expect("control groups").flatten();
    let folders = hierarchies.map(|entry| entry.path().join(group_of(run)));
    let folders = folders.chain([Path::new("/sys/fs/cgroup").join(group_of(run)), run.to_owned(), ending]);
    traces.extend(folders.filter(|folder| folder.exists()).map(|folder| folder.display().to_string()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let run = run.display().to_string();
    traces.extend(mounts.lines().filter(|line| line.contains(&run)).map(|line| format!("mount {line}")));
    traces
}

fn group_of(run: &Path) -> String {
    format!("nodekeeper-{}", run.file_name().unwrap_or_default().to_string_lossy())
}

/// In ticks since boot. `None` if it has exited, even if it was not waited for.
fn start_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain parentheses.
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (!["Z", "X"].contains(fields.first()?)).then_some((*fields.get(19)?).to_owned())
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn child_named(parent: u32, name: &str) -> Option<u32> {
    let children = fs::read_dir(format!("/proc/{parent}/task"))
        .ok()?
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.into_iter().find(|pid| name_of(*pid) == name)
}

fn kill(pid: u32) {
    Command::new("kill").args(["-9", &pid.to_string()]).status().expect("a kill command");
}

//! The control groups of nodes: one group per cluster in each hierarchy, and one per node below it.
//!
//! The cluster's reaper removes them all.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

const ROOT: &str = "/sys/fs/cgroup";

pub(crate) struct Cgroups {
    /// As passed to the kubelet: relative to every hierarchy.
    root: String,
    folders: Vec<PathBuf>,
}

impl Cgroups {
    /// `cluster` is the name of the cluster's folder.
    pub(crate) fn create(cluster: &str, node: &str) -> anyhow::Result<Self> {
        let cluster = format!("nodekeeper-{cluster}");
        let mut folders = Vec::new();
        for hierarchy in hierarchies()? {
            let group = hierarchy.join(&cluster);
            prepare(&hierarchy, &group).with_context(|| format!("cannot make {}", group.display()))?;
            folders.push(group.join(node));
        }
        let cgroups = Self { root: format!("/{cluster}/{node}"), folders };
        cgroups.make()?;
        Ok(cgroups)
    }

    /// Creates the node's own groups, which [`Cgroups::remove`] removes.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        for folder in &self.folders {
            let parent = folder.parent().context("a group without a parent")?;
            prepare(parent, folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let system = self.system()?;
        fs::create_dir_all(&system).with_context(|| format!("cannot make {}", system.display()))
    }

    /// The parent of the kubelet's pod groups.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The group of the node's own processes. Once it can be removed, all of them have exited.
    pub(crate) fn system(&self) -> anyhow::Result<PathBuf> {
        Ok(self.folders.first().context("no control groups on this machine")?.join("system"))
    }

    /// Removes the groups, as a booting machine has none. Waits until the last process has exited.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        for folder in &self.folders {
            while let Err(error) = remove_tree(folder) {
                if Instant::now() > deadline {
                    bail!("cannot remove {}: {error}", folder.display());
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// Version 2 has one hierarchy, version 1 one per controller.
fn hierarchies() -> anyhow::Result<Vec<PathBuf>> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let mut hierarchies = Vec::new();
    for entry in fs::read_dir(root).context("no control groups on this machine")? {
        let entry = entry?;
        // Controllers that share a hierarchy are links to it.
        if entry.file_type()?.is_dir() {
            hierarchies.push(entry.path());
        }
    }
    hierarchies.sort();
    Ok(hierarchies)
}

/// Creates a group, if missing, that can contain groups and processes.
fn prepare(parent: &Path, group: &Path) -> io::Result<()> {
    fs::create_dir_all(group)?;
    if let Ok(controllers) = fs::read_to_string(parent.join("cgroup.controllers")) {
        let wanted: Vec<_> =
            controllers.split_whitespace().map(|controller| format!("+{controller}")).collect();
        for folder in [parent, group] {
            // Enables what is available; the kubelet reports missing controllers.
            for controller in &wanted {
                let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
            }
        }
    }
    // In version 1 a group without CPUs and memory nodes accepts no process.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(parent.join(file)) {
            fs::write(group.join(file), value.trim())?;
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

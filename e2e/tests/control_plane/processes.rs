//! Processes from `/proc`, independent of what the control plane records.

use std::{fs, path::Path, process::Command};

/// Processes that still run when the list is dropped are killed.
pub struct Processes(Vec<Process>);

#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    parent: u32,
    /// In ticks since boot: distinguishes a process from a later one with the same id.
    start: u64,
    zombie: bool,
}

impl Processes {
    pub fn children_of(parent: u32) -> Self {
        let pids = fs::read_dir("/proc")
            .expect("a Linux")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(pids.filter_map(Process::find).filter(|process| process.parent == parent).collect())
    }

    /// Processes whose working directory is in the folder.
    pub fn working_in(folder: &Path) -> Self {
        let mut all = Self::children_of(std::process::id());
        all.0.retain(|process| {
            fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|cwd| cwd == folder)
        });
        all
    }

    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.0.iter().map(|process| process.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    pub fn named(&self, name: &str) -> &Process {
        self.0.iter().find(|process| process.name == name).expect("one of that name")
    }

    pub fn alive(&self) -> Vec<&Process> {
        self.0.iter().filter(|process| process.is_alive()).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.alive().into_iter().for_each(Process::kill);
    }
}

impl Process {
    fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain parentheses.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split(' ').collect();
        Some(Self {
            pid,
            name: name.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
            zombie: fields[0] == "Z",
        })
    }

    fn is_alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|now| now.start == self.start && !now.zombie)
    }

    pub fn kill(&self) {
        Command::new("kill").args(["-9", &self.pid.to_string()]).status().expect("a kill command");
    }
}

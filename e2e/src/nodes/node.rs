//! One node, and what can be done to it. Everything here blocks, for two seconds at most unless it fails.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use super::{
    cgroups::Cgroups,
    network::{self, Namespace},
};
use crate::{
    assets::NodeAssets,
    control_plane::run::{Launcher, Process},
    image::Image,
    machine,
};

const INIT: &str = include_str!("init.sh");
const IMPORT: &str = include_str!("import.sh");
const PATIENCE: Duration = Duration::from_secs(20);

/// Before anything else looks at the packet, so that no translation of addresses hides where it goes. What comes in
/// from other nodes passes: they may use a DNS that runs here.
const NO_DNS: &str = r#"
table inet nodekeeper_no_dns {
    chain from_pods {
        type filter hook prerouting priority raw
        iifname != { "eth0", "lo" } meta l4proto { udp, tcp } th dport 53 drop
    }
    chain from_node {
        type filter hook output priority raw
        meta l4proto { udp, tcp } th dport 53 drop
    }
}
"#;
/// Before its address is translated: the way to the API server itself stays, so that the node is Ready all the while.
const NO_API: &str = r#"
table inet nodekeeper_no_api {
    chain from_pods {
        type filter hook prerouting priority raw
        iifname != { "eth0", "lo" } ip daddr API_SERVICE drop
    }
}
"#;
/// As where an overlay is broken: after addresses were translated, so that it does not matter by which of them somebody
/// was asked for, and in both directions, because answers take the same way.
const NO_OTHER_PODS: &str = r#"
table inet nodekeeper_no_other_pods {
    chain to_other_nodes {
        type filter hook forward priority filter
        iifname != "eth0" oifname "eth0" ip daddr PODS drop
    }
}
"#;

/// A machine of the cluster, as far as it knows.
pub struct Node {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) zone: String,
    pub(super) folder: PathBuf,
    /// Running while the node is on: the parent of its first process.
    pub(super) boot: Mutex<Option<Process>>,
    pub(super) namespace: Namespace,
    pub(super) cgroups: Cgroups,
    pub(super) launcher: Launcher,
    pub(super) programs: NodeAssets,
}

impl Node {
    /// As the API server calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address in the cluster's network.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its label `topology.kubernetes.io/zone`: nodes take turns with `zone-a`, `zone-b` and `zone-c`.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Runs a program of the machine in the node's network, and returns what it wrote. An error if it fails.
    pub fn exec_in(&self, words: &[&str]) -> anyhow::Result<String> {
        said(&words.join(" "), &self.namespace.exec(words)?)
    }

    /// From now on nothing that runs on this node gets an answer from a DNS, wherever that runs. Done to a node that is
    /// off, it holds when that boots; [`Node::power_off`] undoes it.
    pub fn break_dns(&self) -> anyhow::Result<()> {
        self.rule("no_dns", NO_DNS)
    }

    /// Undoes [`Node::break_dns`].
    pub fn heal_dns(&self) -> anyhow::Result<()> {
        self.rule("no_dns", "")
    }

    /// From now on no pod on this node gets an answer from the Service `default/kubernetes`. Other Services work, and
    /// the node itself does not notice: it knows the API server by another address.
    pub fn break_api_service(&self) -> anyhow::Result<()> {
        self.rule("no_api", &NO_API.replace("API_SERVICE", network::API_SERVICE))
    }

    /// Undoes [`Node::break_api_service`].
    pub fn heal_api_service(&self) -> anyhow::Result<()> {
        self.rule("no_api", "")
    }

    /// From now on no pod on this node can talk to a pod on another, by whatever address.
    pub fn break_pod_to_pod(&self) -> anyhow::Result<()> {
        self.rule("no_other_pods", &NO_OTHER_PODS.replace("PODS", network::PODS))
    }

    /// Undoes [`Node::break_pod_to_pod`].
    pub fn heal_pod_to_pod(&self) -> anyhow::Result<()> {
        self.rule("no_other_pods", "")
    }

    /// Tells the only process of a container to end, and gives it time. The number is that of its status, with
    /// `containerd://` before it.
    pub fn end_container(&self, id: &str) -> anyhow::Result<()> {
        let id = id.trim_start_matches("containerd://");
        self.run("ctr", &["ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", id])
    }

    /// Puts these rules in the place of what the table had.
    fn rule(&self, table: &str, rules: &str) -> anyhow::Result<()> {
        // To make one that is there already and then delete it never fails.
        let table = format!("table inet nodekeeper_{table}");
        self.namespace.feed(&["nft", "-f", "-"], &format!("{table}\ndelete {table}\n{rules}"))
    }

    /// Pulls the plug: everything on the node ends at once, without a word to anybody. Nothing happens if it is off.
    pub fn power_off(&self) -> anyhow::Result<()> {
        let mut boot = self.lock();
        let Some(process) = boot.as_mut() else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        // By the first process, and not by its parent: the kernel lets it go only after everything else on the node.
        while process.is_running()? {
            for child in children(process.id()) {
                Command::new("kill").args(["-KILL", &child.to_string()]).output()?;
            }
            ensure!(Instant::now() < deadline, "{} does not end", self.name);
            thread::sleep(Duration::from_millis(5));
        }
        *boot = None;
        drop(boot);
        // Its network outlives it, but a machine that is off has no rules.
        self.namespace.feed(&["nft", "-f", "-"], "flush ruleset\n")?;
        self.cgroups.remove()
    }

    /// Boots a node that is off: with a new boot id, the same disk, and no pods but those that it finds there or is
    /// told to run. An error if it is on.
    pub fn boot(&self) -> anyhow::Result<()> {
        let mut boot = self.lock();
        if let Some(process) = boot.as_mut() {
            ensure!(!process.is_running()?, "{} is on", self.name);
        }
        self.cgroups.make()?;
        *boot = Some(self.launcher.start(&self.name, &self.init()?, Stdio::null())?);
        Ok(())
    }

    /// An error, with the reason, if the node is off by itself.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.lock().as_mut().map(Process::is_running).transpose()? {
            Some(false) => bail!("{} went off:\n{}", self.name, self.launcher.log_tail(&self.name)),
            Some(true) | None => Ok(()),
        }
    }

    /// An image of that name is not what it was.
    pub(super) fn forget_image(&self, image: &Image) -> anyhow::Result<()> {
        let imported = self.folder.join("imported").join(image.file_name());
        if imported.exists() {
            fs::remove_file(imported)?;
        }
        Ok(())
    }

    /// Takes an image from the cluster's folder. A node that is off does so when it boots.
    pub(super) fn import_image(&self, image: &Image) -> anyhow::Result<()> {
        let words = ["sh", "-c", IMPORT, "import", &image.file_name(), image.name()];
        self.run(&format!("the import of {}", image.name()), &words)
    }

    /// Runs a program on the node, as its root. Nothing happens if it is off.
    fn run(&self, what: &str, words: &[&str]) -> anyhow::Result<()> {
        let Some(parent) = self.lock().as_ref().map(Process::id) else { return Ok(()) };
        let first = *children(parent).first().with_context(|| format!("{} is just going off", self.name))?;
        let output = machine::command("nsenter")
            .args(["--target", &first.to_string(), "--mount", "--net", "--pid", "--"])
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        said(&format!("{what} on {}", self.name), &output)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.boot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn init(&self) -> anyhow::Result<Vec<OsString>> {
        let cluster = self.launcher.folder();
        let variables: [(&str, OsString); 10] = [
            ("NAME", self.name.clone().into()),
            ("ADDRESS", self.address.clone().into()),
            ("ZONE", self.zone.clone().into()),
            ("PODS", network::PODS.into()),
            ("FOLDER", self.folder.clone().into()),
            ("IMAGES", cluster.join("images").into()),
            ("LOGS", cluster.join("log").into()),
            ("CGROUP", self.cgroups.system()?.into()),
            ("KUBELET", self.programs.kubelet.clone().into()),
            ("KUBE_PROXY", self.programs.kube_proxy.clone().into()),
        ];
        let mut words = self.namespace.prefix();
        words.push("env".into());
        words.extend(variables.into_iter().map(|(name, value)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        }));
        // If the parent is killed, so is the first process, and with it everything on the node.
        let unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"];
        words.extend(unshare.map(OsString::from));
        words.extend(["--propagation", "private", "sh", "-c", INIT, "init"].map(OsString::from));
        Ok(words)
    }
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn said(what: &str, output: &Output) -> anyhow::Result<String> {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{what} ended with {}:\n{out}{err}", output.status);
    Ok(out.into_owned())
}

//! A network per cluster: a namespace for the control plane with a bridge, and one per node. It does not touch the
//! machine's network, and disappears with its last process.

use std::{
    ffi::OsString,
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    control_plane::run::{Launcher, Process},
    machine,
};

/// The API server's address, equal in every cluster, because no two share a network.
pub(crate) const CONTROL_PLANE: &str = "10.99.0.1";
pub(crate) const API_PORT: u16 = 6443;
/// The address of the registry, where there is one.
pub(crate) const REGISTRY: &str = "10.99.0.1:5000";
/// The address of the Service `default/kubernetes`: the first of the Service range.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
/// The pod range. Each node has a part of it.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// The limit of the address scheme.
pub(crate) const MOST_NODES: usize = 200;

/// The address of the node with this number, counted from 1.
pub(crate) fn node_address(number: usize) -> String {
    format!("10.99.0.{}", 10 + number)
}

/// The pod range of the node with this number.
pub(crate) fn node_pods(number: usize) -> String {
    format!("10.244.{number}.0/24")
}

/// A network namespace, kept alive by an idle process.
pub(crate) struct Namespace {
    holder: Process,
}

impl Namespace {
    /// A new namespace in which only loopback is up.
    pub(crate) fn create(launcher: &Launcher, name: &str) -> anyhow::Result<Self> {
        let words = ["unshare", "--net", "sleep", "infinity"].map(OsString::from);
        let holder = launcher.start(&format!("{name}-network"), &words, Stdio::null())?;
        let mut namespace = Self { holder };
        namespace.wait_until_separate().with_context(|| format!("no network namespace for {name}"))?;
        namespace.ip(&["link set lo up".into()])?;
        let forward = ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"];
        let output = namespace.exec(&forward)?;
        ensure!(output.status.success(), "cannot forward packets in {name}: {output:?}");
        Ok(namespace)
    }

    /// The process starts in the machine's network, which must not be changed: waits until it has its own.
    fn wait_until_separate(&mut self) -> anyhow::Result<()> {
        let ours = fs::read_link("/proc/self/ns/net")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_link(self.path()).map_or(true, |its| its == ours) {
            ensure!(self.holder.is_running()?, "unshare failed");
            if Instant::now() > deadline {
                bail!("unshare did not make one");
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The id of the process that keeps the namespace alive.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder()).into()
    }

    /// The command prefix that runs a program in this namespace.
    pub(crate) fn prefix(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net={}", self.path().display()).into(), "--".into()]
    }

    /// Runs a command in this namespace and waits for it.
    pub(crate) fn exec(&self, words: &[&str]) -> anyhow::Result<Output> {
        Ok(machine::command("nsenter").args(&self.prefix()[1..]).args(words).stdin(Stdio::null()).output()?)
    }

    /// Runs these `ip` commands in this namespace.
    fn ip(&self, commands: &[String]) -> anyhow::Result<()> {
        self.feed(&["ip", "-batch", "-"], &commands.join("\n"))
    }

    /// Runs a command in this namespace with `input` as its stdin.
    pub(crate) fn feed(&self, words: &[&str], input: &str) -> anyhow::Result<()> {
        let mut child = machine::command("nsenter")
            .args(&self.prefix()[1..])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {said}\ninput:\n{input}", words.join(" "));
        Ok(())
    }
}

/// Gives the control plane's namespace its address, on a bridge for nodes.
pub(crate) fn build_control_plane(namespace: &Namespace) -> anyhow::Result<()> {
    namespace.ip(&[
        "link add nodes type bridge".into(),
        format!("address add {CONTROL_PLANE}/24 dev nodes"),
        "link set nodes up".into(),
    ])
}

/// Connects node `number` of `count` to the control plane, and its pods to all other pods.
pub(crate) fn connect(
    control_plane: &Namespace,
    node: &Namespace,
    number: usize,
    count: usize,
) -> anyhow::Result<()> {
    let (address, pods) = (node_address(number), node_pods(number));
    control_plane.ip(&[
        format!("link add node{number} type veth peer name eth0 netns {}", node.holder()),
        format!("link set node{number} master nodes up"),
        format!("route add {pods} via {address}"),
    ])?;
    let others = (1..=count).filter(|other| *other != number);
    let mut commands = vec![
        format!("address add {address}/24 dev eth0"),
        "link set eth0 up".into(),
        format!("route add default via {CONTROL_PLANE}"),
    ];
    commands
        .extend(others.map(|other| format!("route add {} via {}", node_pods(other), node_address(other))));
    node.ip(&commands)
}

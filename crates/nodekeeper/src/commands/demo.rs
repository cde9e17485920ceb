//! `nodekeeper demo`: the embedded cluster at work, told line by line.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec, Shell};
use nodekeeper_sim::actors::{self, Timing};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::object::{condition_status, items, name, text};
use nodekeeper_sim::{Cluster, Options, bind};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::args::Demo;

/// No single thing in the demo takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the demo to its end, or until it is told to stop.
pub fn run(demo: &Demo) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            told = Story::tell(demo) => return told,
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        print("\nstopped");
        Ok(())
    })
}

/// Prints a line. Nobody listening any more (`| head`) is no reason to fail.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

struct Story {
    somebody: Local,
    kubelets: Kubelets,
    start: Instant,
    colours: bool,
}

impl Story {
    async fn tell(demo: &Demo) -> Result<()> {
        let cluster = Cluster::new(Options::real(1));
        // More impatient than a real controller manager, so that nobody has to wait a minute for a dead machine.
        let timing = Timing {
            node_monitor_period: Duration::from_secs(1),
            node_monitor_grace: Duration::from_secs(12),
            ..Timing::default()
        };
        let _actors = actors::start(&cluster, timing);
        let bound = bind::bind(&cluster, demo.listen).await?;
        let kubeconfig = Kubeconfig::write(demo.kubeconfig.clone(), &bound.kubeconfig)?;
        let story = Self {
            somebody: cluster.local("demo"),
            kubelets: Kubelets::start(&cluster, 1, Arc::new(Shell)),
            start: Instant::now(),
            colours: std::io::stdout().is_terminal(),
        };
        print(
            "The embedded cluster of Nodekeeper: API server, scheduler, kubelets and controllers, all in this process.",
        );
        print(&format!("It listens on https://{}\n", bound.address));
        story.machines_join().await?;
        story.a_pod_waits_for_a_taint().await?;
        story.a_pod_runs_to_its_end().await?;
        story.a_machine_loses_its_power().await?;
        story.table();
        print(&format!(
            "\nAll of it ended as it should, after {:.0} s.",
            story.start.elapsed().as_secs_f64()
        ));
        if demo.keep {
            let path = kubeconfig.path().display();
            print("\nThe cluster stays up until ctrl-c. In another terminal:");
            for command in [
                "get nodes",
                "describe node node-2",
                "get pods -A -w",
                "taint node node-1 demo=yes:NoSchedule",
            ] {
                print(&format!("  kubectl --kubeconfig {path} {command}"));
            }
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn machines_join(&self) -> Result<()> {
        for (i, zone) in ["a", "b", "c"].iter().enumerate() {
            let spec =
                NodeSpec { name: format!("node-{}", i + 1), zone: (*zone).into(), ..NodeSpec::default() };
            self.kubelets.join(spec);
        }
        for node in ["node-1", "node-2", "node-3"] {
            self.until(&format!("{node} is Ready"), || self.is_ready(node)).await?;
        }
        Ok(())
    }

    async fn a_pod_waits_for_a_taint(&self) -> Result<()> {
        let taint = json!({"key": "node-ready/unverified", "value": "true", "effect": "NoSchedule"});
        let spec =
            NodeSpec { name: "node-4".into(), zone: "a".into(), taints: vec![taint], ..NodeSpec::default() };
        self.kubelets.join(spec);
        self.until("node-4 is Ready, and tainted node-ready/unverified", || self.is_ready("node-4")).await?;
        self.run_pod("web", "node-4", &["serve"])?;
        let scheduled = || self.pod("web").is_some_and(|p| condition_status(&p, "PodScheduled") == "False");
        self.until("pod web does not tolerate the taint and waits", scheduled).await?;
        let node = self.somebody.get("nodes", "", "node-4").context("node-4 is gone")?;
        self.somebody.change(&node, None, |node| {
            let kept: Vec<Value> = items(node, "spec.taints")
                .iter()
                .filter(|t| text(t, "key") != "node-ready/unverified")
                .cloned()
                .collect();
            node["spec"]["taints"] = json!(kept);
        })?;
        self.until("the taint is removed, and pod web runs on node-4", || self.phase("web") == "Running")
            .await
    }

    async fn a_pod_runs_to_its_end(&self) -> Result<()> {
        self.run_pod("probe", "node-1", &["exit", "1", "dns: no answer from 10.96.0.10 within 5s"])?;
        self.until("pod probe fails on node-1 and leaves a message", || self.phase("probe") == "Failed")
            .await?;
        let pod = self.pod("probe").context("pod probe is gone")?;
        let message = items(&pod, "status.containerStatuses")
            .first()
            .map_or("", |c| text(c, "state.terminated.message"));
        self.say("", &format!("its termination message: {message:?}"));
        Ok(())
    }

    async fn a_machine_loses_its_power(&self) -> Result<()> {
        let boot = |node: Arc<Value>| text(&node, "status.nodeInfo.bootID").to_owned();
        let before = self.somebody.get("nodes", "", "node-2").map(boot);
        self.run_pod("db", "node-2", &["serve"])?;
        self.until("pod db runs on node-2", || self.phase("db") == "Running").await?;
        self.kubelets.power_off("node-2");
        self.say("!", "node-2 loses its power; its lease is no longer renewed");
        let unreachable = || {
            let node = self.somebody.get("nodes", "", "node-2");
            node.is_some_and(|n| items(&n, "spec.taints").iter().any(|t| text(t, "effect") == "NoExecute"))
        };
        self.until("node-2 is declared unreachable and tainted", unreachable).await?;
        self.kubelets.power_on("node-2");
        self.until("node-2 is back and Ready", || self.is_ready("node-2")).await?;
        let after = self.somebody.get("nodes", "", "node-2").map(boot);
        if before == after {
            bail!("node-2 came back under the same boot id {before:?}");
        }
        self.say("", "under a new boot id: a verdict of the boot before would not count");
        Ok(())
    }

    fn run_pod(&self, pod: &str, node: &str, command: &[&str]) -> Result<()> {
        let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}});
        let container = json!({"name": "main", "image": "example.com/demo:1", "command": command});
        let body = json!({"metadata": {"name": pod},
            "spec": {"restartPolicy": "Never", "affinity": affinity, "containers": [container]}});
        self.somebody.create("v1", "Pod", "default", body)?;
        Ok(())
    }

    fn pod(&self, name: &str) -> Option<Arc<Value>> {
        self.somebody.get("pods", "default", name)
    }

    fn phase(&self, pod: &str) -> String {
        self.pod(pod).map(|p| text(&p, "status.phase").to_owned()).unwrap_or_default()
    }

    fn is_ready(&self, node: &str) -> bool {
        self.somebody.get("nodes", "", node).is_some_and(|n| condition_status(&n, "Ready") == "True")
    }

    /// Waits for something to come true and tells it.
    async fn until(&self, what: &str, so: impl Fn() -> bool) -> Result<()> {
        let mut changes = self.somebody.follow(&["nodes", "pods"]);
        let end = Instant::now() + PATIENCE;
        while !so() {
            if tokio::time::timeout_at(end, changes.next()).await.is_err() {
                self.say("x", &format!("{what}: not after {} s", PATIENCE.as_secs()));
                bail!("the demo did not end as it should: {what}");
            }
        }
        self.say("+", what);
        sleep(Duration::from_millis(150)).await;
        Ok(())
    }

    fn say(&self, mark: &str, what: &str) {
        let colour = match mark {
            _ if !self.colours => "",
            "+" => "\x1b[32m",
            "!" => "\x1b[33m",
            "x" => "\x1b[31m",
            _ => "",
        };
        let end = if colour.is_empty() { "" } else { "\x1b[0m" };
        print(&format!("{:>6.1}s {colour}{mark:1}{end} {what}", self.start.elapsed().as_secs_f64()));
    }

    fn table(&self) {
        print(&format!("\n{:<8} {:<6} {:<5} {:<34} PODS", "NODE", "READY", "ZONE", "TAINTS"));
        let pods = self.somebody.all("pods");
        for node in self.somebody.all("nodes") {
            let taints: Vec<&str> = items(&node, "spec.taints").iter().map(|t| text(t, "key")).collect();
            let taints = if taints.is_empty() { "-".into() } else { taints.join(",") };
            let here = pods.iter().filter(|p| text(p, "spec.nodeName") == name(&node));
            let here: Vec<String> =
                here.map(|p| format!("{} ({})", name(p), text(p, "status.phase"))).collect();
            let zone = node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().unwrap_or("-");
            let ready = condition_status(&node, "Ready");
            print(&format!("{:<8} {ready:<6} {zone:<5} {taints:<34} {}", name(&node), here.join(", ")));
        }
    }
}

/// The kubeconfig file: temporary unless a place was named.
enum Kubeconfig {
    Temporary(tempfile::NamedTempFile),
    Named(PathBuf),
}

impl Kubeconfig {
    fn write(place: Option<PathBuf>, text: &str) -> Result<Self> {
        let Some(path) = place else {
            let file =
                tempfile::Builder::new().prefix("nodekeeper-demo-").suffix(".kubeconfig").tempfile()?;
            fs::write(file.path(), text)?;
            return Ok(Self::Temporary(file));
        };
        // Only for its owner: there is a token in it.
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("--kubeconfig {}: cannot write the file", path.display()))?;
        Ok(Self::Named(path))
    }

    fn path(&self) -> &std::path::Path {
        match self {
            Self::Temporary(file) => file.path(),
            Self::Named(path) => path,
        }
    }
}

//! Third-party clients against the embedded cluster: kubectl, client-go informers, and the Python client.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nodekeeper_e2e::assets::{Assets, Settings};
use nodekeeper_e2e::or_skip;
use nodekeeper_sim::actors::kubelet::{FakeRuntime, Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::bind::{Bound, bind};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::object::{condition_status, items};
use nodekeeper_sim::{Cluster, Options};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The tested version.
const PYTHON_CLIENT: &str = "kubernetes==37.0.2";
/// The timeout of a client.
const PATIENCE: Duration = Duration::from_mins(2);
/// The timeout of the first download.
const DOWNLOAD: Duration = Duration::from_mins(10);

/// The embedded cluster on a port, with one node.
struct Stage {
    _bound: Bound,
    _actors: Actors,
    _kubelets: Kubelets,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Result<Self> {
        let cluster = Cluster::new(Options::real(1));
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, 1, Arc::new(FakeRuntime));
        kubelets.join(NodeSpec { name: "n1".into(), zone: "a".into(), ..NodeSpec::default() });
        settled(&cluster.local("test")).await?;
        let bound = bind(&cluster, "127.0.0.1:0".parse()?).await?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("kubeconfig"), &bound.kubeconfig)?;
        Ok(Self { _bound: bound, _actors: actors, _kubelets: kubelets, folder })
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
}

/// Waits until the node is Ready and the node lifecycle controller has removed its taints, so that no component
/// writes.
async fn settled(api: &Local) -> Result<()> {
    let is_so = || {
        let node = api.get("nodes", "", "n1");
        node.is_some_and(|n| condition_status(&n, "Ready") == "True" && items(&n, "spec.taints").is_empty())
    };
    let mut changes = api.watch(&["nodes"]);
    let wait = async {
        while !is_so() {
            changes.next().await;
        }
    };
    timeout(PATIENCE, wait).await.context("n1 was never Ready without taints")
}

/// Runs a command and returns its output, which is also part of the error.
async fn run(command: Command) -> Result<String> {
    run_for(command, PATIENCE).await
}

/// Like `run`, with another timeout, after which the command is killed.
async fn run_for(mut command: Command, patience: Duration) -> Result<String> {
    let shown = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let id = child.id();
    let waited = timeout(patience, spawn_blocking(move || child.wait_with_output())).await;
    let Ok(output) = waited else {
        // The child was not waited for, so the process id is still its own.
        Command::new("kill").args(["-9", &id.to_string()]).status()?;
        bail!("{shown} did not end within {patience:?}");
    };
    let output = output??;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{shown} ended with {}: {text}", output.status);
    Ok(text)
}

struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs `kubectl WORDS` and checks that the output contains all of `wanted`.
    async fn says(&self, words: &str, wanted: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.binary);
        command.env("KUBECONFIG", &self.kubeconfig).args(words.split_whitespace());
        let text = run(command).await?;
        for wanted in wanted {
            ensure!(text.contains(wanted), "kubectl {words}: no {wanted:?} in:\n{text}");
        }
        println!("$ kubectl {words}\n{text}");
        Ok(text)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_commands_work() -> Result<()> {
    let assets =
        spawn_blocking(|| Assets::ensure(&Settings::from_env()?).map_err(anyhow::Error::from)).await?;
    let Some(assets) = or_skip(assets)? else { return Ok(()) };
    let stage = Stage::new().await?;
    let kubectl = Kubectl { binary: assets.path("kubectl"), kubeconfig: stage.kubeconfig() };
    let file = |name: &str, text: &str| -> Result<String> {
        let path = stage.folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };

    kubectl.says("wait --for=condition=Ready node/n1 --timeout=30s", &["condition met"]).await?;
    kubectl.says("version", &["Server Version: v1.36.4"]).await?;
    kubectl.says("api-resources", &["leases", "priorityclasses", "customresourcedefinitions"]).await?;
    kubectl.says("get nodes", &["NAME", "STATUS", "n1     Ready    <none>", "v1.36.4"]).await?;
    kubectl
        .says(
            "describe node n1",
            &["Ready            True", "HolderIdentity:  n1", "Boot ID:", "cpu:                4"],
        )
        .await?;
    kubectl.says("label node n1 team=blue", &["labeled"]).await?;
    kubectl.says("annotate node n1 example.com/note=x", &["annotated"]).await?;
    kubectl.says("get nodes -l team=blue -o name", &["node/n1"]).await?;
    kubectl.says("taint node n1 gate=shut:NoSchedule", &["tainted"]).await?;
    kubectl.says("taint node n1 gate-", &["untainted"]).await?;
    kubectl.says("cordon n1", &["cordoned"]).await?;
    kubectl.says("get node n1", &["SchedulingDisabled"]).await?;
    kubectl.says("uncordon n1", &["uncordoned"]).await?;

    let map = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{a: '{value}'}}\n")
    };
    let first = file("first.yaml", &map("1"))?;
    let second = file("second.yaml", &map("2"))?;
    kubectl.says(&format!("apply --validate=false -f {first}"), &["configmap/m created"]).await?;
    kubectl.says(&format!("apply --validate=false -f {second}"), &["configmap/m configured"]).await?;
    kubectl.says(&format!("apply --validate=false -f {second}"), &["configmap/m unchanged"]).await?;
    kubectl.says("get configmap m -o jsonpath={.data.a}", &["2"]).await?;
    kubectl.says("patch configmap m --type=merge -p {\"data\":{\"b\":\"3\"}}", &["patched"]).await?;

    kubectl.says("run p --image=x:1 --restart=Never -- exit 7 because", &["pod/p created"]).await?;
    kubectl
        .says("wait --for=jsonpath={.status.phase}=Failed pod/p --timeout=30s", &["condition met"])
        .await?;
    kubectl.says("get pods -A", &["default     p      0/1     Error"]).await?;
    kubectl
        .says("describe pod p", &["Exit Code:    7", "Message:      because", "Node:             n1/"])
        .await?;
    kubectl.says("delete pod p", &["deleted"]).await?;
    kubectl.says("run q --image=x:1 --restart=Never -- serve", &["pod/q created"]).await?;
    kubectl.says("wait --for=condition=Ready pod/q --timeout=30s", &["condition met"]).await?;
    kubectl.says("delete pod q", &["deleted"]).await?;
    kubectl.says("get lease -n kube-node-lease", &["n1"]).await?;
    kubectl.says("delete configmap m", &["deleted"]).await?;
    let missing = kubectl.says("get configmap m", &[]).await.map_err(|e| e.to_string());
    ensure!(missing.as_ref().is_err_and(|e| e.contains("Error from server (NotFound)")), "{missing:?}");

    watch_with(&kubectl).await?;
    kubectl.says("delete node n1", &["deleted"]).await?;
    kubectl.says("get nodes", &["No resources found"]).await.map(drop)
}

/// `kubectl get -w` shows a change made while it watches.
async fn watch_with(kubectl: &Kubectl) -> Result<()> {
    let mut command = Command::new(&kubectl.binary);
    command.env("KUBECONFIG", &kubectl.kubeconfig).args(["get", "nodes", "-w", "-L", "seen"]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = watching.stdout.take().context("its output is piped")?;
    let (lines, mut inbox) = tokio::sync::mpsc::unbounded_channel();
    let reader = spawn_blocking(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(output)).map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let seen = async {
        let first = inbox.recv().await.context("nothing was shown")?;
        ensure!(first.starts_with("NAME"), "{first}");
        inbox.recv().await.context("no node was shown")?;
        kubectl.says("label node n1 seen=live", &["labeled"]).await?;
        loop {
            let line = inbox.recv().await.context("the watch ended")?;
            if line.contains("live") {
                return Ok(());
            }
        }
    };
    let seen = timeout(PATIENCE, seen).await.context("the change was never shown").and_then(|seen| seen);
    watching.kill()?;
    watching.wait()?;
    reader.await?;
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_informers_sync_and_watch() -> Result<()> {
    if Command::new("go").arg("version").output().is_err() {
        return missing("client-go", "install Go 1.26 or newer");
    }
    let stage = Stage::new().await?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/third_party_clients/informer");
    let binary = stage.folder.path().join("informer");
    let mut build = Command::new("go");
    build.current_dir(&source).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly -buildvcs=false");
    build.args(["build", "-trimpath", "-o"]).arg(&binary).arg(".");
    // The first run downloads and compiles client-go.
    run_for(build, DOWNLOAD).await?;
    let mut informer = Command::new(binary);
    informer.arg(stage.kubeconfig());
    let text = run(informer).await?;
    for wanted in ["synced with 1 nodes", "added client", "updated client yes", "deleted client", "done"] {
        ensure!(text.contains(wanted), "no {wanted:?} in:\n{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_reads_writes_and_watches() -> Result<()> {
    let python = match python_client().await {
        Ok(python) => python,
        Err(error) => {
            return missing(
                "the Python client",
                &format!("needs python3 with venv, and PyPI once: {error:#}"),
            );
        }
    };
    let stage = Stage::new().await?;
    let mut script = Command::new(python);
    script
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/third_party_clients/client.py"))
        .arg(stage.kubeconfig());
    let text = run(script).await?;
    ensure!(text.trim_end().ends_with("done"), "{text}");
    Ok(())
}

/// A Python virtual environment with the client, created once in the cache.
async fn python_client() -> Result<PathBuf> {
    let folder = Settings::from_env()?.cache.join("python");
    let environment = folder.join(PYTHON_CLIENT);
    std::fs::create_dir_all(&folder)?;
    let lock = std::fs::File::create(folder.join("lock"))?;
    let _held = spawn_blocking(move || lock.lock().map(|()| lock)).await??;
    let python = environment.join("bin/python");
    if !environment.join("complete").exists() {
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--clear"]).arg(&environment);
        run(make).await?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", PYTHON_CLIENT]);
        run_for(install, DOWNLOAD).await?;
        std::fs::write(environment.join("complete"), "")?;
    }
    Ok(python)
}

/// Reports a skipped client; an error where skips are not allowed.
fn missing(what: &str, fix: &str) -> Result<()> {
    ensure!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{what} cannot run here, and CI=true: {fix}"
    );
    eprintln!("SKIPPED: {what} cannot run here: {fix}");
    Ok(())
}

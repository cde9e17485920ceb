//! A cluster leaves no processes and files behind, however it ends.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::Context as _;
use nodekeeper_e2e::{
    Cluster,
    assets::{Assets, Settings},
    control_plane::Options,
    or_skip,
};

use super::{eventually, processes::Processes};

/// The kernel truncates names after 15 characters.
const COMPONENTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller", "kube-scheduler"];

#[tokio::test]
async fn nothing_is_left_after_stop() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::control_plane().await)? else { return Ok(()) };
    let folder = cluster.folder().to_owned();
    let components = Processes::working_in(&folder);
    assert_eq!(components.names(), COMPONENTS);
    cluster.stop();
    assert_gone(&components, &folder);
    Ok(())
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::control_plane().await)? else { return Ok(()) };
    let folder = cluster.folder().to_owned();
    let components = Processes::working_in(&folder);
    assert_eq!(components.names(), COMPONENTS);
    let test = tokio::spawn(async move {
        let _cluster = cluster;
        panic!("as a failing test does");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert_gone(&components, &folder);
    Ok(())
}

#[tokio::test]
async fn nothing_is_left_after_kill_9_of_its_owner() -> anyhow::Result<()> {
    let Some(settings) = or_skip(settings_with_binaries())? else { return Ok(()) };
    let mut held = Held::start(&settings)?;
    let children = Processes::children_of(held.owner.id());
    assert_eq!(children.names(), [&COMPONENTS[..], &["sh"]].concat());

    assert_eq!(held.kill_owner().signal(), Some(9));
    eventually("the reaper", async || Ok(children.alive().is_empty() && !held.folder.exists())).await
}

#[tokio::test]
async fn the_next_start_removes_what_the_reaper_left() -> anyhow::Result<()> {
    let Some(mut settings) = or_skip(settings_with_binaries())? else { return Ok(()) };
    // A separate cache, so that no other test's start cleans up.
    let cache = tempfile::tempdir()?;
    settings.cache = cache.path().to_owned();

    let mut held = Held::start(&settings)?;
    let children = Processes::children_of(held.owner.id());
    children.named("sh").kill();
    eventually("the reaper to die", async || Ok(children.alive().len() == COMPONENTS.len())).await?;
    assert_eq!(held.kill_owner().signal(), Some(9));
    assert_eq!(children.alive().len(), COMPONENTS.len(), "components exited early");
    assert!(held.folder.exists());

    let next = Cluster::start(Options::new(settings)).await?;
    assert_gone(&children, &held.folder);
    assert!(next.client()?.apiserver_version().await.is_ok());
    Ok(())
}

fn assert_gone(processes: &Processes, folder: &Path) {
    assert!(processes.alive().is_empty(), "still running: {:?}", processes.alive());
    assert!(!folder.exists(), "still there: {}", folder.display());
}

fn settings_with_binaries() -> anyhow::Result<Settings> {
    let mut settings = Settings::from_env()?;
    settings.prebuilt = Some(Assets::ensure(&settings)?.folder().to_owned());
    Ok(settings)
}

/// A cluster owned by another process.
struct Held {
    owner: Child,
    folder: PathBuf,
    /// Kept open; otherwise the owner would fail to write and exit in an orderly way.
    _output: BufReader<ChildStdout>,
}

impl Held {
    fn start(settings: &Settings) -> anyhow::Result<Self> {
        let mut owner = Command::new(env!("CARGO_BIN_EXE_kubernetes"))
            .env("NODEKEEPER_CACHE", &settings.cache)
            .envs(settings.prebuilt.iter().map(|folder| ("KUBEBUILDER_ASSETS", folder)))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(owner.stdout.take().context("no stdout")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let kubeconfig =
            line.trim().strip_prefix("export KUBECONFIG=").context("it ended before it was ready")?;
        let folder = Path::new(kubeconfig).parent().context("a kubeconfig without a folder")?.to_owned();
        Ok(Self { owner, folder, _output: output })
    }

    fn kill_owner(&mut self) -> ExitStatus {
        self.owner.kill().expect("the owner is a child");
        self.owner.wait().expect("the owner is a child")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.kill_owner();
    }
}

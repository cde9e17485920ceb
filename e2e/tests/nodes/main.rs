//! Tests of real nodes that other tiers rely on: they run pods, resolve names, fail and reboot.
//!
//! Most tests share a cluster and use it one after the other.

mod pods;
mod teardown;

use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::ListParams};
use nodekeeper_e2e::{
    Cluster,
    control_plane::Options,
    image::Image,
    nodes::{NodeOptions, TOOL_IMAGE},
    or_skip,
    scenario::eventually,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use self::pods::Runner;

const TAINT: &str = "node-ready/unverified";
const NODES: usize = 2;

type Shared = MutexGuard<'static, Cluster>;

async fn shared() -> anyhow::Result<Option<Shared>> {
    static SHARED: OnceCell<Mutex<Cluster>> = OnceCell::const_new();
    let start = async || {
        let nodes = NodeOptions::new(NODES).tainted(TAINT);
        anyhow::Ok(Mutex::new(Cluster::start(Options::from_env()?.with_nodes(nodes)).await?))
    };
    let Some(cluster) = or_skip(SHARED.get_or_try_init(start).await)? else { return Ok(None) };
    Ok(Some(cluster.lock().await))
}

#[tokio::test]
async fn nodes_register_with_their_taint_and_are_ready() -> anyhow::Result<()> {
    let Some(cluster) = shared().await? else { return Ok(()) };
    let api: Api<Node> = Api::all(cluster.client()?);
    // The not-ready taint is removed a moment after the node is Ready.
    eventually("the nodes to have their taint and no other", async || {
        let nodes = api.list(&ListParams::default()).await?.items;
        Ok(nodes.iter().all(|node| taints_of(node) == [TAINT]))
    })
    .await?;
    let nodes = api.list(&ListParams::default()).await?.items;
    let version = cluster.client()?.apiserver_version().await?.git_version;
    assert_eq!(nodes.len(), NODES);
    for (node, ours) in nodes.iter().zip(cluster.nodes()) {
        assert_eq!(node.metadata.name.as_deref(), Some(ours.name()));
        let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get("topology.kubernetes.io/zone"));
        assert_eq!(zone.map(String::as_str), Some(ours.zone()));
        let info = &node.status.as_ref().and_then(|status| status.node_info.as_ref()).context("no info")?;
        assert_eq!(info.kubelet_version, version);
    }
    let boots: Vec<_> = nodes.iter().map(boot_id).collect();
    assert_ne!(boots[0], boots[1], "two machines with one boot");
    Ok(())
}

#[tokio::test]
async fn exit_code_and_message_of_a_pod_are_reported() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::with_nodes(1).await)? else { return Ok(()) };
    let runner = Runner::new(&cluster)?;
    let pod = runner.start("says", "node-1", TOOL_IMAGE, &["exit", "42", "the", "reason"]).await?;
    let end = runner.end_of(&pod).await?;
    assert_eq!((end.code, end.message.as_str()), (42, "the reason"));
    // Through the API server, which asks the kubelet.
    assert_eq!(cluster.run_kubectl(&["logs", &pod])?, "the reason\n");
    runner.remove(&pod).await
}

#[tokio::test]
async fn a_command_runs_in_a_running_pod() -> anyhow::Result<()> {
    let Some(cluster) = shared().await? else { return Ok(()) };
    let runner = Runner::new(&cluster)?;
    let pod = runner.start("runs", "node-2", TOOL_IMAGE, &["pause"]).await?;
    eventually("the pod to run", async || Ok(runner.phase_of(&pod).await? == "Running")).await?;
    let said = cluster.run_kubectl(&["exec", &pod, "--", "/testtool", "exit", "0", "from", "inside"])?;
    assert_eq!(said, "from inside\n");
    runner.remove(&pod).await
}

#[tokio::test]
async fn a_dynamic_image_can_be_added_later() -> anyhow::Result<()> {
    let Some(cluster) = shared().await? else { return Ok(()) };
    cluster.add_image(&Image::new("nodekeeper.local/echo:test", Path::new("/bin/echo"), "/echo"))?;
    let runner = Runner::new(&cluster)?;
    for node in cluster.nodes() {
        let pod = runner.start("echo", node.name(), "nodekeeper.local/echo:test", &["it", "works"]).await?;
        assert_eq!(runner.end_of(&pod).await?.code, 0);
        assert_eq!(cluster.run_kubectl(&["logs", &pod])?, "it works\n");
        runner.remove(&pod).await?;
    }
    Ok(())
}

#[tokio::test]
async fn dns_can_be_broken_and_fixed_on_one_node() -> anyhow::Result<()> {
    let Some(cluster) = shared().await? else { return Ok(()) };
    let runner = Runner::new(&cluster)?;
    let resolves = async |node: &str| runner.resolves("kubernetes.default", "10.96.0.1", node).await;
    for node in cluster.nodes() {
        // A kube-proxy may see the DNS Service a moment later.
        eventually("DNS", async || resolves(node.name()).await).await?;
    }
    // One of the two nodes runs the DNS pod.
    for (broken, whole) in [(0, 1), (1, 0)].map(|(one, other)| (cluster.node(one), cluster.node(other))) {
        broken.break_dns()?;
        let answers = tokio::try_join!(resolves(broken.name()), resolves(whole.name()));
        broken.heal_dns()?;
        assert_eq!(answers?, (false, true), "{} was broken, {} was not", broken.name(), whole.name());
        assert!(resolves(broken.name()).await?, "{} did not heal", broken.name());
    }
    Ok(())
}

#[tokio::test]
async fn a_switched_off_node_is_noticed_and_reboots() -> anyhow::Result<()> {
    let Some(cluster) = shared().await? else { return Ok(()) };
    let nodes: Api<Node> = Api::all(cluster.client()?);
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, "kube-system");
    let dns = pods.list(&ListParams::default().labels("k8s-app=kube-dns")).await?.items;
    let dns_node = dns.iter().find_map(|pod| pod.spec.as_ref()?.node_name.as_deref());
    let node = cluster.nodes().iter().find(|node| Some(node.name()) != dns_node).context("no other node")?;
    let before = boot_id(&nodes.get(node.name()).await?);

    node.break_dns()?;
    node.power_off()?;
    node.power_off().context("to switch off what is off")?;
    assert_eq!(node.exec_in(&["nft", "list", "ruleset"])?, "");
    eventually("it to be missed", async || Ok(!is_ready(&nodes.get(node.name()).await?))).await?;
    node.boot()?;
    assert!(node.boot().is_err(), "it booted twice");
    eventually("a new boot", async || {
        let now = nodes.get(node.name()).await?;
        Ok(is_ready(&now) && boot_id(&now) != before)
    })
    .await?;
    cluster.wait_ready(NODES).await?;

    let runner = Runner::new(&cluster)?;
    eventually("DNS after the boot", async || {
        runner.resolves("kubernetes.default", "10.96.0.1", node.name()).await
    })
    .await
}

fn taints_of(node: &Node) -> Vec<&str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().map(|taint| taint.key.as_str()).collect()
}

fn boot_id(node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

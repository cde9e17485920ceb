//! Real nodes: containerd, kubelet and kube-proxy, each set in its own namespaces, isolated from each other and from
//! the machine.

mod cgroups;
mod dns;
mod files;
pub(crate) mod network;
mod node;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube::Client;

pub use self::node::Node;
use self::{
    cgroups::Cgroups,
    files::Facts,
    network::{API_PORT, CONTROL_PLANE, MOST_NODES, Namespace},
};
use crate::{
    assets::NodeAssets,
    control_plane::run::{Launcher, Process},
    image::Image,
    kubeconfig::kubeconfig,
    pki::Authority,
};

/// An image with `testtool`, whose modes cover what test pods do; see `e2e/kubernetes/testtool`.
pub const TOOL_IMAGE: &str = "nodekeeper.local/testtool:test";

/// Must equal the image in containerd's configuration: containerd would try to pull any other.
const PAUSE_IMAGE: &str = "nodekeeper.local/pause:test";
const DNS_IMAGE: &str = "nodekeeper.local/coredns:test";
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
/// In the Service range.
const DNS_ADDRESS: &str = "10.96.0.10";

#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The number of nodes, named `node-1` and so on.
    pub count: usize,
    /// Taints with which the kubelets register.
    pub taints: Vec<Taint>,
    pub dns: Option<Dns>,
    /// Additional images.
    pub images: Vec<Image>,
    /// Whether nodes can pull the images.
    pub registry: bool,
}

impl NodeOptions {
    /// `count` nodes without taints, with DNS, and with no image but [`TOOL_IMAGE`].
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count, taints: Vec::new(), dns: Some(Dns::default()), images: Vec::new(), registry: false }
    }

    /// Adds a taint with which nodes register, such as `node-ready/unverified`, with the value `true` and the effect
    /// `NoSchedule`. The DNS pods tolerate it.
    #[must_use]
    pub fn tainted(mut self, key: &str) -> Self {
        let (value, effect) = (Some("true".into()), "NoSchedule".into());
        self.taints.push(Taint { key: key.into(), value, effect, time_added: None });
        if let Some(dns) = &mut self.dns {
            let toleration = Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                ..Toleration::default()
            };
            dns.tolerations.push(toleration);
        }
        self
    }

    /// Serves the images, so that a node pulls one that it has lost.
    #[must_use]
    pub fn with_registry(mut self) -> Self {
        self.registry = true;
        self
    }

    #[must_use]
    pub fn with_image(mut self, image: Image) -> Self {
        self.images.push(image);
        self
    }

    #[must_use]
    pub fn without_dns(mut self) -> Self {
        self.dns = None;
        self
    }

    /// Whether DNS pods can run before the taints are removed.
    pub(crate) fn dns_can_run(&self) -> bool {
        let tolerates = |toleration: &Toleration, taint: &Taint| {
            toleration.key.as_ref().is_none_or(|key| *key == taint.key)
        };
        self.dns.as_ref().filter(|dns| dns.replicas > 0).is_some_and(|dns| {
            self.taints.iter().all(|taint| dns.tolerations.iter().any(|one| tolerates(one, taint)))
        })
    }
}

/// The cluster's DNS: `CoreDNS`, at `kube-system/kube-dns`.
#[derive(Clone, Debug)]
pub struct Dns {
    pub replicas: u32,
    pub tolerations: Vec<Toleration>,
}

impl Default for Dns {
    fn default() -> Self {
        Self { replicas: 1, tolerations: Vec::new() }
    }
}

pub(crate) struct Nodes {
    machines: Vec<Node>,
    images: PathBuf,
    /// Ends with the cluster.
    _registry: Option<Process>,
}

impl Nodes {
    /// Creates and boots the nodes. They are not Ready when this returns.
    pub(crate) fn boot(
        options: &NodeOptions,
        assets: &NodeAssets,
        launcher: &Launcher,
        authority: &Authority,
        control_plane: &Namespace,
    ) -> anyhow::Result<Self> {
        let count = options.count;
        ensure!((1..=MOST_NODES).contains(&count), "{count} nodes: there can be 1 to {MOST_NODES}");
        let images = launcher.folder().join("images");
        fs::create_dir(&images)?;
        for image in standard_images(assets).iter().chain(&options.images) {
            image.write(&images)?;
        }
        let registry = options.registry.then(|| {
            let mut words = control_plane.prefix();
            words.extend([assets.testtool.clone().into(), "registry".into(), images.clone().into()]);
            words.push(network::REGISTRY.into());
            launcher.start("registry", &words, Stdio::null())
        });
        let registry = registry.transpose()?;
        let mut nodes = Vec::new();
        for number in 1..=count {
            let node = make(number, options, assets, launcher, authority)?;
            network::connect(control_plane, &node.namespace, number, count)?;
            node.boot()?;
            nodes.push(node);
        }
        Ok(Self { machines: nodes, images, _registry: registry })
    }

    pub(crate) fn all(&self) -> &[Node] {
        &self.machines
    }

    /// Adds an image to every node: now if it runs, otherwise at its next boot.
    pub(crate) fn add_image(&self, image: &Image) -> anyhow::Result<()> {
        for node in &self.machines {
            node.forget_image(image)?;
        }
        image.write(&self.images)?;
        thread::scope(|scope| {
            let imports: Vec<_> =
                self.machines.iter().map(|node| scope.spawn(|| node.import_image(image))).collect();
            for import in imports {
                match import.join() {
                    Ok(imported) => imported?,
                    Err(_) => bail!("the import of {} panicked", image.name()),
                }
            }
            Ok(())
        })
    }
}

pub(crate) async fn deploy_dns(client: &Client, options: &NodeOptions) -> anyhow::Result<()> {
    match &options.dns {
        Some(dns) => dns::deploy(client, dns).await,
        None => Ok(()),
    }
}

fn standard_images(assets: &NodeAssets) -> [Image; 3] {
    [
        Image::new(PAUSE_IMAGE, &assets.testtool, "/testtool").with_arguments(&["pause"]),
        Image::new(TOOL_IMAGE, &assets.testtool, "/testtool").as_user(crate::image::NONROOT),
        Image::new(DNS_IMAGE, &assets.coredns, "/coredns"),
    ]
}

fn make(
    number: usize,
    options: &NodeOptions,
    assets: &NodeAssets,
    launcher: &Launcher,
    authority: &Authority,
) -> anyhow::Result<Node> {
    let name = format!("node-{number}");
    let folder = launcher.folder().join(&name);
    fs::create_dir(&folder)?;
    let (address, pods) = (network::node_address(number), network::node_pods(number));
    let cgroups = Cgroups::create(&cluster_name(launcher.folder()), &name)?;
    let facts = Facts {
        address: &address,
        pods: &pods,
        cgroup_root: cgroups.root(),
        taints: &options.taints,
        registry: options.registry,
        authority: authority.pem(),
        server: authority.server(&name, &[&name, &address])?,
    };
    files::write(&folder, facts)?;
    let url = format!("https://{CONTROL_PLANE}:{API_PORT}");
    let kubelet = authority.client(&format!("system:node:{name}"), Some("system:nodes"))?;
    fs::write(folder.join("kubeconfig"), kubeconfig(&url, authority, &kubelet))?;
    let kube_proxy = authority.client("system:kube-proxy", None)?;
    fs::write(folder.join("kube-proxy.kubeconfig"), kubeconfig(&url, authority, &kube_proxy))?;
    Ok(Node {
        namespace: Namespace::create(launcher, &name)?,
        name,
        address,
        zone: ZONES[(number - 1) % ZONES.len()].into(),
        folder,
        boot: parking_lot::Mutex::default(),
        cgroups,
        launcher: launcher.clone(),
        programs: assets.clone(),
    })
}

/// The name of the folder, which is unique per cluster.
fn cluster_name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dns_runs_if_it_tolerates_every_taint() {
        assert!(NodeOptions::new(1).dns_can_run());
        assert!(NodeOptions::new(1).tainted("node-ready/unverified").dns_can_run());
        assert!(!NodeOptions::new(1).without_dns().tainted("a").dns_can_run());
        let mut options = NodeOptions::new(1).tainted("a");
        options.dns = Some(Dns::default());
        assert!(!options.dns_can_run());
    }
}

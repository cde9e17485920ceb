//! The configuration files of a node, written before its first boot below the node's folder, which is `/run/node` on
//! the node.

use std::{fs, path::Path};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::{DNS_ADDRESS, PAUSE_IMAGE, network::REGISTRY};
use crate::{machine, pki::Identity};

pub(super) struct Facts<'a> {
    pub(super) address: &'a str,
    pub(super) pods: &'a str,
    pub(super) cgroup_root: &'a str,
    pub(super) taints: &'a [Taint],
    pub(super) registry: bool,
    pub(super) authority: String,
    pub(super) server: Identity,
}

pub(super) fn write(folder: &Path, facts: Facts<'_>) -> anyhow::Result<()> {
    // Some are only mount points.
    for name in ["containerd", "kubelet", "pod-logs", "cni", "imported", "run"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let plugins = machine::cni_folder().context("no CNI plugins on this machine")?;
    let kubelet = kubelet(&facts);
    let registry = format!(
        r#"
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."nodekeeper.local"]
    endpoint = ["http://{REGISTRY}"]
"#
    );
    let write = |name: &str, content: String| fs::write(folder.join(name), content);
    write("machine-id", fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace('-', ""))?;
    write("resolv.conf", format!("nameserver {DNS_ADDRESS}\n"))?;
    write("ca.crt", facts.authority)?;
    write("kubelet.crt", facts.server.certificate)?;
    write("kubelet.key", facts.server.key)?;
    write("kubelet.json", format!("{kubelet:#}"))?;
    write("containerd.toml", containerd(plugins) + if facts.registry { &registry } else { "" })?;
    write("cni/pods.conflist", format!("{:#}", pod_network(facts.pods)))?;
    Ok(())
}

/// Connects each pod to the node directly instead of by a bridge: every packet is routed, so that kube-proxy and
/// [`super::Node::break_dns`] also see traffic between pods of the same node.
fn pod_network(pods: &str) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    // Removed at the next boot, like the pods.
                    "dataDir": "/run/cni",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn kubelet(facts: &Facts<'_>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": facts.address,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/run/node/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/run/node/kubelet.crt",
        "tlsPrivateKeyFile": "/run/node/kubelet.key",
        "registerWithTaints": facts.taints,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": facts.cgroup_root,
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "/run/node/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        // Tests should not wait for the default interval.
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        // Nor be affected by memory pressure of the machine.
        "oomScoreAdj": 0,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
    })
}

fn containerd(plugins: &Path) -> String {
    let plugins = plugins.display();
    format!(
        r#"version = 2
root = "/run/node/containerd"
state = "/run/containerd"
oom_score = 0
# It would make folders in /opt.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "/run/node/cni"
"#
    )
}

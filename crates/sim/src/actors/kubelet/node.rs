//! One machine and the Node that its kubelet maintains.

use std::collections::BTreeMap;

use crate::value::{Value, json};

use super::pod::PodHandle;
use super::{FalseReport, NodeSpec};
use crate::clock::{micro_time, time};
use crate::cluster::Local;
use crate::object::{is_deleting, items, name, set, set_condition, text, uid};

const LEASES: &str = "coordination.k8s.io/leases";

pub(super) struct Machine {
    pub(super) spec: NodeSpec,
    pub(super) is_on: bool,
    pub(super) false_report: FalseReport,
    /// A kubelet registers before its network is ready.
    pub(super) is_ready: bool,
    pub(super) pods: BTreeMap<String, PodHandle>,
    boot_id: String,
    /// The kubelet registers only when it starts. It does not recreate a Node that was deleted.
    node_uid: String,
}

impl Machine {
    pub(super) fn new(spec: NodeSpec) -> Self {
        Self {
            spec,
            is_on: false,
            false_report: FalseReport::default(),
            is_ready: false,
            pods: BTreeMap::new(),
            boot_id: String::new(),
            node_uid: String::new(),
        }
    }

    pub(super) fn boot(&mut self, api: &Local, boot_id: String) {
        self.is_on = true;
        self.is_ready = false;
        let rebooted = !self.boot_id.is_empty();
        self.boot_id = boot_id;
        let node = match api.get("nodes", "", &self.spec.name) {
            Some(node) => node,
            None => match api.create("v1", "Node", "", self.registration(&time(api.cluster().clock().now())))
            {
                Ok(node) => node,
                Err(_) => return,
            },
        };
        uid(&node).clone_into(&mut self.node_uid);
        if rebooted {
            self.announce_reboot(api, &node);
        }
        self.report_status(api);
        self.heartbeat(api);
    }

    fn registration(&self, now: &str) -> Value {
        let mut labels = self.spec.labels.clone();
        for (key, value) in [
            ("kubernetes.io/hostname", self.spec.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ] {
            labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
        if !self.spec.zone.is_empty() {
            labels.insert("topology.kubernetes.io/zone".into(), self.spec.zone.clone());
        }
        let mut spec = json!({"taints": self.spec.taints});
        if !self.spec.provider_id.is_empty() {
            spec["providerID"] = json!(self.spec.provider_id);
        }
        let mut node = json!({"metadata": {"name": self.spec.name, "labels": labels}, "spec": spec});
        self.describe(&mut node, now);
        node
    }

    pub(super) fn report_status(&self, api: &Local) {
        let Some(node) = api.get("nodes", "", &self.spec.name).filter(|n| uid(n) == self.node_uid) else {
            return;
        };
        let now = time(api.cluster().clock().now());
        let _ = api.change(&node, Some("status"), |node| self.describe(node, &now));
    }

    /// Fills the Node in as the kubelet reports it.
    fn describe(&self, node: &mut Value, now: &str) {
        let capacity = json!({"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        set(node, "status.capacity", capacity.clone());
        set(node, "status.allocatable", capacity);
        set(node, "status.addresses", json!([{"type": "Hostname", "address": self.spec.name}]));
        set(
            node,
            "status.nodeInfo",
            json!({
                "bootID": self.boot_id, "machineID": self.spec.name, "systemUUID": self.spec.name,
                "kernelVersion": "6.18.0", "osImage": "Nodekeeper Sim", "containerRuntimeVersion": "sim://1",
                "kubeletVersion": "v1.36.4", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
            }),
        );
        let (status, reason, message) = if self.false_report.ready.unwrap_or(self.is_ready) {
            ("True", "KubeletReady", "kubelet is posting ready status")
        } else {
            ("False", "KubeletNotReady", "container runtime network not ready")
        };
        for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
            let fine = json!({"type": kind, "status": "False", "reason": "KubeletHasSufficient", "lastHeartbeatTime": now});
            set_condition(node, fine, now);
        }
        let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now});
        set_condition(node, ready, now);
        for (key, value) in &self.false_report.labels {
            node["metadata"]["labels"][key.as_str()] = json!(value);
        }
    }

    /// Renews the lease, and the status if the node controller set it to Unknown.
    pub(super) fn heartbeat(&self, api: &Local) {
        let now = micro_time(api.cluster().clock().now());
        let node = api.get("nodes", "", &self.spec.name).filter(|n| uid(n) == self.node_uid);
        let known = api.get(LEASES, "kube-node-lease", &self.spec.name).filter(|l| !is_deleting(l));
        if let Some(lease) = known {
            let _ = api.change(&lease, None, |lease| {
                set(lease, "spec.renewTime", json!(now));
                if items(lease, "metadata.ownerReferences").is_empty()
                    && let Some(node) = &node
                {
                    set(lease, "metadata.ownerReferences", owned_by(node));
                }
            });
        } else {
            let mut lease = json!({"metadata": {"name": self.spec.name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": self.spec.name, "leaseDurationSeconds": 40, "renewTime": now}});
            if let Some(node) = &node {
                set(&mut lease, "metadata.ownerReferences", owned_by(node));
            }
            let _ = api.create("coordination.k8s.io/v1", "Lease", "kube-node-lease", lease);
        }
        let reported = node.as_ref().map(|n| crate::object::condition_status(n, "Ready") == "Unknown");
        if reported == Some(true) {
            self.report_status(api);
        }
    }

    fn announce_reboot(&self, api: &Local, node: &Value) {
        let now = time(api.cluster().clock().now());
        let event = json!({"metadata": {"generateName": format!("{}.", name(node)), "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name(node), "uid": text(node, "metadata.uid")},
            "type": "Warning", "reason": "Rebooted", "count": 1, "firstTimestamp": now, "lastTimestamp": now,
            "message": format!("Node {} has been rebooted, boot id: {}", name(node), self.boot_id),
            "source": {"component": "kubelet", "host": name(node)}});
        let _ = api.create("v1", "Event", "default", event);
    }
}

fn owned_by(node: &Value) -> Value {
    json!([{"apiVersion": "v1", "kind": "Node", "name": name(node), "uid": uid(node)}])
}

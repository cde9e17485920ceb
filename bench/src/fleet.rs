//! A fleet of Nodes like those of a cloud, generated as JSON text on demand.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::record::{self, Record, VerificationScope, WorkerResult};
use nodekeeper_core::report::Verdict;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// The interval at which an unchanged kubelet writes its status.
pub const HEARTBEAT: Duration = Duration::from_mins(5);
/// One of this many nodes is new: tainted and not Ready.
const NEW: usize = 100;

/// What a watch of the fleet shows besides heartbeats at their usual rate.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The node of this number writes its status.
    Node(usize),
    /// Each node writes its status once, as fast as the watch is read.
    Round,
    /// The resourceVersion of the watch is too old: 410 Gone.
    Expired,
}

/// The number of nodes, and their resource versions.
#[derive(Debug)]
pub struct Fleet {
    pub nodes: usize,
    verified: String,
    new: String,
    waiting: String,
    version: AtomicU64,
    /// New nodes that have become Ready.
    ready: Mutex<BTreeSet<usize>>,
    changes: broadcast::Sender<Change>,
    /// Rounds of heartbeats that a watch has sent.
    rounds: AtomicU64,
}

impl Fleet {
    /// Nodes verified by the gate with this uid, except new ones.
    pub fn new(nodes: usize, gate_uid: &str) -> Self {
        let first = u64::try_from(nodes).unwrap_or_default() + 1_000_000;
        let text = |new| template(gate_uid, new).to_string();
        // A new node differs from one that waits for its worker only in its Ready condition.
        let mut waiting = template(gate_uid, true);
        waiting["status"] = status(true);
        Self {
            nodes,
            verified: text(false),
            new: text(true),
            waiting: waiting.to_string(),
            version: AtomicU64::new(first),
            ready: Mutex::default(),
            changes: broadcast::channel(16).0,
            rounds: AtomicU64::new(0),
        }
    }

    /// Makes the new node with this number Ready, and returns its name.
    pub fn make_ready(&self, number: usize) -> String {
        let index = number * NEW + NEW - 1;
        self.ready.lock().insert(index);
        self.show(Change::Node(index));
        Self::name(index)
    }

    /// Shows a change in the watches that are open.
    pub fn show(&self, change: Change) {
        // Without a watch there is no receiver.
        let _ = self.changes.send(change);
    }

    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// How many of [`Change::Round`] were sent to the end.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    pub fn round_ended(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The index of the node with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let index = name.strip_prefix("ip-10-")?.split('.').next()?.replace('-', "").parse::<usize>().ok()?;
        (index < self.nodes && Self::name(index) == name).then_some(index)
    }

    fn name(index: usize) -> String {
        format!("ip-10-{:03}-{:03}.eu-central-1.compute.internal", index / 1000, index % 1000)
    }

    pub fn node(&self, index: usize, version: u64) -> String {
        let is_ready = || self.ready.lock().contains(&index);
        let template = match index % NEW == NEW - 1 {
            false => &self.verified,
            true if is_ready() => &self.waiting,
            true => &self.new,
        };
        template
            .replace("@name", &Self::name(index))
            .replace("@uid", &format!("{index:08x}-52b5-4f0e-9d3a-0b6f6f1c9d11"))
            .replace("@boot", &format!("{index:08x}-9a51-4a8e-8f0e-3a5d6b1c7e42"))
            .replace("@machine", &format!("ec2{index:029x}"))
            .replace("@instance", &format!("i-0{index:016x}"))
            .replace("@digit", &(index % 10).to_string())
            .replace("@claim", &format!("general-{index:05x}"))
            .replace("@zone", &format!("eu-central-1{}", ["a", "b", "c"][index % 3]))
            .replace("@type", ["m7i.2xlarge", "c7g.4xlarge", "r6a.xlarge", "m6g.large"][index % 4])
            .replace("@version", &version.to_string())
    }
}

fn template(gate_uid: &str, new: bool) -> Value {
    let mut node = json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": "@name",
            "uid": "@uid",
            "resourceVersion": "@version",
            "creationTimestamp": "2026-11-01T08:00:00Z",
            "labels": labels(),
            "annotations": {
                "alpha.kubernetes.io/provided-node-ip": "10.0.137.21",
                "csi.volume.kubernetes.io/nodeid": "{\"ebs.csi.aws.com\":\"@instance\",\"efs.csi.aws.com\":\"@instance\"}",
                "karpenter.k8s.aws/ec2nodeclass-hash": "15535182697325354914",
                "karpenter.k8s.aws/ec2nodeclass-hash-version": "v4",
                "karpenter.sh/nodepool-hash": "6821555240594823858",
                "karpenter.sh/nodepool-hash-version": "v3",
                "node.alpha.kubernetes.io/ttl": "15",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "finalizers": ["karpenter.sh/termination"],
            "ownerReferences": [{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "@claim",
                "uid": "2f1c2f9e-30f4-4d0c-a9a7-2a1a53d1a6a0", "blockOwnerDeletion": true}],
            "managedFields": managed(),
        },
        "spec": {"podCIDR": "10.244.12.0/24", "podCIDRs": ["10.244.12.0/24"], "providerID": "aws:///@zone/@instance"},
        "status": status(!new),
    });
    if new {
        node["spec"]["taints"] =
            json!([{"key": "node-ready/unverified", "value": "true", "effect": "NoSchedule"}]);
    } else {
        node["metadata"]["labels"]["node-ready/verified"] = json!("true");
        let result = WorkerResult {
            uid: "@uid".into(),
            scope: VerificationScope {
                boot_id: "@boot".into(),
                gate_uid: gate_uid.into(),
                gate_generation: 1,
            },
            number: 1,
            verdict: Verdict::Passed,
            why: "5 checks passed in 2@digit ms",
            failed: Vec::new(),
            cause: None,
            elapsed_seconds: 3,
            restart: false,
            at: Timestamp::from_second(1_793_520_060).unwrap_or_default(),
        };
        let record = Record::default().after(result).opened("node-ready/verified");
        node["metadata"]["annotations"][record::ANNOTATION] = json!(record.to_annotation());
    }
    node
}

fn labels() -> Value {
    json!({
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": "@type",
        "beta.kubernetes.io/os": "linux",
        "failure-domain.beta.kubernetes.io/region": "eu-central-1",
        "failure-domain.beta.kubernetes.io/zone": "@zone",
        "k8s.io/cloud-provider-aws": "8b3c9a3f1de4f4bd1d0f3ea2d1f58f2c",
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "karpenter.k8s.aws/instance-category": "m",
        "karpenter.k8s.aws/instance-cpu": "8",
        "karpenter.k8s.aws/instance-cpu-manufacturer": "intel",
        "karpenter.k8s.aws/instance-ebs-bandwidth": "10000",
        "karpenter.k8s.aws/instance-encryption-in-transit-supported": "true",
        "karpenter.k8s.aws/instance-family": "m7i",
        "karpenter.k8s.aws/instance-generation": "7",
        "karpenter.k8s.aws/instance-hypervisor": "nitro",
        "karpenter.k8s.aws/instance-memory": "32768",
        "karpenter.k8s.aws/instance-network-bandwidth": "3125",
        "karpenter.k8s.aws/instance-size": "2xlarge",
        "karpenter.sh/capacity-type": "spot",
        "karpenter.sh/initialized": "true",
        "karpenter.sh/nodepool": "general",
        "karpenter.sh/registered": "true",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "@name",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "@type",
        "topology.ebs.csi.aws.com/zone": "@zone",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": "@zone",
    })
}

/// Managed fields: a third of the size of a Node.
fn managed() -> Value {
    let owned = |keys: &Value| {
        let fields = keys.as_object().into_iter().flatten().map(|(key, _)| (format!("f:{key}"), json!({})));
        Value::Object(fields.collect())
    };
    let condition = |kind: &str| {
        let key = format!("k:{{\"type\":\"{kind}\"}}");
        (
            key,
            json!({".": {}, "f:lastHeartbeatTime": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {}}),
        )
    };
    let conditions = CONDITIONS.iter().map(|(kind, ..)| condition(kind)).collect();
    let entry = |manager: &str, fields: Value| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-01T08:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    };
    json!([
        entry(
            "karpenter",
            json!({"f:metadata": {"f:labels": owned(&labels()), "f:finalizers": {}, "f:ownerReferences": {}}})
        ),
        entry(
            "kubelet",
            json!({"f:status": {"f:conditions": Value::Object(conditions), "f:images": {}, "f:nodeInfo": {"f:bootID": {}}}})
        ),
    ])
}

const CONDITIONS: [(&str, &str, &str, &str); 4] = [
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
];

fn status(ready: bool) -> Value {
    let conditions = CONDITIONS.map(|(kind, status, reason, message)| {
        let status = if kind == "Ready" && !ready { "False" } else { status };
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2026-11-15T12:00:00Z", "lastTransitionTime": "2026-11-01T08:00:00Z"})
    });
    let resources = json!({"cpu": "8", "ephemeral-storage": "83873772Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "32386544Ki", "pods": "58"});
    let image = |n: usize| {
        let name = format!("000000000000.dkr.ecr.eu-central-1.example.com/team-{n}/service-{n}");
        json!({"names": [format!("{name}@sha256:{:064x}", n * 7919), format!("{name}:v1.{n}.0")], "sizeBytes": 90_000_000 + n})
    };
    json!({
        "addresses": [{"type": "InternalIP", "address": "10.0.137.21"}, {"type": "InternalDNS", "address": "@name"},
            {"type": "Hostname", "address": "@name"}],
        "allocatable": resources,
        "capacity": resources,
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "images": (0..12).map(image).collect::<Vec<_>>(),
        "nodeInfo": {"architecture": "amd64", "bootID": "@boot", "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.12.40-63.114.amzn2023.x86_64", "kubeProxyVersion": "", "kubeletVersion": "v1.34.1-eks-113cf36",
            "machineID": "@machine", "operatingSystem": "linux", "osImage": "Amazon Linux 2023.9.20260101", "systemUUID": "@machine"},
        "volumesAttached": [{"name": "kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b2c3d4e5f67890", "devicePath": ""}],
        "volumesInUse": ["kubernetes.io/csi/ebs.csi.aws.com^vol-0a1b2c3d4e5f67890"],
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    #[test]
    fn nodes_resemble_those_of_a_cloud() {
        let fleet = Fleet::new(2000, "5e1d9a52-7c11-4a68-8d0c-bd6d7f0f0a01");
        let text = fleet.node(1234, 77);
        assert!(!text.replace("@sha256", "").contains('@'), "a place was left open: {text}");
        assert!((9_500..10_000).contains(&text.len()), "{} bytes", text.len());
        let node: Node = serde_json::from_str(&text).expect("it is a Node");
        let labels = node.metadata.labels.expect("it has labels").len();
        assert!((25..=30).contains(&labels), "{labels} labels");
        assert_eq!(node.spec.and_then(|spec| spec.taints), None);
        let new: Node = serde_json::from_str(&fleet.node(99, 77)).expect("it is a Node");
        assert!(new.spec.is_some_and(|spec| spec.taints.is_some()));
        assert_eq!(fleet.find(&node.metadata.name.expect("it has a name")), Some(1234));
        assert_eq!(fleet.find("ip-10-005-000.eu-central-1.compute.internal"), None);
    }
}

//! The network as the nodes have it: who can resolve names, who cannot, and since when.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::api::status::ApiError;
use crate::cluster::Cluster;
use crate::object::text;

/// Where DNS is down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    /// On one node.
    Node(String),
    /// In one zone.
    Zone(String),
    /// Everywhere.
    All,
}

/// The outages there are now. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<BTreeSet<Outage>>>);

impl Network {
    /// Begins an outage.
    pub fn fail(&self, outage: Outage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(outage);
    }

    /// Ends an outage.
    pub fn heal(&self, outage: &Outage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(outage);
    }

    /// Whether names resolve on a node in a zone.
    #[must_use]
    pub fn resolves(&self, node: &str, zone: &str) -> bool {
        let outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !outages.iter().any(|outage| match outage {
            Outage::Node(name) => name == node,
            Outage::Zone(name) => name == zone,
            Outage::All => true,
        })
    }
}

/// Gives a cluster what its network has in a real one: the endpoints of the API server, and cluster DNS with its
/// Service and two servers. A bare control plane, which the conformance cases compare with, has no DNS.
pub fn furnish(cluster: &Cluster) -> Result<(), ApiError> {
    let local = cluster.local("kube-controller-manager");
    let ports = json!([{"name": "https", "port": 6443}]);
    let slice = slice("kubernetes", "kubernetes", &[API_SERVER_ADDRESS], &ports);
    local.create(SLICES.0, SLICES.1, "default", slice)?;
    let service = json!({"metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": DNS_SERVICE, "selector": {"k8s-app": "kube-dns"},
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]}});
    local.create("v1", "Service", "kube-system", service)?;
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]);
    local.create(
        SLICES.0,
        SLICES.1,
        "kube-system",
        self::slice(DNS_SLICE, "kube-dns", &DNS_SERVERS, &ports),
    )?;
    Ok(())
}

/// Starts or stops cluster DNS, as its endpoints tell it. Names then resolve or time out everywhere.
pub fn run_cluster_dns(cluster: &Cluster, running: bool) -> Result<(), ApiError> {
    let local = cluster.local("kube-controller-manager");
    let Some(slice) = local.get("discovery.k8s.io/endpointslices", "kube-system", DNS_SLICE) else {
        return Err(ApiError::no_such_path());
    };
    local.change(&slice, None, |slice| {
        for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
            endpoint["conditions"]["ready"] = json!(running);
        }
    })?;
    if running {
        cluster.network().heal(&Outage::All);
    } else {
        cluster.network().fail(Outage::All);
    }
    Ok(())
}

/// The address of a Service by its name in the cluster, as cluster DNS knows it.
#[must_use]
pub fn lookup(cluster: &Cluster, name: &str) -> Option<IpAddr> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let (service, namespace) = name.strip_suffix(".svc.cluster.local")?.split_once('.')?;
    let service = cluster.local("coredns").get("services", namespace, service)?;
    text(&service, "spec.clusterIP").parse().ok()
}

const SLICES: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");
const API_SERVER_ADDRESS: &str = "172.18.0.2";
const DNS_SERVICE: &str = "10.96.0.10";
const DNS_SERVERS: [&str; 2] = ["10.244.0.2", "10.244.0.3"];
const DNS_SLICE: &str = "kube-dns-x7b2k";

fn slice(name: &str, service: &str, addresses: &[&str], ports: &Value) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}});
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(), "ports": ports})
}

//! The simulated network of the nodes, and its outages.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::value::{Value, json};

use crate::api::status::ApiError;
use crate::cluster::Cluster;
use crate::object::text;

/// The scope of an outage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    Node(String),
    Zone(String),
    All,
}

/// What an outage drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// DNS queries.
    Dns,
    /// Packets to Services, including the API server; not DNS queries.
    Services,
    /// Packets to pods of other nodes.
    Pods,
    LargePackets,
}

/// The current outages. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<BTreeSet<(Fault, Outage)>>>);

impl Network {
    /// Starts an outage of DNS.
    pub fn fail(&self, outage: Outage) {
        self.fail_at(Fault::Dns, outage);
    }

    /// Ends an outage of DNS.
    pub fn heal(&self, outage: &Outage) {
        self.heal_at(Fault::Dns, outage);
    }

    pub fn fail_at(&self, fault: Fault, outage: Outage) {
        self.lock().insert((fault, outage));
    }

    pub fn heal_at(&self, fault: Fault, outage: &Outage) {
        self.lock().retain(|(what, place)| (*what, place) != (fault, outage));
    }

    #[must_use]
    pub fn resolves(&self, node: &str, zone: &str) -> bool {
        self.works(Fault::Dns, node, zone)
    }

    #[must_use]
    pub fn works(&self, fault: Fault, node: &str, zone: &str) -> bool {
        !self.lock().iter().filter(|(what, _)| *what == fault).any(|(_, outage)| match outage {
            Outage::Node(name) => name == node,
            Outage::Zone(name) => name == zone,
            Outage::All => true,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(Fault, Outage)>> {
        self.0.lock()
    }
}

/// Creates the EndpointSlice of the API server, and cluster DNS with its Service and two endpoints. A bare control
/// plane, as in the conformance tests, has no DNS.
pub fn install(cluster: &Cluster) -> Result<(), ApiError> {
    let local = cluster.local("kube-controller-manager");
    let ports = json!([{"name": "https", "port": 6443}]);
    let slice = slice("kubernetes", "kubernetes", &[json!({"addresses": [API_SERVER_ADDRESS]})], &ports);
    local.create(SLICES.0, SLICES.1, "default", slice)?;
    let service = json!({"metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": DNS_SERVICE, "selector": {"k8s-app": "kube-dns"},
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]}});
    local.create("v1", "Service", "kube-system", service)?;
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]);
    let server = |(address, node, zone): (&str, &str, &str)| json!({"addresses": [address], "nodeName": node, "zone": zone});
    let servers = DNS_SERVERS.map(server);
    local.create(SLICES.0, SLICES.1, "kube-system", self::slice(DNS_SLICE, "kube-dns", &servers, &ports))?;
    Ok(())
}

/// Starts or stops cluster DNS and sets its endpoints accordingly.
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

/// Resolves the name of a Service to its cluster IP.
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
/// Address, node and zone of each server.
const DNS_SERVERS: [(&str, &str, &str); 2] =
    [("10.244.0.2", "system-1", "a"), ("10.244.1.2", "system-2", "b")];
const DNS_SLICE: &str = "kube-dns-x7b2k";

fn slice(name: &str, service: &str, endpoints: &[Value], ports: &Value) -> Value {
    let ready = |endpoint: &Value| {
        let mut endpoint = endpoint.clone();
        endpoint["conditions"] = json!({"ready": true});
        endpoint
    };
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "endpoints": endpoints.iter().map(ready).collect::<Vec<_>>(), "ports": ports})
}

//! The flags of each component. All run in the cluster's folder, so paths are relative to it.

/// Sockets in the cluster's folder instead of ports: no other process can connect, and clusters cannot collide. For
/// etcd a unix URL is a file name that must look like `host:port`.
const ETCD_CLIENTS: &str = "unix://etcd-clients:0";
const ETCD_PEERS: &str = "unix://etcd-peers:0";

pub(super) fn etcd() -> Vec<String> {
    vec![
        "--name=e2e".into(),
        "--data-dir=etcd".into(),
        format!("--listen-client-urls={ETCD_CLIENTS}"),
        format!("--advertise-client-urls={ETCD_CLIENTS}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
        format!("--initial-cluster=e2e={ETCD_PEERS}"),
        // The data does not outlive the cluster.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

/// `endpoint` are the flags that set where it listens.
pub(super) fn api_server(endpoint: &[String]) -> Vec<String> {
    let mut flags = vec![
        format!("--etcd-servers={ETCD_CLIENTS}"),
        "--tls-cert-file=apiserver.crt".into(),
        "--tls-private-key-file=apiserver.key".into(),
        "--client-ca-file=ca.crt".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--service-account-key-file=sa.pub".into(),
        "--service-account-signing-key-file=sa.key".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        "--kubelet-client-certificate=kubelet-client.crt".into(),
        "--kubelet-client-key=kubelet-client.key".into(),
        "--kubelet-preferred-address-types=InternalIP,Hostname".into(),
    ];
    flags.extend_from_slice(endpoint);
    flags
}

pub(super) fn controller_manager(more: Vec<String>) -> Vec<String> {
    let mut flags = client("kube-controller-manager");
    flags.extend([
        "--root-ca-file=ca.crt".into(),
        "--service-account-private-key-file=sa.key".into(),
        // Each controller has its own rights, as in a real cluster.
        "--use-service-account-credentials=true".into(),
        // With the default limits the start takes four seconds.
        "--kube-api-qps=200".into(),
        "--kube-api-burst=400".into(),
        "--cluster-signing-cert-file=ca.crt".into(),
        "--cluster-signing-key-file=ca.key".into(),
        // A node that stops sending heartbeats is noticed in seconds, not in most of a minute.
        "--node-monitor-grace-period=10s".into(),
        "--node-monitor-period=1s".into(),
    ]);
    flags.extend(more);
    flags
}

pub(super) fn scheduler() -> Vec<String> {
    client("kube-scheduler")
}

fn client(name: &str) -> Vec<String> {
    vec![
        format!("--kubeconfig={name}.kubeconfig"),
        // There is only one scheduler, and no client: this saves a port.
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ]
}

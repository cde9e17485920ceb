//! Check reasons that decisions depend on. Checks may report others.

/// No answer within the check's timeout.
pub const TIMEOUT: &str = "Timeout";
/// The worker's deadline passed before the check ended.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// The DNS name does not exist.
pub const NX_DOMAIN: &str = "NxDomain";
/// The DNS server answered SERVFAIL.
pub const SERV_FAIL: &str = "ServFail";
/// The connection was refused, or the DNS server answered REFUSED.
pub const REFUSED: &str = "Refused";
/// There is no route to the address.
pub const UNREACHABLE: &str = "Unreachable";
/// The DNS name exists and has no address.
pub const NO_ADDRESS: &str = "NoAddress";
/// The pod has no DNS server configured.
pub const NO_SERVERS: &str = "NoServers";
/// The TLS handshake failed or the certificate is not valid.
pub const TLS_ERROR: &str = "TlsError";
/// The API server does not accept the worker's token.
pub const UNAUTHORIZED: &str = "Unauthorized";
/// The worker lacks a permission, which is not the node's fault.
pub const FORBIDDEN: &str = "Forbidden";
/// The object does not exist.
pub const NOT_FOUND: &str = "NotFound";
/// The API server answered with a server error.
pub const SERVER_ERROR: &str = "ServerError";
/// The answer is not valid for the protocol.
pub const BAD_ANSWER: &str = "BadAnswer";
/// The Service has no ready endpoint.
pub const NO_READY_ENDPOINTS: &str = "NoReadyEndpoints";
/// The Service has fewer ready endpoints than required.
pub const TOO_FEW_READY_ENDPOINTS: &str = "TooFewReadyEndpoints";
/// There is no pod on another node to connect to.
pub const NO_PEERS: &str = "NoPeers";
/// The clocks of the node and of the API server differ too much.
pub const CLOCK_SKEW: &str = "ClockSkew";
/// Small packets pass and large ones are dropped.
pub const MTU_BLACK_HOLE: &str = "MtuBlackHole";
/// The HTTP status is not the expected one.
pub const UNEXPECTED_STATUS: &str = "UnexpectedStatus";
/// The check needs a cluster, and the worker does not run in one.
pub const NOT_IN_CLUSTER: &str = "NotInCluster";
/// Cluster DNS has no ready endpoints, so the node's connection to it cannot be verified.
pub const CLUSTER_DNS_NOT_RUNNING: &str = "ClusterDNSNotRunning";
/// The worker's configuration is not valid.
pub const BAD_CONFIGURATION: &str = "BadConfiguration";
/// The worker could not create its Kubernetes client.
pub const NO_CLIENT: &str = "NoClient";

//! The checks of a worker and their options.

mod assignment;

use serde::{Deserialize, Serialize};

pub use assignment::{Assignment, WorkerIdentity};

use crate::env_var::EnvVar;

/// The domain of most clusters.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// The checks that a worker runs. In a gate, checks of the default set that are absent run with their defaults; in an
/// [`Assignment`] they do not run. [`Checks::resolve`] makes the one from the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "api",
    x_kube(
        validation = Rule::new(
            "!has(self.skip) || self.skip.all(n, !(n == 'dns' && has(self.dns) || n == 'api' && has(self.api) || n == 'tcp' && has(self.tcp) || n == 'services' && has(self.services) || n == 'peers' && has(self.peers)))"
        )
        .message("`skip` must not name a check that is configured; remove one of the two"),
        validation = Rule::new(
            "!has(self.skip) || size(self.skip) < 5 || has(self.http) || has(self.clock) || has(self.mtu) || (has(self.exec) && size(self.exec) > 0)"
        )
        .message("`skip` must leave at least one check")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checks {
    /// Verifies that names resolve through the DNS resolver of the pod. By default that is the name of the API server
    /// inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Verifies that the API server accepts an authenticated request over TLS with a trusted certificate. It has no
    /// options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    /// Verifies that TCP connections can be opened. By default that is one to the address of the API server inside the
    /// cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
    /// Verifies that Services have ready endpoints. By default these are the API server and the cluster DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
    /// Verifies that pods on other nodes can be reached by their own addresses. By default these are the pods of the
    /// cluster DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Peers>,
    /// Verifies that URLs answer a GET request with the expected status. It is not part of the default set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Verifies that the clock of the node agrees with that of the API server. It is not part of the default set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Verifies that packets of full size reach the API server, not only small ones. It is not part of the default set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// Runs containers of your own next to the worker, each as one check. Exit code 0 passes and 1 to 125 fail; any
    /// other end reaches no verdict. At most 4; defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "api",
        schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))
    )]
    pub exec: Vec<Exec>,
    /// Lists checks of the default set that do not run: `dns`, `api`, `tcp`, `services` or `peers`. At least one check
    /// has to remain. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 5), extend("x-kubernetes-list-type" = "set")))]
    pub skip: Vec<DefaultCheck>,
}

/// The name of a check that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DefaultCheck {
    /// Names resolve.
    Dns,
    /// The API server accepts requests.
    Api,
    /// TCP connections can be opened.
    Tcp,
    /// Services have ready endpoints.
    Services,
    /// Pods on other nodes can be reached.
    Peers,
}

impl Checks {
    /// The checks that the worker implements itself, in the order of its report.
    pub const OF_WORKER: [&'static str; 8] =
        ["dns", "api", "tcp", "services", "peers", "http", "clock", "mtu"];

    /// The explicit set for an [`Assignment`]: checks of the default set that are absent run with their defaults, and
    /// those that are skipped are absent.
    #[must_use]
    pub fn resolve(&self) -> Self {
        fn default<T: Clone + Default>(named: Option<&T>, skipped: bool) -> Option<T> {
            (!skipped).then(|| named.cloned().unwrap_or_default())
        }
        let skipped = |check| self.skip.contains(&check);
        Self {
            dns: default(self.dns.as_ref(), skipped(DefaultCheck::Dns)),
            api: default(self.api.as_ref(), skipped(DefaultCheck::Api)),
            tcp: default(self.tcp.as_ref(), skipped(DefaultCheck::Tcp)),
            services: default(self.services.as_ref(), skipped(DefaultCheck::Services)),
            peers: default(self.peers.as_ref(), skipped(DefaultCheck::Peers)),
            skip: Vec::new(),
            ..self.clone()
        }
    }

    /// The checks of [`Self::OF_WORKER`] that are present.
    #[must_use]
    pub fn assigned(&self) -> Vec<&'static str> {
        let there = [
            self.dns.is_some(),
            self.api.is_some(),
            self.tcp.is_some(),
            self.services.is_some(),
            self.peers.is_some(),
            self.http.is_some(),
            self.clock.is_some(),
            self.mtu.is_some(),
        ];
        Self::OF_WORKER.into_iter().zip(there).filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }

    /// Removes the built-in checks that `wanted` rejects. Exec checks stay: they are containers of their own.
    #[must_use]
    pub fn only(self, wanted: impl Fn(&str) -> bool) -> Self {
        Self {
            dns: self.dns.filter(|_| wanted("dns")),
            api: self.api.filter(|_| wanted("api")),
            tcp: self.tcp.filter(|_| wanted("tcp")),
            services: self.services.filter(|_| wanted("services")),
            peers: self.peers.filter(|_| wanted("peers")),
            http: self.http.filter(|_| wanted("http")),
            clock: self.clock.filter(|_| wanted("clock")),
            mtu: self.mtu.filter(|_| wanted("mtu")),
            exec: self.exec,
            skip: Vec::new(),
        }
    }

    /// Whether a worker sends requests to the API server and needs a token for them.
    #[must_use]
    pub fn need_token(&self) -> bool {
        self.api.is_some()
            || self.services.is_some()
            || self.peers.is_some()
            || self.clock.is_some()
            || self.mtu.is_some()
            || self.dns.as_ref().is_some_and(|dns| dns.replicas == Replicas::Each)
    }

    /// Whether a worker needs the cluster's CA certificate, for the API server or for an HTTPS URL.
    #[must_use]
    pub fn need_authority(&self) -> bool {
        let targets = self.http.iter().flat_map(|http| &http.targets);
        self.need_token() || targets.into_iter().any(|target| target.url.starts_with("https:"))
    }
}

/// Names that have to resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Lists names that all have to resolve to an address, at most 16. A name that ends with a dot is looked up as it is;
    /// any other name goes through the search list of the pod, which can take several queries. IP addresses are
    /// rejected. Defaults to `kubernetes.default.svc.` and the domain of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(min = 1, max = 254))))]
    pub names: Vec<String>,
    /// Lists names that are looked up and reported but never fail the check, at most 16. The worker stops waiting for
    /// them 0.2 seconds after all other checks have ended. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(min = 1, max = 254))))]
    pub optional: Vec<String>,
    /// Lists DNS servers by IP address that each have to answer a query for the first of the names, at most 8. The
    /// answer that the name does not exist counts as an answer. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 8), inner(length(min = 2, max = 45))))]
    pub servers: Vec<String>,
    /// Determines which servers of the cluster DNS have to resolve the first of the names. `Any`, the default, uses only
    /// the resolver of the pod. `Each` also queries every ready endpoint of the Service `kube-system/kube-dns` by its
    /// pod address.
    #[serde(default)]
    pub replicas: Replicas,
    /// The DNS domain of the cluster, without a dot at its end. Defaults to the domain after `svc.` in the
    /// search list of the worker pod, or to `cluster.local` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 200), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub cluster_domain: Option<String>,
}

/// Which servers of the cluster DNS are queried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
pub enum Replicas {
    /// The resolver of the pod alone.
    #[default]
    Any,
    /// Every ready endpoint of kube-system/kube-dns as well, by its pod address.
    Each,
}

/// A self subject review against the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
// Not `deny_unknown_fields`: for a struct without fields that would become `additionalProperties: false`, which no CRD
// may say.
pub struct Api {}

/// Addresses that have to accept a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "api",
    x_kube(validation = Rule::new(
        r"!has(self.targets) || self.targets.all(t, t.matches('^([^][:/ ]+|[[][0-9A-Fa-f:.]+[]]):[1-9][0-9]{0,4}$'))"
    )
    .message("`targets` must each be `host:port`, such as `10.0.0.1:443`, `[fd00::1]:443` or `example.com:443`"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tcp {
    /// Lists the addresses to connect to, each as `host:port`, at most 16. IPv6 addresses are written in brackets.
    /// Defaults to the address of the API server inside the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(min = 3, max = 260))))]
    pub targets: Vec<String>,
}

/// Services that must have ready endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Services {
    /// Lists the Services to look at, at least 1 and at most 16. Keep `kube-system/kube-dns` in the list: if it has no
    /// ready endpoint, names that do not resolve are not held against the node. Defaults to `default/kubernetes` and
    /// `kube-system/kube-dns`.
    #[serde(default = "Services::targets")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 16)))]
    pub targets: Vec<ServiceTarget>,
}

impl Services {
    fn targets() -> Vec<ServiceTarget> {
        vec![ServiceTarget::new("default", "kubernetes"), ServiceTarget::new("kube-system", "kube-dns")]
    }
}

impl Default for Services {
    fn default() -> Self {
        Self { targets: Self::targets() }
    }
}

/// A Service that needs a number of ready endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTarget {
    /// The namespace that the Service is in. Workers need permission to read it; the chart grants that for `default`
    /// and `kube-system`.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub namespace: String,
    /// The name of the Service whose endpoints are counted.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub name: String,
    /// The number of endpoints that have to be ready, from 1 to 1000. Defaults to 1.
    #[serde(default = "ServiceTarget::one")]
    #[cfg_attr(feature = "api", schemars(range(min = 1, max = 1000)))]
    pub min_ready: i32,
}

impl ServiceTarget {
    /// A Service that needs one ready endpoint.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned(), min_ready: Self::one() }
    }

    fn one() -> i32 {
        1
    }
}

/// Pods on other nodes that have to be reachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peers {
    /// The namespace of the Service whose pods the worker connects to. It is read like those of `services`, so workers
    /// need permission for it. Defaults to `kube-system`.
    #[serde(default = "Peers::namespace")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub namespace: String,
    /// The name of the Service whose pods the worker connects to. The Service needs a TCP port; its lowest one is used.
    /// Defaults to `kube-dns`.
    #[serde(default = "Peers::name")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub name: String,
    /// The number of pods in each zone that the worker connects to at first, from 1 to 5. At most 5 pods are used in
    /// total. Defaults to 1.
    #[serde(default = "Peers::per_zone")]
    #[cfg_attr(feature = "api", schemars(range(min = 1, max = 5)))]
    pub per_zone: i32,
}

impl Peers {
    fn namespace() -> String {
        "kube-system".to_owned()
    }

    fn name() -> String {
        "kube-dns".to_owned()
    }

    fn per_zone() -> i32 {
        1
    }
}

impl Default for Peers {
    fn default() -> Self {
        Self { namespace: Self::namespace(), name: Self::name(), per_zone: Self::per_zone() }
    }
}

/// URLs that have to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Http {
    /// Lists the URLs to request, at least 1 and at most 16. All of them have to answer as expected.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 16)))]
    pub targets: Vec<HttpTarget>,
}

/// A GET request and the answer that it has to receive. Redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpTarget {
    /// The URL to request, with the scheme `http` or `https`. A certificate has to be signed by the CA of the cluster,
    /// by one in `ca`, or by one that the worker image trusts; the default image trusts none.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))
    )]
    pub url: String,
    /// The range of HTTP status codes that count as success. Defaults to 200 to 399.
    #[serde(default)]
    pub expect_status: StatusRange,
    /// Selects a key of a ConfigMap in the namespace of the workers that holds additional CA certificates in PEM format.
    /// If the ConfigMap or the key does not exist, the worker does not start. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaReference>,
    /// The file in the worker container that `ca` is mounted as. The controller sets it in an [`Assignment`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "api", schemars(skip))]
    pub ca_file: Option<String>,
}

/// A key of a ConfigMap with CA certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaReference {
    /// The name of the ConfigMap that holds the CA certificates.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// The key of the ConfigMap that holds the CA certificates. Defaults to `ca.crt`.
    #[serde(default = "CaReference::key")]
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9_][-._A-Za-z0-9]*$"))
    )]
    pub key: String,
}

impl CaReference {
    fn key() -> String {
        "ca.crt".to_owned()
    }
}

/// A range of HTTP status codes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusRange {
    /// The lowest status code that counts as success, from 100 to 599. Defaults to 200.
    #[serde(default = "StatusRange::min")]
    #[cfg_attr(feature = "api", schemars(range(min = 100, max = 599)))]
    pub min: i32,
    /// The highest status code that counts as success, from 100 to 599. It must not be less than `min`. Defaults to
    /// 399.
    #[serde(default = "StatusRange::max")]
    #[cfg_attr(feature = "api", schemars(range(min = 100, max = 599)))]
    pub max: i32,
}

impl StatusRange {
    fn min() -> i32 {
        200
    }

    fn max() -> i32 {
        399
    }
}

impl Default for StatusRange {
    fn default() -> Self {
        Self { min: Self::min(), max: Self::max() }
    }
}

/// A comparison of the node's clock with the `Date` header of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clock {
    /// The difference in seconds, from 1 to 3600, that is tolerated between the two clocks. The duration of the request
    /// and the one second precision of the `Date` header are added to it. Defaults to 5.
    #[serde(default = "Clock::max_skew_seconds")]
    #[cfg_attr(feature = "api", schemars(range(min = 1, max = 3_600)))]
    pub max_skew_seconds: i32,
}

impl Clock {
    fn max_skew_seconds() -> i32 {
        5
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self { max_skew_seconds: Self::max_skew_seconds() }
    }
}

/// A transfer in packets as large as the path claims to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mtu {
    /// The number of bytes that the worker sends to the API server, from 1500 to 262144. Defaults to 32768, which fills
    /// several packets even on a network with jumbo frames.
    #[serde(default = "Mtu::payload_bytes")]
    #[cfg_attr(feature = "api", schemars(range(min = 1_500, max = 262_144)))]
    pub payload_bytes: i32,
}

impl Mtu {
    fn payload_bytes() -> i32 {
        32_768
    }
}

impl Default for Mtu {
    fn default() -> Self {
        Self { payload_bytes: Self::payload_bytes() }
    }
}

/// A container that runs next to the worker and whose exit code is the result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "api",
    x_kube(validation = Rule::new(
        "!(self.name in ['worker', 'dns', 'api', 'tcp', 'services', 'peers', 'http', 'clock', 'mtu'])"
    )
    .message("`name` must not be `worker` nor the name of a built-in check (dns, api, tcp, services, peers, http, clock, mtu): choose another"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exec {
    /// The name of the check. The container is called `check-` and this name. It must not be `worker`, nor equal the
    /// name of a built-in check or of an init container.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 57), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// The container image that the check runs. It is pulled with the pull policy and the pull secrets of the worker.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$")))]
    pub image: String,
    /// The entrypoint of the container as a list of words, at most 16. Defaults to the entrypoint of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(max = 1024))))]
    pub command: Vec<String>,
    /// The arguments that are passed to the entrypoint, at most 32. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 32), inner(length(max = 1024))))]
    pub args: Vec<String>,
    /// Lists environment variables of the container, at most 32. `NODE_NAME` is always set to the name of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 32)))]
    pub env: Vec<EnvVar>,
}

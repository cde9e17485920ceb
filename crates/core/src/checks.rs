//! What a worker has to do: which checks, for whom, and how long it may take.

use serde::{Deserialize, Serialize};

/// The name that every cluster has, asked for as it is: one question, whatever the search list says.
pub const CLUSTER_NAME: &str = "kubernetes.default.svc.cluster.local.";

/// The checks to run; one that is absent does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checks {
    /// Names resolve through the pod's resolver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// The API server takes an authenticated request, over verified TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    /// Connections can be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
    /// Services have ready endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
    /// Pods on other nodes can be connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Peers>,
    /// URLs answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// The node's clock agrees with the API server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Packets of full size get through, not only small ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// Images of your own, each a container of the worker's pod: exit code 0 has passed, 1 to 125 has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "api",
        schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))
    )]
    pub exec: Vec<Exec>,
}

impl Checks {
    /// The checks that the worker's own binary knows, in the order in which it reports them.
    pub const OF_WORKER: [&'static str; 8] =
        ["dns", "api", "tcp", "services", "peers", "http", "clock", "mtu"];

    /// What is checked where nobody says anything else. Nobody asked for the name outside the cluster, so it is told
    /// and holds no node: many clusters cannot resolve it.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            dns: Some(Dns { optional: vec!["google.com.".to_owned()], ..Dns::default() }),
            api: Some(Api {}),
            tcp: Some(Tcp::default()),
            services: Some(Services::default()),
            peers: Some(Peers::default()),
            ..Self::default()
        }
    }

    /// Those of [`Self::OF_WORKER`] that are to run.
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

    /// These of them; what runs in containers of its own is not the worker's to leave out.
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
        }
    }

    /// Whether a worker needs a token: whether it has to ask the API server for anything.
    #[must_use]
    pub fn need_token(&self) -> bool {
        self.api.is_some()
            || self.services.is_some()
            || self.peers.is_some()
            || self.clock.is_some()
            || self.mtu.is_some()
            || self.dns.as_ref().is_some_and(|dns| dns.replicas == Replicas::Each)
    }

    /// Whether a worker needs the cluster's authority: whether it may be shown a certificate that it signed.
    #[must_use]
    pub fn need_authority(&self) -> bool {
        let targets = self.http.iter().flat_map(|http| &http.targets);
        self.need_token() || targets.into_iter().any(|target| target.url.starts_with("https:"))
    }
}

/// Names to resolve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Every one of them has to resolve. A name with a dot at its end is asked for as it is; one without goes through
    /// the search list of the pod, which can be many questions. Default: the API server's name in the cluster.
    #[serde(default = "Dns::names")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 16), inner(length(min = 1, max = 254))))]
    pub names: Vec<String>,
    /// Names that are asked for and reported, and hold no node. They are not waited for once all else is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(min = 1, max = 254))))]
    pub optional: Vec<String>,
    /// DNS servers, by IP address, each of which has to answer when it is asked for the first of the names. That there
    /// is no such name is an answer too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 8), inner(length(min = 2, max = 45))))]
    pub servers: Vec<String>,
    /// Which servers of the cluster's DNS have to know the first of the names.
    #[serde(default)]
    pub replicas: Replicas,
}

impl Dns {
    fn names() -> Vec<String> {
        vec![CLUSTER_NAME.to_owned()]
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self { names: Self::names(), optional: Vec::new(), servers: Vec::new(), replicas: Replicas::Any }
    }
}

/// Which servers of the cluster's DNS are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
pub enum Replicas {
    /// Whichever the pod's resolver comes to.
    #[default]
    Any,
    /// Each ready endpoint of kube-system/kube-dns as well, by the address of its pod.
    Each,
}

/// Asks the API server who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
// Not `deny_unknown_fields`: for a struct without fields that would become `additionalProperties: false`, which no CRD
// may say.
pub struct Api {}

/// Addresses to connect to.
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
    /// Each as `host:port`. None: the address of the API server inside the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(min = 3, max = 260))))]
    pub targets: Vec<String>,
}

/// Services that must have ready endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Services {
    /// Default: the API server and the cluster's DNS.
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

/// One Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTarget {
    /// Its namespace.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub namespace: String,
    /// Its name.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub name: String,
    /// How many of its endpoints must be ready.
    #[serde(default = "ServiceTarget::one")]
    #[cfg_attr(feature = "api", schemars(range(min = 1, max = 1000)))]
    pub min_ready: i32,
}

impl ServiceTarget {
    /// A Service of which one endpoint must be ready.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned(), min_ready: Self::one() }
    }

    fn one() -> i32 {
        1
    }
}

/// Pods on other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peers {
    /// Namespace of the Service whose pods are connected to. Default: the cluster's DNS.
    #[serde(default = "Peers::namespace")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub namespace: String,
    /// Name of that Service. It needs a TCP port.
    #[serde(default = "Peers::name")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 63)))]
    pub name: String,
    /// How many pods of each zone are connected to at first; never more than 5 in all.
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

/// URLs to get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Http {
    /// Every one of them has to answer as it should.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 16)))]
    pub targets: Vec<HttpTarget>,
}

/// One URL, asked for with GET. Redirections are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpTarget {
    /// With http or https. A certificate has to be signed by the cluster's authority, by one in `caFile`, or by one that
    /// the worker's image trusts; ours trusts none.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))
    )]
    pub url: String,
    /// The status that it has to answer with.
    #[serde(default)]
    pub expect_status: StatusRange,
    /// A file in the worker's container with more authorities, in PEM. The key `k` of a ConfigMap that is the volume `v`
    /// of `worker.volumes` is the file `/etc/nodekeeper/v/k`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 256)))]
    pub ca_file: Option<String>,
}

/// HTTP statuses from the one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusRange {
    /// The first.
    #[serde(default = "StatusRange::min")]
    #[cfg_attr(feature = "api", schemars(range(min = 100, max = 599)))]
    pub min: i32,
    /// The last.
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

/// The node's clock beside the API server's, as the Date of an answer tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clock {
    /// How far they may be apart. What the way there and back takes, and the second that a Date leaves open, are on top.
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

/// Much at once to the API server and back, in packets as large as the path is said to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mtu {
    /// How much. The default fills several packets even where they are jumbo.
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

/// A check of your own: a container beside the worker's.
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
    /// Names the check, and its container.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 57), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub name: String,
    /// What it runs.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$")))]
    pub image: String,
    /// The program. None: the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 16), inner(length(max = 1024))))]
    pub command: Vec<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 32), inner(length(max = 1024))))]
    pub args: Vec<String>,
    /// Its environment, beside `NODE_NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "api", schemars(length(max = 32)))]
    pub env: Vec<ExecEnv>,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecEnv {
    /// Its name.
    #[cfg_attr(
        feature = "api",
        schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))
    )]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[cfg_attr(feature = "api", schemars(length(max = 1024)))]
    pub value: String,
}

/// For whom a worker works. Its report repeats it, so that a verdict can be matched to what is true when it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Workers outlive releases: one made by the next is still recognised after a rollback.
#[serde(rename_all = "camelCase", default)]
pub struct WorkerIdentity {
    /// uid of the Node.
    pub node_uid: String,
    /// Boot that is to be verified.
    pub boot_id: String,
    /// uid of the NodeGate.
    pub gate_uid: String,
    /// Generation of the NodeGate.
    pub gate_generation: i64,
    /// Number of the worker.
    pub number: u32,
}

/// All that a worker is told, in one environment variable of its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assignment {
    /// For whom; default when it is run by hand.
    #[serde(default, rename = "subject")]
    pub identity: WorkerIdentity,
    /// How long one check may take.
    pub check_timeout_seconds: u32,
    /// How long all of them may take together.
    pub deadline_seconds: u32,
    /// How long the report may be, where it is less than usual: the kubelet cuts what a pod's containers say together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_bytes: Option<u32>,
    /// Which.
    pub checks: Checks,
}

impl Assignment {
    /// The environment variable that holds it, as JSON.
    pub const ENV: &'static str = "NODEKEEPER_ASSIGNMENT";
}

impl Default for Assignment {
    fn default() -> Self {
        Self {
            identity: WorkerIdentity::default(),
            check_timeout_seconds: 10,
            deadline_seconds: 120,
            report_bytes: None,
            checks: Checks::standard(),
        }
    }
}

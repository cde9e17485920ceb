//! What a worker has to do: which checks, for whom, and how long it may take.

use serde::{Deserialize, Serialize};

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
}

impl Checks {
    /// What is checked where nobody says anything else.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            dns: Some(Dns::default()),
            api: Some(Api {}),
            tcp: Some(Tcp::default()),
            services: Some(Services::default()),
        }
    }
}

/// Names to resolve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Every one of them has to resolve. A name with a dot at its end is asked for as it is; one without goes through
    /// the search list of the pod. Default: the API server's name in the cluster.
    #[serde(default = "Dns::names")]
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253))))]
    pub names: Vec<String>,
}

impl Dns {
    fn names() -> Vec<String> {
        vec!["kubernetes.default.svc.cluster.local.".to_owned()]
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self { names: Self::names() }
    }
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
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
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

/// For whom a worker works. Its report repeats it, so that a verdict can be matched to what is true when it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Workers outlive releases: one made by the next is still recognised after a rollback.
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
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
    #[serde(default)]
    pub subject: Subject,
    /// How long one check may take.
    pub check_timeout_seconds: u32,
    /// How long all of them may take together.
    pub deadline_seconds: u32,
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
            subject: Subject::default(),
            check_timeout_seconds: 10,
            deadline_seconds: 120,
            checks: Checks::standard(),
        }
    }
}

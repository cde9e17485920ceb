//! `RemediationPolicy` limits which nodes remediation may replace, how many and when.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::remediation::{CauseSource, RemediationCause};
use super::status::Condition;

/// `RemediationPolicySpec` is the desired behaviour of remediation. All fields are optional.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nodekeeper.dev",
    version = "v1alpha1",
    kind = "RemediationPolicy",
    plural = "remediationpolicies",
    shortname = "rpol",
    category = "nodekeeper",
    derive = "PartialEq",
    status = "RemediationPolicyStatus",
    doc = "RemediationPolicy limits which nodes remediation may replace, how many and when. The cluster has one policy, named `default`. Without a policy nothing is evicted or deleted.",
    printcolumn = r#"{"name": "Enforcement", "type": "string", "jsonPath": ".spec.enforcement"}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Paused\")].status"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#,
    validation = Rule::new("self.metadata.name == 'default'")
        .message("`metadata.name` must be 'default': there is one policy for the cluster"),
    validation = Rule::new("self.spec.breaker.closePercent <= self.spec.breaker.openPercent")
        .message("`spec.breaker.closePercent` must not be more than `spec.breaker.openPercent`: it would close while it opens"),
    validation = Rule::new("self.spec.drain.podOvertimeSeconds <= self.spec.drain.timeoutSeconds")
        .message("`spec.drain.podOvertimeSeconds` must not be more than `spec.drain.timeoutSeconds`"),
)]
#[serde(rename_all = "camelCase")]
pub struct RemediationPolicySpec {
    /// Whether approved remediations are carried out. With `DryRun` each `NodeRemediation` reports what would happen.
    /// Defaults to `DryRun`.
    #[serde(default)]
    pub enforcement: ActEnforcement,
    /// Stops all remediation until a given time. The annotations `nodekeeper.dev/pause-until` and
    /// `nodekeeper.dev/pause-reason` do the same without a change of the spec; if both are set, the later end counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Limits how many nodes are replaced at the same time and in an hour.
    #[serde(default)]
    pub budget: Budget,
    /// Stops all remediation while too large a share of the nodes fails verification.
    #[serde(default)]
    pub breaker: Breaker,
    /// Runs the checks that a node failed on verified nodes first. The node is replaced only if they pass there.
    #[serde(default)]
    pub control_group: ControlGroup,
    /// Stops the replacement of nodes in a node group when the replacements fail the same check.
    #[serde(default)]
    pub fuse: Fuse,
    /// How many seconds after an observation a node may be replaced because of it. Older causes have to be observed
    /// again. Must be from 60 to 3600. Defaults to 600.
    #[serde(default = "RemediationPolicySpec::evidence_seconds")]
    #[schemars(range(min = 60, max = 3_600))]
    pub evidence_seconds: i32,
    /// Names of the control-plane nodes that may be replaced, at most 16. Control-plane nodes that are not listed are
    /// never cordoned, drained or deleted. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub allowed_control_plane_nodes: Vec<String>,
    /// Causes for which the Node object is deleted when no provider replaces the machine. Each cause of the
    /// `NodeRemediation` has to match an entry. Deleting a Node does not stop its machine: if the kubelet still runs, so do
    /// its pods. At most 16 entries. Defaults to none, and such nodes are not replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["source".into(), "name".into()]))]
    pub delete_node_object_for: Vec<CauseSelector>,
    /// How the pods of a node are evicted before it is replaced.
    #[serde(default)]
    pub drain: Drain,
    /// Maintenance windows for causes of recyclers and persons, at most 16. Causes of gates are not bound to them, because
    /// a gated node runs no workload. Defaults to none, which allows remediation at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<Window>,
    /// How long and how many finished `NodeRemediations` are kept.
    #[serde(default)]
    pub history: History,
}

impl RemediationPolicySpec {
    fn evidence_seconds() -> i32 {
        600
    }
}

impl Default for RemediationPolicySpec {
    fn default() -> Self {
        Self {
            enforcement: ActEnforcement::default(),
            pause: None,
            budget: Budget::default(),
            breaker: Breaker::default(),
            control_group: ControlGroup::default(),
            fuse: Fuse::default(),
            evidence_seconds: Self::evidence_seconds(),
            allowed_control_plane_nodes: Vec::new(),
            delete_node_object_for: Vec::new(),
            drain: Drain::default(),
            windows: Vec::new(),
            history: History::default(),
        }
    }
}

/// `ActEnforcement` says whether approved remediations are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ActEnforcement {
    /// Nothing is evicted or deleted. Conditions report what would happen.
    #[default]
    DryRun,
    /// Nodes are cordoned, drained and replaced within the limits of the policy.
    Enforce,
}

/// Pause stops all remediation until a given time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// Why remediation is paused, from 1 to 256 characters. It is shown in conditions and Events.
    #[schemars(length(min = 1, max = 256))]
    pub reason: String,
    /// The time at which the pause ends, in RFC 3339. A time in the past has no effect.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Timestamp,
}

/// `CauseSelector` matches causes of `NodeRemediations` by source and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CauseSelector {
    /// The kind of requester whose causes match: Gate, Recycler or Person.
    pub source: CauseSource,
    /// Name of the gate, recycler or person whose causes match. `*` matches every name of this source.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

impl CauseSelector {
    /// Whether the cause has this source and, unless the selector's name is `*`, this name.
    #[must_use]
    pub fn matches(&self, cause: &RemediationCause) -> bool {
        self.source == cause.source && (self.name == "*" || self.name == cause.name)
    }
}

/// Budget limits how many nodes are replaced at the same time and in an hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Budget {
    /// How many nodes of one node group may be in replacement at the same time, from 0 to 100. 0 stops all remediation.
    /// Defaults to 1.
    #[schemars(range(min = 0, max = 100))]
    pub max_in_flight_per_group: i32,
    /// How many nodes of one zone may be in replacement at the same time, from 0 to 100. Nodes without the label
    /// `topology.kubernetes.io/zone` count as one zone. 0 stops all remediation. Defaults to 1.
    #[schemars(range(min = 0, max = 100))]
    pub max_in_flight_per_zone: i32,
    /// How many nodes of the cluster may be in replacement at the same time, from 0 to 100. 0 stops all remediation.
    /// Defaults to 2.
    #[schemars(range(min = 0, max = 100))]
    pub max_in_flight: i32,
    /// How many remediations are approved in any 60 minutes, from 0 to 120. Remediations that fail count too. 0 stops all
    /// remediation. Defaults to 3.
    #[schemars(range(min = 0, max = 120))]
    pub max_per_hour: i32,
    /// How many percent of the nodes of one node group are replaced in any 60 minutes, from 0 to 100. The number of nodes
    /// is rounded down, but is at least one unless this is 0. Defaults to 10.
    #[schemars(range(min = 0, max = 100))]
    pub max_group_percent_per_hour: i32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            max_in_flight_per_group: 1,
            max_in_flight_per_zone: 1,
            max_in_flight: 2,
            max_per_hour: 3,
            max_group_percent_per_hour: 10,
        }
    }
}

/// Breaker stops all remediation while too large a share of the nodes fails. Gates go on to verify and admit nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Breaker {
    /// How many nodes need a verdict within `windowSeconds` before the breaker can open, from 1 to 100000. Defaults to 5.
    #[schemars(range(min = 1, max = 100_000))]
    pub min_verdicts: i32,
    /// The breaker opens when more than this percentage of the verdicts are failures, from 0 to 100. At 100 it never
    /// opens. Defaults to 30.
    #[schemars(range(min = 0, max = 100))]
    pub open_percent: i32,
    /// The breaker closes after at most this percentage of the verdicts were failures for `closeAfterSeconds`. Must be
    /// from 0 to 100 and not more than `openPercent`. Defaults to 10.
    #[schemars(range(min = 0, max = 100))]
    pub close_percent: i32,
    /// How many seconds the share of failures has to stay at or below `closePercent` before the breaker closes, from 0 to
    /// 86400. Defaults to 600.
    #[schemars(range(min = 0, max = 86_400))]
    pub close_after_seconds: i32,
    /// The age in seconds up to which verdicts count, from 60 to 86400. Only the last verdict of each node counts.
    /// Defaults to 900.
    #[schemars(range(min = 60, max = 86_400))]
    pub window_seconds: i32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            min_verdicts: 5,
            open_percent: 30,
            close_percent: 10,
            close_after_seconds: 600,
            window_seconds: 900,
        }
    }
}

/// `ControlGroup` runs the checks that a node failed on verified nodes, to tell a broken node from a shared outage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControlGroup {
    /// How many verified nodes of the same zone have to pass the failed checks, from 0 to 5. 0 turns the comparison off:
    /// nodes are then replaced for outages that all nodes share. Defaults to 2.
    #[schemars(range(min = 0, max = 5))]
    pub size: i32,
    /// How many seconds remediation stays blocked after a shared outage has ended, from 0 to 86400. Defaults to 600.
    #[schemars(range(min = 0, max = 86_400))]
    pub recovery_seconds: i32,
}

impl Default for ControlGroup {
    fn default() -> Self {
        Self { size: 2, recovery_seconds: 600 }
    }
}

/// Fuse stops the replacement of nodes in a node group when the replacements fail the same check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Fuse {
    /// How many generations of nodes of one group may be replaced for the same check, from 1 to 100. With 2, the original
    /// nodes and their replacements are replaced, the replacements of those are not. Defaults to 2.
    #[schemars(range(min = 1, max = 100))]
    pub generations: i32,
    /// Replacements before this time do not count; setting it to the current time resets all fuses. A time in the future
    /// has no effect until then. The annotation `nodekeeper.dev/reset-fuse` does the same without a change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub reset_at: Option<Timestamp>,
}

impl Default for Fuse {
    fn default() -> Self {
        Self { generations: 2, reset_at: None }
    }
}

/// Drain configures how the pods of a node are evicted before it is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drain {
    /// How many seconds after the approval all pods have to be gone, from 10 to 3000. When the time is over the
    /// remediation fails and the node is uncordoned. Defaults to 900.
    #[schemars(range(min = 10, max = 3_000))]
    pub timeout_seconds: i32,
    /// How many seconds a pod may exist after the end of its grace period, from 1 to 3000. When the time is over the
    /// remediation fails and the node is uncordoned. Must not be more than `timeoutSeconds`. Defaults to 300.
    #[schemars(range(min = 1, max = 3_000))]
    pub pod_overtime_seconds: i32,
    /// Whether pods with an `emptyDir` volume are evicted, whose content is then lost. Defaults to Evict.
    pub empty_dir_pods: Evictable,
    /// Whether pods without a controller are evicted, which are not created again elsewhere. Defaults to Refuse.
    pub unmanaged_pods: Evictable,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout_seconds: 900,
            pod_overtime_seconds: 300,
            empty_dir_pods: Evictable::Evict,
            unmanaged_pods: Evictable::Refuse,
        }
    }
}

/// Evictable says whether pods of a kind are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Evictable {
    /// The pods are evicted within their `PodDisruptionBudgets`.
    Evict,
    /// Nodes that run such a pod are not replaced.
    Refuse,
}

/// Window is a period that recurs on some days of the week.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// The days of the week on which the window starts. Defaults to every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// The time of day at which the window starts, as `HH:MM` in `timeZone`.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// The time of day at which the window ends, as `HH:MM` in `timeZone`. If it is not later than `start`, the window
    /// ends on the next day.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
    /// A name of the IANA time zone database, such as `Europe/Berlin`. A window with an unknown name never opens, and the
    /// policy is not Ready. Defaults to UTC.
    #[serde(default = "Window::utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
}

impl Window {
    fn utc() -> String {
        "UTC".into()
    }
}

/// Day names a day of the week on which a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names of the days need no explanation")]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// History limits how long and how many finished `NodeRemediations` are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// How many seconds after its end a `NodeRemediation` is deleted, from 3600 to 31536000. Remediations that the budget
    /// still counts are kept longer. Defaults to 604800, which is seven days.
    #[schemars(range(min = 3_600, max = 31_536_000))]
    pub ttl_seconds: i64,
    /// How many finished `NodeRemediations` are kept, from 10 to 10000. The oldest are deleted first. Defaults to 500.
    #[schemars(range(min = 10, max = 10_000))]
    pub max_count: i32,
}

impl Default for History {
    fn default() -> Self {
        Self { ttl_seconds: 7 * 86_400, max_count: 500 }
    }
}

/// `RemediationPolicyStatus` holds the reservations of the budget and the state of breaker, control group and fuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationPolicyStatus {
    /// The generation of the spec that the controller saw when it last wrote this status.
    #[serde(default)]
    pub observed_generation: i64,
    /// Remediations that are in flight or were approved in the last hour, at most 256. A remediation starts only after the
    /// controller has added it here and has set its condition Approved to True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub reservations: Vec<Reservation>,
    /// Whether the breaker blocks remediation, and since when it may close.
    #[serde(default)]
    pub breaker: BreakerState,
    /// Checks that fail on verified nodes, at most 64. Nodes that fail them are not replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub down: Vec<SharedOutage>,
    /// The end of the recovery time after a shared outage, before which remediation is blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub cooldown_until: Option<Timestamp>,
    /// The generations of replacements by node group and failed check, at most 128. The oldest are dropped first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub fuses: Vec<FuseState>,
    /// Current conditions of the policy: Ready, Paused, `BreakerOpen`, `SharedDependencyDown` and `FuseBlown`; and
    /// `ConfigurationApplied` if the installation brought the policy.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Reservation is an approved remediation that the budget counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Name of the approved `NodeRemediation`, which is the uid of its node.
    #[schemars(length(max = 128))]
    pub remediation: String,
    /// The uid of the approved `NodeRemediation`, so that another one of the same name inherits nothing. Empty if the
    /// reservation was restored because this status was lost: it then counts for the budget and permits nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub uid: String,
    /// The `status.nodeInfo.bootID` of the node when the remediation was approved. It ends when the node boots again.
    #[serde(default, rename = "bootID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub boot_id: String,
    /// Name of the node that is being replaced or was replaced.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Node group of the node. Empty if it is unknown; the reservation then counts for every group and zone.
    #[schemars(length(max = 253))]
    pub group: String,
    /// Zone of the node, from its label `topology.kubernetes.io/zone`. Empty if the node has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub zone: String,
    /// The time at which the remediation was approved.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub at: Timestamp,
    /// The time at which the remediation succeeded or failed. Absent while it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub ended: Option<Timestamp>,
}

/// `BreakerState` says whether the breaker blocks remediation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerState {
    /// Whether the breaker is open, which blocks all remediation. Defaults to false.
    #[serde(default)]
    pub open: bool,
    /// The time since which the share of failures is at or below `closePercent`. Absent while it is above, and while the
    /// breaker is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub below_threshold_since: Option<Timestamp>,
}

/// `SharedOutage` is a check that fails on verified nodes of a zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedOutage {
    /// Name of the `NodeGate` whose checks ran on the control group.
    #[schemars(length(max = 253))]
    pub gate: String,
    /// The zone in which the control group runs. It is empty for nodes without the label `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub zone: String,
    /// Name of the check that fails on the control group, such as `dns`.
    #[schemars(length(max = 64))]
    pub check: String,
    /// The DNS name or address that the failing check tests. It is empty for every target of the check.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub target: String,
    /// The time at which the check was first seen to fail on the control group.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
}

/// `FuseState` records the generations of replacements of a node group that failed the same check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FuseState {
    /// Name of the node group whose nodes were replaced.
    #[schemars(length(max = 253))]
    pub group: String,
    /// Name of the check that the replaced nodes failed. `Stuck` stands for nodes without any verdict.
    #[schemars(length(max = 64))]
    pub check: String,
    /// For each generation, the time at which its first node was replaced. At most 101 entries.
    #[schemars(length(max = 101), with = "Vec<String>")]
    pub generations: Vec<Timestamp>,
    /// Version of the template that the replaced nodes were created from. Another version resets the fuse. Empty if the
    /// nodes do not report one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub template: String,
    /// Attributes that all replaced nodes have in common, such as `image`, `type` or `zone`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, String>,
}

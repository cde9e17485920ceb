//! `RemediationPolicy`: whether anything destructive may happen at all, how much of it, and what is reserved.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::Condition;

/// The brakes on every destructive act.
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
    doc = "The brakes on every destructive act. There is one, named `default`; without it nothing destructive happens.",
    printcolumn = r#"{"name": "Enforcement", "type": "string", "jsonPath": ".spec.enforcement"}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".spec.pause.reason"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#,
    validation = Rule::new("self.metadata.name == 'default'")
        .message("`metadata.name` must be 'default': there is one policy for the cluster"),
    validation = Rule::new("self.spec.breaker.closePercent <= self.spec.breaker.openPercent")
        .message("`spec.breaker.closePercent` must not be more than `spec.breaker.openPercent`: it would close while it opens"),
    validation = Rule::new("self.spec.drain.podSeconds <= self.spec.drain.totalSeconds")
        .message("`spec.drain.podSeconds` must not be more than `spec.drain.totalSeconds`"),
)]
#[serde(rename_all = "camelCase")]
pub struct RemediationPolicySpec {
    /// Whether anything destructive is done at all.
    #[serde(default)]
    pub enforcement: ActEnforcement,
    /// Stops everything destructive for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// How much may be done.
    #[serde(default)]
    pub budget: Budget,
    /// Stops everything destructive while too many nodes fail.
    #[serde(default)]
    pub breaker: Breaker,
    /// Before a node is blamed, the checks that failed on it run on nodes that work.
    #[serde(default)]
    pub control_group: ControlGroup,
    /// Stops where the replacements of replaced nodes fail alike.
    #[serde(default)]
    pub fuse: Fuse,
    /// For how long what was seen may be acted on.
    #[serde(default = "RemediationPolicySpec::evidence_seconds")]
    #[schemars(range(min = 60, max = 3_600))]
    pub evidence_seconds: i32,
    /// Control-plane nodes that may be replaced, by name. All others are never touched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub control_plane_nodes: Vec<String>,
    /// The gates and recyclers on whose word the bare Node object is deleted where nobody replaces the machine; `*` is
    /// all. Mind that a machine that still runs keeps its pods running when its Node is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub delete_node_object_for: Vec<String>,
    /// How a node is emptied.
    #[serde(default)]
    pub drain: Drain,
    /// When nodes that work may be replaced, for what a recycler or a person asks. None: at any time. A node that does
    /// not pass its gate serves nobody, and waits for no window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<Window>,
    /// For how long history is kept.
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
            control_plane_nodes: Vec::new(),
            delete_node_object_for: Vec::new(),
            drain: Drain::default(),
            windows: Vec::new(),
            history: History::default(),
        }
    }
}

/// Whether anything destructive is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ActEnforcement {
    /// It is said what would be done.
    #[default]
    DryRun,
    /// It is done.
    Enforce,
}

/// Stops everything destructive for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// Why, for those who wonder.
    #[schemars(length(min = 1, max = 256))]
    pub reason: String,
    /// Until when: a pause that nobody ends must not be for ever.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Timestamp,
}

/// How much may be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Budget {
    /// At once in one group of nodes.
    #[schemars(range(min = 0, max = 100))]
    pub in_flight_per_group: i32,
    /// At once in one zone.
    #[schemars(range(min = 0, max = 100))]
    pub in_flight_per_zone: i32,
    /// At once in the cluster.
    #[schemars(range(min = 0, max = 100))]
    pub in_flight: i32,
    /// In any 60 minutes, in the cluster.
    #[schemars(range(min = 0, max = 120))]
    pub per_hour: i32,
    /// Of a group, in any 60 minutes; of a group that is so small that this is less than one node, one.
    #[schemars(range(min = 0, max = 100))]
    pub group_percent: i32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { in_flight_per_group: 1, in_flight_per_zone: 1, in_flight: 2, per_hour: 3, group_percent: 10 }
    }
}

/// Stops everything destructive while too many nodes fail. Letting nodes in goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Breaker {
    /// It opens when at least so many nodes had a verdict …
    #[schemars(range(min = 1, max = 100_000))]
    pub min_verdicts: i32,
    /// … and more than this share of them failed. 100: it never opens.
    #[schemars(range(min = 0, max = 100))]
    pub open_percent: i32,
    /// It closes when no more than this share failed …
    #[schemars(range(min = 0, max = 100))]
    pub close_percent: i32,
    /// … for so long.
    #[schemars(range(min = 0, max = 86_400))]
    pub close_after_seconds: i32,
    /// The verdicts of so many last seconds count.
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

/// Nodes that work, to compare with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControlGroup {
    /// On so many verified nodes of the same zone. 0: nothing is compared, and a fault that all nodes share is blamed on
    /// each of them.
    #[schemars(range(min = 0, max = 5))]
    pub size: i32,
    /// So long after a shared fault is over nothing destructive is done.
    #[schemars(range(min = 0, max = 86_400))]
    pub recovery_seconds: i32,
}

impl Default for ControlGroup {
    fn default() -> Self {
        Self { size: 2, recovery_seconds: 600 }
    }
}

/// Stops where the replacements of replaced nodes fail alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Fuse {
    /// After so many generations of replacements.
    #[schemars(range(min = 1, max = 100))]
    pub generations: i32,
    /// What happened before this does not count: whoever sets it to now resets all fuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub reset_at: Option<Timestamp>,
}

impl Default for Fuse {
    fn default() -> Self {
        Self { generations: 2, reset_at: None }
    }
}

/// How a node is emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drain {
    /// All of it. Then it is given up, and the node can be scheduled to again. An act may take an hour in all.
    #[schemars(range(min = 10, max = 3_000))]
    pub total_seconds: i32,
    /// How much longer than its grace period a single pod may take to go.
    #[schemars(range(min = 1, max = 3_000))]
    pub pod_seconds: i32,
    /// Pods with an `emptyDir`, which is lost with the node.
    pub local_storage: Evictable,
    /// Pods that nobody makes again.
    pub unmanaged: Evictable,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            total_seconds: 900,
            pod_seconds: 300,
            local_storage: Evictable::Evict,
            unmanaged: Evictable::Refuse,
        }
    }
}

/// Whether pods of a kind are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Evictable {
    /// They are.
    Evict,
    /// A node that has one is not drained.
    Refuse,
}

/// A time of the week.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// The days on which it begins. None: each day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it begins, as `HH:MM`.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// When it ends, as `HH:MM`; not later than `start` means on the day after.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
    /// A name of the time zone database, such as `Europe/Berlin`.
    #[serde(default = "Window::utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
}

impl Window {
    fn utc() -> String {
        "UTC".into()
    }
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "they are what they are")]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// For how long history is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// `NodeRemediations` that came to an end are deleted after this, never inside the hour that the budget counts.
    #[schemars(range(min = 3_600, max = 31_536_000))]
    pub keep_seconds: i64,
    /// No more of them than this are kept.
    #[schemars(range(min = 10, max = 10_000))]
    pub most: i32,
}

impl Default for History {
    fn default() -> Self {
        Self { keep_seconds: 7 * 86_400, most: 500 }
    }
}

/// What is reserved, and what the brakes say. An act goes ahead only after a guarded write has added it here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationPolicyStatus {
    /// The generation of the spec that the conditions are about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Acts of the last hour, and those that have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub reservations: Vec<Reservation>,
    /// Whether too many nodes fail.
    #[serde(default)]
    pub breaker: BreakerState,
    /// What does not work on nodes that work either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub down: Vec<SharedOutage>,
    /// Nothing destructive before this: something that all nodes share has just recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub cooldown_until: Option<Timestamp>,
    /// How far replacements of replacements went.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub fuses: Vec<FuseState>,
    /// What holds now.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Name of the `NodeRemediation`.
    #[schemars(length(max = 128))]
    pub remediation: String,
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Its group.
    #[schemars(length(max = 253))]
    pub group: String,
    /// Its zone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub zone: String,
    /// When it was approved.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub at: Timestamp,
    /// When it ended, well or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub ended: Option<Timestamp>,
}

/// Whether too many nodes fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerState {
    /// They do, or did a moment ago: nothing destructive is done.
    #[serde(default)]
    pub open: bool,
    /// Since when few enough fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub below_threshold_since: Option<Timestamp>,
}

/// Something that does not work on nodes that work either.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedOutage {
    /// Name of the gate whose nodes were compared.
    #[schemars(length(max = 253))]
    pub gate: String,
    /// Where.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub zone: String,
    /// Which check.
    #[schemars(length(max = 64))]
    pub check: String,
    /// What it looks at.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub target: String,
    /// Since when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
}

/// How far replacements of replacements went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FuseState {
    /// The group of nodes.
    #[schemars(length(max = 253))]
    pub group: String,
    /// The check that fails.
    #[schemars(length(max = 64))]
    pub check: String,
    /// When the first node of each generation was replaced.
    #[schemars(length(max = 101), with = "Vec<String>")]
    pub generations: Vec<Timestamp>,
    /// What the group's nodes were made from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub template: String,
    /// What all nodes that failed so have in common, such as `image` or `type`.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub shared: std::collections::BTreeMap<String, String>,
}

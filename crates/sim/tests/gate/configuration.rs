//! The gate that the installation brings: in some runs it differs from the one that is there.

use nodekeeper_core::configured::{Adoption, ConfiguredObject, LAST_APPLIED, ObjectKey, ObjectKind};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::object::{at, number, take};
use nodekeeper_sim::value::{Value, json};

use super::dice;
use super::invariants::without_status;

/// The gate that the installation brings.
const CONFIGURED: &str = "default";
/// The field in which the configuration may differ.
const FIELD: &str = "spec.retry.recheckPeriodSeconds";
/// Its value in the gate at the beginning.
const BEFORE: i64 = 30;

/// Its value in the configuration.
fn seconds(user: &Local) -> i64 {
    if dice(user, 5) < 2 { BEFORE } else { 25 }
}

/// In some of the runs where the configuration differs, an earlier release applied the gate, which is then patched.
/// Otherwise a person may have made it so, and it stays.
pub fn mark_as_applied(user: &Local) {
    if dice(user, 5) < 4 {
        return;
    }
    let gate = user.get("nodekeeper.dev/nodegates", "", CONFIGURED).expect("it was created before");
    let annotations = json!({LAST_APPLIED: earlier()});
    let marked = user.change(&gate, None, |gate| gate["metadata"]["annotations"] = annotations);
    marked.expect("no other user writes");
}

pub fn objects(cluster: &Cluster) -> Vec<ConfiguredObject> {
    let key = ObjectKey { kind: ObjectKind::NodeGate, name: CONFIGURED.into() };
    let seconds = seconds(&cluster.local("setup"));
    let spec = serde_json::json!({"retry": {"recheckPeriodSeconds": seconds}});
    vec![ConfiguredObject { key, spec, adoption: Adoption::KeepLive }]
}

/// What the leader may write to gates.
#[derive(Default)]
pub struct Configuration {
    seconds: i64,
}

impl Configuration {
    pub fn of(cluster: &Cluster) -> Self {
        Self { seconds: seconds(&cluster.local("setup")) }
    }

    /// Checks a write of the leader to a gate: only what the configuration changed since it was applied last is written,
    /// and a gate is created only if it is configured.
    pub fn check(&self, key: &str, before: Option<&Value>, after: &Value) -> Result<(), String> {
        let is_as_configured = key == CONFIGURED && number(after, FIELD) == Some(self.seconds);
        let Some(before) = before else {
            return if is_as_configured { Ok(()) } else { Err(format!("{after} was created")) };
        };
        let (mut was, mut is) = (without_status(before), without_status(after));
        if was == is {
            return Ok(());
        }
        let rendering = at(before, "metadata.annotations").and_then(|all| all.get(LAST_APPLIED)?.as_str());
        let was_applied = rendering == Some(earlier().as_str()) && self.seconds != BEFORE;
        for object in [&mut was, &mut is] {
            take(object, FIELD);
            take(object, "metadata.generation");
        }
        if is_as_configured && was_applied && was == is {
            return Ok(());
        }
        Err(format!("{before} became {after}"))
    }
}

/// The rendering of the earlier release.
fn earlier() -> String {
    json!({"retry": {"recheckPeriodSeconds": BEFORE}}).to_string()
}

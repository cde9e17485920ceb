//! Whether autoscalers know a gate's taint for what it is: one that goes.

use serde_json::Value;

use crate::condition::Finding;
use crate::reasons;

/// Keys that Cluster Autoscaler takes for startup taints without being told.
const STARTUP_PREFIXES: [&str; 2] =
    ["startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/"];

/// A `NodePool` of Karpenter, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    name: String,
    taints: Vec<String>,
    startup_taints: Vec<String>,
}

impl Pool {
    /// Reads `karpenter.sh/v1` and its predecessor.
    #[must_use]
    pub fn new(name: &str, pool: &Value) -> Self {
        let keys = |field: &str| {
            let taints = pool["spec"]["template"]["spec"][field].as_array();
            taints
                .into_iter()
                .flatten()
                .filter_map(|taint| taint["key"].as_str())
                .map(str::to_owned)
                .collect()
        };
        Self { name: name.to_owned(), taints: keys("taints"), startup_taints: keys("startupTaints") }
    }
}

/// What autoscalers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscalers {
    /// Karpenter's pools; none if they could not be read, and why.
    pub pools: Result<Vec<Pool>, String>,
    /// Cluster Autoscaler reports its status in this cluster.
    pub cluster_autoscaler: bool,
}

/// Whether they know these taints.
#[must_use]
pub fn judge(autoscalers: &Autoscalers, taints: &[&str]) -> Finding {
    let of = |status, reason, message: String| {
        Finding::new(reasons::AUTOSCALER_COMPATIBLE, status, reason, message)
    };
    let pools = match &autoscalers.pools {
        Ok(pools) => pools.as_slice(),
        Err(why) => {
            return of(
                "Unknown",
                reasons::CANNOT_READ,
                format!("the NodePools of Karpenter cannot be read: {why}"),
            );
        }
    };
    for pool in pools {
        if let Some(taint) = taints.iter().find(|taint| pool.taints.iter().any(|key| key == *taint)) {
            let name = &pool.name;
            return of(
                "False",
                reasons::TAINT_IS_PERMANENT,
                format!(
                    "NodePool {name} has {taint} under `spec.template.spec.taints`: Karpenter expects pods to tolerate it and makes node after node; move it to `startupTaints`"
                ),
            );
        }
    }
    let told = |taint: &&&str| !STARTUP_PREFIXES.iter().any(|prefix| taint.starts_with(prefix));
    if autoscalers.cluster_autoscaler
        && let Some(taint) = taints.iter().find(told)
    {
        return of(
            "Unknown",
            reasons::STARTUP_TAINT_NOT_CONFIRMED,
            format!(
                "Cluster Autoscaler runs here, and whether it knows {taint} cannot be seen: start it with `--startup-taint={taint}`, or use a key that begins with {}",
                STARTUP_PREFIXES[0]
            ),
        );
    }
    let with: Vec<&str> = pools
        .iter()
        .filter(|pool| pool.startup_taints.iter().any(|key| taints.contains(&key.as_str())))
        .map(|pool| pool.name.as_str())
        .collect();
    match (pools.is_empty() && !autoscalers.cluster_autoscaler, with.is_empty()) {
        (true, _) => {
            of("True", reasons::NO_AUTOSCALER, "no autoscaler was found that could mistake the taint".into())
        }
        (_, true) => {
            of("True", reasons::COMPATIBLE, "no autoscaler mistakes the taint for a permanent one".into())
        }
        (_, false) => of(
            "True",
            reasons::COMPATIBLE,
            format!("NodePools with it as a startup taint: {}", with.join(", ")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(field: &str) -> Pool {
        Pool::new(
            "p",
            &json!({"spec": {"template": {"spec": {field: [{"key": "k", "effect": "NoSchedule"}]}}}}),
        )
    }

    fn verdict(
        pools: Vec<Pool>,
        cluster_autoscaler: bool,
        taint: &str,
    ) -> (&'static str, &'static str, String) {
        let found = judge(&Autoscalers { pools: Ok(pools), cluster_autoscaler }, &[taint]);
        (found.status, found.reason, found.message)
    }

    #[test]
    fn a_taint_that_karpenter_takes_for_permanent_is_told_with_the_fix() {
        let (status, _, message) = verdict(vec![pool("taints")], false, "k");
        assert_eq!(status, "False");
        assert!(message.contains("startupTaints") && message.contains("NodePool p"), "{message}");
        assert_eq!(verdict(vec![pool("startupTaints")], false, "k").0, "True");
        assert_eq!(verdict(vec![pool("taints")], false, "other").0, "True");
    }

    #[test]
    fn cluster_autoscaler_has_to_be_told() {
        let (status, reason, message) = verdict(vec![], true, "k");
        assert_eq!((status, reason), ("Unknown", "StartupTaintNotConfirmed"));
        assert!(message.contains("--startup-taint=k"), "{message}");
        assert_eq!(verdict(vec![], true, "startup-taint.cluster-autoscaler.kubernetes.io/k").0, "True");
        assert_eq!(verdict(vec![], false, "k").1, "NoAutoscaler");
        let unread = Autoscalers { pools: Err("forbidden".into()), cluster_autoscaler: false };
        assert_eq!(judge(&unread, &["k"]).status, "Unknown");
    }
}

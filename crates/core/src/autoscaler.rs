//! Whether autoscalers treat a gate's taint as a startup taint.

use serde_json::Value;

use crate::condition::Finding;
use crate::reasons;

/// Prefixes of keys that Cluster Autoscaler treats as startup taints without a flag.
const STARTUP_PREFIXES: [&str; 2] =
    ["startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/"];

/// The taints of a Karpenter `NodePool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    name: String,
    taints: Vec<String>,
    startup_taints: Vec<String>,
}

impl Pool {
    /// Reads a `NodePool` of `karpenter.sh/v1` or `v1beta1`.
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

/// The autoscalers of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscalers {
    /// Karpenter's `NodePools`, or why they could not be read.
    pub pools: Result<Vec<Pool>, String>,
    /// Cluster Autoscaler publishes its status in this cluster.
    pub cluster_autoscaler: bool,
}

/// The condition `AutoscalerCompatible` of a gate with these taint keys. `has_nodes`: nodes with the taint come, whoever
/// puts it on them.
#[must_use]
pub fn judge(autoscalers: &Autoscalers, taints: &[&str], has_nodes: bool) -> Finding {
    let of = |status, reason, message: String| {
        Finding::new(reasons::AUTOSCALER_COMPATIBLE, status, reason, message)
    };
    let pools = match &autoscalers.pools {
        Ok(pools) => pools.as_slice(),
        Err(why) => {
            return of(
                "Unknown",
                reasons::CANNOT_READ,
                format!("Karpenter's NodePools cannot be read: {why}"),
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
                    "NodePool {name} has {taint} under `spec.template.spec.taints`: Karpenter expects pods to tolerate it and creates node after node; move it to `startupTaints`"
                ),
            );
        }
    }
    let is_unconfirmed = |taint: &&&str| !STARTUP_PREFIXES.iter().any(|prefix| taint.starts_with(prefix));
    if autoscalers.cluster_autoscaler
        && let Some(taint) = taints.iter().find(is_unconfirmed)
    {
        return of(
            "Unknown",
            reasons::STARTUP_TAINT_NOT_CONFIRMED,
            format!(
                "Cluster Autoscaler runs in this cluster, and its flags cannot be read: start it with `--startup-taint={taint}`, or use a key that begins with {}",
                STARTUP_PREFIXES[0]
            ),
        );
    }
    let with: Vec<&str> = pools
        .iter()
        .filter(|pool| pool.startup_taints.iter().any(|key| taints.contains(&key.as_str())))
        .map(|pool| pool.name.as_str())
        .collect();
    if let (Some(pool), Some(taint)) = (pools.first(), taints.first())
        && with.is_empty()
        && !has_nodes
    {
        let name = &pool.name;
        let message = format!(
            "no NodePool has the taint and no node has it: add `startupTaints: [{{key: {taint}, effect: NoSchedule}}]` under `spec.template.spec`, for example of NodePool {name}; Karpenter takes that for drift and replaces the nodes of the pool"
        );
        return of("Unknown", reasons::NOTHING_TO_GATE, message);
    }
    match (pools.is_empty() && !autoscalers.cluster_autoscaler, with.is_empty()) {
        (true, _) => of("True", reasons::NO_AUTOSCALER, "there is no autoscaler".into()),
        (_, true) => of("True", reasons::COMPATIBLE, "no autoscaler treats the taint as permanent".into()),
        (_, false) => {
            of("True", reasons::COMPATIBLE, format!("NodePools with the startup taint: {}", with.join(", ")))
        }
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
        let found = judge(&Autoscalers { pools: Ok(pools), cluster_autoscaler }, &[taint], true);
        (found.status, found.reason, found.message)
    }

    #[test]
    fn a_permanent_karpenter_taint_is_reported_with_the_fix() {
        let (status, _, message) = verdict(vec![pool("taints")], false, "k");
        assert_eq!(status, "False");
        assert!(message.contains("startupTaints") && message.contains("NodePool p"), "{message}");
        assert_eq!(verdict(vec![pool("startupTaints")], false, "k").0, "True");
        assert_eq!(verdict(vec![pool("taints")], false, "other").0, "True");
    }

    #[test]
    fn cluster_autoscaler_needs_a_flag_or_a_known_prefix() {
        let (status, reason, message) = verdict(vec![], true, "k");
        assert_eq!((status, reason), ("Unknown", "StartupTaintNotConfirmed"));
        assert!(message.contains("--startup-taint=k"), "{message}");
        assert_eq!(verdict(vec![], true, "startup-taint.cluster-autoscaler.kubernetes.io/k").0, "True");
        assert_eq!(verdict(vec![], false, "k").1, "NoAutoscaler");
        let unread = Autoscalers { pools: Err("forbidden".into()), cluster_autoscaler: false };
        assert_eq!(judge(&unread, &["k"], true).status, "Unknown");
    }

    #[test]
    fn g15_a_taint_that_no_pool_has_gates_nothing() {
        let other = Autoscalers { pools: Ok(vec![pool("taints")]), cluster_autoscaler: false };
        let found = judge(&other, &["mine"], false);
        assert_eq!((found.status, found.reason), ("Unknown", "NothingToGate"));
        assert!(found.message.contains("startupTaints: [{key: mine, effect: NoSchedule}]"), "{found:?}");
        assert_eq!(judge(&other, &["mine"], true).status, "True", "another one taints the nodes");
        let with = Autoscalers { pools: Ok(vec![pool("startupTaints")]), cluster_autoscaler: false };
        assert_eq!(judge(&with, &["k"], false).status, "True");
    }
}

//! Generates `docs/metrics.md` from the definitions of the metrics.

use std::fmt::Write as _;

use super::registry::{Entry, Set};

/// Metrics of kube-node-ready that are not served, with the reason.
pub const ABSENT: &[(&str, &str)] = &[
    (
        "kube_node_ready_dns_check_total, _dns_check_duration_seconds, _network_check_total, _network_check_duration_seconds, _kubernetes_check_total, _kubernetes_check_duration_seconds",
        "In kube-node-ready the worker has them, and a worker runs for seconds and is never scraped. Their labels are domains and addresses from a worker's report, so a node could create any number of series. Use `nodekeeper_check_runs_total`, `nodekeeper_check_failures_total` and `nodekeeper_check_duration_seconds`, which are by check.",
    ),
    (
        "kube_node_ready_node_deletion_total",
        "Nodes are replaced, and within limits. Use `nodekeeper_remediations_total` and `nodekeeper_remediations_blocked_total`, which have no series for each node.",
    ),
    (
        "kube_node_ready_verification_duration_seconds as a histogram",
        "kube-node-ready documents the name as a gauge too. A name has one type, and the gauge is served. `nodekeeper_node_gated_duration_seconds` is a histogram.",
    ),
    (
        "kube_node_ready_controller_taints_applied_total, _taints_removed_total, _labels_applied_total",
        "kube-node-ready declares and never sets them. Use `kube_node_ready_node_taint_removal_total`, `kube_node_ready_node_label_add_total` and `nodekeeper_taint_operations_total`.",
    ),
    (
        "kube_node_ready_controller_reconciliation_total{result=\"max_retries_exceeded\"}, {result=\"node_deleted\"}",
        "A node whose attempts are used up has the result `verification_failed_permanent`; it is still verified again from time to time. Replaced nodes are in `nodekeeper_remediations_total`.",
    ),
];

const SETS: [(Set, &str, &str); 6] = [
    (
        Set::Nodekeeper,
        "Nodekeeper",
        "Always served. The number of series depends on gates, checks and reasons, not on the number of nodes. Only the leader serves `nodekeeper_nodes` and `nodekeeper_node_oldest_gated_timestamp_seconds`, so that a sum over replicas is correct.",
    ),
    (
        Set::Common,
        "Controller runtime",
        "Always served, under the names of controller-runtime, client-go and Prometheus clients, so that existing dashboards and alerts work. `controller` and `name` are the name of the controller.",
    ),
    (
        Set::PerNode,
        "Per node",
        "Served by the leader with `--metrics-per-node`. The series of a node are removed with the node.",
    ),
    (
        Set::Compat,
        "Names of kube-node-ready",
        "Served with `--metrics-compat-names`. Queue depth, latency and reconciles are those of the gate controller.",
    ),
    (
        Set::CompatPerNode,
        "Names of kube-node-ready, per node",
        "Served by the leader with `--metrics-compat-names`, unless `--metrics-per-node=false`. The series of a node are removed with the node. A node has several dozen series. States and numbers of attempts are read from the cluster; counters and durations are only known to the process that observed them, so a new leader starts without them.",
    ),
    (
        Set::Agent,
        "Agents",
        "Served by `nodekeeper agent` on its node, beside those of the first two tables. The names `node_check_*` are those that kube-node-ready documents for its DaemonSet mode. All series are there from the start.",
    ),
];

pub fn page(entries: &[Entry]) -> String {
    let mut out = String::from(
        "<!-- Written by `make generate` from crates/operator/src/metrics: do not edit. -->\n\n# Metrics\n\n\
         `nodekeeper controller` serves these metrics at `:8080/metrics` (`--metrics-bind-address`), and `nodekeeper agent` those of its own \
         (`--metrics-port`): as OpenMetrics to clients that accept it, otherwise as Prometheus text. Counters start at 0 with the process.\n\n\
         Stability. Stable: name, type and labels do not change. Beta: changes are listed in the changelog. Alpha: the metric may be removed.\n\n\
         A metric that is not per node has at most 400 series; further label values are counted under `other`.\n",
    );
    for (set, title, about) in SETS {
        out.extend([
            "\n## ",
            title,
            "\n\n",
            about,
            "\n\n| metric | type | labels | stability | meaning |\n|---|---|---|---|---|\n",
        ]);
        let mut entries: Vec<_> = entries.iter().filter(|entry| entry.set == set).collect();
        entries.sort_by_key(|entry| entry.name);
        for entry in entries {
            let (kind, labels) = (entry.type_name(), entry.labels.join(", "));
            let stability = format!("{:?}", entry.stability).to_lowercase();
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "| `{}` | {kind} | {labels} | {stability} | {} |", entry.name, entry.help);
        }
    }
    out.push_str("\n## Metrics of kube-node-ready that are not served\n\n| name | reason |\n|---|---|\n");
    for (names, reason) in ABSENT {
        let _ = writeln!(out, "| {} | {reason} |", code(names));
    }
    out
}

fn code(names: &str) -> String {
    names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

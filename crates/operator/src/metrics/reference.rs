//! The page about metrics, from the entries that serve them.

use std::fmt::Write as _;

use super::book::{Entry, Set};

/// Which are missing, and why. A test holds it against what is served.
pub const ABSENT: &[(&str, &str)] = &[
    (
        "kube_node_ready_dns_check_total, _dns_check_duration_seconds, _network_check_total, _network_check_duration_seconds, _kubernetes_check_total, _kubernetes_check_duration_seconds",
        "In the seed they belong to the worker, which lives for seconds and is never scraped. Their labels are domains and addresses out of a worker's report, so a node could make as many series as it likes. `nodekeeper_check_runs_total`, `nodekeeper_check_failures_total` and `nodekeeper_check_duration_seconds` say the same by check.",
    ),
    ("kube_node_ready_node_deletion_total", "The gate deletes no node."),
    (
        "kube_node_ready_verification_duration_seconds as a histogram",
        "The name is also documented as a gauge; a name has one type, and the documented one is served. `nodekeeper_node_gated_duration_seconds` is a histogram.",
    ),
    (
        "kube_node_ready_controller_taints_applied_total, _taints_removed_total, _labels_applied_total",
        "The seed declares and never sets them. `kube_node_ready_node_taint_removal_total`, `kube_node_ready_node_label_add_total` and `nodekeeper_taint_operations_total` say it.",
    ),
    (
        "kube_node_ready_controller_reconciliation_total{result=\"max_retries_exceeded\"}, {result=\"node_deleted\"}",
        "A node whose attempts are used up is `verification_failed_permanent`, and is still looked at from time to time; the gate deletes no node.",
    ),
];

const SETS: [(Set, &str, &str); 5] = [
    (
        Set::Ours,
        "Ours",
        "Always served. Labels are gates, checks and words of ours: there are as many series as there is configuration, never as many as there are nodes. What nodes are like (`nodekeeper_nodes` and its kin) is served by the leader only, so that a sum over replicas is right.",
    ),
    (
        Set::Usual,
        "As every controller has them",
        "Always served, under the names that existing dashboards and alerts know.",
    ),
    (
        Set::PerNode,
        "By node",
        "With `--metrics-per-node`. Served by the leader only; a node's series go with the node.",
    ),
    (Set::Seed, "Under the names of kube-node-ready", "With `--metrics-seed-names`."),
    (
        Set::SeedPerNode,
        "Under the names of kube-node-ready, by node",
        "With `--metrics-seed-names`, unless `--metrics-per-node=false`. Served by the leader only; a node's series go with the node. These are some dozens of series for each node.",
    ),
];

/// The whole page.
pub fn page(entries: &[(Entry, &'static str)]) -> String {
    let mut out = String::from(
        "<!-- Written by `make generate` from crates/operator/src/metrics: do not edit. -->\n\n# Metrics\n\n\
         `nodekeeper controller` serves them at `:8080/metrics` (`--metrics-bind-address`), as OpenMetrics to a client that asks for it \
         and as Prometheus text to everybody else. Counters start at 0 with the process.\n\n\
         Stable: name, type and labels stay. Beta: they may change, with a line in the changelog. Alpha: they may go.\n\n\
         No metric has more than 400 series, those by node excepted: what would be more is counted under `other`.\n",
    );
    for (set, title, about) in SETS {
        out.extend([
            "\n## ",
            title,
            "\n\n",
            about,
            "\n\n| metric | type | labels | stability | what it says |\n|---|---|---|---|---|\n",
        ]);
        let mut entries: Vec<_> = entries.iter().filter(|(entry, _)| entry.set == set).collect();
        entries.sort_by_key(|(entry, _)| entry.name);
        for (entry, kind) in entries {
            let labels = entry.labels.join(", ");
            let stability = format!("{:?}", entry.stability).to_lowercase();
            // A `String` takes everything.
            let _ = writeln!(out, "| `{}` | {kind} | {labels} | {stability} | {} |", entry.name, entry.help);
        }
    }
    out.push_str("\n## What kube-node-ready names and is not served\n\n| name | why |\n|---|---|\n");
    for (names, why) in ABSENT {
        let _ = writeln!(out, "| {} | {why} |", code(names));
    }
    out
}

fn code(names: &str) -> String {
    names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

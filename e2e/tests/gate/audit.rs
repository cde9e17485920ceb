//! A gate that audits: the first day of a careful user.

use anyhow::{Context as _, Result, ensure};
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::scenario::steps::{
    controller, edit_gate, event_on, gate, gate_condition, gates, is_gated, is_labelled, is_verified,
    no_workers_left, node, node_is, record, until,
};
use nodekeeper_e2e::scenario::world::{BROKEN, WORKS, World, machine};
use serde_json::json;

/// A node that fails and one that passes are both admitted, only the second one with the label. The status counts them,
/// and a gate that is enforced later leaves both alone and holds the next node that fails.
pub async fn g14_an_audit_admits_every_node_and_counts(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"enforcement": "Audit"})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("bad", BROKEN);
    for name in ["bad", "good"] {
        world.join(machine(name)).await?;
    }
    is_verified(&world, "good").await?;
    let bad = node_is(&world, "bad", "admitted", |node| !is_gated(node)).await?;
    let found = record(&bad).context("no record")?;
    ensure!(!is_labelled(&bad) && found.verdict == Some(Verdict::Failed), "{found:?}");
    event_on(&world, "bad", "NodeAudited", "would have held").await?;
    gate_condition(&world, "default", ("Ready", "True", "Auditing")).await?;
    until(&world, "the audit is counted", async || {
        let audit = gates(&world).get("default").await?.data["status"]["audit"].clone();
        let expected = json!({"passed": 1, "wouldHold": 1, "nodes": ["bad"]});
        Ok((audit == expected).then_some(()))
    })
    .await?;
    edit_gate(&world, "default", json!({"enforcement": "Enforce", "retry": {"maxRetries": 0}})).await?;
    world.behaviours().set("next", BROKEN);
    world.join(machine("next")).await?;
    event_on(&world, "next", "NodeVerificationFailed", "").await?;
    ensure!(is_gated(&node(&world, "next").await?) && !is_gated(&node(&world, "bad").await?));
    world.behaviours().set("next", WORKS);
    is_verified(&world, "next").await?;
    no_workers_left(&world).await
}

//! What users, other controllers and admission do to nodes while the controller acts.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::scenario::remediation::{
    edit_policy, policies, remediation_condition, remediations, request_remediation,
};
use nodekeeper_e2e::scenario::steps::{
    controller, event_on, gate, gate_condition, gates, is_gated, is_verified, node, node_is, patch_node,
    until, worker_on,
};
use nodekeeper_e2e::scenario::worker::{State, say};
use nodekeeper_e2e::scenario::world::{TAINT, WORKLOADS, WorkerBehaviour, World, machine, taint};
use serde_json::{Value, json};

use crate::drain::{budgets, run_on, run_protected_pod};
use crate::remediation::{
    enforced_policy, is_cordoned, is_marked, is_replaced, is_there, join_failing, start_controller, zoned,
};

const POLICY: &str = "frozen-taints";

/// Admission refuses every update that removes the gate's taint, as AKS does with the taints that it protects.
async fn freeze_taints(world: &impl World, name: &str) -> Result<()> {
    let has = |object: &str| {
        format!("(has({object}.spec.taints) && {object}.spec.taints.exists(taint, taint.key == '{TAINT}'))")
    };
    let rule = format!("!{} || {}", has("oldObject"), has("object"));
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]);
    let policy = json!({"metadata": {"name": POLICY}, "spec": {"failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": rule, "message": "the taint is frozen"}]}});
    let binding =
        json!({"metadata": {"name": POLICY}, "spec": {"policyName": POLICY, "validationActions": ["Deny"]}});
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client());
    policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    // The API server compiles a policy a moment later.
    let nodes: Api<Node> = Api::all(world.client());
    until(world, "the taint is frozen", async || {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let removed = nodes.patch(name, &dry_run, &Patch::Merge(json!({"spec": {"taints": null}}))).await;
        Ok(removed.is_err().then_some(()))
    })
    .await
}

/// The worker passes, and the API server refuses to remove the taint: the node stays gated in all counts, the server's
/// message is in a condition and an Event, and the node is verified once the policy is gone.
pub async fn g01_a_refused_opening_is_reported(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("held", WorkerBehaviour::Hangs);
    world.join(machine("held")).await?;
    let pod = worker_on(&world, "held").await?;
    freeze_taints(&world, "held").await?;
    say(&world.client(), &pod, State::Passed).await?;
    let message = gate_condition(&world, "default", ("WritesRefused", "True", "WriteRefused")).await?;
    ensure!(message.contains("the taint is frozen") && message.contains("held"), "{message}");
    gate_condition(&world, "default", ("Ready", "False", "WriteRefused")).await?;
    event_on(&world, "held", "NodeWriteRefused", "the taint is frozen").await?;
    let counts: Value = gates(&world).get("default").await?.data["status"]["nodes"].clone();
    ensure!(counts["verified"] == 0 && counts["gated"] == 1, "{counts}");
    ensure!(is_gated(&node(&world, "held").await?));
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client());
    bindings.delete(POLICY, &DeleteParams::default()).await?;
    is_verified(&world, "held").await?;
    gate_condition(&world, "default", ("WritesRefused", "False", "NotObserved")).await.map(drop)
}

/// Another controller puts the taint back each time: the node waits, and an Event says why.
pub async fn g03_a_taint_that_comes_back_is_reported(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.join(machine("disputed")).await?;
    for _ in 0..3 {
        is_verified(&world, "disputed").await?;
        patch_node(&world, "disputed", json!({"spec": {"taints": [taint(TAINT)]}})).await?;
    }
    event_on(&world, "disputed", "NodeReverted", "put the taint back").await?;
    ensure!(is_gated(&node(&world, "disputed").await?), "it was verified at once again");
    Ok(())
}

/// A user frees a node while its replacement waits for the budget: it is not replaced any more.
pub async fn r01_a_node_freed_by_hand_is_not_replaced(world: impl World) -> Result<()> {
    let _controller = start_controller(&world, json!({"budget": {"maxPerHour": 0}})).await?;
    let uid = join_failing(&world, zoned("failing")).await?;
    remediation_condition(&world, "failing", ("Approved", "False", "BudgetSpent"), "").await?;
    patch_node(&world, "failing", json!({"spec": {"taints": null}})).await?;
    edit_policy(&world, json!({"budget": {"maxPerHour": 10, "maxGroupPercentPerHour": 100}})).await?;
    remediation_condition(&world, "failing", ("Approved", "False", "EvidenceExpired"), "").await?;
    let node = node(&world, "failing").await?;
    ensure!(!is_cordoned(&node) && is_there(&world, "failing", &uid).await?, "{:?}", node.spec);
    Ok(())
}

/// The policy is deleted during an act, and made anew: its request says `Approved=False` and when it was approved. That counts
/// for the budget of the new policy and permits nothing, whatever the controller decides anew. Only another approval does.
pub async fn r02_a_policy_made_anew_revives_no_approval(world: impl World) -> Result<()> {
    let budget = json!({"budget": {"maxPerHour": 1, "maxGroupPercentPerHour": 100}});
    let controller = start_controller(&world, budget.clone()).await?;
    run_protected_pod(&world).await?;
    let uid = request_remediation(&world, "one").await?;
    remediation_condition(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    ensure!(is_cordoned(&node(&world, "one").await?), "the act has not begun");
    let remove = async || policies(&world).delete("default", &DeleteParams::default()).await;
    let no_policy = ("Approved", "False", "DryRun");
    remove().await?;
    remediation_condition(&world, "one", no_policy, "there is no RemediationPolicy").await?;
    node_is(&world, "one", "uncordoned", |node| !is_cordoned(node) && !is_marked(node)).await?;
    let before = controller.proxy.requests().len();

    // Each condition is another decision about the request.
    for _ in 0..2 {
        enforced_policy(&world, budget.clone()).await?;
        remediation_condition(&world, "one", ("Approved", "False", "BudgetSpent"), "maxPerHour").await?;
        edit_policy(&world, json!({"pause": {"reason": "a storm", "until": "2100-01-01T00:00:00Z"}})).await?;
        remediation_condition(&world, "one", ("Approved", "False", "Paused"), "a storm").await?;
        edit_policy(&world, json!({"pause": null})).await?;
        remediation_condition(&world, "one", ("Approved", "False", "BudgetSpent"), "maxPerHour").await?;
        remove().await?;
        remediation_condition(&world, "one", no_policy, "there is no RemediationPolicy").await?;
    }
    let all = controller.proxy.requests();
    let writes = all[before..].iter().filter(|one| one.method != Method::GET);
    let harm: Vec<_> =
        writes.filter(|one| one.uri.starts_with("/api/v1/nodes/one") || one.is_destructive()).collect();
    ensure!(harm.is_empty(), "{harm:?}");
    let now = node(&world, "one").await?;
    ensure!(now.uid().as_ref() == Some(&uid) && !is_cordoned(&now) && !is_marked(&now), "{:?}", now.spec);
    let request = remediations(&world).get(&uid).await?;
    ensure!(request.data["status"]["approvedAt"].is_string(), "{:?}", request.data["status"]);

    budgets(&world).delete("web-budget", &DeleteParams::default()).await?;
    enforced_policy(&world, json!({"budget": {"maxPerHour": 2, "maxGroupPercentPerHour": 100}})).await?;
    is_replaced(&world, "one", &uid).await
}

/// The API server answers 500 to the eviction of a pod with two budgets: the other pod is evicted all the same, and the
/// answer is in the status.
pub async fn r07_a_pod_with_two_budgets_blocks_no_other(world: impl World) -> Result<()> {
    let _controller = start_controller(&world, json!({"budget": {"maxGroupPercentPerHour": 100}})).await?;
    run_on(&world, "one", "a-guarded", json!({})).await?;
    run_on(&world, "one", "b-free", json!({})).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.client(), WORKLOADS);
    for name in ["first", "second"] {
        let spec = json!({"minAvailable": 0, "selector": {"matchLabels": {"app": "a-guarded"}}});
        let budget = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        budgets.create(&PostParams::default(), &budget).await?;
    }
    let uid = request_remediation(&world, "one").await?;
    let message = remediation_condition(&world, "one", ("Drained", "False", "Draining"), "a-guarded").await?;
    ensure!(message.contains("more than one PodDisruptionBudget"), "{message}");
    let pods: Api<Pod> = Api::namespaced(world.client(), WORKLOADS);
    until(&world, "the other pod is gone", async || {
        Ok(pods.get_opt("b-free").await?.is_none().then_some(()))
    })
    .await?;
    pods.get_opt("a-guarded").await?.context("the guarded pod was deleted")?;
    budgets.delete("second", &DeleteParams::default()).await?;
    is_replaced(&world, "one", &uid).await
}

//! Gate and policy under Helm 3, Helm 4 and `kubectl apply --prune`: no command deletes them, and only fields that the
//! values changed are patched.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_core::configured::LAST_APPLIED;
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::Settings;
use nodekeeper_operator::config::load_objects;
use serde_json::{Value, json};

use crate::helm::{Helm, applied_file, parse};
use crate::{NAMESPACE, Running, settings, start, until};

fn gates(cluster: &Cluster) -> Result<Api<DynamicObject>> {
    Ok(Api::all_with(cluster.client()?, &ApiResource::erase::<NodeGate>(&())))
}

fn policies(cluster: &Cluster) -> Result<Api<DynamicObject>> {
    Ok(Api::all_with(cluster.client()?, &ApiResource::erase::<RemediationPolicy>(&())))
}

/// Values of the chart without pods: the controller runs in this process.
fn values(retries: i32, per_hour: i32) -> Value {
    json!({"controller": {"replicas": 0}, "gate": {"spec": {"retry": {"maxRetries": retries}}},
        "remediation": {"budget": {"maxPerHour": per_hour}}})
}

/// Gate and policy once a controller of the installed chart has applied these values.
async fn applied(cluster: &Cluster, retries: i32, per_hour: i32) -> Result<[DynamicObject; 2]> {
    let controller = Running::installed(cluster).await?;
    let (gates, policies) = (gates(cluster)?, policies(cluster)?);
    let both = until("gate and policy are applied", async || {
        let both = gates.get_opt("default").await?.zip(policies.get_opt("default").await?);
        Ok(both.filter(|(gate, policy)| {
            [(gate, "/retry/maxRetries", retries), (policy, "/budget/maxPerHour", per_hour)].iter().all(
                |(object, field, value)| {
                    let last =
                        object.annotations().get(LAST_APPLIED).and_then(|last| last.parse::<Value>().ok());
                    let has = |spec: &Value| spec.pointer(field) == Some(&json!(value));
                    has(&object.data["spec"]) && last.is_some_and(|last| has(&last))
                },
            )
        }))
    })
    .await?;
    controller.stop().await?;
    Ok(both.into())
}

/// An object as the hooks of an earlier chart made it.
fn of_an_old_hook(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": kind, "spec": spec, "metadata": {"name": "default",
        "labels": {"helm.sh/chart": "nodekeeper-0.1.0", "app.kubernetes.io/instance": "nodekeeper",
            "app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"helm.sh/hook": "post-install,post-upgrade,post-rollback",
            "helm.sh/hook-delete-policy": "hook-failed"}}})
}

/// Installs, upgrades twice, rolls back and uninstalls over objects of an earlier chart.
async fn survives(helm: Helm) -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let nothing = json!({"controller": {"replicas": 0}, "gate": {"create": false}, "remediation": {"policy": {"create": false}}});
    let Some(()) = or_skip(helm.install(&cluster, &nothing).await)? else { return Ok(()) };
    let gate = of_an_old_hook("NodeGate", &json!({"retry": {"maxRetries": 2}}));
    let policy = of_an_old_hook("RemediationPolicy", &json!({"budget": {"maxPerHour": 1}}));
    kubectl(&cluster, &["create", "-f", "-"], &format!("{gate}\n---\n{policy}"))?;
    helm.install(&cluster, &values(2, 1)).await?;
    let first = applied(&cluster, 2, 1).await?;
    for object in &first {
        let owned = |key: &String| key.starts_with("helm.sh/") || key == "app.kubernetes.io/instance";
        ensure!(
            !object.labels().keys().chain(object.annotations().keys()).any(owned),
            "{:?}",
            object.metadata
        );
    }

    // People edit other fields, and pause.
    let merge = |spec: Value| Patch::Merge(json!({"spec": spec}));
    let params = PatchParams::default();
    gates(&cluster)?.patch("default", &params, &merge(json!({"priority": 7}))).await?;
    let pause = json!({"reason": "a storm", "until": "2030-01-31T18:00:00Z"});
    policies(&cluster)?.patch("default", &params, &merge(json!({"pause": pause}))).await?;
    let is_kept = |both: &[DynamicObject; 2]| {
        both[0].data["spec"]["priority"] == 7
            && both[1].data["spec"]["pause"]["reason"] == "a storm"
            && both.iter().zip(&first).all(|(now, first)| now.uid() == first.uid())
    };

    helm.install(&cluster, &values(4, 2)).await?;
    let second = applied(&cluster, 4, 2).await?;
    ensure!(is_kept(&second), "after an upgrade: {second:?}");
    helm.install(&cluster, &values(4, 2)).await?;
    let third = applied(&cluster, 4, 2).await?;
    let generations = |both: &[DynamicObject; 2]| both.each_ref().map(|one| one.metadata.generation);
    ensure!(
        is_kept(&third) && generations(&third) == generations(&second),
        "after the same upgrade: {third:?}"
    );
    // The first revision has neither gate nor policy.
    helm.run(&cluster, &["rollback", "nodekeeper", "2", "--wait", "--timeout", "2m"]).await?;
    let fourth = applied(&cluster, 2, 1).await?;
    ensure!(is_kept(&fourth), "after a rollback: {fourth:?}");
    helm.run(&cluster, &["uninstall", "nodekeeper", "--wait", "--timeout", "2m"]).await?;
    let left = [gates(&cluster)?.get("default").await?, policies(&cluster)?.get("default").await?];
    ensure!(is_kept(&left), "after an uninstall: {left:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn u02_gate_and_policy_survive_helm_3() -> Result<()> {
    survives(Helm::V3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn u02_gate_and_policy_survive_helm_4() -> Result<()> {
    survives(Helm::V4).await
}

/// Runs kubectl with this input, and returns its output.
fn kubectl(cluster: &Cluster, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(cluster.kubectl());
    command.arg("--kubeconfig").arg(cluster.kubeconfig_path()).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // If it ends before it has read all, its message says why.
    drop(child.stdin.take().context("no input")?.write_all(input.as_bytes()));
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "kubectl: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8(done.stdout)?)
}

/// `helm template | kubectl apply --prune`, with these kinds among those that are pruned.
fn apply(cluster: &Cluster, manifests: &str, kinds: &[&str]) -> Result<String> {
    let kinds: Vec<String> = kinds.iter().map(|kind| format!("--prune-allowlist={kind}")).collect();
    let mut arguments =
        vec!["apply", "--prune", "--selector=app.kubernetes.io/instance=nodekeeper", "-f", "-"];
    arguments.extend(kinds.iter().map(String::as_str));
    kubectl(cluster, &arguments, manifests)
}

/// The first try fails: a namespace is missing. A controller waits for the definitions, creates gate and policy once
/// they are there, and two more tries leave both alone.
#[tokio::test(flavor = "multi_thread")]
async fn u02_a_failed_apply_and_two_that_prune_leave_gate_and_policy() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let mut values = values(2, 1);
    values["worker"] = json!({"services": {"namespaces": ["default", "later"]}});
    let Some(manifests) = or_skip(Helm::V4.template(&values))? else { return Ok(()) };
    kubectl(&cluster, &["create", "namespace", NAMESPACE], "")?;
    let objects = load_objects(applied_file(&parse(&manifests)?).context("nothing to apply")?);
    let objects = objects.map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let controller = Running::start(cluster.client()?, Settings { objects, ..settings() });
    let leases: Api<Lease> = Api::namespaced(cluster.client()?, NAMESPACE);
    until("the controller leads", async || Ok(leases.get_opt("kube-node-ready-leader").await?)).await?;

    let maps = "core/v1/ConfigMap";
    let error = apply(&cluster, &manifests, &[maps]).err().context("the namespace is there")?.to_string();
    ensure!(error.contains("\"later\" not found"), "{error}");
    let (gates, policies) = (gates(&cluster)?, policies(&cluster)?);
    let (gate, policy) = until("gate and policy are created", async || {
        // Their definitions are not served at once.
        let gate = gates.get_opt("default").await.ok().flatten();
        Ok(gate.zip(policies.get_opt("default").await.ok().flatten()))
    })
    .await?;
    // Proves that what is labelled is pruned.
    let mut other = of_an_old_hook("NodeGate", &json!({}));
    other["metadata"]["name"] = json!("other");
    kubectl(&cluster, &["apply", "-f", "-"], &other.to_string())?;
    kubectl(&cluster, &["create", "namespace", "later"], "")?;
    for _ in 0..2 {
        let kinds = ["NodeGate", "RemediationPolicy"].map(|kind| format!("nodekeeper.dev/v1alpha1/{kind}"));
        apply(&cluster, &manifests, &[maps, &kinds[0], &kinds[1]])?;
    }
    ensure!(gates.get_opt("other").await?.is_none(), "nothing was pruned");
    let left = [gates.get("default").await?, policies.get("default").await?];
    let is_same = |(now, before): (&DynamicObject, &DynamicObject)| {
        now.uid() == before.uid() && now.annotations().contains_key(LAST_APPLIED)
    };
    ensure!(left.iter().zip([&gate, &policy]).all(is_same), "{left:?}");
    controller.stop().await
}

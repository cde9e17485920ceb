//! Containers that admission adds to workers, as a service mesh does. The embedded cluster has admission for the label of a
//! namespace; a real API server gets policies for it.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use nodekeeper_core::record::InconclusiveReason;
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{controller, gate, is_gated, is_verified, node_is, record, until};
use nodekeeper_e2e::scenario::world::{IMAGE, NAMESPACE, World, machine};
use nodekeeper_sim::registry::injection::{INJECTED, LABEL};
use serde_json::json;

const FAILING_INIT: &str = "failing-init";
const NATIVE_SIDECAR: &str = "native-sidecar";

/// Makes a real API server inject these containers as the embedded one does, by a `MutatingAdmissionPolicy` each. Servers
/// before 1.36 do not serve the kind.
pub async fn install(client: &Client) -> Result<()> {
    let used = INJECTED.iter().filter(|(name, ..)| [FAILING_INIT, NATIVE_SIDECAR].contains(name));
    for (name, list, command, restarts) in used {
        let words: Vec<&str> = command.split(' ').collect();
        let restarts = if *restarts { ", restartPolicy: 'Always'" } else { "" };
        let container = format!(
            "Object.spec.{list}{{name: '{name}', image: 'mesh.example.com/proxy:1', command: {words:?}{restarts}}}"
        );
        // An ApplyConfiguration cannot set a command. The workers of the scenarios have no init containers of their own, and the
        // API server panics over a list with an object in it.
        let add =
            |path: &str, value: &str| format!("JSONPatch{{op: 'add', path: '/spec/{path}', value: {value}}}");
        let expression = format!("[{}, {}]", add(list, "[]"), add(&format!("{list}/0"), &container));
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"namespaceSelector": {"matchLabels": {LABEL: name}}, "resourceRules": rules},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]});
        for (kind, spec) in [
            ("MutatingAdmissionPolicy", spec),
            ("MutatingAdmissionPolicyBinding", json!({"policyName": name})),
        ] {
            let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            let resource = match &*kind.kind {
                "MutatingAdmissionPolicy" => "mutatingadmissionpolicies",
                _ => "mutatingadmissionpolicybindings",
            };
            let resource = ApiResource::from_gvk_with_plural(&kind, resource);
            let mut object = DynamicObject::new(name, &resource);
            object.data = json!({"spec": spec});
            match Api::all_with(client.clone(), &resource).create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                created => drop(created?),
            }
        }
    }
    Ok(())
}

/// Sets the label that decides what is injected into workers.
pub async fn label(client: &Client, container: Option<&str>) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: container}}}));
    Api::<Namespace>::all(client.clone()).patch(NAMESPACE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// From now on this container, and no other, is added to new workers.
async fn inject(world: &impl World, container: &str) -> Result<()> {
    label(&world.client(), Some(container)).await?;
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    let spec = json!({"serviceAccountName": "nodekeeper-worker", "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": IMAGE}]});
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "probe"}, "spec": spec}))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    // The API server compiles a policy and sees a label a moment later.
    until(world, &format!("{container} is injected, which needs Kubernetes 1.36 or newer"), async || {
        let admitted = pods.create(&dry_run, &pod).await?.spec.unwrap_or_default();
        let injected = admitted.init_containers.unwrap_or_default();
        Ok((injected.len() == 1 && injected[0].name == container).then_some(()))
    })
    .await
}

/// An injected init container exits 1, so that no worker runs: this uses no attempt and blames nobody. Later workers get a
/// native sidecar, which the kubelet ends with 143 after the worker has passed: the node is verified.
pub async fn g02_injected_containers_decide_nothing(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    inject(&world, FAILING_INIT).await?;
    gate(&world, "default", json!({"retry": {"maxRetries": 0, "recheckPeriodSeconds": 10}})).await?;
    let _controller = controller(&world, "a");
    world.join(machine("meshed")).await?;
    let lost = node_is(&world, "meshed", "recorded", |node| record(node).is_some()).await?;
    ensure!(is_gated(&lost), "untainted without a pass");
    let lost = record(&lost).unwrap_or_default();
    ensure!(
        lost.attempts == 0
            && lost.verdict == Some(Verdict::Inconclusive)
            && lost.cause == Some(InconclusiveReason::Other)
            && lost.why.contains(FAILING_INIT),
        "{lost:?}"
    );
    inject(&world, NATIVE_SIDECAR).await?;
    let record = is_verified(&world, "meshed").await?;
    ensure!(record.attempts == 1 && record.verdict == Some(Verdict::Passed), "{record:?}");
    let ended = observer.seen()?.ended_init;
    for (container, code) in [(FAILING_INIT, 1), (NATIVE_SIDECAR, 143)] {
        ensure!(
            ended.contains(&(container.to_owned(), code)),
            "{container} did not end with {code}: {ended:?}"
        );
    }
    Ok(())
}

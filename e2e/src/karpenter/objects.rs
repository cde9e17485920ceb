//! Karpenter objects for tests: `NodePools`, and Deployments whose pods need their nodes.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Node,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

/// The zone of all pools.
pub const ZONE: &str = "test-zone-a";

/// The field of a `NodePool` that contains a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// Karpenter expects such a taint to be removed.
    StartupTaints,
    /// Karpenter expects such a taint to stay.
    Taints,
}

#[must_use]
pub fn node_pools(client: &Client) -> Api<DynamicObject> {
    kind(client, "karpenter.sh", "v1", "NodePool")
}

#[must_use]
pub fn node_claims(client: &Client) -> Api<DynamicObject> {
    kind(client, "karpenter.sh", "v1", "NodeClaim")
}

#[must_use]
pub fn node_classes(client: &Client) -> Api<DynamicObject> {
    kind(client, "karpenter.kwok.sh", "v1alpha1", "KWOKNodeClass")
}

fn kind(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = match kind {
        // The plural is irregular.
        "KWOKNodeClass" => "kwoknodeclasses",
        "NodeClaim" => "nodeclaims",
        _ => "nodepools",
    };
    let gvk = GroupVersionKind::gvk(group, version, kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, resource))
}

/// Creates a `NodePool` with this taint, and its node class. Its nodes are in [`ZONE`], report the image [`image`], and
/// join `delay` (`0s`, `1h`) after their claim. Consolidation waits an hour, so that it does not interfere with
/// tests.
pub async fn make_pool(
    client: &Client,
    name: &str,
    taint: &str,
    under: Under,
    delay: &str,
) -> kube::Result<()> {
    let class = json!({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
        "metadata": {"name": name}, "spec": {"nodeRegistrationDelay": delay}});
    make(&node_classes(client), class).await?;
    let only = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let mut template = json!({
        "requirements": [only("kubernetes.io/arch", "amd64"), only("kubernetes.io/os", "linux"),
            only("karpenter.sh/capacity-type", "on-demand"), only("topology.kubernetes.io/zone", ZONE)],
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name},
        "expireAfter": "Never",
    });
    let field = match under {
        Under::StartupTaints => "startupTaints",
        Under::Taints => "taints",
    };
    template[field] = json!([{"key": taint, "value": "true", "effect": "NoSchedule"}]);
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "template": {"metadata": {"labels": {"karpenter.k8s.aws/instance-ami-id": image(name)}}, "spec": template},
            "limits": {"cpu": "1000"},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h"},
        },
    });
    make(&node_pools(client), pool).await
}

/// The image that the nodes of a pool report, like nodes of a cloud.
#[must_use]
pub fn image(pool: &str) -> String {
    format!("image-of-{pool}")
}

async fn make(api: &Api<DynamicObject>, object: Value) -> kube::Result<()> {
    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &object).await.map(drop)
}

/// Creates a Deployment each of whose pods needs its own node of this pool.
pub async fn make_pods(client: &Client, name: &str, pool: &str, replicas: usize) -> kube::Result<()> {
    make_pods_that_tolerate(client, name, pool, replicas, &[]).await
}

/// Like [`make_pods`], with tolerations for these taints.
pub async fn make_pods_that_tolerate(
    client: &Client,
    name: &str,
    pool: &str,
    replicas: usize,
    taints: &[&str],
) -> kube::Result<()> {
    let tolerations: Vec<Value> =
        taints.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
    let labels = json!({"app": name});
    let apart = json!({"requiredDuringSchedulingIgnoredDuringExecution":
        [{"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}]});
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"karpenter.sh/nodepool": pool},
                    "affinity": {"podAntiAffinity": apart},
                    "tolerations": tolerations,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "nodekeeper.local/any:1",
                        "resources": {"requests": {"cpu": "500m", "memory": "64Mi"}}}],
                },
            },
        },
    });
    let deployment: Deployment = serde_json::from_value(deployment).map_err(kube::Error::SerdeError)?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    deployments.create(&PostParams::default(), &deployment).await.map(drop)
}

pub async fn scale_pods(client: &Client, name: &str, replicas: usize) -> kube::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

/// Creates a budget that forbids every eviction of a Deployment's pods.
pub async fn keep_pods(client: &Client, name: &str) -> kube::Result<()> {
    let budget = json!({"metadata": {"name": name},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}});
    let budget: PodDisruptionBudget = serde_json::from_value(budget).map_err(kube::Error::SerdeError)?;
    budgets(client).create(&PostParams::default(), &budget).await.map(drop)
}

/// Deletes the budget of [`keep_pods`].
pub async fn let_pods_go(client: &Client, name: &str) -> kube::Result<()> {
    budgets(client).delete(name, &DeleteParams::default()).await.map(drop)
}

fn budgets(client: &Client) -> Api<PodDisruptionBudget> {
    Api::namespaced(client.clone(), "default")
}

pub async fn nodes_of(client: &Client, pool: &str) -> kube::Result<Vec<Node>> {
    let of_pool = ListParams::default().labels(&format!("karpenter.sh/nodepool={pool}"));
    Ok(Api::<Node>::all(client.clone()).list(&of_pool).await?.items)
}

pub async fn claims_of(client: &Client, pool: &str) -> kube::Result<Vec<DynamicObject>> {
    let of_pool = ListParams::default().labels(&format!("karpenter.sh/nodepool={pool}"));
    Ok(node_claims(client).list(&of_pool).await?.items)
}

/// The claim in the owner references of a node.
pub async fn claim_of(client: &Client, node: &Node) -> kube::Result<Option<DynamicObject>> {
    match node.owner_references().iter().find(|owner| owner.kind == "NodeClaim") {
        Some(owner) => node_claims(client).get_opt(&owner.name).await,
        None => Ok(None),
    }
}

/// The status of a condition of a claim.
#[must_use]
pub fn condition<'a>(claim: &'a DynamicObject, type_: &str) -> Option<&'a str> {
    let conditions = claim.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == type_)?["status"].as_str()
}

/// Deletes a claim, as consolidation, drift and `kubectl delete nodeclaim` do.
pub async fn delete_claim(client: &Client, claim: &str) -> kube::Result<()> {
    node_claims(client).delete(claim, &DeleteParams::default()).await.map(drop)
}

/// Deletes all objects created here. Karpenter must run, because it removes the finalizers.
pub async fn delete_all(client: &Client) -> kube::Result<()> {
    let (now, all) = (DeleteParams::default(), ListParams::default());
    // Pods first; otherwise Karpenter provisions for them again.
    let whole = DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..now.clone() };
    Api::<Deployment>::namespaced(client.clone(), "default").delete_collection(&whole, &all).await?;
    budgets(client).delete_collection(&now, &all).await?;
    node_pools(client).delete_collection(&now, &all).await?;
    node_claims(client).delete_collection(&now, &all).await?;
    node_classes(client).delete_collection(&now, &all).await?;
    Ok(())
}

/// How many claims, pools and classes still exist.
pub async fn left(client: &Client) -> kube::Result<usize> {
    let mut left = 0;
    for api in [node_claims(client), node_pools(client), node_classes(client)] {
        left += api.list_metadata(&ListParams::default()).await?.items.len();
    }
    Ok(left)
}

/// The name of the instance of a claim, which is also the name of its Node.
#[must_use]
pub fn instance_of(claim: &DynamicObject) -> Option<&str> {
    claim.data["status"]["providerID"].as_str()?.strip_prefix("kwok://")
}

/// Whether a node has the label that Karpenter sets at this stage: `registered` or `initialized`.
#[must_use]
pub fn is(node: &Node, so_far: &str) -> bool {
    node.labels().get(&format!("karpenter.sh/{so_far}")).is_some_and(|value| value == "true")
}

/// Whether Karpenter is disrupting a node.
#[must_use]
pub fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    node.meta().deletion_timestamp.is_some()
        || taints.into_iter().flatten().any(|taint| taint.key == "karpenter.sh/disrupted")
}

/// Grants a user everything a controller needs, except to read claims. Idempotent.
pub async fn grant_all_but_claims(client: &Client, user: &str) -> kube::Result<()> {
    let rules = [
        all("", &["*"]),
        all("apps", &["*"]),
        all("coordination.k8s.io", &["*"]),
        all("events.k8s.io", &["*"]),
        all("policy", &["*"]),
        all("discovery.k8s.io", &["*"]),
        all("nodekeeper.dev", &["*"]),
        all("karpenter.sh", &["nodepools"]),
        json!({"apiGroups": ["karpenter.sh"], "resources": ["nodeclaims"], "verbs": ["delete"]}),
    ];
    grant(client, user, user, &rules).await
}

/// Grants a user full access to claims.
pub async fn grant_claims(client: &Client, user: &str) -> kube::Result<()> {
    grant(client, &format!("{user}-claims"), user, &[all("karpenter.sh", &["nodeclaims"])]).await
}

fn all(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["*"]})
}

async fn grant(client: &Client, role: &str, user: &str, rules: &[Value]) -> kube::Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let rules = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules,
    });
    let ours = PatchParams::apply("e2e").force();
    Api::<ClusterRole>::all(client.clone()).patch(role, &ours, &Patch::Apply(rules)).await?;
    Api::<ClusterRoleBinding>::all(client.clone()).patch(role, &ours, &Patch::Apply(binding)).await?;
    Ok(())
}

//! Tests of the real control plane that other tiers rely on.

mod processes;
mod teardown;

use std::process::Command;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use nodekeeper_e2e::{
    Cluster,
    assets::{Assets, Settings},
    control_plane::Options,
    or_skip,
    scenario::eventually,
};
use serde_json::{Value, json};

#[tokio::test]
async fn it_serves_the_requested_version() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
    let answer = cluster.client()?.apiserver_version().await?.git_version;

    let settings = Settings::from_env()?;
    let binary = Assets::ensure(&settings)?.path("kube-apiserver");
    let said = Command::new(binary).arg("--version").output()?.stdout;
    assert_eq!(String::from_utf8(said)?.trim(), format!("Kubernetes {answer}"));
    if settings.prebuilt.is_none() {
        assert_eq!(answer, format!("v{}", settings.kube));
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_works_with_the_kubeconfig() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
    let output = Command::new(cluster.kubectl())
        .args(["get", "namespaces", "-o", "name"])
        .env("KUBECONFIG", cluster.kubeconfig_path())
        .output()?;
    let namespaces = String::from_utf8(output.stdout)?;
    assert!(namespaces.lines().any(|line| line == "namespace/kube-system"), "{namespaces}");
    Ok(())
}

#[tokio::test]
async fn rbac_refuses_what_it_does_not_grant() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
    let nodes_as = |groups: &[&str]| Ok::<_, anyhow::Error>(Api::all(cluster.client_as("ada", groups)?));
    let unprivileged: Api<Node> = nodes_as(&[])?;
    let reader: Api<Node> = nodes_as(&["others", "node-readers"])?;
    assert_forbidden(&unprivileged.list(&ListParams::default()).await);
    assert_forbidden(&reader.list(&ListParams::default()).await);

    let client = cluster.client()?;
    let may_list = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]});
    let role = json!({"metadata": {"name": "node-reader"}, "rules": [may_list]});
    create::<ClusterRole>(&Api::all(client.clone()), role).await?;
    let binding = json!({
        "metadata": {"name": "node-readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "node-reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "node-readers"}],
    });
    create::<ClusterRoleBinding>(&Api::all(client), binding).await?;

    // The authorizer sees the change through a watch.
    eventually("the grant to count", async || Ok(reader.list(&ListParams::default()).await.is_ok())).await?;
    assert_forbidden(&reader.delete("any", &kube::api::DeleteParams::default()).await);
    assert_forbidden(&unprivileged.list(&ListParams::default()).await);
    Ok(())
}

#[tokio::test]
async fn controllers_make_service_accounts_and_pods() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
    let client = cluster.client()?;
    let namespace = create_namespace(&client, "controllers").await?;

    let labels = json!({"app": "web"});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()},
        },
    });
    create::<Deployment>(&Api::namespaced(client.clone(), &namespace), deployment).await?;

    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    eventually("two pods", async || {
        let made = pods.list(&ListParams::default().labels("app=web")).await?.items;
        ensure!(made.iter().all(|pod| pod.owner_references()[0].kind == "ReplicaSet"));
        // Added by the ServiceAccount admission plugin.
        let account = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        ensure!(made.iter().all(|pod| account(pod).as_deref() == Some("default")));
        Ok(made.len() == 2)
    })
    .await
}

#[tokio::test]
async fn the_scheduler_binds_a_pod_to_a_node_without_a_kubelet() -> anyhow::Result<()> {
    let Some(cluster) = or_skip(Cluster::shared().await)? else { return Ok(()) };
    let client = cluster.client()?;
    let namespace = create_namespace(&client, "scheduler").await?;

    let nodes: Api<Node> = Api::all(client.clone());
    create::<Node>(&nodes, json!({"metadata": {"name": "node", "labels": {"for": "scheduler"}}})).await?;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut spec = pod_spec();
    spec["nodeSelector"] = json!({"for": "scheduler"});
    create::<Pod>(&pods, json!({"metadata": {"name": "pod"}, "spec": spec})).await?;

    eventually("the pod to be bound", async || {
        // Repeated like a kubelet's heartbeat; otherwise the node does not stay Ready.
        let heartbeat = json!({"status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "",
                "lastHeartbeatTime": jiff::Timestamp::now().to_string(),
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        nodes.patch_status("node", &PatchParams::default(), &Patch::Merge(heartbeat)).await?;
        let pod = pods.get("pod").await?;
        Ok(pod.spec.and_then(|spec| spec.node_name).as_deref() == Some("node"))
    })
    .await
}

#[tokio::test]
async fn two_clusters_are_independent() -> anyhow::Result<()> {
    let both = async { tokio::try_join!(Cluster::control_plane(), Cluster::control_plane()) };
    let Some((one, other)) = or_skip(both.await)? else { return Ok(()) };
    let config_maps = |cluster: &Cluster| {
        Ok::<_, anyhow::Error>(Api::<ConfigMap>::namespaced(cluster.client()?, "default"))
    };
    create(&config_maps(&one)?, json!({"metadata": {"name": "mine"}})).await?;
    assert!(config_maps(&one)?.get_opt("mine").await?.is_some());
    assert!(config_maps(&other)?.get_opt("mine").await?.is_none());

    // Stopping one does not stop the other.
    one.stop();
    assert!(config_maps(&other)?.get_opt("mine").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_component_that_does_not_start_reports_why() -> anyhow::Result<()> {
    let mut options = Options::from_env()?;
    options.controller_manager_flags.push("--no-such-flag".into());
    let Some(_) = or_skip(Assets::ensure(&options.settings).map_err(Into::into))? else { return Ok(()) };
    let error = Cluster::start(options).await.err().context("it started with an unknown flag")?.to_string();
    assert!(error.contains("kube-controller-manager ended"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    Ok(())
}

fn assert_forbidden<T: std::fmt::Debug>(answer: &kube::Result<T>) {
    let forbidden = matches!(answer, Err(kube::Error::Api(status)) if status.code == 403);
    assert!(forbidden, "not forbidden: {answer:?}");
}

async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<String> {
    create::<Namespace>(&Api::all(client.clone()), json!({"metadata": {"name": name}})).await?;
    // Without the default ServiceAccount no pod is admitted.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    eventually("the service account", async || Ok(accounts.get_opt("default").await?.is_some())).await?;
    Ok(name.to_owned())
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "main", "image": "example.invalid/none:1"}]})
}

//! CEL rules of NodeRemediation and RemediationPolicy, which only a real API server evaluates, and documented
//! commands and examples, which must be accepted.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_e2e::{Cluster, or_skip};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::{helm, start};

fn policy(spec: &Value) -> Value {
    json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": spec})
}

fn named(name: &str) -> Value {
    let mut policy = policy(&json!({}));
    policy["metadata"]["name"] = name.into();
    policy
}

fn window(start: &str, end: &str) -> Value {
    policy(&json!({"windows": [{"days": ["Saturday"], "start": start, "end": end}]}))
}

/// A NodeRemediation with these fields changed.
fn remediation(name: &str, differently: &Value) -> Value {
    let mut spec = json!({"node": {"name": "n", "uid": "u"}, "causes": [{"source": "Person", "name": "me"}]});
    for (key, value) in differently.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": name}, "spec": spec})
}

fn good() -> Vec<Value> {
    let checks = json!([{"name": "dns", "target": "a.b", "reason": "Timeout"}]);
    let causes = json!([
        {"source": "Gate", "name": "default", "verdict": "Failed", "checks": checks, "message": "why", "observedAt": "2026-01-31T18:00:00Z"},
        {"source": "Person", "name": "default"},
    ]);
    vec![
        policy(&json!({})),
        policy(
            &json!({"enforcement": "Enforce", "pause": {"reason": "why", "until": "2026-01-31T18:00:00Z"}}),
        ),
        policy(&json!({"breaker": {"openPercent": 20, "closePercent": 20}})),
        policy(&json!({"drain": {"podOvertimeSeconds": 60, "timeoutSeconds": 60, "unmanagedPods": "Evict"}})),
        policy(&json!({"fuse": {"resetAt": "2026-01-31T18:00:00Z"}, "budget": {"maxPerHour": 0}})),
        policy(
            &json!({"allowedControlPlaneNodes": ["a"], "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}]}),
        ),
        window("22:30", "04:00"),
        remediation("u", &json!({})),
        remediation("u", &json!({"causes": causes, "action": "Replace"})),
    ]
}

/// Each with a part of the error message.
fn bad() -> Vec<(Value, &'static str)> {
    let twice = json!([{"source": "Person", "name": "me"}, {"source": "Person", "name": "me"}]);
    vec![
        (named("other"), "must be 'default'"),
        (policy(&json!({"enforcement": "Yes"})), "Unsupported value"),
        (
            policy(&json!({"breaker": {"openPercent": 5}})),
            "`spec.breaker.closePercent` must not be more than",
        ),
        (
            policy(&json!({"drain": {"timeoutSeconds": 60}})),
            "`spec.drain.podOvertimeSeconds` must not be more than",
        ),
        (policy(&json!({"drain": {"unmanagedPods": "Delete"}})), "Unsupported value"),
        (policy(&json!({"pause": {"until": "2026-01-31T18:00:00Z"}})), "spec.pause.reason"),
        (policy(&json!({"pause": {"reason": "why"}})), "spec.pause.until"),
        (policy(&json!({"pause": {"reason": "why", "until": "tomorrow"}})), "date-time"),
        (policy(&json!({"budget": {"maxInFlight": -1}})), "spec.budget.maxInFlight"),
        (policy(&json!({"evidenceSeconds": 59})), "spec.evidenceSeconds"),
        (policy(&json!({"fuse": {"generations": 0}})), "spec.fuse.generations"),
        (policy(&json!({"history": {"ttlSeconds": 60}})), "spec.history.ttlSeconds"),
        (
            policy(&json!({"deleteNodeObjectFor": [{"source": "Gate", "name": ""}]})),
            "spec.deleteNodeObjectFor",
        ),
        (window("24:00", "04:00"), "start"),
        (window("22:30", "4:00"), "end"),
        (remediation("n", &json!({})), "`metadata.name` must be `spec.node.uid`"),
        (remediation("u", &json!({"causes": []})), "spec.causes"),
        (remediation("u", &json!({"causes": twice})), "Duplicate value"),
        (remediation("u", &json!({"causes": [{"source": "Ghost", "name": "me"}]})), "Unsupported value"),
        (remediation("u", &json!({"action": "Delete"})), "Unsupported value"),
    ]
}

fn api(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let resource = match object["kind"].as_str() {
        Some("NodeGate") => ApiResource::erase::<NodeGate>(&()),
        Some("NodeRemediation") => ApiResource::erase::<NodeRemediation>(&()),
        Some("RemediationPolicy") => ApiResource::erase::<RemediationPolicy>(&()),
        other => bail!("{other:?}"),
    };
    Ok(Api::all_with(client.clone(), &resource))
}

/// The response to a dry-run creation.
async fn tried(client: &Client, object: &Value) -> Result<kube::Result<DynamicObject>> {
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    Ok(api(client, object)?.create(&only_tried, &serde_json::from_value(object.clone())?).await)
}

/// One object per file.
fn examples() -> Result<Vec<Value>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "yaml") {
            let documents: Vec<Value> = serde_saphyr::from_str_multiple(&fs::read_to_string(&path)?)?;
            all.extend(documents);
        }
    }
    ensure!(all.len() >= 6, "{} examples", all.len());
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_objects_are_refused_and_documented_ones_accepted() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let values = json!({"controller": {"replicas": 0}, "gate": {"create": false}, "remediation": {"policy": {"create": false}}});
    let Some(()) = or_skip(helm::install(&cluster, &values).await)? else { return Ok(()) };
    let client = cluster.client()?;
    for object in good().into_iter().chain(examples()?) {
        let answer = tried(&client, &object).await?;
        ensure!(answer.is_ok(), "{object} is refused: {answer:?}");
    }
    for (object, words) in bad() {
        match tried(&client, &object).await? {
            Ok(_) => bail!("{object} is taken"),
            Err(error) => ensure!(error.to_string().contains(words), "{object}: {error}"),
        }
    }
    the_node_of_a_remediation_is_immutable(&client).await?;
    documented_commands_work(cluster).await
}

async fn the_node_of_a_remediation_is_immutable(client: &Client) -> Result<()> {
    let remediations = api(client, &remediation("u", &json!({})))?;
    let made = remediations
        .create(&PostParams::default(), &serde_json::from_value(remediation("u", &json!({})))?)
        .await?;
    for (node, words) in [
        (json!({"name": "n", "uid": "u"}), None),
        (json!({"name": "m", "uid": "u"}), Some("`spec.node` must not change")),
        (json!({"name": "n", "uid": "u", "bootID": "b"}), None),
    ] {
        let mut changed = made.clone();
        changed.data["spec"]["node"] = node.clone();
        changed.data["spec"]["causes"][0]["message"] = "again".into();
        let only_tried = PostParams { dry_run: true, ..PostParams::default() };
        let error =
            remediations.replace("u", &only_tried, &changed).await.err().map(|error| error.to_string());
        match words {
            None => ensure!(error.is_none(), "{node}: {error:?}"),
            Some(words) => {
                ensure!(error.as_ref().is_some_and(|error| error.contains(words)), "{node}: {error:?}");
            }
        }
    }
    remediations.delete("u", &DeleteParams::default()).await?;
    Ok(())
}

/// Runs the commands of docs/remediation.md that change objects, in order, in a shell.
async fn documented_commands_work(cluster: Cluster) -> Result<()> {
    let client = cluster.client()?;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "node-1"}, "status": {"nodeInfo": {"bootID": "b", "machineID": "", "systemUUID": "",
        "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
        "operatingSystem": "", "architecture": ""}}});
    let node = nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let asked = policy(&json!({"enforcement": "DryRun"}));
    api(&client, &asked)?.create(&PostParams::default(), &serde_json::from_value(asked)?).await?;
    let typed =
        spawn_blocking(move || run_documented_commands(&cluster).map(|typed| (typed, cluster))).await??;
    ensure!(typed.0 >= 6, "only {} lines change anything", typed.0);

    let uid = node.uid().context("no uid")?;
    let wished = Api::<NodeRemediation>::all(client.clone()).get(&uid).await?.spec;
    ensure!(wished.node.name == "node-1" && wished.node.boot_id == "b", "{wished:?}");
    let policy = Api::<RemediationPolicy>::all(client).get("default").await?;
    let has = |key: &str| policy.annotations().contains_key(key);
    ensure!(!has("nodekeeper.dev/pause-until") && has("nodekeeper.dev/reset-fuse"), "{policy:?}");
    Ok(())
}

fn run_documented_commands(cluster: &Cluster) -> Result<usize> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/remediation.md");
    let page = fs::read_to_string(page)?;
    let kubectl = cluster.kubectl();
    let path = format!("{}:{}", kubectl.parent().context("no folder")?.display(), std::env::var("PATH")?);
    let changes = |line: &&str| {
        ["kubectl patch ", "kubectl annotate ", "kubectl get node "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let lines: Vec<&str> = page.lines().filter(changes).collect();
    for line in &lines {
        let mut shell = Command::new("sh");
        shell.args(["-ec", line]).env("PATH", &path).env("KUBECONFIG", cluster.kubeconfig_path());
        let typed = shell.env("NODE", "node-1").env("USER", "me").output()?;
        let said = String::from_utf8_lossy(&typed.stderr);
        ensure!(typed.status.success() && said.is_empty(), "{line}\n{said}");
    }
    Ok(lines.len())
}

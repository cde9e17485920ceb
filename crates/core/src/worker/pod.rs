//! The pod of a worker.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{CHECK_PREFIX, CONTAINER, NODE_NAME, NODE_UID, Role, SUBJECT};
use crate::api::{EnvVar, InitContainer, NodeGateSpec, SecurityContext, Toleration, Volume, Worker};
use crate::checks::{Assignment, Checks, Exec, WorkerIdentity};
use crate::node::NodeView;
use crate::report::MESSAGE_LIMIT;

/// The seed's default taints that a node bears before it is ready for anything.
const EARLY_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The volume with what the kubelet gives to a pod that asks the API server. Nobody else's may be called so.
const ACCESS: &str = "nodekeeper-access";
const ACCESS_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where the worker finds the ConfigMaps of its gate, each in a folder of its volume's name.
const FILES_PATH: &str = "/etc/nodekeeper";

/// What the controller was installed with and every worker gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Where workers run.
    pub namespace: String,
    /// What they run, where the gate says nothing else.
    pub image: String,
    /// As whom.
    pub service_account: String,
    /// Their priority class; none if empty.
    pub priority_class: String,
    /// Secrets to pull their images with, besides those of the gate.
    pub pull_secrets: Vec<String>,
    /// What a gate may ask for beyond what is harmless.
    pub allowed: Allowed,
}

/// What a gate may ask for beyond what is harmless. Whoever writes gates must not become root by it, so whoever installs
/// the controller says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Accounts, besides the one of [`Template`].
    pub service_accounts: Vec<String>,
    /// Paths of the node, and what is below them.
    pub host_paths: Vec<String>,
    /// Init containers that are root or can become it.
    pub privileged: bool,
}

/// What the installation does not allow, and what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` must not be {value}: {fix}")]
pub struct Forbidden {
    field: String,
    value: String,
    fix: &'static str,
}

impl Forbidden {
    fn new(field: impl Into<String>, value: impl Into<String>, fix: &'static str) -> Self {
        Self { field: field.into(), value: value.into(), fix }
    }
}

impl Allowed {
    /// Whether a gate asks for no more than is allowed.
    ///
    /// # Errors
    /// Says what it must not ask for, and who can allow it.
    pub fn permits(&self, worker: &Worker, own_account: &str) -> Result<(), Forbidden> {
        if let Some(account) = &worker.service_account_name
            && account != own_account
            && !self.service_accounts.contains(account)
        {
            let fix = "the chart allows accounts with `worker.allowed.serviceAccounts`";
            return Err(Forbidden::new("spec.worker.serviceAccountName", format!("'{account}'"), fix));
        }
        for volume in &worker.volumes {
            self.permits_volume(volume)?;
        }
        let known = |name: &str| worker.volumes.iter().any(|volume| volume.name == name);
        for container in &worker.init_containers {
            if let Some(mount) = container.volume_mounts.iter().find(|mount| !known(&mount.name)) {
                let field = format!("spec.worker.initContainers[{}].volumeMounts", container.name);
                let fix = "there is no volume of that name in `spec.worker.volumes`";
                return Err(Forbidden::new(field, format!("'{}'", mount.name), fix));
            }
            self.permits_context(container)?;
        }
        Ok(())
    }

    fn permits_volume(&self, volume: &Volume) -> Result<(), Forbidden> {
        if volume.name == ACCESS {
            let fix = "that is the volume with the worker's token; choose another name";
            return Err(Forbidden::new("spec.worker.volumes[].name", format!("'{ACCESS}'"), fix));
        }
        let Some(asked) = volume.host_path.as_ref().map(|host| host.path.as_str()) else { return Ok(()) };
        let below = |path: &String| {
            let root = path.trim_end_matches('/');
            asked.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.host_paths.iter().any(below) && !asked.split('/').any(|part| part == "..") {
            return Ok(());
        }
        let field = format!("spec.worker.volumes[{}].hostPath.path", volume.name);
        let fix = "the chart allows paths of the node with `worker.allowed.hostPaths`";
        Err(Forbidden::new(field, format!("'{asked}'"), fix))
    }

    fn permits_context(&self, container: &InitContainer) -> Result<(), Forbidden> {
        let Some(context) = container.security_context.as_ref().filter(|_| !self.privileged) else {
            return Ok(());
        };
        let SecurityContext { privileged, run_as_non_root, run_as_user, allow_privilege_escalation, .. } =
            context;
        let wrong = if *privileged == Some(true) {
            ("privileged", "true")
        } else if *allow_privilege_escalation == Some(true) {
            ("allowPrivilegeEscalation", "true")
        } else if *run_as_non_root == Some(false) {
            ("runAsNonRoot", "false")
        } else if *run_as_user == Some(0) {
            ("runAsUser", "0")
        } else {
            return Ok(());
        };
        let field = format!("spec.worker.initContainers[{}].securityContext.{}", container.name, wrong.0);
        Err(Forbidden::new(field, wrong.1, "the chart allows it with `worker.allowed.privileged`"))
    }
}

/// Why there is no pod.
#[derive(Debug, thiserror::Error)]
pub enum NoPod {
    /// The gate asks for what is not allowed.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// A field cannot be written as JSON, which none can be.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The pod of a worker.
///
/// # Errors
/// Where the gate asks for what the installation does not allow.
pub fn pod(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    identity: &WorkerIdentity,
) -> Result<Pod, NoPod> {
    build(template, node, gate, identity, Role::Verify)
}

/// The pod of a worker that looks at a node only to compare others with it.
///
/// # Errors
/// Where the gate asks for what the installation does not allow.
pub fn control_pod(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    identity: &WorkerIdentity,
) -> Result<Pod, NoPod> {
    build(template, node, gate, identity, Role::Control)
}

fn build(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    identity: &WorkerIdentity,
    role: Role,
) -> Result<Pod, NoPod> {
    let worker = &gate.worker;
    template.allowed.permits(worker, &template.service_account)?;
    let assignment = Assignment {
        identity: identity.clone(),
        check_timeout_seconds: gate.deadlines.check_seconds.unsigned_abs(),
        // Ends by itself, with a report, before the kubelet ends it without one.
        deadline_seconds: gate.deadlines.worker_seconds.unsigned_abs().saturating_sub(5).max(1),
        report_bytes: report_bytes(1 + gate.checks.exec.len() + worker.init_containers.len()),
        checks: Checks { exec: Vec::new(), ..gate.checks.clone() },
    };
    let priority = worker.priority_class_name.as_ref().unwrap_or(&template.priority_class);
    let secrets: Vec<Value> =
        template.pull_secrets.iter().chain(&worker.pull_secrets).map(|name| json!({"name": name})).collect();
    let init: Vec<Value> = worker.init_containers.iter().map(|one| init_container(one, worker)).collect();
    let access = access(&gate.checks);
    let mut containers = vec![container(template, gate, &assignment, access.is_some())?];
    containers.extend(gate.checks.exec.iter().map(|check| exec(check, worker)));
    let volumes: Vec<Value> = worker.volumes.iter().map(|volume| json!(volume)).chain(access).collect();
    Ok(serde_json::from_value(json!({
        "metadata": metadata(template, node, identity, role)?,
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": gate.deadlines.worker_seconds,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": worker.service_account_name.as_ref().unwrap_or(&template.service_account),
            // It would be there for everybody's containers; see `access`.
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "priorityClassName": (!priority.is_empty()).then_some(priority),
            "imagePullSecrets": (!secrets.is_empty()).then_some(secrets),
            "affinity": pinned_to(&node.name),
            "tolerations": tolerations(node, gate),
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": (!init.is_empty()).then_some(init),
            "containers": containers,
            "volumes": (!volumes.is_empty()).then_some(volumes),
        },
    }))?)
}

/// The kubelet keeps so much of what all containers of a pod say together, and shares it out evenly.
fn report_bytes(containers: usize) -> Option<u32> {
    let share = 12 * 1024 / containers;
    (share < MESSAGE_LIMIT).then(|| u32::try_from(share).unwrap_or_default())
}

fn metadata(
    template: &Template,
    node: &NodeView,
    identity: &WorkerIdentity,
    role: Role,
) -> Result<Value, serde_json::Error> {
    let labels: BTreeMap<&str, &str> = BTreeMap::from([
        ("app.kubernetes.io/name", "nodekeeper"),
        ("app.kubernetes.io/component", role.component()),
        ("app.kubernetes.io/managed-by", "nodekeeper"),
        (NODE_UID, &*node.uid),
        // A mesh's sidecar would have to start before we can look, and may never end.
        ("sidecar.istio.io/inject", "false"),
    ]);
    Ok(json!({
        "name": role.name(&node.uid, identity.number),
        "namespace": template.namespace,
        "labels": labels,
        "annotations": {
            NODE_NAME: &*node.name,
            SUBJECT: serde_json::to_string(identity)?,
            "linkerd.io/inject": "disabled",
        },
        // Gone with the node, whatever else happens.
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": &*node.name, "uid": node.uid}],
    }))
}

/// The gate's taints, those that a node bears while it comes up, and all others that it bears now: a node for GPUs or
/// one that a second gate holds is looked at like any other.
fn tolerations(node: &NodeView, gate: &NodeGateSpec) -> Vec<Value> {
    let own = gate.taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str()));
    let borne = node.taints.iter().map(|taint| (&*taint.key, &*taint.effect));
    let early = EARLY_TAINTS.iter().flat_map(|key| [(*key, "NoSchedule"), (*key, "NoExecute")]);
    let all: BTreeSet<(&str, &str)> = own.chain(borne).chain(early).collect();
    let toleration =
        |(key, effect): (&str, &str)| json!({"key": key, "operator": "Exists", "effect": effect});
    let asked = gate.worker.tolerations.iter().map(|asked| match asked.operator {
        Some(_) => json!(asked),
        // As the seed has it; Kubernetes itself would take it for `Equal`.
        None => json!(Toleration { operator: Some("Exists".into()), ..asked.clone() }),
    });
    all.into_iter().map(toleration).chain(asked).collect()
}

/// By name and not by the hostname label, which may differ from it.
fn pinned_to(node: &str) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]}}})
}

/// What the worker needs to ask the API server, or to trust who shows a certificate of the cluster. A token lives as
/// short as the API server allows.
fn access(checks: &Checks) -> Option<Value> {
    let authority = json!({"configMap": {
        "name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }});
    let sources = if checks.need_token() {
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
        let field = json!({"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}});
        vec![token, authority, json!({"downwardAPI": {"items": [field]}})]
    } else if checks.need_authority() {
        vec![authority]
    } else {
        return None;
    };
    Some(json!({"name": ACCESS, "projected": {"sources": sources}}))
}

/// What the worker's own container mounts; none of it can be written to.
fn mounts(worker: &Worker, has_access: bool) -> Vec<Value> {
    let mount = |name: &str, path: String| json!({"name": name, "mountPath": path, "readOnly": true});
    let files = worker.volumes.iter().filter(|volume| volume.config_map.is_some());
    files
        .map(|volume| mount(&volume.name, format!("{FILES_PATH}/{}", volume.name)))
        .chain(has_access.then(|| mount(ACCESS, ACCESS_PATH.to_owned())))
        .collect()
}

/// What every container of ours may do: nothing.
fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

fn container(
    template: &Template,
    gate: &NodeGateSpec,
    assignment: &Assignment,
    has_access: bool,
) -> Result<Value, serde_json::Error> {
    let worker = &gate.worker;
    let mut env = vec![
        json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        json!({"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
        json!({"name": Assignment::ENV, "value": serde_json::to_string(assignment)?}),
    ];
    let is_ours = |var: &&EnvVar| env.iter().all(|own| own["name"] != var.name.as_str());
    let asked: Vec<Value> = worker.env.iter().filter(is_ours).map(|var| json!(var)).collect();
    env.extend(asked);
    let usual = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    Ok(json!({
        "name": CONTAINER,
        "image": worker.image.as_ref().unwrap_or(&template.image),
        "imagePullPolicy": worker.pull_policy.as_str(),
        "command": ["/nodekeeper-worker"],
        "env": env,
        "terminationMessagePolicy": "File",
        "securityContext": confined(),
        "volumeMounts": mounts(worker, has_access),
        "resources": worker.resources.as_ref().map_or(usual, |asked| json!(asked)),
    }))
}

/// A check of the user's: a container beside ours, whose exit code counts.
fn exec(check: &Exec, worker: &Worker) -> Value {
    let mut container = json!(check);
    container["name"] = json!(format!("{CHECK_PREFIX}{}", check.name));
    let mut env =
        vec![json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})];
    env.extend(check.env.iter().map(|var| json!(var)));
    container["env"] = json!(env);
    container["securityContext"] = confined();
    container["imagePullPolicy"] = json!(worker.pull_policy.as_str());
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container
}

fn init_container(asked: &InitContainer, worker: &Worker) -> Value {
    let mut container = json!(asked);
    let mut context = confined();
    if let (Some(given), Some(all)) =
        (asked.security_context.as_ref().map(|given| json!(given)), context.as_object_mut())
    {
        all.extend(given.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        if all.get("privileged") == Some(&json!(true)) {
            // The two exclude each other.
            all.remove("capabilities");
            all.insert("allowPrivilegeEscalation".into(), json!(true));
        }
    }
    container["securityContext"] = context;
    container["imagePullPolicy"] = json!(worker.pull_policy.as_str());
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container
}

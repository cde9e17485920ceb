//! Builds the pod of a worker.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{CHECK_PREFIX, CONTAINER, EXEC_CHECKS, INIT_CONTAINERS, NODE_NAME, NODE_UID, Role, SUBJECT};
use crate::api::{InitContainer, NodeGateSpec, Resources, SecurityContext, Volume, Worker};
use crate::checks::{Assignment, CaReference, Checks, Exec, WorkerIdentity};
use crate::env_var::EnvVar;
use crate::node::NodeView;
use crate::report::MESSAGE_LIMIT;

/// Taints of a node that is coming up. kube-node-ready tolerates them by default.
const EARLY_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The prefix of the volumes that the controller adds.
const OWN_VOLUMES: &str = "nodekeeper-";
/// The volume with the token and the CA certificate of the cluster.
const ACCESS: &str = "nodekeeper-access";
const ACCESS_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The volume with the CA certificates of URLs. Each file is at `<ConfigMap>/<key>`.
const CA: &str = "nodekeeper-ca";
const CA_PATH: &str = "/etc/nodekeeper/ca";

/// The settings of the installation that apply to every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The namespace of the worker pods.
    pub namespace: String,
    /// The image of the worker, unless the gate names another.
    pub image: String,
    /// The ServiceAccount of the worker, unless the gate names another.
    pub service_account: String,
    /// The priority class of the worker; none if it is empty.
    pub priority_class: String,
    /// Secrets for pulling images, in addition to those of the gate.
    pub pull_secrets: Vec<String>,
    /// What gates may use beyond the defaults.
    pub allowed: Allowed,
}

/// What the installation lets gates use. A user who can write gates must not become root, read Secrets, get the token of
/// the workers or preempt system pods that way, so by default all of it is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Images of the container `worker`, in addition to that of [`Template`]. Each stands for itself, for its tags and
    /// digests, and for all images below it.
    pub images: Vec<String>,
    /// Priority classes that begin with `system-`, in addition to that of [`Template`].
    pub priority_classes: Vec<String>,
    /// ServiceAccounts, in addition to that of [`Template`].
    pub service_accounts: Vec<String>,
    /// Secrets in the namespace of the workers that containers may read.
    pub secrets: Vec<String>,
    /// Paths of the node, with everything below them.
    pub host_paths: Vec<String>,
    /// Whether init containers may run as root or gain privileges.
    pub privileged: bool,
}

/// A field of a gate that the installation does not allow.
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

impl Template {
    /// Checks that a gate uses no more than the installation allows.
    ///
    /// # Errors
    /// Names the field that is not allowed and the setting that would allow it.
    pub fn permits(&self, gate: &NodeGateSpec) -> Result<(), Forbidden> {
        let (worker, allowed) = (&gate.worker, &self.allowed);
        if let Some(account) = &worker.service_account_name
            && *account != self.service_account
            && !allowed.service_accounts.contains(account)
        {
            let fix = "the chart allows accounts with `worker.allowed.serviceAccounts`";
            return Err(Forbidden::new("spec.worker.serviceAccountName", format!("'{account}'"), fix));
        }
        if let Some(image) = &worker.image
            && *image != self.image
            && !allowed.images.iter().any(|allowed| is_image_of(image, allowed))
        {
            let fix = "the chart allows images with `worker.allowed.images`";
            return Err(Forbidden::new("spec.worker.image", format!("'{image}'"), fix));
        }
        if let Some(class) = &worker.priority_class_name
            && class.starts_with("system-")
            && *class != self.priority_class
            && !allowed.priority_classes.contains(class)
        {
            let fix = "the chart allows system classes with `worker.allowed.priorityClasses`";
            return Err(Forbidden::new("spec.worker.priorityClassName", format!("'{class}'"), fix));
        }
        allowed.permits(gate)
    }
}

/// Whether an image is the allowed one, a tag or digest of it, or below it: `r/team` allows `r/team/worker:1`.
fn is_image_of(image: &str, allowed: &str) -> bool {
    let below = image.strip_prefix(allowed.trim_end_matches('/'));
    !allowed.is_empty() && below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '@']))
}

impl Allowed {
    fn permits(&self, gate: &NodeGateSpec) -> Result<(), Forbidden> {
        let worker = &gate.worker;
        for volume in &worker.volumes {
            self.permits_volume(volume)?;
        }
        self.permits_env("spec.worker.env", &worker.env)?;
        permits_resources("spec.worker.resources", worker.resources.as_ref())?;
        for check in &gate.checks.exec {
            self.permits_env(&format!("spec.checks.exec[{}].env", check.name), &check.env)?;
        }
        let known = |name: &str| worker.volumes.iter().any(|volume| volume.name == name);
        for container in &worker.init_containers {
            if let Some(mount) = container.volume_mounts.iter().find(|mount| !known(&mount.name)) {
                let field = format!("spec.worker.initContainers[{}].volumeMounts", container.name);
                let fix = "`spec.worker.volumes` has no volume of that name";
                return Err(Forbidden::new(field, format!("'{}'", mount.name), fix));
            }
            let field = format!("spec.worker.initContainers[{}]", container.name);
            self.permits_env(&format!("{field}.env"), &container.env)?;
            permits_resources(&format!("{field}.resources"), container.resources.as_ref())?;
            self.permits_context(container)?;
        }
        Ok(())
    }

    fn permits_volume(&self, volume: &Volume) -> Result<(), Forbidden> {
        if volume.name.starts_with(OWN_VOLUMES) {
            let fix = "`nodekeeper-` begins the names of the controller's own volumes; choose another name";
            return Err(Forbidden::new("spec.worker.volumes[].name", format!("'{}'", volume.name), fix));
        }
        for secret in volume.secrets() {
            self.permits_secret(&format!("spec.worker.volumes[{}]", volume.name), secret)?;
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

    fn permits_env(&self, field: &str, env: &[EnvVar]) -> Result<(), Forbidden> {
        for var in env {
            if let Some(secret) = var.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref()) {
                let field = format!("{field}[{}].valueFrom.secretKeyRef.name", var.name);
                self.permits_secret(&field, &secret.name)?;
            }
        }
        Ok(())
    }

    fn permits_secret(&self, field: &str, secret: &str) -> Result<(), Forbidden> {
        if self.secrets.iter().any(|allowed| allowed == secret) {
            return Ok(());
        }
        let fix = "the chart allows Secrets with `worker.allowed.secrets`";
        Err(Forbidden::new(field, format!("the Secret '{secret}'"), fix))
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

fn permits_resources(field: &str, resources: Option<&Resources>) -> Result<(), Forbidden> {
    let Some(unknown) = resources.and_then(Resources::unknown_resource) else { return Ok(()) };
    let fix = "resources are cpu, memory, ephemeral-storage, hugepages-SIZE and those with a domain, such as nvidia.com/gpu";
    Err(Forbidden::new(field, format!("'{unknown}'"), fix))
}

/// Why no pod can be built.
#[derive(Debug, thiserror::Error)]
pub enum NoPod {
    /// The installation does not allow what the gate uses.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// A field cannot be serialized.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Builds the pod of a worker.
///
/// # Errors
/// If the gate uses what the installation does not allow.
pub fn pod(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    identity: &WorkerIdentity,
) -> Result<Pod, NoPod> {
    build(template, node, gate, identity, Role::Verify)
}

/// Builds the pod of a worker that runs on a node of the control group.
///
/// # Errors
/// If the gate uses what the installation does not allow.
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
    template.permits(gate)?;
    let checks = gate.checks.resolve();
    let assignment = Assignment {
        report_bytes: report_bytes(1 + gate.checks.exec.len() + worker.init_containers.len()),
        ..self::assignment(gate, identity)
    };
    let priority = worker.priority_class_name.as_ref().unwrap_or(&template.priority_class);
    let secrets: Vec<Value> = template
        .pull_secrets
        .iter()
        .chain(worker.image_pull_secrets.iter().map(|secret| &secret.name))
        .map(|name| json!({"name": name}))
        .collect();
    let init: Vec<Value> = worker.init_containers.iter().map(|one| init_container(one, worker)).collect();
    let (access, ca) = (access(&checks), ca_volume(&checks));
    let own_mounts = [ca.as_ref().map(|_| (CA, CA_PATH)), access.as_ref().map(|_| (ACCESS, ACCESS_PATH))];
    let mut containers = vec![container(template, gate, &assignment, own_mounts)?];
    containers.extend(checks.exec.iter().map(|check| exec(check, worker)));
    let volumes: Vec<Value> =
        worker.volumes.iter().map(|volume| json!(volume)).chain(ca).chain(access).collect();
    Ok(serde_json::from_value(json!({
        "metadata": metadata(template, node, gate, identity, role)?,
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": gate.deadlines.worker_seconds,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": worker.service_account_name.as_ref().unwrap_or(&template.service_account),
            // It would be mounted into containers of users, too; see `access`.
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

/// The kubelet keeps 12 KiB of termination messages per pod and divides them evenly among its containers. Somebody may
/// inject two, such as a mesh's init container and sidecar.
fn report_bytes(containers: usize) -> Option<u32> {
    let share = 12 * 1024 / (containers + 2);
    (share < MESSAGE_LIMIT).then(|| u32::try_from(share).unwrap_or_default())
}

fn metadata(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    identity: &WorkerIdentity,
    role: Role,
) -> Result<Value, serde_json::Error> {
    let uid = node.uid.to_string();
    let init: Vec<&str> =
        gate.worker.init_containers.iter().map(|container| container.name.as_str()).collect();
    let exec: Vec<&str> = gate.checks.exec.iter().map(|check| check.name.as_str()).collect();
    let labels: BTreeMap<&str, &str> = BTreeMap::from([
        ("app.kubernetes.io/name", "nodekeeper"),
        ("app.kubernetes.io/component", role.component()),
        ("app.kubernetes.io/managed-by", "nodekeeper"),
        (NODE_UID, &uid),
        // A sidecar would delay the checks, and the pod would never end.
        ("sidecar.istio.io/inject", "false"),
    ]);
    Ok(json!({
        "name": role.name(&uid, identity.number),
        "namespace": template.namespace,
        "labels": labels,
        "annotations": {
            NODE_NAME: &*node.name,
            // Somebody may add others.
            INIT_CONTAINERS: init.join(","),
            EXEC_CHECKS: exec.join(","),
            SUBJECT: serde_json::to_string(identity)?,
            "linkerd.io/inject": "disabled",
        },
        // The garbage collector deletes the pod with the Node.
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": &*node.name, "uid": uid}],
    }))
}

/// Tolerates the taints of the gate, those of a node that is coming up, and all others that the node carries now, for
/// example those of a GPU pool or of a second gate.
fn tolerations(node: &NodeView, gate: &NodeGateSpec) -> Vec<Value> {
    let own = gate.taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str()));
    let carried = node.taints.iter().map(|taint| (&*taint.key, &*taint.effect));
    let early = EARLY_TAINTS.iter().flat_map(|key| [(*key, "NoSchedule"), (*key, "NoExecute")]);
    let all: BTreeSet<(&str, &str)> = own.chain(carried).chain(early).collect();
    let toleration =
        |(key, effect): (&str, &str)| json!({"key": key, "operator": "Exists", "effect": effect});
    let configured = gate.worker.tolerations.iter().map(|toleration| json!(toleration));
    all.into_iter().map(toleration).chain(configured).collect()
}

/// Pins the pod by the name of the node, because the hostname label can differ from it.
fn pinned_to(node: &str) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]}}})
}

/// The volume with the token and the CA certificate, as far as the checks need them. The token expires after 10 minutes,
/// the minimum that the API server allows.
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

/// The file that a CA certificate is mounted as, relative to [`CA_PATH`].
fn ca_file(ca: &CaReference) -> String {
    format!("{}/{}", ca.name, ca.key)
}

fn ca_volume(checks: &Checks) -> Option<Value> {
    let targets = checks.http.iter().flat_map(|http| &http.targets);
    let all: BTreeSet<&CaReference> = targets.filter_map(|target| target.ca.as_ref()).collect();
    let source = |ca: &CaReference| json!({"configMap": {"name": ca.name, "items": [{"key": ca.key, "path": ca_file(ca)}]}});
    let sources: Vec<Value> = all.into_iter().map(source).collect();
    (!sources.is_empty()).then(|| json!({"name": CA, "projected": {"sources": sources}}))
}

/// The checks that the worker itself runs, with files in place of ConfigMaps.
fn assigned(checks: &Checks) -> Checks {
    let mut checks = Checks { exec: Vec::new(), ..checks.clone() };
    for target in checks.http.iter_mut().flat_map(|http| &mut http.targets) {
        target.ca_file = target.ca.take().map(|ca| format!("{CA_PATH}/{}", ca_file(&ca)));
    }
    checks
}

/// The security context of every container, unless an init container changes it.
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
    own_mounts: [Option<(&str, &str)>; 2],
) -> Result<Value, serde_json::Error> {
    let worker = &gate.worker;
    let mut env = vec![
        json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        json!({"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}),
        // The kubelet would replace `$(NAME)` in it.
        json!({"name": Assignment::ENV, "value": serde_json::to_string(assignment)?.replace('$', "$$")}),
    ];
    let is_free = |var: &&EnvVar| env.iter().all(|own| own["name"] != var.name.as_str());
    let configured: Vec<Value> = worker.env.iter().filter(is_free).map(|var| json!(var)).collect();
    env.extend(configured);
    let mount = |(name, path): (&str, &str)| json!({"name": name, "mountPath": path, "readOnly": true});
    let mounts: Vec<Value> = own_mounts.into_iter().flatten().map(mount).collect();
    let usual = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    Ok(json!({
        "name": CONTAINER,
        "image": worker.image.as_ref().unwrap_or(&template.image),
        "imagePullPolicy": worker.image_pull_policy.as_str(),
        "command": ["/nodekeeper-worker"],
        "env": env,
        "terminationMessagePolicy": "File",
        "securityContext": confined(),
        "volumeMounts": mounts,
        "resources": worker.resources.as_ref().map_or(usual, |configured| json!(configured)),
    }))
}

/// What a worker of this gate has to do.
#[must_use]
pub fn assignment(gate: &NodeGateSpec, identity: &WorkerIdentity) -> Assignment {
    Assignment {
        identity: identity.clone(),
        check_timeout_seconds: gate.deadlines.check_seconds.unsigned_abs(),
        // The worker ends with a report before the kubelet kills it.
        deadline_seconds: gate.deadlines.worker_seconds.unsigned_abs().saturating_sub(5).max(1),
        report_bytes: None,
        checks: assigned(&gate.checks.resolve()),
    }
}

/// The container of an exec check, whose exit code is its result.
fn exec(check: &Exec, worker: &Worker) -> Value {
    let mut container = json!(check);
    container["name"] = json!(format!("{CHECK_PREFIX}{}", check.name));
    let mut env =
        vec![json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})];
    env.extend(check.env.iter().map(|var| json!(var)));
    container["env"] = json!(env);
    container["securityContext"] = confined();
    container["imagePullPolicy"] = json!(worker.image_pull_policy.as_str());
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container
}

fn init_container(configured: &InitContainer, worker: &Worker) -> Value {
    let mut container = json!(configured);
    let mut context = confined();
    if let (Some(given), Some(all)) =
        (configured.security_context.as_ref().map(|given| json!(given)), context.as_object_mut())
    {
        all.extend(given.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        if all.get("privileged") == Some(&json!(true)) {
            // The API server rejects a privileged container that drops capabilities or forbids escalation.
            all.remove("capabilities");
            all.insert("allowPrivilegeEscalation".into(), json!(true));
        }
    }
    container["securityContext"] = context;
    container["imagePullPolicy"] = json!(worker.image_pull_policy.as_str());
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container
}

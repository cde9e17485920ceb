//! The strategy of Pods: defaulting, admission, an almost immutable spec, graceful deletion.

use crate::value::{Value, json};

use super::node::{NOT_READY, UNREACHABLE};
use super::{AdmissionContext, Strategy, injection, pod_spec};
use crate::api::status::{ApiError, StatusCause};
use crate::clock::time;
use crate::object::{self, at, items, namespace, number, set, take, text};

#[derive(Debug)]
pub struct Pods;

impl Strategy for Pods {
    fn has_status_rules(&self) -> bool {
        false
    }

    fn default(&self, pod: &mut Value) {
        if number(pod, "spec.terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
            set(pod, "spec.terminationGracePeriodSeconds", json!(1));
        }
        pod_spec::default(pod, "spec");
        default_tolerations(pod);
    }

    fn admit(&self, pod: &mut Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
        injection::inject(pod, ctx);
        admit_service_account(pod, ctx)?;
        admit_priority(pod, ctx)?;
        admit_quota(pod, ctx)?;
        mount_token(pod);
        let qos = qos_class(pod);
        set(pod, "status", json!({"phase": "Pending", "qosClass": qos}));
        if !items(pod, "spec.schedulingGates").is_empty() {
            let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"});
            object::set_condition(pod, gated, &time(ctx.now));
        }
        Ok(())
    }

    fn validate(&self, pod: &Value) -> Vec<StatusCause> {
        pod_spec::validate(pod, "spec")
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        // Most updates change only the status.
        if new.get("spec") == old.get("spec") {
            return causes;
        }
        let (before, after) = (items(old, "spec.tolerations"), items(new, "spec.tolerations"));
        let kept = |t: &Value| {
            let but_seconds = |t: &Value| {
                let mut t = t.clone();
                take(&mut t, "tolerationSeconds");
                t
            };
            after.iter().any(|a| but_seconds(a) == but_seconds(t))
        };
        if !before.iter().all(kept) {
            let detail = "existing toleration can not be modified except its tolerationSeconds";
            causes.push(StatusCause::forbidden("spec.tolerations", detail));
        }
        let (before, after) = (items(old, "spec.schedulingGates"), items(new, "spec.schedulingGates"));
        if !after.iter().all(|gate| before.contains(gate)) {
            causes.push(StatusCause::forbidden(
                "spec.schedulingGates",
                "only deletion is allowed, but found new scheduling gate",
            ));
        }
        if let Some(was) = number(old, "spec.activeDeadlineSeconds")
            && number(new, "spec.activeDeadlineSeconds").is_none_or(|is| is > was)
        {
            let detail = "must be less than or equal to previous value";
            causes.push(StatusCause::invalid("spec.activeDeadlineSeconds", &json!(was), detail));
        }
        if immutable_spec(new) != immutable_spec(old) {
            let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                previously negative)";
            causes.push(StatusCause::forbidden("spec", detail));
        }
        causes
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        for path in [
            "spec.nodeName",
            "spec.priority",
            "spec.preemptionPolicy",
            "spec.serviceAccountName",
            "spec.serviceAccount",
        ] {
            if at(new, path).is_none() {
                object::copy(old, new, path);
            }
        }
    }

    fn grace_seconds(&self, pod: &Value, asked: Option<i64>) -> Option<i64> {
        let unscheduled = text(pod, "spec.nodeName").is_empty();
        let finished = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
        if unscheduled || finished {
            return Some(0);
        }
        let seconds = asked.or_else(|| number(pod, "spec.terminationGracePeriodSeconds")).unwrap_or(30);
        Some(if seconds < 0 { 1 } else { seconds })
    }
}

/// The part of the spec that an update must not change.
fn immutable_spec(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    for path in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"] {
        take(&mut spec, path);
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            take(container, "image");
        }
    }
    spec
}

fn admit_service_account(pod: &mut Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
    object::default(pod, "spec.serviceAccountName", json!("default"));
    let account = text(pod, "spec.serviceAccountName").to_owned();
    set(pod, "spec.serviceAccount", json!(account));
    let key = format!("{}/{account}", namespace(pod));
    if ctx.store.get("serviceaccounts", &key).is_none() {
        let detail =
            format!("error looking up service account {key}: serviceaccount \"{account}\" not found");
        return Err(ApiError::forbidden(ctx.resource, object::name(pod), &detail));
    }
    Ok(())
}

/// Mounts the service account token into every container, unless the pod opts out.
fn mount_token(pod: &mut Value) {
    const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    if at(pod, "spec.automountServiceAccountToken") == Some(&json!(false)) {
        return;
    }
    let suffix: String = object::uid(pod).chars().filter(char::is_ascii_alphanumeric).take(5).collect();
    let volume = format!("kube-api-access-{suffix}");
    let mount = json!({"name": volume, "mountPath": PATH, "readOnly": true});
    for list in ["containers", "initContainers"] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let mut mounts = items(container, "volumeMounts").to_vec();
            if !mounts.iter().any(|m| text(m, "mountPath") == PATH) {
                mounts.push(mount.clone());
                set(container, "volumeMounts", mounts.into());
            }
        }
    }
    let mut volumes = items(pod, "spec.volumes").to_vec();
    volumes.push(json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]}}));
    set(pod, "spec.volumes", volumes.into());
}

/// Enforces `pods` of a `ResourceQuota`. Pods that have finished do not count.
fn admit_quota(pod: &Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
    let here = |object: &Value| namespace(object) == namespace(pod);
    let counts = |pod: &Value| here(pod) && !matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
    for (_, quota) in ctx.store.all("resourcequotas").filter(|(_, quota)| here(quota)) {
        let hard = text(quota, "spec.hard.pods");
        let Ok(limit) = hard.parse::<usize>() else { continue };
        let used = ctx.store.all("pods").filter(|(_, pod)| counts(pod)).count();
        if used >= limit {
            let quota = object::name(quota);
            let detail = format!(
                "exceeded quota: {quota}, requested: pods=1, used: pods={used}, limited: pods={hard}"
            );
            return Err(ApiError::forbidden(ctx.resource, object::name(pod), &detail));
        }
    }
    Ok(())
}

fn admit_priority(pod: &mut Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
    const CLASSES: &str = "scheduling.k8s.io/priorityclasses";
    let wanted = text(pod, "spec.priorityClassName").to_owned();
    let class = if wanted.is_empty() {
        ctx.store.all(CLASSES).map(|(_, c)| c).find(|c| object::is_true(c, "globalDefault"))
    } else {
        let class = ctx.store.get(CLASSES, &wanted);
        if class.is_none() {
            let detail = format!("no PriorityClass with name {wanted} was found");
            return Err(ApiError::forbidden(ctx.resource, object::name(pod), &detail));
        }
        class
    };
    let priority = class.and_then(|c| number(c, "value")).unwrap_or(0);
    let preemption = class.map_or("PreemptLowerPriority", |c| text(c, "preemptionPolicy"));
    if number(pod, "spec.priority").is_some_and(|given| given != priority) {
        let detail = format!(
            "the integer value of priority must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden(ctx.resource, object::name(pod), &detail));
    }
    if let Some(class) = class {
        set(pod, "spec.priorityClassName", json!(object::name(class)));
    }
    set(pod, "spec.priority", json!(priority));
    set(pod, "spec.preemptionPolicy", json!(preemption));
    Ok(())
}

/// Adds the default tolerations of 300 s for nodes that are not ready or unreachable.
fn default_tolerations(pod: &mut Value) {
    let mut tolerations = items(pod, "spec.tolerations").to_vec();
    for key in [NOT_READY, UNREACHABLE] {
        let covered = |t: &Value| {
            (text(t, "key") == key || text(t, "key").is_empty())
                && matches!(text(t, "effect"), "" | "NoExecute")
        };
        if !tolerations.iter().any(covered) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    set(pod, "spec.tolerations", tolerations.into());
}

fn qos_class(pod: &Value) -> &'static str {
    let (mut any, mut all) = (false, true);
    for container in items(pod, "spec.containers") {
        let limits = at(container, "resources.limits");
        let requests = at(container, "resources.requests").or(limits);
        any |= [limits, requests].iter().flatten().any(|r| r.as_object().is_some_and(|m| !m.is_empty()));
        let complete = limits.is_some_and(|l| l.get("cpu").is_some() && l.get("memory").is_some());
        all &= complete && requests == limits;
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

//! Pods: defaults, admission, validation, binding.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, condition, is, list, present, uid};
use super::ctx::{Ctx, PATIENCE, eventually};
use super::objects::{self, bare_pod, with};

cases!["pods":
    are_defaulted,
    default_tolerations,
    own_tolerations_replace_the_defaults,
    service_account_token_is_mounted,
    service_account_must_exist,
    priority_is_resolved,
    unknown_priority_class_is_refused,
    priority_classes_of_the_system,
    pull_policy_by_tag,
    quality_of_service,
    need_containers,
    container_names_are_unique,
    containers_need_name_and_image,
    deadlines_are_positive,
    unknown_policies_are_refused,
    tolerations_are_validated,
    affinity_is_validated,
    volumes_must_exist,
    requests_within_limits,
    quantities_may_be_numbers,
    quantities_are_canonical,
    binding_sets_the_node,
    binding_twice_conflicts,
    binding_needs_the_pod,
    binding_of_another_uid,
    unknown_fields_in_containers_are_dropped,
    status_of_containers,
    quota_refuses_more,
];

async fn are_defaulted(c: &Ctx) -> Result<()> {
    let (_, pod) = c.pod_of(bare_pod("a")).await?;
    for (field, value) in [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/dnsPolicy", json!("ClusterFirst")),
        ("/spec/schedulerName", json!("default-scheduler")),
        ("/spec/securityContext", json!({})),
        ("/spec/serviceAccountName", json!("default")),
        ("/spec/serviceAccount", json!("default")),
        ("/spec/priority", json!(0)),
        ("/spec/preemptionPolicy", json!("PreemptLowerPriority")),
        ("/spec/enableServiceLinks", json!(true)),
        ("/spec/containers/0/terminationMessagePath", json!("/dev/termination-log")),
        ("/spec/containers/0/terminationMessagePolicy", json!("File")),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        ("/spec/containers/0/resources", json!({})),
        ("/status", json!({"phase": "Pending", "qosClass": "BestEffort"})),
    ] {
        is(&pod, field, value)?;
    }
    absent(&pod, "/spec/nodeName")?;
    let port = json!([{"name": "main", "image": "example.com/none:1", "ports": [{"containerPort": 80}]}]);
    let (_, pod) = c.pod_of(with(bare_pod("b"), json!({"spec": {"containers": port}}))).await?;
    is(&pod, "/spec/containers/0/ports/0/protocol", "TCP")
}

fn toleration(key: &str) -> Value {
    json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
}

async fn default_tolerations(c: &Ctx) -> Result<()> {
    let (_, pod) = c.pod_of(objects::pod("a")).await?;
    is(&pod, "/spec/tolerations", json!([toleration("not-ready"), toleration("unreachable")]))
}

async fn own_tolerations_replace_the_defaults(c: &Ctx) -> Result<()> {
    let own = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"});
    let (_, pod) = c.pod_of(with(objects::pod("a"), json!({"spec": {"tolerations": [own]}}))).await?;
    is(&pod, "/spec/tolerations", json!([own, toleration("unreachable")]))?;
    let all = json!({"operator": "Exists"});
    let (_, pod) = c.pod_of(with(objects::pod("b"), json!({"spec": {"tolerations": [all]}}))).await?;
    is(&pod, "/spec/tolerations", json!([all]))
}

async fn service_account_token_is_mounted(c: &Ctx) -> Result<()> {
    let (_, pod) = c.pod("a").await?;
    let name = super::check::text(&pod, "/spec/volumes/0/name")?;
    ensure!(name.starts_with("kube-api-access-"), "{name}");
    is(&pod, "/spec/containers/0/volumeMounts/0/name", name)?;
    is(&pod, "/spec/containers/0/volumeMounts/0/mountPath", "/var/run/secrets/kubernetes.io/serviceaccount")?;
    let without = json!({"spec": {"automountServiceAccountToken": false}});
    let (_, pod) = c.pod_of(with(objects::pod("b"), without)).await?;
    absent(&pod, "/spec/volumes")?;
    absent(&pod, "/spec/containers/0/volumeMounts")
}

async fn service_account_must_exist(c: &Ctx) -> Result<()> {
    c.service_account().await?;
    let body = with(objects::pod("a"), json!({"spec": {"serviceAccountName": "other"}}));
    let failed = c.post(&c.path("v1/pods"), &body).await?.fails(403, "Forbidden")?;
    is(&failed, "/details/kind", "pods")?;
    is(&failed, "/details/name", "a")?;
    c.create(&c.path("v1/serviceaccounts"), json!({"metadata": {"name": "other"}})).await?;
    let pod = eventually(PATIENCE, || async { c.post(&c.path("v1/pods"), &body).await?.ok(201) }).await?;
    is(&pod, "/spec/serviceAccountName", "other")
}

const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

async fn priority_is_resolved(c: &Ctx) -> Result<()> {
    c.create(CLASSES, with(objects::priority_class(&c.name("p"), 77), json!({"preemptionPolicy": "Never"})))
        .await?;
    c.service_account().await?;
    let body = with(objects::pod("a"), json!({"spec": {"priorityClassName": c.name("p")}}));
    let pod = eventually(PATIENCE, || async { c.post(&c.path("v1/pods"), &body).await?.ok(201) }).await?;
    is(&pod, "/spec/priority", 77)?;
    is(&pod, "/spec/preemptionPolicy", "Never")?;
    // The built-in classes exist, and a priority given by the client must match.
    let critical = json!({"spec": {"priorityClassName": "system-node-critical"}});
    let (_, pod) = c.pod_of(with(objects::pod("b"), critical)).await?;
    is(&pod, "/spec/priority", 2_000_001_000)?;
    let wrong = with(objects::pod("d"), json!({"spec": {"priorityClassName": c.name("p"), "priority": 5}}));
    c.post(&c.path("v1/pods"), &wrong).await?.fails(403, "Forbidden").map(drop)
}

async fn unknown_priority_class_is_refused(c: &Ctx) -> Result<()> {
    c.service_account().await?;
    let body = with(objects::pod("a"), json!({"spec": {"priorityClassName": c.name("none")}}));
    let failed = c.post(&c.path("v1/pods"), &body).await?.fails(403, "Forbidden")?;
    is(&failed, "/details/kind", "pods")
}

async fn priority_classes_of_the_system(c: &Ctx) -> Result<()> {
    for name in ["system-cluster-critical", "system-node-critical"] {
        let class = c.read(&format!("{CLASSES}/{name}")).await?;
        absent(&class, "/globalDefault")?;
        is(&class, "/preemptionPolicy", "PreemptLowerPriority")?;
    }
    let reserved = objects::priority_class("system-of-mine", 5);
    c.post(CLASSES, &reserved).await?.invalid(&["metadata.name"])?;
    let high = objects::priority_class(&c.name("high"), 1_000_000_001);
    c.post(CLASSES, &high).await?.invalid(&["value"]).map(drop)
}

async fn pull_policy_by_tag(c: &Ctx) -> Result<()> {
    let image = |image: &str| json!({"spec": {"containers": [{"name": "main", "image": image}]}});
    for (name, tag, policy) in
        [("a", "x", "Always"), ("b", "x:latest", "Always"), ("c", "x:1", "IfNotPresent")]
    {
        let (_, pod) = c.pod_of(with(objects::pod(name), image(tag))).await?;
        is(&pod, "/spec/containers/0/imagePullPolicy", policy)?;
    }
    Ok(())
}

async fn quality_of_service(c: &Ctx) -> Result<()> {
    let resources = |resources: Value| json!({"spec": {"containers": [{"name": "main", "image": "x:1", "resources": resources}]}});
    let both = json!({"cpu": "1", "memory": "1Gi"});
    for (name, given, class) in [
        ("a", json!({}), "BestEffort"),
        ("b", json!({"requests": {"cpu": "1"}}), "Burstable"),
        ("c", json!({"requests": both, "limits": both}), "Guaranteed"),
        ("d", json!({"limits": both}), "Guaranteed"),
    ] {
        let (_, pod) = c.pod_of(with(objects::pod(name), resources(given))).await?;
        is(&pod, "/status/qosClass", class)?;
    }
    // Missing requests default to the limits.
    is(&c.read(&c.path("v1/pods/d")).await?, "/spec/containers/0/resources/requests", both)
}

async fn refused(c: &Ctx, change: Value, fields: &[&str]) -> Result<()> {
    c.service_account().await?;
    let failed = c.post(&c.path("v1/pods"), &with(objects::pod("a"), change)).await?.invalid(fields)?;
    is(&failed, "/details/kind", "Pod")
}

async fn need_containers(c: &Ctx) -> Result<()> {
    refused(c, json!({"spec": {"containers": []}}), &["spec.containers"]).await?;
    refused(c, json!({"spec": {"containers": null}}), &["spec.containers"]).await
}

async fn container_names_are_unique(c: &Ctx) -> Result<()> {
    let twice = json!([{"name": "x", "image": "x:1"}, {"name": "x", "image": "x:1"}]);
    refused(c, json!({"spec": {"containers": twice}}), &["spec.containers[1].name"]).await?;
    let one = json!([{"name": "main", "image": "x:1"}]);
    refused(c, json!({"spec": {"initContainers": one}}), &["spec.initContainers[0].name"]).await
}

async fn containers_need_name_and_image(c: &Ctx) -> Result<()> {
    refused(c, json!({"spec": {"containers": [{"image": "x:1"}]}}), &["spec.containers[0].name"]).await?;
    refused(c, json!({"spec": {"containers": [{"name": "x"}]}}), &["spec.containers[0].image"]).await?;
    let upper = json!([{"name": "Upper", "image": "x:1"}]);
    refused(c, json!({"spec": {"containers": upper}}), &["spec.containers[0].name"]).await
}

async fn deadlines_are_positive(c: &Ctx) -> Result<()> {
    for seconds in [0, -5] {
        refused(c, json!({"spec": {"activeDeadlineSeconds": seconds}}), &["spec.activeDeadlineSeconds"])
            .await?;
    }
    // A negative grace period becomes one second.
    let negative = json!({"spec": {"terminationGracePeriodSeconds": -1}});
    let (_, pod) = c.pod_of(with(objects::pod("b"), negative)).await?;
    is(&pod, "/spec/terminationGracePeriodSeconds", 1)
}

async fn unknown_policies_are_refused(c: &Ctx) -> Result<()> {
    refused(c, json!({"spec": {"restartPolicy": "Sometimes"}}), &["spec.restartPolicy"]).await?;
    refused(c, json!({"spec": {"dnsPolicy": "Guess"}}), &["spec.dnsPolicy"]).await?;
    let pull = json!([{"name": "x", "image": "x:1", "imagePullPolicy": "Maybe"}]);
    refused(c, json!({"spec": {"containers": pull}}), &["spec.containers[0].imagePullPolicy"]).await
}

async fn tolerations_are_validated(c: &Ctx) -> Result<()> {
    for (toleration, field) in [
        (json!({"key": "a", "operator": "Near"}), "operator"),
        (json!({"key": "a", "operator": "Exists", "value": "x"}), "operator"),
        (json!({"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}), "effect"),
        (json!({"operator": "Equal"}), "operator"),
    ] {
        refused(
            c,
            json!({"spec": {"tolerations": [toleration]}}),
            &[&format!("spec.tolerations[0].{field}")],
        )
        .await?;
    }
    Ok(())
}

async fn affinity_is_validated(c: &Ctx) -> Result<()> {
    let affinity = |term: Value| {
        let required = json!({"nodeSelectorTerms": [term]});
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}})
    };
    let term =
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    let near = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    refused(c, affinity(near), &[&format!("{term}.matchExpressions[0].operator")]).await?;
    let empty = json!({"matchExpressions": [{"key": "a", "operator": "In"}]});
    refused(c, affinity(empty), &[&format!("{term}.matchExpressions[0].values")]).await?;
    let two = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]});
    refused(c, affinity(two), &[&format!("{term}.matchFields[0].values")]).await?;
    let other = json!({"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a"]}]});
    refused(c, affinity(other), &[&format!("{term}.matchFields[0].key")]).await
}

async fn volumes_must_exist(c: &Ctx) -> Result<()> {
    let mount = json!([{"name": "main", "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    refused(c, json!({"spec": {"containers": mount}}), &["spec.containers[0].volumeMounts[0].name"]).await?;
    let twice = json!([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]);
    refused(c, json!({"spec": {"volumes": twice}}), &["spec.volumes[1].name"]).await?;
    // A volume without a source is an empty directory.
    let (_, pod) = c.pod_of(with(objects::pod("b"), json!({"spec": {"volumes": [{"name": "v"}]}}))).await?;
    is(&pod, "/spec/volumes/0/emptyDir", json!({}))
}

async fn quantities_may_be_numbers(c: &Ctx) -> Result<()> {
    let resources = json!({"requests": {"cpu": 1, "memory": 1024}, "limits": {"cpu": 1.5}});
    let containers = json!([{"name": "main", "image": "x:1", "resources": resources}]);
    let (_, pod) = c.pod_of(with(objects::pod("a"), json!({"spec": {"containers": containers}}))).await?;
    is(&pod, "/spec/containers/0/resources/requests", json!({"cpu": "1", "memory": "1024"}))?;
    is(&pod, "/spec/containers/0/resources/limits", json!({"cpu": "1500m"}))
}

async fn requests_within_limits(c: &Ctx) -> Result<()> {
    let resources = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}});
    let containers = json!([{"name": "main", "image": "x:1", "resources": resources}]);
    refused(c, json!({"spec": {"containers": containers}}), &["spec.containers[0].resources.requests"]).await
}

async fn quantities_are_canonical(c: &Ctx) -> Result<()> {
    let resources =
        json!({"requests": {"cpu": "1000m", "memory": "2048Mi"}, "limits": {"cpu": "1.5", "memory": "1e10"}});
    let containers = json!([{"name": "main", "image": "x:1", "resources": resources}]);
    let (_, pod) = c.pod_of(with(objects::pod("a"), json!({"spec": {"containers": containers}}))).await?;
    is(
        &pod,
        "/spec/containers/0/resources",
        json!({
            "requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1500m", "memory": "10e9"},
        }),
    )
}

fn binding(node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
}

async fn binding_sets_the_node(c: &Ctx) -> Result<()> {
    let (_, node) = c.node("n").await?;
    let (path, _) = c.pod("a").await?;
    let name = super::check::text(&node, "/metadata/name")?;
    let answer = c.post(&format!("{path}/binding"), &binding(name)).await?.ok(201)?;
    is(&answer, "/kind", "Status")?;
    is(&answer, "/status", "Success")?;
    let pod = c.read(&path).await?;
    is(&pod, "/spec/nodeName", name)?;
    let scheduled = condition(&pod, "PodScheduled").cloned().unwrap_or_default();
    is(&scheduled, "/status", "True")?;
    present(&scheduled, "/lastTransitionTime")?;
    is(&pod, "/status/phase", "Pending")
}

async fn binding_twice_conflicts(c: &Ctx) -> Result<()> {
    c.node("n").await?;
    let (path, _) = c.pod("a").await?;
    c.post(&format!("{path}/binding"), &binding(&c.name("n"))).await?.ok(201)?;
    let failed = c.post(&format!("{path}/binding"), &binding(&c.name("m"))).await?.fails(409, "Conflict")?;
    is(&failed, "/details/name", "a")?;
    is(&c.read(&path).await?, "/spec/nodeName", c.name("n"))
}

async fn binding_needs_the_pod(c: &Ctx) -> Result<()> {
    let path = c.path("v1/pods/a/binding");
    c.post(&path, &binding("n")).await?.fails(404, "NotFound")?;
    c.pod("a").await?;
    let nowhere = with(binding("n"), json!({"target": {"name": null}}));
    c.post(&path, &nowhere).await?.fails(500, "")?;
    let elsewhere = with(binding("n"), json!({"target": {"kind": "Moon"}}));
    c.post(&path, &elsewhere).await?.fails(500, "").map(drop)
}

async fn binding_of_another_uid(c: &Ctx) -> Result<()> {
    c.node("n").await?;
    let (path, pod) = c.pod("a").await?;
    let body = |uid: &str| with(binding(&c.name("n")), json!({"metadata": {"uid": uid}}));
    let other = "11111111-2222-3333-4444-555555555555";
    c.post(&format!("{path}/binding"), &body(other)).await?.fails(409, "Conflict")?;
    c.post(&format!("{path}/binding"), &body(uid(&pod)?)).await?.ok(201).map(drop)
}

async fn unknown_fields_in_containers_are_dropped(c: &Ctx) -> Result<()> {
    let containers = json!([{"name": "main", "image": "x:1", "extra": {"a": 1}}]);
    let (_, pod) =
        c.pod_of(with(objects::pod("a"), json!({"spec": {"containers": containers, "extra": 1}}))).await?;
    absent(&pod, "/spec/containers/0/extra")?;
    absent(&pod, "/spec/extra")
}

async fn status_of_containers(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let ended = json!({"terminated": {"exitCode": 3, "message": "{\"ok\": false}", "reason": "Error"}});
    let status = json!({"status": {"phase": "Failed", "containerStatuses": [
        {"name": "main", "state": ended, "ready": false, "restartCount": 0, "image": "x:1", "imageID": ""},
    ]}});
    let patched = c.merge(&format!("{path}/status"), status).await?.ok(200)?;
    is(&patched, "/status/containerStatuses/0/state/terminated/exitCode", 3)?;
    is(&patched, "/status/containerStatuses/0/state/terminated/message", "{\"ok\": false}")?;
    ensure!(list(&patched, "/status/containerStatuses")?.len() == 1);
    is(&patched, "/status/qosClass", "BestEffort")
}

async fn quota_refuses_more(c: &Ctx) -> Result<()> {
    c.service_account().await?;
    let quota = json!({"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}});
    c.create(&c.path("v1/resourcequotas"), quota).await?;
    let make = |name| async move { c.post(&c.path("v1/pods"), &objects::pod(name)).await };
    // Before the quota is counted, everything is refused.
    eventually(PATIENCE, || async { make("a").await?.ok(201) }).await?;
    let refused = make("b").await?.fails(403, "Forbidden")?;
    let message =
        "pods \"b\" is forbidden: exceeded quota: one, requested: pods=1, used: pods=1, limited: pods=1";
    is(&refused, "/message", message)?;
    // A finished pod does not count.
    let ended = json!({"status": {"phase": "Succeeded"}});
    c.merge(&format!("{}/a/status", c.path("v1/pods")), ended).await?.ok(200)?;
    eventually(PATIENCE, || async { make("b").await?.ok(201) }).await.map(drop)
}

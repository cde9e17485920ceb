//! The cluster's DNS: a `CoreDNS` Deployment.

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use super::{DNS_ADDRESS, DNS_IMAGE, Dns, network};

/// Names outside the cluster's zone, which stand for external names.
const COREFILE: &str = "
.:53 {
    errors
    health :8080 {
        lameduck 0s
    }
    ready :8181
    hosts {
        CONTROL_PLANE outside.test
        fallthrough
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 5
    }
    cache 5
}
";

pub(super) async fn deploy(client: &Client, dns: &Dns) -> anyhow::Result<()> {
    for object in objects(dns) {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types)?;
        let resource = ApiResource::from_gvk(&kind);
        let name = object.metadata.name.clone().unwrap_or_default();
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.patch(&name, &PatchParams::apply("nodekeeper-e2e"), &Patch::Apply(&object)).await?;
    }
    Ok(())
}

fn objects(dns: &Dns) -> Vec<Value> {
    let corefile = COREFILE.replace("CONTROL_PLANE", network::CONTROL_PLANE);
    let labels = json!({"k8s-app": "kube-dns"});
    let meta = |name: &str| json!({"name": name, "namespace": "kube-system", "labels": labels});
    let read = json!(["list", "watch"]);
    let rbac = "rbac.authorization.k8s.io";
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("coredns")}),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("coredns"),
            "data": {"Corefile": corefile.trim_start()},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta("kube-dns"),
            "spec": {
                "selector": labels,
                "clusterIP": DNS_ADDRESS,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("coredns"),
            "spec": {
                "replicas": dns.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod(dns)},
            },
        }),
    ]
}

fn pod(dns: &Dns) -> Value {
    json!({
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "tolerations": dns.tolerations,
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }],
        "containers": [{
            "name": "coredns",
            "image": DNS_IMAGE,
            "imagePullPolicy": "Never",
            "args": ["-conf", "/etc/coredns/Corefile"],
            "ports": [
                {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
            ],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
            "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": true}],
        }],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    })
}

//! The table of built-in kinds, one line for each.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, Pod, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event as EventsEvent;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::registry;
use crate::resource::{Generation, PRIMITIVE, Resource, kind};

#[must_use]
#[rustfmt::skip] // A table is read by its lines.
pub fn builtin() -> Vec<Resource> {
    vec![
        kind::<Namespace>(&["ns"]).status().strategy(&registry::Namespaces).fields(&["status.phase"]),
        kind::<Node>(&["no"]).status().keeps_status().strategy(&registry::Nodes).fields(&["spec.unschedulable"]).lists(NODE_LISTS),
        kind::<Pod>(&["po"]).status().returns_deleted().generation(Generation::Spec).strategy(&registry::Pods).fields(POD_FIELDS).lists(POD_LISTS).pod_spec("spec"),
        kind::<Service>(&["svc"]).status().returns_deleted().create_on_update().strategy(&registry::Services).fields(SERVICE_FIELDS).lists(SERVICE_LISTS),
        kind::<ConfigMap>(&["cm"]).strategy(&registry::ConfigMaps),
        kind::<Secret>(&[]).strategy(&registry::Secrets).fields(&["type"]),
        kind::<ResourceQuota>(&["quota"]).status().returns_deleted(),
        kind::<ServiceAccount>(&["sa"]).returns_deleted().lists(&[("secrets", "name"), ("imagePullSecrets", "name")]),
        kind::<Event>(&["ev"]).create_on_update().strategy(&registry::Events).fields(EVENT_FIELDS),
        kind::<EventsEvent>(&["ev"]).create_on_update().strategy(&registry::EventsV1).fields(EVENTS_FIELDS).view_of("events", EVENT_NAMES),
        kind::<DaemonSet>(&["ds"]).status().generation(Generation::Spec).strategy(&registry::Workloads).pod_spec("spec.template.spec"),
        kind::<Deployment>(&["deploy"]).status().generation(Generation::Spec).strategy(&registry::Workloads).pod_spec("spec.template.spec"),
        kind::<ReplicaSet>(&["rs"]).status().generation(Generation::Spec).strategy(&registry::Workloads).fields(&["status.replicas"]).pod_spec("spec.template.spec"),
        kind::<StatefulSet>(&["sts"]).status().generation(Generation::Spec).strategy(&registry::Workloads).pod_spec("spec.template.spec"),
        kind::<PodDisruptionBudget>(&["pdb"]).status().guarded_update().generation(Generation::Spec).strategy(&registry::Budgets).replaced(&["spec.selector"]),
        kind::<Lease>(&[]).create_on_update().guarded_update().strategy(&registry::Leases),
        kind::<EndpointSlice>(&[]).generation(Generation::NotMetadata).strategy(&registry::EndpointSlices),
        kind::<PriorityClass>(&["pc"]).generation(Generation::First).strategy(&registry::PriorityClasses),
        kind::<CustomResourceDefinition>(&["crd", "crds"]).status().guarded_update().generation(Generation::Spec).strategy(&registry::Crds),
    ]
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];
const EVENTS_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];
/// Field names of events.k8s.io and of core.
const EVENT_NAMES: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// The lists that a strategic merge patch merges by a key; it replaces all others, such as taints.
const NODE_LISTS: &[(&str, &str)] = &[("status.addresses", "type"), ("spec.podCIDRs", PRIMITIVE)];
const POD_LISTS: &[(&str, &str)] = &[("status.podIPs", "ip"), ("status.hostIPs", "ip")];
const SERVICE_FIELDS: &[&str] = &["spec.clusterIP", "spec.type"];
const SERVICE_LISTS: &[(&str, &str)] = &[("spec.ports", "port")];

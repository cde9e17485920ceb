//! Discovery without aggregation, for kubectl and client-go.

use std::collections::BTreeMap;

use crate::value::{Value, json};

use super::status::ApiError;
use super::{State, review};
use crate::resource::Resource;

/// The Kubernetes version that the embedded cluster reports.
pub const VERSION: &str = "v1.36.4";

impl State {
    /// Serves a path that names no resource, if it belongs to discovery.
    pub fn discover(&self, path: &str) -> Result<Value, ApiError> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let found = match parts.as_slice() {
            ["version"] => {
                Some(json!({"major": "1", "minor": "36", "gitVersion": VERSION, "platform": "linux/amd64"}))
            }
            ["api"] => {
                Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))
            }
            ["api", version] => self.resource_list("", version),
            ["apis"] => Some(json!({"kind": "APIGroupList", "apiVersion": "v1",
                "groups": self.groups().into_values().collect::<Vec<_>>()})),
            ["apis", group] => self.groups().remove(*group).map(|mut found| {
                found["kind"] = json!("APIGroup");
                found["apiVersion"] = json!("v1");
                found
            }),
            ["apis", group, version] => self.resource_list(group, version),
            _ => None,
        };
        found.ok_or_else(ApiError::no_such_path)
    }

    fn groups(&self) -> BTreeMap<String, Value> {
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for resource in self.resources().filter(|r| !r.group.is_empty()) {
            let known = versions.entry(resource.group.to_string()).or_default();
            if !known.contains(&resource.version.to_string()) {
                known.push(resource.version.to_string());
            }
        }
        versions.extend(review::GROUPS.map(|group| (group.to_owned(), vec![review::VERSION.to_owned()])));
        let group = |(name, versions): (String, Vec<String>)| {
            let entry = |v: &String| json!({"groupVersion": format!("{name}/{v}"), "version": v});
            let all: Vec<Value> = versions.iter().map(entry).collect();
            (name.clone(), json!({"name": name, "preferredVersion": all[0], "versions": all}))
        };
        versions.into_iter().map(group).collect()
    }

    fn resource_list(&self, group: &str, version: &str) -> Option<Value> {
        if let Some(reviews) = review::resource_list(group, version) {
            return Some(reviews);
        }
        let served: Vec<&Resource> =
            self.resources().map(|r| &**r).filter(|r| r.group == group && r.version == version).collect();
        let api_version = served.first()?.api_version();
        let mut resources = Vec::new();
        for r in served {
            let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
            resources.push(json!({"name": r.plural, "singularName": r.singular, "namespaced": r.namespaced,
                "kind": r.kind, "verbs": verbs, "shortNames": r.short}));
            let mut part = |name: &str, kind: &str, verbs: &[&str]| {
                resources.push(json!({"name": format!("{}/{name}", r.plural), "singularName": "",
                    "namespaced": r.namespaced, "kind": kind, "verbs": verbs}));
            };
            if r.has_status {
                part("status", &r.kind, &["get", "patch", "update"]);
            }
            match &*r.kind {
                "Pod" => {
                    part("binding", "Binding", &["create"]);
                    resources.push(json!({"name": "pods/eviction", "singularName": "", "namespaced": true,
                        "group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]}));
                }
                "Namespace" => part("finalize", "Namespace", &["update"]),
                _ => {}
            }
        }
        Some(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}),
        )
    }
}

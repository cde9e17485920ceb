//! Events on nodes.

use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use nodekeeper_core::gate::EventSpec;
use nodekeeper_core::text::clean;

use super::{WriteError, Writer};

const REPORTING_CONTROLLER: &str = "nodekeeper.dev/controller";

impl Writer {
    /// Creates an Event about a node. One with a `dedup_key` is created once, whichever replica leads.
    pub async fn emit_event(&self, node: &str, uid: &str, spec: &EventSpec) -> Result<(), WriteError> {
        let event = Event {
            metadata: ObjectMeta {
                name: Some(self.event_name(node, uid, spec)),
                namespace: Some("default".into()),
                ..ObjectMeta::default()
            },
            event_time: Some(self.clock.micros()),
            type_: Some(if spec.warning { "Warning" } else { "Normal" }.into()),
            reason: Some(spec.reason.into()),
            action: Some(clean(&spec.action, 128)),
            note: Some(clean(&spec.note, 1024)),
            regarding: Some(ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(node.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(REPORTING_CONTROLLER.into()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        match self.write(events.create(&PostParams::default(), &event)).await {
            Err(WriteError::Conflict(_)) if spec.dedup_key.is_some() => Ok(()),
            created => created.map(drop),
        }
    }

    /// Begins with the node's name and goes on with the time, as Events of other components do: kubectl sorts Events
    /// without a `lastTimestamp`, which this API does not have, by name.
    fn event_name(&self, node: &str, uid: &str, spec: &EventSpec) -> String {
        let name: String = node.chars().take(150).collect();
        let name = name.trim_end_matches(['.', '-']);
        if let Some(key) = spec.dedup_key {
            let uid: String = uid.chars().take(36).collect();
            return format!("{name}.{uid}.{}.{key}", spec.reason.to_lowercase());
        }
        let count = self.events.fetch_add(1, Ordering::Relaxed) % 0x1000;
        format!("{name}.{:x}{count:03x}", self.clock.now().as_microsecond())
    }
}

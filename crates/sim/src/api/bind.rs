//! The `pods/binding` subresource.

use crate::value::{Value, json};

use super::status::ApiError;
use super::{Caller, State, key};
use crate::clock::time;
use crate::object::{self, set, text};
use crate::resource::Resource;

impl State {
    pub fn bind(
        &mut self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        binding: &Value,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        let node = text(binding, "target.name");
        if node.is_empty() || !matches!(text(binding, "target.kind"), "" | "Node") {
            return Err(ApiError::unclassified("target.name: Required value: the Node to bind to"));
        }
        let pod = self.get(resource, namespace, name)?;
        let refuse = |detail: &str| Err(ApiError::conflict(resource, name, detail));
        let bound_to = text(&pod, "spec.nodeName");
        if !bound_to.is_empty() {
            return refuse(&format!("pod {name} is already assigned to node \"{bound_to}\""));
        }
        if object::is_deleting(&pod) {
            return refuse(&format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        if !object::items(&pod, "spec.schedulingGates").is_empty() {
            return refuse(&format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        let uid = text(binding, "metadata.uid");
        if !uid.is_empty() && uid != object::uid(&pod) {
            return refuse("Precondition failed: UID in precondition is not the one of the pod");
        }
        let mut bound = (*pod).clone();
        set(&mut bound, "spec.nodeName", json!(node));
        object::set_condition(
            &mut bound,
            json!({"type": "PodScheduled", "status": "True"}),
            &time(caller.now),
        );
        self.commit(resource, &key(namespace, name), bound, caller);
        Ok(())
    }
}

//! Delete: preconditions, grace periods, finalizers and propagation policy.

use std::sync::Arc;

use crate::value::{Value, json};
use jiff::{SignedDuration, Timestamp};

use super::status::{ApiError, StatusCause};
use super::{Caller, State, key};
use crate::clock::time;
use crate::object::{self, has_finalizer, is_deleting, items, number, set, text};
use crate::resource::Resource;

/// `propagationPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`.
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
}

#[derive(Debug)]
pub enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Arc<Value>),
    /// The object has a deletion timestamp and waits for its grace period or finalizers.
    Pending(Arc<Value>),
}

impl DeleteOptions {
    /// Reads the options of the body, or the query parameters if the body has none.
    pub fn read(body: &Value, grace: Option<i64>, propagation: Option<&str>) -> Result<Self, ApiError> {
        let policy = match text(body, "propagationPolicy") {
            "" => propagation.unwrap_or_default(),
            given => given,
        };
        let propagation = match policy {
            "" => match body.get("orphanDependents").and_then(Value::as_bool) {
                Some(true) => Some(Propagation::Orphan),
                Some(false) => Some(Propagation::Background),
                None => None,
            },
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => {
                let allowed = ["Background", "Foreground", "Orphan"].map(|p| format!("{p:?}"));
                let cause = StatusCause::unsupported("propagationPolicy", &json!(other), &allowed);
                return Err(ApiError::invalid_options("DeleteOptions", &[cause]));
            }
        };
        if !policy.is_empty() && body.get("orphanDependents").is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            let cause = StatusCause::invalid("propagationPolicy", &json!(policy), detail);
            return Err(ApiError::invalid_options("DeleteOptions", &[cause]));
        }
        let seconds = body.get("gracePeriodSeconds").filter(|s| !s.is_null());
        if seconds.is_some_and(|s| s.as_i64().is_none()) {
            return Err(ApiError::bad_request("gracePeriodSeconds: not a whole number"));
        }
        let given = |path: &str| Some(text(body, path)).filter(|s| !s.is_empty()).map(str::to_owned);
        Ok(Self {
            grace: number(body, "gracePeriodSeconds").or(grace),
            uid: given("preconditions.uid"),
            resource_version: given("preconditions.resourceVersion"),
            propagation,
        })
    }

    fn check(&self, resource: &Resource, object: &Value) -> Result<(), ApiError> {
        let fail = |what: &str, wanted: &str, found: &str| {
            let detail = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            Err(ApiError::conflict(resource, object::name(object), &detail))
        };
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object::uid(object)) {
            return fail("UID", uid, object::uid(object));
        }
        let current = text(object, "metadata.resourceVersion");
        if let Some(version) = self.resource_version.as_deref().filter(|v| *v != current) {
            return fail("ResourceVersion", version, current);
        }
        Ok(())
    }
}

impl State {
    /// Deletes an object, or sets its deletion timestamp.
    pub fn delete(
        &mut self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
        caller: &Caller,
    ) -> Result<Deleted, ApiError> {
        let key = key(namespace, name);
        let old = self.get(resource, namespace, name)?;
        options.check(resource, &old)?;
        if resource.kind == "Namespace" && matches!(name, "default" | "kube-system" | "kube-public") {
            return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
        }
        let grace = resource.strategy.grace_seconds(&old, options.grace);
        let mut new = (*old).clone();
        set_dependents_policy(&mut new, options.propagation);
        if is_deleting(&old) {
            if grace.is_some() {
                shorten_grace(&mut new, options.grace, grace);
            }
        } else {
            mark_deleted(&mut new, grace.unwrap_or(0), caller.now);
        }
        let namespace_held = text(&new, "kind") == "Namespace" && !items(&new, "spec.finalizers").is_empty();
        if namespace_held {
            set(&mut new, "status.phase", json!("Terminating"));
        }
        let graceful = number(&new, "metadata.deletionGracePeriodSeconds").unwrap_or(0) > 0;
        let held = graceful || namespace_held || !items(&new, "metadata.finalizers").is_empty();
        if !held {
            // Watches see the stored state. The response shows the deletion timestamp where the kind has a grace
            // period.
            self.finish_deletion(resource, &key, caller);
            return Ok(Deleted::Gone(if grace.is_some() { Arc::new(new) } else { old }));
        }
        if new == *old {
            return Ok(Deleted::Pending(old));
        }
        Ok(Deleted::Pending(self.commit(resource, &key, new, caller)))
    }
}

/// Sets the finalizer that makes the garbage collector act first.
fn set_dependents_policy(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some("foregroundDeletion"),
        Propagation::Orphan => Some("orphan"),
    };
    let mut finalizers = items(object, "metadata.finalizers").to_vec();
    finalizers.retain(|f| f != "foregroundDeletion" && f != "orphan");
    if let Some(wanted) = wanted {
        finalizers.push(json!(wanted));
    }
    if finalizers.is_empty() {
        if has_finalizer(object, "foregroundDeletion") || has_finalizer(object, "orphan") {
            object::take(object, "metadata.finalizers");
        }
    } else {
        set(object, "metadata.finalizers", finalizers.into());
    }
}

fn mark_deleted(object: &mut Value, grace: i64, now: Timestamp) {
    let end = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
    set(object, "metadata.deletionTimestamp", json!(time(end)));
    set(object, "metadata.deletionGracePeriodSeconds", json!(grace));
    if let Some(generation) = number(object, "metadata.generation") {
        set(object, "metadata.generation", json!(generation + 1));
    }
}

/// A second DELETE can only shorten the grace period.
fn shorten_grace(object: &mut Value, asked: Option<i64>, effective: Option<i64>) {
    let current = number(object, "metadata.deletionGracePeriodSeconds").unwrap_or(0);
    let wanted = match (asked, effective) {
        // A pod that has finished or was never bound needs no grace period.
        (_, Some(0)) => 0,
        (Some(asked), _) => asked.max(0),
        (None, _) => return,
    };
    if wanted >= current {
        return;
    }
    let end: Option<Timestamp> = text(object, "metadata.deletionTimestamp").parse().ok();
    let earlier = end.and_then(|end| end.checked_sub(SignedDuration::from_secs(current - wanted)).ok());
    if let Some(earlier) = earlier {
        set(object, "metadata.deletionTimestamp", json!(time(earlier)));
    }
    set(object, "metadata.deletionGracePeriodSeconds", json!(wanted));
}

//! The `pods/eviction` subresource: a deletion that respects PodDisruptionBudgets.

use std::sync::Arc;

use crate::value::{Value, json};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::Eviction;

use super::selector::Labels;
use super::status::ApiError;
use super::{Caller, DeleteOptions, Edit, State, key};
use crate::clock::time;
use crate::object::{
    at, condition, condition_status, is_deleting, name, namespace, number, set, set_condition, text, uid,
};
use crate::resource::{Resource, kind};

pub(crate) const BUDGETS: &str = "policy/poddisruptionbudgets";

/// Evictions are refused while `disruptedPods` has more entries than this.
const MAX_DISRUPTED_PODS: usize = 2_000;

impl State {
    /// Evicts a pod, if its budget allows that.
    pub fn evict(
        &mut self,
        pods: &Resource,
        (space, pod_name): (&str, &str),
        mut body: Value,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        if text(&body, "apiVersion") == "policy/v1beta1" {
            set(&mut body, "apiVersion", json!("policy/v1"));
        }
        let eviction = Self::read_body(&kind::<Eviction>(&[]), body, None, caller)?;
        if name(&eviction) != pod_name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        if !namespace(&eviction).is_empty() && namespace(&eviction) != space {
            let message =
                "the namespace of the provided object does not match the namespace sent on the request";
            return Err(ApiError::bad_request(message));
        }
        let options = eviction.get("deleteOptions").unwrap_or(&Value::Null);
        let rehearsal = caller.dry_run || options["dryRun"] == json!(["All"]);
        let caller = Caller { dry_run: rehearsal, ..caller.clone() };
        let mut options = DeleteOptions::read(options, None, None)?;
        let pod = self.get(pods, space, pod_name)?;
        if !ignores_budgets(&pod) {
            self.check_budgets(&pod, &caller)?;
        }
        if !caller.dry_run {
            options.check_for_eviction(&pod)?;
            let mut marked = (*pod).clone();
            let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting"});
            set_condition(&mut marked, target, &time(caller.now));
            self.commit(pods, &key(space, pod_name), marked, &caller);
            // The version was checked above, and the write above changed it.
            options.resource_version = None;
        }
        self.delete(pods, (space, pod_name), &options, &caller).map(drop)
    }

    /// Decrements `disruptionsAllowed` of the pod's budget, if it has one that applies.
    fn check_budgets(&mut self, pod: &Value, caller: &Caller) -> Result<(), ApiError> {
        let budgets = self.budgets_of(pod);
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => return Err(ApiError::too_many_budgets()),
        };
        let count = |field: &str| number(budget, &format!("status.{field}")).unwrap_or(0);
        if condition_status(pod, "Ready") != "True" {
            let always = text(budget, "spec.unhealthyPodEvictionPolicy") == "AlwaysAllow";
            let enough = count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0;
            if always || enough {
                return Ok(());
            }
        }
        check_budget(budget)?;
        if caller.dry_run {
            return Ok(());
        }
        let Some(resource) = self.resource("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
        let decrement_disruptions = |budget: &mut Value| decrement_disruptions(budget, name(pod), caller.now);
        // The API server updates the budget, not the client.
        let server = Caller::new("kube-apiserver", caller.now);
        let target = (namespace(budget), name(budget));
        self.update(&resource, target, Some("status"), Edit::With(Box::new(decrement_disruptions)), &server)
            .map(drop)
    }

    fn budgets_of(&self, pod: &Value) -> Vec<Arc<Value>> {
        let guards = |budget: &&Arc<Value>| {
            namespace(budget) == namespace(pod)
                && Labels::of(at(budget, "spec.selector")).is_some_and(|labels| labels.matches(pod))
        };
        self.store.all(BUDGETS).map(|(_, budget)| budget).filter(guards).cloned().collect()
    }
}

/// Pods that have not started or have finished do not count for a budget.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(text(pod, "status.phase"), "Succeeded" | "Failed" | "Pending") || is_deleting(pod)
}

fn check_budget(budget: &Value) -> Result<(), ApiError> {
    let count = |field: &str| number(budget, &format!("status.{field}")).unwrap_or(0);
    let budget_name = name(budget);
    if count("observedGeneration") < number(budget, "metadata.generation").unwrap_or(0) {
        let message = format!("The disruption budget {budget_name} is still being processed by the server.");
        return Err(ApiError::over_budget(&message, Some(10)));
    }
    let going =
        at(budget, "status.disruptedPods").and_then(Value::as_object).map_or(0, crate::value::Map::len);
    if going > MAX_DISRUPTED_PODS {
        let detail = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        let singular = Resource::new("policy", "v1", "poddisruptionbudget", "PodDisruptionBudget");
        return Err(ApiError::forbidden(&singular, budget_name, detail));
    }
    if count("disruptionsAllowed") > 0 {
        return Ok(());
    }
    let (needs, has) = (count("desiredHealthy"), count("currentHealthy"));
    let refused = condition(budget, "DisruptionAllowed").filter(|c| text(c, "status") == "False");
    let (reason, why) = refused.map_or(("", ""), |c| (text(c, "reason"), text(c, "message")));
    let message = match (reason, why) {
        ("SyncFailed", why) if !why.is_empty() => {
            format!(
                "The disruption budget {budget_name} does not allow evicting pods currently because it failed sync: {why}"
            )
        }
        _ if has <= needs => {
            format!("The disruption budget {budget_name} needs {needs} healthy pods and has {has} currently")
        }
        (reason, why) if !why.is_empty() => {
            format!(
                "The disruption budget {budget_name} does not allow evicting pods currently ({reason}): {why}"
            )
        }
        _ => format!("The disruption budget {budget_name} does not allow evicting pods currently"),
    };
    Err(ApiError::over_budget(&message, None))
}

fn decrement_disruptions(budget: &mut Value, pod: &str, now: Timestamp) {
    let left = number(budget, "status.disruptionsAllowed").unwrap_or(0) - 1;
    set(budget, "status.disruptionsAllowed", json!(left));
    if left == 0 {
        set_disruption_allowed(budget, now);
    }
    // Pod names contain dots, so no dotted path.
    crate::object::map(&mut budget["status"]["disruptedPods"]).insert(pod, time(now));
}

/// Sets the `DisruptionAllowed` condition.
pub(crate) fn set_disruption_allowed(budget: &mut Value, now: Timestamp) {
    let allowed = number(budget, "status.disruptionsAllowed").unwrap_or(0) > 0;
    let (status, reason) = if allowed { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let observed = number(budget, "status.observedGeneration").unwrap_or(0);
    let condition = json!({"type": "DisruptionAllowed", "status": status, "reason": reason, "message": "",
        "observedGeneration": observed});
    set_condition(budget, condition, &time(now));
}

impl DeleteOptions {
    /// The preconditions of a deletion, with the messages of an eviction.
    fn check_for_eviction(&self, pod: &Value) -> Result<(), ApiError> {
        let fail = |what: &str, wanted: &str, found: &str, guess: &str| {
            let detail = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). {guess}"
            );
            Err(ApiError::conflict(&Resource::new("", "v1", "Pod", "Pod"), name(pod), &detail))
        };
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid(pod)) {
            return fail("UID", wanted, uid(pod), "The object might have been deleted and then recreated");
        }
        let current = text(pod, "metadata.resourceVersion");
        if let Some(wanted) = self.resource_version.as_deref().filter(|wanted| *wanted != current) {
            return fail("ResourceVersion", wanted, current, "The object might have been modified");
        }
        Ok(())
    }
}

//! The scheduling predicates: taints, tolerations, node selectors and node affinity.

use crate::value::Value;

use crate::object::{at, is_true, items, name, number, text};
use crate::registry::UNSCHEDULABLE;

#[must_use]
pub fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (key, effect) = (text(toleration, "key"), text(toleration, "effect"));
    let key_fits = key == text(taint, "key") || (key.is_empty() && text(toleration, "operator") == "Exists");
    let effect_fits = effect.is_empty() || effect == text(taint, "effect");
    let value_fits = match text(toleration, "operator") {
        "Exists" => true,
        _ => text(toleration, "value") == text(taint, "value"),
    };
    key_fits && effect_fits && value_fits
}

/// The first taint that repels a pod from a node.
#[must_use]
pub fn untolerated_taint<'n>(pod: &Value, node: &'n Value) -> Option<&'n Value> {
    let repels =
        |t: &&Value| matches!(text(t, "effect"), "NoSchedule" | "NoExecute") && !is_tolerated(pod, t);
    items(node, "spec.taints").iter().find(repels)
}

fn is_tolerated(pod: &Value, taint: &Value) -> bool {
    items(pod, "spec.tolerations").iter().any(|t| tolerates(t, taint))
}

/// How long a pod may stay on a node with `NoExecute` taints.
#[derive(Debug, PartialEq, Eq)]
pub enum Stay {
    /// The pod tolerates all such taints without limit.
    Forever,
    Seconds(i64),
    No,
}

#[must_use]
pub fn may_stay(pod: &Value, node: &Value) -> Stay {
    let mut limit: Option<i64> = None;
    for taint in items(node, "spec.taints").iter().filter(|t| text(t, "effect") == "NoExecute") {
        let tolerations: Vec<&Value> =
            items(pod, "spec.tolerations").iter().filter(|t| tolerates(t, taint)).collect();
        if tolerations.is_empty() {
            return Stay::No;
        }
        for seconds in tolerations.iter().filter_map(|t| number(t, "tolerationSeconds")) {
            limit = Some(limit.map_or(seconds, |l| l.min(seconds)));
        }
    }
    match limit {
        None => Stay::Forever,
        Some(seconds) if seconds <= 0 => Stay::No,
        Some(seconds) => Stay::Seconds(seconds),
    }
}

/// Whether a pod may be scheduled to a node, resources aside.
#[must_use]
pub fn fits(pod: &Value, node: &Value) -> bool {
    let cordoned = is_true(node, "spec.unschedulable")
        && !is_tolerated(pod, &crate::value::json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"}));
    !cordoned && untolerated_taint(pod, node).is_none() && selects(pod, node)
}

fn selects(pod: &Value, node: &Value) -> bool {
    let label = |key: &str| at(node, "metadata.labels").and_then(|l| l.get(key)).and_then(Value::as_str);
    let selector = at(pod, "spec.nodeSelector").and_then(Value::as_object);
    if !selector.into_iter().flatten().all(|(key, value)| label(key) == value.as_str()) {
        return false;
    }
    let required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let Some(terms) = at(pod, required).and_then(|r| r.get("nodeSelectorTerms")).and_then(Value::as_array)
    else {
        return true;
    };
    let field = |key: &str| (key == "metadata.name").then(|| name(node));
    terms.iter().any(|term| {
        let (expressions, fields) = (items(term, "matchExpressions"), items(term, "matchFields"));
        // An empty term selects nothing.
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|e| matches_requirement(e, label(text(e, "key"))))
            && fields.iter().all(|e| matches_requirement(e, field(text(e, "key"))))
    })
}

fn matches_requirement(requirement: &Value, value: Option<&str>) -> bool {
    let listed = |v: &str| items(requirement, "values").iter().any(|w| w == v);
    let bound = items(requirement, "values").first().and_then(|v| v.as_str()?.parse::<i64>().ok());
    let as_number = value.and_then(|v| v.parse::<i64>().ok());
    match text(requirement, "operator") {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => as_number.zip(bound).is_some_and(|(v, b)| v > b),
        "Lt" => as_number.zip(bound).is_some_and(|(v, b)| v < b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    fn node() -> Value {
        json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cores": "8"}},
            "spec": {"taints": [{"key": "gate", "value": "x", "effect": "NoSchedule"}]}})
    }

    #[test]
    fn a_pod_must_tolerate_every_no_schedule_taint() {
        let with = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
        assert!(!fits(&json!({}), &node()));
        assert!(!fits(&with(json!({"key": "gate", "value": "y"})), &node()));
        assert!(fits(&with(json!({"key": "gate", "value": "x", "effect": "NoSchedule"})), &node()));
        assert!(fits(&with(json!({"key": "gate", "operator": "Exists"})), &node()));
        assert!(fits(&with(json!({"operator": "Exists"})), &node()));
        assert!(!fits(&with(json!({"key": "gate", "operator": "Exists", "effect": "NoExecute"})), &node()));
    }

    #[test]
    fn affinity_is_an_or_of_terms_and_an_and_within_one() {
        let pod = |term: Value| {
            json!({"spec": {"tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, term]}}}}})
        };
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        assert!(fits(&pod(expression("zone", "In", json!(["a", "b"]))), &node()));
        assert!(!fits(&pod(expression("zone", "NotIn", json!(["a"]))), &node()));
        assert!(fits(&pod(expression("cores", "Gt", json!(["7"]))), &node()));
        assert!(!fits(&pod(expression("cores", "Lt", json!(["8"]))), &node()));
        let named = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        assert!(fits(&pod(named("n1")), &node()));
        assert!(!fits(&pod(named("n2")), &node()));
        assert!(!fits(&pod(json!({})), &node()));
    }

    #[test]
    fn the_shortest_toleration_decides_how_long_a_pod_stays() {
        let node = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoExecute"}]}});
        let pod = |b: Value| json!({"spec": {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 300}, b]}});
        assert_eq!(may_stay(&pod(json!({"key": "c"})), &node), Stay::No);
        assert_eq!(may_stay(&pod(json!({"key": "b", "operator": "Exists"})), &node), Stay::Seconds(300));
        assert_eq!(
            may_stay(&pod(json!({"key": "b", "operator": "Exists", "tolerationSeconds": 5})), &node),
            Stay::Seconds(5)
        );
        assert_eq!(may_stay(&json!({}), &json!({})), Stay::Forever);
    }
}

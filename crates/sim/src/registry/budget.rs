//! The strategy of `PodDisruptionBudgets`. `api/evict.rs` enforces them, `actors/disruption.rs` counts their pods.

use crate::value::{Value, json};

use super::{AdmissionContext, Strategy, is_label_value, is_qualified_name};
use crate::api::status::{ApiError, StatusCause};
use crate::object::{at, items, number, set, text};

#[derive(Debug)]
pub struct Budgets;

const COUNTS: [&str; 4] = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

impl Strategy for Budgets {
    fn admit(&self, budget: &mut Value, _: &AdmissionContext<'_>) -> Result<(), ApiError> {
        for count in COUNTS {
            set(budget, &format!("status.{count}"), json!(0));
        }
        Ok(())
    }

    fn validate(&self, budget: &Value) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        let bounds = ["spec.minAvailable", "spec.maxUnavailable"];
        if let [Some(_), Some(_)] = bounds.map(|path| at(budget, path)) {
            let detail = "minAvailable and maxUnavailable cannot be both set";
            causes.push(StatusCause::invalid("spec", &budget["spec"], detail));
        }
        for path in bounds {
            causes.extend(at(budget, path).and_then(|bound| validate_bound(path, bound)));
        }
        causes.extend(validate_selector(budget));
        let policy = text(budget, "spec.unhealthyPodEvictionPolicy");
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        if at(budget, "spec.unhealthyPodEvictionPolicy").is_some() && !policies.contains(&policy) {
            let path = "spec.unhealthyPodEvictionPolicy";
            causes.push(StatusCause::unsupported(path, &json!(policy), &policies.map(|p| format!("{p:?}"))));
        }
        let negative = COUNTS.map(|count| format!("status.{count}")).into_iter();
        let negative =
            negative.filter_map(|path| number(budget, &path).filter(|n| *n < 0).map(|n| (path, n)));
        let detail = "must be greater than or equal to 0";
        causes.extend(negative.map(|(path, n)| StatusCause::invalid(path, &json!(n), detail)));
        causes
    }
}

/// A non-negative number, or a percentage up to 100 %.
fn validate_bound(path: &str, bound: &Value) -> Option<StatusCause> {
    let detail = match bound {
        Value::String(text) => match percent(text) {
            None => "a valid percent string must be a numeric string followed by an ending '%'",
            Some(percent) if percent > 100 => "must not be greater than 100%",
            Some(_) => return None,
        },
        number if number.as_i64().is_some_and(|n| n < 0) => "must be greater than or equal to 0",
        _ => return None,
    };
    Some(StatusCause::invalid(path, bound, detail))
}

/// `25%` as 25.
#[must_use]
pub fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%').filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))?;
    // More digits than fit are more than 100.
    Some(digits.parse().unwrap_or(i64::MAX))
}

fn validate_selector(budget: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    let path = "spec.selector.matchLabels";
    for (key, value) in at(budget, path).and_then(Value::as_object).into_iter().flatten() {
        if !is_qualified_name(key) {
            causes.push(StatusCause::invalid(path, &json!(key), "name part must be a qualified name"));
        }
        if !value.as_str().is_some_and(is_label_value) {
            causes.push(StatusCause::invalid(path, value, "a valid label must be 63 characters or less"));
        }
    }
    for (i, expression) in items(budget, "spec.selector.matchExpressions").iter().enumerate() {
        let path = format!("spec.selector.matchExpressions[{i}]");
        let values = items(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(StatusCause::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(StatusCause::forbidden(format!("{path}.values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let detail = "not a valid selector operator";
                causes.push(StatusCause::invalid(format!("{path}.operator"), &json!(other), detail));
            }
        }
        if !is_qualified_name(text(expression, "key")) {
            let detail = "name part must be a qualified name";
            causes.push(StatusCause::invalid(format!("{path}.key"), &expression["key"], detail));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_and_a_percent_sign_are_a_percentage() {
        assert_eq!(percent("25%"), Some(25));
        assert_eq!(percent("99999999999999999999%"), Some(i64::MAX));
        for text in ["25", "%", "-5%", "+5%", " 5%", "5 %", "5.5%"] {
            assert_eq!(percent(text), None, "{text}");
        }
    }
}

//! The label selector of a gate.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::labels::Labels;

/// Selects nodes by their labels; `match_labels` and `match_expressions` all have to match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Lists labels that a node must have with exactly these values. At most 32; defaults to none.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
    /// Lists requirements that the labels of a node must meet, in addition to `matchLabels`. At most 32; defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement is a condition on one label of a node, as in a Kubernetes label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("(has(self.values) && size(self.values) > 0) == (self.operator in ['In', 'NotIn'])")
        .message("`values` must have at least one value for 'In' and 'NotIn', and must be left out for 'Exists' and 'DoesNotExist'"),
)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// The key of the label that the requirement applies to.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Determines how the label is compared. `In` requires one of `values`. `NotIn` requires that the label is absent
    /// or has none of `values`. `Exists` requires that the label is present, `DoesNotExist` that it is absent.
    pub operator: Operator,
    /// Lists the values that `In` and `NotIn` compare the label with, at least 1 and at most 64. It must be empty for
    /// the other operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl NodeSelector {
    /// Whether a node with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(labels))
    }

    /// The keys of all labels that the selector reads.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let expressions = self.match_expressions.iter().map(|requirement| &requirement.key);
        self.match_labels.keys().chain(expressions).map(String::as_str)
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.iter().any(|one| one == value)),
            Operator::NotIn => !value.is_some_and(|value| self.values.iter().any(|one| one == value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_selects_as_kubernetes_does() {
        let labels: Labels = [("pool", "gpu")].into_iter().collect();
        let holds = |operator, key: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let requirement = Requirement { key: key.into(), operator, values };
            NodeSelector { match_labels: BTreeMap::new(), match_expressions: vec![requirement] }
                .matches(&labels)
        };
        assert!(NodeSelector::default().matches(&labels));
        assert!(holds(Operator::In, "pool", &["cpu", "gpu"]) && !holds(Operator::In, "pool", &["cpu"]));
        assert!(!holds(Operator::In, "zone", &["a"]) && holds(Operator::NotIn, "zone", &["a"]));
        assert!(holds(Operator::NotIn, "pool", &["cpu"]) && !holds(Operator::NotIn, "pool", &["gpu"]));
        assert!(holds(Operator::Exists, "pool", &[]) && !holds(Operator::Exists, "zone", &[]));
        assert!(holds(Operator::DoesNotExist, "zone", &[]) && !holds(Operator::DoesNotExist, "pool", &[]));
    }
}

//! Labels of `NodeRemediations`.

use super::*;

#[test]
fn labels_name_node_group_and_gate() {
    let labels = |source| -> Vec<(String, String)> {
        labels(&target("n1"), &cause(source, at(0))).into_iter().collect()
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (node, group) = (pair("nodekeeper.dev/node", "node-n1"), pair("nodekeeper.dev/group", "pool"));
    let gate = pair("nodekeeper.dev/gate", "default");
    assert_eq!(labels(CauseSource::Gate), [gate, group.clone(), node.clone()]);
    assert_eq!(labels(CauseSource::Person), [group, node], "persons are no gates");
}

#[test]
fn label_values_are_valid_and_differ_where_the_texts_do() {
    let longest = "n".repeat(63);
    for valid in ["", "a", "node-1.eu-central-1.compute.internal", "A_b", longest.as_str()] {
        assert_eq!(label_value(valid), valid);
    }
    let long = ["a", "b"].map(|end| label_value(&format!("{longest}{end}")));
    assert_ne!(long[0], long[1]);
    let texts = ["-", "a-", "-a", "a b", "é", "a/b"];
    for value in texts.map(label_value).iter().chain(&long) {
        let is_outer = |c: char| c.is_ascii_alphanumeric();
        assert!(value.len() <= 63 && value.starts_with(is_outer) && value.ends_with(is_outer), "{value}");
        assert!(value.chars().all(|c| is_outer(c) || "-_.".contains(c)), "{value}");
    }
    assert_ne!(label_value("a b"), label_value("a/b"));
}

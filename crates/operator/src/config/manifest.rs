//! Checks objects by the rules of the API server: those that people write, and the gate that results from a configuration
//! file.

use nodekeeper_core::api::{NodeGate, NodeGateSpec, RemediationPolicy};

use super::crd::{self, Path, Step, Violation};
use super::objects::load_objects;
use super::section::{File, Problem};
use super::source::{self, Document};
use super::spanned_yaml::{self, Node, Value};

/// Checks a `NodeGate`, a `RemediationPolicy`, a List of them or the ConfigMap of the chart with such a List, and returns its
/// kind; none if the text is something else, or has a configuration file too.
///
/// # Errors
/// Everything that the API server would refuse.
#[must_use]
pub fn check_manifest(text: &str) -> Option<Result<&'static str, Vec<Problem>>> {
    let node = spanned_yaml::parse(text).ok()?;
    let object = serde_saphyr::from_str(text).ok()?;
    let (kind, violations) = match source::kind(&node)? {
        "List" => return Some(load_objects(text).map(|_| "List")),
        "ConfigMap" => {
            let (objects, line) = source::embedded_text(&node, text, source::OBJECTS_KEY)?;
            let with_line = |problem: Problem| Problem { line: line(problem.line), ..problem };
            return match load_objects(objects) {
                Ok(_) if node.find(&["data", source::CONFIG_KEY]).is_some() => None,
                Ok(_) => Some(Ok("ConfigMap")),
                Err(problems) => Some(Err(problems.into_iter().map(with_line).collect())),
            };
        }
        "NodeGate" => ("NodeGate", crd::violations::<NodeGate>(object)),
        "RemediationPolicy" => ("RemediationPolicy", crd::violations::<RemediationPolicy>(object)),
        _ => return None,
    };
    if violations.is_empty() {
        return Some(Ok(kind));
    }
    let problem = |Violation { path, message }| Problem {
        file: File::Config,
        line: line(&node, &path.0),
        key: path.to_string(),
        message,
    };
    Some(Err(violations.into_iter().map(problem).collect()))
}

/// Returns what the API server would refuse in the gate of a file, by the keys of the file.
pub fn refused(gate: &NodeGateSpec, config: &Document, worker: Option<&Document>) -> Vec<Problem> {
    let object = serde_json::to_value(NodeGate::new("config", gate.clone())).unwrap_or_default();
    let problem = |Violation { path, message }| {
        let (document, path) = origin(&path, config, worker);
        let dot = if document.path.is_empty() || path.0.is_empty() { "" } else { "." };
        let key = format!("{}{dot}{path}", document.path);
        Problem { file: document.file, line: line(&document.node, &path.0), key, message }
    };
    crd::violations::<NodeGate>(object).into_iter().map(problem).collect()
}

/// Returns the key that a field of the gate was read from.
fn origin<'a>(path: &Path, config: &'a Document, worker: Option<&'a Document>) -> (&'a Document, Path) {
    let keys: Vec<&str> =
        path.0.iter().map(|step| if let Step::Key(key) = step { key } else { "" }).collect();
    let (dropped, prefix): (usize, &[&str]) = match keys[..] {
        ["spec", "checks", "dns", ..] => (path.0.len(), &["dnsTestDomains"]),
        ["spec", "taints" | "verifiedLabel", ..] => (1, &["nodeManagement"]),
        ["spec", ..] => (1, &[]),
        _ => (0, &[]),
    };
    let steps =
        prefix.iter().map(|key| Step::Key((*key).to_owned())).chain(path.0[dropped..].iter().cloned());
    let path = Path(steps.collect());
    // Both files can have this key, with or without `worker` around it.
    if prefix == ["dnsTestDomains"] {
        let document = worker.filter(|worker| worker.node.find(prefix).is_some()).unwrap_or(config);
        if document.node.find(prefix).is_none() {
            return (document, Path([Step::Key("worker".into())].into_iter().chain(path.0).collect()));
        }
        return (document, path);
    }
    (config, path)
}

/// Returns the line of a field, or of the nearest one around it.
pub fn line(node: &Node, path: &[Step]) -> u64 {
    let below = path.split_first().and_then(|(step, rest)| match (step, &node.value) {
        (Step::Key(key), Value::Map(_)) => node.find(&[key]).map(|entry| (entry.line, &entry.node, rest)),
        (Step::Index(index), Value::List(items)) => items.get(*index).map(|item| (item.line, item, rest)),
        _ => None,
    });
    match below {
        Some((own, _, [])) => own,
        Some((own, node, rest)) => line(node, rest).max(own),
        None => node.line,
    }
}

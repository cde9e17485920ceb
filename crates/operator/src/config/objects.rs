//! Reads the objects that the installation brings, as the chart renders them: a List of `NodeGates` and a
//! `RemediationPolicy`. They are checked by the rules of the API server, so a mistake is found before anything is written.

use std::collections::BTreeSet;

use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_core::configured::{Adoption, ConfiguredObject, ObjectKey, ObjectKind};
use serde_json::{Map, Value};

use super::crd::{self, Path, Step, Violation};
use super::manifest::line;
use super::section::{File, Problem, quoted};
use super::{LegacyConfig, spanned_yaml, validators};

/// The name of the gate of a configuration file.
const GATE: &str = "config";

/// Reads a List of objects.
///
/// # Errors
/// Everything that the API server would refuse, and fields that are never applied.
pub fn load_objects(text: &str) -> Result<Vec<ConfiguredObject>, Vec<Problem>> {
    let problem =
        |line, key: &Path, message| Problem { file: File::Config, line, key: key.to_string(), message };
    let root = Path::default();
    let node = spanned_yaml::parse(text)
        .map_err(|(line, why)| vec![problem(line, &root, format!("this is not valid YAML: {why}"))])?;
    let list: Value = serde_saphyr::from_str(text)
        .map_err(|error| vec![problem(0, &root, format!("this is not valid YAML: {error}"))])?;
    let Some(items) = list["items"].as_array().filter(|_| list["kind"] == "List") else {
        let message = "the file must be a List: write `kind: List`, and the objects below `items`";
        return Err(vec![problem(node.line, &root, message.into())]);
    };
    let (mut objects, mut problems) = (Vec::new(), Vec::new());
    let mut keys = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let place = root.key("items").with(Step::Index(index));
        let read = read_object(item).and_then(|object| {
            if keys.insert(object.key.clone()) {
                return Ok(object);
            }
            let message = format!("{} is there twice: remove one of the two", object.key);
            Err(vec![Violation { path: Path::default(), message }])
        });
        match read {
            Ok(object) => objects.push(object),
            Err(violations) => problems.extend(violations.into_iter().map(|Violation { path, message }| {
                let path = Path(place.0.iter().chain(&path.0).cloned().collect());
                problem(line(&node, &path.0), &path, message)
            })),
        }
    }
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

fn read_object(item: &Value) -> Result<ConfiguredObject, Vec<Violation>> {
    let wrong = |keys: &[&str], message: String| Violation {
        path: keys.iter().fold(Path::default(), |path, key| path.key(key)),
        message,
    };
    let text = |value: &Value| quoted(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let Some(kind) = ObjectKind::ALL.into_iter().find(|kind| item["kind"] == kind.as_str()) else {
        let kinds = ObjectKind::ALL.map(ObjectKind::as_str).join(" or ");
        return Err(vec![wrong(&["kind"], format!("is {}: write {kinds}", text(&item["kind"])))]);
    };
    let mut found = Vec::new();
    let version = kind.resource().api_version;
    if item["apiVersion"] != version {
        found.push(wrong(&["apiVersion"], format!("is {}: write {version}", text(&item["apiVersion"]))));
    }
    let name = item["metadata"]["name"].as_str().unwrap_or_default();
    if !validators::is_name(name) {
        found.push(wrong(&["metadata", "name"], format!("{} {}", quoted(name), validators::NAME)));
    }
    // Who removed one of these from the file would not expect it to stay on the object.
    let others = |object: &Value, known: &[&str]| -> Vec<String> {
        let keys = object.as_object().into_iter().flat_map(Map::keys);
        keys.filter(|key| !known.contains(&key.as_str())).cloned().collect()
    };
    let unapplied = "is never applied: remove it, and set it on the object itself".to_owned();
    let of_metadata = others(&item["metadata"], &["name"]);
    found.extend(of_metadata.iter().map(|key| wrong(&["metadata", key], unapplied.clone())));
    found.extend(item.get("status").map(|_| wrong(&["status"], unapplied)));
    found.extend(match kind {
        ObjectKind::NodeGate => crd::violations::<NodeGate>(item.clone()),
        ObjectKind::RemediationPolicy => crd::violations::<RemediationPolicy>(item.clone()),
    });
    if !found.is_empty() {
        return Err(found);
    }
    let key = ObjectKey { kind, name: name.to_owned() };
    Ok(ConfiguredObject { key, spec: item["spec"].clone(), adoption: Adoption::KeepLive })
}

impl LegacyConfig {
    /// The gate and the policy of the file. Earlier releases kept the gate equal to the file, so there the file wins.
    #[must_use]
    pub fn objects(&self) -> Vec<ConfiguredObject> {
        let object = |kind, name: &str, spec: serde_json::Result<Value>, adoption| ConfiguredObject {
            key: ObjectKey { kind, name: name.to_owned() },
            // Types that derive `Serialize` without maps of other keys than texts can always be serialized.
            spec: spec.unwrap_or_default(),
            adoption,
        };
        let gate = serde_json::to_value(&self.gate);
        let policy = self.policy.as_ref().map(|policy| {
            object(ObjectKind::RemediationPolicy, "default", serde_json::to_value(policy), Adoption::KeepLive)
        });
        [object(ObjectKind::NodeGate, GATE, gate, Adoption::TakeConfigured)]
            .into_iter()
            .chain(policy)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{check_manifest, load};
    use super::*;

    /// What the chart renders by default.
    const OBJECTS: &str = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: nodekeeper.dev/v1alpha1\n  kind: NodeGate\n  metadata:\n    name: default\n  spec:\n    taints:\n    - {key: a/b}\n- {apiVersion: nodekeeper.dev/v1alpha1, kind: RemediationPolicy, metadata: {name: default}, spec: {}}\n";

    #[test]
    fn u02_the_objects_of_the_installation_are_read() {
        let objects = load_objects(OBJECTS).expect("valid");
        let keys: Vec<String> = objects.iter().map(|object| object.key.to_string()).collect();
        assert_eq!(keys, ["NodeGate/default", "RemediationPolicy/default"]);
        assert_eq!(objects[0].spec, json!({"taints": [{"key": "a/b"}]}), "as it was rendered");
        assert_eq!(load_objects("{kind: List, items: []}"), Ok(Vec::new()));
        assert_eq!(check_manifest(OBJECTS), Some(Ok("List")));
    }

    #[test]
    fn s03_the_config_map_of_the_chart_is_checked() {
        let map = |objects: &str| {
            let block = objects.lines().collect::<Vec<_>>().join("\n    ");
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  objects.yaml: |\n    {block}\n"
            )
        };
        assert_eq!(check_manifest(&map(OBJECTS)), Some(Ok("ConfigMap")));
        let wrong = map(&OBJECTS.replace("spec: {}", "spec: {pause: {reason: x, until: 2030-01-31}}"));
        for text in [wrong.clone(), format!("{wrong}  config.yaml: '{{}}'\n")] {
            let Some(Err(problems)) = check_manifest(&text) else { panic!("{text} is taken") };
            let told: Vec<String> =
                problems.iter().map(|problem| format!("{}: {problem}", problem.line)).collect();
            assert!(
                matches!(&told[..], [one] if one.starts_with("16: `items[1].spec.pause.until`: '2030-01-31' is no time")),
                "{told:?}"
            );
        }
        assert_eq!(
            check_manifest(&format!("{}  config.yaml: '{{}}'\n", map(OBJECTS))),
            None,
            "the file is checked next"
        );
        for values in ["gate: {enforcement: Audit}", "remediation: {enforcement: Enforce}"] {
            let problems = load(values, None).expect_err(values);
            assert!(problems[0].to_string().contains("helm template"), "{problems:?}");
        }
    }

    #[test]
    fn u02_a_wrong_object_of_the_installation_is_named_with_line_and_fix() {
        let gate = |rest: &str| format!("{{apiVersion: nodekeeper.dev/v1alpha1, kind: NodeGate, {rest}}}");
        let named = gate("metadata: {name: a}, spec: {}");
        for (items, wanted) in [
            (
                gate("metadata: {name: a}, spec: {onFailure: Delete}"),
                "2: `items[0].spec.onFailure`: 'Delete' is not one of",
            ),
            (gate("metadata: {name: a}"), "2: `items[0].spec`: is missing"),
            (format!("{named},\n{named}"), "3: `items[1]`: NodeGate/a is there twice"),
            (gate("metadata: {name: a}, spec: {}, status: {}"), "2: `items[0].status`: is never applied"),
            (gate("metadata: {}, spec: {}"), "2: `items[0].metadata.name`: '' is not a valid name"),
            (
                gate("metadata: {name: a, labels: {}}, spec: {}"),
                "2: `items[0].metadata.labels`: is never applied",
            ),
            (named.replace("v1alpha1", "v1"), "2: `items[0].apiVersion`: is 'nodekeeper.dev/v1': write"),
            (named.replace("NodeGate", "Pod"), "2: `items[0].kind`: is 'Pod': write NodeGate or"),
            (named.replace("NodeGate", "RemediationPolicy"), "`metadata.name` must be 'default'"),
        ] {
            let text = format!("{{kind: List, items: [\n{items}]}}");
            let problems = load_objects(&text).expect_err(&items);
            let told: Vec<String> =
                problems.iter().map(|problem| format!("{}: {problem}", problem.line)).collect();
            assert!(matches!(&told[..], [one] if one.contains(wanted)), "{items}: {told:?}");
        }
        for text in ["{kind: List", "kind: NodeGate", "[]"] {
            assert_eq!(load_objects(text).map_err(|problems| problems.len()), Err(1), "{text}");
        }
    }

    #[test]
    fn u02_the_file_of_kube_node_ready_becomes_objects() {
        let file = |text: &str| load(text, None).unwrap_or_else(|problems| panic!("{problems:#?}"));
        let keys = |text: &str| -> Vec<String> {
            file(text).objects().iter().map(|object| object.key.to_string()).collect()
        };
        assert_eq!(keys("{worker: {}}"), ["NodeGate/config"]);
        assert_eq!(
            keys("{nodeManagement: {deleteFailedNodes: true}}"),
            ["NodeGate/config", "RemediationPolicy/default"]
        );
        let objects = file("{reconciliation: {maxRetries: 7}}").objects();
        assert_eq!(objects[0].spec["retry"]["maxRetries"], 7);
    }
}

//! Finds the configuration in what people have at hand: the file itself, a ConfigMap with it, or the values of a chart.

use super::section::{File, Problem, quoted};
use super::spanned_yaml::{self, Entry, Node, Value};

/// A configuration within a text.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file that the text is in.
    pub file: File,
    /// The key below which it is; empty if it is the text itself.
    pub path: String,
    pub node: Node,
}

/// The configurations that one text holds.
#[derive(Debug)]
pub struct Source {
    pub config: Document,
    pub worker: Option<Document>,
    pub warnings: Vec<String>,
    pub hints: Vec<String>,
}

pub const CONFIG_KEY: &str = "config.yaml";
/// The objects of the installation in the ConfigMap of the chart.
pub const OBJECTS_KEY: &str = "objects.yaml";
const WORKER_KEY: &str = "worker-config.yaml";

/// Finds the controller's configuration, and the worker's if it is there too.
pub fn config(text: &str) -> Result<Source, Problem> {
    let node = parse(text, File::Config)?;
    let found = |config, worker| Source { config, worker, warnings: Vec::new(), hints: Vec::new() };
    let document =
        |path: &str, node: &Node| Document { file: File::Config, path: path.to_owned(), node: node.clone() };
    if let Some(entry) = manifest(&node, text, File::Config, CONFIG_KEY)? {
        let worker = embedded(&node, text, File::Config, WORKER_KEY)?;
        return Ok(found(document("", &entry), worker.map(|worker| document("", &worker))));
    }
    let is_map = |node: &&Node| matches!(node.value, Value::Map(_));
    let map_at = |keys: &[&str]| node.find(keys).map(|entry| &entry.node).filter(is_map);
    let mode = node.find(&["deploymentMode"]);
    let daemon_set = is_daemon_set(mode)?;
    let theirs = if daemon_set { "daemonset" } else { "controller" };
    if let Some(inner) = map_at(&[theirs, "config"]) {
        let worker = map_at(&["worker", "config"]).filter(|_| !daemon_set);
        let mut source = found(
            document(&format!("{theirs}.config"), inner),
            worker.map(|worker| document("worker.config", worker)),
        );
        let read =
            if daemon_set { "`daemonset.config` is" } else { "`controller.config` and `worker.config` are" };
        source.hints.push(format!(
            "these are values of kube-node-ready's chart: only {read} read{}; give them to our chart as `config` and \
             `workerConfig`",
            unread(&node)
        ));
        return Ok(with_mode(source, daemon_set));
    }
    if let Some(inner) = map_at(&["config"]) {
        let mut source = found(
            document("config", inner),
            map_at(&["workerConfig"]).map(|worker| document("workerConfig", worker)),
        );
        source.hints.push("these are values of a chart: only `config` and `workerConfig` are checked".into());
        return Ok(with_mode(source, daemon_set));
    }
    if let Some(entry) = ["gate", "remediation"].iter().find_map(|key| node.find(&[key])) {
        return Err(Problem {
            file: File::Config,
            line: entry.line,
            key: entry.key.clone(),
            message: "is a value of our chart: check what the chart makes of it with `helm template charts/nodekeeper \
                      --values FILE --show-only templates/controller/configmap.yaml | nodekeeper config check -`"
                .into(),
        });
    }
    if daemon_set {
        let why = "is 'daemonset', and there is neither `daemonset.config` nor `config`: set it to controller if you mean \
                   `controller.config`";
        return Err(wrong_mode(mode, why));
    }
    if mode.is_some() {
        return Err(wrong_mode(
            mode,
            "is a value of a chart, and there is no `controller.config`: remove it",
        ));
    }
    Ok(found(Document { file: File::Config, path: String::new(), node }, None))
}

/// Finds the worker's configuration.
pub fn worker(text: &str) -> Result<Document, Problem> {
    let node = parse(text, File::Worker)?;
    let node = manifest(&node, text, File::Worker, WORKER_KEY)?.unwrap_or(node);
    Ok(Document { file: File::Worker, path: String::new(), node })
}

fn is_daemon_set(mode: Option<&Entry>) -> Result<bool, Problem> {
    match mode.map(|mode| &mode.node.value) {
        Some(Value::Text(mode)) if mode == "daemonset" => Ok(true),
        Some(Value::Text(mode)) if mode == "controller" || mode == "both" => Ok(false),
        None | Some(Value::Null) => Ok(false),
        Some(Value::Text(other)) => {
            Err(wrong_mode(mode, &format!("is {}: write controller, daemonset or both", quoted(other))))
        }
        Some(_) => Err(wrong_mode(mode, "is no text: write controller, daemonset or both")),
    }
}

fn wrong_mode(mode: Option<&Entry>, message: &str) -> Problem {
    let line = mode.map_or(0, |mode| mode.line);
    Problem { file: File::Config, line, key: "deploymentMode".into(), message: message.into() }
}

fn with_mode(mut source: Source, daemon_set: bool) -> Source {
    if daemon_set {
        source.warnings.push(
            "`deploymentMode`: these are checked as settings of a controller; with `deploymentMode: daemonset` of our chart, agents \
             take what an agent has of them"
                .into(),
        );
    }
    source
}

/// The values of kube-node-ready's chart that nothing here reads.
fn unread(values: &Node) -> String {
    let Value::Map(entries) = &values.value else { return String::new() };
    let mut keys = Vec::new();
    for entry in entries {
        match (entry.key.as_str(), &entry.node.value) {
            ("deploymentMode", _) => {}
            ("controller" | "worker" | "daemonset", Value::Map(below)) => {
                let others = below.iter().filter(|below| below.key != "config");
                keys.extend(others.map(|below| format!("`{}.{}`", entry.key, below.key)));
            }
            (key, _) => keys.push(format!("`{key}`")),
        }
    }
    if keys.is_empty() { String::new() } else { format!(", and not {}", keys.join(", ")) }
}

fn parse(text: &str, file: File) -> Result<Node, Problem> {
    let wrong = |line, message| Problem { file, line, key: String::new(), message };
    let node = spanned_yaml::parse(text)
        .map_err(|(line, why)| wrong(line, format!("this is not valid YAML: {why}")))?;
    match node.value {
        Value::Map(_) => Ok(node),
        _ => Err(wrong(node.line, "the file must be a mapping of keys and values, such as `worker:`".into())),
    }
}

/// The kind of a Kubernetes object.
pub fn kind(node: &Node) -> Option<&str> {
    node.find(&["apiVersion"])?;
    match &node.find(&["kind"])?.node.value {
        Value::Text(kind) => Some(kind),
        _ => None,
    }
}

/// Returns the file in a ConfigMap; none if the text is no Kubernetes object.
fn manifest(node: &Node, text: &str, file: File, key: &str) -> Result<Option<Node>, Problem> {
    let Some(kind) = kind(node) else { return Ok(None) };
    let wrong = |key: &str, message| {
        let line = node.find(&[key]).map_or(node.line, |entry| entry.line);
        Problem { file, line, key: key.to_owned(), message }
    };
    if kind != "ConfigMap" {
        let message = format!(
            "is {}: apply it with kubectl; only a ConfigMap holds a configuration file",
            quoted(kind)
        );
        return Err(wrong("kind", message));
    }
    let found = embedded(node, text, file, key)?;
    found.map(Some).ok_or_else(|| wrong("data", format!("has no `{key}`: add it, or name the file itself")))
}

/// Parses a file in the data of a ConfigMap. Its lines are those of the whole text.
fn embedded(node: &Node, text: &str, file: File, key: &str) -> Result<Option<Node>, Problem> {
    let Some((inner, line)) = embedded_text(node, text, key) else { return Ok(None) };
    let mut parsed = parse(inner, file).map_err(|problem| Problem { line: line(problem.line), ..problem })?;
    parsed.map_lines(&line);
    Ok(Some(parsed))
}

/// Returns a file in the data of a ConfigMap, and the lines of the whole text that its lines are.
pub fn embedded_text<'n>(node: &'n Node, text: &str, key: &str) -> Option<(&'n str, impl Fn(u64) -> u64)> {
    let entry = node.find(&["data", key])?;
    let Value::Text(inner) = &entry.node.value else { return None };
    let first = entry.line;
    let line_text = usize::try_from(first).ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
    let is_block =
        line_text.is_some_and(|line| line.contains('|') && !line.trim_end().ends_with(['"', '\'', ',']));
    Some((inner, move |inner| if is_block { first + inner } else { first }))
}

use nodekeeper_core::api::{
    ActEnforcement, CauseSelector, CauseSource, FailureAction, NodeGateSpec, RemediationPolicySpec,
    TaintEffect, TolerationOperator,
};
use nodekeeper_core::checks::Dns;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Helm values as the README of kube-node-ready shows them.
const EXAMPLE: &str = include_str!("../../../../examples/kube-node-ready/values.yaml");
/// The same as a ConfigMap holds it.
const CONFIG: &str = include_str!("../../../../examples/kube-node-ready/config.yaml");
/// Everything that the chart of kube-node-ready renders, with its defaults.
const FULL: &str = include_str!("../../../../examples/kube-node-ready/config-full.yaml");
const WORKER: &str = include_str!("../../../../examples/kube-node-ready/worker-config.yaml");

/// A file without any setting.
fn empty() -> LegacyConfig {
    parsed("worker: {}")
}

fn parsed(text: &str) -> LegacyConfig {
    load(text, None).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
}

/// The problems of a file, as `line: text`.
fn wrong(text: &str) -> Vec<String> {
    let Err(problems) = load(text, None) else { panic!("nothing is wrong with\n{text}") };
    problems.iter().map(|problem| format!("{}: {problem}", problem.line)).collect()
}

fn assert_wrong(text: &str, wanted: &[&str]) {
    let told = wrong(text);
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.contains(wanted), "no {wanted:?} in {told:?}");
    }
}

/// `a.b.c` and a value as a file.
fn file(path: &str, value: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    let (open, close) = (format!("{{{}", parts.join(": {")), "}".repeat(parts.len()));
    format!("{open}: {value}{close}")
}

/// The effect of a key.
enum Does {
    /// It sets this field of the gate.
    Gate(&'static str, Value),
    /// It sets another setting.
    Set(fn(&LegacyConfig) -> bool),
    /// It is listed among the keys without effect.
    Idle,
    /// It causes a warning of its own.
    Warns(&'static str),
    /// It has no effect and no warning.
    Silent,
}

fn assert_does(key: &str, text: &str, parsed: &LegacyConfig, does: &Does) {
    let warnings = parsed.warnings.join("\n");
    match does {
        Does::Gate(pointer, wanted) => {
            let gate = serde_json::to_value(&parsed.gate).unwrap();
            assert_eq!(gate.pointer(pointer), Some(wanted), "{key}: {text}");
            let default = serde_json::to_value(NodeGateSpec::default()).unwrap();
            assert_ne!(default.pointer(pointer), Some(wanted), "{key}: the default proves nothing");
        }
        Does::Set(right) => {
            assert!(right(parsed), "{key}: {parsed:#?}");
            assert!(!right(&empty()), "{key}: the default proves nothing");
        }
        Does::Idle => {
            assert!(warnings.contains("have no effect") && warnings.contains(key), "{key}: {warnings}");
        }
        Does::Warns(wanted) => assert!(warnings.contains(wanted), "{key}: {warnings}"),
        Does::Silent => assert_eq!(*parsed, LegacyConfig { warnings: Vec::new(), ..empty() }, "{key}"),
    }
    if matches!(does, Does::Gate(..) | Does::Set(_)) {
        assert_eq!(warnings, "", "{key}");
    }
}

/// Every key below `worker` in kube-node-ready's controller file, with a value and its effect.
fn keys_of_workers() -> Vec<(&'static str, &'static str, Does)> {
    use Does::{Gate, Idle, Set, Silent};
    vec![
        ("worker.image", "{repository: r/w, tag: 1.10}", Gate("/worker/image", json!("r/w:1.10"))),
        ("worker.image.pullPolicy", "Always", Gate("/worker/imagePullPolicy", json!("Always"))),
        ("worker.namespace", "kube-system", Set(|l| l.namespace.as_deref() == Some("kube-system"))),
        ("worker.serviceAccountName", "who", Set(|l| l.service_account.as_deref() == Some("who"))),
        ("worker.priorityClassName", "high", Gate("/worker/priorityClassName", json!("high"))),
        ("worker.resources.requests.cpu", "50m", Gate("/worker/resources/requests/cpu", json!("50m"))),
        (
            "worker.resources.requests.memory",
            "64Mi",
            Gate("/worker/resources/requests/memory", json!("64Mi")),
        ),
        ("worker.resources.limits.cpu", "1", Gate("/worker/resources/limits/cpu", json!("1"))),
        ("worker.resources.limits.memory", "1.5Gi", Gate("/worker/resources/limits/memory", json!("1.5Gi"))),
        (
            "worker.resources.limits",
            "{nvidia.com/gpu: 2}",
            Gate("/worker/resources/limits/nvidia.com~1gpu", json!("2")),
        ),
        ("worker.configMapName", "some", Idle),
        ("worker.job.activeDeadlineSeconds", "300", Gate("/deadlines/workerSeconds", json!(300))),
        ("worker.job.backoffLimit", "3", Idle),
        ("worker.job.backoffLimit", "2", Silent),
        ("worker.job.completions", "2", Idle),
        ("worker.job.completions", "1", Silent),
        ("worker.job.ttlSecondsAfterFinished", "600", Idle),
        ("worker.job.parallelism", "2", Idle),
        ("worker.timeoutSeconds", "900", Gate("/deadlines/workerSeconds", json!(900))),
        ("worker.timeoutSeconds", "900", Gate("/deadlines/gateSeconds", json!(900))),
        (
            "worker.tolerations",
            "[{key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 9}]",
            Gate(
                "/worker/tolerations/0",
                json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute",
                "tolerationSeconds": 9}),
            ),
        ),
        (
            "worker.initContainers",
            "[{name: a, image: b}]",
            Gate("/worker/initContainers/0/image", json!("b")),
        ),
    ]
}

/// All other keys of that file.
fn keys_of_controllers() -> Vec<(&'static str, &'static str, Does)> {
    use Does::{Gate, Idle, Set, Silent, Warns};
    let taint = json!([{"key": "a/b", "value": "c", "effect": "NoExecute"}]);
    vec![
        ("reconciliation.intervalSeconds", "30", Set(|l| l.resync == Some(Duration::from_secs(30)))),
        ("reconciliation.maxRetries", "7", Gate("/retry/maxRetries", json!(7))),
        ("reconciliation.retryBackoff", "linear", Gate("/retry/backoff", json!("Linear"))),
        ("nodeManagement.deleteFailedNodes", "true", Warns("its Node object is deleted as a last resort")),
        ("nodeManagement.deleteFailedNodes", "false", Silent),
        ("nodeManagement.taints", "[{key: a/b, value: c, effect: NoExecute}]", Gate("/taints", taint)),
        ("nodeManagement.verifiedLabel.key", "a/b", Gate("/verifiedLabel/key", json!("a/b"))),
        ("nodeManagement.verifiedLabel.value", "yes", Gate("/verifiedLabel/value", json!("yes"))),
        ("leaderElection.enabled", "false", Idle),
        ("leaderElection.enabled", "true", Silent),
        ("leaderElection.id", "who", Set(|l| l.lease_name.as_deref() == Some("who"))),
        ("leaderElection.namespace", "where", Set(|l| l.lease_namespace.as_deref() == Some("where"))),
        ("metrics.enabled", "false", Set(|l| l.metrics.as_deref() == Some("0"))),
        ("metrics.port", "9090", Set(|l| l.metrics.as_deref() == Some(":9090"))),
        ("health.port", "9091", Set(|l| l.health.as_deref() == Some(":9091"))),
        ("logging.level", "debug", Set(|l| l.log_level.as_deref() == Some("debug"))),
        ("logging.format", "console", Set(|l| l.log_format == Some(LogFormat::Console))),
        ("kubernetes.kubeconfigPath", "/some/where", Set(|l| l.kubeconfig.as_deref() == Some("/some/where"))),
        ("kubernetes.qps", "20", Idle),
        ("kubernetes.qps", "50", Silent),
        ("kubernetes.burst", "30", Idle),
        ("kubernetes.burst", "100", Silent),
    ]
}

fn controller_keys() -> Vec<(&'static str, &'static str, Does)> {
    keys_of_workers().into_iter().chain(keys_of_controllers()).collect()
}

/// Every key of the worker's file. Its README has them below `worker` too.
fn worker_keys() -> Vec<(&'static str, &'static str, Does)> {
    use Does::{Gate, Idle, Silent};
    vec![
        ("dnsTestDomains", "[a.b]", Gate("/checks/dns", serde_json::to_value(names(&["a.b"])).unwrap())),
        ("checkTimeoutSeconds", "5", Gate("/deadlines/checkSeconds", json!(5))),
        ("maxRetries", "3", Idle),
        ("maxRetries", "1", Silent),
        ("retryBackoff", "exponential", Idle),
        ("retryBackoff", "linear", Silent),
        ("logging.level", "debug", Idle),
        ("logging.format", "console", Idle),
        ("logging.format", "json", Silent),
        ("dryRun", "true", Idle),
        ("dryRun", "false", Silent),
    ]
}

fn names(names: &[&str]) -> Dns {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Dns { names, optional: Vec::new(), ..Dns::default() }
}

#[test]
fn f18_every_key_of_the_controllers_file_has_its_effect() {
    for (key, value, does) in controller_keys() {
        let text = file(key, value);
        assert_does(key, &text, &parsed(&text), &does);
    }
}

#[test]
fn f18_every_key_of_the_workers_file_has_its_effect() {
    for (key, value, does) in worker_keys() {
        let text = file(key, value);
        let read = load("worker: {}", Some(&text)).unwrap_or_else(|problems| panic!("{key}: {problems:#?}"));
        assert_does(key, &text, &read, &does);
        let text = file(&format!("worker.{key}"), value);
        assert_does(key, &text, &parsed(&text), &does);
    }
}

#[test]
fn f13_delete_failed_nodes_replaces_within_a_budget() {
    let read = parsed("nodeManagement: {deleteFailedNodes: true}");
    assert_eq!(read.gate, NodeGateSpec { on_failure: FailureAction::Replace, ..empty().gate });
    let policy = RemediationPolicySpec {
        enforcement: ActEnforcement::Enforce,
        delete_node_object_for: vec![CauseSelector { source: CauseSource::Gate, name: "config".into() }],
        ..RemediationPolicySpec::default()
    };
    assert_eq!(read.policy.as_ref(), Some(&policy));
    let [warning] = read.warnings.as_slice() else { panic!("{:?}", read.warnings) };
    let budget = policy.budget;
    let numbers = [format!("{} at once", budget.max_in_flight), format!("{} an hour", budget.max_per_hour)];
    let words = ["`nodeManagement.deleteFailedNodes`", "kubectl edit remediationpolicy default"];
    for word in words.into_iter().chain(numbers.iter().map(String::as_str)) {
        assert!(warning.contains(word), "no {word:?} in {warning:?}");
    }
}

#[test]
fn the_readme_example_warns_only_about_its_image() {
    let read = parsed(CONFIG);
    assert_eq!(read.warnings.len(), 1, "{:?}", read.warnings);
    assert!(read.warnings[0].contains("ghcr.io/imunhatep/kube-node-ready"));
    assert!(read.hints.is_empty());
    let mut gate = NodeGateSpec::default();
    gate.checks.dns = Some(names(&["kubernetes.default.svc.cluster.local", "google.com"]));
    gate.deadlines.worker_seconds = 300;
    assert_eq!(read.gate, gate, "all else is as by default");
    assert_eq!(read.namespace.as_deref(), Some("kube-system"));
    assert_eq!(read.resync, Some(Duration::from_secs(30)));
}

#[test]
fn helm_values_are_read_with_a_hint() {
    let (values, config) = (parsed(EXAMPLE), parsed(CONFIG));
    assert_eq!((values.hints.len(), values.warnings.len()), (1, 1));
    assert!(values.warnings[0].contains("`controller.config.worker.image`"), "as it stands in the file");
    let (warnings, outside_objects) = (config.warnings.clone(), config.outside_objects.clone());
    assert_eq!(LegacyConfig { hints: Vec::new(), warnings, outside_objects, ..values }, config);
}

/// The "Common Configurations" of kube-node-ready's README, as they are written there.
const COMMON: [&str; 3] = [
    "config:\n  taintKey: \"my-custom/unverified\"\n  taintValue: \"true\"\n  taintEffect: \"NoSchedule\"\n",
    "config:\n  dnsTestDomains:\n    - kubernetes.default.svc.cluster.local\n    - cloudflare.com\n    - 8.8.8.8\n",
    "config:\n  maxRetries: 10\n  retryBackoff: \"exponential\"\n  initialTimeout: \"600s\"\n",
];

#[test]
fn s01_the_common_configurations_of_the_readme_work() {
    let mut taint = empty().gate;
    taint.taints[0].key = "my-custom/unverified".into();
    let mut dns = empty().gate;
    let servers = vec!["8.8.8.8".to_owned()];
    let queried = names(&["kubernetes.default.svc.cluster.local", "cloudflare.com"]);
    dns.checks.dns = Some(Dns { servers, ..queried });
    let mut retries = empty().gate;
    retries.retry.max_retries = 10;
    retries.deadlines.gate_seconds = 600;
    for (text, wanted) in COMMON.iter().zip([taint, dns, retries]) {
        assert_eq!(parsed(text).gate, wanted, "{text}");
        // The chart gives the controller what is below `config`.
        let file: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(parsed(&file["config"].to_string()).gate, wanted, "{text}");
    }
}

#[test]
fn s01_every_key_of_the_daemon_set_mode_has_its_effect() {
    use Does::{Gate, Idle, Set, Warns};
    let taint =
        |key: &str, value: &str, effect: &str| json!([{"key": key, "value": value, "effect": effect}]);
    for (key, value, does) in [
        ("taintKey", "a/b", Gate("/taints", taint("a/b", "true", "NoSchedule"))),
        ("taintValue", "b", Gate("/taints", taint("node-ready/unverified", "b", "NoSchedule"))),
        ("taintEffect", "NoExecute", Gate("/taints", taint("node-ready/unverified", "true", "NoExecute"))),
        ("verifiedLabel", "a/b", Gate("/verifiedLabel/key", json!("a/b"))),
        ("verifiedLabelValue", "yes", Gate("/verifiedLabel/value", json!("yes"))),
        ("deleteFailedNode", "true", Warns("its Node object is deleted as a last resort")),
        ("dnsTestDomains", "[a.b]", Gate("/checks/dns", serde_json::to_value(names(&["a.b"])).unwrap())),
        ("checkTimeout", "1500ms", Gate("/deadlines/checkSeconds", json!(2))),
        ("initialTimeout", "1h1m", Gate("/deadlines/gateSeconds", json!(3660))),
        ("initialTimeout", "90s", Gate("/deadlines/workerSeconds", json!(90))),
        ("clusterDNSIP", "10.0.0.10", Idle),
        ("maxRetries", "7", Gate("/retry/maxRetries", json!(7))),
        ("retryBackoff", "linear", Gate("/retry/backoff", json!("Linear"))),
        ("enableMetrics", "false", Set(|l| l.metrics.as_deref() == Some("0"))),
        ("metricsPort", "9090", Set(|l| l.metrics.as_deref() == Some(":9090"))),
        ("logLevel", "debug", Set(|l| l.log_level.as_deref() == Some("debug"))),
        ("logFormat", "console", Set(|l| l.log_format == Some(LogFormat::Console))),
    ] {
        let text = file(key, value);
        assert_does(key, &text, &parsed(&text), &does);
    }
    assert_wrong(
        "maxRetries: 3\ntaintKei: a\nreconciliation: {}\nlogLevel: loud\ninitialTimeout: 600\ncheckTimeout: 115s\n",
        &[
            "1: `maxRetries`: is a key of kube-node-ready's DaemonSet mode, which cannot be combined with `reconciliation`",
            "2: `taintKei`: there is no such key: did you mean `taintKey`?",
            "4: `logLevel`: 'loud' is not one of",
            "5: `initialTimeout`: is '600': write a duration from 30s to 86400s",
            "6: `checkTimeout`: a check may take 115 s, and a worker has 120 s for all",
        ],
    );
}

#[test]
fn s02_what_the_api_server_refuses_is_an_error_of_its_key() {
    for (text, wanted) in [
        (
            "worker:\n  tolerations:\n  - {key: a, operator: Exists, value: b}\n",
            "3: `worker.tolerations[0]`: `value` must be empty",
        ),
        (
            "worker:\n  tolerations:\n  - {operator: Equal}\n",
            "3: `worker.tolerations[0]`: `operator` must be 'Exists'",
        ),
        (
            "worker:\n  tolerations:\n  - {key: a, tolerationSeconds: 5}\n",
            "3: `worker.tolerations[0]`: `effect` must be 'NoExecute'",
        ),
        (
            "worker:\n  volumes:\n  - {name: a, emptyDir: {}}\n  - {name: a, emptyDir: {}}\n",
            "4: `worker.volumes[1]`: Duplicate value",
        ),
        (
            "worker:\n  volumes:\n  - {name: nodekeeper-a, emptyDir: {}}\n",
            "3: `worker.volumes[0]`: `name` must not begin with `nodekeeper-`",
        ),
        (
            "nodeManagement:\n  taints:\n  - {key: a}\n  - {key: a, effect: NoSchedule}\n",
            "4: `nodeManagement.taints[1]`: Duplicate value",
        ),
        (
            "worker:\n  dnsTestDomains: [8.8.8]\n",
            "2: `worker.dnsTestDomains[0]`: '8.8.8' is neither a DNS name",
        ),
        (
            "config:\n  worker:\n    resources: {limits: {a/b: 1, c/d: 1, e/f: 1, g/h: 1, i/j: 1, k/l: 1, m/n: 1, o/p: 1, q/r: 1}}\n",
            "3: `config.worker.resources.limits`: has 9 keys: there must be at most 8",
        ),
        (
            "worker:\n  initContainers:\n  - {name: a, image: b, env: [{name: \"A\\tB\"}]}\n",
            "3: `worker.initContainers[0].env[0].name`: 'A B' must match",
        ),
    ] {
        assert_wrong(text, &[wanted]);
    }
}

fn indented(text: &str, by: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("{by}{line}")).collect();
    lines.join("\n") + "\n"
}

#[test]
fn s03_values_of_our_chart_are_read() {
    let indented = indented(CONFIG, "  ");
    let values =
        format!("controller: {{replicas: 3}}\nconfig:\n{indented}workerConfig: {{checkTimeoutSeconds: 4}}\n");
    let (read, wanted) = (parsed(&values), load(CONFIG, Some("checkTimeoutSeconds: 4")).unwrap());
    assert_eq!(read.gate, wanted.gate);
    assert!(read.hints[0].contains("`config` and `workerConfig`"), "{:?}", read.hints);
    assert_wrong("config:\n  worker:\n    imagee: 1\n", &["3: `config.worker.imagee`: there is no such key"]);
}

#[test]
fn s03_a_config_map_is_read_with_its_lines() {
    let map = |config: &str| {
        let indented = indented(config, "    ");
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  config.yaml: |\n{indented}")
    };
    assert_eq!(parsed(&map(CONFIG)).gate, parsed(CONFIG).gate);
    let both = format!("{}  worker-config.yaml: |\n    checkTimeoutSeconds: 4\n", map(CONFIG));
    assert_eq!(parsed(&both).gate.deadlines.check_seconds, 4);
    assert_wrong(&map("worker:\n  imagee: 1\n"), &["7: `worker.imagee`: there is no such key"]);
    assert_wrong(&map("a: [}\n"), &["6: this is not valid YAML"]);
    let json =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": "worker:\n  imagee: 1\n"}});
    assert_wrong(&json.to_string(), &["1: `worker.imagee`"]);
    assert_wrong("{apiVersion: v1, kind: ConfigMap, data: {a: b}}", &["`data`: has no `config.yaml`"]);
    assert_wrong("apiVersion: v1\nkind: Pod\n", &["2: `kind`: is 'Pod'"]);
    let worker =
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  worker-config.yaml: |\n    checkTimeoutSeconds: 4\n";
    assert_eq!(load("worker: {}", Some(worker)).unwrap().gate.deadlines.check_seconds, 4);
}

#[test]
fn s03_a_gate_or_a_policy_is_checked_as_such() {
    let gate = |spec: &str| {
        format!("apiVersion: nodekeeper.dev/v1alpha1\nkind: NodeGate\nmetadata: {{name: a}}\n{spec}")
    };
    assert_eq!(check_manifest(&gate("spec: {}\n")), Some(Ok("NodeGate")));
    let text = gate(
        "spec:\n  onFailure: Delete\n  worker:\n    tolerations:\n    - {key: a, operator: Exist}\n  zebra: 1\n",
    );
    let problems = check_manifest(&text).expect("a gate").expect_err("three problems");
    let told: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", problem.line)).collect();
    for wanted in [
        "5: `spec.onFailure`: 'Delete' is not one of",
        "8: `spec.worker.tolerations[0].operator`: 'Exist' is not one of Equal, Exists",
        "9: `spec.zebra`: there is no such key",
    ] {
        assert!(told.iter().any(|told| told.starts_with(wanted)), "no {wanted:?} in {told:#?}");
    }
    assert_eq!(told.len(), 3, "{told:#?}");
    let policy =
        "apiVersion: nodekeeper.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: mine}\nspec: {}\n";
    let problems = check_manifest(policy).expect("a policy").expect_err("its name");
    assert!(problems[0].message.contains("must be 'default'"), "{problems:?}");
    assert_eq!(check_manifest("worker: {}"), None);
    let problems = load(&gate(""), None).expect_err("a controller does not read it");
    assert!(problems[0].message.contains("apply it with kubectl"), "{problems:?}");
}

#[test]
fn s04_settings_outside_of_the_gate_are_listed_by_key() {
    let read = parsed(
        "{worker: {namespace: a, serviceAccountName: b}, reconciliation: {intervalSeconds: 9}, \
         leaderElection: {id: c, namespace: d}, metrics: {enabled: true, port: 1}, health: {port: 2}, \
         logging: {level: warn, format: json}, kubernetes: {kubeconfigPath: /k}}",
    );
    let wanted = [
        ("worker.namespace", "--namespace"),
        ("worker.serviceAccountName", "--worker-service-account"),
        ("reconciliation.intervalSeconds", "only a file"),
        ("leaderElection.id", "--lease-name"),
        ("leaderElection.namespace", "only a file"),
        ("metrics.enabled", "--metrics-bind-address"),
        ("metrics.port", "--metrics-bind-address"),
        ("health.port", "--health-probe-bind-address"),
        ("logging.level", "--log-level"),
        ("logging.format", "--log-format"),
        ("kubernetes.kubeconfigPath", "KUBECONFIG"),
    ];
    let told = &read.outside_objects;
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for ((key, place), told) in wanted.iter().zip(told) {
        assert!(told.starts_with(&format!("`{key}`: ")) && told.contains(place), "{key}: {told}");
    }
    // Everything that is neither in the objects nor on this list has no effect.
    let bare = |legacy: LegacyConfig| LegacyConfig { gate: NodeGateSpec::default(), policy: None, ..legacy };
    for (key, value, does) in controller_keys() {
        let read = parsed(&file(key, value));
        let changes =
            bare(LegacyConfig { warnings: Vec::new(), outside_objects: Vec::new(), ..read.clone() })
                != bare(empty());
        assert!(!changes || !read.outside_objects.is_empty(), "{key}");
        assert!(!matches!(does, Does::Idle | Does::Silent) || read.outside_objects.is_empty(), "{key}");
    }
    assert!(
        parsed("nodeManagement: {deleteFailedNodes: true}").outside_objects[0]
            .contains("`remediation.enforcement")
    );
}

#[test]
fn s05_the_warning_about_deletions_says_when_they_begin() {
    let warnings = parsed("nodeManagement: {deleteFailedNodes: true}").warnings;
    assert!(warnings[0].contains("none is replaced until two have passed there"), "{warnings:?}");
}

#[test]
fn s06_a_copy_of_the_old_image_is_not_used() {
    for image in [
        "{repository: registry.corp/mirror/kube-node-ready, tag: 1}",
        "{repository: kube-node-ready, tag: 1}",
        "{repository: 'localhost:5000/kube-node-ready@sha256:0'}",
    ] {
        let read = parsed(&format!("worker: {{image: {image}}}"));
        assert_eq!(read.gate.worker.image, None, "{image}");
        assert!(read.warnings[0].contains("does not contain our worker"), "{:?}", read.warnings);
    }
    let other = parsed("worker: {image: {repository: registry.corp/kube-node-ready/worker, tag: 1}}");
    assert_eq!((other.gate.worker.image.is_some(), other.warnings.len()), (true, 0));
}

#[test]
fn s06_an_unknown_resource_is_an_error() {
    assert_wrong(
        "worker:\n  resources:\n    requests:\n      cu: 50m\n",
        &["4: `worker.resources.requests.cu`: is not a resource: write cpu, memory"],
    );
}

#[test]
fn s07_the_deployment_mode_is_not_ignored() {
    let mode = |mode: &str, rest: &str| format!("deploymentMode: {mode}\n{rest}");
    let controller =
        "nameOverride: x\ncontroller: {replicas: 1, config: {reconciliation: {maxRetries: 3}}}\n";
    let read = parsed(&mode("controller", controller));
    assert_eq!((read.gate.retry.max_retries, read.warnings.len()), (3, 0));
    assert!(read.hints[0].contains("not `nameOverride`, `controller.replicas`"), "{:?}", read.hints);
    assert_wrong(
        &mode("daemonset", controller),
        &[
            "1: `deploymentMode`: is 'daemonset', and there is neither `daemonset.config` nor `config`: set it to controller",
        ],
    );
    assert_eq!(parsed(&mode("both", controller)).gate.retry.max_retries, 3);
    assert_wrong(
        &mode("x", controller),
        &["1: `deploymentMode`: is 'x': write controller, daemonset or both"],
    );
    assert_wrong(&mode("controller", "worker: {}\n"), &["1: `deploymentMode`: is a value of a chart"]);
    let own = parsed(&mode("daemonset", &format!("{controller}daemonset: {{config: {{maxRetries: 4}}}}\n")));
    assert_eq!(own.gate.retry.max_retries, 4, "in this mode nothing reads `controller.config`");
    assert!(
        own.warnings[0].contains("`deploymentMode`: these are checked as settings of a controller"),
        "{:?}",
        own.warnings
    );
    assert_eq!(parsed(&mode("daemonset", COMMON[2])).gate.retry.max_retries, 10);
}

#[test]
fn helm_values_can_have_a_worker_config() {
    let read =
        parsed("{controller: {config: {}}, worker: {config: {checkTimeoutSeconds: 4}}, nameOverride: x}");
    assert_eq!(read.gate.deadlines.check_seconds, 4);
}

#[test]
fn everything_that_the_old_chart_renders_is_valid() {
    let read = load(FULL, Some(WORKER)).unwrap();
    assert_eq!(read.warnings.len(), 1, "{:?}", read.warnings);
    assert_eq!(read.gate.deadlines.check_seconds, 5);
    assert_eq!(read.lease_name.as_deref(), Some("kube-node-ready-leader"));
    assert_eq!(read.lease_namespace, None, "an empty text is none");
    assert_eq!(read.metrics.as_deref(), Some(":8080"));
    // JSON is YAML.
    let json = serde_json::to_string(&serde_saphyr::from_str::<Value>(FULL).unwrap()).unwrap();
    assert_eq!(load(&json, Some(WORKER)).unwrap(), read);
}

#[test]
fn the_workers_file_wins_over_the_controllers() {
    let text = "worker: {configMapName: x, checkTimeoutSeconds: 3, dnsTestDomains: [a.b]}";
    let read = load(text, Some("{checkTimeoutSeconds: 4}")).unwrap();
    assert_eq!(read.gate.deadlines.check_seconds, 4);
    assert_eq!(read.gate.checks.dns, Some(names(&["a.b"])), "what it leaves out stands");
    assert_eq!(read.warnings, Vec::<String>::new());
}

#[test]
fn keys_without_effect_are_listed_in_one_warning() {
    let read = parsed("{worker: {configMapName: x, job: {backoffLimit: 0}}, kubernetes: {qps: 1}}");
    assert_eq!(read.warnings.len(), 1);
    for key in ["`worker.configMapName`", "`worker.job.backoffLimit`", "`kubernetes.qps`"] {
        assert!(read.warnings[0].contains(key), "{:?}", read.warnings);
    }
}

#[test]
fn f18_unknown_keys_have_a_line_and_a_suggestion() {
    let text = "worker:\n  imagee: {}\n  dnsTestDomain: [a]\nreconciliation:\n  retryBackof: linear\nzebra: 1\n\
                nodeManagement:\n  taints:\n  - key: a/b\n    efect: NoSchedule\n";
    assert_wrong(
        text,
        &[
            "2: `worker.imagee`: there is no such key: did you mean `image`?",
            "3: `worker.dnsTestDomain`: there is no such key: did you mean `dnsTestDomains`?",
            "5: `reconciliation.retryBackof`: there is no such key: did you mean `retryBackoff`?",
            "6: `zebra`: there is no such key: the keys here are worker, reconciliation, nodeManagement",
            "10: `nodeManagement.taints[0].efect`: there is no such key: did you mean `effect`?",
        ],
    );
}

#[test]
fn f18_all_bad_values_are_reported_with_line_and_fix() {
    let text = "\
worker:
  namespace: Kube_System
  resources: {requests: {cpu: fifty, memory: 64MB}}
  timeoutSeconds: 5m
  image: {repository: a b, tag: x}
  tolerations: [{effect: Never}]
reconciliation:
  intervalSeconds: 0
  maxRetries: -1
  retryBackoff: quadratic
nodeManagement:
  deleteFailedNodes: perhaps
  taints:
    - {key: a/b, effect: NoWay}
    - {value: x}
    - {key: node.kubernetes.io/not-ready}
  verifiedLabel: {key: kubernetes.io/ready}
metrics: {port: 70000}
health: 8081
logging: {level: loud, format: [json]}
";
    assert_wrong(
        text,
        &[
            "2: `worker.namespace`: 'Kube_System' is not a valid name",
            "3: `worker.resources.requests.cpu`: 'fifty' is not a quantity: write for example 50m",
            "3: `worker.resources.requests.memory`: '64MB' is not a quantity",
            "4: `worker.timeoutSeconds`: is '5m': write a whole number from 10 to 3600",
            "5: `worker.image.repository`: 'a b' is not an image reference",
            "5: `worker.image`: has no `repository`",
            "6: `worker.tolerations[0].effect`: 'Never' is not one of NoSchedule, PreferNoSchedule, NoExecute",
            "8: `reconciliation.intervalSeconds`: is '0'",
            "9: `reconciliation.maxRetries`: is '-1'",
            "10: `reconciliation.retryBackoff`: 'quadratic' is not one of exponential, linear",
            "12: `nodeManagement.deleteFailedNodes`: is 'perhaps': write true or false",
            "14: `nodeManagement.taints[0].effect`: 'NoWay' is not one of",
            "15: `nodeManagement.taints[1]`: has no `key`",
            "16: `nodeManagement.taints[2].key`: 'node.kubernetes.io/not-ready' belongs to Kubernetes",
            "17: `nodeManagement.verifiedLabel.key`: 'kubernetes.io/ready' is a label of Kubernetes",
            "18: `metrics.port`: is '70000': write a whole number from 1 to 65535",
            "19: `health`: is '8081': write keys",
            "20: `logging.level`: 'loud' is not one of error, warn, info, debug, trace",
            "20: `logging.format`: is a list",
        ],
    );
}

#[test]
fn f18_problems_of_both_files_are_reported() {
    let problems = load("worker: {x: 1}", Some("y: 1")).unwrap_err();
    let files: Vec<File> = problems.iter().map(|problem| problem.file).collect();
    assert_eq!(files, [File::Config, File::Worker], "{problems:?}");
}

#[test]
fn f18_invalid_yaml_is_reported_with_its_line() {
    assert_wrong("worker:\n  image: [\n", &["this is not valid YAML"]);
    assert!(wrong("a: 1\nb: [}\n")[0].starts_with("2: "), "{:?}", wrong("a: 1\nb: [}\n"));
    assert_wrong("", &["keys and values"]);
    assert_wrong("- a\n", &["keys and values"]);
    assert!(wrong("worker: {}\nworker: {}\n")[0].starts_with("2: "), "a key twice");
}

#[test]
fn an_empty_list_of_taints_is_an_error() {
    assert_wrong("nodeManagement: {taints: []}", &["would gate every node"]);
    assert_eq!(parsed("nodeManagement: {}").gate.taints, NodeGateSpec::default().taints);
}

#[test]
fn a_taint_has_a_default_value_and_effect() {
    let taints = parsed("nodeManagement: {taints: [{key: a}]}").gate.taints;
    assert_eq!((taints[0].value.as_str(), taints[0].effect), ("", TaintEffect::NoSchedule));
}

#[test]
fn the_check_timeout_is_less_than_the_workers() {
    assert_wrong(
        "worker: {timeoutSeconds: 60, checkTimeoutSeconds: 55}",
        &["is 55, and a worker has 60 s for all: raise `worker.timeoutSeconds` to 61"],
    );
    assert_wrong("worker: {timeoutSeconds: 15}", &["is 15, and one check may take 10 s: make it 16 or more"]);
    assert_eq!(parsed("worker: {timeoutSeconds: 16}").gate.deadlines.worker_seconds, 16);
}

#[test]
fn the_job_deadline_wins_over_the_timeout() {
    let read = parsed("worker: {timeoutSeconds: 300, job: {activeDeadlineSeconds: 200}}");
    assert_eq!(read.gate.deadlines.worker_seconds, 200);
    assert_eq!(read.warnings.len(), 1);
    assert_eq!(parsed("worker: {timeoutSeconds: 300, job: {activeDeadlineSeconds: 300}}").warnings.len(), 0);
}

#[test]
fn an_address_among_the_names_is_a_dns_server() {
    let read = parsed("worker: {dnsTestDomains: [a.b., 8.8.8.8, '2001:db8::1']}");
    let servers = vec!["8.8.8.8".to_owned(), "2001:db8::1".to_owned()];
    assert_eq!(read.gate.checks.dns, Some(Dns { servers, ..names(&["a.b."]) }));
    assert_eq!(read.warnings.len(), 2);
    let alone = parsed("worker: {dnsTestDomains: [8.8.8.8]}").gate.checks.dns.expect("it is checked");
    assert_eq!((alone.names, alone.servers), (Vec::new(), vec!["8.8.8.8".to_owned()]));
    assert_wrong("worker: {dnsTestDomains: [a..b]}", &["'a..b' is neither a DNS name nor an IP address"]);
    assert_wrong("worker: {dnsTestDomains: []}", &["is empty"]);
}

#[test]
fn f18_a_tag_that_looks_like_a_number_stays_as_typed() {
    for tag in ["1.10", "0x10", "1e3", "007", "true", "'1.10'"] {
        let image = parsed(&format!("worker: {{image: {{repository: r, tag: {tag}}}}}")).gate.worker.image;
        assert_eq!(image, Some(format!("r:{}", tag.trim_matches('\''))));
    }
}

#[test]
fn f19_init_containers_mount_volumes() {
    let text = "
worker:
  volumes:
    - {name: scratch, emptyDir: {}}
    - {name: settings, configMap: {name: probe}}
    - {name: modules, hostPath: {path: /lib/modules}}
  initContainers:
    - name: probe
      image: busybox:1
      command: [sh, -c]
      args: |
        test -d /scratch
      env: [{name: A, value: 1.0}]
      workingDir: /scratch
      volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: modules, mountPath: /lib/modules, readOnly: true, subPath: x}
      resources: {limits: {memory: 16Mi}}
      securityContext: {privileged: true, readOnlyRootFilesystem: false, runAsNonRoot: false, runAsUser: 0,
        runAsGroup: 0, allowPrivilegeEscalation: true}
";
    let worker = serde_json::to_value(parsed(text).gate.worker).unwrap();
    let wanted = json!([{
        "name": "probe", "image": "busybox:1", "command": ["sh", "-c"], "args": ["test -d /scratch\n"],
        "env": [{"name": "A", "value": "1.0"}], "workingDir": "/scratch",
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch", "readOnly": false},
            {"name": "modules", "mountPath": "/lib/modules", "readOnly": true, "subPath": "x"}],
        "resources": {"limits": {"memory": "16Mi"}},
        "securityContext": {"privileged": true, "readOnlyRootFilesystem": false, "runAsNonRoot": false, "runAsUser": 0,
            "runAsGroup": 0, "allowPrivilegeEscalation": true},
    }]);
    assert_eq!(worker["initContainers"], wanted);
    let volumes = json!([{"name": "scratch", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "probe"}},
        {"name": "modules", "hostPath": {"path": "/lib/modules"}}]);
    assert_eq!(worker["volumes"], volumes);
}

#[test]
fn f19_a_mount_without_its_volume_is_an_error() {
    assert_wrong(
        "worker:\n  initContainers:\n  - name: a\n    image: b\n    volumeMounts:\n    - {name: x, mountPath: /x}\n",
        &[
            "6: `worker.initContainers[0].volumeMounts[0]`: there is no volume 'x': add it to `worker.volumes`",
        ],
    );
    assert_wrong("worker: {volumes: [{name: x}]}", &["needs one of `emptyDir: {}`"]);
}

#[test]
fn f19_unsupported_init_container_fields_are_errors() {
    let text = "worker:\n  initContainers:\n  - name: a\n    image: b\n    command: sh -c x\n    env:\n    - name: A\n      valueFrom: {}\n";
    assert_wrong(
        text,
        &[
            "`worker.initContainers[0].command`: is 'sh -c x': write a list",
            "8: `worker.initContainers[0].env[0].valueFrom`",
        ],
    );
}

#[test]
fn reserved_and_duplicate_container_names_are_errors() {
    assert_wrong(
        "worker:\n  initContainers:\n  - {name: worker, image: a}\n  - {name: check-gpu, image: a}\n  \
         - {name: gpu, image: a}\n  - {name: gpu, image: b}\n  - {name: workers, image: a}\n",
        &[
            "3: `worker.initContainers[0]`: its name is 'worker', as the container that runs the checks",
            "4: `worker.initContainers[1]`: its name is 'check-gpu', and `check-` begins the names of exec checks",
            "6: `worker.initContainers[3]`: its name is 'gpu', as that of another init container: name it otherwise",
        ],
    );
}

#[test]
fn an_empty_string_counts_as_left_out() {
    let text = "{leaderElection: {id: '', namespace: ''}, logging: {level: '', format: ''}, \
                worker: {logging: {level: '', format: ''}}}";
    assert_eq!(parsed(text), empty());
}

fn any_yaml() -> impl Strategy<Value = String> {
    let keys: Vec<&str> =
        controller_keys().iter().flat_map(|(key, ..)| key.split('.').collect::<Vec<_>>()).collect();
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        "[a-zA-Z0-9./:~ -]{0,12}".prop_map(|text| format!("{text:?}")),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("64Mi".to_owned()),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        let map = prop::collection::btree_map(prop::sample::select(keys.clone()), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            map.prop_map(|map| {
                let entries: Vec<String> = map.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn f18_nothing_panics_on_any_text(text in any::<String>(), worker in any::<Option<String>>()) {
        let _ = load(&text, worker.as_deref());
    }

    #[test]
    fn f18_nothing_panics_on_keys_with_any_values(text in any_yaml(), worker in any_yaml()) {
        let _ = load(&text, Some(&worker));
    }

    #[test]
    fn f18_nothing_panics_on_a_damaged_file(at in 0..FULL.len(), put in "[ -~\n]{0,3}", cut in 0..20_usize) {
        let end = (at + cut).min(FULL.len());
        if FULL.is_char_boundary(at) && FULL.is_char_boundary(end) {
            let _ = load(&format!("{}{put}{}", &FULL[..at], &FULL[end..]), None);
        }
    }
}

#[test]
fn f18_a_deep_file_and_a_bomb_are_refused() {
    assert_wrong(&"[".repeat(100_000), &["this is not valid YAML"]);
    assert_wrong(&format!("a: {}{}", "{a: ".repeat(200), "}".repeat(200)), &["this is not valid YAML"]);
    let bomb = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n";
    assert_wrong(bomb, &["this is not valid YAML"]);
}

#[test]
fn a_toleration_without_operator_and_value_exists() {
    let tolerations = parsed("worker: {tolerations: [{key: a}, {key: a, value: b}]}").gate.worker.tolerations;
    let operators: Vec<_> = tolerations.iter().map(|one| one.operator).collect();
    assert_eq!(operators, [TolerationOperator::Exists, TolerationOperator::Equal]);
}

#[test]
fn the_default_name_outside_the_cluster_only_warns() {
    let dns = empty().gate.checks.dns.expect("dns is configured");
    assert_eq!((dns.names.len(), dns.optional), (0, vec!["google.com.".to_owned()]));
}

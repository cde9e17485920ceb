//! Tests of what the chart renders for agents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_e2e::or_skip;
use serde_json::{Value, json};

use crate::NAMESPACE;
use crate::chart::{container, granted, rendered, the, words};
use crate::helm::{Helm, parse};

/// The environment of an agent, as `nodekeeper agent` documents it. Its pod sets `NODE_NAME` and `POD_NAMESPACE`.
const VARIABLES: [&str; 23] = [
    "AGENT_MODE",
    "CHECK_INTERVAL",
    "CHECK_TIMEOUT",
    "CLUSTER_DNS_IP",
    "DELETE_FAILED_NODE",
    "DNS_TEST_DOMAINS",
    "DRY_RUN",
    "ENABLE_METRICS",
    "FAILURE_THRESHOLD",
    "GATE",
    "HEALTH_PORT",
    "INITIAL_TIMEOUT",
    "KLOG_VERBOSITY",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MAX_RETRIES",
    "METRICS_PORT",
    "RETRY_BACKOFF",
    "TAINT_EFFECT",
    "TAINT_KEY",
    "TAINT_VALUE",
    "VERIFIED_LABEL",
    "VERIFIED_LABEL_VALUE",
];

/// The agent's rights in every namespace.
pub const EVERYWHERE: &[&str] = &["/nodes [] get,list,watch,patch"];
pub const CONDITIONS: &str = "/nodes/status [] patch";

/// Its rights in one namespace, as `where: what`.
const IN_NAMESPACES: [&str; 5] = [
    "default: /services [] get",
    "default: discovery.k8s.io/endpointslices [] list",
    "default: events.k8s.io/events [] create",
    "kube-system: /services [] get",
    "kube-system: discovery.k8s.io/endpointslices [] list",
];

const MODES: [&str; 3] = ["controller", "daemonset", "both"];

/// Values with this mode.
fn in_mode(mode: &str, mut values: Value) -> Value {
    values["deploymentMode"] = mode.into();
    values
}

/// The environment of the agents that these values render.
fn environment(objects: &[Value]) -> Result<BTreeMap<String, String>> {
    let map = objects
        .iter()
        .find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == "nodekeeper-agent")
        .context("there is no ConfigMap of agents")?;
    let env: BTreeMap<String, String> = serde_json::from_value(map["data"].clone())?;
    let unknown = env.keys().find(|name| !VARIABLES.contains(&name.as_str()));
    ensure!(unknown.is_none(), "agents know no {unknown:?}");
    Ok(env)
}

/// Compares the settings of agents with these, and with those that every agent has.
fn assert_environment(values: &Value, wanted: &[(&str, &str)]) -> Result<()> {
    let Some(objects) = rendered(values)? else { return Ok(()) };
    let common = [
        ("AGENT_MODE", "once"),
        ("CHECK_INTERVAL", "60s"),
        ("DRY_RUN", "false"),
        ("ENABLE_METRICS", "true"),
        ("FAILURE_THRESHOLD", "3"),
        ("HEALTH_PORT", "8081"),
        ("LOG_FORMAT", "json"),
        ("LOG_LEVEL", "info"),
        ("METRICS_PORT", "8080"),
    ];
    let all = common.iter().chain(wanted).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    assert_eq!(environment(&objects)?, all.collect(), "{values}");
    Ok(())
}

/// `Kind name` of each object.
fn names(objects: &[Value]) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects
        .iter()
        .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .collect()
}

fn of_component(objects: &[Value], component: &str) -> Vec<Value> {
    let is = |object: &&Value| object["metadata"]["labels"]["app.kubernetes.io/component"] == component;
    objects.iter().filter(is).cloned().collect()
}

#[test]
fn each_mode_renders_its_components_and_no_other() -> Result<()> {
    let mut of_mode = BTreeMap::new();
    for mode in MODES {
        let Some(objects) = rendered(&in_mode(mode, json!({})))? else { return Ok(()) };
        of_mode.insert(mode, objects);
    }
    let agent = [
        "ClusterRole nodekeeper-agent",
        "ClusterRoleBinding nodekeeper-agent",
        "ConfigMap nodekeeper-agent",
        "DaemonSet nodekeeper-agent",
        "PriorityClass nodekeeper-agent",
        "Role nodekeeper-agent",
        "Role nodekeeper-agent-events",
        "RoleBinding nodekeeper-agent",
        "RoleBinding nodekeeper-agent-events",
        "ServiceAccount nodekeeper-agent",
        "ValidatingAdmissionPolicy nodekeeper-agent",
        "ValidatingAdmissionPolicy nodekeeper-agent-events",
        "ValidatingAdmissionPolicyBinding nodekeeper-agent",
        "ValidatingAdmissionPolicyBinding nodekeeper-agent-events",
    ];
    let agent: BTreeSet<String> = agent.map(str::to_owned).into();
    let is_definition = |name: &String| name.starts_with("CustomResourceDefinition ");
    let (alone, both) = (names(&of_mode["daemonset"]), names(&of_mode["both"]));
    assert_eq!(alone.iter().filter(|name| !is_definition(name)).cloned().collect::<BTreeSet<_>>(), agent);
    let controller = names(&of_mode["controller"]);
    assert_eq!(controller.intersection(&agent).count(), 0, "{controller:#?}");
    assert_eq!(both, controller.union(&agent).cloned().collect());
    // The agent of one mode is that of the other, apart from where its settings come from and that it reads its gate.
    assert_eq!(of_component(&of_mode["both"], "worker"), of_component(&of_mode["controller"], "worker"));
    Ok(())
}

#[test]
fn helm_3_and_helm_4_render_the_same() -> Result<()> {
    for mode in MODES {
        let enabled = json!({"enabled": true});
        let values = in_mode(
            mode,
            json!({"agent": {"podMonitor": enabled, "networkPolicy": enabled}, "metrics": {"prometheusRule": enabled}}),
        );
        let mut texts = Vec::new();
        for helm in [Helm::V3, Helm::V4] {
            let Some(text) = or_skip(helm.template(&values))? else { return Ok(()) };
            texts.push(parse(&text)?);
        }
        let by_name = |objects: &Vec<Value>| -> BTreeMap<String, Value> {
            objects
                .iter()
                .map(|object| (format!("{}{}", object["kind"], object["metadata"]), object.clone()))
                .collect()
        };
        assert_eq!(by_name(&texts[0]), by_name(&texts[1]), "{mode}");
    }
    Ok(())
}

#[test]
fn values_reach_the_environment_of_agents() -> Result<()> {
    let taint = [
        ("TAINT_EFFECT", "NoSchedule"),
        ("TAINT_KEY", "node-ready/unverified"),
        ("TAINT_VALUE", "true"),
        ("VERIFIED_LABEL", "node-ready/verified"),
        ("VERIFIED_LABEL_VALUE", "true"),
    ];
    assert_environment(&json!({"deploymentMode": "daemonset"}), &taint)?;
    let gate = json!({"taints": [{"key": "a/b", "effect": "NoExecute"}], "spec": {"verifiedLabel": {"key": "c/d"},
        "deadlines": {"checkSeconds": 5, "gateSeconds": 900}, "retry": {"maxRetries": 0, "backoff": "Linear"},
        "checks": {"dns": {"names": ["one.example.", "two.example."]}}}});
    let of_gate = [
        ("CHECK_TIMEOUT", "5s"),
        ("DNS_TEST_DOMAINS", "one.example.,two.example."),
        ("INITIAL_TIMEOUT", "900s"),
        ("MAX_RETRIES", "0"),
        ("RETRY_BACKOFF", "linear"),
        ("TAINT_EFFECT", "NoExecute"),
        ("TAINT_KEY", "a/b"),
        ("TAINT_VALUE", ""),
        ("VERIFIED_LABEL", "c/d"),
        ("VERIFIED_LABEL_VALUE", "true"),
    ];
    assert_environment(&in_mode("daemonset", json!({"gate": gate})), &of_gate)?;
    // The gate has these then.
    assert_environment(&in_mode("both", json!({"gate": gate})), &[("GATE", "default")])?;
    assert_environment(&in_mode("both", json!({"gate": {"name": "edge"}})), &[("GATE", "edge")])?;
    let config = json!({"worker": {"checkTimeoutSeconds": 3}});
    assert_environment(&in_mode("both", json!({"config": config})), &[("GATE", "config")])?;

    let agent = json!({"mode": "continuous", "checkInterval": "5m", "failureThreshold": 7, "dryRun": true,
        "logFormat": "console", "logLevel": "debug"});
    let values = json!({"agent": agent, "metrics": {"port": 9090}, "health": {"port": 9091}});
    let changed = [
        ("AGENT_MODE", "continuous"),
        ("CHECK_INTERVAL", "5m"),
        ("DRY_RUN", "true"),
        ("FAILURE_THRESHOLD", "7"),
        ("HEALTH_PORT", "9091"),
        ("LOG_FORMAT", "console"),
        ("LOG_LEVEL", "debug"),
        ("METRICS_PORT", "9090"),
    ];
    assert_environment(&in_mode("daemonset", values), &[&taint[..], &changed].concat())
}

/// The keys of kube-node-ready's DaemonSet mode, and those of the controller's file that an agent has too.
#[test]
fn s01_the_files_of_kube_node_ready_reach_agents() -> Result<()> {
    let config = json!({"taintKey": "my-custom/unverified", "taintValue": "yes", "taintEffect": "PreferNoSchedule",
        "verifiedLabel": "my-custom/verified", "verifiedLabelValue": "sure", "deleteFailedNode": true,
        "dnsTestDomains": ["kubernetes.default.svc.cluster.local", "cloudflare.com", "8.8.8.8"], "checkTimeout": "7s",
        "initialTimeout": "600s", "clusterDNSIP": "10.96.0.10", "maxRetries": 10, "retryBackoff": "exponential",
        "enableMetrics": true, "metricsPort": 9090, "logLevel": "debug", "logFormat": "console"});
    let all = [
        ("CHECK_TIMEOUT", "7s"),
        ("CLUSTER_DNS_IP", "10.96.0.10"),
        ("DELETE_FAILED_NODE", "true"),
        ("DNS_TEST_DOMAINS", "kubernetes.default.svc.cluster.local,cloudflare.com,8.8.8.8"),
        ("INITIAL_TIMEOUT", "600s"),
        ("LOG_FORMAT", "console"),
        ("LOG_LEVEL", "debug"),
        ("MAX_RETRIES", "10"),
        ("METRICS_PORT", "9090"),
        ("RETRY_BACKOFF", "exponential"),
        ("TAINT_EFFECT", "PreferNoSchedule"),
        ("TAINT_KEY", "my-custom/unverified"),
        ("TAINT_VALUE", "yes"),
        ("VERIFIED_LABEL", "my-custom/verified"),
        ("VERIFIED_LABEL_VALUE", "sure"),
    ];
    assert_environment(&in_mode("daemonset", json!({"config": config})), &all)?;

    let config = json!({"worker": {"dnsTestDomains": ["a.b"], "checkTimeoutSeconds": 9},
        "reconciliation": {"intervalSeconds": 30, "maxRetries": 2, "retryBackoff": "linear"},
        "nodeManagement": {"deleteFailedNodes": false, "taints": [{"key": "a/held", "value": "v", "effect": "NoExecute"}],
            "verifiedLabel": {"key": "a/verified", "value": "1"}},
        "metrics": {"enabled": true, "port": 9092}, "health": {"port": 9093}, "logging": {"level": "warn", "format": ""}});
    let values = json!({"config": config, "workerConfig": {"checkTimeoutSeconds": 4},
        "gate": {"spec": {"retry": {"maxRetries": 1}}}});
    let of_sections = [
        ("CHECK_TIMEOUT", "4s"),
        ("DNS_TEST_DOMAINS", "a.b"),
        ("HEALTH_PORT", "9093"),
        ("LOG_LEVEL", "warn"),
        ("MAX_RETRIES", "2"),
        ("METRICS_PORT", "9092"),
        ("RETRY_BACKOFF", "linear"),
        ("TAINT_EFFECT", "NoExecute"),
        ("TAINT_KEY", "a/held"),
        ("TAINT_VALUE", "v"),
        ("VERIFIED_LABEL", "a/verified"),
        ("VERIFIED_LABEL_VALUE", "1"),
    ];
    assert_environment(&in_mode("daemonset", values), &of_sections)?;

    let Some(objects) = rendered(&in_mode("daemonset", json!({"config": {"enableMetrics": false}})))? else {
        return Ok(());
    };
    let env = environment(&objects)?;
    assert_eq!((env["ENABLE_METRICS"].as_str(), env.get("METRICS_PORT")), ("false", None));
    Ok(())
}

/// Values that are refused, each with a part of the message.
fn refused_values() -> Vec<(Value, &'static str)> {
    let two = json!([{"key": "a/b"}, {"key": "c/d"}]);
    let daemon_set = |values| in_mode("daemonset", values);
    vec![
        (
            daemon_set(json!({"gate": {"taints": two}})),
            "gate.taints: an agent without a controller has one taint, and these are 2",
        ),
        (
            daemon_set(json!({"config": {"nodeManagement": {"taints": []}}})),
            "config.nodeManagement.taints: an agent",
        ),
        (
            daemon_set(json!({"gate": {"spec": {"waitFor": {}}}})),
            "gate.spec.waitFor: an agent without a controller has no such setting: set deploymentMode: both",
        ),
        (daemon_set(json!({"gate": {"spec": {"enforcement": "DryRun"}}})), "set agent.dryRun"),
        (daemon_set(json!({"gate": {"spec": {"mode": "Continuous"}}})), "set agent.mode"),
        (
            daemon_set(json!({"gate": {"spec": {"checks": {"dns": {"servers": ["1.1.1.1"]}}}}})),
            "gate.spec.checks.dns.servers",
        ),
        (
            daemon_set(json!({"gate": {"spec": {"retry": {"recheckPeriodSeconds": 1}}}})),
            "gate.spec.retry.recheckPeriodSeconds",
        ),
        (daemon_set(json!({"remediation": {"enforcement": "Enforce"}})), "an agent replaces no node"),
        (
            daemon_set(json!({"config": {"taintKey": "a/b", "nodeManagement": {}}})),
            "cannot be combined with `nodeManagement`",
        ),
        (daemon_set(json!({"config": {"taintkey": "a/b"}})), "config.taintkey: there is no such key"),
        (
            in_mode(
                "both",
                json!({"agent": {"serviceAccount": {"create": false, "name": "nodekeeper-controller"}}}),
            ),
            "the controller or its workers have the account nodekeeper-controller too",
        ),
        (
            in_mode(
                "both",
                json!({"agent": {"mode": "continuous"}, "gate": {"taints": [{"key": "a/b", "effect": "NoExecute"}]}}),
            ),
            "must not have the effect NoExecute",
        ),
        (
            daemon_set(json!({"metrics": {"enabled": false}, "agent": {"podMonitor": {"enabled": true}}})),
            "set metrics.enabled",
        ),
        (daemon_set(json!({"metrics": {"port": 8081}})), "metrics.port and health.port are both 8081"),
        (in_mode("both", json!({"agent": {"mode": "always"}})), "agent"),
        (in_mode("legacy", json!({})), "deploymentMode"),
    ]
}

#[test]
fn values_that_an_agent_cannot_obey_are_refused_with_a_fix() -> Result<()> {
    for (values, wanted) in refused_values() {
        let Some(done) = or_skip(Helm::V4.with_chart(&["template"], &values, None))? else { return Ok(()) };
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(wanted), "{values}: {said}");
    }
    Ok(())
}

/// A file of the repository as YAML.
fn file(path: &str) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Ok(serde_saphyr::from_str(&fs::read_to_string(path)?)?)
}

#[test]
fn the_examples_of_agents_render() -> Result<()> {
    for (name, gate) in [("daemonset", None), ("continuous", Some("default")), ("kube-node-ready", None)] {
        let Some(objects) = rendered(&file(&format!("examples/agent/{name}.yaml"))?)? else { return Ok(()) };
        assert_eq!(environment(&objects)?.get("GATE").map(String::as_str), gate, "{name}");
    }
    Ok(())
}

/// Adds the paths of all values below this one. A list is one value, and so is a map whose keys are free.
fn paths(prefix: &str, value: &Value, all: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty() && !prefix.ends_with("nodeSelector")) {
        Some(map) => {
            for (key, value) in map {
                paths(&if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") }, value, all);
            }
        }
        None => all.push(prefix.to_owned()),
    }
}

#[test]
fn every_value_is_documented() -> Result<()> {
    let mut all = Vec::new();
    paths("", &file("charts/nodekeeper/values.yaml")?, &mut all);
    ensure!(all.len() > 60, "{all:?}");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/nodekeeper/README.md");
    let readme = fs::read_to_string(readme)?;
    for path in all {
        // Such as `controller.resources` for its parts.
        let mut parts: Vec<&str> = path.split('.').collect();
        while !parts.is_empty() && !readme.contains(&format!("| `{}` |", parts.join("."))) {
            parts.pop();
        }
        assert!(!parts.is_empty(), "{path} is not in the table of the chart's README");
    }
    Ok(())
}

/// The template of the agents' pods.
fn pods(objects: &[Value]) -> Result<&Value> {
    Ok(&the(objects, "DaemonSet")?["spec"]["template"])
}

#[test]
fn f17_agents_are_restricted_and_probed() -> Result<()> {
    let Some(objects) = rendered(&json!({"deploymentMode": "daemonset"}))? else { return Ok(()) };
    let (template, set) = (pods(&objects)?, &the(&objects, "DaemonSet")?["spec"]);
    let pod = &template["spec"];
    let container = &pod["containers"][0];
    let context = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], context);
    let context = json!({"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(pod["securityContext"], context);
    assert_eq!(container["args"], json!(["agent"]));
    assert_eq!(container["livenessProbe"]["httpGet"], json!({"path": "/healthz", "port": "health"}));
    assert_eq!(container["readinessProbe"]["httpGet"], json!({"path": "/readyz", "port": "health"}));
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["hostNetwork"], false);
    assert_eq!(pod["priorityClassName"], "nodekeeper-agent");
    assert_eq!(the(&objects, "PriorityClass")?["preemptionPolicy"], "Never");
    assert_eq!(container["resources"]["requests"], json!({"cpu": "10m", "memory": "16Mi"}));
    assert_eq!(container["resources"]["limits"], json!({"memory": "64Mi"}));
    assert_eq!(set["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "10%");
    // The worker's pod opts out of meshes in the same way.
    assert_eq!(template["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
    assert_eq!(template["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
    let env: BTreeMap<&str, &Value> = container["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|var| Some((var["name"].as_str()?, &var["valueFrom"]["fieldRef"]["fieldPath"])))
        .collect();
    assert_eq!(
        (env["NODE_NAME"], env["POD_NAMESPACE"]),
        (&json!("spec.nodeName"), &json!("metadata.namespace"))
    );
    assert_eq!(container["envFrom"], json!([{"configMapRef": {"name": "nodekeeper-agent"}}]));
    let token = &pod["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["expirationSeconds"], 600, "a token for the uid of an earlier Node is of no use");
    Ok(())
}

#[test]
fn other_settings_restart_the_agents() -> Result<()> {
    let mut checksums = BTreeSet::new();
    for values in
        [json!({}), json!({"agent": {"dryRun": true}}), json!({"gate": {"taints": [{"key": "a/b"}]}})]
    {
        let Some(objects) = rendered(&in_mode("daemonset", values))? else { return Ok(()) };
        checksums.insert(pods(&objects)?["metadata"]["annotations"]["checksum/config"].to_string());
    }
    assert_eq!(checksums.len(), 3, "{checksums:?}");
    Ok(())
}

#[test]
fn the_policy_is_about_the_account_and_the_gate_of_the_values() -> Result<()> {
    let gate = json!({"taints": [{"key": "a/b"}, {"key": "c/d", "effect": "NoExecute"}],
        "spec": {"verifiedLabel": {"key": "e/f", "value": "yes"}}});
    let account = json!({"serviceAccount": {"create": false, "name": "mine"}});
    let Some(objects) = rendered(&in_mode("both", json!({"gate": gate, "agent": account})))? else {
        return Ok(());
    };
    for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
        assert_eq!(objects.iter().filter(|object| object["kind"] == kind).count(), 2, "{kind}");
    }
    for policy in objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy") {
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let user = format!("request.userInfo.username == \"system:serviceaccount:{NAMESPACE}:mine\"");
        assert_eq!(policy["spec"]["matchConditions"], json!([{"name": "is-agent", "expression": user}]));
        for rule in policy["spec"]["validations"].as_array().context("no validations")? {
            // An agent takes 403 for a refusal, and 422 for a conflict, after which it reads the Node and tries again.
            assert_eq!(rule["reason"], "Forbidden", "{rule}");
            assert!(rule["message"].is_string(), "{rule}");
        }
    }
    let policy = the(&objects, "ValidatingAdmissionPolicy")?.to_string();
    for part in
        [r#"[\"a/b:NoSchedule\",\"c/d:NoExecute\"]"#, r#"variables.newLabels[?\"e/f\"].orValue(\"yes\")"#]
    {
        assert!(policy.contains(part), "no {part} in {policy}");
    }
    Ok(())
}

/// With `once` the DaemonSet controller removes the pod of a node that has the label.
#[test]
fn once_excludes_nodes_that_have_the_verified_label() -> Result<()> {
    let affinity = |values: Value| -> Result<Option<Value>> {
        let Some(objects) = rendered(&values)? else { return Ok(None) };
        Ok(Some(pods(&objects)?["spec"]["affinity"].clone()))
    };
    let required = |terms: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let missing = |key: &str| json!({"key": key, "operator": "DoesNotExist"});
    let own =
        json!({"nodeAffinity": required(json!([{"matchExpressions": [missing("node-ready/verified")]}]))});
    let label = json!({"gate": {"spec": {"verifiedLabel": {"key": "a/b"}}}});
    let other = json!({"nodeAffinity": required(json!([{"matchExpressions": [missing("a/b")]}]))});
    for mode in ["daemonset", "both"] {
        let Some(rendered) = affinity(in_mode(mode, json!({})))? else { return Ok(()) };
        assert_eq!(rendered, own, "{mode}");
        assert_eq!(affinity(in_mode(mode, label.clone()))?, Some(other.clone()), "{mode}");
        assert_eq!(
            affinity(in_mode(mode, json!({"agent": {"mode": "continuous"}})))?,
            Some(Value::Null),
            "{mode}"
        );
    }
    // A node has to match one of the terms, so each needs it.
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let name = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    let preferred = json!([{"weight": 1, "preference": {"matchExpressions": [zone]}}]);
    let mut given = required(json!([{"matchExpressions": [zone]}, {"matchFields": [name]}]));
    given["preferredDuringSchedulingIgnoredDuringExecution"] = preferred.clone();
    let mut wanted = required(json!([
        {"matchExpressions": [zone, missing("node-ready/verified")]},
        {"matchExpressions": [missing("node-ready/verified")], "matchFields": [name]},
    ]));
    wanted["preferredDuringSchedulingIgnoredDuringExecution"] = preferred;
    let values =
        in_mode("daemonset", json!({"agent": {"affinity": {"nodeAffinity": given, "podAffinity": {}}}}));
    assert_eq!(affinity(values)?, Some(json!({"nodeAffinity": wanted, "podAffinity": {}})));
    Ok(())
}

/// Compares the rules of the agent's account.
fn assert_grants(values: &Value, more: &[&str]) -> Result<()> {
    let Some(objects) = rendered(values)? else { return Ok(()) };
    let of_agent = granted(&objects)?.into_iter().filter(|line| line.starts_with("nodekeeper-agent "));
    let everywhere = EVERYWHERE.iter().chain(more).map(|line| format!("nodekeeper-agent *: {line}"));
    let wanted = everywhere.chain(IN_NAMESPACES.iter().map(|line| format!("nodekeeper-agent {line}")));
    assert_eq!(of_agent.collect::<BTreeSet<_>>(), wanted.collect(), "{values}");
    Ok(())
}

#[test]
fn u07_agents_are_granted_exactly_these_rules() -> Result<()> {
    let gate = "nodekeeper.dev/nodegates [] list";
    assert_grants(&json!({"deploymentMode": "daemonset"}), &[])?;
    assert_grants(&json!({"deploymentMode": "both"}), &[gate])?;
    assert_grants(&in_mode("both", json!({"config": {"worker": {}}})), &[gate])?;
    let conditions = json!({"rbac": {"nodeConditions": true}});
    assert_grants(&in_mode("daemonset", conditions), &[CONDITIONS])?;
    let conditions = json!({"gate": {"spec": {"nodeCondition": "NetworkVerified"}}});
    assert_grants(&in_mode("both", conditions), &[CONDITIONS, gate])?;
    let Some(objects) = rendered(&in_mode("both", json!({"rbac": {"create": false}})))? else {
        return Ok(());
    };
    assert_eq!(granted(&objects)?, BTreeSet::new());
    assert!(
        the(&objects, "ValidatingAdmissionPolicy").is_ok(),
        "another role does not change what an agent may do"
    );

    // A controller reads the agents' pods where workers are, unless they are elsewhere.
    let pods = format!("nodekeeper-controller {NAMESPACE}: /pods [] get,list,watch");
    for (namespace, wanted) in [(NAMESPACE, false), ("kube-system", true)] {
        let values = in_mode("both", json!({"config": {"worker": {"namespace": namespace}}}));
        let Some(objects) = rendered(&values)? else { return Ok(()) };
        assert_eq!(granted(&objects)?.contains(&pods), wanted, "{namespace}");
    }
    Ok(())
}

#[test]
fn the_controller_knows_whose_nodes_to_leave_to_agents() -> Result<()> {
    let elsewhere = json!({"config": {"worker": {"namespace": "kube-system"}}});
    for (mode, values, gate) in [
        ("controller", json!({}), None),
        ("both", json!({"gate": {"name": "edge"}}), Some("edge")),
        ("both", elsewhere, Some("config")),
    ] {
        let Some(objects) = rendered(&in_mode(mode, values))? else { return Ok(()) };
        let arguments = words(container(&objects)?.get("args").context("no arguments")?);
        let flags: Vec<&str> = arguments.split(',').filter(|flag| flag.starts_with("--agents")).collect();
        let wanted = gate.map(|gate| [format!("--agents={gate}"), format!("--agents-namespace={NAMESPACE}")]);
        assert_eq!(flags, wanted.into_iter().flatten().collect::<Vec<_>>(), "{mode}: {arguments}");
    }
    Ok(())
}

/// Whether the labels of the agents' pods match a selector.
fn selects(selector: &Value, template: &Value) -> bool {
    let labels = &template["metadata"]["labels"];
    let wanted = selector["matchLabels"].as_object();
    wanted.is_some_and(|wanted| !wanted.is_empty() && wanted.iter().all(|(key, value)| labels[key] == *value))
}

#[test]
fn monitors_and_policies_select_the_agents() -> Result<()> {
    let enabled = json!({"enabled": true});
    let peers =
        json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    let more = json!([{"ports": [{"port": 8443, "protocol": "TCP"}]}]);
    let network = json!({"enabled": true, "metricsFrom": peers, "egress": more});
    let monitor = json!({"enabled": true, "labels": {"release": "prometheus"}});
    let values = json!({"agent": {"podMonitor": monitor, "networkPolicy": network}, "metrics": {"prometheusRule": enabled, "port": 9090}});
    let Some(objects) = rendered(&in_mode("daemonset", values))? else { return Ok(()) };
    let template = pods(&objects)?;
    let ports = template["spec"]["containers"][0]["ports"].as_array().context("no ports")?;

    let monitor = the(&objects, "PodMonitor")?;
    assert!(selects(&monitor["spec"]["selector"], template), "{monitor}");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["spec"]["namespaceSelector"]["matchNames"], json!([NAMESPACE]));
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert!(ports.contains(&json!({"name": endpoint["port"], "containerPort": 9090})), "{ports:?}");

    let policy = &the(&objects, "NetworkPolicy")?["spec"];
    assert!(selects(&policy["podSelector"], template), "{policy}");
    assert_eq!(policy["ingress"], json!([{"ports": [{"port": 9090, "protocol": "TCP"}], "from": peers}]));
    let egress: Vec<i64> = policy["egress"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|rule| rule["ports"].as_array().into_iter().flatten())
        .filter_map(|port| port["port"].as_i64())
        .collect();
    assert_eq!(egress, [53, 53, 443, 6443, 8443]);
    Ok(())
}

#[test]
fn alerts_are_those_of_the_mode_and_say_what_to_do() -> Result<()> {
    for (mode, wanted) in [
        ("controller", &["NodekeeperNodeRetainted"][..]),
        ("daemonset", &["NodekeeperAgentGaveUp", "NodekeeperNodeRetainted"]),
        ("both", &["NodekeeperAgentGaveUp", "NodekeeperNodeRetainted"]),
    ] {
        let values = json!({"metrics": {"prometheusRule": {"enabled": true}}});
        let Some(objects) = rendered(&in_mode(mode, values))? else { return Ok(()) };
        let rules =
            the(&objects, "PrometheusRule")?["spec"]["groups"][0]["rules"].as_array().context("no rules")?;
        let alerts: Vec<&str> = rules.iter().filter_map(|rule| rule["alert"].as_str()).collect();
        assert_eq!(alerts, wanted, "{mode}");
        for rule in rules {
            let description = rule["annotations"]["description"].as_str().context("no description")?;
            assert!(
                description.contains("What to do: ") && description.contains("{{ $labels.pod }}"),
                "{rule}"
            );
            assert!(
                rule["annotations"]["summary"].is_string() && rule["labels"]["severity"] == "warning",
                "{rule}"
            );
            assert!(rule["expr"].as_str().is_some_and(|expr| expr.contains("nodekeeper_")), "{rule}");
        }
    }
    Ok(())
}

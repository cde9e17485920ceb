//! Tests of the Helm chart as it is rendered.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use nodekeeper_e2e::or_skip;
use nodekeeper_operator::config::load_objects;
use serde_json::{Value, json};

use crate::helm::{Helm, applied_file, parse};

/// The controller's rights in every namespace.
pub const EVERYWHERE: &[&str] = &[
    "/nodes [] get,list,watch,patch",
    "/pods [] list",
    "nodekeeper.dev/nodegates [] get,list,watch",
    "nodekeeper.dev/nodegates/status [] patch",
    "nodekeeper.dev/noderemediations [] get,list,watch,create,patch,delete",
    "nodekeeper.dev/noderemediations/status,remediationpolicies/status [] patch",
    "nodekeeper.dev/remediationpolicies [] get,list,watch",
    "karpenter.sh/nodepools [] list",
    "karpenter.sh/nodeclaims [] get,list",
];

/// The additional rights to apply the gate and the policy of the values.
pub const APPLY: &[&str] = &[
    "nodekeeper.dev/nodegates [] create",
    "nodekeeper.dev/nodegates [default] patch",
    "nodekeeper.dev/remediationpolicies [] create",
    "nodekeeper.dev/remediationpolicies [default] patch",
];

/// The additional rights where remediation is enforced.
pub const HARM: &[&str] =
    &["/pods/eviction [] create", "karpenter.sh/nodeclaims [] delete", "/nodes [] delete"];

/// The same where no Node object is deleted.
const HARM_OF_PROVIDERS: &[&str] = &["/pods/eviction [] create", "karpenter.sh/nodeclaims [] delete"];

/// All other rights that are always granted, as `account where: what`.
const ALWAYS: &[&str] = &[
    "nodekeeper-controller nodekeeper-system: /pods [] get,list,watch,create,delete",
    "nodekeeper-controller nodekeeper-system: coordination.k8s.io/leases [] create",
    "nodekeeper-controller nodekeeper-system: coordination.k8s.io/leases [kube-node-ready-leader] get,update,watch",
    "nodekeeper-controller default: events.k8s.io/events [] create",
    "nodekeeper-controller kube-system: /configmaps [cluster-autoscaler-status] get",
    "nodekeeper-worker default: /services [] get",
    "nodekeeper-worker default: discovery.k8s.io/endpointslices [] list",
    "nodekeeper-worker kube-system: /services [] get",
    "nodekeeper-worker kube-system: discovery.k8s.io/endpointslices [] list",
];

/// The objects rendered with these values; `None` if Helm is missing.
pub fn rendered(values: &Value) -> Result<Option<Vec<Value>>> {
    or_skip(Helm::V4.template(values))?.map(|manifests| parse(&manifests)).transpose()
}

/// The objects that the controller applies.
fn applied(manifests: &[Value]) -> Result<Vec<Value>> {
    let Some(file) = applied_file(manifests) else { return Ok(Vec::new()) };
    load_objects(file).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let mut list: Value = serde_saphyr::from_str(file)?;
    Ok(serde_json::from_value(list["items"].take())?)
}

pub fn words(value: &Value) -> String {
    let words = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.collect::<Vec<_>>().join(",")
}

fn line(rule: &Value) -> String {
    let (groups, resources) = (words(&rule["apiGroups"]), words(&rule["resources"]));
    let (names, verbs) = (words(&rule["resourceNames"]), words(&rule["verbs"]));
    format!("{groups}/{resources} [{names}] {verbs}")
}

/// Every rule with a binding, as `account where: what`.
pub fn granted(objects: &[Value]) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    for (binding, role) in [("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")] {
        for binding in of_kind(binding) {
            let (namespace, name) = (&binding["metadata"]["namespace"], &binding["roleRef"]["name"]);
            let role = of_kind(role)
                .find(|role| role["metadata"]["name"] == *name && role["metadata"]["namespace"] == *namespace)
                .with_context(|| format!("there is no role {name} in {namespace}"))?;
            let place = namespace.as_str().unwrap_or("*");
            for subject in binding["subjects"].as_array().context("a binding without subjects")? {
                ensure!(subject["kind"] == "ServiceAccount", "{binding}");
                let account = subject["name"].as_str().context("no account")?;
                let rules = role["rules"].as_array().into_iter().flatten();
                all.extend(rules.map(|rule| format!("{account} {place}: {}", line(rule))));
            }
        }
    }
    Ok(all)
}

/// Every rule that the chart grants with these values.
pub fn granted_with(values: &Value) -> Result<BTreeSet<String>> {
    granted(&parse(&Helm::V4.template(values)?)?)
}

fn everywhere(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| format!("nodekeeper-controller *: {line}")).collect()
}

/// Compares the rights with those that are always granted and `more`.
fn assert_all_grants(values: &Value, more: &[&str]) -> Result<()> {
    let Some(objects) = rendered(values)? else { return Ok(()) };
    let others = ALWAYS.iter().chain(more).map(|&line| line.to_owned());
    let wanted = everywhere(EVERYWHERE).into_iter().chain(others).collect();
    assert_eq!(granted(&objects)?, wanted, "{values}");
    Ok(())
}

/// The same, with the rights to apply gate and policy.
fn assert_grants(values: &Value, more: &[&str]) -> Result<()> {
    let apply = everywhere(APPLY);
    let apply: Vec<&str> = apply.iter().map(String::as_str).collect();
    assert_all_grants(values, &[&apply[..], more].concat())
}

#[test]
fn u07_the_chart_grants_exactly_these_rules() -> Result<()> {
    assert_grants(&json!({}), &[])?;
    let pods = "nodekeeper-controller *: /pods [] watch";
    assert_grants(&json!({"rbac": {"daemonSetPods": true}}), &[pods])?;
    let waiting = json!({"waitFor": {"daemonSets": [{"namespace": "a", "name": "b"}]}});
    assert_grants(&json!({"gate": {"spec": waiting}}), &[pods])?;
    let conditions = "nodekeeper-controller *: /nodes/status [] patch";
    assert_grants(&json!({"rbac": {"nodeConditions": true}}), &[conditions])?;
    assert_grants(&json!({"gate": {"spec": {"nodeCondition": "NetworkVerified"}}}), &[conditions])?;
    let gate = |name: &str| {
        ["[] create".to_owned(), format!("[{name}] patch")]
            .map(|right| format!("nodekeeper-controller *: nodekeeper.dev/nodegates {right}"))
    };
    let of_file = gate("config");
    let policy = everywhere(&APPLY[2..]);
    let of_file: Vec<&str> = of_file.iter().chain(&policy).map(String::as_str).collect();
    assert_all_grants(&json!({"config": {"worker": {}}}), &of_file)?;
    let named = gate("edge");
    let named: Vec<&str> = named.iter().chain(&policy).map(String::as_str).collect();
    assert_all_grants(&json!({"gate": {"name": "edge"}}), &named)?;
    let none = json!({"gate": {"create": false}, "remediation": {"policy": {"create": false}}});
    assert_all_grants(&none, &[])?;
    let harm = everywhere(HARM);
    let harm: Vec<&str> = harm.iter().map(String::as_str).collect();
    let delete = json!([{"source": "Gate", "name": "default"}]);
    assert_grants(&json!({"remediation": {"enforcement": "Enforce", "deleteNodeObjectFor": delete}}), &harm)?;
    let of_providers = everywhere(HARM_OF_PROVIDERS);
    let of_providers: Vec<&str> = of_providers.iter().map(String::as_str).collect();
    assert_grants(&json!({"remediation": {"enforcement": "Enforce"}}), &of_providers)?;
    let delete = json!({"nodeManagement": {"deleteFailedNodes": true}});
    assert_all_grants(&json!({"config": delete}), &[&of_file[..], &harm[..]].concat())?;
    let other = [
        "other default: /services [] get",
        "other default: discovery.k8s.io/endpointslices [] list",
        "other kube-system: /services [] get",
        "other kube-system: discovery.k8s.io/endpointslices [] list",
    ];
    let accounts = json!({"serviceAccounts": ["other", "nodekeeper-worker"]});
    assert_grants(&json!({"worker": {"allowed": accounts}}), &other)
}

#[test]
fn without_rbac_there_are_no_rules() -> Result<()> {
    let Some(objects) = rendered(&json!({"rbac": {"create": false}}))? else { return Ok(()) };
    assert_eq!(granted(&objects)?, BTreeSet::new());
    Ok(())
}

#[test]
fn f14_no_right_to_delete_nodes_unless_enforced() -> Result<()> {
    let keep = json!({"nodeManagement": {"deleteFailedNodes": false}});
    let most = json!({"rbac": {"daemonSetPods": true, "nodeConditions": true}, "config": keep,
        "remediation": {"deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]}});
    let replace = json!({"gate": {"spec": {"onFailure": "Replace", "onStuck": "Replace"}}});
    for values in [json!({}), json!({"config": keep}), replace, most] {
        let Some(objects) = rendered(&values)? else { return Ok(()) };
        let all = granted(&objects)?;
        let of_machines = |line: &&String| {
            ["/nodes ", "nodeclaims", "eviction", "/* "].iter().any(|word| line.contains(word))
        };
        let machines: Vec<&String> = all.iter().filter(of_machines).collect();
        assert!(!machines.is_empty(), "no right to read nodes: {all:#?}");
        for line in machines {
            let verbs = line.rsplit(' ').next().unwrap_or_default();
            let is_harmful = |verb: &&str| verb.contains("delete") || ["*", "create"].contains(verb);
            assert_eq!(verbs.split(',').find(is_harmful), None, "{line}");
        }
    }
    Ok(())
}

#[test]
fn values_set_the_policy_unless_the_file_does() -> Result<()> {
    let said = json!({"enforcement": "Enforce", "budget": {"maxPerHour": 0}, "evidenceSeconds": 60,
        "pause": {"reason": "why", "until": "2030-01-31T18:00:00Z"}, "windows": [{"start": "22:30", "end": "04:00"}]});
    for (values, wanted) in [
        (json!({}), Some(json!({"enforcement": "DryRun"}))),
        (json!({"remediation": said}), Some(said)),
        (json!({"remediation": {"policy": {"create": false}}}), None),
        (json!({"config": {"worker": {}}}), Some(json!({"enforcement": "DryRun"}))),
        (json!({"config": {"nodeManagement": {"deleteFailedNodes": true}}}), None),
    ] {
        let Some(manifests) = rendered(&values)? else { return Ok(()) };
        let objects = applied(&manifests)?;
        let policy = objects.iter().find(|object| object["kind"] == "RemediationPolicy");
        assert_eq!(policy.map(|policy| &policy["spec"]), wanted.as_ref(), "{values}");
    }
    Ok(())
}

/// Helm, Argo CD and Flux delete what is part of a release, and hooks that fail.
#[test]
fn u02_gate_and_policy_are_no_part_of_the_release() -> Result<()> {
    for helm in [Helm::V3, Helm::V4] {
        for values in [json!({}), json!({"config": {"nodeManagement": {"deleteFailedNodes": true}}})] {
            let Some(text) = or_skip(helm.template(&values))? else { return Ok(()) };
            for object in parse(&text)? {
                assert_ne!(object["apiVersion"], "nodekeeper.dev/v1alpha1", "{helm:?}: {object}");
                assert!(object["metadata"]["annotations"]["helm.sh/hook"].is_null(), "{helm:?}: {object}");
            }
        }
    }
    let spec = json!({"onFailure": "Replace"});
    let Some(manifests) = rendered(&json!({"gate": {"name": "edge", "spec": spec}}))? else { return Ok(()) };
    let gate = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "edge"},
        "spec": {"onFailure": "Replace", "taints": [{"key": "node-ready/unverified", "value": "true", "effect": "NoSchedule"}]}});
    assert_eq!(applied(&manifests)?[0], gate);
    let none = json!({"gate": {"create": false}, "remediation": {"policy": {"create": false}}});
    let Some(manifests) = rendered(&none)? else { return Ok(()) };
    assert!(the(&manifests, "ConfigMap").is_err(), "there is nothing to apply");
    assert!(!words(&container(&manifests)?["args"]).contains("--objects"));
    Ok(())
}

#[test]
fn u02_another_gate_restarts_the_controller() -> Result<()> {
    let mut checksums = BTreeSet::new();
    for values in [
        json!({}),
        json!({"gate": {"spec": {"priority": 1}}}),
        json!({"remediation": {"evidenceSeconds": 60}}),
    ] {
        let Some(manifests) = rendered(&values)? else { return Ok(()) };
        let template = &the(&manifests, "Deployment")?["spec"]["template"];
        checksums.insert(template["metadata"]["annotations"]["checksum/config"].to_string());
        assert!(words(&container(&manifests)?["args"]).contains("--objects=/etc/nodekeeper/objects.yaml"));
        assert_eq!(container(&manifests)?["volumeMounts"][0]["mountPath"], "/etc/nodekeeper");
    }
    assert_eq!(checksums.len(), 3, "{checksums:?}");
    Ok(())
}

pub fn the<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("there is no {kind}"))
}

pub fn container(objects: &[Value]) -> Result<&Value> {
    Ok(&the(objects, "Deployment")?["spec"]["template"]["spec"]["containers"][0])
}

#[test]
fn f21_worker_account_and_rights_are_in_its_namespace() -> Result<()> {
    let config = json!({"worker": {"namespace": "kube-system", "serviceAccountName": "who"},
        "leaderElection": {"id": "lead", "namespace": "there"}});
    let allowed = json!({"serviceAccounts": ["other"]});
    let Some(objects) = rendered(&json!({"config": config, "worker": {"allowed": allowed}}))? else {
        return Ok(());
    };
    let all = granted(&objects)?;
    for line in [
        "nodekeeper-controller kube-system: /pods [] get,list,watch,create,delete",
        "nodekeeper-controller there: coordination.k8s.io/leases [lead] get,update,watch",
        "who default: /services [] get",
    ] {
        assert!(all.contains(line), "no {line:?} in {all:#?}");
    }
    for binding in objects
        .iter()
        .filter(|object| object["kind"] == "RoleBinding" && object["metadata"]["name"] == "nodekeeper-worker")
    {
        let subject = |name| json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"});
        assert_eq!(binding["subjects"], json!([subject("who"), subject("other")]));
    }
    let account = objects
        .iter()
        .find(|object| object["kind"] == "ServiceAccount" && object["metadata"]["name"] == "who");
    assert_eq!(account.context("no account")?["metadata"]["namespace"], "kube-system");
    let arguments = words(&container(&objects)?["args"]);
    for flag in ["--namespace=kube-system", "--lease-name=lead", "--config=/etc/nodekeeper/config.yaml"] {
        assert!(arguments.contains(flag), "no {flag} in {arguments}");
    }
    Ok(())
}

#[test]
fn the_compat_file_is_mounted_and_replaces_the_gate() -> Result<()> {
    let config = json!({"worker": {"dnsTestDomains": ["a.b"]}, "metrics": {"port": 9090}, "health": {"port": 9091},
        "nodeManagement": {"taints": [{"key": "a/held", "effect": "NoExecute"}]}});
    let Some(objects) = rendered(&json!({"config": config, "workerConfig": {"checkTimeoutSeconds": 4}}))?
    else {
        return Ok(());
    };
    let files = &the(&objects, "ConfigMap")?["data"];
    let read: Value = serde_saphyr::from_str(files["config.yaml"].as_str().context("no file")?)?;
    assert_eq!(read, config);
    assert!(files["worker-config.yaml"].as_str().is_some_and(|text| text.contains("checkTimeoutSeconds: 4")));
    let applied = applied(&objects)?;
    assert!(!applied.iter().any(|object| object["kind"] == "NodeGate"), "the file has the gate: {applied:?}");
    let pod = &the(&objects, "Deployment")?["spec"]["template"]["spec"];
    assert_eq!(pod["tolerations"], json!([{"key": "a/held", "operator": "Exists", "effect": "NoExecute"}]));
    let arguments = words(&container(&objects)?["args"]);
    for flag in ["--metrics-bind-address=:9090", "--health-probe-bind-address=:9091"] {
        assert!(arguments.contains(flag), "no {flag} in {arguments}");
    }
    Ok(())
}

#[test]
fn f17_the_controller_is_restricted_and_probed() -> Result<()> {
    let Some(objects) = rendered(&json!({}))? else { return Ok(()) };
    let container = container(&objects)?;
    let context = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], context);
    assert_eq!(container["livenessProbe"]["httpGet"], json!({"path": "/healthz", "port": "health"}));
    assert_eq!(container["readinessProbe"]["httpGet"], json!({"path": "/readyz", "port": "health"}));
    let pod = &the(&objects, "Deployment")?["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/component"], "controller");
    assert_eq!(the(&objects, "PodDisruptionBudget")?["spec"]["maxUnavailable"], 1);
    let Some(one) = rendered(&json!({"controller": {"replicas": 1}}))? else { return Ok(()) };
    assert!(the(&one, "PodDisruptionBudget").is_err(), "one replica must not hold up a drain");
    Ok(())
}

#[test]
fn allowed_gate_features_become_flags() -> Result<()> {
    let worker = json!({"pullSecrets": ["s"], "allowed": {"images": ["r/i"], "priorityClasses": ["system-c"],
        "serviceAccounts": ["a"], "hostPaths": ["/p"], "privileged": true}});
    let metrics = json!({"enabled": false, "perNode": false, "compatNames": true});
    let Some(objects) = rendered(&json!({"worker": worker, "metrics": metrics}))? else { return Ok(()) };
    let arguments = words(&container(&objects)?["args"]);
    for flag in [
        "--worker-pull-secret=s",
        "--worker-allow-image=r/i",
        "--worker-allow-priority-class=system-c",
        "--worker-allow-service-account=a",
        "--worker-allow-host-path=/p",
        "--worker-allow-privileged",
        "--metrics-bind-address=0",
        "--metrics-per-node=false",
        "--metrics-compat-names=true",
    ] {
        assert!(arguments.contains(flag), "no {flag} in {arguments}");
    }
    Ok(())
}

#[test]
fn compat_metric_names_follow_their_value() -> Result<()> {
    for config in [json!({}), json!({"worker": {}})] {
        for (value, wanted) in [
            (json!(true), Some("--metrics-compat-names=true")),
            (json!(false), Some("--metrics-compat-names=false")),
            (Value::Null, None),
        ] {
            let values = json!({"config": config, "metrics": {"compatNames": value}});
            let Some(objects) = rendered(&values)? else { return Ok(()) };
            let arguments = container(&objects)?["args"].as_array().context("no arguments")?;
            let mut arguments = arguments.iter().filter_map(Value::as_str);
            assert_eq!(arguments.find(|flag| flag.contains("compat-names")), wanted, "{values}");
        }
    }
    Ok(())
}

#[test]
fn empty_fields_of_the_compat_file_use_the_values() -> Result<()> {
    let config =
        json!({"leaderElection": {"id": "", "namespace": ""}, "logging": {"level": "", "format": ""}});
    let Some(objects) = rendered(&json!({"config": config}))? else { return Ok(()) };
    let arguments = words(&container(&objects)?["args"]);
    for flag in ["--lease-name=kube-node-ready-leader", "--log-format=json", "--log-level=info"] {
        assert!(arguments.contains(flag), "no {flag} in {arguments}");
    }
    Ok(())
}

/// The "Common Configurations" of kube-node-ready's README, and other keys of its DaemonSet mode.
#[test]
fn s01_the_common_configurations_of_the_readme_are_taken() -> Result<()> {
    for (config, flags, effect) in [
        (
            json!({"taintKey": "my-custom/unverified", "taintValue": "true", "taintEffect": "NoSchedule"}),
            &[][..],
            "NoSchedule",
        ),
        (
            json!({"dnsTestDomains": ["kubernetes.default.svc.cluster.local", "cloudflare.com", "8.8.8.8"]}),
            &[],
            "NoSchedule",
        ),
        (
            json!({"maxRetries": 10, "retryBackoff": "exponential", "initialTimeout": "600s"}),
            &[],
            "NoSchedule",
        ),
        (
            json!({"enableMetrics": false, "taintEffect": "NoExecute"}),
            &["--metrics-bind-address=0"],
            "NoExecute",
        ),
        (
            json!({"metricsPort": 9090, "logLevel": "debug", "logFormat": "console"}),
            &["--metrics-bind-address=:9090", "--log-level=debug", "--log-format=console"],
            "NoSchedule",
        ),
    ] {
        let Some(objects) = rendered(&json!({"config": config, "deploymentMode": "controller"}))? else {
            return Ok(());
        };
        let map = objects.iter().find(|object| object["kind"] == "ConfigMap").context("no ConfigMap")?;
        let file = map["data"]["config.yaml"].as_str().context("no file")?;
        let read = nodekeeper_operator::config::load(file, None);
        let gate = read.map_err(|problems| anyhow::anyhow!("{config}: {problems:?}"))?.gate;
        assert_eq!(gate.taints[0].effect.as_str(), effect, "{config}");
        let arguments = words(&container(&objects)?["args"]);
        for flag in flags {
            assert!(arguments.contains(flag), "no {flag} in {arguments}");
        }
        let deployment =
            objects.iter().find(|object| object["kind"] == "Deployment").context("no Deployment")?;
        let toleration = &deployment["spec"]["template"]["spec"]["tolerations"][0];
        assert_eq!(toleration["key"], json!(gate.taints[0].key), "{config}");
        assert_eq!(toleration["effect"], json!(effect), "{config}");
    }
    Ok(())
}

#[test]
fn s01_the_daemon_set_mode_can_replace_nodes() -> Result<()> {
    let Some(objects) = rendered(&json!({"config": {"deleteFailedNode": true}}))? else { return Ok(()) };
    let all = granted(&objects)?;
    assert!(all.contains("nodekeeper-controller *: /pods/eviction [] create"), "{all:#?}");
    Ok(())
}

#[test]
fn s07_values_of_the_old_chart_are_refused_with_a_fix() -> Result<()> {
    for (values, wanted) in [
        (
            json!({"controller": {"config": {"worker": {}}}}),
            "controller.config: move what is below it to `config`",
        ),
        (
            json!({"worker": {"config": {"maxRetries": 1}}}),
            "worker.config: move what is below it to `workerConfig`",
        ),
        (
            json!({"deploymentMode": "daemonset", "daemonset": {"config": {"taintKey": "a/b"}}}),
            "daemonset.config: move what is below it to `config`",
        ),
        (
            json!({"daemonset": {"nodeAffinity": {}}}),
            "daemonset.nodeAffinity: move what is below it to `agent.affinity.nodeAffinity`",
        ),
        (json!({"daemonset": {"zebra": 1}}), "daemonset.zebra: there is no such value"),
    ] {
        let Some(done) = or_skip(Helm::V4.with_chart(&["template"], &values, None))? else { return Ok(()) };
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(wanted), "{values}: {said}");
    }
    Ok(())
}

#[test]
fn an_unknown_value_is_refused() -> Result<()> {
    for values in [
        json!({"zebra": 1}),
        json!({"rbac": {"zebra": true}}),
        json!({"metrics": {"port": "http"}}),
        json!({"worker": {"allowed": {"hostPaths": ["relative"]}}}),
        json!({"workerConfig": {"checkTimeoutSeconds": 4}}),
        json!({"remediation": {"enforcement": "Yes"}}),
        json!({"remediation": {"budgets": {}}}),
        json!({"remediation": {"pause": {"till": "tomorrow"}}}),
    ] {
        let Some(done) = or_skip(Helm::V4.with_chart(&["template"], &values, None))? else { return Ok(()) };
        assert!(!done.status.success(), "{values} is taken");
    }
    Ok(())
}

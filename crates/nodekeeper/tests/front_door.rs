//! The `nodekeeper` binary.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nodekeeper_core::api::{NodeGate, RemediationPolicy};

const NODEKEEPER: &str = env!("CARGO_BIN_EXE_nodekeeper");

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(NODEKEEPER);
    command.args(arguments);
    command
}

fn nodekeeper(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary was built for this test")
}

/// The worker is in another package, so cargo does not build it for this test.
fn require_worker() {
    let worker = Path::new(NODEKEEPER).with_file_name("nodekeeper-worker");
    let there = worker.display();
    assert!(worker.is_file(), "there is no worker at {there}: run `cargo build --workspace --bins` first");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_all(told: &str, wanted: &[&str]) {
    for line in wanted {
        assert!(told.contains(line), "no {line:?} in:\n{told}");
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn the_demo_runs_both_acts_and_succeeds() {
    require_worker();
    let folder = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let mut demo = command(&["demo", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let demo = demo.env("TMPDIR", scratch.path()).output().unwrap();
    let told = text(&demo.stdout);
    assert!(demo.status.success(), "{told}{}", text(&demo.stderr));
    assert_all(
        &told,
        &[
            "24 machines join, each with the taint node-ready/unverified",
            "its DNS server does not answer",
            "svc.cluster.local.: Timeout (no answer within 2 s)",
            "TlsError",
            "Refused",
            "loses power while worker 1 runs",
            "worker 1: the node was rebooted after the worker was created",
            "is repaired; the controller is not notified",
            "20 of 20 healthy nodes verified",
            "worker 2 passed; worker 1 of boot 1 was discarded",
            "4 attempts failed: api: TlsError",
            "4 attempts failed: api: Refused",
            "every machine ended as expected",
            "5 checks passed",
            "Second act: remediation",
            "must not be replaced: it gets the annotation do-not-disrupt",
            "OptedOut",
            "Replaced",
            "as its replacement",
            "the DNS of all machines stops answering",
            "SharedDependencyDown",
            "one machine was replaced, none for the outage",
        ],
    );
    assert!(!told.contains('\x1b'), "colours or a cursor that moves, without a terminal");
    let mode = fs::metadata(&kubeconfig).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "there is a token in it");
    assert!(is_empty(scratch.path()), "something was left behind");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    require_worker();
    let scratch = tempfile::tempdir().unwrap();
    let mut demo = command(&["demo", "--keep"]);
    demo.env("TMPDIR", scratch.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = Running(demo.spawn().unwrap());
    let mut told = BufReader::new(demo.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The worker of the machine whose DNS server does not answer runs for two seconds.
    assert!(told.any(|line| line.contains("ip-10-0-3-156") && line.contains("worker 1 runs")));
    let workers = demo.workers();
    assert!(!workers.is_empty() || !Path::new("/proc/self").exists(), "the worker is no process");
    let interrupt = Command::new("kill").args(["-INT", &demo.0.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let status = demo.0.wait().unwrap();
    let mut said = String::new();
    demo.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!status.success() && said.contains("stopped before the end"), "{status} {said}");
    assert!(is_empty(scratch.path()), "something was left behind");
    // A killed process needs a moment to end; a worker that was not killed runs for two seconds.
    let some_live = || workers.iter().any(|worker| is_alive(worker));
    assert!((0..50).any(|_| !some_live() || pause()), "a worker is still there");
}

/// Returns whether the process exists and is not a zombie.
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the state is in brackets and may contain any character.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Sleeps and returns false, for `any`.
fn pause() -> bool {
    sleep(Duration::from_millis(10));
    false
}

/// A process that is killed when a test fails.
struct Running(Child);

impl Running {
    /// Ids of the processes that it started, as soon as there are any.
    fn workers(&self) -> Vec<String> {
        let tasks = format!("/proc/{}/task", self.0.id());
        // A kubelet reports a container as running a moment before it starts it.
        for _ in 0..100 {
            let tasks = fs::read_dir(&tasks).into_iter().flatten().map_while(Result::ok);
            let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
            let children: String = children.map_while(Result::ok).collect();
            if !children.is_empty() {
                return children.split_whitespace().map(str::to_owned).collect();
            }
            pause();
        }
        Vec::new()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn help_and_version_are_printed() {
    let help = text(&nodekeeper(&["demo", "--help"]).stdout);
    assert_all(
        &help,
        &["--keep", "--listen", "--kubeconfig", "--worker", "NO_COLOR", "Exit code 0", "Examples:"],
    );
    let help = text(&nodekeeper(&["controller", "--help"]).stdout);
    assert_all(
        &help,
        &[
            "KUBECONFIG",
            "--namespace",
            "--worker-image",
            "--lease-name",
            "--max-workers",
            "--log-level",
            "--metrics-bind-address",
            "--health-probe-bind-address",
        ],
    );
    let help = text(&nodekeeper(&["--help"]).stdout);
    assert_all(&help, &["controller", "crds", "demo"]);
    assert!(text(&nodekeeper(&["--version"]).stdout).starts_with("nodekeeper 0."));
}

#[test]
fn crds_are_printed() {
    let all = [
        ("NodeGate", "nodegates"),
        ("NodeRemediation", "noderemediations"),
        ("RemediationPolicy", "remediationpolicies"),
    ];
    assert_eq!(defined(&["crds"]), all.map(|(kind, name)| (kind.to_owned(), name.to_owned())));
    for (kind, name) in all {
        assert_eq!(defined(&["crds", name]), [(kind.to_owned(), name.to_owned())]);
    }
}

/// Returns kind and plural of each printed definition.
fn defined(arguments: &[&str]) -> Vec<(String, String)> {
    let crds = nodekeeper(arguments);
    assert!(crds.status.success(), "{}", text(&crds.stderr));
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_str_multiple(&text(&crds.stdout)).expect("it is YAML");
    let word = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let read = |document: &serde_json::Value| {
        assert_eq!(document["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(document["kind"], "CustomResourceDefinition");
        let names = &document["spec"]["names"];
        (word(&names["kind"]), word(&names["plural"]))
    };
    documents.iter().map(read).collect()
}

#[test]
fn errors_of_the_demo_say_how_to_fix_them() {
    require_worker();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let demo = nodekeeper(&["demo", "--listen", &address]);
    let said = text(&demo.stderr);
    assert!(!demo.status.success() && said.contains(&address) && said.contains("another port"), "{said}");
    let said = text(&nodekeeper(&["demo", "--listen", "here"]).stderr);
    assert_all(&said, &["--listen <ADDRESS>", "here"]);
    assert_all(&text(&nodekeeper(&["dmeo"]).stderr), &["demo"]);
    let said = text(&nodekeeper(&["demo", "--kubeconfig", "/nowhere/at/all"]).stderr);
    assert_all(&said, &["--kubeconfig /nowhere/at/all: cannot write the file"]);
    let demo = nodekeeper(&["demo", "--worker", "/nowhere/at/all"]);
    assert!(!demo.status.success());
    assert_all(
        &text(&demo.stderr),
        &["no worker at /nowhere/at/all", "cargo build --workspace", "--worker FILE"],
    );
}

#[test]
fn errors_of_the_controller_say_how_to_fix_them() {
    let empty_home = tempfile::tempdir().unwrap();
    let controller = |arguments: &[&str]| {
        let mut controller = command(&["controller", "--worker-image", "example.com/worker:1"]);
        controller.args(arguments).env_clear().env("HOME", empty_home.path());
        let ended = controller.output().expect("the binary was built for this test");
        assert!(!ended.status.success());
        text(&ended.stderr)
    };
    assert_all(&controller(&[]), &["no cluster found", "set KUBECONFIG", "service account"]);
    for level in ["loud", "info,nodekeeper_operator=loud"] {
        let said = controller(&["--log-level", level]);
        assert_all(&said, &[&format!("--log-level {level}"), "use error, warn, info, debug or trace"]);
    }
    assert_all(&controller(&["--log-format", "xml"]), &["xml", "json", "console"]);
    let ended = nodekeeper(&["controller"]);
    assert!(!ended.status.success());
    assert_all(&text(&ended.stderr), &["--worker-image <IMAGE>"]);
}

/// Writes a kubeconfig for an address where no server listens.
fn nowhere(folder: &Path) -> String {
    let file = folder.join("nowhere");
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: n\n\
        clusters: [{name: n, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}]\n\
        users: [{name: n, user: {token: t}}]\ncontexts: [{name: n, context: {cluster: n, user: n}}]\n";
    fs::write(&file, config).expect("the folder is ours");
    file.to_str().expect("it is text").to_owned()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn f02_a_controller_serves_metrics_and_probes() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller =
        command(&["controller", "--worker-image", "example.com/worker:1", "--metrics-compat-names"]);
    for flag in ["--metrics-bind-address", "--health-probe-bind-address"] {
        controller.args([flag, "127.0.0.1:0"]);
    }
    controller.env("KUBECONFIG", nowhere(folder.path())).stderr(Stdio::piped());
    let mut controller = Running(controller.spawn().unwrap());
    let mut logged = BufReader::new(controller.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut served = || {
        let line = logged.find(|line| line.contains("\"msg\":\"listening\"")).expect("both are served");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["level"], "info", "{line}");
        (line["paths"].as_str().unwrap().to_owned(), line["address"].as_str().unwrap().to_owned())
    };
    let mut endpoints = [served(), served()];
    endpoints.sort();
    let [(_, probes), (metrics, numbers)] = endpoints;
    assert_eq!(metrics, "/metrics");
    assert!(get(&probes, "/healthz").starts_with("HTTP/1.1 200"));
    let is_reported = || get(&probes, "/readyz").contains("the lease cannot be read or written");
    assert!((0..500).any(|_| is_reported() || pause()), "{}", get(&probes, "/readyz"));
    assert!(get(&probes, "/readyz").starts_with("HTTP/1.1 503"));
    assert_all(
        &get(&numbers, "/metrics"),
        &[
            "HTTP/1.1 200",
            "\nleader_election_master_status{name=\"kube-node-ready-leader\"} 0.0\n",
            "\nkube_node_ready_verifications_total{status=\"success\"} 0\n",
            "\nkube_node_ready_controller_healthy 0.0\n",
            "\nrest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"127.0.0.1:1\"} ",
            &format!(
                "\nnodekeeper_build_info{{version=\"{}\",revision=\"{}\"}} 1",
                env!("CARGO_PKG_VERSION"),
                built().0
            ),
        ],
    );
}

/// Commit and date of this build.
fn built() -> (&'static str, &'static str) {
    let or_unknown = |told: Option<&'static str>| told.unwrap_or("unknown");
    (or_unknown(option_env!("NODEKEEPER_COMMIT")), or_unknown(option_env!("NODEKEEPER_DATE")))
}

#[test]
fn the_version_has_commit_and_date() {
    let (commit, date) = built();
    let wanted = format!("nodekeeper {} ({commit}, {date})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&nodekeeper(&["--version"]).stdout), wanted);
}

#[test]
fn the_examples_are_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let examples: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    assert!(examples.len() >= 7, "{examples:?}");
    for path in examples {
        let written: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let object = written.clone();
        let read = match written["kind"].as_str().unwrap() {
            "NodeGate" => serde_json::from_value::<NodeGate>(object).and_then(serde_json::to_value),
            "RemediationPolicy" => {
                serde_json::from_value::<RemediationPolicy>(object).and_then(serde_json::to_value)
            }
            other => panic!("{}: {other}", path.display()),
        };
        assert_kept(&written, &read.unwrap(), &path.display().to_string());
    }
}

fn page(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(file).expect("the page exists")
}

#[test]
fn u01_the_readme_installs_it_and_names_only_kinds_that_exist() {
    let readme = page("README.md");
    let install =
        "helm install nodekeeper charts/nodekeeper --namespace nodekeeper-system --create-namespace --wait";
    for page in [&readme, &page("docs/gate.md"), &page("charts/nodekeeper/README.md")] {
        assert_all(page, &[install]);
    }
    let kinds: Vec<String> = defined(&["crds"]).into_iter().map(|(kind, _)| kind).collect();
    for kind in ["EventRecycler", "NodeCleanup"].into_iter().filter(|kind| readme.contains(kind)) {
        assert!(kinds.iter().any(|known| known == kind), "README.md names the kind {kind}");
    }
}

#[test]
fn u03_the_pages_warn_that_adding_a_startup_taint_replaces_nodes() {
    for path in ["docs/gate.md", "charts/nodekeeper/templates/NOTES.txt", "examples/karpenter/default.yaml"] {
        assert_all(&page(path), &["startupTaints", "drift", "Drifted"]);
    }
    for path in ["charts/nodekeeper/README.md", "examples/README.md"] {
        assert_all(&page(path), &["docs/gate.md#karpenter", "make"]);
    }
    let pool: serde_json::Value = serde_saphyr::from_str(&page("examples/karpenter/default.yaml")).unwrap();
    let wanted = serde_json::to_value(nodekeeper_core::api::GateTaint::default()).unwrap();
    assert_eq!(pool["spec"]["template"]["spec"]["startupTaints"], serde_json::json!([wanted]));
    assert_eq!(pool["spec"]["template"]["spec"].get("taints"), None);
    let budgets = pool["spec"]["disruption"]["budgets"].as_array().expect("budgets");
    assert!(budgets.iter().any(|budget| budget["reasons"][0] == "Drifted"), "{budgets:?}");
}

/// An unknown key is dropped by deserialization.
fn assert_kept(written: &serde_json::Value, read: &serde_json::Value, at: &str) {
    use serde_json::Value::{Array, Number, Object, String};
    match (written, read) {
        (Object(written), Object(read)) => {
            for (key, value) in written {
                let kept = read.get(key).unwrap_or(&serde_json::Value::Null);
                assert_kept(value, kept, &format!("{at} {key}"));
            }
        }
        (Array(written), Array(read)) if written.len() == read.len() => {
            for (index, (written, read)) in written.iter().zip(read).enumerate() {
                assert_kept(written, read, &format!("{at} {index}"));
            }
        }
        // A quantity may be written as a number.
        (Number(written), String(read)) => assert_eq!(written.to_string(), *read, "{at}"),
        _ => assert_eq!(written, read, "{at}"),
    }
}

#[test]
fn a_port_in_use_is_reported_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut controller = command(&["controller", "--worker-image", "example.com/worker:1"]);
    controller.args(["--metrics-bind-address", &address, "--health-probe-bind-address", "0"]);
    let ended = controller.env("KUBECONFIG", nowhere(folder.path())).output().unwrap();
    assert!(!ended.status.success());
    assert_all(
        &text(&ended.stderr),
        &[&format!("--metrics-bind-address {address}: cannot listen"), "another port"],
    );
    let said = text(&nodekeeper(&["controller", "--metrics-bind-address", "8080"]).stderr);
    assert_all(&said, &["--metrics-bind-address <ADDRESS>", ":8080", "0 to disable"]);
}

#[test]
fn the_demo_fails_if_a_broken_machine_is_verified() {
    require_worker();
    let folder = tempfile::tempdir().unwrap();
    let blind = folder.path().join("blind-worker");
    let worker = Path::new(NODEKEEPER).with_file_name("nodekeeper-worker");
    fs::write(&blind, format!("#!/bin/sh\nexec '{}' \"$@\" --only api,tcp,services\n", worker.display()))
        .unwrap();
    fs::set_permissions(&blind, fs::Permissions::from_mode(0o755)).unwrap();
    let demo = nodekeeper(&["demo", "--worker", blind.to_str().unwrap()]);
    let said = text(&demo.stderr);
    assert!(!demo.status.success(), "{}{said}", text(&demo.stdout));
    assert_all(&said, &["a broken machine was verified"]);
}

#[test]
fn an_existing_kubeconfig_is_not_overwritten() {
    require_worker();
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join("config");
    fs::write(&theirs, "current-context: production\n").unwrap();
    let demo = nodekeeper(&["demo", "--kubeconfig", theirs.to_str().unwrap()]);
    assert!(!demo.status.success());
    assert_all(&text(&demo.stderr), &["not from a demo", "choose another"]);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "current-context: production\n");
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kube-node-ready");

fn example(name: &str) -> String {
    format!("{EXAMPLES}/{name}")
}

#[test]
fn config_check_needs_no_cluster() {
    let checked = nodekeeper(&["config", "check", &example("config.yaml"), "--print"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_all(
        &text(&checked.stdout),
        &["apiVersion: nodekeeper.dev/v1alpha1", "kind: NodeGate", "name: config", "workerSeconds: 300"],
    );
    let told = text(&checked.stderr);
    assert_eq!(told.matches("warning: `").count(), 1, "{told}");
    assert!(!text(&checked.stdout).contains("RemediationPolicy"), "no policy is configured");

    let both =
        ["config", "check", &example("config-full.yaml"), "--worker-config", &example("worker-config.yaml")];
    let checked = nodekeeper(&both);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("valid; --print"));
}

#[test]
fn f13_config_check_prints_the_remediation_policy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, "nodeManagement: {deleteFailedNodes: true}\n").unwrap();
    let checked = nodekeeper(&["config", "check", file.to_str().unwrap(), "--print"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_all(&text(&checked.stderr), &["warning: `nodeManagement.deleteFailedNodes`"]);
    let printed: Vec<serde_json::Value> = serde_saphyr::from_str_multiple(&text(&checked.stdout)).unwrap();
    let [gate, policy] = &printed[..] else { panic!("{printed:#?}") };
    assert_eq!(gate["spec"]["onFailure"], "Replace");
    assert_eq!(
        (&policy["kind"], &policy["metadata"]["name"]),
        (&"RemediationPolicy".into(), &"default".into())
    );
    assert_eq!(policy["spec"]["enforcement"], "Enforce");
    assert_eq!(policy["spec"]["budget"]["maxPerHour"], 3);
}

#[test]
fn s03_config_check_reads_values_config_maps_and_gates() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, content: &str, arguments: &[&str]| {
        let file = folder.path().join(name);
        fs::write(&file, content).unwrap();
        let mut all = vec!["config", "check", file.to_str().unwrap()];
        all.extend(arguments);
        nodekeeper(&all)
    };
    let values =
        "config:\n  taintKey: my-custom/unverified\n  taintValue: \"true\"\n  taintEffect: NoSchedule\n";
    let checked = check("values.yaml", values, &["--print"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_all(&text(&checked.stdout), &["key: my-custom/unverified"]);
    let map = "apiVersion: v1\nkind: ConfigMap\ndata:\n  config.yaml: |\n    worker:\n      imagee: x\n";
    let checked = check("map.yaml", map, &[]);
    assert_eq!(checked.status.code(), Some(2));
    assert_all(&text(&checked.stderr), &["map.yaml:6: `worker.imagee`: there is no such key"]);

    let gate = |spec: &str| {
        format!(
            "apiVersion: nodekeeper.dev/v1alpha1\nkind: NodeGate\nmetadata: {{name: a}}\nspec:\n  {spec}\n"
        )
    };
    let checked = check("gate.yaml", &gate("onFailure: Replace"), &[]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_all(&text(&checked.stdout), &["gate.yaml: valid NodeGate"]);
    let checked = check("gate.yaml", &gate("worker: {tolerations: [{operator: Equal}]}"), &[]);
    assert_eq!(checked.status.code(), Some(2));
    let wanted = ["gate.yaml:5: `spec.worker.tolerations[0]`: `operator` must be 'Exists' if `key` is empty"];
    assert_all(&text(&checked.stderr), &wanted);
}

#[test]
fn s04_config_check_lists_what_it_does_not_print() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let content = "worker: {namespace: a, priorityClassName: system-node-critical, image: {repository: r/w, tag: 1}}\n\
                   logging: {level: debug}\n";
    fs::write(&file, content).unwrap();
    let checked = nodekeeper(&["config", "check", file.to_str().unwrap(), "--print"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_all(
        &text(&checked.stderr),
        &[
            "warning: not in the printed objects: `worker.namespace`: the flag --namespace",
            "warning: not in the printed objects: `logging.level`: the flag --log-level",
            "warning: the installation has to allow it: `worker.image` r/w:1: the flag --worker-allow-image",
            "`worker.priorityClassName` system-node-critical: the flag --worker-allow-priority-class",
        ],
    );
    let checked = nodekeeper(&["config", "check", file.to_str().unwrap()]);
    assert!(!text(&checked.stderr).contains("not in the printed"), "nothing is printed");
}

#[test]
fn s06_the_worker_image_of_the_file_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let start = |content: &str| {
        fs::write(&file, content).unwrap();
        let mut controller = command(&["controller", "--config", file.to_str().unwrap()]);
        let ended = controller.env_clear().env("KUBECONFIG", folder.path().join("none")).output().unwrap();
        assert!(!ended.status.success(), "there is no cluster");
        text(&ended.stderr)
    };
    assert_all(&start("worker: {image: {repository: r/w, tag: 1.10}}"), &[r#""worker_image":"r/w:1.10""#]);
    assert_all(&start("worker: {}"), &["no worker image", "--worker-image <IMAGE>", "`worker.image`"]);
}

#[test]
fn config_check_reports_errors_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, "worker:\n  imagee: x\n  timeoutSeconds: soon\n").unwrap();
    let path = file.to_str().unwrap();
    let wanted = [
        &format!("{path}:2: `worker.imagee`: there is no such key: did you mean `image`?"),
        &format!("{path}:3: `worker.timeoutSeconds`: is 'soon': write a whole number"),
    ];
    let checked = nodekeeper(&["config", "check", path]);
    assert_eq!(checked.status.code(), Some(2));
    assert_all(&text(&checked.stderr), &wanted.map(String::as_str));
    let controller = nodekeeper(&["controller", "--config", path, "--worker-image", "x"]);
    assert_eq!(controller.status.code(), Some(1));
    assert_all(&text(&controller.stderr), &wanted.map(String::as_str));
    assert_eq!(nodekeeper(&["config", "check", "/no/such/file"]).status.code(), Some(1));
}

#[test]
fn u02_wrong_objects_of_the_installation_stop_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let (objects, config) = (folder.path().join("objects.yaml"), folder.path().join("config.yaml"));
    let start = |content: &str, more: &[&str]| {
        std::fs::write(&objects, content).expect("a file");
        let objects = objects.to_string_lossy().into_owned();
        let arguments = ["controller", "--worker-image", "a", "--objects", &objects];
        let done = nodekeeper(&[&arguments[..], more].concat());
        assert!(!done.status.success());
        text(&done.stderr)
    };
    let gate = |spec: &str| {
        format!(
            "kind: List\nitems:\n- apiVersion: nodekeeper.dev/v1alpha1\n  kind: NodeGate\n  metadata: {{name: config}}\n  spec: {spec}\n"
        )
    };
    let told = start(&gate("{onFailure: Delete}"), &[]);
    assert_all(
        &told,
        &["invalid --objects", "objects.yaml:6", "`items[0].spec.onFailure`", "'Delete'", "KeepTainted"],
    );
    std::fs::write(&config, "worker: {}").expect("a file");
    let told = start(&gate("{}"), &["--config", &config.to_string_lossy()]);
    assert_all(&told, &["NodeGate/config", "--objects", "--config", "remove it"]);
}

/// Returns the log of a controller that finds no cluster.
fn startup_log(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let nowhere = folder.path().join("kubeconfig");
    let controller = command(&["controller", "--worker-image", "w"])
        .args(arguments)
        .env_clear()
        .env("KUBECONFIG", &nowhere)
        .envs(environment.iter().copied())
        .output()
        .expect("the binary was built for this test");
    assert!(!controller.status.success(), "there is no cluster");
    text(&controller.stderr)
}

#[test]
fn flags_win_over_environment_and_environment_over_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(
        &file,
        "{worker: {namespace: of-file, serviceAccountName: of-file}, leaderElection: {id: of-file}}",
    )
    .unwrap();
    let config = ["--config", file.to_str().unwrap()];

    let told = startup_log(&[], &[]);
    assert_all(&told, &[r#""namespace":"nodekeeper-system""#, r#""lease":"kube-node-ready-leader""#]);
    let told = startup_log(&config, &[]);
    assert_all(
        &told,
        &[r#""namespace":"of-file""#, r#""worker_service_account":"of-file""#, r#""lease":"of-file""#],
    );
    let environment = [("POD_NAMESPACE", "of-environment"), ("WORKER_SERVICE_ACCOUNT", "of-environment")];
    let told = startup_log(&config, &environment);
    assert_all(&told, &[r#""namespace":"of-environment""#, r#""worker_service_account":"of-environment""#]);
    let flags = [config[0], config[1], "--namespace", "of-flag", "--lease-name", "of-flag"];
    let told = startup_log(&flags, &environment);
    let wanted =
        [r#""namespace":"of-flag""#, r#""worker_service_account":"of-environment""#, r#""lease":"of-flag""#];
    assert_all(&told, &wanted);
}

#[test]
fn log_flags_win_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, "{logging: {format: console, level: error}}").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    assert!(!startup_log(&config, &[]).contains("starting"), "only errors");
    let told = startup_log(&[config[0], config[1], "--log-level", "info"], &[]);
    assert!(told.contains("starting") && !told.contains('{'), "for people: {told}");
    assert!(
        startup_log(&[config[0], config[1], "--log-level", "info", "--log-format", "json"], &[])
            .contains('{')
    );
}

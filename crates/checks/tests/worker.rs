//! The worker binary, run for a node and by hand.

#![allow(clippy::unwrap_used, reason = "all of it is part of a test")]

mod servers;

use std::process::{Command, Output};

use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{Report, Verdict, parse};
use serde_json::Value;
use servers::Certificate::{Good, OtherAuthority};
use servers::{Api, Dns};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodekeeper-worker"));
    command.env_clear();
    command
}

/// Runs the worker on another thread: the test servers need the runtime.
async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A worker with all addresses set, which writes its report into the folder.
fn in_cluster(api: &Api) -> Command {
    let mut command = command();
    let (host, port) = api.options.api_server.as_ref().unwrap();
    command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port.to_string());
    command.env("NODE_NAME", "node-1");
    command.arg("--dns-server").arg(api.options.dns_servers[0].to_string());
    command.arg("--token-file").arg(api.options.token_file.as_ref().unwrap());
    command.arg("--ca-file").arg(api.options.ca_file.as_ref().unwrap());
    command.arg("--termination-log").arg(api.folder.path().join("log"));
    command
}

fn left(api: &Api) -> Report {
    let message = std::fs::read_to_string(api.folder.path().join("log")).unwrap();
    parse(&message).unwrap()
}

/// The lines of a log.
fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The report in the last line of a log.
fn last_of(output: &Output) -> Report {
    serde_json::from_value(lines(output).pop().unwrap()["report"].take()).unwrap()
}

fn assignment() -> Assignment {
    let mut assignment = Assignment { check_timeout_seconds: 1, ..Assignment::default() };
    assignment.identity.node_uid = "a-uid".into();
    assignment.identity.number = 7;
    assignment
}

fn json(assignment: &Assignment) -> String {
    serde_json::to_string(assignment).unwrap()
}

#[tokio::test]
async fn a_healthy_node_passes() {
    let api = servers::api(200, Good).await;
    let mut worker = in_cluster(&api);
    worker.env(Assignment::ENV, json(&assignment())).arg("--format=console");
    let output = output(worker).await;
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}{}", text(&output.stderr));
    assert!(told.starts_with("node node-1\n") && told.contains("\nPassed: 4 checks passed in "), "{told}");
    assert!(told.contains("SKIP  peers"), "{told}");
    assert!(!told.contains('\x1b'), "colours without a terminal");
    let report = left(&api);
    assert_eq!((report.verdict, report.identity), (Verdict::Passed, assignment().identity));
}

#[tokio::test]
async fn a_node_without_dns_fails() {
    let mut api = servers::api(200, Good).await;
    api.options.dns_servers = vec![servers::dns(Dns::Silent).await];
    let mut worker = in_cluster(&api);
    worker.env(Assignment::ENV, json(&assignment())).args(["--format", "json"]);
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let printed = last_of(&output);
    assert_eq!(printed, left(&api));
    assert!(printed.summary().contains("Timeout (no answer within 1 s)"), "{}", printed.summary());
}

#[tokio::test]
async fn bad_configuration_is_reported_and_exits_2() {
    let api = servers::api(200, Good).await;
    let mut literal = assignment();
    literal.checks.dns.as_mut().unwrap().names = vec!["10.0.0.1".into()];
    for (text_of_it, identity) in [(json(&literal), "a-uid"), ("what?".into(), "")] {
        let mut worker = in_cluster(&api);
        worker.env(Assignment::ENV, text_of_it);
        let output = output(worker).await;
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        let report = left(&api);
        assert_eq!((report.verdict, report.identity.node_uid.as_str()), (Verdict::Inconclusive, identity));
        assert!(text(&output.stderr).contains(&report.checks[0].message), "{}", text(&output.stderr));
    }
    let mut worker = in_cluster(&api);
    worker.args(["--nonsense", "--format", "json"]);
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(2));
    let told = "nodekeeper-worker: \"--nonsense\" is unknown; --help lists all flags\n";
    assert_eq!(text(&output.stderr), told);
    assert!(left(&api).summary().contains("--nonsense"));
    let printed = last_of(&output);
    assert_eq!(printed, left(&api), "programs that read it get it in any case");
}

#[tokio::test]
async fn an_argument_that_is_not_utf8_is_bad_configuration() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut worker = command();
    worker.arg(std::ffi::OsStr::from_bytes(b"--only=\xff"));
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is not UTF-8"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn an_unwritable_report_is_an_error() {
    let server = servers::dns(Dns::Answers).await;
    let mut worker = command();
    worker.args(["--only=dns", "--termination-log=/nowhere/at/all", "--dns-server", &server.to_string()]);
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(10), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("/nowhere/at/all"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn without_an_api_server_a_node_does_not_pass() {
    let server = servers::dns(Dns::Answers).await;
    let mut worker = command();
    worker.env(Assignment::ENV, json(&assignment())).args(["--dns-server", &server.to_string()]);
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("KUBERNETES_SERVICE_HOST"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn without_a_token_the_result_is_inconclusive() {
    let api = servers::api(200, Good).await;
    std::fs::remove_file(api.options.token_file.as_ref().unwrap()).unwrap();
    let output = output(in_cluster(&api)).await;
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(left(&api).verdict, Verdict::Inconclusive);
    assert!(text(&output.stderr).contains("cannot read the token"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn only_selected_checks_run() {
    let api = servers::api(500, OtherAuthority).await;
    let mut worker = in_cluster(&api);
    worker.args(["--only", "dns,tcp"]);
    let output = output(worker).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert_eq!(left(&api).checks.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["dns", "tcp"]);
    let mut worker = in_cluster(&api);
    worker.args(["--only", "ping"]);
    let output = self::output(worker).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("dns, api, tcp, services"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn without_a_cluster_by_hand_checks_are_skipped() {
    let server = servers::dns(Dns::Answers).await;
    let mut worker = command();
    worker.args(["--dns-server", &server.to_string()]);
    let output = output(worker).await;
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(told.matches("SKIP").count(), 5, "{told}");
    let mut worker = command();
    worker.args(["--only", "api"]);
    let output = self::output(worker).await;
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("nothing was checked"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_worker_for_a_node_logs_json() {
    let api = servers::api(200, Good).await;
    let mut worker = in_cluster(&api);
    worker.env(Assignment::ENV, json(&assignment()));
    let output = output(worker).await;
    let lines = lines(&output);
    let find = |said: &str| {
        lines.iter().find(|line| line["msg"] == said).unwrap_or_else(|| panic!("{said}: {lines:?}"))
    };
    assert_eq!(find("Starting DNS check")["domain"], "kubernetes.default.svc.cluster.local.");
    let passed = find("DNS check passed");
    assert_eq!((&passed["level"], &passed["addresses"][0]), (&"info".into(), &"10.96.0.1".into()));
    assert!(passed["duration"].as_str().unwrap().ends_with('s') && passed["timestamp"].is_string());
    assert_eq!(find("API check passed")["result"], "system:serviceaccount:ns:worker");
    assert_eq!(find("Peer check skipped")["reason"], "NoPeers");
    let last = lines.last().unwrap();
    assert_eq!((&last["msg"], &last["node"]), (&"All checks passed".into(), &"node-1".into()));
    assert!(last["total_duration"].is_string());
}

#[tokio::test]
async fn a_kubeconfig_is_used_outside_a_cluster() {
    let api = servers::api(200, Good).await;
    let port = api.options.api_server.as_ref().unwrap().1;
    let config = |user: &str| {
        let text = format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {user}}}]\n"
        );
        let file = api.folder.path().join("config");
        std::fs::write(&file, text).unwrap();
        let mut worker = command();
        worker.env("KUBECONFIG", &file).args(["--only", "api,tcp,services,peers"]);
        worker
    };
    let tried = output(config(&format!("{{token: {}}}", servers::TOKEN))).await;
    let told = text(&tried.stdout);
    assert_eq!(tried.status.code(), Some(0), "{told}{}", text(&tried.stderr));
    assert!(told.contains("SKIP  peers") && told.contains("\nPassed: 3 checks passed"), "{told}");
    let tried = output(config("{exec: {command: aws, args: [eks]}}")).await;
    assert_eq!(tried.status.code(), Some(3));
    assert_eq!(text(&tried.stdout).matches("plugins are not run").count(), 6, "{}", text(&tried.stdout));
    assert!(text(&tried.stderr).contains("nothing was checked: api"), "{}", text(&tried.stderr));
}

#[tokio::test]
async fn an_assignment_file_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("assignment.json");
    std::fs::write(&file, json(&assignment())).unwrap();
    let mut worker = command();
    worker.arg("--assignment").arg(&file).arg("--list");
    let output = output(worker).await;
    let told = text(&output.stdout);
    assert_eq!((output.status.code(), told.lines().count()), (Some(0), 6), "{told}");
    assert!(told.contains("peers     kube-system/kube-dns  (needs a cluster)\n"), "{told}");
    let mut worker = command();
    worker.arg("--assignment").arg(folder.path().join("none"));
    let output = self::output(worker).await;
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn help_and_version_are_printed() {
    let mut worker = command();
    worker.arg("--help");
    let help = text(&output(worker).await.stdout);
    assert!(help.contains("Exit codes: 0 passed") && help.contains("--dns-server IP[:PORT]"), "{help}");
    let example = help.split('\'').find(|part| part.starts_with("{\"")).unwrap();
    let server = servers::dns(Dns::Answers).await;
    let mut worker = command();
    worker.env(Assignment::ENV, example).args(["--dns-server", &server.to_string()]);
    let tried = output(worker).await;
    assert_eq!(tried.status.code(), Some(0), "{example}: {}", text(&tried.stderr));
    let mut worker = command();
    worker.arg("--version");
    let version = output(worker).await;
    assert_eq!(version.status.code(), Some(0));
    let commit = option_env!("NODEKEEPER_COMMIT").unwrap_or("unknown");
    let date = option_env!("NODEKEEPER_DATE").unwrap_or("unknown");
    let wanted = format!("nodekeeper-worker {} ({commit}, {date})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&version.stdout), wanted);
}

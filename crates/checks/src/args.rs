//! Parses the command line and the environment of the worker.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use nodekeeper_checks::real::Options;
use nodekeeper_checks::real::environment::{read_server, split, variable};
use nodekeeper_core::checks::Assignment;

/// The text of `--help`.
pub const HELP: &str = "\
Verifies the network of the node it runs on: names resolve, the API server accepts requests, connections can be opened,
Services have ready endpoints, pods on other nodes answer. All checks run at once, in about a second.

Usage: nodekeeper-worker [FLAGS]

Checks:
  --assignment FILE      the assignment, as JSON [env: NODEKEEPER_ASSIGNMENT holds the JSON itself] [default: dns, api,
                         tcp, services, peers]
  --only CHECKS          run only these checks, as in dns,api; the checks are dns, api, tcp, services, peers, http,
                         clock, mtu
  --list                 list the targets of all checks and exit

Environment:
  --dns-server IP[:PORT] query this DNS server instead of those in /etc/resolv.conf; may be repeated
                         [env: NODEKEEPER_DNS_SERVERS, with commas]
  --kubeconfig FILE      kubeconfig for use outside of a cluster; credential plugins are not run
                         [env: KUBECONFIG, the first file that exists] [default: ~/.kube/config]
  --token-file FILE      token for the API server [env: NODEKEEPER_TOKEN_FILE] [default: the pod's, or the kubeconfig's]
  --ca-file FILE         CA of the API server's certificate [env: NODEKEEPER_CA_FILE] [default: the pod's, or the
                         kubeconfig's]
  --pods-at IP:PORT      connect to this address instead of to pods; for tests on one machine
  KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT
                         the address of the API server, set in every pod. Without them and without a kubeconfig,
                         checks that need a cluster are skipped, or inconclusive if the assignment is for a node
  NODE_NAME              the node that the worker runs on
  SSL_CERT_FILE          CA certificates for HTTPS URLs [default: /etc/ssl/certs/ca-certificates.crt]

Output:
  --format FORMAT        console (one line per check) or json (a log; the last line is the report)
                         [env: NODEKEEPER_FORMAT] [default: json if the assignment is for a node, else console]
  --termination-log FILE file for the report of at most 4096 bytes
                         [default: /dev/termination-log, if it exists]
  --version, --help

Exit codes: 0 passed; 1 a check failed; 2 the configuration is invalid; 3 inconclusive (no token, the API server fails,
no check ran); 10 the report could not be written, or a bug.

Try it on any machine with a DNS server:
  NODEKEEPER_ASSIGNMENT='{\"checkTimeoutSeconds\":5,\"deadlineSeconds\":20,\"checks\":{\"dns\":{\"names\":[\"example.com.\"]}}}' \\
    nodekeeper-worker
Query the cluster DNS for the default name:
  nodekeeper-worker --only dns --dns-server 10.96.0.10
";

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line per check.
    Console,
    /// One JSON object per line.
    Json,
}

/// The arguments of a run.
#[derive(Debug, Default)]
pub struct Args {
    pub assignment_file: Option<PathBuf>,
    /// The assignment as JSON, from the environment.
    pub assignment: Option<String>,
    /// The checks to run; all if it is empty.
    pub only: Vec<String>,
    /// List the targets instead of running the checks.
    pub list: bool,
    pub options: Options,
}

impl Args {
    /// The name of the node, if it is known.
    pub fn node(&self) -> Option<&str> {
        Some(self.options.node.as_str()).filter(|node| !node.is_empty())
    }
}

#[derive(Debug)]
pub enum Command {
    /// Run the checks.
    Work(Box<Args>),
    Help,
    Version,
}

/// The parsed command line. The output settings are separate, because an error is reported with them too.
#[derive(Debug)]
pub struct ParsedArgs {
    pub termination_log: Option<PathBuf>,
    pub format: Option<Format>,
    /// The command, or the first error.
    pub command: Result<Command, String>,
}

/// Parses all arguments, even after an error.
pub fn parse(
    words: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> ParsedArgs {
    let mut args = Args::default();
    let mut typed = ParsedArgs { termination_log: None, format: None, command: Ok(Command::Help) };
    let environment = read_environment(environment, &mut args, &mut typed.format);
    let mut typed_servers = Vec::new();
    let mut mistake = None;
    let mut words =
        words.map(|word| word.into_string().map_err(|word| format!("{} is not UTF-8", word.display())));
    while let Some(word) = words.next() {
        let read =
            word.and_then(|word| read_word(&word, &mut words, &mut args, &mut typed, &mut typed_servers));
        match read {
            Ok(None) => {}
            Ok(Some(command)) => return ParsedArgs { command: Ok(command), ..typed },
            Err(error) => mistake = mistake.or(Some(error)),
        }
    }
    if !typed_servers.is_empty() {
        args.options.dns_servers = typed_servers;
    }
    let command = mistake.map_or(environment, Err).map(|()| Command::Work(Box::new(args)));
    ParsedArgs { command, ..typed }
}

/// Parses a flag with its value. Returns a command if the flag is one that ends parsing.
fn read_word(
    word: &str,
    words: &mut impl Iterator<Item = Result<String, String>>,
    args: &mut Args,
    typed: &mut ParsedArgs,
    servers: &mut Vec<SocketAddr>,
) -> Result<Option<Command>, String> {
    let (flag, attached) = match word.split_once('=') {
        Some((flag, value)) => (flag, Some(value.to_owned())),
        None => (word, None),
    };
    let alone = match attached {
        Some(_) => Err(format!("{flag} takes no value")),
        None => Ok(()),
    };
    let mut value = || match attached.clone() {
        Some(value) => Ok(value),
        None => words
            .next()
            .unwrap_or_else(|| Err(format!("{flag} needs a value, as in {flag}={}", example(flag)))),
    };
    match flag {
        "--help" | "-h" => return alone.map(|()| Some(Command::Help)),
        "--version" | "-V" => return alone.map(|()| Some(Command::Version)),
        "--list" => args.list = alone.map(|()| true)?,
        "--assignment" => args.assignment_file = Some(value()?.into()),
        "--only" => args.only = read_only(&value()?)?,
        "--format" => typed.format = Some(read_format(flag, &value()?)?),
        "--dns-server" => servers.push(read_server(&value()?)?),
        "--kubeconfig" => {
            // An explicit kubeconfig overrides the cluster of the pod.
            args.options.api_server = None;
            args.options.kubeconfig = Some(value()?.into());
        }
        "--token-file" => args.options.token_file = Some(value()?.into()),
        "--ca-file" => args.options.ca_file = Some(value()?.into()),
        "--pods-at" => args.options.pods_at = Some(read_pods_at(&value()?)?),
        "--termination-log" => typed.termination_log = Some(value()?.into()),
        other => return Err(format!("{other:?} is unknown; --help lists all flags")),
    }
    Ok(None)
}

fn read_environment(
    environment: impl Fn(&str) -> Option<OsString>,
    args: &mut Args,
    format: &mut Option<Format>,
) -> Result<(), String> {
    args.assignment = variable(&environment, Assignment::ENV)?;
    if let Some(word) = variable(&environment, "NODEKEEPER_FORMAT")? {
        *format = Some(read_format("NODEKEEPER_FORMAT", &word)?);
    }
    args.options = Options::from_environment(environment)?;
    Ok(())
}

fn read_only(list: &str) -> Result<Vec<String>, String> {
    let names = split(list);
    let none = || format!("--only: {list:?} names no check; write --only={}", example("--only"));
    if names.is_empty() { Err(none()) } else { Ok(names) }
}

fn read_format(flag: &str, word: &str) -> Result<Format, String> {
    match word {
        "console" => Ok(Format::Console),
        "json" => Ok(Format::Json),
        other => Err(format!("{flag}: {other:?} is neither console nor json")),
    }
}

fn read_pods_at(word: &str) -> Result<SocketAddr, String> {
    word.parse().map_err(|_| format!("--pods-at: {word:?} is no address with a port; write 127.0.0.1:5353"))
}

fn example(flag: &str) -> &'static str {
    match flag {
        "--only" => "dns,api",
        "--format" => "json",
        "--dns-server" => "10.96.0.10:53",
        "--pods-at" => "127.0.0.1:5353",
        _ => "FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str], environment: &[(&str, &str)]) -> Result<Command, String> {
        let words = words.iter().map(OsString::from);
        let find = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        parse(words, find).command
    }

    fn work(words: &[&str], environment: &[(&str, &str)]) -> Args {
        match typed(words, environment) {
            Ok(Command::Work(args)) => *args,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn flags_override_the_environment() {
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("NODEKEEPER_TOKEN_FILE", "t1"),
            ("NODEKEEPER_CA_FILE", "c1"),
            ("NODEKEEPER_DNS_SERVERS", "10.0.0.1, 10.0.0.2:54"),
        ];
        let args = work(&["--token-file", "t2", "--only=dns,api"], &environment);
        assert_eq!(args.options.api_server, Some(("10.96.0.1".into(), 443)));
        assert_eq!(args.options.token_file, Some("t2".into()));
        assert_eq!(args.options.ca_file, Some("c1".into()));
        assert_eq!(
            args.options.dns_servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.1:53", "10.0.0.2:54"]
        );
        assert_eq!(args.only, ["dns", "api"]);
        let args = work(&["--dns-server", "[fd00::a]:53"], &environment);
        assert_eq!(args.options.dns_servers.len(), 1);
    }

    #[test]
    fn errors_name_the_fix() {
        for (words, hint) in [
            (&["--dns-sever", "x"][..], "--help"),
            (&["stray"], "--help"),
            (&["--format", "yaml"], "json"),
            (&["--pods-at", "10.0.0.1"], "127.0.0.1:5353"),
            (&["--dns-server", "dns.example"], "10.96.0.10"),
            (&["--only"], "--only=dns,api"),
            (&["--only="], "--only=dns,api"),
            (&["--only", " ,"], "--only=dns,api"),
            (&["--list=yes"], "--list takes no value"),
            (&["--help=me"], "--help takes no value"),
            (&["--version="], "--version takes no value"),
        ] {
            let said = typed(words, &[]).expect_err("it is a mistake");
            assert!(said.contains(hint), "{words:?}: {said}");
        }
        let port = [("KUBERNETES_SERVICE_HOST", "h"), ("KUBERNETES_SERVICE_PORT", "tcp://x")];
        assert!(typed(&[], &port).is_err_and(|said| said.contains("KUBERNETES_SERVICE_PORT")));
    }

    #[test]
    fn the_kubeconfig_is_found_as_kubectl_does() {
        let folder = tempfile::tempdir().expect("there is room");
        let home = folder.path().to_str().expect("it is text");
        let found = |environment: &[(&str, &str)]| work(&[], environment).options.kubeconfig;
        assert_eq!(found(&[("HOME", home)]), None, "there is none");
        std::fs::create_dir(folder.path().join(".kube")).expect("there is room");
        let file = folder.path().join(".kube/config");
        std::fs::write(&file, "").expect("there is room");
        assert_eq!(found(&[("HOME", home)]), Some(file.clone()));
        let several = format!("/nowhere:{}", file.display());
        assert_eq!(found(&[("KUBECONFIG", &several)]), Some(file));
        assert_eq!(found(&[("KUBECONFIG", "/nowhere"), ("HOME", home)]), Some("/nowhere".into()));
        let pod = [("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
        assert_eq!(work(&["--kubeconfig=x"], &pod).options.api_server, None, "it was named");
    }

    #[test]
    fn text_that_is_not_utf8_is_an_error() {
        use std::os::unix::ffi::OsStringExt as _;
        let wild = || OsString::from_vec(vec![b'x', 0xff]);
        for words in [vec![wild()], vec!["--ca-file".into(), wild()]] {
            let said = parse(words.into_iter(), |_| None).command.expect_err("it is a mistake");
            assert!(said.contains("not UTF-8"), "{said}");
        }
        for name in ["NODE_NAME", "NODEKEEPER_CA_FILE", "KUBERNETES_SERVICE_HOST", Assignment::ENV] {
            let typed = parse(std::iter::empty(), |asked| (asked == name).then(wild));
            let said = typed.command.expect_err("it is a mistake");
            assert!(said.contains(name) && said.contains("not UTF-8"), "{said}");
        }
    }

    #[test]
    fn output_flags_are_parsed_even_after_an_error() {
        let flags = ["--termination-log", "here", "--format=json"];
        let told = |words: &[&str], environment: fn(&str) -> Option<OsString>| {
            let typed = parse(words.iter().map(OsString::from), environment);
            assert!(typed.command.is_err(), "{typed:?}");
            (typed.termination_log, typed.format)
        };
        let expected = (Some("here".into()), Some(Format::Json));
        assert_eq!(told(&[&flags[..], &["--nonsense"]].concat(), |_| None), expected);
        assert_eq!(told(&[&["--nonsense"], &flags[..]].concat(), |_| None), expected);
        let wrong = |name: &str| (name == "NODEKEEPER_DNS_SERVERS").then(|| "what?".into());
        assert_eq!(told(&flags, wrong), expected);
    }
}

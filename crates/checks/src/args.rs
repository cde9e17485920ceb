//! What can be typed, and what the environment says where nothing was typed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use nodekeeper_checks::real::Options;
use nodekeeper_core::checks::Assignment;

/// What `--help` prints.
pub const HELP: &str = "\
Proves the network of the node it runs on: names resolve, the API server knows us, connections can be made, Services
have ready endpoints. All at once, in a second or so, and then it ends.

Usage: nodekeeper-worker [FLAGS]

What to do:
  --assignment FILE      what to check, as JSON [env: NODEKEEPER_ASSIGNMENT holds the JSON itself] [default: all checks]
  --only CHECKS          only these of them, as in dns,api; there are dns, api, tcp, services
  --list                 say what would be checked, and end

Where things are:
  --dns-server IP[:PORT] ask this DNS server, not those in /etc/resolv.conf; may be given several times
                         [env: NODEKEEPER_DNS_SERVERS, with commas]
  --token-file FILE      token for the API server [env: NODEKEEPER_TOKEN_FILE] [default: the pod's]
  --ca-file FILE         authority of the API server's certificate [env: NODEKEEPER_CA_FILE] [default: the pod's]
  KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT
                         the API server; every pod has them. Without them the checks that need a cluster are skipped
  NODE_NAME              the node, for the heading

What to say:
  --format FORMAT        console (one line a check) or json (the report) [default: console]
  --termination-log FILE where the report goes, in at most 4096 bytes
                         [default: /dev/termination-log, where there is one]
  --version, --help

Exit codes: 0 passed; 1 a check failed; 2 the configuration is wrong; 3 nothing can be said (no token, API server in
trouble, nothing was checked); 10 a bug.

Try it on any machine:  nodekeeper-worker --only dns
Ask a server of yours:  nodekeeper-worker --only dns --dns-server 10.96.0.10
";

/// How the result is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Console,
    /// For programs.
    Json,
}

/// What a worker is to do and how.
#[derive(Debug, Default)]
pub struct Args {
    /// A file with the assignment.
    pub assignment_file: Option<PathBuf>,
    /// The assignment itself, from the environment.
    pub assignment: Option<String>,
    /// Do only these checks; all if empty.
    pub only: Vec<String>,
    /// Only say what would be checked.
    pub list: bool,
    /// How to tell.
    pub format: Format,
    /// Where things are.
    pub options: Options,
    /// The node, if its name is known.
    pub node: Option<String>,
}

/// What was typed.
#[derive(Debug)]
pub enum Command {
    /// Check.
    Work(Box<Args>),
    /// Explain.
    Help,
    /// Say which release this is.
    Version,
}

/// Reads what was typed. Where the report goes is told apart, because a mistake is reported too.
pub fn parse(
    words: impl Iterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> (Option<PathBuf>, Result<Command, String>) {
    let mut termination_log = None;
    let command = parse_words(words, environment, &mut termination_log);
    (termination_log, command)
}

fn parse_words(
    mut words: impl Iterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
    termination_log: &mut Option<PathBuf>,
) -> Result<Command, String> {
    // What is wrong there is told last: a mistake in it must not hide where the report goes.
    let mut args = Args::default();
    let environment = read_environment(environment, &mut args);
    let mut typed_servers = Vec::new();
    while let Some(word) = words.next() {
        let (flag, attached) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let mut value = || {
            let next = attached.clone().or_else(|| words.next());
            next.ok_or_else(|| format!("{flag} needs a value, as in {flag}={}", example(flag)))
        };
        match flag {
            "--help" | "-h" => return Ok(Command::Help),
            "--version" | "-V" => return Ok(Command::Version),
            "--list" => args.list = true,
            "--assignment" => args.assignment_file = Some(value()?.into()),
            "--only" => args.only = split(&value()?),
            "--format" => args.format = read_format(&value()?)?,
            "--dns-server" => typed_servers.push(read_server(&value()?)?),
            "--token-file" => args.options.token_file = value()?.into(),
            "--ca-file" => args.options.ca_file = value()?.into(),
            "--termination-log" => *termination_log = Some(value()?.into()),
            other => return Err(format!("{other:?} is not understood; --help lists what is")),
        }
    }
    environment?;
    if !typed_servers.is_empty() {
        args.options.dns_servers = typed_servers;
    }
    Ok(Command::Work(Box::new(args)))
}

fn read_environment(environment: impl Fn(&str) -> Option<String>, args: &mut Args) -> Result<(), String> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    args.assignment = set(Assignment::ENV);
    args.node = set("NODE_NAME");
    let options = &mut args.options;
    for (name, file) in
        [("NODEKEEPER_TOKEN_FILE", &mut options.token_file), ("NODEKEEPER_CA_FILE", &mut options.ca_file)]
    {
        if let Some(path) = set(name) {
            *file = path.into();
        }
    }
    if let Some(host) = set("KUBERNETES_SERVICE_HOST") {
        let port = set("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".into());
        let port = port.parse().map_err(|_| format!("KUBERNETES_SERVICE_PORT: {port:?} is no port"))?;
        options.api_server = Some((host, port));
    }
    for server in split(&set("NODEKEEPER_DNS_SERVERS").unwrap_or_default()) {
        options.dns_servers.push(read_server(&server)?);
    }
    Ok(())
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn read_format(word: &str) -> Result<Format, String> {
    match word {
        "console" => Ok(Format::Console),
        "json" => Ok(Format::Json),
        other => Err(format!("--format: {other:?} is neither console nor json")),
    }
}

fn read_server(word: &str) -> Result<SocketAddr, String> {
    let alone = word.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
    alone.or_else(|_| word.parse()).map_err(|_| {
        format!("--dns-server: {word:?} is no address; write 10.96.0.10, 10.96.0.10:53 or [fd00::a]:53")
    })
}

fn example(flag: &str) -> &'static str {
    match flag {
        "--only" => "dns,api",
        "--format" => "json",
        "--dns-server" => "10.96.0.10:53",
        _ => "FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &[&str], environment: &[(&str, &str)]) -> Result<Command, String> {
        let words = words.iter().map(ToString::to_string);
        let find = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        parse(words, find).1
    }

    fn work(words: &[&str], environment: &[(&str, &str)]) -> Args {
        match typed(words, environment) {
            Ok(Command::Work(args)) => *args,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn what_is_typed_beats_the_environment() {
        let environment = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("NODEKEEPER_TOKEN_FILE", "t1"),
            ("NODEKEEPER_CA_FILE", "c1"),
            ("NODEKEEPER_DNS_SERVERS", "10.0.0.1, 10.0.0.2:54"),
        ];
        let args = work(&["--token-file", "t2", "--only=dns,api"], &environment);
        assert_eq!(args.options.api_server, Some(("10.96.0.1".into(), 443)));
        assert_eq!(args.options.token_file.to_str(), Some("t2"));
        assert_eq!(args.options.ca_file.to_str(), Some("c1"));
        assert_eq!(
            args.options.dns_servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.1:53", "10.0.0.2:54"]
        );
        assert_eq!(args.only, ["dns", "api"]);
        let args = work(&["--dns-server", "[fd00::a]:53"], &environment);
        assert_eq!(args.options.dns_servers.len(), 1);
    }

    #[test]
    fn mistakes_say_what_to_do() {
        for (words, hint) in [
            (&["--dns-sever", "x"][..], "--help"),
            (&["stray"], "--help"),
            (&["--format", "yaml"], "json"),
            (&["--dns-server", "dns.example"], "10.96.0.10"),
            (&["--only"], "--only=dns,api"),
        ] {
            let said = typed(words, &[]).expect_err("it is a mistake");
            assert!(said.contains(hint), "{words:?}: {said}");
        }
        let port = [("KUBERNETES_SERVICE_HOST", "h"), ("KUBERNETES_SERVICE_PORT", "tcp://x")];
        assert!(typed(&[], &port).is_err_and(|said| said.contains("KUBERNETES_SERVICE_PORT")));
    }

    #[test]
    fn the_place_of_the_report_is_known_even_after_a_mistake() {
        let words = ["--termination-log", "here", "--nonsense"].map(str::to_owned);
        let (place, command) = parse(words.into_iter(), |_| None);
        assert_eq!((place, command.is_err()), (Some("here".into()), true));
        let words = ["--termination-log", "here"].map(str::to_owned);
        let wrong = |name: &str| (name == "NODEKEEPER_DNS_SERVERS").then(|| "what?".to_owned());
        let (place, command) = parse(words.into_iter(), wrong);
        assert_eq!((place, command.is_err()), (Some("here".into()), true));
    }
}

//! `nodekeeper check`: runs checks by hand, in the pod of an agent or on any machine.

#![expect(clippy::disallowed_methods, reason = "this is where the environment is read")]

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use nodekeeper_checks::real::{Options, Real, cluster_domain};
use nodekeeper_checks::{console, list, only};
use nodekeeper_core::checks::{Assignment, Checks, Dns};

use crate::args::CheckNode;

/// The exit code of an invalid command line.
const INVALID: u8 = 2;
/// What the worker takes besides its checks.
const SPARE_SECONDS: u32 = 5;

/// Runs the checks and prints a line for each.
pub fn run(flags: &CheckNode) -> ExitCode {
    let (assignment, options) = match assignment(flags).and_then(|work| Ok((work, options(flags)?))) {
        Ok(work) => work,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(INVALID);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = runtime.block_on(async { nodekeeper_checks::run(&Real::new(&options), &assignment).await });
    let colours = std::env::var_os("NO_COLOR").is_none() && std::io::stdout().is_terminal();
    print!("{}", console::render(&report, flags.node_name.as_deref(), colours));
    ExitCode::from(report.exit_code())
}

/// The checks to run. All that need no settings are known, whether or not a worker runs them by default.
fn assignment(flags: &CheckNode) -> Result<Assignment, String> {
    let mut checks = Checks::default().resolve();
    let is_wanted = |check: &str| flags.only.iter().any(|name| name == check);
    checks.clock = is_wanted("clock").then(Default::default);
    checks.mtu = is_wanted("mtu").then(Default::default);
    if is_wanted("http") {
        return Err(
            "--only http: the check has no default; `nodekeeper-worker --assignment FILE` runs it".into()
        );
    }
    if !flags.names.is_empty() {
        if !flags.only.is_empty() && !is_wanted("dns") {
            return Err(format!("{}: names are for the check dns; add it to --only", flags.names.join(" ")));
        }
        checks.dns = Some(Dns { names: flags.names.clone(), ..Dns::default() });
    }
    let mut assignment = Assignment {
        check_timeout_seconds: flags.timeout,
        deadline_seconds: flags.timeout + SPARE_SECONDS,
        checks,
        ..Assignment::default()
    };
    if !flags.only.is_empty() {
        only(&mut assignment, &flags.only).map_err(|error| error.to_string())?;
    }
    list(&assignment, &cluster_domain()).map_err(|error| error.to_string())?;
    Ok(assignment)
}

fn options(flags: &CheckNode) -> Result<Options, String> {
    let mut options = Options::from_environment(|name| std::env::var_os(name))?;
    if flags.kubeconfig.is_some() && options.api_server.is_none() {
        options.kubeconfig.clone_from(&flags.kubeconfig);
    }
    if !flags.dns_servers.is_empty() {
        options.dns_servers = flags.dns_servers.iter().map(|ip| SocketAddr::new(*ip, 53)).collect();
    }
    Ok(options)
}

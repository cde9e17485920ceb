//! What the worker does, from its arguments to its exit code.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use nodekeeper_checks::real::{Options, Real, cluster_domain};
use nodekeeper_checks::{Need, Net as _, Progress, Target, list, misconfigured, only, read_assignment};
use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::{MESSAGE_LIMIT, Report, reason};

use crate::args::{Args, Command, Format, HELP, ParsedArgs};
use crate::{console, log};

/// Where the kubelet expects the last words of a container.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// A bug, or a report that could not be left: nobody may take it for a verdict.
pub const UNEXPECTED: u8 = 10;

/// Does what was typed; the exit code.
pub fn run(typed: ParsedArgs, colours: bool) -> u8 {
    let ParsedArgs { termination_log, format, command } = typed;
    let left =
        termination_log.or_else(|| Path::new(TERMINATION_LOG).exists().then(|| TERMINATION_LOG.into()));
    let args = match command {
        Ok(Command::Help) => return say(HELP),
        Ok(Command::Version) => return say(&version()),
        Ok(Command::Work(args)) => Ok(*args),
        Err(mistake) => Err(Box::new(misconfigured(WorkerIdentity::default(), &mistake))),
    };
    let work = args.and_then(|args| read(&args).map(|assignment| (args, assignment)));
    if let Ok((args, assignment)) = &work
        && args.list
    {
        return enumerate(assignment, args);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        eprint("cannot start: the system gives no event queue");
        return UNEXPECTED;
    };
    let (args, assignment) = match work {
        Ok(work) => work,
        Err(report) => {
            if format == Some(Format::Json) {
                let net = runtime.block_on(async { Real::new(&Options::default()) });
                say(&log::verdict(&report, None, net.clock()));
            }
            return write_report(&report, left.as_deref(), None);
        }
    };
    // Who works for a node is read by programs first; by hand it is the other way round.
    let by_hand = assignment.identity == WorkerIdentity::default();
    let format = format.unwrap_or(if by_hand { Format::Console } else { Format::Json });
    let report = runtime.block_on(work_and_tell(&args, &assignment, format, colours));
    write_report(&report, left.as_deref(), assignment.report_bytes)
}

async fn work_and_tell(args: &Args, assignment: &Assignment, format: Format, colours: bool) -> Report {
    let net = Real::new(&args.options);
    let node = args.node();
    match format {
        Format::Json => {
            let tell = |progress: Progress<'_>| {
                say(&log::step(&progress, net.clock()));
            };
            let report = nodekeeper_checks::run_and_tell(&net, assignment, &tell).await;
            say(&log::verdict(&report, node, net.clock()));
            report
        }
        Format::Console => {
            let report = nodekeeper_checks::run(&net, assignment).await;
            say(&console::render(&report, node, colours && io::stdout().is_terminal()));
            report
        }
    }
}

fn read(args: &Args) -> Result<Assignment, Box<Report>> {
    let mut assignment = match (&args.assignment_file, &args.assignment) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file).map_err(|e| {
                let told = format!("--assignment {}: cannot read it: {e}", file.display());
                Box::new(misconfigured(WorkerIdentity::default(), &told))
            })?;
            read_assignment(&text)?
        }
        (None, Some(text)) => read_assignment(text)?,
        (None, None) => Assignment::default(),
    };
    let identity = assignment.identity.clone();
    let wrong = |error| Box::new(misconfigured(identity, &error));
    let domain = cluster_domain();
    if args.only.is_empty() {
        list(&assignment, &domain).map(drop)
    } else {
        only(&mut assignment, &args.only).and_then(|()| list(&assignment, &domain).map(drop))
    }
    .map_err(wrong)?;
    Ok(assignment)
}

fn enumerate(assignment: &Assignment, args: &Args) -> u8 {
    let targets = list(assignment, &cluster_domain()).unwrap_or_default();
    let api_server = args.options.api_server.as_ref();
    let line = |target: &Target| {
        let lacks =
            target.need() != Need::Nothing && api_server.is_none() && args.options.kubeconfig.is_none();
        let why = if lacks { "  (needs a cluster)" } else { "" };
        format!("{:8}  {}{why}\n", target.name(), target.describe(api_server))
    };
    say(&targets.iter().map(line).collect::<String>())
}

/// Leaves the report for the kubelet, and says on the side what is wrong with the worker itself.
fn write_report(report: &Report, log: Option<&Path>, bytes: Option<u32>) -> u8 {
    let code = report.exit_code();
    let mistake = report.checks.iter().find(|check| check.reason == reason::BAD_CONFIGURATION);
    if code >= 2 {
        eprint(&mistake.map_or_else(|| report.summary(), |check| check.message.clone()));
    }
    let limit = bytes.map_or(MESSAGE_LIMIT, |bytes| MESSAGE_LIMIT.min(bytes as usize));
    if let Some(log) = log
        && let Err(error) = std::fs::write(log, report.to_message(limit))
    {
        eprint(&format!("cannot leave the report in {}: {error}", log.display()));
        return UNEXPECTED;
    }
    code
}

/// Prints; a reader that went away changes nothing.
fn say(text: &str) -> u8 {
    let _ = io::stdout().write_all(text.as_bytes());
    0
}

/// Says what is wrong with the worker; nothing that others wrote may move a cursor.
pub fn eprint(text: &str) {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let _ = writeln!(io::stderr(), "nodekeeper-worker: {line}");
}

/// Commit and date are there in what a release builds.
fn version() -> String {
    let commit = option_env!("NODEKEEPER_COMMIT").unwrap_or("unknown");
    let date = option_env!("NODEKEEPER_DATE").unwrap_or("unknown");
    format!("nodekeeper-worker {} ({commit}, {date})\n", env!("CARGO_PKG_VERSION"))
}

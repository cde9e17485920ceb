//! What the worker does, from its arguments to its exit code.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use nodekeeper_checks::real::Real;
use nodekeeper_checks::{list, misconfigured, only, read_assignment};
use nodekeeper_core::checks::{Assignment, Subject};
use nodekeeper_core::report::{MESSAGE_LIMIT, Report, reason};

use crate::args::{Args, Command, Format, HELP, Typed};
use crate::console;

/// Where the kubelet expects the last words of a container.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// A bug, or a report that could not be left: nobody may take it for a verdict.
pub const UNEXPECTED: u8 = 10;

/// Does what was typed; the exit code.
pub fn obey(typed: Typed, colours: bool) -> u8 {
    let Typed { termination_log, format, command } = typed;
    let log = termination_log.or_else(|| Path::new(TERMINATION_LOG).exists().then(|| TERMINATION_LOG.into()));
    let refuse = |report: &Report| {
        if format == Format::Json {
            say_json(report);
        }
        leave(report, log.as_deref())
    };
    let args = match command {
        Ok(Command::Help) => return say(HELP),
        Ok(Command::Version) => return say(&version()),
        Ok(Command::Work(args)) => *args,
        Err(mistake) => return refuse(&misconfigured(Subject::default(), &mistake)),
    };
    let assignment = match read(&args) {
        Ok(assignment) => assignment,
        Err(report) => return refuse(&report),
    };
    if args.list {
        return enumerate(&assignment, &args);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        complain("cannot start: the system gives no event queue");
        return UNEXPECTED;
    };
    let report =
        runtime.block_on(async { nodekeeper_checks::run(&Real::new(&args.options), &assignment).await });
    let code = leave(&report, log.as_deref());
    match format {
        Format::Json => say_json(&report),
        Format::Console => {
            let colours = colours && io::stdout().is_terminal();
            say(&console::render(&report, args.node.as_deref(), colours))
        }
    };
    code
}

fn read(args: &Args) -> Result<Assignment, Box<Report>> {
    let mut assignment = match (&args.assignment_file, &args.assignment) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file).map_err(|e| {
                let told = format!("--assignment {}: cannot read it: {e}", file.display());
                Box::new(misconfigured(Subject::default(), &told))
            })?;
            read_assignment(&text)?
        }
        (None, Some(text)) => read_assignment(text)?,
        (None, None) => Assignment::default(),
    };
    let subject = assignment.subject.clone();
    let wrong = |error| Box::new(misconfigured(subject, &error));
    if args.only.is_empty() {
        list(&assignment).map(drop)
    } else {
        only(&mut assignment, &args.only).and_then(|()| list(&assignment).map(drop))
    }
    .map_err(wrong)?;
    Ok(assignment)
}

fn enumerate(assignment: &Assignment, args: &Args) -> u8 {
    let targets = list(assignment).unwrap_or_default();
    let line = |target: &nodekeeper_checks::Target| {
        let lacks_cluster = target.needs_cluster() && args.options.api_server.is_none();
        let why = if lacks_cluster { "  (cannot be done: not inside a cluster)" } else { "" };
        let described = target.describe(args.options.api_server.as_ref());
        format!("{:8}  {described}{why}\n", target.name())
    };
    say(&targets.iter().map(line).collect::<String>())
}

/// Leaves the report for the kubelet, and says on the side what is wrong with the worker itself.
fn leave(report: &Report, log: Option<&Path>) -> u8 {
    let code = report.exit_code();
    let mistake = report.checks.iter().find(|check| check.reason == reason::BAD_CONFIGURATION);
    if code >= 2 {
        complain(&mistake.map_or_else(|| report.summary(), |check| check.message.clone()));
    }
    if let Some(log) = log
        && let Err(error) = std::fs::write(log, report.to_message(MESSAGE_LIMIT))
    {
        complain(&format!("cannot leave the report in {}: {error}", log.display()));
        return UNEXPECTED;
    }
    code
}

fn say_json(report: &Report) -> u8 {
    say(&format!("{}\n", serde_json::to_string(report).unwrap_or_default()))
}

/// Prints; a reader that went away changes nothing.
fn say(text: &str) -> u8 {
    let _ = io::stdout().write_all(text.as_bytes());
    0
}

/// Says what is wrong with the worker; nothing that others wrote may move a cursor.
pub fn complain(text: &str) {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let _ = writeln!(io::stderr(), "nodekeeper-worker: {line}");
}

/// Commit and date are there in what a release builds.
fn version() -> String {
    let commit = option_env!("NODEKEEPER_COMMIT").unwrap_or("unknown commit");
    let date = option_env!("NODEKEEPER_DATE").unwrap_or("unknown date");
    format!("nodekeeper-worker {} ({commit}, {date})\n", env!("CARGO_PKG_VERSION"))
}

//! Runs the test tiers, shows and logs their output, and counts results.
//!
//! Children stay in the process group of xtask, so that Ctrl-C reaches them too.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::summary::{self, Counts, Reader, Row};
use crate::tiers::{BUILD, Step, TIERS, Tier, Which};
use crate::{repo, rules};

/// How long output is read from a pipe that a grandchild keeps open after the child has exited.
const LINGER: Duration = Duration::from_secs(2);

/// The exit code of a program that cannot run because the machine lacks a dependency.
const UNAVAILABLE: i32 = 3;

/// What cargo-deny checks: all dependencies, the order of our crates, and the tree of `core`. As in the Makefile.
pub const DENY: [&str; 3] = [
    "check bans licenses sources",
    "--exclude-dev --config crates/deny.toml check bans",
    "--exclude-dev --config crates/core/deny.toml --manifest-path crates/core/Cargo.toml check bans",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ran,
    Failed,
    Unavailable,
}

struct Runner<'a> {
    root: &'a Path,
    logs: &'a Path,
    log: File,
    /// The name of a background tier: it prefixes each output line, and the tier runs at low priority.
    background: Option<&'a str>,
}

impl<'a> Runner<'a> {
    fn new(root: &'a Path, logs: &'a Path, tier: &'a Tier) -> Result<Self, String> {
        let background = tier.background.then_some(tier.name);
        Ok(Self { root, logs, log: create_log(logs, tier)?, background })
    }
}

fn create_log(logs: &Path, tier: &Tier) -> Result<File, String> {
    let path = logs.join(format!("{}.log", tier.name.replace(' ', "-")));
    File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Runs all tiers. Returns false if a test failed.
pub fn all(root: &Path) -> Result<bool, String> {
    let logs = target_folder().join("test-logs");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let mut runner = Runner::new(root, &logs, &BUILD)?;
    let mut rows = Vec::new();
    if runner.tier(&BUILD, &mut rows)? == State::Ran {
        std::thread::scope(|scope| {
            let spawn = |tier| {
                let logs = &logs;
                scope.spawn(move || {
                    let mut rows = Vec::new();
                    Runner::new(root, logs, tier)?.tier(tier, &mut rows).map(|_| rows)
                })
            };
            let background: Vec<_> = TIERS.iter().filter(|tier| tier.background).map(spawn).collect();
            run_in_order(&mut runner, &mut rows)?;
            for tier in background {
                rows.extend(tier.join().map_err(|_| "a tier panicked".to_owned())??);
            }
            Ok::<(), String>(())
        })?;
    }
    Ok(report(&mut rows, &logs))
}

/// Runs all tiers that are not background tiers.
fn run_in_order(runner: &mut Runner<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let mut states: Vec<(&str, State)> = Vec::new();
    for tier in TIERS.iter().filter(|tier| !tier.background) {
        let need = tier
            .needs
            .and_then(|need| states.iter().find(|(name, state)| *name == need && *state != State::Ran));
        let state = match need {
            Some((need, state)) => not_run(tier, need, *state, rows),
            None => runner.tier(tier, rows)?,
        };
        states.push((tier.name, state));
    }
    Ok(())
}

fn report(rows: &mut [Row], logs: &Path) -> bool {
    let skipped = summary::total(rows).skipped;
    if skipped > 0 && std::env::var_os("CI").is_some_and(|value| value == "true") {
        announce(&format!("CI=true: skips are not allowed, so {skipped} skipped tests count as failed"));
        summary::strict(rows);
    }
    println!("\nlogs: {}\n", logs.display());
    print!("{}", summary::table(rows));
    summary::total(rows).failed == 0
}

fn not_run(tier: &Tier, need: &str, state: State, rows: &mut Vec<Row>) -> State {
    let unavailable = state == State::Unavailable;
    let verb = if unavailable { "SKIPPED" } else { "FAILED" };
    announce(&format!(
        "{verb}: {}, because it needs {need} (its output says how to install what is missing)",
        tier.name
    ));
    let counts = if unavailable { Counts::SKIPPED } else { Counts::FAILED };
    rows.push(Row { name: tier.name, counts, took: Duration::ZERO });
    state
}

fn announce(text: &str) {
    println!("\n!!! {text}\n");
}

/// The target folder in which cargo built this program.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().ok();
    own.and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf())).unwrap_or_else(|| PathBuf::from("target"))
}

impl Runner<'_> {
    fn tier(&mut self, tier: &Tier, rows: &mut Vec<Row>) -> Result<State, String> {
        let note = if tier.background { ", in the background" } else { "" };
        println!("\n=== {}: {} (usually {}{note})", tier.name, tier.what, tier.usually);
        self.log = create_log(self.logs, tier)?;
        let start = Instant::now();
        let mut counts = Counts::default();
        let mut unavailable = false;
        for step in tier.steps {
            let (step_counts, state) = self.step(step)?;
            counts += step_counts;
            unavailable |= state == State::Unavailable;
        }
        if counts == Counts::default() {
            announce(&format!("FAILED: {}: no test ran", tier.name));
            counts = Counts::FAILED;
        }
        if unavailable {
            announce(&format!(
                "SKIPPED: {}: this machine lacks a dependency; the lines above say which, and how to install it",
                tier.name
            ));
        }
        rows.push(Row { name: tier.name, counts, took: start.elapsed() });
        Ok(match (counts.failed, unavailable) {
            (0, false) => State::Ran,
            (0, true) => State::Unavailable,
            _ => State::Failed,
        })
    }

    fn step(&mut self, step: &Step) -> Result<(Counts, State), String> {
        match step {
            Step::Rules => self.rules().map(|counts| (counts, State::Ran)),
            Step::Cargo(arguments) => Ok(self.run(cargo(arguments))),
            Step::Binary(name) => Ok(self.run(repo::command(target_folder().join("debug").join(name)))),
            Step::Deny => Ok(self.deny()),
            Step::Tests(member, which) => {
                let names = match which {
                    Which::Named(names) => names.iter().map(|name| (*name).to_owned()).collect(),
                    Which::WithThreads(name, _) => vec![(*name).to_owned()],
                    Which::All => test_names(&self.root.join(member)),
                };
                if names.is_empty() {
                    self.print(&format!("no test files in {member}/tests"));
                    return Ok((Counts::default(), State::Failed));
                }
                let mut command = self.cargo_test();
                for name in &names {
                    command.args(["--test", name]);
                }
                command.args(["--", "--show-output"]);
                if let Which::WithThreads(_, threads) = which {
                    command.args(["--test-threads", threads]);
                }
                Ok(self.run(command))
            }
        }
    }

    fn cargo_test(&self) -> Command {
        let test = ["test", "--workspace", "--no-fail-fast"];
        if self.background.is_none() {
            return cargo(&test);
        }
        let mut command = repo::command("nice");
        command.args(["-n", "19", "cargo"]).args(test);
        command
    }

    /// Each repository rule counts as one test.
    fn rules(&mut self) -> Result<Counts, String> {
        self.print("> the repository rules");
        let mut counts = Counts::default();
        for (rule, violations) in rules::check_all(&repo::load(self.root)?) {
            for violation in &violations {
                self.print(&violation.line_for(rule));
            }
            counts += if violations.is_empty() { Counts::PASSED } else { Counts::FAILED };
        }
        Ok(counts)
    }

    fn deny(&mut self) -> (Counts, State) {
        let tools = self.root.join(".tools");
        let own = tools.join("bin/cargo-deny");
        let works = |program: &Path| {
            Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
        };
        let installed = [PathBuf::from("cargo-deny"), own.clone()].into_iter().find(|program| works(program));
        if installed.is_none() {
            // Without optimisation it takes half as long to build, and a second to run.
            let mut install = cargo(&["install", "--debug", "--quiet", "--locked", "cargo-deny", "--root"]);
            install.arg(&tools).env("CARGO_PROFILE_DEV_DEBUG", "0");
            if self.run(install).0.failed > 0 {
                self.print(
                    "cargo-deny cannot be installed here: it needs the crate registry, and a C compiler",
                );
                return (Counts::SKIPPED, State::Unavailable);
            }
        }
        let program = installed.unwrap_or(own);
        let (mut counts, mut state) = (Counts::default(), State::Ran);
        for arguments in DENY {
            let mut check = repo::command(&program);
            check.args(arguments.split(' '));
            let (own_counts, own_state) = self.run(check);
            counts += own_counts;
            state = if state == State::Ran { own_state } else { state };
        }
        (counts, state)
    }

    fn run(&mut self, mut command: Command) -> (Counts, State) {
        command.current_dir(self.root).env("CARGO_TERM_COLOR", "never");
        // Injected faults panic hundreds of times: their backtraces would hide failures and take minutes.
        command.env("RUST_BACKTRACE", "0");
        self.print(&format!("> {}", shown(&command)));
        let (child, lines) = match start(command) {
            Ok(started) => started,
            Err(error) => {
                self.print(&format!("did not start: {error}"));
                return (Counts::FAILED, State::Failed);
            }
        };
        let mut reader = Reader::default();
        let code = read_output(child, &lines, |line| {
            if reader.line(line) {
                self.print(line);
            } else {
                self.write_log(line);
            }
        });
        if code == Some(UNAVAILABLE) {
            return (Counts::SKIPPED, State::Unavailable);
        }
        let counts = reader.finish(code == Some(0));
        (counts, if counts.failed == 0 { State::Ran } else { State::Failed })
    }

    fn print(&mut self, line: &str) {
        match self.background {
            Some(name) => println!("{name} | {line}"),
            None => println!("{line}"),
        }
        self.write_log(line);
    }

    fn write_log(&mut self, line: &str) {
        // A log that cannot be written must not fail a test.
        let _ = writeln!(self.log, "{line}");
    }
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = repo::command("cargo");
    command.args(arguments);
    command
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The test targets in a member's `tests/` folder, sorted by name.
fn test_names(member: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(member.join("tests")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| {
            let path = entry.path();
            path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").is_file()
        })
        .filter_map(|entry| Some(entry.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}

/// Starts a command with stdout and stderr merged into one stream of lines, in the order written.
fn start(mut command: Command) -> io::Result<(Child, Receiver<String>)> {
    let (output, input) = io::pipe()?;
    let child =
        command.stdin(std::process::Stdio::null()).stdout(input.try_clone()?).stderr(input).spawn()?;
    // The command holds the write ends of the pipe; the reader would never see its end otherwise.
    drop(command);
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { break };
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    Ok((child, lines))
}

/// Passes each line to `each` until the command exits, and returns its exit code if it has one.
fn read_output(mut child: Child, lines: &Receiver<String>, mut each: impl FnMut(&str)) -> Option<i32> {
    let mut exited_at = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    let since: &Instant = exited_at.get_or_insert_with(Instant::now);
                    if since.elapsed() > LINGER {
                        break;
                    }
                }
            }
        }
    }
    child.wait().ok()?.code()
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;

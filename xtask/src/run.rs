//! Runs the lanes of test tiers, shows and logs their output, and counts results.
//!
//! Children stay in the process group of xtask, so that Ctrl-C reaches them too.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::summary::{self, Counts, Reader, Row};
use crate::tiers::{BUILD, Lane, Step, TIERS, Tier, Which};
use crate::{repo, rules};

/// How long output is read from a pipe that a grandchild keeps open after the child has exited.
const LINGER: Duration = Duration::from_secs(2);

/// The exit code of a program that cannot run because the machine lacks a dependency.
pub const UNAVAILABLE: u8 = 3;

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

/// The tiers that have ended. Tiers of other lanes wait for them.
#[derive(Default)]
struct Board {
    ended: Mutex<Vec<(&'static str, State)>>,
    changed: Condvar,
}

impl Board {
    fn set(&self, name: &'static str, state: State) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push((name, state));
        self.changed.notify_all();
    }

    fn get(&self, name: &str) -> Option<State> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.iter().find(|(ended, _)| *ended == name).map(|(_, state)| *state)
    }

    /// Waits for each needed tier, and returns the first that did not succeed.
    fn wait(&self, tier: &Tier) -> Option<(&'static str, State)> {
        for need in tier.needs {
            if self.get(need).is_none() {
                println!("\n... {} waits for {need}", tier.name);
            }
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match ended.iter().find(|(name, _)| name == need) {
                    Some((_, State::Ran)) => break,
                    Some(failed) => return Some(*failed),
                    None => ended = self.changed.wait(ended).unwrap_or_else(PoisonError::into_inner),
                }
            }
        }
        None
    }
}

struct Runner<'a> {
    root: &'a Path,
    log: File,
    tier: &'static Tier,
}

/// Runs all tiers. Returns false if a test failed.
pub fn all(root: &Path) -> Result<bool, String> {
    let logs = target_folder().join("test-logs");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let mut rows = run_lanes(TIERS, root, &logs);
    rows.sort_by_key(|row| TIERS.iter().position(|tier| tier.name == row.name));
    Ok(report(&mut rows, &logs))
}

fn run_lanes(tiers: &'static [Tier], root: &Path, logs: &Path) -> Vec<Row> {
    let board = &Board::default();
    std::thread::scope(|scope| {
        let lanes = Lane::ALL.map(|lane| scope.spawn(move || run_lane(tiers, lane, root, logs, board)));
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane catches panics")).collect()
    })
}

/// Runs the tiers of a lane. Every tier ends up on the board, whatever happens: another lane may wait for it.
fn run_lane(tiers: &'static [Tier], lane: Lane, root: &Path, logs: &Path, board: &Board) -> Vec<Row> {
    let mut rows = Vec::new();
    for tier in tiers.iter().filter(|tier| tier.lane == lane) {
        let need = board.wait(tier);
        if board.get(BUILD).is_some_and(|state| state != State::Ran) {
            break;
        }
        let start = Instant::now();
        let run = || Runner::new(root, logs, tier)?.run_tier();
        let ran = match need {
            Some((need, state)) => Ok(not_run(tier, need, state)),
            None => catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it panicked".to_owned())),
        };
        let (counts, state) = ran.unwrap_or_else(|error| {
            announce(&format!("FAILED: {}: {error}", tier.name));
            (Counts::FAILED, State::Failed)
        });
        rows.push(Row { name: tier.name, counts, took: start.elapsed() });
        board.set(tier.name, state);
    }
    rows
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

fn not_run(tier: &Tier, need: &str, state: State) -> (Counts, State) {
    let unavailable = state == State::Unavailable;
    let verb = if unavailable { "SKIPPED" } else { "FAILED" };
    announce(&format!(
        "{verb}: {}, because it needs {need} (its output says how to install what is missing)",
        tier.name
    ));
    (if unavailable { Counts::SKIPPED } else { Counts::FAILED }, state)
}

fn announce(text: &str) {
    println!("\n!!! {text}\n");
}

/// The target folder in which cargo built this program.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().ok();
    own.and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf())).unwrap_or_else(|| PathBuf::from("target"))
}

impl<'a> Runner<'a> {
    fn new(root: &'a Path, logs: &Path, tier: &'static Tier) -> Result<Self, String> {
        let path = logs.join(format!("{}.log", tier.name.replace(' ', "-")));
        let log = File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(Self { root, log, tier })
    }

    fn run_tier(&mut self) -> Result<(Counts, State), String> {
        let tier = self.tier;
        let note = if tier.lane == Lane::Tests { "" } else { ", in the background" };
        println!("\n=== {}: {} (usually {}{note})", tier.name, tier.what, tier.usually);
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
        let state = match (counts.failed, unavailable) {
            (0, false) => State::Ran,
            (0, true) => State::Unavailable,
            _ => State::Failed,
        };
        Ok((counts, state))
    }

    fn step(&mut self, step: &Step) -> Result<(Counts, State), String> {
        match step {
            Step::Rules => self.rules().map(|counts| (counts, State::Ran)),
            Step::Cargo(arguments) => Ok(self.run(self.cargo(arguments))),
            Step::Binary(name) => Ok(self.run(self.command(target_folder().join("debug").join(name)))),
            Step::Prepare(set) => {
                // Not `current_exe`: the build may replace this program meanwhile.
                let mut command = self.command(format!("/proc/{}/exe", std::process::id()));
                command.args(["prepare", set]);
                Ok(self.run(command))
            }
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
                let mut command = self.cargo(&["test", "--workspace", "--no-fail-fast"]);
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

    /// A program with the priority of the lane.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = repo::command("nice");
        command.args(["-n", &self.tier.lane.niceness().to_string()]).arg(program);
        command
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
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
            let mut install =
                self.cargo(&["install", "--debug", "--quiet", "--locked", "cargo-deny", "--root"]);
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
            let mut check = self.command(&program);
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
        if code == Some(UNAVAILABLE.into()) {
            return (Counts::SKIPPED, State::Unavailable);
        }
        let counts = reader.finish(code == Some(0));
        (counts, if counts.failed == 0 { State::Ran } else { State::Failed })
    }

    fn print(&mut self, line: &str) {
        match self.tier.lane {
            Lane::Tests => println!("{line}"),
            Lane::Prepare | Lane::Seeds => println!("{} | {line}", self.tier.name),
        }
        self.write_log(line);
    }

    fn write_log(&mut self, line: &str) {
        // A log that cannot be written must not fail a test.
        let _ = writeln!(self.log, "{line}");
    }
}

fn shown(command: &Command) -> String {
    // Without `nice -n x`.
    let words = command.get_args().skip(2);
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

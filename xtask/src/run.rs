//! Runs the tiers: shows their output, keeps it in a log, counts.
//!
//! Children stay in our process group, so that Ctrl-C reaches them as it reaches us.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::summary::{self, Counts, Reader, Row};
use crate::tiers::{BUILD, Step, TIERS, Tier, Which};
use crate::{repo, rules};

/// How long to listen to a pipe that a stray grandchild keeps open after the child has gone.
const LINGER: Duration = Duration::from_secs(2);

/// What a program says with its exit code when the machine lacks something.
const UNAVAILABLE: i32 = 3;

/// How a tier went.
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
    /// Before each line, where two run at once; and then it yields to the other.
    beside: Option<&'a str>,
}

impl<'a> Runner<'a> {
    fn new(root: &'a Path, logs: &'a Path, tier: &'a Tier) -> Result<Self, String> {
        let beside = tier.beside.then_some(tier.name);
        Ok(Self { root, logs, log: log(logs, tier)?, beside })
    }
}

/// A new log for a tier.
fn log(logs: &Path, tier: &Tier) -> Result<File, String> {
    let path = logs.join(format!("{}.log", tier.name.replace(' ', "-")));
    File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Runs everything; false if anything failed.
pub fn all(root: &Path) -> Result<bool, String> {
    let logs = target_folder().join("test-logs");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let mut runner = Runner::new(root, &logs, &BUILD)?;
    let mut rows = Vec::new();
    if runner.tier(&BUILD, &mut rows)? == State::Ran {
        std::thread::scope(|scope| {
            let aside = |tier| {
                let logs = &logs;
                scope.spawn(move || {
                    let mut rows = Vec::new();
                    Runner::new(root, logs, tier)?.tier(tier, &mut rows).map(|_| rows)
                })
            };
            let besides: Vec<_> = TIERS.iter().filter(|tier| tier.beside).map(aside).collect();
            one_by_one(&mut runner, &mut rows)?;
            for beside in besides {
                rows.extend(beside.join().map_err(|_| "a tier panicked".to_owned())??);
            }
            Ok::<(), String>(())
        })?;
    }
    Ok(report(&mut rows, &logs))
}

/// All tiers but those that run beside them.
fn one_by_one(runner: &mut Runner<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let mut states: Vec<(&str, State)> = Vec::new();
    for tier in TIERS.iter().filter(|tier| !tier.beside) {
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
        shout(&format!("CI=true: nothing may be skipped, so {skipped} skipped count as failed"));
        summary::strict(rows);
    }
    println!("\nlogs: {}\n", logs.display());
    print!("{}", summary::table(rows));
    summary::total(rows).failed == 0
}

fn not_run(tier: &Tier, need: &str, state: State, rows: &mut Vec<Row>) -> State {
    let unavailable = state == State::Unavailable;
    let verb = if unavailable { "SKIPPED" } else { "FAILED" };
    shout(&format!("{verb}: {}, because it needs {need} (see there for how to get it)", tier.name));
    let counts = if unavailable { Counts::SKIPPED } else { Counts::FAILED };
    rows.push(Row { name: tier.name, counts, took: Duration::ZERO });
    state
}

fn shout(text: &str) {
    println!("\n!!! {text}\n");
}

/// Where cargo put this very program's profile folder.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().ok();
    own.and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf())).unwrap_or_else(|| PathBuf::from("target"))
}

impl Runner<'_> {
    fn tier(&mut self, tier: &Tier, rows: &mut Vec<Row>) -> Result<State, String> {
        let beside = if tier.beside { ", beside what follows" } else { "" };
        println!("\n=== {}: {} (usually {}{beside})", tier.name, tier.what, tier.usually);
        self.log = log(self.logs, tier)?;
        let start = Instant::now();
        let mut counts = Counts::default();
        let mut unavailable = false;
        for step in tier.steps {
            let (step_counts, state) = self.step(step)?;
            counts += step_counts;
            unavailable |= state == State::Unavailable;
        }
        if counts == Counts::default() {
            shout(&format!("FAILED: {}: not one test ran", tier.name));
            counts = Counts::FAILED;
        }
        if unavailable {
            shout(&format!(
                "SKIPPED: {}: this machine lacks something; the lines above say what, and how to get it",
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
                    Which::Waiting(name, _) => vec![(*name).to_owned()],
                    Which::All => test_names(&self.root.join(member)),
                };
                if names.is_empty() {
                    self.say(&format!("no test files in {member}/tests"));
                    return Ok((Counts::default(), State::Failed));
                }
                let mut command = self.cargo_test();
                for name in &names {
                    command.args(["--test", name]);
                }
                command.args(["--", "--show-output"]);
                if let Which::Waiting(_, threads) = which {
                    command.args(["--test-threads", threads]);
                }
                Ok(self.run(command))
            }
        }
    }

    fn cargo_test(&self) -> Command {
        let test = ["test", "--workspace", "--no-fail-fast"];
        if self.beside.is_none() {
            return cargo(&test);
        }
        let mut command = repo::command("nice");
        command.args(["-n", "19", "cargo"]).args(test);
        command
    }

    /// Every rule of the house counts as one test.
    fn rules(&mut self) -> Result<Counts, String> {
        self.say("> the rules of the house");
        let mut counts = Counts::default();
        for (rule, violations) in rules::check_all(&repo::load(self.root)?) {
            for violation in &violations {
                self.say(&violation.line_for(rule));
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
                self.say(
                    "cargo-deny cannot be installed here: it needs the crate registry, and a C compiler",
                );
                return (Counts::SKIPPED, State::Unavailable);
            }
        }
        let mut check = repo::command(installed.unwrap_or(own));
        check.args(["check", "bans", "licenses", "sources"]);
        self.run(check)
    }

    /// Runs one command and shows what it says.
    fn run(&mut self, mut command: Command) -> (Counts, State) {
        command.current_dir(self.root).env("CARGO_TERM_COLOR", "never");
        // Planted faults panic by the hundred: backtraces of them would bury what failed, and take minutes.
        command.env("RUST_BACKTRACE", "0");
        self.say(&format!("> {}", shown(&command)));
        let (child, lines) = match start(command) {
            Ok(started) => started,
            Err(error) => {
                self.say(&format!("did not start: {error}"));
                return (Counts::FAILED, State::Failed);
            }
        };
        let mut reader = Reader::default();
        let code = follow(child, &lines, |line| {
            if reader.line(line) {
                self.say(line);
            } else {
                self.note(line);
            }
        });
        if code == Some(UNAVAILABLE) {
            return (Counts::SKIPPED, State::Unavailable);
        }
        let counts = reader.finish(code == Some(0));
        (counts, if counts.failed == 0 { State::Ran } else { State::Failed })
    }

    fn say(&mut self, line: &str) {
        match self.beside {
            Some(name) => println!("{name} | {line}"),
            None => println!("{line}"),
        }
        self.note(line);
    }

    fn note(&mut self, line: &str) {
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

/// The test targets in a member's `tests/` folder, in the order of their names.
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

/// Starts a command whose output and errors come as one stream of lines, in the order in which they were written.
fn start(mut command: Command) -> io::Result<(Child, Receiver<String>)> {
    let (output, input) = io::pipe()?;
    let child =
        command.stdin(std::process::Stdio::null()).stdout(input.try_clone()?).stderr(input).spawn()?;
    // The command holds our ends of the pipe; without this it would never end.
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

/// Hands on every line until the command has ended; its exit code, if it had one.
fn follow(mut child: Child, lines: &Receiver<String>, mut each: impl FnMut(&str)) -> Option<i32> {
    let mut gone_since = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    let since: &Instant = gone_since.get_or_insert_with(Instant::now);
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

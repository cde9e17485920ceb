//! Edge: the machine, the commit and the time of a measurement.

use std::fs;
use std::process::Command;

use jiff::Timestamp;

/// The first paragraph of the results.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = meminfo("MemTotal:") / 1024 / 1024;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name);
    let date = Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
    format!(
        "{cores} cores ({model}), {memory} GiB, Linux {}, load {} before the run; commit {}; {date}.",
        kernel.trim(),
        load(),
        commit()
    )
}

fn meminfo(key: &str) -> u64 {
    let read = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = read.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// The load average of the last minute.
fn load() -> String {
    let read = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    read.split(' ').next().unwrap_or_default().to_owned()
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let asked = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output();
        let answered = asked.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&answered.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else { return "unknown".into() };
    // RESULTS.md may be stale: it changes with every run.
    let changed =
        git(&["status", "--porcelain", "--", "..", ":!RESULTS.md"]).is_none_or(|text| !text.is_empty());
    if changed { format!("{commit} and changes") } else { commit }
}

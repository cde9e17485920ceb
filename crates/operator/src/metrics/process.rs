//! The `process_*` metrics, read from `/proc` at each scrape. They are absent where there is no `/proc`.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};

use super::table::{CPU, MAX_FDS, OPEN, RESIDENT, START, THREADS, VIRTUAL};

/// `USER_HZ` of Linux on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = Stat::read();
        if let Some(seconds) = stat.as_ref().and_then(Stat::cpu_seconds) {
            CPU.encode(&mut encoder)?.encode_counter::<NoLabelSet, _, f64>(&seconds, None)?;
        }
        let open = fs::read_dir("/proc/self/fd").ok().and_then(|entries| {
            // One of them is the directory that is being read.
            u32::try_from(entries.count()).ok().map(|count| f64::from(count.saturating_sub(1)))
        });
        let gauges = [
            (RESIDENT, kilobytes(&status, "VmRSS:")),
            (VIRTUAL, kilobytes(&status, "VmSize:")),
            (THREADS, number(&status, "Threads:")),
            (START, stat.as_ref().and_then(Stat::start_time)),
            (OPEN, open),
            (MAX_FDS, max_open_files()),
        ];
        for (entry, value) in gauges {
            if let Some(value) = value {
                entry.encode(&mut encoder)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

/// The fields of `/proc/self/stat` after the program name, which may contain any character.
struct Stat(String);

impl Stat {
    fn read() -> Option<Self> {
        let all = fs::read_to_string("/proc/self/stat").ok()?;
        Some(Self(all.rsplit_once(") ")?.1.to_owned()))
    }

    /// Returns a field by its number in proc(5).
    fn field(&self, number: usize) -> Option<f64> {
        self.0.split_whitespace().nth(number - 3)?.parse().ok()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        Some((self.field(14)? + self.field(15)?) / TICKS_PER_SECOND)
    }

    fn start_time(&self) -> Option<f64> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        Some(number(&system, "btime")? + self.field(22)? / TICKS_PER_SECOND)
    }
}

fn number(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

fn kilobytes(status: &str, key: &str) -> Option<f64> {
    number(status, key).map(|kilobytes| kilobytes * 1024.0)
}

fn max_open_files() -> Option<f64> {
    number(&fs::read_to_string("/proc/self/limits").ok()?, "Max open files")
}

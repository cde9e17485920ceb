//! What the kernel says about this process: the usual `process_*` set. Linux only; elsewhere it is absent.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::book::Stability::Stable;
use super::book::{Book, Entry, Set, entry};

/// In which the kernel counts time for user space, on every architecture that we build for.
const TICKS_A_SECOND: f64 = 100.0;

const fn of(name: &'static str, help: &'static str) -> Entry {
    entry(Set::Usual, Stable, name, &[], help)
}

const CPU: Entry = of("process_cpu_seconds_total", "User and system CPU time spent, in seconds");
const RESIDENT: Entry = of("process_resident_memory_bytes", "Resident memory in bytes");
const VIRTUAL: Entry = of("process_virtual_memory_bytes", "Virtual memory in bytes");
const START: Entry = of("process_start_time_seconds", "When the process started, in seconds since 1970");
const OPEN: Entry = of("process_open_fds", "Open file descriptors");
const MOST: Entry = of("process_max_fds", "Most file descriptors that may be open");
const THREADS: Entry = of("process_threads", "Threads");

/// Asks at each scrape.
#[derive(Debug)]
pub struct Process;

impl Process {
    /// Enters what it serves.
    pub fn enter(book: &mut Book) {
        book.note(CPU, MetricType::Counter);
        for gauge in [RESIDENT, VIRTUAL, START, OPEN, MOST, THREADS] {
            book.note(gauge, MetricType::Gauge);
        }
        book.registry.register_collector(Box::new(Self));
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = Stat::read();
        if let Some(seconds) = stat.as_ref().and_then(Stat::cpu_seconds) {
            encoder
                .encode_descriptor(CPU.bare_name(), CPU.help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, f64>(&seconds, None)?;
        }
        let open = fs::read_dir("/proc/self/fd").ok().and_then(|entries| {
            // One of them is the folder that is being read.
            u32::try_from(entries.count()).ok().map(|count| f64::from(count.saturating_sub(1)))
        });
        let gauges = [
            (RESIDENT, kilobytes(&status, "VmRSS:")),
            (VIRTUAL, kilobytes(&status, "VmSize:")),
            (THREADS, number(&status, "Threads:")),
            (START, stat.as_ref().and_then(Stat::started)),
            (OPEN, open),
            (MOST, most_files()),
        ];
        for (entry, level) in gauges {
            if let Some(level) = level {
                encoder
                    .encode_descriptor(entry.name, entry.help, None, MetricType::Gauge)?
                    .encode_gauge(&level)?;
            }
        }
        Ok(())
    }
}

/// The fields of `/proc/self/stat` after the name of the program, which may hold anything.
struct Stat(String);

impl Stat {
    fn read() -> Option<Self> {
        let all = fs::read_to_string("/proc/self/stat").ok()?;
        Some(Self(all.rsplit_once(") ")?.1.to_owned()))
    }

    /// By its number in proc(5).
    fn field(&self, number: usize) -> Option<f64> {
        self.0.split_whitespace().nth(number - 3)?.parse().ok()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        Some((self.field(14)? + self.field(15)?) / TICKS_A_SECOND)
    }

    fn started(&self) -> Option<f64> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        Some(number(&system, "btime")? + self.field(22)? / TICKS_A_SECOND)
    }
}

fn number(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

fn kilobytes(status: &str, key: &str) -> Option<f64> {
    number(status, key).map(|kilobytes| kilobytes * 1024.0)
}

fn most_files() -> Option<f64> {
    number(&fs::read_to_string("/proc/self/limits").ok()?, "Max open files")
}

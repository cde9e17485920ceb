//! Captures the controllers' logs, so that scenarios can search them.

use std::io::{self, Write};
use std::sync::Once;

use parking_lot::{Mutex, MutexGuard};
use tracing_subscriber::filter::LevelFilter;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Paper;

impl Write for Paper {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        lines().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines() -> MutexGuard<'static, Vec<u8>> {
    LINES.lock()
}

pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::INFO)
            .with_ansi(false)
            .with_writer(|| Paper)
            .init();
    });
}

/// Whether a line contains all `parts`.
pub fn has(parts: &[&str]) -> bool {
    String::from_utf8_lossy(&lines()).lines().any(|line| parts.iter().all(|part| line.contains(part)))
}

pub fn tail(count: usize) -> String {
    let lines = lines();
    let text = String::from_utf8_lossy(&lines);
    let mut last: Vec<&str> = text.lines().rev().take(count).collect();
    last.reverse();
    last.into_iter().flat_map(|line| [line, "\n"]).collect()
}

//! Lines for the person who waits.

use std::io::{self, Write as _};

/// Not `eprintln!`: the test harness would keep it back, and for minutes nothing would seem to happen.
pub(crate) fn progress(line: &str) {
    let _ = writeln!(io::stderr(), "e2e: {line}");
}

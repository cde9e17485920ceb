//! Progress messages.

use std::io::{self, Write as _};

/// Not `eprintln!`: the test harness would capture it, and nothing would be visible for minutes.
pub fn progress(line: &str) {
    let _ = writeln!(io::stderr(), "e2e: {line}");
}

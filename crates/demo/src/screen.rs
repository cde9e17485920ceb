//! The terminal, or plain output.

#![expect(clippy::disallowed_methods, reason = "the terminal is described by the environment")]

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use crate::line::Line;

/// Columns and rows if the size is unknown.
const DEFAULT_SIZE: (usize, usize) = (100, 30);
/// The smallest terminal that the table is drawn on.
const MIN_SIZE: (usize, usize) = (60, 22);

/// Hides the cursor and disables line wrapping.
const LIVE_ON: &str = "\x1b[?25l\x1b[?7l";
const LIVE_OFF: &str = "\x1b[?7h\x1b[?25h";

pub struct Screen {
    /// Whether the terminal can show the table.
    can_draw: bool,
    is_live: bool,
    colours: bool,
    /// Lines of the last frame, which the next one replaces; none before the first.
    drawn: Option<usize>,
}

impl Screen {
    pub fn new() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = std::io::stdout().is_terminal() && !is_dumb;
        let (width, height) = size();
        let can_draw = is_terminal && width >= MIN_SIZE.0 && height >= MIN_SIZE.1;
        let colours = is_terminal && !set("NO_COLOR");
        Self { can_draw, is_live: can_draw, colours, drawn: None }
    }

    /// Returns whether the table is drawn; otherwise each change is a line.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the largest number of lines of a frame.
    pub fn height() -> usize {
        size().1.saturating_sub(1)
    }

    /// Draws the table below the lines printed so far, if the terminal can show it.
    pub fn start_live(&mut self) {
        self.is_live = self.can_draw;
    }

    /// Leaves the last frame on the terminal; what follows is printed below it.
    pub fn stop_live(&mut self) {
        self.is_live = false;
        if self.drawn.take().is_some() {
            write(LIVE_OFF);
        }
    }

    /// Replaces the last frame.
    pub fn draw(&mut self, lines: &[Line]) {
        let (width, height) = size();
        let mut text = String::new();
        match self.drawn {
            None => text.push_str(LIVE_ON),
            Some(0) => {}
            Some(drawn) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\x1b[{}A\r", drawn.min(height.saturating_sub(1)));
            }
        }
        text.push_str(&frame(lines, width, self.colours));
        self.drawn = Some(lines.len());
        write(&text);
    }

    /// Prints a line, which is cut at the width of a terminal.
    pub fn print(&self, line: &Line) {
        let width = if std::io::stdout().is_terminal() { size().0 } else { usize::MAX };
        write(&format!("{}\n", line.render(width, self.colours)));
    }

    /// Prints a line that a user may copy.
    pub fn print_uncut(&self, line: &Line) {
        write(&format!("{}\n", line.render(usize::MAX, self.colours)));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.stop_live();
    }
}

/// Returns the lines, each of which replaces the one that is there.
fn frame(lines: &[Line], width: usize, colours: bool) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.render(width, colours));
        // After the last column the cursor stays on it, and its character would be erased.
        text.push_str(if line.width() < width { "\x1b[K\n" } else { "\n" });
    }
    text.push_str("\x1b[J");
    text
}

/// Ignores errors: a closed pipe (`| head`) does not stop the demo.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns columns and rows.
fn size() -> (usize, usize) {
    let reported = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let reported = reported.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
    // A terminal without a size reports 0.
    reported.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or_else(|| {
        (variable("COLUMNS").unwrap_or(DEFAULT_SIZE.0), variable("LINES").unwrap_or(DEFAULT_SIZE.1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u09_a_line_that_was_cut_keeps_its_last_character() {
        let lines = ["short", "exactly 12 c", "longer than 12 columns"].map(Line::new);
        assert_eq!(frame(&lines, 12, false), "short\x1b[K\nexactly 12 c\nlonger than…\n\x1b[J");
    }
}

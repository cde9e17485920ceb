//! Edge: the terminal, or what stands in for one.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use super::line::Line;

/// Where no size can be had.
const USUAL: (usize, usize) = (100, 30);
/// A table in less room than this says less than lines do.
const SMALLEST: (usize, usize) = (60, 22);

const HIDE: &str = "\x1b[?25l\x1b[?7l";
const SHOW: &str = "\x1b[?7h\x1b[?25h";

/// Where the demo is shown.
pub struct Screen {
    is_live: bool,
    colours: bool,
    /// How many lines of the last picture are there to be drawn over; none before the first.
    drawn: Option<usize>,
}

impl Screen {
    /// Looks at what there is.
    pub fn new() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = std::io::stdout().is_terminal() && !is_dumb;
        let (width, height) = size();
        Self {
            is_live: is_terminal && width >= SMALLEST.0 && height >= SMALLEST.1,
            colours: is_terminal && !set("NO_COLOR"),
            drawn: None,
        }
    }

    /// Whether pictures are drawn; else there are lines.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// How many lines a picture may have.
    pub fn height() -> usize {
        size().1.saturating_sub(1)
    }

    /// From here on there are only lines.
    pub fn calm_down(&mut self) {
        self.is_live = false;
        if self.drawn.take().is_some() {
            write(SHOW);
        }
    }

    /// Draws a picture over the last one.
    pub fn draw(&mut self, lines: &[Line]) {
        let (width, height) = size();
        let mut text = String::new();
        match self.drawn {
            // No cursor that flickers, and no line that breaks when the window gets narrower.
            None => text.push_str(HIDE),
            Some(0) => {}
            Some(drawn) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\x1b[{}A\r", drawn.min(height.saturating_sub(1)));
            }
        }
        for line in lines {
            text.push_str(&line.show(width, self.colours));
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J");
        self.drawn = Some(lines.len());
        write(&text);
    }

    /// Prints a line, whole: a terminal breaks it where it must.
    pub fn say(&self, line: &Line) {
        write(&format!("{}\n", line.show(usize::MAX, self.colours)));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.calm_down();
    }
}

/// Nobody listening any more (`| head`) is no reason to fail.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Columns and rows.
fn size() -> (usize, usize) {
    let asked = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let asked = asked.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    let told = |name: &str| std::env::var(name).ok()?.parse().ok();
    // A terminal without a size says 0.
    asked
        .filter(|(columns, rows)| *columns > 0 && *rows > 0)
        .unwrap_or_else(|| (told("COLUMNS").unwrap_or(USUAL.0), told("LINES").unwrap_or(USUAL.1)))
}

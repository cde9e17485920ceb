//! A line of styled text.

use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Dim,
    Bold,
    Green,
    Red,
    Yellow,
    Cyan,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
            Self::Cyan => "\x1b[36m",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(Style, String)>);

impl Line {
    pub fn new(text: impl Into<String>) -> Self {
        Self::default().with(Style::Plain, text)
    }

    /// Appends text.
    #[must_use]
    pub fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    /// Appends another line.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the number of characters, none of which has double width.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Returns at most `width` characters; a cut line ends with `…`.
    pub fn render(&self, width: usize, colours: bool) -> String {
        let mut left = width;
        let cut = self.width() > width;
        let mut out = String::new();
        for (style, text) in &self.0 {
            let room = if cut { left.saturating_sub(1) } else { left };
            // Messages of workers come over the network: control characters must not reach the terminal.
            let part: String =
                text.chars().take(room).map(|c| if c.is_control() { ' ' } else { c }).collect();
            left -= part.chars().count();
            let is_styled = colours && *style != Style::Plain && !part.is_empty();
            let (on, off) = if is_styled { (style.code(), "\x1b[0m") } else { ("", "") };
            // Writing to a string cannot fail.
            let _ = write!(out, "{on}{part}{off}");
        }
        if cut && width > 0 {
            out.push('…');
        }
        out.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_and_colours_end() {
        let line = Line::new("ab").with(Style::Red, "cdef").with(Style::Green, "gh");
        assert_eq!(line.width(), 8);
        assert_eq!(line.render(80, false), "abcdefgh");
        assert_eq!(line.render(8, true), "ab\x1b[31mcdef\x1b[0m\x1b[32mgh\x1b[0m");
        assert_eq!(line.render(5, true), "ab\x1b[31mcd\x1b[0m…");
        assert_eq!(line.render(5, false).chars().count(), 5);
        assert_eq!((line.render(1, false), line.render(0, false)), ("…".into(), String::new()));
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(Line::new("a\x1b[2Jb\nc").render(80, true), "a [2Jb c");
    }
}

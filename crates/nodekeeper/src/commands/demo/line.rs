//! Text with colours that knows how wide it is.

use std::fmt::Write as _;

/// A colour, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// As everything else.
    Plain,
    /// Of no importance now.
    Dim,
    /// A heading.
    Bold,
    /// As it should be.
    Green,
    /// Not as it should be.
    Red,
    /// Not yet, or nobody knows.
    Yellow,
    /// In the making.
    Cyan,
}

impl Paint {
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

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(Paint, String)>);

impl Line {
    /// A line without colours.
    pub fn new(text: impl Into<String>) -> Self {
        Self::default().and(Paint::Plain, text)
    }

    /// With something more at its end.
    #[must_use]
    pub fn and(mut self, paint: Paint, text: impl Into<String>) -> Self {
        self.0.push((paint, text.into()));
        self
    }

    /// How wide it is. Nothing that is shown here has characters of double width.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// At most so many characters; what is cut off leaves a mark.
    pub fn show(&self, width: usize, colours: bool) -> String {
        let mut left = width;
        let cut = self.width() > width;
        let mut shown = String::new();
        for (paint, text) in &self.0 {
            let room = if cut { left.saturating_sub(1) } else { left };
            // What workers found came over the network: nothing in it may move the cursor.
            let part: String =
                text.chars().take(room).map(|c| if c.is_control() { ' ' } else { c }).collect();
            left -= part.chars().count();
            let is_painted = colours && *paint != Paint::Plain && !part.is_empty();
            let (on, off) = if is_painted { (paint.code(), "\x1b[0m") } else { ("", "") };
            // Writing to a string cannot fail.
            let _ = write!(shown, "{on}{part}{off}");
        }
        if cut && width > 0 {
            shown.push('…');
        }
        shown.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_and_colours_end() {
        let line = Line::new("ab").and(Paint::Red, "cdef").and(Paint::Green, "gh");
        assert_eq!(line.width(), 8);
        assert_eq!(line.show(80, false), "abcdefgh");
        assert_eq!(line.show(8, true), "ab\x1b[31mcdef\x1b[0m\x1b[32mgh\x1b[0m");
        assert_eq!(line.show(5, true), "ab\x1b[31mcd\x1b[0m…");
        assert_eq!(line.show(5, false).chars().count(), 5);
        assert_eq!((line.show(1, false), line.show(0, false)), ("…".into(), String::new()));
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(Line::new("a\x1b[2Jb\nc").show(80, true), "a [2Jb c");
    }
}

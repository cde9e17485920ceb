//! Small helpers for what other programs wrote.

/// The last `lines` lines, where the reason of a failure usually is.
pub(crate) fn tail(text: &str, lines: usize) -> &str {
    let text = text.trim_end();
    match text.rmatch_indices('\n').nth(lines.saturating_sub(1)) {
        Some((newline, _)) => &text[newline + 1..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\nb\nc\n", 3), "a\nb\nc");
        assert_eq!(tail("", 2), "");
    }
}

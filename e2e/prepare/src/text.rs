//! Helpers for the output of other programs.

/// The last `lines` lines, which usually contain the reason of a failure.
#[must_use]
pub fn tail(text: &str, lines: usize) -> &str {
    let text = text.trim_end();
    match text.rmatch_indices('\n').nth(lines.saturating_sub(1)) {
        Some((newline, _)) => &text[newline + 1..],
        None => text,
    }
}

/// Quotes a word for a shell if needed.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@%:,=".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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

    #[test]
    fn quoted_words_are_unchanged_by_a_shell() {
        assert_eq!(shell_word("/srv/cache/run/1-1/kubeconfig"), "/srv/cache/run/1-1/kubeconfig");
        for word in ["", "/my cache/it's $HOME", "~", "a;b"] {
            let echo = format!("printf %s {}", shell_word(word));
            let output = std::process::Command::new("sh").args(["-c", &echo]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}

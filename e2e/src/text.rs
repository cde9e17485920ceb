//! Small helpers for what other programs wrote.

/// The last `lines` lines, where the reason of a failure usually is.
pub(crate) fn tail(text: &str, lines: usize) -> &str {
    let text = text.trim_end();
    match text.rmatch_indices('\n').nth(lines.saturating_sub(1)) {
        Some((newline, _)) => &text[newline + 1..],
        None => text,
    }
}

/// A word for a shell: quoted, if a shell would take it for something else.
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
    fn a_shell_gets_back_what_was_quoted() {
        assert_eq!(shell_word("/srv/cache/run/1-1/kubeconfig"), "/srv/cache/run/1-1/kubeconfig");
        for word in ["", "/my cache/it's $HOME", "~", "a;b"] {
            let echo = format!("printf %s {}", shell_word(word));
            let output = std::process::Command::new("sh").args(["-c", &echo]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}

//! Text searches that know just enough of Rust: that `//` begins a comment, and that tests come last in a file.

/// The lines of code before the tests, numbered from 1, without their comments. A `//` in a string counts as a comment too,
/// and block comments as code.
pub fn production(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_attribute = |line: &&&str| line.starts_with("#[");
    let begins_tests = |at: usize| {
        let item = lines[at..].iter().find(|line| !is_attribute(line));
        lines[at] == "#[cfg(test)]" && item.is_some_and(|line| line.starts_with("mod tests"))
    };
    let end = (0..lines.len()).find(|at| begins_tests(*at)).unwrap_or(lines.len());
    lines.into_iter().take(end).enumerate().map(|(index, line)| (index + 1, without_comment(line)))
}

pub fn without_comment(line: &str) -> &str {
    line.find("//").map_or(line, |at| &line[..at]).trim_end()
}

/// Whether the line contains `word`, and not only as a part of longer names.
pub fn has_word(line: &str, word: &str) -> bool {
    positions(line, word).next().is_some()
}

/// The byte positions of `word`, except inside longer names.
pub fn positions(text: &str, word: &str) -> impl Iterator<Item = usize> {
    let starts_named = word.starts_with(is_name);
    let ends_named = word.ends_with(is_name);
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back().is_some_and(is_name);
        let after = text[at + word.len()..].chars().next().is_some_and(is_name);
        !(starts_named && before || ends_named && after)
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_ends_where_the_tests_begin() {
        let text =
            "#[cfg(test)]\nmod fake;\n\nfn f() {} // why\n\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;\n";
        let lines: Vec<_> = production(text).filter(|(_, line)| !line.is_empty()).collect();
        assert_eq!(lines, [(1, "#[cfg(test)]"), (2, "mod fake;"), (4, "fn f() {}")]);
    }

    #[test]
    fn words_are_whole_names() {
        assert!(has_word("a.watch(b)", "watch") && has_word("Event::Is(x)", "Event::Is"));
        assert!(!has_word("a.watcher(b)", "watch") && !has_word("my_watch", "watch"));
    }
}

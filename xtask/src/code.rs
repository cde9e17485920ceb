//! A minimal Rust tokenizer, so that searches can skip comments, strings and tests.

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hide {
    /// Hides the contents of string and character literals.
    Strings,
    /// Hides comments as well.
    StringsAndComments,
}

/// Replaces hidden parts by spaces. Line numbers do not change.
pub fn mask(text: &str, hide: Hide) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, shown) = token(&chars, at, hide);
        for (index, &c) in (at..end).zip(&chars[at..end]) {
            let visible = match shown {
                Shown::All => true,
                Shown::Nothing => false,
                Shown::First => index == at,
                Shown::Ends => index == at || index + 1 == end,
            };
            masked.push(if c == '\n' || visible { c } else { ' ' });
        }
        at = end;
    }
    masked
}

/// Masks strings, comments and `#[cfg(test)]` items.
pub fn production(text: &str) -> String {
    let mut chars: Vec<char> = mask(text, Hide::StringsAndComments).chars().collect();
    let marker: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut at = 0;
    while at < chars.len() {
        if chars[at..].starts_with(&marker) {
            let end = item_end(&chars, at + marker.len());
            chars[at..end].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = ' ');
            at = end;
        } else {
            at += 1;
        }
    }
    chars.into_iter().collect()
}

/// The lines, counted from 1, in which `code` contains the whole word `word`.
pub fn lines_with(code: &str, word: &str) -> Vec<usize> {
    positions(code, word).map(|at| line_of(code, at)).collect()
}

/// The byte positions of `word` in `code`, except inside longer names.
pub fn positions(code: &str, word: &str) -> impl Iterator<Item = usize> {
    let starts_named = word.starts_with(is_name);
    let ends_named = word.ends_with(is_name);
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back().is_some_and(is_name);
        let after = code[at + word.len()..].chars().next().is_some_and(is_name);
        !(starts_named && before || ends_named && after)
    })
}

/// The line of a byte position, counted from 1.
pub fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// Counts the lines of masked code that are not empty.
pub fn count_lines(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// One path of a `use` declaration, with groups expanded.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    /// For example `std::env::var`.
    pub path: String,
    pub alias: Option<String>,
    pub line: usize,
}

/// Every path that the masked `code` imports.
pub fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for at in positions(code, "use ") {
        let rest = &code[at + "use ".len()..];
        let body = rest.split(';').next().unwrap_or_default();
        let flat: String = body.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut paths = Vec::new();
        expand("", &flat, &mut paths);
        for path in paths {
            let (path, alias) = match path.split_once(" as ") {
                Some((path, alias)) => (path.to_owned(), Some(alias.to_owned())),
                None => (path, None),
            };
            found.push(Import { path, alias, line: line_of(code, at) });
        }
    }
    found
}

fn expand(prefix: &str, body: &str, paths: &mut Vec<String>) {
    let body = body.trim();
    let Some(open) = body.find('{') else {
        let whole = format!("{prefix}{body}");
        paths.push(whole.strip_suffix("::self").map_or(whole.clone(), str::to_owned));
        return;
    };
    let inner = body[open + 1..].strip_suffix('}').unwrap_or(&body[open + 1..]);
    let prefix = format!("{prefix}{}", &body[..open]);
    for part in split_top(inner, ',') {
        if !part.trim().is_empty() {
            expand(&prefix, part, paths);
        }
    }
}

/// `text` cut at each `separator` that is not inside brackets or double quotes.
pub fn split_top(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut start) = (Vec::new(), 0_i32, false, 0);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if c == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

enum Shown {
    All,
    Nothing,
    First,
    Ends,
}

/// The end of the token that starts at `at`, and which of its characters stay visible.
fn token(chars: &[char], at: usize, hide: Hide) -> (usize, Shown) {
    let next = chars.get(at + 1).copied();
    let comment = if hide == Hide::Strings { Shown::All } else { Shown::Nothing };
    match chars[at] {
        '/' if next == Some('/') => (line_end(chars, at), comment),
        '/' if next == Some('*') => (block_end(chars, at), comment),
        '"' => (closing(chars, at + 1, '"'), Shown::Ends),
        // What follows the backslash may itself be a quote.
        '\'' if next == Some('\\') => (closing(chars, at + 3, '\''), Shown::First),
        '\'' if chars.get(at + 2) == Some(&'\'') => (at + 3, Shown::First),
        'r' if !raw_prefix_is_name(chars, at) => (raw_end(chars, at + 1).unwrap_or(at + 1), Shown::First),
        _ => (at + 1, Shown::All),
    }
}

/// Whether the `r` at `at` ends a longer name; `br"…"` and `cr"…"` are raw strings as well.
fn raw_prefix_is_name(chars: &[char], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).and_then(|i| chars.get(i)).copied();
    match before(1) {
        Some('b' | 'c') => before(2).is_some_and(is_name),
        Some(c) => is_name(c),
        None => false,
    }
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |length| at + length)
}

fn block_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn closing(chars: &[char], from: usize, quote: char) -> usize {
    let mut i = from;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], after_r: usize) -> Option<usize> {
    let hashes = chars[after_r..].iter().take_while(|&&c| c == '#').count();
    let open = after_r + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    (open + 1..chars.len()).find(|&i| closes(i)).map_or(Some(chars.len()), |i| Some(i + 1 + hashes))
}

/// The end of the item, field or statement that follows an attribute.
fn item_end(chars: &[char], from: usize) -> usize {
    const ITEMS: [&str; 16] = [
        "pub",
        "mod",
        "fn",
        "use",
        "impl",
        "struct",
        "const",
        "static",
        "async",
        "enum",
        "trait",
        "type",
        "let",
        "unsafe",
        "extern",
        "macro_rules",
    ];
    let start = after_attributes(chars, from);
    let word: String = chars[start..].iter().take_while(|&&c| is_name(c)).collect();
    let item = ITEMS.contains(&word.as_str());
    let mut depth = 0_i32;
    for (i, &c) in chars.iter().enumerate().skip(start) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return i,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 && item {
                    return i + 1;
                }
            }
            ';' if depth == 0 => return i + 1,
            ',' if depth == 0 && !item => return i + 1,
            _ => {}
        }
    }
    chars.len()
}

fn after_attributes(chars: &[char], from: usize) -> usize {
    let mut at = from;
    loop {
        at += chars[at..].iter().take_while(|c| c.is_whitespace()).count();
        if !chars[at..].starts_with(&['#', '[']) {
            return at;
        }
        let mut depth = 0_i32;
        let length = chars[at..].iter().position(|&c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ']' && depth == 0
        });
        at = length.map_or(chars.len(), |length| at + length + 1);
    }
}

#[cfg(test)]
#[path = "tests/code.rs"]
mod tests;

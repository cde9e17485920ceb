//! Validates names, keys and quantities by the patterns of the CRD, with the fix for each.

use super::section::Field;

pub const NAME: &str =
    "is not a valid name: use lower-case letters, digits, `-` and `.`, with a letter or digit at both ends";
pub const LABEL: &str = "is not a valid name: use at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends";
pub const KEY: &str = "is not a valid key: write `name` or `prefix/name`, such as node-ready/unverified";
pub const VALUE: &str = "is not a valid value: use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";
pub const QUANTITY: &str = "is not a quantity: write for example 50m or 64Mi";
pub const IMAGE: &str = "is not an image reference: it must not contain blanks";
pub const HOST: &str = "is neither a DNS name nor an IP address";

/// Treats an empty string as left out, as kube-node-ready does.
pub fn optional(field: Field) -> Option<Field> {
    (!field.is_blank()).then_some(field)
}

fn is_word(text: &str, most: usize, inside: impl Fn(char) -> bool, end: impl Fn(char) -> bool) -> bool {
    text.len() <= most && text.starts_with(&end) && text.ends_with(&end) && text.chars().all(inside)
}

fn small(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// `nodekeeper-worker.a`
pub fn is_name(text: &str) -> bool {
    is_word(text, 253, |c| small(c) || c == '-' || c == '.', small)
}

/// `kube-system`
pub fn is_label(text: &str) -> bool {
    is_word(text, 63, |c| small(c) || c == '-', small)
}

/// `true`, or the empty string.
pub fn is_value(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric();
    text.is_empty() || is_word(text, 63, |c| letter(c) || "-_.".contains(c), letter)
}

/// `node-ready/verified`
pub fn is_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_name) && !name.is_empty() && is_value(name)
}

/// `64Mi`
pub fn is_quantity(text: &str) -> bool {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    text.len() <= 32
        && digits(whole)
        && digits(part)
        && ["", "m", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti"].contains(&unit)
}

/// The seconds of `1m30s`, rounded up.
#[must_use]
pub fn duration_seconds(text: &str) -> Option<i32> {
    let (mut rest, mut milliseconds) = (text, 0_u64);
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(unit_at);
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let (unit, factor) = units.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        milliseconds = milliseconds.checked_add(number.parse::<u64>().ok()?.checked_mul(factor)?)?;
        rest = &after[unit.len()..];
    }
    i32::try_from(milliseconds.div_ceil(1_000)).ok().filter(|_| !text.is_empty())
}

/// `repository/name:tag`
pub fn is_image(text: &str) -> bool {
    !text.is_empty() && text.len() <= 512 && !text.contains(char::is_whitespace)
}

/// `kubernetes.default.svc.cluster.local`, with or without a dot at its end.
pub fn is_host(text: &str) -> bool {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let part = |part: &str| {
        (1..=63).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    text.len() <= 253 && bare.split('.').all(part)
}

/// `/etc/ssl`
pub fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= 4096
}

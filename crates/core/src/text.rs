//! Texts: cleaned where they are of untrusted origin, and shared where many objects have the same.

#[cfg(feature = "api")]
mod shared;

#[cfg(feature = "api")]
pub use shared::SharedText;

/// The text on one line of at most `bytes` bytes, without control characters.
#[must_use]
pub fn clean(text: &str, bytes: usize) -> String {
    let mut clean = String::with_capacity(text.len().min(bytes));
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if clean.len() + character.len_utf8() > bytes {
            break;
        }
        clean.push(character);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_without_control_codes() {
        assert_eq!(clean("a\u{1b}[31m\nb", 99), "a [31m b");
        assert_eq!(clean("ééé", 5), "éé");
        assert_eq!(clean("", 0), "");
    }
}

//! Texts that come from outside and go where people and API servers read them.

/// One line of at most so many bytes, without control characters: a node may say whatever it likes.
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
    fn a_text_is_cut_between_characters_and_cannot_paint_a_terminal() {
        assert_eq!(clean("a\u{1b}[31m\nb", 99), "a [31m b");
        assert_eq!(clean("ééé", 5), "éé");
        assert_eq!(clean("", 0), "");
    }
}

//! Identifiers of objects and boots, in little memory.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An identifier. It is a UUID in almost every cluster, of which 16 bytes are stored; any other text is kept as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Id(Repr);

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    /// A UUID whose text is in lower case, with hyphens.
    Uuid([u8; 16]),
    Text(Box<str>),
}

impl Id {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Repr::Text(text) if text.is_empty())
    }
}

/// The bytes of a UUID. None if the text is not exactly what [`Id`] displays.
fn parse(text: &str) -> Option<[u8; 16]> {
    /// The places of each byte's digits.
    const DIGITS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text: &[u8; 36] = text.as_bytes().try_into().ok()?;
    if [text[8], text[13], text[18], text[23]] != *b"----" {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, place) in bytes.iter_mut().zip(DIGITS) {
        *byte = digit(text[place])? << 4 | digit(text[place + 1])?;
    }
    Some(bytes)
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Text(text) => out.write_str(text),
            Repr::Uuid(bytes) => {
                for (index, byte) in bytes.iter().enumerate() {
                    let hyphen = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
                    write!(out, "{hyphen}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.to_string())
    }
}

impl Default for Id {
    fn default() -> Self {
        Self(Repr::Text(Box::default()))
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        Self(parse(text).map_or_else(|| Repr::Text(text.into()), Repr::Uuid))
    }
}

impl From<&String> for Id {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for Id {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl PartialEq<str> for Id {
    fn eq(&self, other: &str) -> bool {
        match &self.0 {
            Repr::Uuid(bytes) => parse(other).as_ref() == Some(bytes),
            Repr::Text(text) => **text == *other,
        }
    }
}

impl PartialEq<&str> for Id {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl PartialEq<String> for Id {
    fn eq(&self, other: &String) -> bool {
        *self == **other
    }
}

impl PartialEq<Id> for String {
    fn eq(&self, other: &Id) -> bool {
        *other == **self
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Id;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                Ok(text.into())
            }
        }

        from.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "0b6f6f1c-52b5-4f0e-9d3a-ffffffffffff";

    #[test]
    fn only_canonical_uuids_are_packed() {
        assert!(matches!(Id::from(UUID).0, Repr::Uuid(_)));
        let upper = UUID.to_uppercase();
        let moved = UUID.replace("c-5", "-c5");
        for text in ["", "u", &upper, &moved, &UUID.replace('-', ""), &UUID.replace('f', "é")] {
            assert!(matches!(Id::from(text).0, Repr::Text(_)), "{text}");
        }
        assert_eq!(size_of::<Id>(), 24);
    }

    proptest! {
        #[test]
        fn every_text_round_trips(text in prop_oneof![
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "[0-9a-fA-Fg-]{36}",
            ".{0,40}",
        ]) {
            let id = Id::from(&text);
            prop_assert_eq!(id.to_string(), &*text);
            prop_assert!(id == text && id == *text.as_str());
            prop_assert_eq!(id.is_empty(), text.is_empty());
            prop_assert!(id != [&*text, "x"].concat());
            let json = serde_json::to_string(&text).expect("it is JSON");
            prop_assert_eq!(serde_json::to_string(&id).expect("it is JSON"), &*json);
            prop_assert_eq!(serde_json::from_str::<Id>(&json).expect("it is a string"), id);
        }
    }
}

//! Item of a dump: one line with a kind and named fields.

use crate::format::entry::{KEYSPACE_LEN, keyspace_of};
use bytes::Bytes;
use std::fmt::Write;

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// A count, an id, an offset or a length in bytes.
    Number(u64),
    /// Text.
    Text(String),
    /// Key, preceded by the four bytes of its keyspace's id.
    Key(Bytes),
    /// Other bytes, as stored.
    Bytes(Bytes),
}

impl Field {
    /// As text: keys as `keyspace/key`, bytes escaped, or both in hexadecimal digits.
    #[must_use]
    pub fn shown(&self, hex: bool) -> String {
        let bytes = |bytes: &[u8]| {
            if hex {
                bytes.iter().fold(String::new(), |mut out, byte| {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "{byte:02x}");
                    out
                })
            } else {
                bytes.escape_ascii().to_string()
            }
        };
        match self {
            Field::Number(number) => number.to_string(),
            Field::Text(text) => text.clone(),
            Field::Bytes(value) => bytes(value),
            Field::Key(key) => match keyspace_of(key) {
                Some(id) => format!("{}/{}", id.0, bytes(&key[KEYSPACE_LEN..])),
                None => bytes(key),
            },
        }
    }
}

/// One item of a dump: its kind, and its fields in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Nesting depth below earlier items.
    pub depth: u8,
    /// Kind, in one word: `table`, `partition`, `entry`, `damage` ...
    pub kind: &'static str,
    /// Names and values of the fields.
    pub fields: Vec<(&'static str, Field)>,
}

impl Item {
    pub(crate) fn new(depth: u8, kind: &'static str) -> Item {
        Item { depth, kind, fields: Vec::new() }
    }

    fn with(mut self, name: &'static str, field: Field) -> Item {
        self.fields.push((name, field));
        self
    }

    pub(crate) fn number(self, name: &'static str, number: impl Into<u64>) -> Item {
        self.with(name, Field::Number(number.into()))
    }

    pub(crate) fn text(self, name: &'static str, text: impl Into<String>) -> Item {
        self.with(name, Field::Text(text.into()))
    }

    pub(crate) fn key(self, name: &'static str, key: &[u8]) -> Item {
        self.with(name, Field::Key(Bytes::copy_from_slice(key)))
    }

    pub(crate) fn bytes(self, name: &'static str, bytes: &[u8]) -> Item {
        self.with(name, Field::Bytes(Bytes::copy_from_slice(bytes)))
    }

    /// One line of text, indented by its depth.
    #[must_use]
    pub fn line(&self, hex: bool) -> String {
        let mut line = "  ".repeat(usize::from(self.depth));
        line.push_str(self.kind);
        for (name, field) in &self.fields {
            let shown = field.shown(hex);
            let shown = if shown.is_empty() { "\"\"" } else { &shown };
            line.push_str("  ");
            line.push_str(name);
            line.push(' ');
            line.push_str(shown);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_fields_and_hides_no_byte() {
        let item = Item::new(1, "entry")
            .key("key", b"\0\0\0\x02ab\xff")
            .number("sequence", 7u64)
            .bytes("value", b"");
        assert_eq!(item.line(false), "  entry  key 2/ab\\xff  sequence 7  value \"\"");
        assert_eq!(item.line(true), "  entry  key 2/6162ff  sequence 7  value \"\"");
        assert_eq!(Field::Key(Bytes::from_static(b"ab")).shown(false), "ab");
    }
}

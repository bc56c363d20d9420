//! Item of a dump: one line with a kind and named fields.

use bytes::Bytes;
use std::fmt::Write;

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpField {
    /// A count, an id, an offset or a length in bytes.
    Number(u64),
    /// Text.
    Text(String),
    /// Bytes, as stored.
    Bytes(Bytes),
    /// Bytes below a name.
    Below(String, Bytes),
}

impl DumpField {
    /// As text: bytes escaped, or in hexadecimal digits.
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
            DumpField::Number(number) => number.to_string(),
            DumpField::Text(text) => text.clone(),
            DumpField::Bytes(value) => bytes(value),
            DumpField::Below(name, value) => format!("{name}/{}", bytes(value)),
        }
    }
}

/// One item of a dump: its kind, and its fields in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpItem {
    /// Nesting depth below earlier items.
    pub depth: u8,
    /// Kind, in one word: `record`, `extent`, `damage` ...
    pub kind: &'static str,
    /// Names and values of the fields.
    pub fields: Vec<(&'static str, DumpField)>,
}

/// Receives items as they are read; `false` ends the dump.
pub type DumpSink<'a> = dyn FnMut(DumpItem) -> bool + 'a;

impl DumpItem {
    /// An item without fields.
    #[must_use]
    pub fn new(depth: u8, kind: &'static str) -> DumpItem {
        DumpItem { depth, kind, fields: Vec::new() }
    }

    /// A part that cannot be read.
    pub fn damage(depth: u8, what: &impl std::fmt::Display) -> DumpItem {
        DumpItem::new(depth, "damage").text("what", what.to_string())
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, field: DumpField) -> DumpItem {
        self.fields.push((name, field));
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(self, name: &'static str, number: impl Into<u64>) -> DumpItem {
        self.with(name, DumpField::Number(number.into()))
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, name: &'static str, text: impl Into<String>) -> DumpItem {
        self.with(name, DumpField::Text(text.into()))
    }

    /// Adds bytes.
    #[must_use]
    pub fn bytes(self, name: &'static str, bytes: &[u8]) -> DumpItem {
        self.with(name, DumpField::Bytes(Bytes::copy_from_slice(bytes)))
    }

    /// Whether it shows damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.kind == "damage" || self.fields.iter().any(|(name, _)| *name == "damage")
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
        let item = DumpItem::new(1, "entry")
            .with("key", DumpField::Below("2".into(), Bytes::from_static(b"ab\xff")))
            .number("sequence", 7u64)
            .bytes("value", b"");
        assert_eq!(item.line(false), "  entry  key 2/ab\\xff  sequence 7  value \"\"");
        assert_eq!(item.line(true), "  entry  key 2/6162ff  sequence 7  value \"\"");
        assert_eq!(DumpField::Bytes(Bytes::from_static(b"ab")).shown(false), "ab");
        assert!(!item.is_damage() && DumpItem::damage(0, &"no sum fits").is_damage());
    }
}

//! JSON values whose fields keep the order in which they were written.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// Columns of a line of a golden file.
const WIDTH: usize = 110;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ordered {
    Null,
    Flag(bool),
    /// A number without a fraction, as it is written.
    Integer(String),
    /// A number with one.
    Fraction(String),
    Text(String),
    List(Vec<Ordered>),
    Fields(Vec<(String, Ordered)>),
}

impl Ordered {
    pub(super) fn text(text: impl Into<String>) -> Ordered {
        Ordered::Text(text.into())
    }

    /// A field of an object.
    pub(super) fn field(&self, wanted: &str) -> Option<&Ordered> {
        let Ordered::Fields(fields) = self else { return None };
        fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
    }

    /// On one line if that is short, else one field or element per line.
    pub(super) fn pretty(&self, indent: usize) -> String {
        let line = self.in_one_line();
        if indent + line.len() <= WIDTH {
            return line;
        }
        let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
        let each = |parts: Vec<String>, open: char, close: char| {
            let parts: Vec<String> = parts.into_iter().map(|part| format!("{inner}{part}")).collect();
            format!("{open}\n{}\n{outer}{close}", parts.join(",\n"))
        };
        match self {
            Ordered::List(values) => {
                each(values.iter().map(|value| value.pretty(indent + 2)).collect(), '[', ']')
            }
            Ordered::Fields(fields) => {
                let field = |(name, value): &(String, Ordered)| {
                    format!("{}: {}", quoted(name), value.pretty(indent + 2))
                };
                each(fields.iter().map(field).collect(), '{', '}')
            }
            _ => line,
        }
    }

    fn in_one_line(&self) -> String {
        match self {
            Ordered::Null => "null".to_owned(),
            Ordered::Flag(flag) => flag.to_string(),
            Ordered::Integer(number) | Ordered::Fraction(number) => number.clone(),
            Ordered::Text(text) => quoted(text),
            Ordered::List(values) => {
                let values: Vec<String> = values.iter().map(Ordered::in_one_line).collect();
                format!("[{}]", values.join(", "))
            }
            Ordered::Fields(fields) => {
                let field =
                    |(name, value): &(String, Ordered)| format!("{}: {}", quoted(name), value.in_one_line());
                format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ordered, D::Error> {
        deserializer.deserialize_any(OrderedVisitor)
    }
}

struct OrderedVisitor;

impl<'de> Visitor<'de> for OrderedVisitor {
    type Value = Ordered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Ordered, E> {
        Ok(Ordered::Flag(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Ordered, E> {
        Ok(Ordered::Integer(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Ordered, E> {
        Ok(Ordered::Integer(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Ordered, E> {
        Ok(Ordered::Fraction(format!("{number:?}")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Ordered, E> {
        Ok(Ordered::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ordered, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Ordered::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Ordered::Fields(fields))
    }
}

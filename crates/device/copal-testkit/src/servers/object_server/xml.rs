//! The XML of S3: flat elements, written and read without a parser of the whole language.
//!
//! Not here: comments, CDATA, attributes other than those to skip, empty-element tags.

use std::fmt::Write as _;

const HEADER: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// A document with one root, whose content is XML already.
pub(super) fn document(root: &str, content: &str) -> String {
    format!("{HEADER}<{root} xmlns=\"{NAMESPACE}\">{content}</{root}>")
}

/// Errors of S3 carry no namespace.
pub(super) fn error_document(content: &str) -> String {
    format!("{HEADER}<Error>{content}</Error>")
}

/// Appends `<tag>value</tag>`, with `value` escaped.
pub(super) fn push(xml: &mut String, tag: &str, value: &str) {
    let _ = write!(xml, "<{tag}>{}</{tag}>", escape(value));
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            letter if letter.is_control() => {
                let _ = write!(escaped, "&#x{:x};", u32::from(letter));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(';')?;
        let letter = match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            name => {
                let digits = name.strip_prefix('#')?;
                let number = match digits.strip_prefix('x') {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => digits.parse(),
                };
                char::from_u32(number.ok()?)?
            }
        };
        plain.push(letter);
        plain += rest;
    }
    Some(plain)
}

/// Raw content of each element `tag`, in order. An element of the same name inside one ends it early.
pub(super) fn elements<'a>(xml: &'a str, tag: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
    let mut found = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find(&open) {
        rest = &rest[at + open.len()..];
        if !rest.starts_with(['>', ' ', '\t', '\r', '\n']) {
            continue;
        }
        let Some(begin) = rest.find('>') else { break };
        let Some(end) = rest[begin..].find(&close) else { break };
        found.push(&rest[begin + 1..begin + end]);
        rest = &rest[begin + end + close.len()..];
    }
    found
}

/// Text of the first element `tag`.
pub(super) fn text(xml: &str, tag: &str) -> Option<String> {
    unescape(elements(xml, tag).first()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_the_round() {
        let key = "a<b>&\"'\u{1}ü";
        let mut xml = String::new();
        push(&mut xml, "Key", key);
        assert_eq!(text(&document("Root", &xml), "Key").as_deref(), Some(key));
    }

    #[test]
    fn malformed_elements_are_not_found() {
        assert_eq!(
            elements("<Part><A>1</A></Part><Parts>x</Parts><Part a='b'>2</Part><Part>", "Part").len(),
            2
        );
        assert!(
            ["<Key>a", "<Key", "<Key>&x;</Key>", "<Key>&#xd800;</Key>", "<Key>&</Key>"]
                .iter()
                .all(|xml| text(xml, "Key").is_none())
        );
    }
}

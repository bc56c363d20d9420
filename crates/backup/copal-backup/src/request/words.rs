//! Character rules of names and texts: names of VMs and disks, tags, descriptions.
//!
//! Not here: their maximal lengths (see the formats).

/// Whether a character changes how the text around it is displayed: control characters, which move the cursor
/// of a terminal or forge lines, and marks that reverse the direction of writing.
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Left-to-right and right-to-left marks, the Arabic one, embeddings, overrides, isolates.
            '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Separators of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
        )
}

/// Whether a text is displayed as it is written, and may be stored.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.chars().any(is_deceptive)
}

/// The beginning of a text, at most `max_bytes` long.
pub(crate) fn clip(text: &str, max_bytes: usize) -> String {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_language_are_plain_and_control_characters_are_not() {
        for text in ["web", "Büro 2 (alt)", "база", "قاعدة", "データ", "a\u{200d}b", ""] {
            assert!(is_plain(text), "{text}");
        }
        for text in
            ["\n", "a\tb", "\x1b[2J", "\x7f", "\u{9b}31m", "a\u{202e}b", "\u{2066}", "\u{200f}", "\u{2028}"]
        {
            assert!(!is_plain(text), "{text:?}");
        }
    }
}

//! Counts sentences of comments and pages that use an interrogative pronoun as a noun, and long ones.
//!
//! A sentence ends at a full stop, a question mark or the end of its paragraph, list item or cell. Code
//! blocks are left out; code in a line is one word. Questions may use the pronouns.

use super::{Measures, area, percent};
use crate::tidy::Tree;
use std::{collections::BTreeMap, fmt::Write as _};

/// A sentence with more words counts as long.
const LONG: usize = 35;
/// Files listed in a report.
const WORST: usize = 10;
/// Nouns for people; a pronoun behind one of them is relative.
const PEOPLE: [&str; 14] = [
    "user",
    "users",
    "people",
    "person",
    "someone",
    "anyone",
    "somebody",
    "anybody",
    "everyone",
    "nobody",
    "operator",
    "operators",
    "attacker",
    "administrator",
];

/// A sentence and the first line of its paragraph.
struct Sentence {
    line: usize,
    text: String,
}

/// Number of sentences, and of those that count.
#[derive(Default, Clone, Copy)]
struct Counts {
    sentences: usize,
    nouns: usize,
    long: usize,
}

impl Counts {
    fn add(&mut self, sentence: &Sentence) {
        self.sentences += 1;
        self.nouns += usize::from(has_noun(&sentence.text));
        self.long += usize::from(is_long(&sentence.text));
    }
}

pub(super) fn measure(tree: &Tree) -> Measures {
    let mut measures = Measures::new();
    for (area, counts) in by(tree, area) {
        measures.insert(("who-or-what", area.clone()), counts.nouns);
        measures.insert(("long-sentences", area), counts.long);
    }
    measures
}

pub(super) fn report(tree: &Tree) -> String {
    let mut text = String::from("prose: sentences; with who or what as a noun; over 35 words\n");
    for (area, counts) in by(tree, area) {
        let (nouns, long) = (percent(counts.nouns, counts.sentences), percent(counts.long, counts.sentences));
        let _ = writeln!(
            text,
            "  {area:30} {:6} {:6} {nouns:>7} {:6} {long:>7}",
            counts.sentences, counts.nouns, counts.long
        );
    }
    let mut files: Vec<(String, Counts)> = by(tree, str::to_owned).into_iter().collect();
    files.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.nouns + counts.long));
    let _ = writeln!(text, "  the worst files:");
    for (path, counts) in files.iter().take(WORST) {
        let _ = writeln!(text, "  {path}: {} with who or what, {} long", counts.nouns, counts.long);
    }
    text
}

/// Every sentence below `wanted` that counts, with its place.
pub(super) fn places(tree: &Tree, wanted: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.starts_with(wanted)) {
        for sentence in sentences(path, text) {
            let kind = match (has_noun(&sentence.text), is_long(&sentence.text)) {
                (true, _) => "who or what",
                (false, true) => "long",
                (false, false) => continue,
            };
            found.push(format!("{path}:{}: {kind}: {}", sentence.line, sentence.text));
        }
    }
    found
}

fn by(tree: &Tree, key: impl Fn(&str) -> String) -> BTreeMap<String, Counts> {
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    for (path, text) in tree.files().filter(|(path, _)| *path != "crates/volumes/copal-proto/src/messages.rs")
    {
        let of_key = counts.entry(key(path)).or_default();
        sentences(path, text).iter().for_each(|sentence| of_key.add(sentence));
    }
    counts
}

fn sentences(path: &str, text: &str) -> Vec<Sentence> {
    let mut paragraphs = Paragraphs::default();
    for (index, line) in text.lines().enumerate() {
        match path.ends_with(".rs") {
            true => match line.trim_start().strip_prefix("//") {
                Some(comment) => {
                    let marker = usize::from(comment.starts_with(['/', '!']));
                    paragraphs.line(index + 1, &comment[marker..]);
                }
                None => paragraphs.end(),
            },
            false => paragraphs.line(index + 1, line),
        }
    }
    paragraphs.end();
    paragraphs.sentences
}

/// Joins lines to paragraphs and splits paragraphs into sentences.
#[derive(Default)]
struct Paragraphs {
    begun: usize,
    text: String,
    in_code: bool,
    sentences: Vec<Sentence>,
}

impl Paragraphs {
    fn line(&mut self, number: usize, line: &str) {
        let line = line.trim();
        if line.starts_with("```") {
            self.end();
            self.in_code = !self.in_code;
            return;
        }
        if self.in_code {
            return;
        }
        if let Some(row) = line.strip_prefix('|') {
            self.end();
            for cell in row.split('|') {
                self.append(number, cell.trim());
                self.end();
            }
            return;
        }
        let is_numbered = line.split_once(". ").is_some_and(|(head, _)| {
            head.len() < 3 && !head.is_empty() && head.bytes().all(|b| b.is_ascii_digit())
        });
        if line.is_empty() || line.starts_with(['#', '>']) || is_numbered || is_item(line) {
            self.end();
        }
        self.append(number, line.trim_start_matches(['#', '>', '-', '*', ' ']));
        if line.starts_with('#') {
            self.end();
        }
    }

    fn append(&mut self, number: usize, text: &str) {
        if self.text.is_empty() {
            self.begun = number;
        } else {
            self.text.push(' ');
        }
        self.text.push_str(text);
    }

    fn end(&mut self) {
        let text = without_code(&std::mem::take(&mut self.text));
        let mut rest = text.as_str();
        while !rest.trim().is_empty() {
            let end = rest
                .match_indices(['.', '?', '!'])
                .map(|(at, _)| at + 1)
                .find(|&at| rest[at..].starts_with([' ', ')', '*', '"']) && begins_sentence(&rest[at..]))
                .unwrap_or(rest.len());
            let sentence = rest[..end].trim();
            if sentence.split_whitespace().count() > 1 {
                self.sentences.push(Sentence { line: self.begun, text: sentence.to_owned() });
            }
            rest = &rest[end..];
        }
    }
}

fn is_item(line: &str) -> bool {
    line.starts_with("- ") || line.starts_with("* ")
}

fn begins_sentence(rest: &str) -> bool {
    let mut letters = rest.trim_start_matches([' ', ')', '*', '"', '(', '`', '[']).chars();
    letters.next().is_none_or(|first| first.is_uppercase() || first.is_ascii_digit())
}

/// Text with each span of code replaced by one word, and without the targets of links.
fn without_code(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        kept.push_str(if index % 2 == 0 { part } else { "C" });
    }
    while let Some(at) = kept.find("](") {
        let Some(end) = kept[at..].find(')') else { break };
        kept.replace_range(at..at + end + 1, "");
    }
    kept
}

fn is_long(sentence: &str) -> bool {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count() > LONG
}

fn has_noun(sentence: &str) -> bool {
    if sentence.ends_with('?') {
        return false;
    }
    let mut before = String::new();
    for word in sentence.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty()) {
        let word = word.to_lowercase();
        match word.as_str() {
            "what" | "whatever" | "whoever" | "whomever" => return true,
            "who" | "whom" if !PEOPLE.contains(&before.as_str()) => return true,
            _ => before = word,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_full_stops_and_at_the_ends_of_items_and_cells() {
        let page = "# A head\nOne is `x.y. Z` long. Two\nends (here).\n- item one\n- item two\n\n| a cell | b cell |\n```\nno what\n```\n";
        let found: Vec<String> = sentences("a.md", page).into_iter().map(|sentence| sentence.text).collect();
        let wanted =
            ["A head", "One is C long.", "Two ends (here).", "item one", "item two", "a cell", "b cell"];
        assert_eq!(found, wanted);
        let source = "/// What waits.\nfn what() {} // no comment of its own\n//! Two\n//! lines";
        let found: Vec<String> =
            sentences("a.rs", source).into_iter().map(|sentence| sentence.text).collect();
        assert_eq!(found, ["What waits.", "Two lines"]);
    }

    #[test]
    fn pronouns_count_where_they_stand_for_a_noun() {
        assert!(has_noun("Who asks gets it.") && has_noun("It drops what is old."));
        assert!(!has_noun("Users who ask get it.") && !has_noun("Who asks?"));
        assert!(!is_long(&"word ".repeat(35)) && is_long(&"word ".repeat(36)));
    }
}

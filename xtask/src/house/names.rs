//! Names of types and files: one word, repeated names, participles.
//!
//! Counted are structs, enums, traits and aliases of product code. A name has as many words as capitals; it
//! is repeated when several modules define it.

use super::{Measures, area, percent, product};
use crate::{modules::words, tidy::Tree};
use std::{collections::BTreeMap, fmt::Write as _};

/// Number of definitions from which a name counts as repeated.
const REPEATED: usize = 3;
/// Names listed in a report.
const WORST: usize = 20;
/// Nouns and names of the field with the ending of a participle.
const NOUNS: [&str; 13] = [
    "string",
    "encoding",
    "logging",
    "monitoring",
    "padding",
    "routing",
    "timing",
    "warning",
    "listing",
    "mapping",
    "ring",
    "uring",
    "building",
];
/// Participles of irregular verbs, and adjectives, that were used as file names.
const IRREGULAR: [&str; 14] = [
    "told", "heard", "kept", "held", "given", "taken", "gone", "sent", "known", "untold", "whole", "dead",
    "lost", "found",
];

struct Type {
    name: String,
    path: String,
}

pub(super) fn measure(tree: &Tree) -> Measures {
    let mut measures = Measures::new();
    let all = types(tree);
    for one in &all {
        *measures.entry(("one-word-types", area(&one.path))).or_default() +=
            usize::from(is_one_word(&one.name));
    }
    measures.insert(("repeated-types", "crates".into()), repeated(&all).values().sum());
    for (path, _) in product(tree) {
        *measures.entry(("participle-files", area(path))).or_default() += usize::from(is_participle(path));
    }
    measures
}

pub(super) fn report(tree: &Tree) -> String {
    let all = types(tree);
    let one_word = all.iter().filter(|one| is_one_word(&one.name)).count();
    let repeated = repeated(&all);
    let times: usize = repeated.values().sum();
    let mut text = format!(
        "names: {} types; of one word {one_word} ({}), of a name with {REPEATED} or more definitions {times} ({})\n",
        all.len(),
        percent(one_word, all.len()),
        percent(times, all.len()),
    );
    let mut worst: Vec<_> = repeated.into_iter().collect();
    worst.sort_by_key(|(name, times)| (std::cmp::Reverse(*times), *name));
    let names: Vec<String> =
        worst.iter().take(WORST).map(|(name, times)| format!("{name} {times}")).collect();
    let _ = writeln!(text, "  {}", names.join(", "));
    let files: Vec<&str> = product(tree).map(|(path, _)| path).filter(|path| is_participle(path)).collect();
    let _ = writeln!(text, "  files named by a participle: {}", files.len());
    for path in files {
        let _ = writeln!(text, "    {path}");
    }
    text
}

/// Every one-word type and every file named by a participle below `wanted`.
pub(super) fn places(tree: &Tree, wanted: &str) -> Vec<String> {
    let all = types(tree);
    let repeated = repeated(&all);
    let mut found = Vec::new();
    for one in all.iter().filter(|one| one.path.starts_with(wanted)) {
        match (repeated.get(one.name.as_str()), is_one_word(&one.name)) {
            (Some(times), _) => found.push(format!("{}: type {} stands {times} times", one.path, one.name)),
            (None, true) => found.push(format!("{}: type {} has one word", one.path, one.name)),
            (None, false) => {}
        }
    }
    let files = product(tree).map(|(path, _)| path).filter(|path| path.starts_with(wanted));
    found.extend(files.filter(|path| is_participle(path)).map(|path| format!("{path}: a participle")));
    found
}

fn types(tree: &Tree) -> Vec<Type> {
    let mut found = Vec::new();
    for (path, source) in product(tree).filter(|(path, _)| !path.ends_with("copal-proto/src/messages.rs")) {
        let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let all = words(source);
        for pair in all.windows(2) {
            let is_type = matches!(pair[0], "struct" | "enum" | "trait" | "union");
            if is_type && pair[1].starts_with(char::is_uppercase) {
                found.push(Type { name: pair[1].to_owned(), path: path.to_owned() });
            }
        }
    }
    found
}

/// Names with several definitions, and their numbers.
fn repeated(all: &[Type]) -> BTreeMap<&str, usize> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for one in all {
        *times.entry(&one.name).or_default() += 1;
    }
    times.retain(|_, times| *times >= REPEATED);
    times
}

fn is_one_word(name: &str) -> bool {
    name.chars().filter(|c| c.is_uppercase()).count() < 2
}

fn is_participle(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let stem = match name.strip_suffix(".rs") {
        Some("mod") => path.rsplit('/').nth(1).unwrap_or_default(),
        Some(stem) => stem,
        None => return false,
    };
    let by_ending = stem.ends_with("ing") && !stem.contains('_');
    (by_ending && !NOUNS.contains(&stem)) || IRREGULAR.contains(&stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_counted_by_words_and_by_repeated_names() {
        let file = "struct State; pub(crate) enum QueueState { A } #[cfg(test)]\nmod tests { struct Gone; }";
        let tree = Tree::of(&[
            ("crates/a/b/src/x.rs", file),
            ("crates/a/b/src/y.rs", "struct State;"),
            ("crates/a/c/src/told.rs", "trait State {}"),
            ("crates/a/c/src/tests.rs", "struct Gone;"),
        ]);
        let measures = measure(&tree);
        let of = |name, area: &str| measures[&(name, area.to_owned())];
        assert_eq!((of("one-word-types", "crates/a/b"), of("one-word-types", "crates/a/c")), (2, 1));
        assert_eq!((of("repeated-types", "crates"), of("participle-files", "crates/a/c")), (3, 1));
    }

    #[test]
    fn a_file_is_a_noun() {
        assert!(is_participle("crates/a/src/showing.rs") && is_participle("crates/a/src/rolling/mod.rs"));
        assert!(!is_participle("crates/a/src/monitoring/mod.rs") && !is_participle("crates/a/src/ring.rs"));
    }
}

//! Checks the references between `docs/papers.md` and the code, in both directions.
//!
//! From the table to the code: every `path::item`, every suite of a `cargo xtask bench` and every example of
//! a `cargo run` exists. The columns for code, tests and measurements hold only such references. From the
//! code to the table: the table names every source with a `Paper:` line in its module docs.

use super::{Finding, Tree, tree::module_docs};
use crate::bench::SUITES;

const TABLE: &str = "docs/papers.md";
const PAPERS: [&str; 4] = ["draconis", "elasticbf", "beanfs", "low-profile-dedup"];
const CODE: [&str; 5] = ["crates/", "xtask/", "bench/", "sim/", "tests/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(table) = tree.get(TABLE) else {
        return vec![Finding::error(TABLE, 0, "the table of the papers is missing")];
    };
    let mut findings = Vec::new();
    for (index, row) in table.lines().enumerate() {
        let broken = quoted(row).filter_map(|word| broken_reference(tree, word));
        for what in broken.chain(loose_names(row)) {
            findings.push(Finding::error(TABLE, index + 1, what));
        }
    }
    for (path, source) in tree.sources() {
        for (line, text) in module_docs(source) {
            let Some(cited) = text.strip_prefix("Paper:") else {
                continue;
            };
            if !PAPERS.iter().any(|paper| cited.to_lowercase().contains(paper)) {
                findings.push(Finding::error(path, line, format!("cites none of {}", PAPERS.join(", "))));
            }
            if !table.contains(path) {
                findings.push(Finding::error(path, line, format!("cites a paper and has no row in {TABLE}")));
            }
        }
    }
    findings
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Cells of a row's columns for code, test and measurement that could be references.
fn loose_names(row: &str) -> Vec<String> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let is_head = |cell: &str| cell == "where" || cell.starts_with("---");
    let [_, _, _, code, rest @ ..] = &cells[..] else {
        return Vec::new();
    };
    if !row.starts_with('|') || is_head(code) || *code == "not built" {
        return Vec::new();
    }
    let mut loose = Vec::new();
    let columns = [("where", Some(code)), ("test", rest.first()), ("bench", rest.get(1))];
    for (column, cell) in columns {
        let cell = cell.copied().unwrap_or_default();
        let words = cell.split('`').step_by(2);
        for text in words.map(|text| text.trim_matches([' ', ',', '(', ')'])) {
            if !text.is_empty() {
                loose.push(format!("`{text}` in column {column} is not quoted, so nothing checks it"));
            }
        }
        for word in quoted(cell) {
            let (is_checked, wanted) = match column {
                "where" => (is_path(word), "path/to/file.rs::item"),
                "test" => (is_path(word) && word.contains(".rs::"), "path/to/file.rs::item"),
                _ => (word.starts_with("cargo ") || is_path(word), "cargo xtask bench NAME"),
            };
            if !is_checked {
                loose.push(format!("`{word}` in column {column}: write `{wanted}`"));
            }
        }
    }
    loose
}

fn is_path(word: &str) -> bool {
    CODE.iter().any(|root| word.starts_with(root))
}

/// The fault of one quoted word of the table, if it refers to code, a suite or an example.
fn broken_reference(tree: &Tree, word: &str) -> Option<String> {
    if let Some(rest) = word.strip_prefix("cargo xtask bench ") {
        let suite = rest.split_whitespace().next().unwrap_or_default();
        return (!SUITES.iter().any(|s| s.name == suite) && suite != "NAME")
            .then(|| format!("there is no suite `{suite}`"));
    }
    if let Some(command) = word.strip_prefix("cargo run ") {
        let words: Vec<&str> = command.split_whitespace().collect();
        let behind =
            |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
        let (package, example) = (behind("-p")?, behind("--example")?);
        let path = format!("/{package}/examples/{example}.rs");
        return (!tree.files().any(|(file, _)| file.ends_with(&path)))
            .then(|| format!("`{package}` has no example `{example}`"));
    }
    if !is_path(word) {
        return None;
    }
    let (path, items) = match word.split_once(".rs::") {
        Some((stem, items)) => (format!("{stem}.rs"), Some(items)),
        None => (word.to_owned(), None),
    };
    let Some(source) = tree.get(&path) else {
        return path.ends_with(".rs").then(|| format!("`{path}` does not exist"));
    };
    let item = items?.rsplit("::").next()?.trim_end_matches("()").trim_end_matches('!');
    (!defines(source, item)).then(|| format!("`{path}` defines no `{item}`"))
}

/// Whether `source` defines `item`: a definition, a field or a variant.
fn defines(source: &str, item: &str) -> bool {
    const KEYWORDS: [&str; 9] =
        ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "mod ", "type ", "macro_rules! "];
    KEYWORDS.iter().any(|keyword| {
        source.match_indices(&format!("{keyword}{item}")).any(|(at, found)| {
            !source[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
        })
    }) || source.lines().any(|line| {
        let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        line.strip_prefix(item).is_some_and(|rest| rest.starts_with([',', ':', '(', ' ', '{']))
    })
}

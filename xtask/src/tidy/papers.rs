//! `docs/papers.md` and the code point at each other.
//!
//! From the table to the code: every `path::item` exists, every suite named by `cargo xtask bench` exists.
//! From the code to the table: a source whose module docs carry a `Paper:` line is named in the table.

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
        for word in row.split('`').skip(1).step_by(2) {
            if let Some(what) = broken_reference(tree, word) {
                findings.push(Finding::error(TABLE, index + 1, what));
            }
        }
    }
    for (path, source) in tree.sources() {
        for (line, text) in module_docs(source) {
            let Some(cited) = text.strip_prefix("Paper:") else {
                continue;
            };
            if !PAPERS.iter().any(|paper| cited.to_lowercase().contains(paper)) {
                findings.push(Finding::error(
                    path,
                    line,
                    format!("cites none of {}", PAPERS.join(", ")),
                ));
            }
            if !table.contains(path) {
                findings.push(Finding::error(
                    path,
                    line,
                    format!("cites a paper and has no row in {TABLE}"),
                ));
            }
        }
    }
    findings
}

/// What is wrong with one quoted word of the table, if it refers to code or to a suite.
fn broken_reference(tree: &Tree, word: &str) -> Option<String> {
    if let Some(rest) = word.strip_prefix("cargo xtask bench ") {
        let suite = rest.split_whitespace().next().unwrap_or_default();
        return (!SUITES.iter().any(|s| s.name == suite) && suite != "NAME")
            .then(|| format!("there is no suite `{suite}`"));
    }
    if !CODE.iter().any(|root| word.starts_with(root)) {
        return None;
    }
    let (path, items) = match word.split_once(".rs::") {
        Some((stem, items)) => (format!("{stem}.rs"), Some(items)),
        None => (word.to_owned(), None),
    };
    let Some(source) = tree.get(&path) else {
        return path.ends_with(".rs").then(|| format!("`{path}` does not exist"));
    };
    let item = items?
        .rsplit("::")
        .next()?
        .trim_end_matches("()")
        .trim_end_matches('!');
    (!defines(source, item)).then(|| format!("`{path}` defines no `{item}`"))
}

/// Whether `source` holds a definition, field or variant called `item`.
fn defines(source: &str, item: &str) -> bool {
    const KEYWORDS: [&str; 9] = [
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "const ",
        "static ",
        "mod ",
        "type ",
        "macro_rules! ",
    ];
    KEYWORDS.iter().any(|keyword| {
        source
            .match_indices(&format!("{keyword}{item}"))
            .any(|(at, found)| {
                !source[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            })
    }) || source.lines().any(|line| {
        let line = line
            .trim_start()
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ");
        line.strip_prefix(item)
            .is_some_and(|rest| rest.starts_with([',', ':', '(', ' ', '{']))
    })
}

//! Rules about single source files: first lines, names, size, forbidden marks.

use super::{Finding, Tree, tree::module_docs};

/// File names that collect unrelated items; each idea gets its own file.
const BANNED_NAMES: [&str; 9] =
    ["util", "utils", "common", "core", "types", "helper", "helpers", "misc", "stuff"];

/// Crate names without a meaning; a file inside a named crate may use them.
const BANNED_CRATES: [&str; 1] = ["shared"];

/// A longer file probably holds a second idea.
const LONG_FILE_LINES: usize = 1000;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        name(path, &mut findings);
        first_lines(path, source, &mut findings);
        marks(path, source, &mut findings);
        let lines = source.lines().count();
        if lines > LONG_FILE_LINES {
            findings.push(Finding::remark(
                path,
                0,
                format!("{lines} lines; which second idea can move to its own file?"),
            ));
        }
    }
    findings
}

fn name(path: &str, findings: &mut Vec<Finding>) {
    for part in path.split('/') {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        let (stem, is_crate) = match stem.strip_prefix("copal-") {
            Some(stem) => (stem, true),
            None => (stem, false),
        };
        if BANNED_NAMES.contains(&stem) || is_crate && BANNED_CRATES.contains(&stem) {
            findings.push(Finding::error(path, 0, format!("`{stem}` says nothing; name the idea")));
        }
    }
}

/// The docs of the tested file describe a sibling `tests.rs`.
fn first_lines(path: &str, source: &str, findings: &mut Vec<Finding>) {
    if path.ends_with("/tests.rs") {
        return;
    }
    match module_docs(source).next() {
        None => findings.push(Finding::error(path, 1, "no module docs (`//!`): describe the file")),
        Some((line, text)) if text.len() < 8 => {
            findings.push(Finding::error(path, line, "the first line of the module docs says nothing"));
        }
        Some(_) => {}
    }
}

/// Marks of unfinished or silenced code. Each is spelled in two halves, so that this file does not match.
fn marks(path: &str, source: &str, findings: &mut Vec<Finding>) {
    let forbidden = [
        (concat!("#[", "ignore"), "an ignored test proves nothing; run it or delete it"),
        (concat!("todo", "!("), "unfinished code does not land"),
        (concat!("unimplemented", "!("), "unfinished code does not land"),
        (concat!("dbg", "!("), "left over from debugging"),
    ];
    for (index, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for (mark, why) in forbidden {
            if code.contains(mark) {
                findings.push(Finding::error(path, index + 1, format!("`{mark}`: {why}")));
            }
        }
        let allows = code.contains(concat!("#[", "allow(")) || code.contains(concat!("#![", "allow("));
        if allows && !attribute_text(source, index).contains("reason") {
            findings.push(Finding::error(
                path,
                index + 1,
                "`allow` without a reason; prefer `expect(.., reason = \"..\")`",
            ));
        }
    }
}

/// The attribute that opens on line `index`, to its closing bracket, at most ten lines.
fn attribute_text(source: &str, index: usize) -> String {
    let mut text = String::new();
    for line in source.lines().skip(index).take(10) {
        text.push_str(line);
        if line.trim_end().ends_with(']') {
            break;
        }
    }
    text
}

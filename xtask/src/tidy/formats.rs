//! Checks that a format page was reviewed with every change of the code that it specifies.
//!
//! A page in `docs/formats/` names its code: `Source: path sha256:hex`. The hash records that page and
//! source were read together. When the source changes, the check fails until `--fix` records the new hash.
//!
//! In the other direction, a `Format: docs/formats/x.md` in module docs must name an existing page. A page
//! must name every `format.rs` and every file of a `format/` directory that has a `Format:` line.

use super::{Finding, Tree, tree::module_docs};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

const PAGES: &str = "docs/formats/";
const NO_SOURCE: &str =
    "this page names no code: add `Source: path sha256:`, then run `cargo xtask tidy --fix`";
const NO_PAGE: &str = "no page of docs/formats names this format as its `Source:`";

struct SourceLine<'a> {
    line: usize,
    path: &'a str,
    recorded: &'a str,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut specified = BTreeSet::new();
    for (page, content) in pages(tree) {
        if source_lines(content).next().is_none() {
            findings.push(Finding::error(page, 0, NO_SOURCE));
        }
        for source in source_lines(content) {
            specified.insert(source.path);
            match tree.get(source.path) {
                None => findings.push(Finding::error(
                    page,
                    source.line,
                    format!("`{}` does not exist", source.path),
                )),
                Some(code) if hash(code) != source.recorded => findings.push(Finding::error(
                    page,
                    source.line,
                    format!("`{}` changed; read both, then run `cargo xtask tidy --fix`", source.path),
                )),
                Some(_) => {}
            }
        }
    }
    for (path, source) in tree.sources() {
        let mut named = false;
        for (line, text) in module_docs(source) {
            let Some(rest) = text.strip_prefix("Format:") else {
                continue;
            };
            named = true;
            for page in named_pages(rest) {
                if tree.get(page).is_none() {
                    findings.push(Finding::error(path, line, format!("`{page}` does not exist")));
                }
            }
        }
        if path.ends_with("/format.rs") && !named {
            findings.push(Finding::error(path, 1, "a format without a `Format: docs/formats/...` line"));
        } else if is_format(path) && named && !specified.contains(path) {
            findings.push(Finding::error(path, 1, NO_PAGE));
        }
    }
    findings
}

/// Whether the name of a file marks a format: `format.rs`, or a file of a `format/` directory.
fn is_format(path: &str) -> bool {
    let is_part = path.contains("/format/") && !path.ends_with("/mod.rs") && !path.ends_with("/tests.rs");
    is_part || path.ends_with("/format.rs")
}

/// Writes the current hash of every source into its page; returns the changed pages.
pub(super) fn rewrite_hashes(root: &Path, tree: &Tree) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    for (page, content) in pages(tree) {
        let mut fresh = content.to_owned();
        for source in source_lines(content) {
            if let Some(code) = tree.get(source.path) {
                let old = format!("Source: {} sha256:{}", source.path, source.recorded);
                fresh = fresh.replace(&old, &format!("Source: {} sha256:{}", source.path, hash(code)));
            }
        }
        if fresh != content {
            fs::write(root.join(page), fresh).with_context(|| format!("writing {page}"))?;
            changed.push(page.to_owned());
        }
    }
    Ok(changed)
}

fn pages(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.files().filter(|(path, _)| path.starts_with(PAGES) && !path.ends_with("README.md"))
}

fn source_lines(page: &str) -> impl Iterator<Item = SourceLine<'_>> {
    page.lines().enumerate().filter_map(|(index, text)| {
        let (path, recorded) = text.trim().strip_prefix("Source: ")?.split_once(" sha256:")?;
        Some(SourceLine { line: index + 1, path: path.trim(), recorded: recorded.trim() })
    })
}

/// The words of a `Format:` line that look like pages.
fn named_pages(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '`' | '(' | ')'))
        .map(|word| word.split('#').next().unwrap_or(word).trim_end_matches('.'))
        .filter(|word| word.starts_with(PAGES) && word.ends_with(".md"))
}

pub(super) fn hash(code: &str) -> String {
    Sha256::digest(code.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

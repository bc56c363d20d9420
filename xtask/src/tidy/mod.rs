//! Automatic checks of sources and documents, in place of a reviewer's.
//!
//! Each check is a pure function over a `Tree` that is read once from disk and returns `Finding`s. `--fix`
//! rewrites only records: the hash of a source in its format page.
//!
//! Not here: formatting and lints (`ci` runs rustfmt and clippy), crate order (`layers`).

mod design;
mod formats;
mod papers;
mod sources;
#[cfg(test)]
mod tests;
mod tree;

use anyhow::{Result, bail};
use std::{fmt, path::Path};
pub(crate) use tree::Tree;

/// One fault, with its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Line from 1; 0 for the whole file.
    pub(crate) line: usize,
    pub(crate) what: String,
    /// A remark is printed and does not fail the run.
    pub(crate) remark: bool,
}

impl Finding {
    fn error(path: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line, what: what.into(), remark: false }
    }
    fn remark(path: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { remark: true, ..Finding::error(path, line, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.remark { "note: " } else { "" };
        match self.line {
            0 => write!(f, "{}: {kind}{}", self.path, self.what),
            line => write!(f, "{}:{line}: {kind}{}", self.path, self.what),
        }
    }
}

/// Runs every check under `root`; with `fix`, first rewrites the hashes of format sources.
pub(crate) fn run(root: &Path, fix: bool) -> Result<()> {
    if fix {
        for page in formats::rewrite_hashes(root, &Tree::read(root)?)? {
            println!("tidy: recorded the new hash in {page}");
        }
    }
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|f| !f.remark).count();
    if errors > 0 {
        bail!("tidy: {errors} findings in {} files", tree.files().count());
    }
    crate::house::check(root, &tree, fix)?;
    println!("tidy: {} files, nothing to repair", tree.files().count());
    Ok(())
}

/// Prints the measures, or each counted sentence and name below the path `area`.
pub(crate) fn report(root: &Path, area: Option<&str>) -> Result<()> {
    crate::house::report(root, &Tree::read(root)?, area)
}

/// All findings, in the order of the checks.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = sources::check(tree);
    findings.extend(formats::check(tree));
    findings.extend(papers::check(tree));
    findings.extend(design::check(tree));
    findings
}

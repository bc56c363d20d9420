//! Text files of the repository, read once: Rust sources and documents, by path from the root.
//!
//! Not here: the checks of these files (`sources`, `formats`, `papers`).

use anyhow::{Context, Result};
use std::{collections::BTreeMap, fs, path::Path};

const ROOTS: [&str; 8] = ["crates", "xtask", "bench", "sim", "tests", "fuzz", "docs", "proto"];
/// Pages beside the manifest.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
const SKIPPED_DIRECTORIES: [&str; 4] = ["target", "results", ".git", ".cache"];

/// Path from the root, with `/`, to content.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        for directory in ROOTS {
            let path = root.join(directory);
            if path.is_dir() {
                tree.walk(&path, directory)?;
            }
        }
        for page in PAGES {
            if let Ok(text) = fs::read_to_string(root.join(page)) {
                tree.files.insert(page.to_owned(), text);
            }
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(p, c)| ((*p).to_owned(), (*c).to_owned())).collect() }
    }

    fn walk(&mut self, directory: &Path, name: &str) -> Result<()> {
        for entry in fs::read_dir(directory).with_context(|| format!("reading {name}"))? {
            let entry = entry?;
            let file_name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{name}/{file_name}");
            if entry.file_type()?.is_dir() {
                if !SKIPPED_DIRECTORIES.contains(&file_name.as_str()) {
                    self.walk(&entry.path(), &path)?;
                }
            } else if file_name.ends_with(".rs") || file_name.ends_with(".md") {
                let content = fs::read_to_string(entry.path()).with_context(|| format!("reading {path}"))?;
                self.files.insert(path, content);
            }
        }
        Ok(())
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, content)| (path.as_str(), content.as_str()))
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

/// The `//!` lines that open a source file, without their marker.
pub(crate) fn module_docs(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source
        .lines()
        .enumerate()
        .take_while(|(_, line)| {
            let line = line.trim_start();
            line.is_empty() || line.starts_with("//!") || line.starts_with("#!")
        })
        .filter_map(|(index, line)| Some((index + 1, line.trim_start().strip_prefix("//!")?.trim())))
}

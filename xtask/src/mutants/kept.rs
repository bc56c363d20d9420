//! Mutants that once survived: each is a patch that breaks one safety line, with the test that must fail.
//!
//! A patch is `xtask/mutants/NAME.patch`. Its first line is `# test: ` and the arguments of `cargo test`; its
//! second describes the broken behaviour in a sentence. `cargo xtask mutants --kept` applies them one after
//! the other: the test has to pass without the patch, then to fail with it.
//!
//! Invariant: the patch is reverted at the end of each trial, also after an error.

use anyhow::{Context, Result, bail, ensure};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Folder of the patches, from the root of the repository.
const PATCHES: &str = "xtask/mutants";

/// Tries the patches with one of the words `wanted` in their name; without words all of them.
pub(crate) fn run(root: &Path, wanted: &[String]) -> Result<()> {
    let mut tried = 0;
    let mut survivors = Vec::new();
    for patch in patches(root)? {
        if !wanted.is_empty() && !wanted.iter().any(|part| patch.name.contains(part)) {
            continue;
        }
        tried += 1;
        println!("{}: {}", patch.name, patch.breaks);
        ensure!(patch.test(root)?, "the test of {} fails without the patch; mend that first", patch.name);
        let applied = Applied::new(root, &patch)?;
        let passes = patch.test(root)?;
        drop(applied);
        match passes {
            true => survivors.push(patch.name),
            false => println!("{}: noticed", patch.name),
        }
    }
    ensure!(tried > 0, "no patch in {PATCHES} has that name");
    if !survivors.is_empty() {
        bail!("no test noticed {}", survivors.join(", "));
    }
    println!("all {tried} were noticed");
    Ok(())
}

/// One broken line, and the test that must fail.
struct Patch {
    name: String,
    path: PathBuf,
    test: Vec<String>,
    breaks: String,
}

impl Patch {
    fn read(path: &Path) -> Result<Patch> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut lines = text.lines();
        let mut after = |mark: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(mark));
            line.map(str::to_owned).with_context(|| format!("{name} does not begin with `{mark}`"))
        };
        let test = after("# test: ")?.split_whitespace().map(str::to_owned).collect();
        let breaks = after("# breaks: ")?;
        Ok(Patch { name, path: path.to_owned(), test, breaks })
    }

    /// Whether its test passes. A patch that does not compile is not a mutant: that is an error.
    fn test(&self, root: &Path) -> Result<bool> {
        let cargo = |more: &[&str]| {
            let status = Command::new("cargo")
                .arg("test")
                .arg("--quiet")
                .args(&self.test)
                .args(more)
                .current_dir(root)
                .status();
            status.context("running cargo test")
        };
        let builds = cargo(&["--no-run"])?.success();
        ensure!(builds, "{} does not compile", self.name);
        Ok(cargo(&[])?.success())
    }
}

/// An applied patch; the drop reverts it.
struct Applied<'a> {
    root: &'a Path,
    patch: &'a Patch,
}

impl<'a> Applied<'a> {
    fn new(root: &'a Path, patch: &'a Patch) -> Result<Applied<'a>> {
        git_apply(root, patch, &[])?;
        Ok(Applied { root, patch })
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if let Err(error) = git_apply(self.root, self.patch, &["--reverse"]) {
            println!("{error:#}; `git apply --reverse {}` takes it back", self.patch.path.display());
        }
    }
}

fn git_apply(root: &Path, patch: &Patch, more: &[&str]) -> Result<()> {
    let output = Command::new("git")
        .arg("apply")
        .args(more)
        .arg(&patch.path)
        .current_dir(root)
        .output()
        .context("running git")?;
    ensure!(
        output.status.success(),
        "{} does not fit the sources any more: {}",
        patch.name,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn patches(root: &Path) -> Result<Vec<Patch>> {
    let directory = root.join(PATCHES);
    let entries =
        std::fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Patch::read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Detects a patch that no longer fits in `cargo test`, since complete runs of the patches are rare.
    #[test]
    fn every_kept_mutant_fits_the_sources_and_names_its_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let patches = patches(root).unwrap();
        assert!(!patches.is_empty());
        for patch in patches {
            git_apply(root, &patch, &["--check"]).unwrap();
            assert_eq!(patch.test.first().map(String::as_str), Some("-p"), "{}", patch.name);
        }
    }
}

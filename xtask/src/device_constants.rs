//! Checks that no crate above the object store knows a device.
//!
//! Layers above `copal-object` hand over the ranges that they want. They have no constant for a page, gap, window
//! or read-ahead of a device, and do not ask for its page cache.
//!
//! Not here: constants of tests; the order of the crates (`layers`).

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Parts of the names of constants that guess a device.
const NAMES: [&str; 6] = ["GAP_BYTES", "WINDOW_BYTES", "PAGE_BYTES", "READ_BYTES", "READ_AHEAD", "READAHEAD"];
/// Calls that ask for the page cache of a device.
const CALLS: [&str; 3] = [".page_cache()", ".has_page_cache()", "dyn PageCache"];
/// Allowed constants: file below `crates`, name, reason.
const ALLOWED: [(&str, &str, &str); 10] = [
    ("volumes/copal-proto/src/class.rs", "PAGE_BYTES", "a page of a list in an answer"),
    ("backup/copal-agent/src/server/outbox.rs", "PAGE_BYTES", "a page of messages to the network"),
    ("backup/copal-agent/src/rounds/parts.rs", "PAGE_BYTES", "part of a disk in a report"),
    ("backup/copal-export/src/overlay/format.rs", "PAGE_BYTES", "unit of the overlay's format"),
    ("backup/copal-export/src/mount/filesystem.rs", "READ_BYTES", "largest read that the kernel requests"),
    (
        "backup/copal-disk/src/source/dirty_runs.rs",
        "FIRST_GAP_BYTES",
        "memory for the changes of a VM's disk",
    ),
    ("backup/copal-disk/src/source/image_check.rs", "READ_BYTES", "reads the image of a VM, not a store"),
    ("backup/copal-nbd/src/wire.rs", "READ_BYTES", "limit of the NBD protocol"),
    ("backup/copal-backup/src/snapshot/recipe/mod.rs", "PAGE_BYTES", "unit of the recipe's format"),
    ("app/copal/src/commands/cluster/fs_run.rs", "READ_AHEAD", "names of files that an upload lists ahead"),
];
/// The engine's log in the page cache of a device, the one user of that cache.
const PAGE_CACHE_LOG: [&str; 2] =
    ["kv/copal-kv/src/write/page_cache_log/", "kv/copal-kv/src/open/page_cache_log.rs"];

/// The findings in all product code of the layers in `folders` of `crates`.
pub(crate) fn faults(root: &Path, folders: &[&str]) -> Result<Vec<String>> {
    let crates = root.join("crates");
    let mut files = Vec::new();
    for folder in folders {
        collect(&crates.join(folder), &mut files)?;
    }
    files.sort();
    let mut faults = Vec::new();
    let mut seen = Vec::new();
    for file in files {
        let name = file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        faults.extend(faults_of(&name, &text, &mut seen));
    }
    let unused = ALLOWED.iter().filter(|(file, name, _)| !seen.iter().any(|(f, n)| f == file && n == name));
    let unused =
        unused.map(|(file, name, _)| format!("{file} has no {name} any more: remove it from the list"));
    faults.extend(unused);
    Ok(faults)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_test = ["tests", "examples", "benches"].contains(&&*name) || name.ends_with("tests.rs");
        if is_test {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The findings in one file; allowed constants go to `seen`.
fn faults_of(file: &str, text: &str, seen: &mut Vec<(String, String)>) -> Vec<String> {
    let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(product.lines()) {
        let code = line.split("//").next().unwrap_or(line);
        if let Some(name) = constant(code)
            && NAMES.iter().any(|part| name.contains(part))
        {
            if ALLOWED.iter().any(|(allowed, known, _)| *allowed == file && *known == name) {
                seen.push((file.to_owned(), name.to_owned()));
            } else {
                faults.push(format!(
                    "crates/{file}:{number}: {name} guesses a device; hand the ranges to the object store"
                ));
            }
        }
        if CALLS.iter().any(|call| code.contains(call))
            && !PAGE_CACHE_LOG.iter().any(|log| file.starts_with(log))
        {
            faults.push(format!(
                "crates/{file}:{number}: asks for the page cache, which only the engine's log uses"
            ));
        }
    }
    faults
}

/// The name of a constant that the line declares.
fn constant(code: &str) -> Option<&str> {
    let (before, rest) = code.split_once("const ")?;
    let is_declared = before.trim().is_empty() || before.trim_start().starts_with("pub");
    let (name, _) = rest.split_once(':')?;
    let name = name.trim();
    let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    (is_declared && is_name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        faults_of(file, text, &mut Vec::new())
    }

    #[test]
    fn a_planted_constant_of_a_device_is_found() {
        let file = "backup/copal-backup/src/snapshot/fetch.rs";
        for planted in [
            "const GAP_BYTES: u64 = 16 << 10;",
            "    pub(crate) const FIRST_WINDOW_BYTES: usize = 1;",
            "pub const READ_AHEAD: u64 = 1;",
            "const READ_BYTES: u64 = 1 << 20; // of a disk",
            "pub(super) const PAGE_BYTES: u64 = 4096;",
        ] {
            let faults = found(file, &format!("//! Text.\n{planted}\n"));
            assert_eq!(faults.len(), 1, "{planted}");
            assert!(
                faults[0].starts_with("crates/backup/copal-backup/src/snapshot/fetch.rs:2: "),
                "{faults:?}"
            );
        }
        for fine in ["const PIECES: u64 = 1;", "// const GAP_BYTES: u64 = 1;", "let x = Self::GAP_BYTES;"] {
            assert!(found(file, fine).is_empty(), "{fine}");
        }
        let tested = "fn f() {}\n#[cfg(test)]\nmod tests {\n    const PAGE_BYTES: u64 = 1;\n}\n";
        assert!(found(file, tested).is_empty());
    }

    #[test]
    fn a_constant_is_allowed_in_its_file_only() {
        let line = "pub(super) const PAGE_BYTES: u64 = 4096;\n";
        let mut seen = Vec::new();
        assert!(faults_of("backup/copal-export/src/overlay/format.rs", line, &mut seen).is_empty());
        assert_eq!(seen.len(), 1);
        assert_eq!(found("backup/copal-export/src/overlay/read.rs", line).len(), 1);
    }

    #[test]
    fn the_page_cache_is_for_the_engines_log_only() {
        let line = "if store.has_page_cache() {}";
        assert!(found("kv/copal-kv/src/write/page_cache_log/mod.rs", line).is_empty());
        assert_eq!(found("kv/copal-kv/src/write/log/mod.rs", line).len(), 1);
    }
}

//! Call paths of the engine: the source files that one durable put and one get run through.
//!
//! Runs the example `put_get_once` of `copal-kv` under callgrind, which attributes each instruction to its
//! source file, inlined functions included. Only the calling thread counts, from the call of the engine to
//! its return, and only sources of `crates/`.
//!
//! Not here: bounds. The numbers are printed for people; no build fails by them.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const EXAMPLE: &str = "put_get_once";
const OPERATIONS: [&str; 2] = ["put", "get"];

/// Measures both operations and prints their files, or only their numbers as JSON.
/// # Errors
/// valgrind is not installed, or the example does not build or fails.
pub(crate) fn run(root: &Path, json: bool) -> Result<()> {
    require_valgrind()?;
    let program = build(root)?;
    let mut numbers = serde_json::Map::new();
    for operation in OPERATIONS {
        let files = measure(root, &program, operation)?;
        if !json {
            println!("callpath: one {operation} runs through {} files", files.len());
            files.iter().for_each(|file| println!("  {file}"));
        }
        numbers.insert(operation.to_owned(), json!({ "files": files.len(), "paths": files }));
    }
    if json {
        println!("{}", serde_json::Value::Object(numbers));
    }
    Ok(())
}

fn require_valgrind() -> Result<()> {
    let asked = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    match asked {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("valgrind is not installed: run `scripts/install-deps.sh callpath` first")
        }
        Ok(status) => bail!("`valgrind --version` failed ({status})"),
        Err(error) => Err(error).context("starting valgrind"),
    }
}

/// Builds the example with the debug information of the development profile; returns its program.
fn build(root: &Path) -> Result<PathBuf> {
    let built = Command::new("cargo")
        .args(["build", "--locked", "--package", "copal-kv", "--example", EXAMPLE])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !built.status.success() {
        bail!("the example {EXAMPLE} does not build ({})", built.status);
    }
    let messages = String::from_utf8(built.stdout).context("cargo's messages are no text")?;
    program_in(&messages).with_context(|| format!("cargo names no program of the example {EXAMPLE}"))
}

/// The program of the example in cargo's messages, one JSON object a line.
fn program_in(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let of_example = |message: &serde_json::Value| message["target"]["name"] == EXAMPLE;
    messages.filter(of_example).find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// The files of `crates/` that one operation runs through on its thread.
fn measure(root: &Path, program: &Path, operation: &str) -> Result<BTreeSet<String>> {
    let scratch = tempfile::tempdir().context("making a folder for callgrind's output")?;
    let profile = scratch.path().join("profile");
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-line=yes", "--quiet"])
        .arg(format!("--toggle-collect=*{EXAMPLE}::measured_{operation}*"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .arg(operation)
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("starting valgrind")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("the example {EXAMPLE} fails under valgrind ({}): {said}", done.status);
    }
    let profile = std::fs::read_to_string(&profile).context("reading callgrind's output")?;
    let files = files_of(&profile, root);
    if files.is_empty() {
        bail!("callgrind saw no source of crates/ in a {operation}: the build has no debug information");
    }
    Ok(files)
}

/// Sources of `crates/` in a profile that have a cost of their own; examples are the caller.
fn files_of(profile: &str, root: &Path) -> BTreeSet<String> {
    let root = format!("{}/", root.display());
    // A file's name stands once, at its number's first use.
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut current = "";
    let mut found = BTreeSet::new();
    for line in profile.lines() {
        if let Some((key, value)) = line.split_once('=') {
            let is_file = matches!(key, "fl" | "fi" | "fe" | "cfi" | "cfl");
            if is_file && let Some((number, name)) = value.split_once(')') {
                if !name.is_empty() {
                    names.insert(number, name.trim());
                }
                if matches!(key, "fl" | "fi" | "fe") {
                    current = number;
                }
            }
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let name = names.get(current).copied().unwrap_or_default();
            let name = name.strip_prefix(&root).unwrap_or(name);
            if name.starts_with("crates/") && !name.contains("/examples/") {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_once_if_it_has_a_cost_and_lies_in_crates() {
        let profile = "\
events: Ir
fl=(1) /root/crates/kv/copal-kv/src/api/keyspace.rs
fn=(1) put
10 3
fi=(2) /rustc/abc/library/stdarch/crates/core_arch/src/x86.rs
+1 4
fe=(1)
12 1
cfi=(3) /root/crates/kv/copal-kv/src/engine.rs
cfn=(2) commit
calls=1 20
13 100
fl=(4) crates/kv/copal-kv/examples/put_get_once.rs
5 1
fl=(5) crates/kv/copal-kv/src/signal.rs

fl=(3)
20 7
";
        let files = files_of(profile, Path::new("/root"));
        let expected = ["crates/kv/copal-kv/src/api/keyspace.rs", "crates/kv/copal-kv/src/engine.rs"];
        assert_eq!(files.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_program_is_that_of_the_example() {
        let messages = "\
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"copal_kv\"},\"executable\":null}
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"put_get_once\"},\"executable\":\"/t/put_get_once\"}
{\"reason\":\"build-finished\",\"success\":true}
";
        assert_eq!(program_in(messages), Some(PathBuf::from("/t/put_get_once")));
        assert_eq!(program_in("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }
}

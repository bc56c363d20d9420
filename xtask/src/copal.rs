//! The built `copal` binary under the meter: command lines of a user, with `--json`, and their cost.
//!
//! Not here: knowledge of a repository's format; this module uses the command line only.

use crate::metered::{self, Run};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// One repository and the binary that works on it.
pub struct Copal {
    binary: PathBuf,
    repository: PathBuf,
    password_file: PathBuf,
}

/// A finished command: its cost and the summary it printed.
pub struct Done {
    /// Cost of the run.
    pub run: Run,
    /// Its JSON line of type `summary`; null if it printed none.
    pub summary: Value,
}

impl Done {
    /// A number of the summary by its name, at any depth; 0 when absent.
    pub fn number(&self, name: &str) -> u64 {
        find(&self.summary, name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// A string of the summary by its name.
    pub fn text(&self, name: &str) -> Option<&str> {
        find(&self.summary, name).and_then(Value::as_str)
    }
}

fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(name).or_else(|| map.values().find_map(|inner| find(inner, name))),
        Value::Array(items) => items.iter().find_map(|inner| find(inner, name)),
        _ => None,
    }
}

/// Builds the release binary and returns its path.
///
/// # Errors
/// The build fails; its output has been shown.
pub fn build_release(root: &Path) -> Result<PathBuf> {
    build(root, "release", &["--package", "copal"])
}

/// Builds the binary with the profile `demo`, in a third of the time of a release, and returns its path.
///
/// # Errors
/// The build fails; its output has been shown.
pub fn build_demo(root: &Path) -> Result<PathBuf> {
    // The same packages as in the Makefile: with others, shared dependencies would have other features, and would be
    // compiled again.
    build(root, "demo", &["--package", "copal", "--package", "xtask"])
}

fn build(root: &Path, profile: &str, packages: &[&str]) -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--locked", "--profile", profile])
        .args(packages)
        .current_dir(root)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("building copal failed");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join(profile).join("copal"))
}

impl Copal {
    /// A repository at `repository`, which `init` creates later; its password lies in a file beside it.
    ///
    /// # Errors
    /// The password file cannot be written.
    pub fn new(binary: &Path, repository: &Path) -> Result<Copal> {
        let password_file = repository.with_extension("password");
        fs::write(&password_file, "correct horse battery staple\n").context("writing a password file")?;
        Ok(Copal { binary: binary.to_owned(), repository: repository.to_owned(), password_file })
    }

    /// Its path.
    pub fn repository(&self) -> &Path {
        &self.repository
    }

    /// Its password file.
    pub fn password_file(&self) -> &Path {
        &self.password_file
    }

    /// Creates the repository.
    ///
    /// # Errors
    /// `copal init` fails.
    pub fn init(&self) -> Result<Done> {
        self.run("init", &[] as &[&str])
    }

    /// Backs up one disk of `vm`. A list of changes is relative to the newest snapshot; the cost excludes the
    /// command that looks that snapshot up.
    ///
    /// # Errors
    /// `copal backup` fails.
    pub fn backup(&self, vm: &str, image: &Path, changed_extents: Option<&Path>) -> Result<Done> {
        let base = changed_extents.map(|_| self.newest(vm)).transpose()?.flatten();
        let mut arguments: Vec<&OsStr> = vec!["--vm".as_ref(), vm.as_ref()];
        if let Some(path) = changed_extents {
            arguments.extend(["--changed-extents".as_ref(), path.as_os_str()]);
        }
        if let Some(base) = &base {
            arguments.extend([OsStr::new("--base"), OsStr::new(base)]);
        }
        arguments.push(image.as_os_str());
        self.run("backup", &arguments)
    }

    /// The newest snapshot of a VM, if it has one.
    fn newest(&self, vm: &str) -> Result<Option<String>> {
        // `copal` answers an error for a VM that has no backup.
        let listed = self.run("snapshots", &[] as &[&str])?.summary;
        let mut snapshots = listed["snapshots"].as_array().into_iter().flatten();
        let newest = snapshots.rfind(|snapshot| snapshot["vm"]["name"] == vm);
        Ok(newest.and_then(|snapshot| snapshot["id"].as_str()).map(str::to_owned))
    }

    /// Restores a snapshot's disk into a new file.
    ///
    /// # Errors
    /// `copal restore` fails.
    pub fn restore(&self, snapshot: &str, target: &Path) -> Result<Done> {
        self.run("restore", &[snapshot.as_ref(), "--target".as_ref(), target.as_os_str()])
    }

    /// Runs any command, with `--repo` and `--json`.
    ///
    /// # Errors
    /// The command cannot be started, or exits with another code than 0.
    pub fn run(&self, command: &str, arguments: &[impl AsRef<OsStr>]) -> Result<Done> {
        let mut process = Command::new(&self.binary);
        process
            .arg(command)
            .arg("--repo")
            .arg(&self.repository)
            .arg("--json")
            .args(arguments)
            .env_remove("COPAL_REPOSITORY")
            .env("COPAL_PASSWORD_FILE", &self.password_file);
        let run = metered::run(&mut process)?.success(&format!("copal {command}"))?;
        let summary = run
            .stdout
            .lines()
            .rev()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line.get("message_type").and_then(Value::as_str) == Some("summary"))
            .unwrap_or(Value::Null);
        Ok(Done { run, summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_wherever_it_stands() {
        let text =
            r#"{"message_type":"summary","counts":{"read_bytes":7},"disks":[{"name":"sda","mode":"full"}]}"#;
        let done = Done { run: Run::default(), summary: serde_json::from_str(text).expect("valid") };
        assert_eq!(done.number("read_bytes"), 7);
        assert_eq!(done.number("absent"), 0);
        assert_eq!(done.text("mode"), Some("full"));
    }
}

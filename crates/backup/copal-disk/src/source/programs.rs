//! Programs of QEMU that a source is read through: where they are, and what they get to see.
//!
//! Invariant: a helper inherits no secrets. Its environment is made of the names below, so a password that
//! was given to this process in a variable stays here.

use std::{
    ffi::OsString,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What a helper needs of our environment.
const HANDED_ON: [&str; 4] = ["PATH", "LANG", "TMPDIR", "HOME"];

/// Longest answer of `qemu-img` that is read, in bytes.
const INFO_BYTES: u64 = 16 << 20;

/// A command in a clean environment.
pub(super) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear();
    command.envs(HANDED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// What `qemu-img info` says of a qcow2 image, as JSON; `None` where it is missing or does not tell.
pub(super) fn image_info(image: &Path, more: &[&str]) -> Option<Vec<u8>> {
    let mut command = command(find("qemu-img")?);
    command.args(["info", "--force-share", "--format=qcow2", "--output=json"]);
    let mut child = command
        .args(more)
        .arg("--")
        .arg(std::path::absolute(image).ok()?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut text = Vec::new();
    let read = child.stdout.take()?.take(INFO_BYTES).read_to_end(&mut text);
    let ended = child.wait().ok()?;
    (read.is_ok() && ended.success()).then_some(text)
}

/// Where programs are looked for by a process without a `PATH`, as services and jobs of cron may be.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Looks a program up as a shell would.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    find_in(std::env::var_os("PATH"), name)
}

fn find_in(path: Option<OsString>, name: &str) -> Option<PathBuf> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or_else(|| USUAL.into());
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| {
        program.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: without a `PATH` a qcow2 image could not be read, though `qemu-img` was installed. Cause: no
    /// `PATH` was no directories. Fix: the usual ones.
    #[test]
    fn programs_are_found_without_a_path() {
        for path in [None, Some(OsString::new())] {
            assert!(find_in(path.clone(), "sh").is_some_and(|found| found.is_absolute()), "{path:?}");
        }
        assert_eq!(find_in(Some("/nowhere".into()), "sh"), None);
    }
}

//! Helper programs of QEMU: their lookup and their environment.
//!
//! Invariant: a helper inherits no secrets. Its environment holds only the variables below, so a password in
//! a variable of this process is not passed on.

use std::{
    ffi::OsString,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Environment variables that a helper inherits.
const INHERITED_VARIABLES: [&str; 4] = ["PATH", "LANG", "TMPDIR", "HOME"];

/// Maximum length of a reply of `qemu-img`, in bytes.
const MAX_REPLY_BYTES: u64 = 16 << 20;

/// A command in a clean environment.
pub(super) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear();
    command.envs(INHERITED_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// Output of `qemu-img info` for a qcow2 image, as JSON; `None` if the program is missing or fails.
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
    let read = child.stdout.take()?.take(MAX_REPLY_BYTES).read_to_end(&mut text);
    let ended = child.wait().ok()?;
    (read.is_ok() && ended.success()).then_some(text)
}

/// Default search path of a process without `PATH`, for example a service or a cron job.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Looks a program up in `PATH`, as a shell does.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    find_in(std::env::var_os("PATH"), name)
}

fn find_in(path: Option<OsString>, name: &str) -> Option<PathBuf> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| {
        program.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: without a `PATH` a qcow2 image could not be read, although `qemu-img` was installed. Cause:
    /// without `PATH`, no directory was searched. Fix: a default search path.
    #[test]
    fn programs_are_found_without_a_path() {
        for path in [None, Some(OsString::new())] {
            assert!(find_in(path.clone(), "sh").is_some_and(|found| found.is_absolute()), "{path:?}");
        }
        assert_eq!(find_in(Some("/nowhere".into()), "sh"), None);
    }
}

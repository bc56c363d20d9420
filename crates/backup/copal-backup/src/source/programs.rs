//! Programs of QEMU that a source is read through: where they are, and what they get to see.
//!
//! Invariant: a helper inherits no secrets. Its environment is made of the names below, so a password that was given to this
//! process in a variable stays here.

use std::{
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
    command.envs(
        HANDED_ON
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
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

/// Looks a program up as a shell would.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|program| {
            program
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

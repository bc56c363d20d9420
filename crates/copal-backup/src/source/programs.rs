//! Programs of QEMU that a source is read through: where they are, and what they get to see.
//!
//! Invariant: a helper inherits no secrets. Its environment is made of the names below, so a password that was given to this
//! process in a variable stays here.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// What a helper needs of our environment.
const HANDED_ON: [&str; 4] = ["PATH", "LANG", "TMPDIR", "HOME"];

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

//! Programs and mounts of the builder; the drop of a guard undoes its mount.

use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Runs a program; prints its output only when it fails.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .with_context(|| {
            format!("starting {program}; `scripts/install-deps.sh dataset` installs the programs")
        })?;
    if !output.status.success() {
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(20)..].join("\n");
        bail!("{program} {} failed ({}):\n{end}", arguments.join(" "), output.status);
    }
    Ok(())
}

/// A path as text for a command line; the builder's paths are valid UTF-8.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A file system inside an image, mounted read-write through a loop device.
pub(super) struct Mounted {
    root: tempfile::TempDir,
    /// Mounts inside, undone in reverse order.
    inner: Vec<PathBuf>,
    mounted: bool,
}

impl Mounted {
    pub(super) fn new(image: &Path, offset_bytes: u64) -> Result<Mounted> {
        let root = tempfile::tempdir().context("making a mount point")?;
        let options = format!("loop,offset={offset_bytes}");
        run("mount", &["-t", "ext4", "-o", &options, &text(image), &text(root.path())])?;
        Ok(Mounted { root, inner: Vec::new(), mounted: true })
    }

    pub(super) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Binds `source` to `target` below the root; package scripts expect `/proc` there.
    pub(super) fn bind(&mut self, source: &Path, target: &str) -> Result<()> {
        let place = self.root.path().join(target);
        fs::create_dir_all(&place)?;
        run("mount", &["--bind", &text(source), &text(&place)])?;
        self.inner.push(place);
        Ok(())
    }

    /// Runs a program with the image as its root.
    pub(super) fn chroot(&self, arguments: &[&str]) -> Result<()> {
        let root = text(self.root.path());
        let mut all = vec![root.as_str(), "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"];
        all.extend(arguments);
        run("chroot", &all)
    }

    /// Trims the file system: freed blocks become holes of the image file.
    pub(super) fn trim(&self) -> Result<()> {
        run("fstrim", &[&text(self.root.path())])
    }

    /// Undoes the mounts inside; the image stays mounted.
    pub(super) fn unbind(&mut self) -> Result<()> {
        while let Some(place) = self.inner.pop() {
            run("umount", &[&text(&place)])?;
        }
        Ok(())
    }

    /// Unmounts the image, so that all data is written to its file.
    pub(super) fn close(mut self) -> Result<()> {
        self.unbind()?;
        run("umount", &[&text(self.root.path())])?;
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Reached with mounts only after an error, and that error is the one to report.
        for place in self.inner.drain(..).rev() {
            let _ = run("umount", &["-l", &text(&place)]);
        }
        if self.mounted {
            let _ = run("umount", &["-l", &text(self.root.path())]);
        }
    }
}

//! What can be typed behind `copal bitmap`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `copal bitmap`.
#[derive(Debug, Subcommand)]
pub(crate) enum BitmapWord {
    /// List the dirty bitmaps that backups have begun
    #[command(after_help = "\
With a repository (--repo) each bitmap is told with the newest snapshot that names it. One that none names serves no backup; the next backup of its VM removes it.

Example:
  copal bitmap ls --qmp /run/db1.qmp")]
    Ls(BitmapLs),
    /// Remove dirty bitmaps that backups have begun
    #[command(after_help = "\
The next backup of a disk whose bitmap is gone reads the whole disk, and begins a new one.

Examples:
  copal bitmap rm --qmp /run/db1.qmp --node vm0 copal-5f3a9c01-81b2c4d6-0e9f7a35
  copal bitmap rm --qmp /run/db1.qmp --node vm0 --all")]
    Rm(BitmapRm),
}

#[derive(Debug, Args)]
pub(crate) struct BitmapLs {
    /// QMP socket of the QEMU, or storage daemon
    #[arg(long, value_name = "SOCKET")]
    pub(crate) qmp: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BitmapRm {
    /// QMP socket of the QEMU, or storage daemon
    #[arg(long, value_name = "SOCKET")]
    pub(crate) qmp: PathBuf,
    /// The block node that keeps them
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// One bitmap
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) name: Option<String>,
    /// All that backups of Copal's have begun there
    #[arg(long)]
    pub(crate) all: bool,
}

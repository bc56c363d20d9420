//! Arguments of `copal bitmap`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `copal bitmap`.
#[derive(Debug, Subcommand)]
pub(crate) enum BitmapCommand {
    /// List the dirty bitmaps that backups have created
    #[command(after_help = "\
With a repository (--repo), each bitmap is listed with the newest snapshot that names it. A bitmap that no snapshot names is of no use; the next backup of its VM removes it.

Example:
  copal bitmap ls --qmp /run/db1.qmp")]
    Ls(BitmapLs),
    /// Remove dirty bitmaps that backups have created
    #[command(after_help = "\
The next backup of a disk without its bitmap reads the whole disk, and creates a new bitmap.

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
    /// Block node that holds the bitmaps
    #[arg(long, value_name = "NODE")]
    pub(crate) node: String,
    /// Name of the bitmap to remove
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) name: Option<String>,
    /// Remove all bitmaps that backups of Copal have created there
    #[arg(long)]
    pub(crate) all: bool,
}

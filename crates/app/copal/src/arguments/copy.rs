//! Arguments of `copal copy`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Snapshots go to the other repository oldest first, each as a backup of the same VM there. A snapshot whose copy is there is skipped, \
so a copy that was interrupted is continued by the same command. The repository to copy from knows the \
changes since the last copy, so only those are read. Tags, description and holds come along, and the time of the snapshot, if the key of the other \
repository may delete; otherwise its time is that of the copy, and `copal snapshots` shows the day of the original.

A snapshot that is older than the newest one of its VM in the other repository is not copied: `latest` would name it there. If a \
snapshot cannot be copied, the others still are, and the exit code is 1.

The other repository is opened with the same password or key, unless an option gives another one. Make it before the first copy with \
`copal init`.

Examples:
  copal copy --all --to /mnt/usb/copal
  copal copy --vm web --since 30d --to /mnt/usb/copal --dry-run
  copal copy latest --vm web --to s3://vms-bucket/office --to-password-file /root/offsite.password
  copal copy 3fa8c1d2 --to /mnt/usb/copal")]
pub(crate) struct CopyArgs {
    /// Snapshot to copy: id, its unique beginning (at least 4 digits), or `latest`
    #[arg(value_name = "SNAPSHOT", conflicts_with_all = ["all", "since"])]
    pub(crate) snapshot: Option<String>,
    /// All snapshots of this VM (name or UUID); with SNAPSHOT, the VM of that snapshot
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub(crate) vm: Option<String>,
    /// All snapshots of all VMs
    #[arg(long)]
    pub(crate) all: bool,
    /// Only snapshots that are at most this old: 30d, 1y6m, 12h
    #[arg(long, value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) since: Option<jiff::SignedDuration>,
    /// Directory, block device or address of the repository to copy to; forms as of --repo
    #[arg(long, value_name = "REPO")]
    pub(crate) to: PathBuf,
    /// File whose first line is the password of the repository to copy to (default: the same password)
    #[arg(long, value_name = "FILE", conflicts_with = "to_key")]
    pub(crate) to_password_file: Option<PathBuf>,
    /// Key file of the repository to copy to
    #[arg(long, value_name = "FILE")]
    pub(crate) to_key: Option<PathBuf>,
    /// File of the credentials of the object store to copy to (default: as for the repository to copy from)
    #[arg(long, value_name = "FILE")]
    pub(crate) to_credentials: Option<PathBuf>,
    /// List the snapshots that would be copied, and copy nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

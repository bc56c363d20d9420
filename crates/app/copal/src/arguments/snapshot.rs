//! Arguments of the commands that read snapshots: `snapshots`, `ls`, `restore`, `verify`, `check`.

use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
#[command(after_help = "\
Size is the size of the disks. New is the data that the repository did not hold before that backup. Stored is the number of bytes \
that the backup added to the store, after compression. Forgetting a snapshot may free less, since other snapshots may use its data.

Examples:
  copal snapshots
  copal snapshots --vm web
  copal snapshots --tag before-upgrade --description kernel
  copal snapshots --json | jq -r '.snapshots[] | [.short_id, .time, .vm.name] | @tsv'")]
pub(crate) struct SnapshotsArgs {
    /// Only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Only snapshots with this tag (repeat: with all of the tags)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Only snapshots whose description contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

/// A snapshot, named by id or as the latest of a VM.
#[derive(Debug, Args)]
pub(crate) struct SnapshotChoice {
    /// Id, its unique beginning (at least 4 digits), or `latest`
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
    /// VM for `latest`, by name or UUID; required if several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A restore writes the bytes under Data and leaves out the holes. The mode says how the disk was read: full, as the first backup of \
its VM; rescan, completely again; incremental, only its changed extents. The reason says why the backup was not incremental.

Examples:
  copal ls latest --vm web
  copal ls 3fa8c1d2 --json")]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) which: SnapshotChoice,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A new file is written as FILE.copal-partial and renamed when it is complete. Holes stay holes. \
An existing target is refused unless --force is given. An export of an NBD server is written in place, over several \
connections if the server offers them; an export that holds data, by the server's answer, needs --force.

Examples:
  copal restore latest --vm web --target /tmp/web.raw
  copal restore 3fa8c1d2 --disk sdb --target /dev/vg/db-data --force
  copal restore latest --vm web --target - | zstd > web.raw.zst
  copal restore latest --vm web --target 'nbd+unix:///web?socket=/run/web.sock' --force
  copal restore 3fa8c1d2 --disk sda --target a.raw && qemu-img convert -f raw -O qcow2 a.raw a.qcow2")]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    pub(crate) which: SnapshotChoice,
    /// File, block device, nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=FILE, or - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) target: OsString,
    /// Disk to restore; required if the snapshot has several
    #[arg(long, value_name = "NAME")]
    pub(crate) disk: Option<String>,
    /// Overwrite an existing file, a block device, or an NBD export that holds data
    #[arg(long, alias = "overwrite")]
    pub(crate) force: bool,
    /// Number of packs to fetch at the same time from a cluster; other stores decide by their disk
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) fetches: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the same data as a restore, and writes no disk. A snapshot without damage is recorded as verified; retention keeps the newest \
verified snapshot of each VM. Damage is listed, and the exit code is 20.

Examples:
  copal verify latest --vm web
  copal verify 3fa8c1d2")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) which: SnapshotChoice,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without options, the command follows every reference and checks the structure of every pack. --read-data also \
decodes the data and reads every byte of the store that a checksum covers. Damage is listed with \
the affected snapshots, and the exit code is 20.

Examples:
  copal check
  copal check --read-data
  copal check --read-data --coverage             (and lists the bytes that were checked)
  copal check --read-data-subset 3/7             (a seventh per day of the week)")]
pub(crate) struct CheckArgs {
    /// Decode all data and compare it with its fingerprints
    #[arg(long)]
    pub(crate) read_data: bool,
    /// Decode part n of t of the packs
    #[arg(long, value_name = "n/t", value_parser = parse_slice, conflicts_with = "read_data")]
    pub(crate) read_data_subset: Option<(u32, u32)>,
    /// List the bytes of the store that were compared with a checksum, and those that hold no data
    #[arg(long, requires = "read_data")]
    pub(crate) coverage: bool,
}

/// `3/7`.
fn parse_slice(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(n, t)| Some((n.parse().ok()?, t.parse().ok()?)));
    match parsed {
        Some((n, t)) if (1..=t).contains(&n) => Ok((n, t)),
        _ => Err(format!("{text:?} is not a slice like 3/7")),
    }
}

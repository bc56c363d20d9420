//! What can be typed behind commands that only look and read: `snapshots`, `ls`, `restore`, `verify`,
//! `check`.

use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
#[command(after_help = "\
Size is that of the disks, New what nobody in the repository held before that backup, Stored what the backup added to \
the store, compressed. What forgetting a snapshot would free is another number: others may need what it brought.

Examples:
  copal snapshots
  copal snapshots --vm web
  copal snapshots --tag before-upgrade --description kernel
  copal snapshots --json | jq -r '.snapshots[] | [.short_id, .time, .vm.name] | @tsv'")]
pub(crate) struct Snapshots {
    /// Only those of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Only those that carry this tag (repeat: every one of them)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Only those whose description holds this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

/// A snapshot as people name it.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Id, a unique beginning of one (4 digits or more), or `latest`
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
    /// VM that `latest` means, by name or UUID; needed once several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Data is what a restore writes, holes are what it leaves out. The mode says how the disk was read: full, as the first of \
its VM; rescan, all of it again; incremental, only its changed extents. The reason says why not incremental.

Examples:
  copal ls latest --vm web
  copal ls 3fa8c1d2 --json")]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A new file is written as FILE.copal-partial and gets its name when it is whole. Holes stay holes. \
Whatever exists already is refused unless --force is given. An export of an NBD server is written in place, over several \
connections where the server offers them; one whose server says that there is data needs --force.

Examples:
  copal restore latest --vm web --target /tmp/web.raw
  copal restore 3fa8c1d2 --disk sdb --target /dev/vg/db-data --force
  copal restore latest --vm web --target - | zstd > web.raw.zst
  copal restore latest --vm web --target 'nbd+unix:///web?socket=/run/web.sock' --force
  copal restore 3fa8c1d2 --disk sda --target a.raw && qemu-img convert -f raw -O qcow2 a.raw a.qcow2")]
pub(crate) struct Restore {
    #[command(flatten)]
    pub(crate) which: Which,
    /// File, block device, nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=FILE, or - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) target: OsString,
    /// Which disk, when the snapshot has several
    #[arg(long, value_name = "NAME")]
    pub(crate) disk: Option<String>,
    /// Overwrite an existing file, a block device, or an NBD export that holds data
    #[arg(long, alias = "overwrite")]
    pub(crate) force: bool,
    /// Packs fetched at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) fetches: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads what a restore would read and writes no disk. A snapshot that is found whole is remembered as verified, and \
retention keeps the newest such of each VM. Damage is listed, and the exit code is 20.

Examples:
  copal verify latest --vm web
  copal verify 3fa8c1d2")]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without options every reference is followed and every pack's structure is looked at; --read-data also \
decodes the data and reads every byte of the store that stands under a checksum. Damage is listed with \
the snapshots it hurts, and the exit code is 20.

Examples:
  copal check
  copal check --read-data
  copal check --read-data --coverage             (and which bytes of the file that was)
  copal check --read-data-subset 3/7             (a seventh per day of the week)")]
pub(crate) struct Check {
    /// Decode all data and compare it with its fingerprints
    #[arg(long)]
    pub(crate) read_data: bool,
    /// Decode one slice of the packs: n/t
    #[arg(long, value_name = "n/t", value_parser = parse_slice, conflicts_with = "read_data")]
    pub(crate) read_data_subset: Option<(u32, u32)>,
    /// Say which bytes of the store were compared with a checksum, and which hold nothing
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

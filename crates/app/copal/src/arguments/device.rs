//! Arguments of `copal device`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `copal device`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Measure a disk, and say which backend suits it and why
    #[command(after_help = "\
Takes up to 30 seconds. For a file, the command writes a file without a name beside it, at most as long, and measures that. A block \
device is measured itself, which destroys its data: it takes --force. If it holds a Copal store, the command measures in the \
store's free space, and changes nothing else. A device that is mounted or in use is refused.

The result is `log` for disks that seek or count commands, otherwise `cow`. Low confidence means that the figures changed meanwhile, \
or that other programs kept the processors busy: probe again when the machine is idle.

Examples:
  copal device probe /var/lib/images/web.raw
  copal device probe /dev/vg/disk --force --out disk.profile
  copal device probe /var/lib/images/web.raw --json")]
    Probe(DeviceProbeArgs),
    /// Show or change the profile of the disk that a store holds
    #[command(after_help = "\
A store with a profile reads through gaps, reads ahead and keeps commands in flight as its disk likes. `copal init --backend auto` \
gives it one. Without a profile it uses fixed numbers.

--set takes a file of `copal device probe --out`. In that file `plp yes` says that completed writes survive a power loss without a \
flush; no probe finds that out.

Examples:
  copal device profile --store /backup/copal
  copal device profile --store /backup/copal --set disk.profile
  copal device profile --store /backup/copal --json")]
    Profile(DeviceProfileArgs),
    /// Check a store for damage, without changing it
    #[command(after_help = "\
Checks superblock copies, both copies of the checkpoint, the journal, the owners of all pages, and every frame of the streams. \
--read-data also compares every byte of the objects with its checksum. A store that does not open is checked as far as it is \
readable. Nothing is written.

PATH is the directory of a repository or a data server, a store's file, a directory of files, or a block device.

Exit codes: 0 no damage, 1 damage found, 2 could not run, 130 interrupted.

Examples:
  copal device fsck /backup/copal
  copal device fsck /backup/copal --read-data --json")]
    Fsck(DeviceFsckArgs),
    /// Show the use of a store's space, by kind and label of its objects
    #[command(after_help = "\
Live space belongs to objects, streams and the store's own structures. Staged space is written and not published yet. \
Quarantine was freed, and is not reused before that is durable. Reserved space is kept for deletes and for the next checkpoint.

For a store in segments (`--backend log`) the command also counts its segments. Keep such a store below 85 %: above that, \
the cleaner moves several pages for each new one. Nothing is written.

Exit codes: 0 success, 1 the store is damaged, 2 could not run.

Examples:
  copal device df /backup/copal
  copal device df /backup/copal --json")]
    Df(DeviceDfArgs),
    /// Print the structures of a store: superblocks, checkpoint, journal, objects, streams
    #[command(after_help = "\
Without an option the command prints the superblock copies, the checkpoint, and the records behind it with their operations. It \
does so without opening the store, so also for one that does not open. Damaged parts are lines of kind `damage`. Nothing is \
written.

Exit codes: 0 no damage shown, 1 damage shown, 2 could not run, 130 interrupted.

Examples:
  copal device dump /backup/copal
  copal device dump /backup/copal --objects
  copal device dump /backup/copal --object 1     (its extents and checksums)
  copal device dump /backup/copal --json --limit 4")]
    Dump(DeviceDumpArgs),
    /// Read all data of a store at a given pace, and compare it with its checksums
    #[command(after_help = "\
Reads in the order of addresses, so that a disk that turns seeks little. Damage is reported by object and range. Ctrl-C ends the \
command; the next one goes on from there, also after a kill (at most 64 MiB are read again). The place is kept in the store.

Data servers scrub their disks themselves.

Exit codes: 0 no damage, 1 damage found, 2 could not run, 130 interrupted.

Examples:
  copal device scrub /backup/copal
  copal device scrub /backup/copal --bytes-per-second 100M
  copal device scrub /backup/copal --bytes-per-second 0 --json")]
    Scrub(DeviceScrubArgs),
}

/// The commands that look into a store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InspectCommand<'a> {
    Fsck(&'a DeviceFsckArgs),
    Df(&'a DeviceDfArgs),
    Dump(&'a DeviceDumpArgs),
    Scrub(&'a DeviceScrubArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DeviceFsckArgs {
    /// Directory of a repository or a data server, file, directory of files, or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Compare every byte with its checksum
    #[arg(long)]
    pub(crate) read_data: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceDfArgs {
    /// Directory of a repository or a data server, file, directory of files, or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceDumpArgs {
    /// Directory of a repository or a data server, file, directory of files, or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// List all objects instead
    #[arg(long, conflicts_with_all = ["object", "stream"])]
    pub(crate) objects: bool,
    /// Print the extents and checksums of this object instead
    #[arg(long, value_name = "ID", conflicts_with = "stream")]
    pub(crate) object: Option<u64>,
    /// Print the frames of this stream instead: place, number and length
    #[arg(long, value_name = "ID")]
    pub(crate) stream: Option<u64>,
    /// Print labels in hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Stop after this number of lines
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceScrubArgs {
    /// Directory of a repository or a data server, file, directory of files, or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Read at most this number of bytes a second; 0: as fast as the disk
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = crate::human::parse_bytes)]
    pub(crate) bytes_per_second: u64,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceProfileArgs {
    /// Store: directory of a repository or a data server, file, directory of files, or block device
    #[arg(long, value_name = "PATH")]
    pub(crate) store: PathBuf,
    /// Write this profile into the store
    #[arg(long, value_name = "FILE")]
    pub(crate) set: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DeviceProbeArgs {
    /// File of at least 32 MiB on the disk, or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Overwrite the block device
    #[arg(long)]
    pub(crate) force: bool,
    /// Also write the profile to this new file, for `copal device profile --set`
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

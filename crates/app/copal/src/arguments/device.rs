//! Arguments of `copal device`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `copal device`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Measure a disk, and say which backend suits it and why
    #[command(after_help = "\
Takes up to 30 seconds. For a file, the command writes a file without a name beside it, at most as long, and measures that. A block \
device is measured itself, which destroys its data: it takes --force. A device that is mounted or in use, or that holds a Copal \
store, is refused.

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

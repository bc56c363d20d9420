//! Arguments of the commands that export snapshots to other programs: `nbd`, `mount`.

use super::snapshot::SnapshotChoice;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Every disk is exported under its name; the empty name selects the only disk. Beside base:allocation an export has a metadata \
context copal:diff:SNAPSHOT for each other snapshot of the VM: it marks the extents that may differ from that snapshot. With --cow \
the writes of clients go to FILE, an overlay above the snapshot, and the next export shows them again; the snapshot does not change.

The command ends on Ctrl-C or SIGTERM. While it runs, the snapshot is not forgotten or deleted without --force. Another process can \
write to a repository of this machine once nothing has been read from it for a second. A cache of 64 MB comes on top of --memory.

NBD has no password. A socket accepts this user alone; --listen accepts every client that reaches the address, so give 127.0.0.1 or \
an address in a trusted network.

Examples:
  copal nbd latest --vm web --socket /tmp/web.sock
  copal nbd 3fa8c1d2 --disk sda --socket /tmp/sda.sock --cow /tmp/sda.overlay
  copal nbd latest --vm web --listen 127.0.0.1:0")]
pub(crate) struct NbdArgs {
    #[command(flatten)]
    pub(crate) which: SnapshotChoice,
    /// Listen at this unix socket, which is created now and removed at the end
    #[arg(long, value_name = "FILE", required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen at this address, host:port (port 0: any free port)
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Export only this disk
    #[arg(long, value_name = "NAME")]
    pub(crate) disk: Option<String>,
    /// Accept writes, and keep them in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) cow: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Shows DIR/VM/TIME-ID/DISK.raw for every snapshot, read-only and for this user alone. New snapshots appear, forgotten ones \
disappear. A read of a damaged range returns an I/O error; the rest stays readable.

The command ends on Ctrl-C, SIGTERM or umount. While it runs, the snapshots that it shows are not forgotten or deleted by name \
without --force, and retention keeps them. Another process can write to a repository of this machine once nothing has been read \
from it for a second. The command needs /dev/fuse, and fusermount3 (apt install fuse3) unless you are root. A cache of 64 MB comes \
on top of --memory.

Examples:
  mkdir -p /tmp/snapshots; copal mount /tmp/snapshots
  mkdir -p /tmp/snapshots; copal mount /tmp/snapshots --vm web")]
pub(crate) struct MountArgs {
    /// Empty directory to mount on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

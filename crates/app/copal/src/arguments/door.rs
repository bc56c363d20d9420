//! What can be typed behind commands that show snapshots to other programs: `nbd`, `mount`.

use super::reading::Which;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Every disk is an export under its name; the empty name means the only one. Beside base:allocation an export has the metadata \
context copal:diff:SNAPSHOT for the other snapshots of the VM: what may differ from that one. With --cow what clients write goes \
to FILE, above the snapshot, and is there again next time; the snapshot stays as it is.

The command ends by Ctrl-C or SIGTERM. While it runs the snapshot is not forgotten or deleted without --force. Others write to a \
repository of this machine while nothing is read from it for a second. A cache of 64 MB comes on top of --memory.

NBD has no password: a socket is this user's alone, --listen lets in whoever reaches the address, so name 127.0.0.1 or a \
network that you trust.

Examples:
  copal nbd latest --vm web --socket /tmp/web.sock
  copal nbd 3fa8c1d2 --disk sda --socket /tmp/sda.sock --cow /tmp/sda.overlay
  copal nbd latest --vm web --listen 127.0.0.1:0")]
pub(crate) struct Nbd {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Listen at this unix socket, which is made and removed again
    #[arg(long, value_name = "FILE", required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen at this address, host:port (port 0: any that is free)
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Serve this disk alone
    #[arg(long, value_name = "NAME")]
    pub(crate) disk: Option<String>,
    /// Take writes, and keep them in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) cow: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Shows DIR/VM/TIME-ID/DISK.raw for every snapshot, for reading and for this user alone. New snapshots appear, forgotten ones go. \
A range that is damaged gives an I/O error and leaves the rest readable.

The command ends by Ctrl-C, SIGTERM or umount. While it runs no snapshot that it shows is forgotten or deleted by name without \
--force, and retention leaves them. Others write to a repository of this machine while nothing is read from it for a second. It \
needs /dev/fuse, and fusermount3 (apt install fuse3) unless you are root. A cache of 64 MB comes on top of --memory.

Examples:
  mkdir -p /tmp/snapshots; copal mount /tmp/snapshots
  mkdir -p /tmp/snapshots; copal mount /tmp/snapshots --vm web")]
pub(crate) struct Mount {
    /// Empty directory to mount on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

//! Arguments of `copal backup`.

use crate::human;
use clap::{Args, ValueEnum};
use copal_live::FleeceOptions;
use std::{ffi::OsString, path::PathBuf, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a raw image (sparse or not), a block device, a qcow2 image (read through qemu-nbd), an NBD \
export (nbd://host/export, nbd+unix:///export?socket=/path), or - for standard input. The image must \
not change while it is read: back up a snapshot of a running VM, not its disk.

Copal never guesses a format from content alone, because a guest can write a qcow2 header into its raw disk: name qcow2 images \
.qcow2, or give --format. A disk that is taken for raw but looks like another format is refused by name (exit code 3): vmdk, vhd, \
vhdx, vdi, qed, parallels, dmg, archives, compressed and encrypted files. Also refused are a disk of 0 bytes, a disk smaller than in \
the newest snapshot with it (--allow-smaller), and a qcow2 image whose tables, or those of its backing file, point beyond the end \
of its files.

Data that is not known to have changed is taken from the newest snapshot without a read, so the list of changes must be \
trustworthy. A dirty bitmap (qcow2, NBD) is trusted if the newest snapshot says that it began there: name the bitmap that records \
from now on with --starts-bitmap, and next time the same one with --bitmap. A list of changed extents is trusted if it names its \
base, in the file or by --base ID. `latest` is no such name: after a failed backup it is an older snapshot than the base of the list.

In every other case (another bitmap, a cleared, inconsistent or missing one, another size or serial) the disk is read in full, and \
the summary says so (--strict-incremental: exit code 22). A bitmap that was disabled for a while is not noticed. A bitmap that was \
recreated or cleared is noticed where Copal made it (--qmp), and in a qcow2 image if it marks fewer bytes than at the newest \
snapshot. Behind an NBD export neither is noticed, nor is a bitmap of another disk of the same size. Therefore more unchanged data \
is compared where a bitmap lists the changes (--spot-check), and --full-every 30d bounds how long an error lasts.

--changed-extents takes {\"v\":1,\"size\":N,\"base\":\"<snapshot>\",\"extents\":[{\"offset\":O,\"length\":L, \
\"type\":\"dirty\"|\"zero\"}]} or the output of `nbdinfo --json --map=qemu:dirty-bitmap:NAME URI`. A list for another size is \
refused.

A running VM is backed up with --qmp, the socket of its QEMU (-qmp unix:/run/db1.qmp,server=on,wait=off), and the block node of \
each disk. Copal creates a point in time there, reads it, removes everything that it added, and leaves a dirty bitmap for the next \
backup. Data that the guest overwrites meanwhile is kept in --fleece-dir. If that exceeds --fleece-limit, the backup fails, never a \
write of the guest. Trims of the guest are ignored meanwhile. A disk in an iothread is refused on QEMU older than 10.0. An NBD \
export of a running VM is read safely on every QEMU if --bitmap, --starts-bitmap or --changed-extents is given with it.

Examples:
  copal backup --vm web /var/lib/images/web.raw
  copal backup --vm db --disk sda=/dev/vg/db-root --disk sdb=/dev/vg/db-data
  qemu-img bitmap --add web.qcow2 b1; copal backup --vm web web.qcow2 --starts-bitmap b1
  qemu-img bitmap --add web.qcow2 b2; copal backup --vm web web.qcow2 --bitmap b1 --starts-bitmap b2
  copal backup --vm web --disk sda='nbd+unix:///?socket=/run/vm' --bitmap b2 --starts-bitmap b3
  copal backup --vm web /var/lib/images/web.raw --changed-extents today.json --base 3fa8c1d2
  copal backup --vm db1 --qmp /run/db1.qmp --node sda=vm0 --node sdb=vm1
  copal backup --vm db1 --qmp /run/db1.qmp --node sda=vm0 --fleece-limit 20% --freeze agent
  copal backup --vm web web.qcow2 --bitmap b2 --starts-bitmap b3 --full-every 30d
  copal backup --vm archive --from-command zstdcat old.raw.zst
  zstdcat old.raw.zst | copal backup --vm archive -")]
pub(crate) struct BackupArgs {
    /// Name or UUID of the VM; a new VM is registered
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: String,
    /// Image of the only disk of the VM, which is named sda
    #[arg(
        value_name = "IMAGE",
        required_unless_present_any = ["disks", "qmp", "from_command"],
        conflicts_with_all = ["disks", "from_command"]
    )]
    pub(crate) image: Option<OsString>,
    /// Name and image of one of several disks (repeat)
    #[arg(long = "disk", value_name = "NAME=IMAGE")]
    pub(crate) disks: Vec<OsString>,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Back up the standard output of this command as disk sda, if it ends with exit code 0; takes the rest of
    /// the command line
    #[arg(
        long,
        value_name = "CMD",
        num_args = 1..,
        allow_hyphen_values = true,
        conflicts_with_all = ["disks", "qmp", "changed_extents", "bitmap", "starts_bitmap", "base"]
    )]
    pub(crate) from_command: Vec<OsString>,
    /// Format of image files; raw also accepts content that looks like another format
    #[arg(long, value_enum, default_value_t = FormatWord::Auto)]
    pub(crate) format: FormatWord,
    /// Accept a disk that is smaller than in the newest snapshot with it; the new snapshot is doubtful until
    /// `copal accept`
    #[arg(long)]
    pub(crate) allow_smaller: bool,
    /// JSON file of the extents that changed since the newest snapshot; NAME=FILE with several disks (repeat)
    #[arg(long, value_name = "FILE")]
    pub(crate) changed_extents: Vec<OsString>,
    /// Read the changed extents from this dirty bitmap of a qcow2 image or an NBD export, if it began at the
    /// newest snapshot
    #[arg(long, value_name = "NAME", conflicts_with = "changed_extents")]
    pub(crate) bitmap: Option<String>,
    /// Record that this dirty bitmap holds every write since the moment of this backup, or since earlier
    #[arg(long, value_name = "NAME")]
    pub(crate) starts_bitmap: Option<String>,
    /// Id of the snapshot that the changed extents are relative to, if the list does not name it
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) base: Option<String>,
    /// Serial of the disk; NAME=SERIAL with several disks (repeat). A disk whose serial changed is another disk
    /// under the same name, and is read in full
    #[arg(long, value_name = "SERIAL")]
    pub(crate) serial: Vec<String>,
    /// Share of the unchanged data of a disk to read and compare nevertheless, at least 16 MiB; 0% for none. A
    /// difference causes a warning and a full read of the disk (default: 0.1%; where a dirty bitmap lists the
    /// changes 0.5%, at least 64 MiB)
    #[arg(long, value_name = "SHARE", value_parser = human::parse_share)]
    pub(crate) spot_check: Option<u32>,
    /// Read a disk in full if its last full read is older than this, despite any list of changes: 30d, 12h
    #[arg(long, value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) full_every: Option<jiff::SignedDuration>,
    /// Read all disks in full, despite any list of changes
    #[arg(long, conflicts_with_all = ["changed_extents", "bitmap", "strict_incremental"])]
    pub(crate) full: bool,
    /// Fail (exit code 22) instead of reading a disk in full when its changed extents cannot be used
    #[arg(long)]
    pub(crate) strict_incremental: bool,
    /// In a fleet: longest wait for an answer of an agent; chunks without an answer are stored for this VM
    /// alone, and counted as unresolved
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
    /// Tag of the snapshot (repeat)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Description of the snapshot
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) description: String,
}

/// Options for a running VM.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// QMP socket of the QEMU, or storage daemon, that has the disks of a running VM
    #[arg(
        long,
        value_name = "SOCKET",
        requires = "nodes",
        conflicts_with_all = ["image", "disks", "changed_extents", "bitmap", "starts_bitmap", "base"]
    )]
    pub(crate) qmp: Option<PathBuf>,
    /// Disk of the VM and its block node in QEMU, the node above the image file (repeat)
    #[arg(long = "node", value_name = "NAME=NODE", requires = "qmp")]
    pub(crate) nodes: Vec<String>,
    /// How to freeze the file systems of the guest at the point in time
    #[arg(long, value_enum, value_name = "HOW", requires = "qmp")]
    pub(crate) freeze: Option<FreezeWord>,
    /// Socket of the guest agent, if QEMU has no channel under the agent's usual name
    #[arg(long, value_name = "SOCKET", requires = "freeze")]
    pub(crate) agent_socket: Option<PathBuf>,
    /// Directory for data that the guest overwrites during the backup; QEMU must be able to write there
    #[arg(long, value_name = "DIR", requires = "qmp", default_value = FleeceOptions::DEFAULT_DIRECTORY)]
    pub(crate) fleece_dir: PathBuf,
    /// Most overwritten data to keep, as a share of each disk
    #[arg(long, value_name = "SHARE", requires = "qmp", default_value = "10%", value_parser = human::parse_share)]
    pub(crate) fleece_limit: u32,
    /// Unix socket of the NBD server of that QEMU, if one already runs
    #[arg(long, value_name = "SOCKET", requires = "qmp")]
    pub(crate) nbd_socket: Option<PathBuf>,
}

/// How a guest is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FreezeWord {
    /// By the guest agent, qemu-ga, which runs in the guest
    Agent,
}

/// Format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatWord {
    /// Detected from file name and first bytes together; refused when they disagree
    Auto,
    /// The bytes of the file are the bytes of the disk
    Raw,
    /// Read through qemu-nbd (apt install qemu-utils)
    Qcow2,
}

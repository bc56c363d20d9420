//! What can be typed behind `copal backup`.

use crate::human;
use clap::{Args, ValueEnum};
use copal_live::FleeceOptions;
use std::{ffi::OsString, path::PathBuf, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a raw image (sparse or not), a block device, a qcow2 image (read through qemu-nbd), an NBD \
export (nbd://host/export, nbd+unix:///export?socket=/path), or - for standard input. The image must \
not change while it is read: back up a snapshot of a running VM, not its disk.

A format is never guessed from content alone, because a guest can write a qcow2 header into its raw \
disk: name qcow2 images .qcow2, or say --format. What is taken for a raw disk and looks like something else is refused by name \
(exit code 3): vmdk, vhd, vhdx, vdi, qed, parallels, dmg, archives, compressed and encrypted files. So is a disk of 0 bytes, a \
disk smaller than in the newest snapshot with it (--allow-smaller), and a qcow2 image whose tables, or those of an image behind it, name \
what lies beyond the end of its files.

What is not known to have changed is taken from the newest snapshot unread, so something must vouch for that. A dirty bitmap \
(qcow2, NBD) is believed if the newest snapshot says that it began there: name the bitmap that records from now on with \
--starts-bitmap, and next time the same one with --bitmap. A list of changed extents is believed if it names its base, in the \
file or by --base ID; `latest` does not vouch, since after a backup that failed it is an older snapshot than the list begins \
with. In every other case (another bitmap, a cleared, inconsistent or missing one, another size or serial) that disk is read \
in full, which the summary says (--strict-incremental: exit code 22). A bitmap that was disabled for a while is not noticed. One \
that was made anew or cleared is noticed where Copal made it (--qmp), and in a qcow2 image if it names fewer bytes than at the newest \
snapshot. Behind an NBD export neither that is noticed, nor a bitmap on another disk of the same size. So more is compared where \
a bitmap tells what changed (--spot-check), and --full-every 30d bounds how long an error lasts.

--changed-extents takes {\"v\":1,\"size\":N,\"base\":\"<snapshot>\",\"extents\":[{\"offset\":O,\"length\":L, \
\"type\":\"dirty\"|\"zero\"}]} or what `nbdinfo --json --map=qemu:dirty-bitmap:NAME URI` prints. A list of another size is \
refused.

A VM that runs is backed up with --qmp, the socket of its QEMU (-qmp unix:/run/db1.qmp,server=on,wait=off), and the block node of \
each disk. Copal holds a point in time there, reads it, takes down all that it has put up, and leaves a dirty bitmap for the next \
backup. What the guest overwrites meanwhile is kept in --fleece-dir; more than --fleece-limit ends the backup and never a write of \
the guest. Trims of the guest are ignored meanwhile. A disk in an iothread is refused on QEMU older than 10.0. An NBD export of a VM that \
runs is read safely on every QEMU if --bitmap, --starts-bitmap or --changed-extents is named with it.

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
pub(crate) struct Backup {
    /// Name or UUID of the VM; a new one is entered
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: String,
    /// The only disk of the VM; it is called sda
    #[arg(
        value_name = "IMAGE",
        required_unless_present_any = ["disks", "qmp", "from_command"],
        conflicts_with_all = ["disks", "from_command"]
    )]
    pub(crate) image: Option<OsString>,
    /// One disk of several (repeat)
    #[arg(long = "disk", value_name = "NAME=IMAGE")]
    pub(crate) disks: Vec<OsString>,
    #[command(flatten)]
    pub(crate) live: Live,
    /// Back up what a command writes to its standard output, as disk sda, if it ends with exit code 0; takes
    /// the rest of the line
    #[arg(
        long,
        value_name = "CMD",
        num_args = 1..,
        allow_hyphen_values = true,
        conflicts_with_all = ["disks", "qmp", "changed_extents", "bitmap", "starts_bitmap", "base"]
    )]
    pub(crate) from_command: Vec<OsString>,
    /// Format of image files; raw also takes what looks like another format for the disk of a guest
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(crate) format: Format,
    /// Take a disk that is smaller than in the newest snapshot with it; the new one is doubtful until `copal
    /// accept`
    #[arg(long)]
    pub(crate) allow_smaller: bool,
    /// What changed since the newest snapshot, as a JSON file; NAME=FILE with several disks (repeat)
    #[arg(long, value_name = "FILE")]
    pub(crate) changed_extents: Vec<OsString>,
    /// Take what changed from this dirty bitmap of a qcow2 image or an NBD export, if the newest snapshot
    /// began it
    #[arg(long, value_name = "NAME", conflicts_with = "changed_extents")]
    pub(crate) bitmap: Option<String>,
    /// Note that this dirty bitmap has recorded every write since the moment that is backed up, or longer
    #[arg(long, value_name = "NAME")]
    pub(crate) starts_bitmap: Option<String>,
    /// Snapshot that the changed extents are relative to, when they do not say so themselves: its id
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) base: Option<String>,
    /// What tells a disk from another one that may get its name; NAME=SERIAL with several disks (repeat).
    /// With another serial than before it is read in full
    #[arg(long, value_name = "SERIAL")]
    pub(crate) serial: Vec<String>,
    /// Share of the unchanged data of a disk that is read and compared all the same, at least 16 MiB; 0% for
    /// none. A difference is warned of and makes the disk be read in full (default: 0.1%; where a dirty
    /// bitmap tells what changed 0.5%, at least 64 MiB)
    #[arg(long, value_name = "SHARE", value_parser = human::parse_share)]
    pub(crate) spot_check: Option<u32>,
    /// Read a disk as a whole that was not read so for this long, whatever tells what changed: 30d, 12h
    #[arg(long, value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) full_every: Option<jiff::SignedDuration>,
    /// Read everything, whatever changed
    #[arg(long, conflicts_with_all = ["changed_extents", "bitmap", "strict_incremental"])]
    pub(crate) full: bool,
    /// Fail (exit code 22) instead of reading a whole disk when its changed extents cannot be used
    #[arg(long)]
    pub(crate) strict_incremental: bool,
    /// In a fleet: longest time for an answer of an agent; what none answers is stored for this VM alone, and
    /// counted as unresolved
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
    /// Word kept with the snapshot (repeat)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Text kept with the snapshot
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) description: String,
}

/// A VM that runs.
#[derive(Debug, Args)]
pub(crate) struct Live {
    /// QMP socket of the QEMU, or storage daemon, that has the disks of a VM that runs
    #[arg(
        long,
        value_name = "SOCKET",
        requires = "nodes",
        conflicts_with_all = ["image", "disks", "changed_extents", "bitmap", "starts_bitmap", "base"]
    )]
    pub(crate) qmp: Option<PathBuf>,
    /// A disk of the VM and its block node in QEMU, the one over the image file (repeat)
    #[arg(long = "node", value_name = "NAME=NODE", requires = "qmp")]
    pub(crate) nodes: Vec<String>,
    /// Let the file systems of the guest hold still at the point in time, by its guest agent
    #[arg(long, value_enum, value_name = "HOW", requires = "qmp")]
    pub(crate) freeze: Option<FreezeWord>,
    /// Socket of the guest agent, where QEMU names none that is called like one
    #[arg(long, value_name = "SOCKET", requires = "freeze")]
    pub(crate) agent_socket: Option<PathBuf>,
    /// Directory for what the guest overwrites during the backup; QEMU must be able to write there
    #[arg(long, value_name = "DIR", requires = "qmp", default_value = FleeceOptions::DEFAULT_DIRECTORY)]
    pub(crate) fleece_dir: PathBuf,
    /// Most that is kept there, as a share of each disk
    #[arg(long, value_name = "SHARE", requires = "qmp", default_value = "10%", value_parser = human::parse_share)]
    pub(crate) fleece_limit: u32,
    /// Unix socket of the NBD server of that QEMU, when one runs already
    #[arg(long, value_name = "SOCKET", requires = "qmp")]
    pub(crate) nbd_socket: Option<PathBuf>,
}

/// How a guest is made to hold still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FreezeWord {
    /// By qemu-ga, which runs in the guest
    Agent,
}

/// Format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By name and first bytes together; asks when they disagree
    Auto,
    /// The bytes of the file are the bytes of the disk
    Raw,
    /// Read through qemu-nbd (apt install qemu-utils)
    Qcow2,
}

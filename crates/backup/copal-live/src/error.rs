//! Errors of a point in time.

use crate::qmp::{QemuVersion, QmpError};
use copal_disk::source::SourceError;
use std::{io, path::PathBuf};

/// Error of a point in time. After an error QEMU is as before, unless the sentence says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// QEMU does not answer, or refuses.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// QEMU is too old.
    #[error(
        "this QEMU has no {missing}, without which a running disk has no point in time; use QEMU 7.2 or later"
    )]
    TooOld {
        /// The missing capability.
        missing: &'static str,
    },
    /// The named node does not exist.
    #[error("disk {disk}: QEMU has no block node {node:?}; it has {}", known.join(", "))]
    NoNode {
        /// The disk.
        disk: String,
        /// The named node.
        node: String,
        /// The named nodes of QEMU.
        known: Vec<String>,
    },
    /// Two disks have the same node.
    #[error("the disks {first} and {second} are both the block node {node}; name each node once")]
    NodeTwice {
        /// The node.
        node: String,
        /// The first disk.
        first: String,
        /// The second disk.
        second: String,
    },
    /// The guest's writes cannot be redirected.
    #[error(
        "disk {disk}: the writes to {node} come from {writers}, and cannot be redirected through a filter there; put a raw node above it \
         and let the guest use that: -blockdev driver=raw,node-name=top0,file={node}"
    )]
    NoWay {
        /// The disk.
        disk: String,
        /// Its node.
        node: String,
        /// The writers of the node.
        writers: String,
    },
    /// The node was the disk before an external snapshot.
    #[error(
        "disk {disk}: {node} lies behind {overlay}, and no writes of the guest reach it: since a snapshot its disk is {overlay}, or a \
         node above that; name that one (--node {disk}={overlay}), no snapshot was made"
    )]
    Overlaid {
        /// The disk.
        disk: String,
        /// The named node.
        node: String,
        /// The overlay node.
        overlay: String,
    },
    /// No guest device uses the node.
    #[error(
        "disk {disk}: no device of the guest uses {node}: its disk is another node, for example after a mirror, or the disk was \
         removed; its disks are {}, name the right one (--node {disk}=NODE), no snapshot was made",
        used.join(", ")
    )]
    Unused {
        /// The disk.
        disk: String,
        /// The named node.
        node: String,
        /// The nodes that guest devices use.
        used: Vec<String>,
    },
    /// A block job uses the node.
    #[error("disk {disk}: a block job ({job}) works on {node}; let it end, or cancel it, and back up again")]
    Job {
        /// The disk.
        disk: String,
        /// Its node.
        node: String,
        /// Driver of the job's filter node.
        job: String,
    },
    /// The guest runs in another QEMU, or is migrating.
    #[error(
        "the guest of this QEMU is migrating to or from another host (QEMU says {status:?}): its disks are written there; name the QMP \
         socket of the QEMU that runs it, no snapshot was made"
    )]
    Migrated {
        /// State of the guest as QEMU reports it.
        status: String,
    },
    /// QEMU would abort.
    #[error(
        "disk {disk}: {user} in the iothread {thread}, and QEMU {version} may abort, and its guest with it, when a point in time of \
         such a disk is taken; use QEMU 10.0 or later, or start it without an iothread for that disk"
    )]
    IoThread {
        /// The disk.
        disk: String,
        /// Its device or export, with a verb.
        user: String,
        /// The iothread.
        thread: String,
        /// The version of QEMU.
        version: QemuVersion,
    },
    /// Another backup of a disk of this QEMU is running.
    #[error("another backup reads from this QEMU (session {session}); wait for it to end")]
    Busy {
        /// Its session.
        session: String,
    },
    /// The NBD server was started by another program.
    #[error(
        "the NBD server of this QEMU runs already, and QMP does not report its socket; name it with --nbd-socket ({source})"
    )]
    ServerRuns {
        /// The error of QEMU.
        source: QmpError,
    },
    /// The directory for fleecing images is unusable.
    #[error("cannot use {} for data that the guest overwrites meanwhile: {error}; name a directory that this user and QEMU may write with --fleece-dir", path.display())]
    Fleece {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A killed or failed backup left filters whose storage does not answer.
    #[error(
        "the storage of {}, where an earlier backup has left its fleecing images, does not answer; QEMU would block on it, and its \
         guest with it, so nothing was changed: make that storage answer, and back up again", path.display()
    )]
    Hanging {
        /// The directory of that session.
        path: PathBuf,
    },
    /// The path of a socket exceeds the limit of the system.
    #[error("{} is too long for the path of a socket; name a directory with a shorter path with --fleece-dir", path.display())]
    LongPath {
        /// The path.
        path: PathBuf,
    },
    /// The guest cannot be frozen.
    #[error("the guest was not frozen, and no backup was made: {reason}")]
    Freeze {
        /// The reason, and advice.
        reason: String,
    },
    /// The export of the point in time cannot be read.
    #[error("disk {disk}: {error}")]
    Source {
        /// The disk.
        disk: String,
        /// The error of the source.
        #[source]
        error: SourceError,
    },
    /// The system provides no random bytes.
    #[error("cannot draw a name: {0}")]
    Random(getrandom::Error),
}

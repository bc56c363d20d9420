//! Why no point in time could be had.

use crate::qmp::{QmpError, Version};
use copal_disk::source::SourceError;
use std::{io, path::PathBuf};

/// Why no point in time could be had. Nothing is left behind in QEMU unless a sentence says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// QEMU does not answer, or refused.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// QEMU is too old.
    #[error(
        "this QEMU has no {missing}, without which a running disk has no point in time; use QEMU 7.2 or later"
    )]
    TooOld {
        /// What it lacks.
        missing: &'static str,
    },
    /// No such node.
    #[error("disk {disk}: QEMU has no block node {node:?}; it has {}", known.join(", "))]
    NoNode {
        /// The disk.
        disk: String,
        /// The node that was named.
        node: String,
        /// Nodes with a name.
        known: Vec<String>,
    },
    /// Two disks are one.
    #[error("the disks {first} and {second} are both the block node {node}; name each node once")]
    NodeTwice {
        /// The node.
        node: String,
        /// A disk.
        first: String,
        /// The other one.
        second: String,
    },
    /// Nothing tells the guest's writes to take another way.
    #[error(
        "disk {disk}: the writes to {node} come from {writers}, and cannot be led through a filter there; put a raw node above it \
         and let the guest use that: -blockdev driver=raw,node-name=top0,file={node}"
    )]
    NoWay {
        /// The disk.
        disk: String,
        /// Its node.
        node: String,
        /// Who writes to it.
        writers: String,
    },
    /// The node is what the disk was before an external snapshot.
    #[error(
        "disk {disk}: {node} lies behind {overlay}, and no writes of the guest reach it: since a snapshot its disk is {overlay}, or a \
         node above that; name that one (--node {disk}={overlay}), no snapshot was made"
    )]
    Overlaid {
        /// The disk.
        disk: String,
        /// The node that was named.
        node: String,
        /// The node over it.
        overlay: String,
    },
    /// No device of the guest has the node.
    #[error(
        "disk {disk}: no device of the guest uses {node}: its disk is another node, as after it was copied to another place, or it was \
         taken out; its disks are {}, name the right one (--node {disk}=NODE), no snapshot was made",
        used.join(", ")
    )]
    Unused {
        /// The disk.
        disk: String,
        /// The node that was named.
        node: String,
        /// The nodes that devices have.
        used: Vec<String>,
    },
    /// A block job works on the node.
    #[error("disk {disk}: a block job ({job}) works on {node}; let it end, or cancel it, and back up again")]
    Job {
        /// The disk.
        disk: String,
        /// Its node.
        node: String,
        /// The driver of the node that the job has put above it.
        job: String,
    },
    /// The guest runs in another QEMU, or is on its way.
    #[error(
        "the guest of this QEMU is on its way to or from another host (QEMU says {status:?}): its disks are written there; name the QMP \
         socket of the QEMU that runs it, no snapshot was made"
    )]
    Migrated {
        /// QEMU's word.
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
        /// The thread.
        thread: String,
        /// The version of QEMU.
        version: Version,
    },
    /// Another backup of a disk of this QEMU is running.
    #[error("another backup reads from this QEMU (session {session}); wait for it to end")]
    Busy {
        /// Its session.
        session: String,
    },
    /// Somebody else's NBD server.
    #[error(
        "the NBD server of this QEMU runs already, and QMP does not tell where; name its socket with --nbd-socket ({source})"
    )]
    ServerRuns {
        /// What QEMU said.
        source: QmpError,
    },
    /// The directory for fleecing images.
    #[error("cannot use {} for what the guest overwrites meanwhile: {error}; name a directory that this user and QEMU may write with --fleece-dir", path.display())]
    Fleece {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A killed or failed backup left filters whose images do not answer.
    #[error(
        "the storage of {}, where an earlier backup has left its fleecing images, does not answer; QEMU would wait for it, and its \
         guest with it, so nothing was changed: let that storage answer, and back up again", path.display()
    )]
    Hanging {
        /// The directory of that session.
        path: PathBuf,
    },
    /// The path of a socket is too long for the system.
    #[error("{} is too long for the path of a socket; name a directory with a shorter path with --fleece-dir", path.display())]
    LongPath {
        /// The path.
        path: PathBuf,
    },
    /// The guest cannot be frozen.
    #[error("the guest was not frozen, and no backup was made: {reason}")]
    Freeze {
        /// Why, and what to do.
        reason: String,
    },
    /// The export of the point in time cannot be read.
    #[error("disk {disk}: {error}")]
    Source {
        /// The disk.
        disk: String,
        /// Why.
        #[source]
        error: SourceError,
    },
    /// The system gives no randomness.
    #[error("cannot draw a name: {0}")]
    Random(getrandom::Error),
}

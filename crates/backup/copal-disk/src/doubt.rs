//! Doubts: warnings about a disk in spite of which a backup made its snapshot.
//!
//! The manifest stores the doubts of a snapshot. Until an operator accepts the snapshot, retention removes no
//! good snapshot in its favour. The next backup compares its disks with the newest good snapshot.
//! Not here: detecting doubts (`source` and `copal-backup`), their effect on retention (`copal-backup`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Kind of a doubt; a stable word in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DoubtKind {
    /// The disk is smaller than it was.
    Smaller,
    /// The content looks like another format and was backed up as a raw disk.
    Format,
    /// A file of an image is shorter than it should be, or has another format.
    Chain,
    /// The disk was written while it was read.
    Changed,
    /// The disk holds only zeros, and held data before.
    Blank,
}

impl DoubtKind {
    /// Whether a doubt is accepted once for all backups of a disk: it concerns the source and not a single
    /// backup.
    pub fn is_lasting(self) -> bool {
        matches!(self, DoubtKind::Format | DoubtKind::Chain)
    }
}

/// A warning about one disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskDoubt {
    /// Name of the disk.
    pub disk: String,
    /// Kind of the doubt.
    pub kind: DoubtKind,
    /// Description as a sentence.
    #[serde(rename = "message")]
    pub text: String,
}

impl fmt::Display for DiskDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk {}: {}", self.disk, self.text)
    }
}

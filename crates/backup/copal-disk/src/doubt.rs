//! Why a snapshot may not be what its disk should be: a warning that a backup went on in spite of.
//!
//! The manifest keeps doubts. Until somebody accepts the snapshot, retention lets no good one go for it, and
//! the next backup measures its disks against the newest good one.
//! Not here: what raises them (`source`; `copal-backup` compares with earlier backups), and what retention makes of them (`copal-backup`).

use std::fmt;

/// What kind of warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoubtKind {
    /// The disk is smaller than it was.
    Smaller,
    /// Its bytes look like those of a format, and were taken as a raw disk all the same.
    Format,
    /// A file that an image consists of is shorter than it should be, or of another format.
    Chain,
    /// The disk was written while it was read.
    Changed,
    /// The disk holds nothing but zeros, and held data before.
    Blank,
}

impl DoubtKind {
    /// Whether the same doubt about the same disk need not be told again once a person has accepted it: it is
    /// about what the source is, not about what became of one backup.
    pub fn is_lasting(self) -> bool {
        matches!(self, DoubtKind::Format | DoubtKind::Chain)
    }

    /// A short stable word for machines.
    pub fn word(self) -> &'static str {
        match self {
            DoubtKind::Smaller => "smaller",
            DoubtKind::Format => "format",
            DoubtKind::Chain => "chain",
            DoubtKind::Changed => "changed",
            DoubtKind::Blank => "blank",
        }
    }
}

/// A warning about one disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Name of the disk.
    pub disk: String,
    /// What kind.
    pub kind: DoubtKind,
    /// A sentence for people.
    pub text: String,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk {}: {}", self.disk, self.text)
    }
}

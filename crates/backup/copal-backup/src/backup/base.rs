//! The snapshot that a backup builds on, and the good one that its disks are measured against as well.
//!
//! Not here: finding them (`session`), and what they are compared with (`plan`, `gate`).

use crate::manifest::Manifest;

/// The snapshot a backup builds on.
pub(crate) struct Base {
    pub(crate) manifest: Manifest,
    good: GoodSnapshot,
}

/// The newest snapshot against which nothing stands that nobody has accepted.
enum GoodSnapshot {
    /// The newest of all.
    Newest,
    Older(Box<Manifest>),
    /// There is none.
    Missing,
}

impl Base {
    /// The newest snapshot; `find_good` looks for an older one where something stands against it.
    pub(crate) fn new(
        manifest: Manifest,
        is_accepted: bool,
        find_good: impl FnOnce() -> Option<Manifest>,
    ) -> Base {
        let good = match is_accepted || manifest.doubts.is_empty() {
            true => GoodSnapshot::Newest,
            false => find_good().map_or(GoodSnapshot::Missing, |good| GoodSnapshot::Older(Box::new(good))),
        };
        Base { manifest, good }
    }

    /// The newest good snapshot; the newest of all where none is good.
    pub(super) fn good(&self) -> &Manifest {
        match &self.good {
            GoodSnapshot::Newest | GoodSnapshot::Missing => &self.manifest,
            GoodSnapshot::Older(good) => good,
        }
    }

    /// Whether the newest is a good one.
    pub(super) fn is_good(&self) -> bool {
        matches!(self.good, GoodSnapshot::Newest)
    }

    /// Whether any is.
    pub(super) fn has_good(&self) -> bool {
        !matches!(self.good, GoodSnapshot::Missing)
    }
}

//! The snapshot that a backup builds on, and the good one that its disks are measured against as well.
//!
//! Not here: finding them (`session`), and what they are compared with (`plan`, `gate`).

use crate::request::SnapshotId;
use crate::request::error::Result;
use crate::sessions::parts::Parts;
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The snapshot a backup builds on.
pub(crate) struct Base {
    pub(crate) manifest: Manifest,
    good: GoodSnapshot,
    /// Disks that the newest snapshot lacks, as the last snapshot with each of them has it.
    left_out: Vec<(SnapshotId, ManifestDisk)>,
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
        Base { manifest, good, left_out: Vec::new() }
    }

    /// Looks in older snapshots for those of `disks` that the newest was made without: they are measured,
    /// too.
    /// # Errors
    /// Those of the store. A damaged manifest is passed over.
    pub(super) fn look_back<'a>(
        &mut self,
        parts: &Parts,
        vm: Uuid,
        disks: impl Iterator<Item = &'a str>,
    ) -> Result<()> {
        let is_there = |name: &str| self.manifest.disks.iter().any(|disk| disk.name == name);
        let mut wanted: BTreeSet<&str> = disks.filter(|name| !is_there(name)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for published in parts.vm_state(vm)?.published.iter().rev() {
            if wanted.is_empty() {
                break;
            }
            let older = match parts.manifest(vm, published) {
                Err(error) if error.is_corruption() => continue,
                older => older?,
            };
            let found = older.disks.into_iter().filter(|disk| wanted.remove(disk.name.as_str()));
            self.left_out.extend(found.map(|disk| (older.snapshot, disk)));
        }
        Ok(())
    }

    /// A disk as the last snapshot with it has it.
    pub(super) fn last(&self, name: &str) -> Option<(SnapshotId, &ManifestDisk)> {
        let newest = self.manifest.disks.iter().map(|disk| (self.manifest.snapshot, disk));
        let left_out = self.left_out.iter().map(|(snapshot, disk)| (*snapshot, disk));
        newest.chain(left_out).find(|(_, disk)| disk.name == name)
    }

    /// A disk as the newest good snapshot has it; one that this was made without, as the last snapshot with
    /// it has it.
    pub(super) fn last_good(&self, name: &str) -> Option<&ManifestDisk> {
        let mut good = self.good().disks.iter();
        let left_out = self.left_out.iter().map(|(_, disk)| disk);
        good.find(|disk| disk.name == name).or_else(|| left_out.into_iter().find(|disk| disk.name == name))
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

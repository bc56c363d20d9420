//! The base snapshot of a backup, and the newest good snapshot, to which disks are compared as well.
//!
//! Not here: finding them (`session`), the comparisons (`plan`, `gate`).

use crate::request::SnapshotId;
use crate::request::error::Result;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The newest readable snapshot, on which a backup builds.
pub(crate) struct BaseSnapshot {
    pub(crate) manifest: Manifest,
    good: GoodSnapshot,
    /// Disks that the newest snapshot lacks, from the last snapshot that has each of them.
    left_out: Vec<(SnapshotId, ManifestDisk)>,
}

/// The newest snapshot without a doubt, or with all doubts accepted.
enum GoodSnapshot {
    /// The newest of all snapshots.
    Newest,
    Older(Box<Manifest>),
    /// No snapshot is good.
    Missing,
}

impl BaseSnapshot {
    /// Makes a base of the newest snapshot. If that is doubtful, `find_good` looks for an older good one.
    pub(crate) fn new(
        manifest: Manifest,
        is_accepted: bool,
        find_good: impl FnOnce() -> Option<Manifest>,
    ) -> BaseSnapshot {
        let good = match is_accepted || manifest.doubts.is_empty() {
            true => GoodSnapshot::Newest,
            false => find_good().map_or(GoodSnapshot::Missing, |good| GoodSnapshot::Older(Box::new(good))),
        };
        BaseSnapshot { manifest, good, left_out: Vec::new() }
    }

    /// Looks up those of `disks` that the newest snapshot lacks in older snapshots, so that they are compared
    /// too.
    /// # Errors
    /// Errors of the store. A damaged manifest is skipped.
    pub(super) fn look_back<'a>(
        &mut self,
        parts: &RepositoryParts,
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

    /// A disk in the last snapshot that has it.
    pub(super) fn last(&self, name: &str) -> Option<(SnapshotId, &ManifestDisk)> {
        let newest = self.manifest.disks.iter().map(|disk| (self.manifest.snapshot, disk));
        let left_out = self.left_out.iter().map(|(snapshot, disk)| (*snapshot, disk));
        newest.chain(left_out).find(|(_, disk)| disk.name == name)
    }

    /// A disk in the newest good snapshot; a disk that this lacks, in the last snapshot that has it.
    pub(super) fn last_good(&self, name: &str) -> Option<&ManifestDisk> {
        let mut good = self.good().disks.iter();
        let left_out = self.left_out.iter().map(|(_, disk)| disk);
        good.find(|disk| disk.name == name).or_else(|| left_out.into_iter().find(|disk| disk.name == name))
    }

    /// The newest good snapshot; the newest of all if none is good.
    pub(super) fn good(&self) -> &Manifest {
        match &self.good {
            GoodSnapshot::Newest | GoodSnapshot::Missing => &self.manifest,
            GoodSnapshot::Older(good) => good,
        }
    }

    /// Whether the newest snapshot is good.
    pub(super) fn is_good(&self) -> bool {
        matches!(self.good, GoodSnapshot::Newest)
    }

    /// Whether any snapshot is good.
    pub(super) fn has_good(&self) -> bool {
        !matches!(self.good, GoodSnapshot::Missing)
    }
}

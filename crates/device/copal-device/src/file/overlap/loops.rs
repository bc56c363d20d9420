//! Loop devices and partitions: each shows a part of a file or of another device.

use super::{DeviceListing, StorageId, StorageNeighbour, device_in};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The part of a file or device that a loop device or a partition shows.
pub(super) struct LoopPart {
    device: StorageId,
    /// `None` for a file that cannot be found: it was removed or lies in another mount namespace.
    pub(super) lower: Option<StorageId>,
    /// As the kernel names it.
    lower_path: PathBuf,
    /// First byte.
    from: u64,
    /// Behind the last byte.
    to: u64,
}

/// The unit of the kernel's list on every disk.
const SECTOR_BYTES: u64 = 512;

impl LoopPart {
    /// Two files that cannot be found count as one if the kernel gives them the same name: refusing a free device
    /// costs less than overwriting one in use.
    fn meets(&self, other: &LoopPart) -> bool {
        self.device != other.device
            && self.lower == other.lower
            && (self.lower.is_some() || self.lower_path == other.lower_path)
            && self.from < other.to
            && other.from < self.to
    }
}

impl DeviceListing {
    /// `None` for all that is no loop device.
    pub(super) fn loop_part(&self, id: StorageId) -> Option<LoopPart> {
        let attributes = self.entry(id)?.join("loop");
        let name = std::fs::read(attributes.join("backing_file")).ok()?;
        let lower_path = PathBuf::from(OsStr::from_bytes(name.trim_ascii_end()));
        let lower = StorageId::of(&lower_path);
        let number = |file: &str| -> Option<u64> {
            std::fs::read_to_string(attributes.join(file)).ok()?.trim_end().parse().ok()
        };
        let from = number("offset").unwrap_or(0);
        // A limit of 0 is none.
        let limit = number("sizelimit").filter(|&bytes| bytes != 0);
        let to = limit.map_or(u64::MAX, |bytes| from.saturating_add(bytes));
        Some(LoopPart { device: id, lower, lower_path, from, to })
    }

    /// `None` for all that is no partition.
    fn partition_part(&self, id: StorageId) -> Option<LoopPart> {
        let attributes = self.entry(id)?;
        let sectors = |file: &str| -> Option<u64> {
            std::fs::read_to_string(attributes.join(file)).ok()?.trim_end().parse().ok()
        };
        sectors("partition")?;
        let lower_path = attributes.join("../dev");
        let lower = Some(device_in(&lower_path)?);
        let from = sectors("start")?.saturating_mul(SECTOR_BYTES);
        let to = from.saturating_add(sectors("size")?.saturating_mul(SECTOR_BYTES));
        Some(LoopPart { device: id, lower, lower_path, from, to })
    }

    /// Whether both lie on loop devices or partitions with the same bytes.
    pub(super) fn parts_meet(&self, one: StorageId, other: StorageId) -> bool {
        let part = |id| self.loop_part(id).or_else(|| self.partition_part(id));
        let parts = |id| -> Vec<LoopPart> { self.all_below(id).into_iter().filter_map(part).collect() };
        let others = parts(other);
        parts(one).iter().any(|part| others.iter().any(|other| part.meets(other)))
    }

    /// Whether a loop device lies between the two.
    fn is_above_by_loop(&self, upper: StorageId, lower: StorageId) -> bool {
        let parts = self.all_below(upper).into_iter().filter_map(|id| self.loop_part(id));
        parts.filter_map(|part| part.lower).any(|upper| self.lies_on(upper, lower))
    }

    /// All devices and files that share bytes with `id`. A file lies on the device of its file system, which does not
    /// count.
    pub(super) fn neighbours(&self, id: StorageId) -> Vec<StorageNeighbour> {
        let mut found = Vec::new();
        let is_file = matches!(id, StorageId::File { .. });
        let below = if is_file { Vec::new() } else { self.all_below(id) };
        let parts: Vec<LoopPart> = below.iter().filter_map(|&id| self.loop_part(id)).collect();
        for part in &parts {
            if matches!(part.lower, Some(StorageId::File { .. })) {
                found.push(StorageNeighbour { path: part.lower_path.clone(), claims_apart: false });
            }
        }
        for other in self.devices().into_iter().filter(|&other| other != id) {
            // The kernel claims a disk with its partition, but nothing below a loop device.
            let claims_apart = self.is_above_by_loop(other, id)
                || parts.iter().any(|part| part.lower == Some(other))
                || !is_file && self.parts_meet(id, other);
            if (claims_apart || below.contains(&other) || self.lies_on(other, id))
                && let Some(path) = self.node(other)
            {
                found.push(StorageNeighbour { path, claims_apart });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{device, id, loop_over};
    use super::*;
    use std::{fs, path::Path};

    fn names(found: &[StorageNeighbour]) -> Vec<(String, bool)> {
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        found.iter().map(|found| (name(&found.path), found.claims_apart)).collect()
    }

    /// Symptom: `init --force` on a loop device overwrote a file system that was mounted from a second loop device
    /// over the same file. Cause: such a pair counted as two disks. Fix: their files and ranges are compared.
    #[test]
    fn loop_devices_over_the_same_bytes_share_them() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let (image, other) = (root.join("image"), root.join("other"));
        fs::write(&image, "").unwrap();
        fs::write(&other, "").unwrap();
        loop_over(root, 0, &image, 0, 0);
        loop_over(root, 1, &image, 0, 0);
        loop_over(root, 2, &image, 1 << 20, 1 << 20);
        loop_over(root, 3, &image, 2 << 20, 0);
        loop_over(root, 4, &other, 0, 0);
        device(root, "2259:0", "loop1p1", Some("loop1"), &[]);
        device(root, "2259:1", "loop2p1", Some("loop2"), &[]);
        let listing = DeviceListing { root: root.join("numbers") };
        let share = |one: &str, other: &str| {
            let both = listing.share_bytes(id(one), id(other));
            assert_eq!(both, listing.share_bytes(id(other), id(one)), "{one} and {other}");
            both
        };
        for (one, other) in
            [("2007:0", "2007:1"), ("2007:0", "2007:2"), ("2007:0", "2259:0"), ("2007:3", "2007:0")]
        {
            assert!(share(one, other), "{one} and {other}");
        }
        for (one, other) in [("2007:2", "2007:3"), ("2007:0", "2007:4"), ("2259:0", "2007:4")] {
            assert!(!share(one, other), "{one} and {other}");
        }
        let mut found = names(&listing.neighbours(id("2007:2")));
        found.sort();
        let want =
            [("image", false), ("loop0", true), ("loop1", true), ("loop1p1", true), ("loop2p1", false)];
        assert_eq!(found, want.map(|(name, apart)| (name.to_owned(), apart)));
        let mut found = names(&listing.neighbours(StorageId::of(&other).unwrap()));
        assert_eq!(found.pop(), Some(("loop4".to_owned(), true)));
        assert_eq!(found, []);
    }

    /// Symptom: two loop devices showed one file that was removed since. `init --force` on one overwrote the file
    /// system that was mounted from the other. Cause: a file that cannot be found had no identity. Fix: the kernel's
    /// name for it stands for it.
    #[test]
    fn loop_devices_over_a_removed_file_share_its_bytes() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let removed = Path::new("/var/images/disk (deleted)");
        loop_over(root, 0, removed, 0, 0);
        loop_over(root, 1, removed, 0, 1 << 20);
        loop_over(root, 2, removed, 1 << 20, 0);
        loop_over(root, 3, Path::new("/var/images/other (deleted)"), 0, 0);
        let listing = DeviceListing { root: root.join("numbers") };
        let share = |one: &str, other: &str| listing.share_bytes(id(one), id(other));
        assert!(share("2007:0", "2007:1") && share("2007:2", "2007:0"));
        assert!(!share("2007:1", "2007:2") && !share("2007:0", "2007:3"));
        assert_eq!(names(&listing.neighbours(id("2007:1"))), [("loop0".to_owned(), true)]);
    }
}

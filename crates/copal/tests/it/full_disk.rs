//! A repository on a file system that runs full: a clean end, nothing lost, and room again after a prune.

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, id},
};
use std::{path::PathBuf, process::Command};

/// A small file system in memory; gone with its files when it is dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// `None`, and a line that says so, where this user may not mount.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn mount(path: PathBuf, mebibytes: u64) -> Option<SmallDisk> {
        std::fs::create_dir(&path).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&path)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(SmallDisk { path });
        }
        eprintln!("skipped: this user may not mount a small file system here (root may)");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: what stays mounted keeps a scratch directory alive, nothing more.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

#[test]
fn a_full_file_system_ends_a_backup_cleanly_and_a_prune_makes_room() {
    for backend in ["cow", "hostfs"] {
        let scratch = House::empty();
        let Some(small) = SmallDisk::mount(scratch.path("small"), 112) else {
            return;
        };
        let house = House::elsewhere(&small.path.join("repository"));
        house.good(["init", "--backend", backend, "--size", "64MiB"]);
        let disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 130);
        let kept = id(&house.backup("web", &house.path("disk.raw")));
        std::fs::write(house.path("big.raw"), Random(131).bytes(200 << 20)).unwrap();

        let words = ["--quiet", "backup", "--vm", "big", &house.word("big.raw")];
        let run = house.run(words);
        assert_eq!(run.code, Some(1), "{backend}: {run:?}");
        let sentence = run.sentence();
        assert!(
            sentence.contains("full") && sentence.contains("copal prune"),
            "{backend}: {sentence}"
        );
        assert_eq!(house.snapshots(), std::slice::from_ref(&kept), "{backend}");
        assert_restored(&house.restore(&kept, "kept.out"), &disk.bytes);
        house.check();

        // On the disk that is still full, pruning works, and what it frees takes the next backups.
        house.good(["prune"]);
        let again = house.backup("web", &house.path("disk.raw"));
        assert_eq!(again["counts"]["new_bytes"], 0, "{backend}");
        let other = Disk::create(&house.path("other.raw"), 8 * MIB, 132);
        let other_id = id(&house.backup("other", &house.path("other.raw")));
        assert_restored(&house.restore(&other_id, "other.out"), &other.bytes);
        assert_restored(&house.restore(&kept, "kept.again"), &disk.bytes);
        house.check();
    }
}

//! A repository on a file system that fills up: a clean end, nothing lost, and space again after a prune.

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, id},
};
use std::{fs::File, io::Write, path::PathBuf, process::Command};

/// A small file system in memory; removed with its files when it is dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// `None`, with a message, if this user cannot mount.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn mount(path: PathBuf, mebibytes: u64) -> Option<SmallDisk> {
        std::fs::create_dir(&path).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(SmallDisk { path });
        }
        eprintln!("skipped: this user may not mount a small file system here (root may)");
        None
    }

    /// Uses every remaining byte.
    fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        let mut bytes = vec![1; 1 << 20];
        while !bytes.is_empty() {
            while filler.write_all(&bytes).is_ok() {}
            bytes.truncate(bytes.len() / 16);
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a mount that remains only keeps a scratch directory alive.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Makes a repository; only one in a file takes a size.
fn make(house: &House, backend: &str, size: &str) {
    match backend {
        "hostfs" => house.good(["init", "--backend", backend]),
        _ => house.good(["init", "--backend", backend, "--size", size]),
    };
}

#[test]
fn a_full_file_system_ends_a_backup_cleanly_and_a_prune_makes_room() {
    for backend in ["cow", "hostfs"] {
        let scratch = House::empty();
        let Some(small) = SmallDisk::mount(scratch.path("small"), 112) else {
            return;
        };
        let house = House::elsewhere(&small.path.join("repository"));
        make(&house, backend, "64MiB");
        let disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 130);
        let kept = id(&house.backup("web", &house.path("disk.raw")));
        std::fs::write(house.path("big.raw"), Random::new(131).bytes(200 << 20)).unwrap();

        let words = ["--quiet", "backup", "--vm", "big", &house.word("big.raw")];
        let run = house.run(words);
        assert_eq!(run.code, Some(28), "{backend}: {run:?}");
        let sentence = run.sentence();
        assert!(sentence.contains("full") && sentence.contains("copal prune"), "{backend}: {sentence}");
        assert_eq!(house.snapshots(), std::slice::from_ref(&kept), "{backend}");
        assert_restored(&house.restore(&kept, "kept.out"), &disk.bytes);
        house.check();

        // On the full disk pruning works, and later backups use the freed space.
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

/// Symptom: when other files had filled the file system to the last byte, `forget` and `prune` of a
/// repository of files failed, contrary to the manual: its next log or checkpoint found no block.
/// Cause: the space for deletions was counted, but not allocated.
/// Fix: a store of files allocates it in a file `reserve`; one file of fixed size always had it.
#[test]
fn with_no_byte_left_snapshots_are_forgotten_and_pruned() {
    for backend in ["cow", "hostfs"] {
        let scratch = House::empty();
        let Some(small) = SmallDisk::mount(scratch.path("small"), 224) else {
            return;
        };
        let house = House::elsewhere(&small.path.join("repository"));
        make(&house, backend, "128MiB");
        let disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 140);
        let kept = id(&house.backup("web", &house.path("disk.raw")));
        Disk::create(&house.path("other.raw"), 24 * MIB, 141);
        let other = id(&house.backup("other", &house.path("other.raw")));

        small.fill();
        house.good(["forget", &other]);
        house.good(["prune"]);
        assert_eq!(house.snapshots(), std::slice::from_ref(&kept), "{backend}");
        house.good(["forget", &kept]);
        house.good(["prune"]);
        house.check();

        small.empty();
        let again = id(&house.backup("web", &house.path("disk.raw")));
        assert_restored(&house.restore(&again, "again.out"), &disk.bytes);
        house.check();
    }
}

//! Opens the target of a restore, unless it belongs to a repository.

use crate::{
    failure::{Failure, Outcome},
    place::RepositoryPlace,
};
use copal_backup::scheme_of;
pub(super) use copal_disk::target::open::is_nbd;
use copal_disk::target::{self, Target};
use std::{ffi::OsStr, path::Path};

/// Standard output as a target, in any directory.
const STDOUT: &str = "-";

/// Opens the target for a restore from the repository at `place`.
pub(super) fn open(place: &RepositoryPlace, target: &OsStr, force: bool) -> Outcome<Box<dyn Target>> {
    let words = target.to_string_lossy();
    if is_nbd(&words) && target.to_str().is_none() {
        return Err(Failure::usage(format!(
            "{words} is not UTF-8, which an address has to be; write each other byte as % and two hexadecimal digits"
        )));
    }
    if target == STDOUT || is_nbd(&words) {
        return Ok(target::open::open(target, force)?);
    }
    if let Some(scheme) = scheme_of(&words) {
        return Err(Failure::usage(format!(
            "{words} is no target: nothing is restored to {scheme}:; give a file, a block device, nbd://HOST/EXPORT or \
             nbd+unix:///EXPORT?socket=FILE, and write a path of this name as ./{words}"
        )));
    }
    refuse_own_files(place, target)?;
    let opened = target::open::open(target, force)?;
    refuse_shared(target)?;
    Ok(opened)
}

/// Locks do not suffice: the files of a repository of files have none.
fn refuse_own_files(place: &RepositoryPlace, target: &OsStr) -> Outcome<()> {
    let path = Path::new(target);
    let target = path.display();
    if place.holds(path) {
        return Err(Failure::plain(
            "target",
            format!(
                "{target} belongs to the repository itself, or shares bytes with it; name another file or device, \
                 nothing was written"
            ),
        ));
    }
    Ok(())
}

/// A device's lock covers one of its names, not its partitions or the devices below. The check comes after
/// the target's own lock: of two concurrent restores, each sees the other's lock.
fn refuse_shared(target: &OsStr) -> Outcome<()> {
    match copal_device::overlap_in_use(Path::new(target)) {
        None => Ok(()),
        Some(other) => Err(Failure::plain(
            "target",
            format!(
                "{} is in use (by the store of a repository, or another restore, on {}); name another device, \
                 nothing was written",
                target.display(),
                other.display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_node::StoreLocation;

    /// Symptom: `copal restore latest --target -`, started inside a store's own directory of files, was
    /// refused.
    /// Cause: `-` was taken for a file of the working directory.
    /// Fix: standard output is no path.
    #[test]
    fn standard_output_is_no_file_of_the_working_directory() {
        let here = RepositoryPlace::Store(StoreLocation::Files(std::env::current_dir().unwrap()));
        assert!(here.holds(Path::new("-")), "a file of that name would lie in the store");
        assert!(open(&here, OsStr::new("-"), false).is_ok());
    }
    use std::process::Command;
    use std::{sync::Barrier, time::Duration};

    /// A loop device; detached when it is dropped.
    struct Loop(String);

    impl Loop {
        /// Attaches a loop device to a file, or to another device.
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        fn attach(over: &Path) -> Option<Loop> {
            let made = Command::new("losetup").args(["--find", "--show"]).arg(over).output();
            match made {
                Ok(made) if made.status.success() => {
                    Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
                }
                refused => {
                    assert!(std::env::var_os("COPAL_TEST_REQUIRE_LOOP").is_none(), "{refused:?}");
                    eprintln!("skipped: no loop device to be had here (root and losetup make one)");
                    None
                }
            }
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["--detach", &self.0]).status();
        }
    }

    /// Symptom: of two concurrent restores, one onto a device and one onto the device below it, each
    /// overwrote the other's data.
    /// Cause: each checked the other's lock before it took its own. (The kernel itself separates a disk from
    /// its partition, but not a loop device from the device below.)
    /// Fix: the check comes after the target's own lock.
    #[test]
    fn of_two_restores_onto_the_same_bytes_one_at_most_begins() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let Some(lower) = Loop::attach(&file) else { return };
        let upper = Loop::attach(Path::new(&lower.0)).unwrap();
        let place = RepositoryPlace::Store(StoreLocation::Files(scratch.path().join("repository")));
        for _ in 0..100 {
            let start = Barrier::new(2);
            let [one, other] = std::thread::scope(|scope| {
                [lower.0.clone(), upper.0.clone()]
                    .map(|target| {
                        let (start, place) = (&start, &place);
                        scope.spawn(move || {
                            start.wait();
                            open(place, target.as_ref(), true)
                        })
                    })
                    .map(|opening| opening.join().unwrap())
            });
            assert!(one.is_err() || other.is_err(), "both began");
        }
        // Each restore works alone, once a device manager has released the device.
        for target in [&upper.0, &lower.0] {
            let opened = (0..500).any(|_| {
                std::thread::park_timeout(Duration::from_millis(10));
                open(&place, target.as_ref(), true).is_ok()
            });
            assert!(opened, "{target}");
        }
    }
}

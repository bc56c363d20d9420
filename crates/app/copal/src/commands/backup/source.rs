//! What a disk image is, apart from its bytes: part of the repository itself, a device that is in use.
//!
//! Not here: reading it (`copal_disk::source`).

use crate::{
    failure::{Failure, Outcome, exit},
    place::RepositoryPlace,
};
use copal_disk::doubt::DoubtKind;
use std::{ffi::OsStr, path::Path};

/// The image that is standard input, wherever the command was started.
const STDIN: &str = "-";

/// A store that is read while it is written never ends as what it began as, and what it holds is no disk of a
/// VM.
pub(super) fn refuse_own(place: &RepositoryPlace, image: &OsStr) -> Outcome<()> {
    if image != STDIN && !image.is_empty() && place.holds(Path::new(image)) {
        return Err(Failure::new(
            exit::SOURCE,
            "source",
            format!(
                "{} belongs to the repository itself, or shares bytes with it; name the disk of a VM, no snapshot was \
                 made",
                image.display()
            ),
        ));
    }
    Ok(())
}

/// Why a backup of an image may not be what its disk should be, by what else uses it.
pub(super) fn doubts(image: &OsStr) -> Option<(DoubtKind, String)> {
    let mounted = copal_device::mounted_on(Path::new(image)).map(|point| {
        format!(
            "{} is mounted on {}: what is written there while it is read makes a snapshot that mixes before and \
             after; back up a snapshot of the device (LVM, ZFS), or unmount it",
            image.display(),
            point.display()
        )
    });
    mounted.map(|text| (DoubtKind::Changed, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_node::StoreLocation;

    /// Symptom: `copal backup --vm web -`, started inside a store's own directory of files, refused its
    /// standard input as a part of the repository.
    /// Cause: `-` was looked for as a file of the working directory.
    /// Fix: standard input is no path.
    #[test]
    fn standard_input_is_no_file_of_the_working_directory() {
        let here = RepositoryPlace::Store(StoreLocation::Files(std::env::current_dir().unwrap()));
        assert!(here.holds(Path::new("-")), "a file of that name would lie in the store");
        assert!(refuse_own(&here, OsStr::new("-")).is_ok());
        assert!(refuse_own(&here, OsStr::new("disk.raw")).is_err());
    }
}

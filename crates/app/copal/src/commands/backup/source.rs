//! Checks of a disk image apart from its content: whether it is part of the repository, or a device in use.
//!
//! Not here: reading it (`copal_disk::source`).

use crate::{
    failure::{Failure, Outcome, exit},
    place::RepositoryPlace,
};
use copal_disk::doubt::DoubtKind;
use std::{ffi::OsStr, path::Path};

/// Standard input as an image, in any directory.
const STDIN: &str = "-";

/// Refuses an image that belongs to the repository: it would change during the read, and holds no disk of a
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

/// Doubts about a backup of an image that is mounted.
pub(super) fn doubts(image: &OsStr) -> Option<(DoubtKind, String)> {
    let mounted = copal_device::mounted_on(Path::new(image)).map(|point| {
        format!(
            "{} is mounted on {}: writes there during the backup make a snapshot that mixes old and new data; back up a snapshot of the device (LVM, ZFS), or unmount it",
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
    /// Cause: `-` was taken for a file of the working directory.
    /// Fix: standard input is no path.
    #[test]
    fn standard_input_is_no_file_of_the_working_directory() {
        let here = RepositoryPlace::Store(StoreLocation::Files(std::env::current_dir().unwrap()));
        assert!(here.holds(Path::new("-")), "a file of that name would lie in the store");
        assert!(refuse_own(&here, OsStr::new("-")).is_ok());
        assert!(refuse_own(&here, OsStr::new("disk.raw")).is_err());
    }
}

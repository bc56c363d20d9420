//! What a disk image is, apart from its bytes: part of the repository itself, a device that is in use.
//!
//! Not here: reading it (`copal_backup::source`).

use crate::{
    failure::{Failure, Outcome, exit},
    place::Place,
};
use std::path::Path;

/// A store that is read while it is written never ends as what it began as, and what it holds is no disk of a VM.
pub(super) fn refuse_own(place: &Place, image: &str) -> Outcome<()> {
    if place.holds(Path::new(image)) {
        return Err(Failure::new(
            exit::SOURCE,
            "source",
            format!(
                "{image} belongs to the repository itself, or shares bytes with it; name the disk of a VM, no snapshot was \
                 made"
            ),
        ));
    }
    Ok(())
}

/// What a person should know about an image before its backup is believed.
pub(super) fn warnings(image: &str) -> Vec<String> {
    let mounted = copal_device::mounted_on(Path::new(image)).map(|point| {
        format!(
            "{image} is mounted on {}: what is written there while it is read makes a snapshot that mixes before and \
             after; back up a snapshot of the device (LVM, ZFS), or unmount it",
            point.display()
        )
    });
    mounted.into_iter().collect()
}

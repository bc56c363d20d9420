//! What a disk image is, apart from its bytes: a device that is in use.
//!
//! Not here: reading it (`copal_backup::source`).

use std::path::Path;

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

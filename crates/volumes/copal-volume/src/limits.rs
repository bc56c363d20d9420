//! Sizes no store of volumes goes beyond.

use crate::error::VolumeError;
use crate::store::VolumeOptions;

/// Longest name of a file, in bytes.
pub const MAX_FILE_NAME_BYTES: usize = 1280;
/// Longest name of a volume (one component of its path), in bytes.
pub const MAX_VOLUME_NAME_BYTES: usize = 255;
/// Deepest path of a volume, in components.
pub const MAX_VOLUME_DEPTH: usize = 32;
/// Most caller metadata a file carries, in bytes.
pub const MAX_METADATA_BYTES: usize = 1024;
/// Most bytes of names, metadata and bodies in one batch call.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// Largest file, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 30;

/// Refuses metadata above [`MAX_METADATA_BYTES`].
/// # Errors
/// `TooLarge`.
pub fn check_metadata(metadata: &[u8]) -> Result<(), VolumeError> {
    if metadata.len() > MAX_METADATA_BYTES {
        return Err(VolumeError::TooLarge {
            what: "the metadata of the file",
            bytes: metadata.len() as u64,
            limit: MAX_METADATA_BYTES as u64,
        });
    }
    Ok(())
}

/// Refuses options that no store obeys: a number of replicas, and a class of disk. A wish that is stored and
/// not obeyed would look like one that was granted.
/// # Errors
/// `Denied`.
pub fn check_volume_options(options: &VolumeOptions) -> Result<(), VolumeError> {
    let refused = |what: &str| {
        Err(VolumeError::Denied {
            reason: format!("no store chooses {what} for a single volume; create the volume without it"),
        })
    };
    match (options.replicas, &options.class) {
        (Some(_), _) => refused("the number of replicas"),
        (None, Some(_)) => refused("the class of disk"),
        (None, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a volume that was asked for with three replicas was made, and had one. Fix: what is not
    /// obeyed is refused.
    #[test]
    fn options_that_no_store_obeys_are_refused() {
        let obeyed = VolumeOptions { quota_bytes: Some(5), spare_copies: true, ..VolumeOptions::default() };
        assert_eq!(check_volume_options(&obeyed), Ok(()));
        let replicas = VolumeOptions { replicas: Some(3), ..obeyed.clone() };
        let class = VolumeOptions { class: Some(String::new()), ..obeyed };
        for refused in [replicas, class] {
            let answer = check_volume_options(&refused);
            assert!(matches!(answer, Err(VolumeError::Denied { .. })), "{refused:?}");
        }
    }
}

//! Checks the sizes, names and texts of a backup request against the limits of the manifest.

use super::base::BaseSnapshot;
use crate::request::BackupRequest;
use crate::request::error::{Error, Result};
use crate::request::words::is_plain;
use crate::snapshot::manifest::{MAX_DISKS, MAX_TAGS, MAX_TEXT_BYTES, MAX_WORD_BYTES};

/// Checks a request.
/// # Errors
/// `Invalid`: the violated limit.
pub(super) fn check(request: &BackupRequest) -> Result<()> {
    let invalid = |reason: String| Err(Error::Invalid { reason });
    if request.disks.is_empty() || request.disks.len() > MAX_DISKS {
        return invalid(format!("a backup has 1 to {MAX_DISKS} disks, not {}", request.disks.len()));
    }
    for (index, disk) in request.disks.iter().enumerate() {
        if disk.name.is_empty() || disk.name.len() > 255 || !is_plain(&disk.name) {
            return invalid(format!(
                "{:?} cannot be the name of a disk: 1 to 255 bytes without control characters and marks of the \
                 direction of writing",
                disk.name
            ));
        }
        if request.disks[..index].iter().any(|other| other.name == disk.name) {
            return invalid(format!("two disks are named {}", disk.name));
        }
        let bitmap = disk.starts.as_ref().map_or("", |bitmap| &bitmap.name);
        if disk.serial.len() > MAX_WORD_BYTES || bitmap.len() > MAX_WORD_BYTES {
            return invalid(format!(
                "the serial and the bitmap of disk {} have at most {MAX_WORD_BYTES} bytes",
                disk.name
            ));
        }
        if disk.source.size_bytes().is_some_and(|size| size > crate::snapshot::recipe::format::MAX_DISK_BYTES)
        {
            return invalid(format!("disk {} is larger than 64 TiB", disk.name));
        }
    }
    let long_tag = request.tags.iter().any(|tag| tag.len() > MAX_WORD_BYTES);
    if request.tags.len() > MAX_TAGS || long_tag || request.description.len() > MAX_TEXT_BYTES {
        return invalid(format!(
            "at most {MAX_TAGS} tags of {MAX_WORD_BYTES} bytes and a description of {MAX_TEXT_BYTES} bytes"
        ));
    }
    let mut texts = request.tags.iter().chain([&request.description]);
    if let Some(text) = texts.find(|text| !is_plain(text)) {
        return invalid(format!(
            "{text:?} cannot be kept: tags and descriptions are one line without control characters and marks of the \
             direction of writing"
        ));
    }
    Ok(())
}

/// Checks that a copy follows the snapshot for which it was planned (BAK-30).
/// # Errors
/// `Busy`: another process has added a snapshot meanwhile.
pub(super) fn follows(request: &BackupRequest, base: Option<&BaseSnapshot>) -> Result<()> {
    let newest = base.map(|base| base.manifest.snapshot);
    match &request.copied {
        Some(copied) if copied.follows != newest => Err(Error::Busy { what: format!("VM {}", request.vm) }),
        _ => Ok(()),
    }
}

//! Opening a target by its specification: `-`, an image file, a block device, a pipe or an NBD export.

use super::{
    Target, TargetError, device::DeviceTarget, file, file::FileTarget, nbd::NbdTarget, stream::StreamTarget,
};
use copal_nbd::Uri;
use std::{ffi::OsStr, fs::OpenOptions, os::unix::fs::FileTypeExt, path::Path};

/// Whether `spec` is the address of an NBD export.
pub fn is_nbd(spec: &str) -> bool {
    Uri::looks_like(spec)
}

/// Opens a target: `-` is standard output, `nbd://` or `nbd+unix://` an export, anything else a path, which
/// need not be UTF-8. A target that would lose data is refused unless `overwrite`.
///
/// # Errors
/// The target is unusable, with the reason.
pub fn open(spec: impl AsRef<OsStr>, overwrite: bool) -> Result<Box<dyn Target>, TargetError> {
    match spec.as_ref().to_str() {
        Some("-") => return Ok(Box::new(StreamTarget::stdout())),
        Some(uri) if is_nbd(uri) => return Ok(Box::new(NbdTarget::connect(uri, overwrite)?)),
        _ => {}
    }
    let path = Path::new(spec.as_ref());
    let spec = path.display().to_string();
    let Ok(metadata) = path.metadata() else {
        return Ok(Box::new(FileTarget::create(path)?));
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(TargetError::Unusable {
            reason: format!("{spec} is a directory; name the file to restore to"),
        });
    }
    if kind.is_fifo() || kind.is_char_device() {
        let pipe = OpenOptions::new().write(true).open(path).map_err(file::failed("open", path))?;
        return Ok(Box::new(StreamTarget::new(&spec, Box::new(pipe))));
    }
    if !overwrite {
        return Err(if kind.is_block_device() {
            TargetError::Exists {
                reason: format!("{spec} is a block device; add --force to overwrite what is on it"),
            }
        } else {
            file::exists(path)
        });
    }
    if kind.is_block_device() {
        return Ok(Box::new(DeviceTarget::open(path)?));
    }
    Ok(Box::new(FileTarget::replace(path)?))
}

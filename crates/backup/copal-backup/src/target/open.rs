//! From what a person typed to a target: `-`, an image file, a block device, a pipe.

use super::{Target, TargetError, device::DeviceTarget, file, file::FileTarget, stream::StreamTarget};
use std::{fs::OpenOptions, os::unix::fs::FileTypeExt, path::Path};

/// Opens what `spec` names: `-` for standard output, else a path. Whatever exists and would lose
/// data is refused unless `overwrite`.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn open(spec: &str, overwrite: bool) -> Result<Box<dyn Target>, TargetError> {
    if spec == "-" {
        return Ok(Box::new(StreamTarget::stdout()));
    }
    let path = Path::new(spec);
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
        let pipe = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(file::failed("open", path))?;
        return Ok(Box::new(StreamTarget::new(spec, Box::new(pipe))));
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

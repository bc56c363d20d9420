//! From what a person typed to a source: `-`, an NBD address, an image file, a block device.
//!
//! The format of a file is never guessed from its content alone: a raw disk is written by a guest,
//! and a guest that writes a qcow2 header into its first sector could name any file of the host as
//! its backing file. So `auto` takes an image for qcow2 only when its name says so too, and asks
//! when name and content disagree.

use super::{
    ChangedExtents, Source, SourceError, file::FileSource, nbd::NbdSource, qcow2, stream::StreamSource,
};
use std::{fs::File, io::Read, os::unix::fs::FileTypeExt, path::Path};

/// Format of an image file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// By name and first bytes together; refused when they disagree.
    #[default]
    Auto,
    /// The bytes of the file are the bytes of the disk.
    Raw,
    /// Read through `qemu-nbd`.
    Qcow2,
}

/// A source, and what a dirty bitmap says of it when one was named.
pub struct Opened {
    /// The disk.
    pub source: Box<dyn Source>,
    /// What changed since the bitmap was made.
    pub changed: Option<ChangedExtents>,
}

/// Opens what `spec` names: `-` for standard input, `nbd://` or `nbd+unix://` for an export, else a
/// path. `bitmap` names a dirty bitmap of a qcow2 image or an NBD export.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn open(spec: &str, format: ImageFormat, bitmap: Option<&str>) -> Result<Opened, SourceError> {
    if copal_nbd::Uri::looks_like(spec) {
        let source = NbdSource::connect(spec, bitmap)?;
        let changed = bitmap.map(|name| source.changed(name, None)).transpose()?;
        return Ok(Opened {
            source: Box::new(source),
            changed,
        });
    }
    let is_stream = spec == "-" || is_fifo(Path::new(spec));
    if !is_stream && decide(Path::new(spec), format)? == ImageFormat::Qcow2 {
        let source = qcow2::Qcow2Source::open(Path::new(spec), bitmap)?;
        let changed = bitmap.map(|name| source.changed(name, None)).transpose()?;
        return Ok(Opened {
            source: Box::new(source),
            changed,
        });
    }
    if bitmap.is_some() {
        return Err(SourceError::Unusable {
            reason: format!("{spec} has no dirty bitmaps; only qcow2 images and NBD exports do"),
        });
    }
    let source: Box<dyn Source> = match spec {
        "-" => Box::new(StreamSource::stdin()),
        pipe if is_stream => {
            let file = File::open(pipe).map_err(|error| failed("open", Path::new(pipe), error))?;
            Box::new(StreamSource::new(pipe, Box::new(file)))
        }
        path => Box::new(FileSource::open(Path::new(path))?),
    };
    Ok(Opened {
        source,
        changed: None,
    })
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Raw or qcow2; never `Auto`.
fn decide(path: &Path, format: ImageFormat) -> Result<ImageFormat, SourceError> {
    if format == ImageFormat::Raw {
        return Ok(ImageFormat::Raw);
    }
    let has_magic = begins_like_qcow2(path)?;
    let extension = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or("")
        .to_ascii_lowercase();
    let has_name = matches!(extension.as_str(), "qcow2" | "qcow");
    let reason = match (format, has_magic, has_name) {
        (ImageFormat::Qcow2, true, _) | (ImageFormat::Auto, true, true) => return Ok(ImageFormat::Qcow2),
        (ImageFormat::Auto, false, false) => return Ok(ImageFormat::Raw),
        (ImageFormat::Auto, true, false) => {
            "begins like a qcow2 image but is not named like one; say --format qcow2 if it is one, or \
             --format raw if it is the raw disk of a guest (a guest can write such a beginning)"
        }
        _ => "is not a qcow2 image; say --format raw if it is a raw disk",
    };
    Err(SourceError::Unusable {
        reason: format!("{} {reason}", path.display()),
    })
}

fn begins_like_qcow2(path: &Path) -> Result<bool, SourceError> {
    let mut file = File::open(path).map_err(|error| failed("open", path, error))?;
    let mut head = [0; 4];
    match file.read_exact(&mut head) {
        Ok(()) => Ok(head == qcow2::MAGIC),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        // `FileSource` says what a directory is good for.
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(false),
        Err(error) => Err(failed("read", path, error)),
    }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> SourceError {
    SourceError::Io {
        action,
        what: path.display().to_string(),
        error,
    }
}

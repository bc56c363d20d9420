//! From what a person typed to a source: `-`, an NBD address, an image file, a block device.
//!
//! The format of a file is never guessed from its content alone: a raw disk is written by a guest,
//! and a guest that writes a qcow2 header into its first sector could name any file of the host as
//! its backing file. So `auto` takes an image for qcow2 only when its name says so too, and asks
//! when name and content disagree.

use super::{
    Bitmap, ChangedExtents, Content, Source, SourceError, chain,
    file::FileSource,
    identity::disk_identity,
    image_check,
    nbd::{NbdSource, ReadMode},
    qcow2,
    stream::StreamSource,
};
use crate::doubt::DoubtKind;
use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// Names standard input.
const STDIN: &str = "-";

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

/// Dirty bitmaps of the disks of a backup, by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bitmaps<'a> {
    /// The one that says what changed.
    pub changed: Option<&'a str>,
    /// The one that recorded all that was written since the moment that is backed up, and goes on.
    pub starts: Option<&'a str>,
    /// A list of changed extents is given in place of a bitmap.
    pub has_list: bool,
}

impl Bitmaps<'_> {
    /// How an export is read. A bitmap or a list may belong to a VM that runs, and an export does not tell
    /// whether it does.
    fn read_mode(&self) -> ReadMode {
        match self.has_list || self.changed.is_some() || self.starts.is_some() {
            true => ReadMode::Clusters,
            false => ReadMode::Still,
        }
    }
}

/// A source, and what its dirty bitmaps say.
pub struct Opened {
    /// The disk.
    pub source: Box<dyn Source>,
    /// What changed since the bitmap was made.
    pub changed: Option<ChangedExtents>,
    /// Why the bitmap that was named does not say what changed.
    pub no_changes: Option<String>,
    /// The bitmap that the next backup can be told by.
    pub starts: Option<Bitmap>,
    /// What tells where its bytes lie from another disk; empty when nothing does.
    pub identity: String,
    /// How it is known that this is a disk.
    pub content: Content,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// The same, of what makes a snapshot doubtful.
    pub doubts: Vec<(DoubtKind, String)>,
}

impl Opened {
    fn new(source: Box<dyn Source>) -> Opened {
        Opened {
            source,
            changed: None,
            no_changes: None,
            starts: None,
            identity: String::new(),
            content: Content::Guessed,
            warnings: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// `format`: what a person said of it.
    #[must_use]
    pub fn stated(mut self, format: ImageFormat) -> Opened {
        if format == ImageFormat::Raw {
            self.content = Content::Stated;
        }
        self
    }

    /// The next backup has nothing to be told by, and costs a full read.
    fn without_start(mut self, spec: &str, name: &str, why: &str) -> Opened {
        self.warnings.push(format!(
            "{spec}: --starts-bitmap {name} is not noted, so the next backup reads the whole disk: {why}"
        ));
        self
    }
}

/// Opens what `spec` names: `-` for standard input, `nbd://` or `nbd+unix://` for an export, else a
/// path. A bitmap that cannot be used is no failure: why is part of what is opened.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn open(
    spec: impl AsRef<OsStr>,
    format: ImageFormat,
    bitmaps: Bitmaps<'_>,
) -> Result<Opened, SourceError> {
    let spec = spec.as_ref();
    if let Some(spec) = address_of(spec) {
        let names: Vec<&str> = bitmaps.changed.into_iter().chain(bitmaps.starts).collect();
        let source = NbdSource::connect(spec, &names, bitmaps.read_mode())?;
        let (changed, starts) = mapped(&source, bitmaps)?;
        let missing = bitmaps.changed.filter(|_| changed.is_none());
        return Ok(Opened {
            changed,
            no_changes: missing.map(|name| format!("the server exports no dirty bitmap {name:?}")),
            // A bitmap that records cannot be exported for reading only, so one that is not seen is taken as
            // it is said.
            starts: starts.or_else(|| bitmaps.starts.map(unseen)),
            ..Opened::new(Box::new(source)).stated(format)
        });
    }
    if spec == STDIN {
        let source = Box::new(StreamSource::stdin());
        return Ok(without_bitmaps(STDIN, bitmaps, source).stated(format));
    }
    let path = Path::new(spec);
    let name = path.display().to_string();
    if is_fifo(path) {
        let file = File::open(path).map_err(|error| failed("open", path, error))?;
        let source = Box::new(StreamSource::new(&name, Box::new(file)));
        return Ok(without_bitmaps(&name, bitmaps, source).stated(format));
    }
    if decide(path, format)? == ImageFormat::Qcow2 {
        return open_qcow2(path, bitmaps);
    }
    let opened = without_bitmaps(&name, bitmaps, Box::new(FileSource::open(path)?));
    Ok(Opened { identity: disk_identity(path), ..opened.stated(format) })
}

/// The size of the disk that `spec` names, without opening it as a source; `None` where only that tells.
///
/// # Errors
/// As [`open`].
pub fn size_bytes(spec: impl AsRef<OsStr>, format: ImageFormat) -> Result<Option<u64>, SourceError> {
    let spec = spec.as_ref();
    let path = Path::new(spec);
    if address_of(spec).is_some() || spec == STDIN || is_fifo(path) {
        return Ok(None);
    }
    let is_qcow2 = decide(path, format)? == ImageFormat::Qcow2;
    let mut file = File::open(path).map_err(|error| failed("open", path, error))?;
    let size = match is_qcow2 {
        true => qcow2::size_in_header(&mut file),
        false => file.seek(SeekFrom::End(0)),
    };
    size.map(Some).map_err(|error| failed("read", path, error))
}

/// A source of a kind that has no dirty bitmaps.
pub fn without_bitmaps(spec: &str, bitmaps: Bitmaps<'_>, source: Box<dyn Source>) -> Opened {
    const NONE: &str = "it has no dirty bitmaps; only qcow2 images and NBD exports do";
    let mut opened = Opened::new(source);
    if bitmaps.changed.is_some() {
        opened.no_changes = Some(NONE.into());
    }
    match bitmaps.starts {
        Some(name) => opened.without_start(spec, name, NONE),
        None => opened,
    }
}

fn open_qcow2(path: &Path, bitmaps: Bitmaps<'_>) -> Result<Opened, SourceError> {
    let names: Vec<&str> = bitmaps.changed.into_iter().chain(bitmaps.starts).collect();
    let report = image_check::check_chain(path)?;
    let (source, complaints) = qcow2::Qcow2Source::open_with(path, &names)?;
    let complaint = |name: Option<&str>| {
        let (_, why) = complaints.iter().find(|(bad, _)| Some(*bad) == name)?;
        Some(why.clone())
    };
    let (changed, starts) = mapped(source.export(), bitmaps)?;
    let opened = Opened {
        changed,
        no_changes: complaint(bitmaps.changed),
        identity: disk_identity(path),
        content: Content::Decoded,
        warnings: report.warnings,
        doubts: report.doubts,
        ..Opened::new(Box::new(source))
    };
    match (bitmaps.starts, complaint(bitmaps.starts)) {
        (Some(name), Some(why)) => Ok(opened.without_start(&path.display().to_string(), name, &why)),
        // Another one is exported: this one began lately and names little.
        (Some(name), None) => Ok(Opened { starts: starts.or_else(|| Some(unseen(name))), ..opened }),
        (None, _) => Ok(opened),
    }
}

/// A bitmap of which nothing but the name is known.
fn unseen(name: &str) -> Bitmap {
    Bitmap { name: name.to_owned(), dirty_bytes: 0 }
}

/// What the bitmaps that are exported say.
fn mapped(
    export: &NbdSource,
    bitmaps: Bitmaps<'_>,
) -> Result<(Option<ChangedExtents>, Option<Bitmap>), SourceError> {
    let map = |name: Option<&str>| {
        let there = name.filter(|name| export.has_bitmap(name));
        there.map(|name| export.changed(name)).transpose()
    };
    let changed = map(bitmaps.changed)?;
    let starts = if bitmaps.starts == bitmaps.changed { changed.clone() } else { map(bitmaps.starts)? };
    Ok((changed, starts.and_then(|map| map.bitmap)))
}

/// The address of an NBD export; no path is one.
fn address_of(spec: &OsStr) -> Option<&str> {
    spec.to_str().filter(|spec| copal_nbd::Uri::looks_like(spec))
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Raw or qcow2; never `Auto`.
fn decide(path: &Path, format: ImageFormat) -> Result<ImageFormat, SourceError> {
    if format == ImageFormat::Raw {
        return Ok(ImageFormat::Raw);
    }
    let version = qcow_version(path)?;
    let has_magic = version.is_some();
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    let has_name = matches!(extension.as_str(), "qcow2" | "qcow");
    let reason = match (format, has_magic, has_name) {
        _ if version == Some(1) => {
            "begins like a qcow image of version 1, which is not read; convert it with `qemu-img convert -O qcow2`, or say \
             --format raw if it is the raw disk of a guest (a guest can write such a beginning)"
        }
        (ImageFormat::Qcow2, true, _) | (ImageFormat::Auto, true, true) => return Ok(ImageFormat::Qcow2),
        (ImageFormat::Auto, false, false) => return Ok(ImageFormat::Raw),
        (ImageFormat::Auto, true, false) => {
            "begins like a qcow2 image but is not named like one; say --format qcow2 if it is one, or \
             --format raw if it is the raw disk of a guest (a guest can write such a beginning)"
        }
        _ => "is not a qcow2 image; say --format raw if it is a raw disk",
    };
    Err(SourceError::Unusable { reason: format!("{} {reason}", path.display()) })
}

/// The version that the header of a qcow image states; `None` in what does not begin like one.
fn qcow_version(path: &Path) -> Result<Option<u32>, SourceError> {
    let mut file = File::open(path).map_err(|error| failed("open", path, error))?;
    let mut head = [0; 8];
    match file.read_exact(&mut head) {
        Ok(()) if head[..4] == chain::MAGIC => {
            Ok(Some(u32::from_be_bytes([head[4], head[5], head[6], head[7]])))
        }
        Ok(()) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        // `FileSource` says what a directory is good for.
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> SourceError {
    SourceError::Io { action, what: path.display().to_string(), error }
}

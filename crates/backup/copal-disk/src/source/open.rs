//! Opening a source by its specification: `-`, an NBD address, an image file or a block device.
//!
//! The format of a file is never guessed from its content alone, because a guest writes its raw disk. A guest
//! could write a qcow2 header into the first sector and name any file of the host as its backing file. So
//! `auto` takes a file as qcow2 only if its file extension agrees. If extension and content disagree, the
//! user must state the format.

use super::{
    BitmapState, ChangedExtents, ContentEvidence, Source, SourceError, chain,
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

/// Specification of standard input.
const STDIN: &str = "-";

/// Format of an image file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// By file extension and first bytes; refused if they disagree.
    #[default]
    Auto,
    /// The bytes of the file are the bytes of the disk.
    Raw,
    /// Read through `qemu-nbd`.
    Qcow2,
}

/// Dirty bitmaps of a backup, by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct BitmapNames<'a> {
    /// The bitmap that lists the changes since the base.
    pub changed: Option<&'a str>,
    /// The bitmap that has recorded all writes since the moment of this backup, and goes on recording.
    pub starts: Option<&'a str>,
    /// A list of changed extents replaces the bitmap.
    pub has_list: bool,
}

impl BitmapNames<'_> {
    /// Read mode of an export. With a bitmap or a list the disk may belong to a running VM, and an export
    /// does not tell.
    fn read_mode(&self) -> ReadMode {
        match self.has_list || self.changed.is_some() || self.starts.is_some() {
            true => ReadMode::Clusters,
            false => ReadMode::Still,
        }
    }
}

/// An open source and the content of its dirty bitmaps.
pub struct OpenedSource {
    /// The disk.
    pub source: Box<dyn Source>,
    /// Changes since the bitmap was created.
    pub changed: Option<ChangedExtents>,
    /// Reason why the named bitmap is unusable.
    pub no_changes: Option<String>,
    /// The bitmap that can list the changes for the next backup.
    pub starts: Option<BitmapState>,
    /// Identity of the disk; empty if there is none.
    pub identity: String,
    /// Evidence that the bytes are those of a disk.
    pub content: ContentEvidence,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Warnings that make the snapshot doubtful.
    pub doubts: Vec<(DoubtKind, String)>,
}

impl OpenedSource {
    fn new(source: Box<dyn Source>) -> OpenedSource {
        OpenedSource {
            source,
            changed: None,
            no_changes: None,
            starts: None,
            identity: String::new(),
            content: ContentEvidence::Guessed,
            warnings: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// Records the format that the user stated.
    #[must_use]
    pub fn stated(mut self, format: ImageFormat) -> OpenedSource {
        if format == ImageFormat::Raw {
            self.content = ContentEvidence::Stated;
        }
        self
    }

    /// Adds a warning: the next backup has no list of changes and reads the whole disk.
    fn without_start(mut self, spec: &str, name: &str, why: &str) -> OpenedSource {
        self.warnings.push(format!(
            "{spec}: --starts-bitmap {name} is not noted, so the next backup reads the whole disk: {why}"
        ));
        self
    }
}

/// Opens a source: `-` is standard input, `nbd://` or `nbd+unix://` an export, anything else a path. An
/// unusable bitmap is no error: the result states the reason.
///
/// # Errors
/// The source is unusable, with the reason.
pub fn open(
    spec: impl AsRef<OsStr>,
    format: ImageFormat,
    bitmaps: BitmapNames<'_>,
) -> Result<OpenedSource, SourceError> {
    let spec = spec.as_ref();
    if let Some(spec) = address_of(spec) {
        let names: Vec<&str> = bitmaps.changed.into_iter().chain(bitmaps.starts).collect();
        let source = NbdSource::connect(spec, &names, bitmaps.read_mode())?;
        let (changed, starts) = read_bitmaps(&source, bitmaps)?;
        let missing = bitmaps.changed.filter(|_| changed.is_none());
        return Ok(OpenedSource {
            changed,
            no_changes: missing.map(|name| format!("the server exports no dirty bitmap {name:?}")),
            // A recording bitmap cannot be exported by a read-only server, so a bitmap that is not visible is
            // assumed to exist.
            starts: starts.or_else(|| bitmaps.starts.map(unlisted_bitmap)),
            ..OpenedSource::new(Box::new(source)).stated(format)
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
    if choose_format(path, format)? == ImageFormat::Qcow2 {
        return open_qcow2(path, bitmaps);
    }
    let opened = without_bitmaps(&name, bitmaps, Box::new(FileSource::open(path)?));
    Ok(OpenedSource { identity: disk_identity(path), ..opened.stated(format) })
}

/// The size of a disk, without opening it as a source; `None` if only opening tells the size.
///
/// # Errors
/// As [`open`].
pub fn size_bytes(spec: impl AsRef<OsStr>, format: ImageFormat) -> Result<Option<u64>, SourceError> {
    let spec = spec.as_ref();
    let path = Path::new(spec);
    if address_of(spec).is_some() || spec == STDIN || is_fifo(path) {
        return Ok(None);
    }
    let is_qcow2 = choose_format(path, format)? == ImageFormat::Qcow2;
    let mut file = File::open(path).map_err(|error| failed("open", path, error))?;
    let size = match is_qcow2 {
        true => qcow2::size_in_header(&mut file),
        false => file.seek(SeekFrom::End(0)),
    };
    size.map(Some).map_err(|error| failed("read", path, error))
}

/// A source of a kind that has no dirty bitmaps.
pub fn without_bitmaps(spec: &str, bitmaps: BitmapNames<'_>, source: Box<dyn Source>) -> OpenedSource {
    const NONE: &str = "it has no dirty bitmaps; only qcow2 images and NBD exports do";
    let mut opened = OpenedSource::new(source);
    if bitmaps.changed.is_some() {
        opened.no_changes = Some(NONE.into());
    }
    match bitmaps.starts {
        Some(name) => opened.without_start(spec, name, NONE),
        None => opened,
    }
}

fn open_qcow2(path: &Path, bitmaps: BitmapNames<'_>) -> Result<OpenedSource, SourceError> {
    let names: Vec<&str> = bitmaps.changed.into_iter().chain(bitmaps.starts).collect();
    let report = image_check::check_chain(path)?;
    let (source, reasons) = qcow2::Qcow2Source::open_with_bitmaps(path, &names)?;
    let reason = |name: Option<&str>| {
        let (_, why) = reasons.iter().find(|(bad, _)| Some(*bad) == name)?;
        Some(why.clone())
    };
    let (changed, starts) = read_bitmaps(source.export(), bitmaps)?;
    let opened = OpenedSource {
        changed,
        no_changes: reason(bitmaps.changed),
        identity: disk_identity(path),
        content: ContentEvidence::Decoded,
        warnings: report.warnings,
        doubts: report.doubts,
        ..OpenedSource::new(Box::new(source))
    };
    match (bitmaps.starts, reason(bitmaps.starts)) {
        (Some(name), Some(why)) => Ok(opened.without_start(&path.display().to_string(), name, &why)),
        // The server exports the other bitmap. This one is recent and has few dirty bytes.
        (Some(name), None) => {
            Ok(OpenedSource { starts: starts.or_else(|| Some(unlisted_bitmap(name))), ..opened })
        }
        (None, _) => Ok(opened),
    }
}

/// A bitmap of which only the name is known.
fn unlisted_bitmap(name: &str) -> BitmapState {
    BitmapState { name: name.to_owned(), dirty_bytes: 0 }
}

/// Reads the exported bitmaps.
fn read_bitmaps(
    export: &NbdSource,
    bitmaps: BitmapNames<'_>,
) -> Result<(Option<ChangedExtents>, Option<BitmapState>), SourceError> {
    let map = |name: Option<&str>| {
        let there = name.filter(|name| export.has_bitmap(name));
        there.map(|name| export.changed(name)).transpose()
    };
    let changed = map(bitmaps.changed)?;
    let starts = if bitmaps.starts == bitmaps.changed { changed.clone() } else { map(bitmaps.starts)? };
    Ok((changed, starts.and_then(|map| map.bitmap)))
}

/// The specification as the address of an NBD export; `None` if it is a path.
fn address_of(spec: &OsStr) -> Option<&str> {
    spec.to_str().filter(|spec| copal_nbd::Uri::looks_like(spec))
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Raw or qcow2; never `Auto`.
fn choose_format(path: &Path, format: ImageFormat) -> Result<ImageFormat, SourceError> {
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
             --format raw if it is the raw disk of a guest (a guest can write such bytes)"
        }
        (ImageFormat::Qcow2, true, _) | (ImageFormat::Auto, true, true) => return Ok(ImageFormat::Qcow2),
        (ImageFormat::Auto, false, false) => return Ok(ImageFormat::Raw),
        (ImageFormat::Auto, true, false) => {
            "begins like a qcow2 image but is not named like one; say --format qcow2 if it is one, or \
             --format raw if it is the raw disk of a guest (a guest can write such bytes)"
        }
        _ => "is not a qcow2 image; say --format raw if it is a raw disk",
    };
    Err(SourceError::Unusable { reason: format!("{} {reason}", path.display()) })
}

/// The version in the header of a qcow image; `None` if the magic is missing.
fn qcow_version(path: &Path) -> Result<Option<u32>, SourceError> {
    let mut file = File::open(path).map_err(|error| failed("open", path, error))?;
    let mut head = [0; 8];
    match file.read_exact(&mut head) {
        Ok(()) if head[..4] == chain::MAGIC => {
            Ok(Some(u32::from_be_bytes([head[4], head[5], head[6], head[7]])))
        }
        Ok(()) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        // `FileSource` reports the directory.
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> SourceError {
    SourceError::Io { action, what: path.display().to_string(), error }
}

//! Completeness check of a qcow2 image and its backing files: every cluster that a table names must lie
//! within a file.
//!
//! QEMU reads zeros where a file ends before a cluster that a table names, so a truncated copy looks like a
//! disk with holes. A defect that makes every backup wrong is an error. A state that may be intended is a
//! doubt. Memory is one table of the image, at most 2 MiB. The tables of an image in use are read while they
//! grow, so each offset is compared with the current length of the file.
//!
//! Not here: reading the disk (`qcow2`), watching the files during the read (`chain`).

use super::{
    SourceError,
    image_header::{ImageHeader, read_up_to, u64_at},
    signature::{END_BYTES, FormatKind, recognise},
};
use crate::doubt::DoubtKind;
use rustix::fs::SeekFrom;
use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Longest chain that is checked, as in `chain`.
const MAX_FILES: usize = 500;
/// QEMU's limits on tables.
const MAX_L1_BYTES: u64 = 32 << 20;
const MAX_REFCOUNT_BYTES: u64 = 8 << 20;
/// Bytes of a table that are in memory at once.
const READ_BYTES: usize = 64 << 10;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const IS_COMPRESSED: u64 = 1 << 62;
const READS_AS_ZERO: u64 = 1;
const SECTOR: u64 = 512;

/// Findings about an image that can be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChainReport {
    /// A running VM writes the image, so it is marked as not closed.
    is_running: bool,
    pub(super) warnings: Vec<String>,
    pub(super) doubts: Vec<(DoubtKind, String)>,
}

/// Checks an image and all backing files that headers name.
/// # Errors
/// A file is truncated, marked as corrupt, its own backing file, of a format that cannot be checked here, or
/// unreadable.
pub(super) fn check_chain(image: &Path) -> Result<ChainReport, SourceError> {
    let mut report = ChainReport::default();
    let mut next = Some(image.to_owned());
    let mut seen = Vec::new();
    for _ in 0..MAX_FILES {
        let Some(path) = next.take() else { break };
        let file = OpenFile::open(&path)?;
        let identity = file.identity()?;
        if seen.contains(&identity) {
            return Err(file.broken("lies behind itself"));
        }
        seen.push(identity);
        let Some(header) = check_image(&path, &mut report)? else {
            break;
        };
        next = match check_backing(&path, &header, &mut report)? {
            BackingFile::Image(path) => Some(path),
            BackingFile::Other => None,
            BackingFile::Foreign(reason) => return Err(SourceError::Unusable { reason }),
        };
    }
    match next {
        None => Ok(report),
        Some(path) => Err(OpenFile::open(&path)?.broken(&format!("has {MAX_FILES} images before it"))),
    }
}

/// Kind of a backing file.
enum BackingFile {
    /// Another qcow2 image.
    Image(PathBuf),
    /// A raw disk, no backing file, or an address that is not a local file.
    Other,
    /// An image that only QEMU can decode, with the error sentence that names it.
    Foreign(String),
}

/// Checks format and length of the backing file, not its tables.
fn check_backing(
    path: &Path,
    header: &ImageHeader,
    report: &mut ChainReport,
) -> Result<BackingFile, SourceError> {
    let Some(backing) = header.backing.as_deref().and_then(|name| local_path(path, name)) else {
        return Ok(BackingFile::Other);
    };
    let file = OpenFile::open(&backing)?;
    let is_image = match header.backing_format.as_deref() {
        Some("qcow2") => true,
        Some("raw" | "file" | "host_device") => false,
        // Without a stated format QEMU probes the file.
        None => match file.recognised()? {
            Some(known) if known.kind == FormatKind::Image => {
                return Ok(file.unknown_format(path, known.name));
            }
            _ => file.begins_like_qcow2()?,
        },
        Some(other) => return Ok(file.unknown_format(path, &format!("an image of the format {other}"))),
    };
    let length = match is_image {
        true => file.header()?.map_or(0, |header| header.disk_bytes),
        false => file.length()?,
    };
    if length < header.disk_bytes {
        report.doubts.push((
            DoubtKind::Chain,
            format!(
                "{}, which lies behind {}, has a disk of {length} bytes where the image has one of {}: unless the image \
                 was enlarged, its end is missing, and reads as zeros",
                backing.display(),
                path.display(),
                header.disk_bytes
            ),
        ));
    }
    if is_image {
        return Ok(BackingFile::Image(backing));
    }
    if let Some(known) = file.recognised()?
        && known.kind != FormatKind::Other
    {
        report.doubts.push((
            DoubtKind::Chain,
            format!(
                "{}, which lies behind {}, looks like {}, and the image reads it as a raw disk",
                backing.display(),
                path.display(),
                known.name
            ),
        ));
    }
    Ok(BackingFile::Other)
}

/// Findings about an image of a running VM.
#[derive(Debug, Default)]
pub struct ImageReport {
    /// Printed, and stored with the summary.
    pub warnings: Vec<String>,
    /// Printed, and the snapshot is marked as doubtful.
    pub doubts: Vec<(DoubtKind, String)>,
}

/// Checks one image of a running VM, and the length of its backing file. A file that this process may not
/// read is skipped.
/// # Errors
/// The image is truncated, or marked as corrupt.
pub fn check_running_image(path: &Path) -> Result<ImageReport, SourceError> {
    let mut report = ChainReport { is_running: true, ..ChainReport::default() };
    let checked = check_image(path, &mut report).and_then(|header| match header {
        Some(header) => check_backing(path, &header, &mut report),
        None => Ok(BackingFile::Other),
    });
    match checked {
        // The caller finds the backing images by the drivers of QEMU's nodes.
        Ok(_) => {}
        Err(SourceError::Io { error, .. }) => {
            tracing::debug!(%error, path = %path.display(), "unreadable image not checked");
        }
        Err(error) => return Err(error),
    }
    Ok(ImageReport { warnings: report.warnings, doubts: report.doubts })
}

/// Checks one image; returns `None` if only QEMU knows its version.
pub(super) fn check_image(path: &Path, report: &mut ChainReport) -> Result<Option<ImageHeader>, SourceError> {
    let file = OpenFile::open(path)?;
    let Some(header) = file.header()? else {
        return Ok(None);
    };
    if header.is_corrupt() {
        return Err(file.broken("is marked as corrupt: QEMU has found contradictions in it"));
    }
    if header.is_dirty() && !report.is_running {
        report.warnings.push(format!(
            "{} was not closed by the program that wrote it last; run `qemu-img check`",
            path.display()
        ));
    }
    if header.snapshots > 0 {
        report.warnings.push(format!(
            "{} has {} internal snapshots: they are not backed up, only the present state of the disk is",
            path.display(),
            header.snapshots
        ));
    }
    if !header.is_known() {
        return Ok(None);
    }
    let data = match (&header.data_file, header.has_data_file()) {
        (Some(name), true) => match local_path(path, name) {
            Some(data) => Some(OpenFile::open(&data)?),
            None => return Ok(Some(header)),
        },
        (None, true) => return Err(file.broken("has its data in another file, and does not name it")),
        (_, false) => None,
    };
    ImageTables { file: &file, data: data.as_ref().unwrap_or(&file), header: &header }.check()?;
    Ok(Some(header))
}

/// The file that a header names, if it is a local one.
fn local_path(image: &Path, name: &str) -> Option<PathBuf> {
    let name = name.strip_prefix("file:").unwrap_or(name);
    // `nbd://...`, `json:{...}`: QEMU takes the part before the first colon as a protocol, unless a slash
    // precedes the colon.
    let is_address = name.find(':').is_some_and(|colon| !name[..colon].contains('/'));
    let directory = image.parent().unwrap_or(Path::new(""));
    (!is_address && !name.is_empty()).then(|| directory.join(name))
}

/// A file and its path for messages.
struct OpenFile {
    path: PathBuf,
    file: File,
}

impl OpenFile {
    fn open(path: &Path) -> Result<OpenFile, SourceError> {
        let file = File::open(path).map_err(|error| failed("open", path, error))?;
        let path = path.to_owned();
        Ok(OpenFile { path, file })
    }

    fn failed(&self, error: std::io::Error) -> SourceError {
        failed("read", &self.path, error)
    }

    /// Error: the image cannot give its disk.
    fn broken(&self, how: &str) -> SourceError {
        SourceError::Unusable {
            reason: format!(
                "{} {how}; check it with `qemu-img check`, copy it again from its origin, no snapshot was made",
                self.path.display()
            ),
        }
    }

    /// Backing file of `of` in a format that is not checked here; QEMU reads zeros where it is truncated.
    fn unknown_format(&self, of: &Path, what: &str) -> BackingFile {
        BackingFile::Foreign(format!(
            "{}, which lies behind {}, is {what}, and copal cannot check whether it is complete; convert it with `qemu-img convert -O qcow2` \
             and give the image the copy with `qemu-img rebase`",
            self.path.display(),
            of.display()
        ))
    }

    /// Device and inode number.
    fn identity(&self) -> Result<(u64, u64), SourceError> {
        let found = self.file.metadata().map_err(|error| self.failed(error))?;
        Ok((found.dev(), found.ino()))
    }

    fn length(&self) -> Result<u64, SourceError> {
        // The metadata of a block device reports size 0.
        rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(|error| self.failed(error.into()))
    }

    fn header(&self) -> Result<Option<ImageHeader>, SourceError> {
        let read = ImageHeader::read(&self.file).map_err(|error| self.failed(error))?;
        read.map_err(|how| self.broken(&how))
    }

    fn begins_like_qcow2(&self) -> Result<bool, SourceError> {
        let mut head = [0; 4];
        let length = read_up_to(&self.file, &mut head, 0).map_err(|error| self.failed(error))?;
        Ok(length == 4 && head == super::chain::MAGIC)
    }

    fn recognised(&self) -> Result<Option<super::signature::KnownFormat>, SourceError> {
        let (mut head, mut tail) = ([0; END_BYTES], [0; END_BYTES]);
        let tail_at = self.length()?.saturating_sub(END_BYTES as u64);
        let read = |buf: &mut [u8], at| read_up_to(&self.file, buf, at).map_err(|error| self.failed(error));
        let (head_bytes, tail_bytes) = (read(&mut head, 0)?, read(&mut tail, tail_at)?);
        Ok(recognise(&head[..head_bytes], &tail[..tail_bytes]))
    }

    /// Fails if the file ends before `end`.
    fn expect(&self, known: &mut u64, end: u64, what: &str) -> Result<(), SourceError> {
        if end <= *known {
            return Ok(());
        }
        *known = self.length()?;
        if end <= *known {
            return Ok(());
        }
        Err(self
            .broken(&format!("is truncated: {what} reaches to byte {end}, and the file ends at {}", *known)))
    }
}

/// The tables of one image, the image file, and the file that holds its clusters.
struct ImageTables<'a> {
    file: &'a OpenFile,
    data: &'a OpenFile,
    header: &'a ImageHeader,
}

impl ImageTables<'_> {
    fn check(&self) -> Result<(), SourceError> {
        let header = self.header;
        let mut file_bytes = self.file.length()?;
        let mut data_bytes = self.data.length()?;
        if header.is_data_file_raw() {
            self.data.expect(
                &mut data_bytes,
                header.disk_bytes,
                "the disk, which lies there byte for byte,",
            )?;
        }
        if header.snapshots > 0 {
            self.file.expect(&mut file_bytes, header.snapshots_at, "the list of its internal snapshots")?;
        }
        self.refcounts(&mut file_bytes)?;
        let l2_entries = header.cluster_bytes() / self.entry_bytes();
        let covered = header.cluster_bytes().saturating_mul(l2_entries);
        let needed = header.disk_bytes.div_ceil(covered);
        if needed > u64::from(header.l1_entries) {
            return Err(self.file.broken(&format!(
                "contradicts itself: its first table has {} entries, and the disk needs {needed}",
                header.l1_entries
            )));
        }
        if needed * 8 > MAX_L1_BYTES {
            return Err(self.file.broken("has a first table larger than QEMU allows"));
        }
        let l1_end = header.l1_at.saturating_add(needed * 8);
        self.file.expect(&mut file_bytes, l1_end, "its first table")?;
        let mut l2 = vec![0; header.cluster_bytes() as usize];
        self.each_entry(header.l1_at, needed, |index, entry| {
            let at = entry & OFFSET;
            if at == 0 {
                return Ok(());
            }
            let end = at.saturating_add(header.cluster_bytes());
            self.file.expect(&mut file_bytes, end, "a table of clusters")?;
            let length = read_up_to(&self.file.file, &mut l2, at).map_err(|error| self.file.failed(error))?;
            self.clusters(&l2[..length], index * covered, &mut data_bytes)
        })
    }

    fn entry_bytes(&self) -> u64 {
        if self.header.has_subclusters() { 16 } else { 8 }
    }

    fn refcounts(&self, file_bytes: &mut u64) -> Result<(), SourceError> {
        let header = self.header;
        let table_bytes = u64::from(header.refcount_clusters) << header.cluster_bits;
        if table_bytes > MAX_REFCOUNT_BYTES {
            return Err(self.file.broken("has a table of reference counts larger than QEMU allows"));
        }
        let end = header.refcounts_at.saturating_add(table_bytes);
        self.file.expect(file_bytes, end, "its table of reference counts")?;
        self.each_entry(header.refcounts_at, table_bytes / 8, |_, entry| match entry & !(SECTOR - 1) {
            0 => Ok(()),
            at => {
                let end = at.saturating_add(header.cluster_bytes());
                self.file.expect(file_bytes, end, "a block of reference counts")
            }
        })
    }

    /// Walks `count` entries of a table in the image file.
    fn each_entry(
        &self,
        at: u64,
        count: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let mut step = vec![0; READ_BYTES];
        let per_step = (READ_BYTES / 8) as u64;
        for first in (0..count).step_by(READ_BYTES / 8) {
            let entries = per_step.min(count - first) as usize;
            let bytes = &mut step[..entries * 8];
            let length = read_up_to(&self.file.file, bytes, at.saturating_add(first * 8));
            if length.map_err(|error| self.file.failed(error))? < bytes.len() {
                return Err(self.file.broken("ends within a table"));
            }
            for index in 0..entries {
                each(first + index as u64, u64_at(bytes, index * 8))?;
            }
        }
        Ok(())
    }

    /// Checks that all clusters of a table exist; `start` is the disk offset of its first entry.
    fn clusters(&self, table: &[u8], start: u64, data_bytes: &mut u64) -> Result<(), SourceError> {
        let header = self.header;
        let entry_bytes = self.entry_bytes() as usize;
        for (index, bytes) in table.chunks_exact(entry_bytes).enumerate() {
            let entry = u64_at(bytes, 0);
            let at_disk = start.saturating_add((index as u64) << header.cluster_bits);
            // Clusters past the end of the disk belong to internal snapshots.
            if entry == 0 || at_disk >= header.disk_bytes {
                continue;
            }
            let end = if entry & IS_COMPRESSED != 0 {
                self.compressed_end(entry)
            } else {
                let used = (header.disk_bytes - at_disk).min(header.cluster_bytes());
                let used = match header.has_subclusters() {
                    // One bit per allocated subcluster, in the lower half of the word.
                    true => {
                        let there = u64_at(bytes, 8) as u32;
                        let last = u64::from(32 - there.leading_zeros());
                        used.min(last * (header.cluster_bytes() / 32))
                    }
                    false if entry & READS_AS_ZERO != 0 => 0,
                    false => used,
                };
                match (entry & OFFSET, used) {
                    (_, 0) => continue,
                    // Offset 0 is the header in an image, but may be a cluster in a data file.
                    (0, _) if !header.has_data_file() || entry >> 63 == 0 => continue,
                    (at, used) => at + used,
                }
            };
            self.data.expect(data_bytes, end, "a cluster that its tables name")?;
        }
        Ok(())
    }

    /// A byte that must exist for a compressed cluster: one past the start of its last sector.
    fn compressed_end(&self, entry: u64) -> u64 {
        let shift = 62 - (self.header.cluster_bits - 8);
        let at = entry & ((1 << shift) - 1);
        let more_sectors = (entry & (IS_COMPRESSED - 1)) >> shift;
        (at - at % SECTOR + more_sectors * SECTOR).max(at) + 1
    }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> SourceError {
    SourceError::Io { action, what: path.display().to_string(), error }
}

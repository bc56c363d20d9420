//! Plausibility check of a source before the first read: is it the complete disk of the VM?
//!
//! Every source passes here: files, devices, pipes, exports, disks of running VMs, and sources of agents. An
//! empty source, one smaller than in its last snapshot, or one of another format makes no snapshot unless the
//! request allows it. The snapshot is then doubtful, and retention removes no good snapshot in its favour
//! (`retention`).
//!
//! Design: docs/design/backup.md#sources BAK-28
//!
//! Disks are compared with two snapshots: the newest one that has the disk, and the newest good one.
//! Not here: completeness of an image (`source::image_check`), changes during the backup (`Source::confirm`).

use super::base::BaseSnapshot;
use crate::request::error::{Error, Result};
use crate::request::words::clip;
use crate::request::{BackupRequest, DiskSource};
use crate::snapshot::manifest::MAX_WORD_BYTES;
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::{ContentEvidence, END_BYTES, KnownFormat, SourceError, recognise};

/// Checks a disk before it is read.
/// # Errors
/// `Source`: it is empty, too small or of another format, or cannot be read.
pub(super) fn before(
    request: &BackupRequest,
    disk: &DiskSource,
    base: Option<&BaseSnapshot>,
) -> Result<Vec<DiskDoubt>> {
    let found = DiskGate { request, disk, base };
    let from_source = disk.doubts.iter().map(|(kind, text)| found.doubt(*kind, text.clone()));
    if request.copied.is_some() {
        // The backup that made the snapshot has examined its disks.
        return Ok(from_source.collect());
    }
    let mut doubts = Vec::new();
    if let Some(size) = disk.source.size_bytes() {
        doubts.extend(found.measure(size)?);
    }
    if disk.content != ContentEvidence::Decoded {
        let (mut head, mut tail) = ([0; END_BYTES], [0; END_BYTES]);
        let head_bytes = found.read(disk.source.head(&mut head))?;
        // The end of a stream is not known yet.
        let tail_bytes = match disk.source.size_bytes() {
            Some(_) => found.read(disk.source.tail(&mut tail))?,
            None => 0,
        };
        doubts.extend(found.format(recognise(&head[..head_bytes], &tail[..tail_bytes]))?);
    }
    doubts.extend(from_source);
    doubts.retain(|doubt| !found.is_accepted(doubt));
    Ok(doubts)
}

/// Checks a disk after it was read completely; `data_bytes` of it are not holes.
/// # Errors
/// As [`before`], for a stream.
pub(super) fn after(
    request: &BackupRequest,
    disk: &DiskSource,
    base: Option<&BaseSnapshot>,
    (size_bytes, data_bytes): (u64, u64),
) -> Result<Vec<DiskDoubt>> {
    if request.copied.is_some() {
        return Ok(Vec::new());
    }
    let found = DiskGate { request, disk, base };
    let mut doubts = Vec::new();
    if disk.source.size_bytes().is_none() {
        doubts.extend(found.measure(size_bytes)?);
        if disk.content != ContentEvidence::Decoded {
            let mut tail = [0; END_BYTES];
            let tail_bytes = found.read(disk.source.tail(&mut tail))?;
            doubts.extend(found.format(recognise(&[], &tail[..tail_bytes]))?);
        }
    }
    let had = base.and_then(|base| base.last_good(&disk.name));
    if let Some(had) = had.filter(|had| had.data_bytes > 0 && data_bytes == 0) {
        doubts.push(found.doubt(
            DoubtKind::Blank,
            format!(
                "holds nothing but zeros, and held {} bytes of data in an earlier snapshot: check that it is the right disk",
                had.data_bytes
            ),
        ));
    }
    doubts.retain(|doubt| !found.is_accepted(doubt));
    Ok(doubts)
}

/// One disk, and the snapshots to which it is compared.
struct DiskGate<'a> {
    request: &'a BackupRequest,
    disk: &'a DiskSource,
    base: Option<&'a BaseSnapshot>,
}

impl DiskGate<'_> {
    fn refused(&self, reason: String) -> Error {
        Error::Source { disk: self.disk.name.clone(), error: SourceError::Unusable { reason } }
    }

    fn read(&self, read: std::result::Result<usize, SourceError>) -> Result<usize> {
        read.map_err(|error| Error::Source { disk: self.disk.name.clone(), error })
    }

    fn doubt(&self, kind: DoubtKind, text: String) -> DiskDoubt {
        DiskDoubt { disk: self.disk.name.clone(), kind, text: clip(&text, MAX_WORD_BYTES) }
    }

    /// Compares the size with that in earlier snapshots.
    fn measure(&self, size_bytes: u64) -> Result<Option<DiskDoubt>> {
        if size_bytes == 0 {
            return Err(self.refused(
                "it has 0 bytes, so there is nothing to back up: the device is not attached, or the file is empty; no snapshot \
                 was made"
                    .into(),
            ));
        }
        let Some(base) = self.base else {
            return Ok(None);
        };
        let last = base.last(&self.disk.name);
        let newest = last.map_or(0, |(_, old)| old.size_bytes);
        if let Some((snapshot, _)) = last.filter(|_| size_bytes < newest && !self.request.allow_smaller) {
            return Err(self.refused(format!(
                "it has {size_bytes} bytes, and had {newest} in the newest snapshot with it, {}: it lost its end, or another \
                 disk took its place; look at it, and say --allow-smaller (\"allow_smaller\":true in a plan) if it was made \
                 smaller, no snapshot was made",
                snapshot.short()
            )));
        }
        let good = base.last_good(&self.disk.name).map_or(0, |old| old.size_bytes);
        let largest = newest.max(good);
        if size_bytes < largest {
            return Ok(Some(self.doubt(
                DoubtKind::Smaller,
                format!("has {size_bytes} bytes, and had {largest} in an earlier snapshot"),
            )));
        }
        // No good snapshot is known: the doubt about the newest one still holds.
        let mut known = base
            .manifest
            .doubts
            .iter()
            .filter(|_| !base.is_good())
            .filter(|doubt| doubt.kind == DoubtKind::Smaller && doubt.disk == self.disk.name);
        Ok(known.next().filter(|_| size_bytes == newest).cloned())
    }

    /// Refuses or doubts a disk that looks like another format.
    fn format(&self, known: Option<KnownFormat>) -> Result<Option<DiskDoubt>> {
        let Some(known) = known else {
            return Ok(None);
        };
        if self.disk.content == ContentEvidence::Stated {
            let text = format!("looks like {}, and was taken as a raw disk", known.name);
            return Ok(Some(self.doubt(DoubtKind::Format, text)));
        }
        Err(self.refused(format!(
            "it looks like {}, not like a disk: {}; say --format raw (\"format\":\"raw\" in a plan) if these bytes are the disk of a \
             guest, no snapshot was made",
            known.name,
            known.advice()
        )))
    }

    /// Whether a person has accepted a snapshot with the same doubt.
    fn is_accepted(&self, doubt: &DiskDoubt) -> bool {
        let good = self.base.filter(|base| base.has_good()).map(BaseSnapshot::good);
        doubt.kind.is_lasting() && good.is_some_and(|good| good.doubts.contains(doubt))
    }
}

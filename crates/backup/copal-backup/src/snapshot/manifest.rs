//! Manifests: the description of one snapshot.
//!
//! Format: docs/formats/backup-manifest.md v5
//! Invariants
//! - The Publish record names the hash of the whole file; the file carries a MAC.
//! - Numbers that are added up later, or incremented, are bounded far below the end of their type.

use crate::catalog::fields::{MAX_SEQUENCE, SessionId, option, put_option};
use crate::keys::{DomainKeys, MAC_BYTES};
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::{BackupCounts, CopyOrigin, DiskMode, SnapshotId};
use crate::snapshot::recipe::{FrameRef, format::MAX_DISK_BYTES};
use copal_chunk::ChunkId;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::BitmapState;
use uuid::Uuid;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALMAN", name: "manifest", oldest: 2, version: 5, known_flags: 0 };

/// A snapshot that is no copy keeps the older version, so its bytes do not change.
const NO_COPY: Format = Format { version: 4, ..FORMAT };

/// Version 2 has these counts in this order, without their names.
const COUNTS_OF_2: usize = 13;
/// Most counts of a manifest, including those of later programs.
const MAX_COUNTS: usize = 64;
/// Longest name of a count, in bytes.
const MAX_COUNT_NAME_BYTES: usize = 64;

/// Most disks of a VM.
pub(crate) const MAX_DISKS: usize = 256;
/// Larger than any manifest within the other limits.
pub(crate) const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most tags of a snapshot.
pub(crate) const MAX_TAGS: usize = 64;
/// Most doubts of a snapshot.
const MAX_DOUBTS: usize = 2 * MAX_DISKS;
/// Longest tag, disk name, reason, identity of a disk or doubt, in bytes.
pub(crate) const MAX_WORD_BYTES: usize = 1024;
/// Longest description, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 16 << 10;

/// Above any count of a snapshot: the largest number of the largest disks, read twice.
const MAX_COUNT: u64 = 2 * MAX_DISKS as u64 * MAX_DISK_BYTES;

/// One disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestDisk {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Bytes that are not holes.
    pub(crate) data_bytes: u64,
    pub(crate) root: FrameRef,
    pub(crate) mode: DiskMode,
    pub(crate) reason: String,
    /// Serial that distinguishes it from another disk of its name; empty if unknown.
    pub(crate) serial: String,
    /// The dirty bitmap that recorded all writes after this snapshot.
    pub(crate) bitmap: Option<BitmapState>,
    /// The sentinel: the bitmap beside it that records nothing.
    pub(crate) sentinel: Option<BitmapState>,
    /// Location that distinguishes it from another disk; empty if there is none. `None`: the program that
    /// made the snapshot did not record it.
    pub(crate) identity: Option<String>,
    /// When the whole disk was last read, in ms since 1970 by the store's clock; 0: not recorded.
    pub(crate) whole_ms: u64,
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) vm: Uuid,
    pub(crate) snapshot: SnapshotId,
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
    pub(crate) base: Option<SnapshotId>,
    pub(crate) disks: Vec<ManifestDisk>,
    pub(crate) counts: BackupCounts,
    pub(crate) tags: Vec<String>,
    pub(crate) description: String,
    pub(crate) tool: String,
    /// Digest of its summary vector, in a fleet.
    pub(crate) vector: Option<[u8; 32]>,
    /// Reasons to doubt that it holds the complete disks.
    pub(crate) doubts: Vec<DiskDoubt>,
    /// The snapshot of another repository that it is a copy of.
    pub(crate) origin: Option<CopyOrigin>,
}

/// Name of the manifest's file in the VM's volume of manifests.
pub(crate) fn file_name(snapshot: SnapshotId) -> String {
    format!("m.{snapshot}")
}

/// The hash in the Publish record.
pub(crate) fn hash(file: &[u8]) -> [u8; 32] {
    *blake3::hash(file).as_bytes()
}

impl Manifest {
    /// Encodes the whole file.
    pub(crate) fn encode(&self, keys: &DomainKeys) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_bytes(self.vm.as_bytes());
        bytes.put_bytes(&self.snapshot.0);
        bytes.put_bytes(&self.session);
        bytes.put_u64(self.sequence);
        put_option(&mut bytes, self.base);
        bytes.put_varint(self.disks.len() as u64);
        for disk in &self.disks {
            bytes.put_prefixed(disk.name.as_bytes());
            bytes.put_u64(disk.size_bytes);
            bytes.put_u64(disk.data_bytes);
            bytes.put_bytes(&disk.root.id.0);
            bytes.put_u32(disk.root.location.volume);
            bytes.put_u64(disk.root.location.pack.0);
            bytes.put_u32(disk.root.location.slot);
            bytes.put_u8(mode_code(disk.mode));
            bytes.put_prefixed(disk.reason.as_bytes());
            bytes.put_prefixed(disk.serial.as_bytes());
            put_bitmap(&mut bytes, disk.bitmap.as_ref());
            put_bitmap(&mut bytes, disk.sentinel.as_ref());
            bytes.put_varint(u64::from(disk.identity.is_some()));
            if let Some(identity) = &disk.identity {
                bytes.put_prefixed(identity.as_bytes());
            }
            bytes.put_u64(disk.whole_ms);
        }
        let mut counts = self.counts;
        let counts = named(&mut counts);
        bytes.put_varint(counts.len() as u64);
        for (name, count) in counts {
            bytes.put_prefixed(name.as_bytes());
            bytes.put_u64(*count);
        }
        bytes.put_varint(self.tags.len() as u64);
        self.tags.iter().for_each(|tag| bytes.put_prefixed(tag.as_bytes()));
        bytes.put_prefixed(self.description.as_bytes());
        bytes.put_prefixed(self.tool.as_bytes());
        bytes.put_u8(u8::from(self.vector.is_some()));
        if let Some(vector) = &self.vector {
            bytes.put_bytes(vector);
        }
        bytes.put_varint(self.doubts.len() as u64);
        for doubt in &self.doubts {
            bytes.put_u8(doubt_code(doubt.kind));
            bytes.put_prefixed(doubt.disk.as_bytes());
            bytes.put_prefixed(doubt.text.as_bytes());
        }
        if let Some(origin) = &self.origin {
            bytes.put_bytes(origin.repository.as_bytes());
            bytes.put_bytes(&origin.snapshot.0);
            bytes.put_u64(origin.created_ms);
        }
        let mac = keys.mac(&file_name(self.snapshot), &bytes[ENVELOPE_LEN..]);
        bytes.put_bytes(&mac);
        let format = if self.origin.is_some() { &FORMAT } else { &NO_COPY };
        Envelope::seal(format, 0, 0, &mut bytes);
        bytes
    }

    /// Decodes the file of `snapshot`.
    pub(crate) fn decode(bytes: &[u8], snapshot: SnapshotId, keys: &DomainKeys) -> Result<Manifest, String> {
        let (envelope, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let at = body.len().checked_sub(MAC_BYTES).ok_or("it is too short for a manifest")?;
        let (content, mac) = body.split_at(at);
        if !keys.mac_fits(&file_name(snapshot), content, mac) {
            return Err("its MAC does not match: it was changed, or moved from another place".into());
        }
        let mut input = Reader::new(content);
        let manifest = parse(&mut input, envelope.version)?;
        input.finish().map_err(|error| error.to_string())?;
        if manifest.snapshot != snapshot {
            return Err("it belongs to another snapshot".into());
        }
        Ok(manifest)
    }
}

/// Parses the fields of a manifest of this version.
pub(crate) fn parse(input: &mut Reader<'_>, version: u16) -> Result<Manifest, String> {
    let text = |error: DecodeError| error.to_string();
    let vm = Uuid::from_bytes(input.array().map_err(text)?);
    let snapshot = SnapshotId(input.array().map_err(text)?);
    let session = input.array().map_err(text)?;
    let sequence = at_most(MAX_SEQUENCE, "sequence", input.u64().map_err(text)?)?;
    let base = option(input).map_err(text)?;
    let mut disks = Vec::new();
    for _ in 0..input.bounded(MAX_DISKS).map_err(text)? {
        let name = word(input, MAX_WORD_BYTES)?;
        let size_bytes = at_most(MAX_DISK_BYTES, "size of a disk", input.u64().map_err(text)?)?;
        disks.push(ManifestDisk {
            name,
            size_bytes,
            data_bytes: at_most(MAX_COUNT, "data of a disk", input.u64().map_err(text)?)?,
            root: reference(input, vm).map_err(text)?,
            mode: mode(input.u8().map_err(text)?)?,
            reason: word(input, MAX_WORD_BYTES)?,
            serial: word(input, MAX_WORD_BYTES)?,
            bitmap: bitmap(input)?,
            sentinel: match version {
                0..4 => None,
                _ => bitmap(input)?,
            },
            identity: match version {
                0..4 => None,
                _ => match input.bounded(1).map_err(text)? {
                    0 => None,
                    _ => Some(word(input, MAX_WORD_BYTES)?),
                },
            },
            whole_ms: match version {
                0..4 => 0,
                _ => input.u64().map_err(text)?,
            },
        });
    }
    let counts = read_counts(input, version)?;
    let mut tags = Vec::new();
    for _ in 0..input.bounded(MAX_TAGS).map_err(text)? {
        tags.push(word(input, MAX_WORD_BYTES)?);
    }
    let description = word(input, MAX_TEXT_BYTES)?;
    let tool = word(input, MAX_WORD_BYTES)?;
    let vector = match version {
        0..3 => None,
        _ => match input.bounded(1).map_err(text)? {
            0 => None,
            _ => Some(input.array().map_err(text)?),
        },
    };
    let mut doubts = Vec::new();
    if version >= 4 {
        for _ in 0..input.bounded(MAX_DOUBTS).map_err(text)? {
            doubts.push(DiskDoubt {
                kind: doubt_kind(input.u8().map_err(text)?)?,
                disk: word(input, MAX_WORD_BYTES)?,
                text: word(input, MAX_WORD_BYTES)?,
            });
        }
    }
    let origin = match version {
        0..5 => None,
        _ => Some(CopyOrigin {
            repository: Uuid::from_bytes(input.array().map_err(text)?),
            snapshot: SnapshotId(input.array().map_err(text)?),
            created_ms: input.u64().map_err(text)?,
        }),
    };
    Ok(Manifest {
        vm,
        snapshot,
        session,
        sequence,
        base,
        disks,
        counts,
        tags,
        description,
        tool,
        vector,
        doubts,
        origin,
    })
}

fn word(input: &mut Reader<'_>, max: usize) -> Result<String, String> {
    let bytes = input.prefixed(max).map_err(|error| error.to_string())?;
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

fn at_most(bound: u64, what: &str, number: u64) -> Result<u64, String> {
    if number > bound {
        return Err(format!("its {what} is {number}, above {bound}"));
    }
    Ok(number)
}

fn put_bitmap(bytes: &mut Vec<u8>, bitmap: Option<&BitmapState>) {
    bytes.put_varint(u64::from(bitmap.is_some()));
    if let Some(bitmap) = bitmap {
        bytes.put_prefixed(bitmap.name.as_bytes());
        bytes.put_u64(bitmap.dirty_bytes);
    }
}

fn bitmap(input: &mut Reader<'_>) -> Result<Option<BitmapState>, String> {
    let text = |error: DecodeError| error.to_string();
    if input.bounded(1).map_err(text)? == 0 {
        return Ok(None);
    }
    Ok(Some(BitmapState {
        name: word(input, MAX_WORD_BYTES)?,
        dirty_bytes: at_most(MAX_COUNT, "dirty bitmap", input.u64().map_err(text)?)?,
    }))
}

fn reference(input: &mut Reader<'_>, vm: Uuid) -> Result<FrameRef, DecodeError> {
    Ok(FrameRef {
        id: ChunkId(input.array()?),
        location: FrameLocation {
            home: PackHome::Recipes(vm),
            volume: input.u32()?,
            pack: PackNumber(input.u64()?),
            slot: input.u32()?,
        },
    })
}

fn mode_code(mode: DiskMode) -> u8 {
    match mode {
        DiskMode::Incremental => 1,
        DiskMode::Rescan => 2,
        DiskMode::Full => 3,
    }
}

fn mode(code: u8) -> Result<DiskMode, String> {
    match code {
        1 => Ok(DiskMode::Incremental),
        2 => Ok(DiskMode::Rescan),
        3 => Ok(DiskMode::Full),
        other => Err(format!("backup mode {other} is not known")),
    }
}

fn doubt_code(kind: DoubtKind) -> u8 {
    match kind {
        DoubtKind::Smaller => 1,
        DoubtKind::Format => 2,
        DoubtKind::Chain => 3,
        DoubtKind::Changed => 4,
        DoubtKind::Blank => 5,
    }
}

fn doubt_kind(code: u8) -> Result<DoubtKind, String> {
    match code {
        1 => Ok(DoubtKind::Smaller),
        2 => Ok(DoubtKind::Format),
        3 => Ok(DoubtKind::Chain),
        4 => Ok(DoubtKind::Changed),
        5 => Ok(DoubtKind::Blank),
        other => Err(format!("a doubt of kind {other} is not known; use a newer copal")),
    }
}

/// The counts by name; the first ones in the order of version 2.
fn named(counts: &mut BackupCounts) -> [(&'static str, &mut u64); 18] {
    [
        ("logical", &mut counts.logical_bytes),
        ("dirty", &mut counts.dirty_bytes),
        ("read", &mut counts.read_bytes),
        ("data", &mut counts.data_bytes),
        ("inner-dup", &mut counts.inner_dup_bytes),
        ("cross-dup", &mut counts.cross_dup_bytes),
        ("new", &mut counts.new_bytes),
        ("stored", &mut counts.stored_bytes),
        ("chunks", &mut counts.chunks),
        ("new-chunks", &mut counts.new_chunks),
        ("segments", &mut counts.segments),
        ("clean-segments", &mut counts.clean_segments),
        ("spot-check", &mut counts.spot_check_bytes),
        ("read-again", &mut counts.read_again_bytes),
        ("asked-chunks", &mut counts.asked_chunks),
        ("popular-dup", &mut counts.popular_dup_bytes),
        ("popular", &mut counts.popular_bytes),
        ("unresolved-chunks", &mut counts.unresolved_chunks),
    ]
}

fn read_counts(input: &mut Reader<'_>, version: u16) -> Result<BackupCounts, String> {
    let text = |error: DecodeError| error.to_string();
    let mut counts = BackupCounts::default();
    let mut known = named(&mut counts);
    if version < 3 {
        for (_, count) in &mut known[..COUNTS_OF_2] {
            **count = at_most(MAX_COUNT, "count", input.u64().map_err(text)?)?;
        }
        return Ok(counts);
    }
    for _ in 0..input.bounded(MAX_COUNTS).map_err(text)? {
        let name = input.prefixed(MAX_COUNT_NAME_BYTES).map_err(text)?;
        let value = at_most(MAX_COUNT, "count", input.u64().map_err(text)?)?;
        // Counts of later programs are ignored.
        if let Some((_, count)) = known.iter_mut().find(|(known, _)| known.as_bytes() == name) {
            **count = value;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(sequence: u64, size_bytes: u64, count: u64) -> Manifest {
        let root = FrameRef {
            id: ChunkId([1; 32]),
            location: FrameLocation {
                home: PackHome::Recipes(Uuid::from_bytes([7; 16])),
                volume: 0,
                pack: PackNumber(1),
                slot: 0,
            },
        };
        Manifest {
            vm: Uuid::from_bytes([7; 16]),
            snapshot: SnapshotId([2; 16]),
            session: [3; 16],
            sequence,
            base: None,
            disks: vec![ManifestDisk {
                name: "sda".into(),
                size_bytes,
                data_bytes: 0,
                root,
                mode: DiskMode::Full,
                reason: String::new(),
                serial: String::new(),
                bitmap: None,
                sentinel: None,
                identity: None,
                whole_ms: 0,
            }],
            counts: BackupCounts { spot_check_bytes: count, ..BackupCounts::default() },
            tags: Vec::new(),
            description: String::new(),
            tool: String::new(),
            vector: None,
            doubts: Vec::new(),
            origin: None,
        }
    }

    /// Symptom: a sequence of 2^64 - 1 in a manifest with a valid MAC panicked in the code that incremented
    /// it. Cause: the number was not checked. Fix: numbers that no snapshot can have are damage.
    #[test]
    fn impossible_numbers_are_refused() {
        let keys = DomainKeys::derive(&[1; 32]);
        let read = |manifest: Manifest| Manifest::decode(&manifest.encode(&keys), manifest.snapshot, &keys);
        let largest = manifest(MAX_SEQUENCE, MAX_DISK_BYTES, MAX_COUNT);
        assert_eq!(read(largest.clone()), Ok(largest));
        for (bad, words) in [
            (manifest(MAX_SEQUENCE + 1, 0, 0), "sequence"),
            (manifest(u64::MAX, 0, 0), "sequence"),
            (manifest(0, MAX_DISK_BYTES + 1, 0), "size of a disk"),
            (manifest(0, 0, MAX_COUNT + 1), "count"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}

//! Body of a checkpoint: encoding of all tables as one byte string, in parts from its end on.
//!
//! Format: docs/formats/object-checkpoint.md v4
//! Not here: splitting the string into chain pages (`checkpoint`).

use crate::{
    format::{
        frame,
        ops::{DurableFrames, ObjectTraits, TRAITS_LEN, take_list},
        record::COUNTER_MAX,
        run::{PageRun, RUN_LEN, RUN_PAGES_MAX, put_run, take_run},
        segment::ChainSegment,
    },
    space::allocator::ZONE_PAGES,
    tables::{
        ObjectEntry, ObjectTables, StreamEntry, StreamPiece, TableEntry,
        chunks::EntryChunks,
        map::{ExtentMap, OBJECT_PAGES_MAX},
        store_pages_max, unit_pages,
    },
};
use copal_codec::{DecodeError, Put, Reader};
use std::{ops::Range, sync::Arc};

/// Position of a checkpoint in the order of commits and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointPosition {
    pub(crate) uuid: u128,
    /// Last commit in it.
    pub(crate) lsn: u64,
    /// Number and position of the first record after it.
    pub(crate) next_seq: u64,
    pub(crate) journal_head: u64,
    /// All epochs up to this one are durable once a superblock names the checkpoint.
    pub(crate) epoch: u64,
    /// Most pages of the first record after it, which is that of a mount: nothing was written behind this
    /// checkpoint before the next opening. 0: any record follows.
    pub(crate) mount_pages: u32,
    /// The header of the segment with this position: the chain goes on if that header is damaged.
    pub(crate) segment: ChainSegment,
}

const OBJECT: u8 = 0;
const STREAM: u8 = 1;
const SEALED: u8 = 1;
const SHARES: u8 = 2;
const PUBLISHED: u8 = 4;

/// Bytes besides the entries, written zones and hollow runs.
const FIXED_BYTES: u64 = 16 + 4 * 8 + 4 + 16 + 8 + 4 + 8 + 4;
const ZONE_RUN_BYTES: u64 = 16;
const HOLLOW_RUN_BYTES: u64 = 16;
/// Most bytes of an object's or stream's entry without its extents, sums and pieces.
pub(crate) const ENTRY_BYTES_MAX: u64 = 8 + 1 + TRAITS_LEN + 1 + 8 + 16 + 4;
const EXTENT_BYTES: u64 = 4 + RUN_LEN;
const PIECE_BYTES: u64 = RUN_LEN + 8 + 8;

/// Length of a checkpoint's body; the space of a checkpoint is computed from this alone.
pub(crate) fn encoded_len(tables: &ObjectTables, zone_runs: u64, hollow_runs: u64) -> u64 {
    FIXED_BYTES + ZONE_RUN_BYTES * zone_runs + HOLLOW_RUN_BYTES * hollow_runs + tables.entry_bytes
}

/// Bytes of one entry.
pub(crate) fn entry_bytes(entry: &TableEntry, page_bytes: usize) -> u64 {
    match entry {
        TableEntry::Object(object) => {
            let (sums, trailer) = match object.trailer {
                Some(_) => (0, 16),
                None => (object.map.units(object.unit(page_bytes)), 0),
            };
            ENTRY_BYTES_MAX - 16 + trailer + EXTENT_BYTES * object.map.extents() as u64 + 4 * sums
        }
        TableEntry::Stream(stream) => {
            8 + 1 + TRAITS_LEN + 8 + DurableFrames::LEN + 4 + 4 + PIECE_BYTES * stream.pieces.len() as u64
        }
    }
}

/// Most bytes of the entry of an object that is published in `runs`.
pub(crate) fn published_bytes_max(runs: &[PageRun]) -> u64 {
    let extents = runs.iter().map(|run| u64::from(run.pages / RUN_PAGES_MAX) + 2);
    ENTRY_BYTES_MAX + EXTENT_BYTES * extents.sum::<u64>()
}

/// The body of a checkpoint, to be encoded in parts from its end on. It holds the tables as they are when it is
/// made.
#[derive(Debug)]
pub(crate) struct CheckpointParts {
    page_bytes: usize,
    len: usize,
    /// All before the entries.
    head: Option<Vec<u8>>,
    entries: EntryChunks,
    /// All behind the entries.
    end: Option<Vec<u8>>,
}

impl CheckpointParts {
    /// `zones`: written zones. `hollow`: hollow pages.
    pub(crate) fn of(
        tables: &ObjectTables,
        position: &CheckpointPosition,
        zones: &[(u64, u64)],
        hollow: &[Range<u64>],
    ) -> CheckpointParts {
        let mut head = Vec::new();
        head.put_u128(position.uuid);
        for word in [position.lsn, position.next_seq, position.journal_head, position.epoch] {
            head.put_u64(word);
        }
        head.put_u32(position.mount_pages);
        head.put_u64(position.segment.number);
        head.put_u64(position.segment.next);
        head.put_u64(tables.pages);
        head.put_u32(zones.len() as u32);
        for &(first, count) in zones {
            head.put_u64(first);
            head.put_u64(count);
        }
        head.put_u64(tables.entries.len());
        let mut end = Vec::new();
        end.put_u32(hollow.len() as u32);
        for range in hollow {
            end.put_u64(range.start);
            end.put_u64(range.end - range.start);
        }
        CheckpointParts {
            page_bytes: tables.page_bytes,
            len: encoded_len(tables, zones.len() as u64, hollow.len() as u64) as usize,
            head: Some(head),
            entries: tables.entries.clone(),
            end: Some(end),
        }
    }

    /// Bytes of all parts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Encodes and takes the last part.
    pub(crate) fn take_last(&mut self) -> Option<Vec<u8>> {
        if let Some(end) = self.end.take() {
            return Some(end);
        }
        let Some(chunk) = self.entries.pop_chunk() else {
            return self.head.take();
        };
        let mut out = Vec::new();
        for (id, entry) in chunk.iter() {
            out.put_u64(id);
            match entry {
                TableEntry::Object(object) => put_object(&mut out, object, self.page_bytes),
                TableEntry::Stream(stream) => put_stream(&mut out, stream),
            }
        }
        Some(out)
    }

    /// Replaces the entries that are not encoded yet by those of `live`, if they take as many bytes.
    pub(crate) fn follow(&mut self, live: &ObjectTables) {
        let mut entries = live.entries.clone();
        while entries.chunks() > self.entries.chunks() {
            entries.pop_chunk();
        }
        let bytes = |entries: &EntryChunks| -> u64 {
            entries.iter().map(|(_, entry)| entry_bytes(entry, self.page_bytes)).sum()
        };
        if bytes(&entries) == bytes(&self.entries) {
            self.entries = entries;
        }
    }
}

/// Encodes the whole body.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn encode(
    tables: &ObjectTables,
    position: &CheckpointPosition,
    zones: &[(u64, u64)],
    hollow: &[Range<u64>],
) -> Vec<u8> {
    let mut parts = CheckpointParts::of(tables, position, zones, hollow);
    let mut encoded: Vec<Vec<u8>> = std::iter::from_fn(|| parts.take_last()).collect();
    encoded.reverse();
    let body = encoded.concat();
    assert_eq!(body.len(), parts.len(), "the computed length of a checkpoint is exact");
    body
}

fn put_object(out: &mut Vec<u8>, object: &ObjectEntry, page_bytes: usize) {
    out.put_u8(OBJECT);
    object.what.put(out);
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    out.put_u8(
        flag(object.sealed, SEALED) | flag(object.shares, SHARES) | flag(object.trailer.is_some(), PUBLISHED),
    );
    out.put_u64(object.len);
    if let Some(trailer) = &object.trailer {
        out.put_u128(**trailer);
    }
    let unit = object.unit(page_bytes);
    out.put_u32(object.map.extents() as u32);
    for extent in object.map.iter() {
        out.put_u32(extent.at as u32);
        put_run(out, extent.run);
        object.map.sums_of(extent.at, unit).iter().for_each(|&sum| out.put_u32(sum));
    }
}

fn put_stream(out: &mut Vec<u8>, stream: &StreamEntry) {
    out.put_u8(STREAM);
    stream.what.put(out);
    out.put_u64(stream.trimmed);
    stream.durable.put(out);
    out.put_u32(stream.frame_pages_max);
    out.put_u32(stream.pieces.len() as u32);
    for piece in &stream.pieces {
        put_run(out, piece.run);
        out.put_u64(piece.first);
        out.put_u64(piece.incarnation);
    }
}

/// Decoded content of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointBody {
    pub(crate) tables: ObjectTables,
    pub(crate) position: CheckpointPosition,
    /// Runs of written zones.
    pub(crate) zones: Vec<PageRun>,
    /// Hollow pages, except those that have an owner.
    pub(crate) hollow: Vec<Range<u64>>,
}

/// Decodes a body of the given version.
pub(crate) fn decode(body: &[u8], page_bytes: usize, version: u16) -> Result<CheckpointBody, DecodeError> {
    let mut input = Reader::new(body);
    let position = take_position(&mut input, version)?;
    let at = input.position();
    let pages = input.u64()?;
    bound(at, pages, store_pages_max(page_bytes))?;
    let zones = take_list(&mut input, 16, |input| {
        let at = input.position();
        let (first, count) = (input.u64()?, input.u64()?);
        bound(at, first.saturating_add(count), pages / ZONE_PAGES + 1)?;
        bound(at, count, u64::from(u32::MAX) / ZONE_PAGES)?;
        Ok(PageRun::new(first * ZONE_PAGES, (count * ZONE_PAGES) as u32))
    })?;
    let tables = take_tables(&mut input, page_bytes, pages, version)?;
    // Versions before the third end here.
    let hollow = if input.remaining() == 0 {
        Vec::new()
    } else {
        take_list(&mut input, 16, |input| {
            let at = input.position();
            let (first, count) = (input.u64()?, input.u64()?);
            bound(at, first.saturating_add(count), pages)?;
            Ok(first..first + count)
        })?
    };
    input.finish()?;
    Ok(CheckpointBody { tables, position, zones, hollow })
}

fn take_position(input: &mut Reader<'_>, version: u16) -> Result<CheckpointPosition, DecodeError> {
    let position = CheckpointPosition {
        uuid: input.u128()?,
        lsn: input.u64()?,
        next_seq: input.u64()?,
        journal_head: input.u64()?,
        epoch: input.u64()?,
        mount_pages: if version < 5 { 0 } else { input.u32()? },
        segment: match version {
            ..5 => ChainSegment::default(),
            _ => ChainSegment { number: input.u64()?, next: input.u64()? },
        },
    };
    let ChainSegment { number, next } = position.segment;
    for counter in [position.lsn, position.next_seq, position.journal_head, position.epoch, number, next] {
        bound(input.position(), counter, COUNTER_MAX)?;
    }
    Ok(position)
}

/// Objects and streams, in the order of their ids.
fn take_tables(
    input: &mut Reader<'_>,
    page_bytes: usize,
    pages: u64,
    version: u16,
) -> Result<ObjectTables, DecodeError> {
    let mut tables = ObjectTables::new(page_bytes, pages);
    tables.checkpoint_version = version;
    let count = input.u64()?;
    let mut before = None;
    for _ in 0..count {
        let at = input.position();
        let id = input.u64()?;
        if before.is_some_and(|before| before >= id) {
            let what = "id, above the one before it,";
            return Err(DecodeError::Invalid { at, what });
        }
        before = Some(id);
        let at = input.position();
        let entry = match input.u8()? {
            OBJECT => TableEntry::Object(take_object(input, page_bytes, pages)?),
            STREAM => TableEntry::Stream(Arc::new(take_stream(input, &tables)?)),
            unknown => {
                return Err(DecodeError::UnknownKind { at, kind: unknown.into(), newest: STREAM.into() });
            }
        };
        tables.entry_bytes += entry_bytes(&entry, page_bytes);
        tables.entries.insert(id, entry);
    }
    Ok(tables)
}

fn bound(at: usize, value: u64, max: u64) -> Result<(), DecodeError> {
    if value > max { Err(DecodeError::TooLong { at, len: value, max }) } else { Ok(()) }
}

fn take_object(input: &mut Reader<'_>, page_bytes: usize, pages: u64) -> Result<ObjectEntry, DecodeError> {
    let what = ObjectTraits::take(input)?;
    let at = input.position();
    let flags = input.u8()?;
    bound(at, flags.into(), (SEALED | SHARES | PUBLISHED).into())?;
    let at = input.position();
    let len = input.u64()?;
    bound(at, len, OBJECT_PAGES_MAX * page_bytes as u64)?;
    let published = flags & PUBLISHED != 0;
    let trailer = if published { Some(Arc::new(input.u128()?)) } else { None };
    let unit = unit_pages(what.check, page_bytes);
    let mut map = ExtentMap::default();
    let mut end = 0;
    let at = input.position();
    let extents = input.u32()?;
    bound(at, extents.into(), (input.remaining() / 16) as u64)?;
    for _ in 0..extents {
        let at = input.position();
        let page = u64::from(input.u32()?);
        let run = take_run(input)?;
        bound(at, run.end(), pages)?;
        bound(at, run.pages.into(), RUN_PAGES_MAX.into())?;
        bound(at, page + u64::from(run.pages), OBJECT_PAGES_MAX)?;
        bound(at, end, page)?;
        end = page + u64::from(run.pages);
        let mut sums = Vec::new();
        if !published {
            for _ in 0..run.pages.div_ceil(unit) {
                sums.push(input.u32()?);
            }
        }
        map.insert(page, run, &sums, unit);
    }
    let map = if extents == 0 { ExtentMap::none() } else { Arc::new(map) };
    Ok(ObjectEntry { what, sealed: flags & SEALED != 0, shares: flags & SHARES != 0, len, map, trailer })
}

fn take_stream(input: &mut Reader<'_>, tables: &ObjectTables) -> Result<StreamEntry, DecodeError> {
    let what = ObjectTraits::take(input)?;
    let at = input.position();
    let trimmed = input.u64()?;
    // Frame numbers continue from there.
    bound(at, trimmed, COUNTER_MAX)?;
    let (durable, frame_pages_max) = if tables.names_frames() {
        (DurableFrames::take(input)?, tables.frame_pages(input.u32()?))
    } else {
        let durable = DurableFrames { next: input.u64()?, last: None };
        (durable, frame::pages_max(tables.page_bytes))
    };
    let mut first = 0;
    let pieces = take_list(input, 28, |input| {
        let at = input.position();
        let run = take_run(input)?;
        bound(at, run.end(), tables.pages)?;
        let piece = StreamPiece { run, first: input.u64()?, incarnation: input.u64()?, lsn: 0 };
        bound(at, first, piece.first)?;
        bound(at, piece.first, COUNTER_MAX)?;
        first = piece.first;
        Ok(piece)
    })?;
    Ok(StreamEntry { what, pieces, trimmed, durable, frame_pages_max })
}

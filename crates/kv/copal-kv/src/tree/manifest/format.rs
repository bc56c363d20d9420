//! Bytes of the manifest: an envelope, then version edits, each with a length and a checksum.
//!
//! Format: docs/formats/kv-manifest.md v3
//! Invariants
//! - An edit is appended in the object transaction that makes it true, so it is complete or absent.
//! - Its checksum is seeded with its offset, so an edit at another place does not verify.
//! - Edits only add state or overwrite it by id, so a snapshot of the state is an edit like any other.
//!
//! Not here: the state that edits build (`state`), appending and rewriting (`manifest`).

use crate::{
    Error,
    format::entry::{KeyspaceId, LAST_SEQ, MAX_KEY},
    session::options::{CacheMode, KeyspaceOptions},
};
use bytes::Bytes;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader, crc32c};
use copal_object::ObjectId;

pub(crate) use super::records::{ManifestRecord, TableMeta, TreeLevel, ValueMeta};

/// Envelope of the manifest object.
pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALKVM", name: "kv manifest", oldest: 1, version: 3, known_flags: 0 };
/// Envelope and its body: the store's seed.
pub(crate) const HEADER_LEN: usize = ENVELOPE_LEN + 8;
const EDIT_HEADER: usize = 8;
/// Longest name of a keyspace, bytes.
pub(crate) const MAX_NAME: usize = 255;
const MAX_ITEMS: usize = 1 << 24;
/// Limit of all ids, runs, generations and sequences that are allocated, so that a reader may increment any
/// of them.
const MAX_NUMBER: u64 = u64::MAX >> 1;

/// More than the length of any object, so sums of such numbers do not overflow.
const MAX_BYTES: u64 = 1 << 48;

/// Position of the cache mode in the byte that begins with `compress`.
const CACHE_SHIFT: u32 = 1;

const KEYSPACE: u8 = 1;
const DROP_KEYSPACE: u8 = 2;
const TABLE: u8 = 3;
const SLICES: u8 = 4;
const VALUE: u8 = 5;
const DROP_VALUE: u8 = 6;
const DEAD: u8 = 7;
const FLUSHED: u8 = 8;
const COUNTERS: u8 = 9;
const SETTLED: u8 = 10;
/// Written only by a rewrite of a manifest that already has it; stores from before 2026-12 may hold it.
const INGESTED: u8 = 11;
const KEYSPACE_WITH_HEAD: u8 = 12;

/// The first bytes of a manifest.
pub(crate) fn header(seed: u64) -> Vec<u8> {
    let mut out = vec![0; ENVELOPE_LEN];
    out.put_u64(seed);
    Envelope::seal(&FORMAT, 0, 0, &mut out);
    out
}

/// Decodes the header; returns its format version and the store's seed.
/// # Errors
/// `Corrupt` when it is damaged or of another version.
pub(crate) fn parse_header(bytes: &[u8]) -> Result<(u16, u64), Error> {
    let (envelope, body) =
        Envelope::open(&FORMAT, bytes).map_err(|error| Error::corrupt("kv manifest", error))?;
    let mut input = Reader::new(body);
    let seed = input.u64().map_err(|error| Error::corrupt("kv manifest", error))?;
    input.finish().map_err(|error| Error::corrupt("kv manifest", error))?;
    Ok((envelope.version, seed))
}

/// Encodes one edit for `offset`.
pub(crate) fn encode_edit(offset: u64, records: &[ManifestRecord]) -> Vec<u8> {
    let mut out = vec![0; EDIT_HEADER];
    for record in records {
        record.encode(&mut out);
    }
    append_checksum(offset, &mut out);
    out
}

/// Writer of an edit, record by record.
#[derive(Default)]
pub(crate) struct EditWriter {
    bytes: Vec<u8>,
}

impl EditWriter {
    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn add(&mut self, record: &ManifestRecord) {
        if self.bytes.is_empty() {
            self.bytes.put_zeros(EDIT_HEADER);
        }
        record.encode(&mut self.bytes);
    }

    /// The bytes of the edit for `offset`; none without records.
    pub(crate) fn end(mut self, offset: u64) -> Vec<u8> {
        if !self.bytes.is_empty() {
            append_checksum(offset, &mut self.bytes);
        }
        self.bytes
    }
}

/// Writes length and checksum before the records of an edit.
fn append_checksum(offset: u64, edit: &mut [u8]) {
    let (header, records) = edit.split_at_mut(EDIT_HEADER);
    let len = records.len() as u32;
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..].copy_from_slice(&edit_sum(offset, len, records).to_le_bytes());
}

fn edit_sum(offset: u64, len: u32, body: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &offset.to_le_bytes()), &len.to_le_bytes()), body)
}

/// Decodes all edits after the header.
/// # Errors
/// `Corrupt` names the offset of the first edit that does not verify.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_edits(manifest: &Bytes) -> Result<Vec<ManifestRecord>, Error> {
    let mut records = Vec::new();
    let mut at = HEADER_LEN.min(manifest.len());
    while at < manifest.len() {
        let edit = ManifestEdit::open(at as u64, &manifest.slice(at..))?;
        records.extend(edit.records());
        at += edit.len() as usize;
    }
    Ok(records)
}

/// An edit whose checksum is right and whose records are all well formed.
pub(crate) struct ManifestEdit {
    pub(crate) offset: u64,
    body: Bytes,
}

impl ManifestEdit {
    pub(crate) const HEADER_LEN: usize = EDIT_HEADER;

    /// Length of the edit that begins with `header`, not yet verified.
    pub(crate) fn claimed_len(header: &[u8]) -> u64 {
        let len = Reader::new(header).u32().unwrap_or(0);
        ManifestEdit::HEADER_LEN as u64 + u64::from(len)
    }

    /// Verifies the edit at `offset` of a manifest, which begins `bytes`.
    /// # Errors
    /// `Corrupt` names the offset.
    pub(crate) fn open(offset: u64, bytes: &Bytes) -> Result<ManifestEdit, Error> {
        let corrupt = |error: DecodeError| Error::corrupt(place(offset), error);
        let mut input = Reader::new(bytes);
        let mut read = || -> Result<(u32, u32), DecodeError> {
            let header = (input.u32()?, input.u32()?);
            input.bytes(header.0 as usize)?;
            Ok(header)
        };
        let (len, stored) = read().map_err(corrupt)?;
        let body = bytes.slice(EDIT_HEADER..EDIT_HEADER + len as usize);
        let computed = edit_sum(offset, len, &body);
        if stored != computed {
            let why = format!("its checksum is {stored:08x}, its bytes give {computed:08x}");
            return Err(Error::corrupt(place(offset), why));
        }
        // All records are checked before the first is returned: an edit is valid completely or not at all.
        let mut input = Reader::new(&body);
        while !input.is_empty() {
            ManifestRecord::decode(&mut input).map_err(corrupt)?;
        }
        Ok(ManifestEdit { offset, body })
    }

    /// Bytes of the edit, including its header.
    pub(crate) fn len(&self) -> u64 {
        (EDIT_HEADER + self.body.len()) as u64
    }

    /// Its records, decoded one at a time.
    pub(crate) fn records(&self) -> impl Iterator<Item = ManifestRecord> {
        let mut input = Reader::new(&self.body);
        std::iter::from_fn(move || ManifestRecord::decode(&mut input).ok())
    }
}

/// Whether a reader accepts each of `records`: a record that it would refuse must never be written.
pub(crate) fn are_readable(records: &[ManifestRecord]) -> bool {
    let mut encoded = Vec::new();
    records.iter().all(|record| {
        encoded.clear();
        record.encode(&mut encoded);
        ManifestRecord::decode(&mut Reader::new(&encoded)).is_ok()
    })
}

fn place(offset: u64) -> String {
    format!("kv manifest edit at byte {offset}")
}

impl ManifestRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ManifestRecord::Keyspace { id, name, options } => {
                let head = options.value_head_bytes;
                out.put_u8(if head == 0 { KEYSPACE } else { KEYSPACE_WITH_HEAD });
                out.put_u32(id.0);
                out.put_prefixed(name.as_bytes());
                out.put_u8(options.group_prefix_len);
                out.put_u32(options.separate_from_bytes);
                out.put_u32(options.direct_from_bytes);
                out.put_u8(u8::from(options.compress) | (options.cache as u8) << CACHE_SHIFT);
                if head > 0 {
                    out.put_u16(head);
                }
            }
            ManifestRecord::DropKeyspace { id } => {
                out.put_u8(DROP_KEYSPACE);
                out.put_u32(id.0);
            }
            ManifestRecord::Table(meta) => {
                out.put_u8(TABLE);
                meta.encode(out);
            }
            ManifestRecord::Slices { object, level, run, parts } => {
                out.put_u8(SLICES);
                out.put_u64(object.0);
                out.put_u8(level.0);
                out.put_u64(*run);
                out.put_varint(parts.len() as u64);
                for part in parts {
                    out.put_prefixed(&part.start);
                    out.put_prefixed(&part.end);
                }
            }
            ManifestRecord::Value(meta) => {
                out.put_u8(VALUE);
                out.put_u64(meta.object.0);
                out.put_u32(meta.keyspace.0);
                out.put_prefixed(&meta.group);
                out.put_varint(meta.accounted);
                out.put_varint(meta.max_seq);
                out.put_u8(u8::from(meta.by_worker));
            }
            ManifestRecord::DropValue { object } => {
                out.put_u8(DROP_VALUE);
                out.put_u64(object.0);
            }
            ManifestRecord::Dead { object, ranges } => {
                out.put_u8(DEAD);
                out.put_u64(object.0);
                out.put_varint(ranges.len() as u64);
                for range in ranges {
                    out.put_varint(range.start);
                    out.put_varint(range.end - range.start);
                }
            }
            ManifestRecord::Flushed { generation, last_seq } => {
                out.put_u8(FLUSHED);
                out.put_varint(*generation);
                out.put_varint(*last_seq);
            }
            ManifestRecord::Counters { next_object, next_run, next_keyspace } => {
                out.put_u8(COUNTERS);
                out.put_varint(*next_object);
                out.put_varint(*next_run);
                out.put_u32(*next_keyspace);
            }
            ManifestRecord::Settled { below } => {
                out.put_u8(SETTLED);
                out.put_varint(*below);
            }
            ManifestRecord::Ingested { object, seq } => {
                out.put_u8(INGESTED);
                out.put_u64(object.0);
                out.put_varint(*seq);
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<ManifestRecord, DecodeError> {
        let at = input.position();
        let tag = input.u8()?;
        Ok(match tag {
            KEYSPACE | KEYSPACE_WITH_HEAD => {
                let id = keyspace(input)?;
                let at = input.position();
                let name = std::str::from_utf8(input.prefixed(MAX_NAME)?);
                let name =
                    name.map_err(|_| DecodeError::Invalid { at, what: "name, which is text," })?.to_owned();
                let mut options = KeyspaceOptions {
                    group_prefix_len: input.u8()?,
                    separate_from_bytes: input.u32()?,
                    direct_from_bytes: input.u32()?,
                    ..KeyspaceOptions::default()
                };
                let at = input.position();
                let bits = input.u8()?;
                options.compress = bits & 1 != 0;
                options.cache = match bits >> CACHE_SHIFT {
                    0 => CacheMode::Rows,
                    1 => CacheMode::Blocks,
                    2 => CacheMode::Nothing,
                    mode => {
                        let kind = u64::from(mode);
                        return Err(DecodeError::UnknownKind { at, kind, newest: 2 });
                    }
                };
                if tag != KEYSPACE {
                    options.value_head_bytes = input.u16()?;
                }
                ManifestRecord::Keyspace { id, name, options }
            }
            DROP_KEYSPACE => ManifestRecord::DropKeyspace { id: keyspace(input)? },
            TABLE => ManifestRecord::Table(TableMeta::decode(input)?),
            SLICES => {
                let object = object(input)?;
                let level = TreeLevel(input.u8()?);
                let run = bounded(input, Reader::u64)?;
                let parts = list(input, |input| Ok(key(input)?..key(input)?))?;
                ManifestRecord::Slices { object, level, run, parts }
            }
            VALUE => ManifestRecord::Value(ValueMeta {
                object: object(input)?,
                keyspace: keyspace(input)?,
                group: key(input)?,
                accounted: bytes(input)?,
                max_seq: sequence(input)?,
                by_worker: input.u8()? != 0,
            }),
            DROP_VALUE => ManifestRecord::DropValue { object: object(input)? },
            DEAD => {
                let object = object(input)?;
                let ranges = list(input, |input| {
                    let start = bytes(input)?;
                    Ok(start..start + bytes(input)?)
                })?;
                ManifestRecord::Dead { object, ranges }
            }
            FLUSHED => ManifestRecord::Flushed {
                generation: bounded(input, Reader::varint)?,
                last_seq: sequence(input)?,
            },
            COUNTERS => ManifestRecord::Counters {
                next_object: bounded(input, Reader::varint)?,
                next_run: bounded(input, Reader::varint)?,
                next_keyspace: keyspace(input)?.0,
            },
            SETTLED => ManifestRecord::Settled { below: bounded(input, Reader::varint)? },
            INGESTED => ManifestRecord::Ingested { object: object(input)?, seq: sequence(input)? },
            _ => {
                return Err(DecodeError::UnknownKind {
                    at,
                    kind: u64::from(tag),
                    newest: u64::from(KEYSPACE_WITH_HEAD),
                });
            }
        })
    }
}

impl TableMeta {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.object.0);
        out.put_varint(self.bytes);
        out.put_varint(self.entries);
        out.put_varint(self.droppable);
        out.put_varint(self.max_seq);
        out.put_prefixed(&self.start);
        out.put_prefixed(&self.end);
        out.put_varint(self.values.len() as u64);
        for (object, bytes) in &self.values {
            out.put_u64(object.0);
            out.put_varint(*bytes);
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<TableMeta, DecodeError> {
        Ok(TableMeta {
            object: object(input)?,
            bytes: bytes(input)?,
            entries: bytes(input)?,
            droppable: bytes(input)?,
            max_seq: sequence(input)?,
            start: key(input)?,
            end: key(input)?,
            values: list(input, |input| Ok((object(input)?, bytes(input)?)))?,
            ingested_at: None,
        })
    }
}

fn object(input: &mut Reader<'_>) -> Result<ObjectId, DecodeError> {
    bounded(input, Reader::u64).map(ObjectId)
}

fn keyspace(input: &mut Reader<'_>) -> Result<KeyspaceId, DecodeError> {
    let at = input.position();
    let (id, max) = (input.u32()?, u32::MAX >> 1);
    if id > max {
        let (len, max) = (u64::from(id), u64::from(max));
        return Err(DecodeError::TooLong { at, len, max });
    }
    Ok(KeyspaceId(id))
}

/// A number up to [`MAX_NUMBER`].
fn bounded<'a>(
    input: &mut Reader<'a>,
    read: impl Fn(&mut Reader<'a>) -> Result<u64, DecodeError>,
) -> Result<u64, DecodeError> {
    at_most(MAX_NUMBER, input, read)
}

/// The sequence of an operation, or 0.
fn sequence(input: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(LAST_SEQ, input, Reader::varint)
}

/// An offset in an object, a length, or a number of entries.
fn bytes(input: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(MAX_BYTES, input, Reader::varint)
}

fn at_most<'a>(
    max: u64,
    input: &mut Reader<'a>,
    read: impl Fn(&mut Reader<'a>) -> Result<u64, DecodeError>,
) -> Result<u64, DecodeError> {
    let at = input.position();
    let len = read(input)?;
    if len > max {
        return Err(DecodeError::TooLong { at, len, max });
    }
    Ok(len)
}

fn key(input: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    // Copied: a slice would keep the whole manifest in memory as long as one of its keys is in use.
    Ok(Bytes::copy_from_slice(input.prefixed(MAX_KEY)?))
}

/// A counted list. Grows as items are found, so a false count allocates almost nothing. A short list
/// allocates no more than it needs; most parts and value objects of tables are such lists.
fn list<T>(
    input: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    const SHORT: usize = 4;
    let count = input.bounded(MAX_ITEMS)?;
    let mut items = Vec::with_capacity(count.min(SHORT));
    for _ in 0..count {
        items.push(item(input)?);
    }
    Ok(items)
}

/// A manifest with one edit around any bytes, with valid length and checksums.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(records: &[u8]) -> Bytes {
    let mut edit = vec![0; EDIT_HEADER];
    edit.put_bytes(records);
    append_checksum(HEADER_LEN as u64, &mut edit);
    let mut manifest = header(0);
    manifest.put_bytes(&edit);
    Bytes::from(manifest)
}

#[cfg(test)]
mod tests;

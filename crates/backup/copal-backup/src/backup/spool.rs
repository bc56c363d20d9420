//! Spool: the results of the first pass over a part of a disk, kept in a file until the answers have come.
//!
//! The file has no name and vanishes with its handle. Each record is a length, a checksum and a body, so a
//! bad local disk ends the backup.

use super::job::{ChunkState, JobEntry, NewChunk, SegmentJob, TreeStep};
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::snapshot::recipe::FrameRef;
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use copal_codec::{DecodeError, Put, Reader as Input};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use uuid::Uuid;

/// Longest record: a segment of the smallest chunks.
const MAX_RECORD_BYTES: usize = 1 << 20;
const HEAD_BYTES: usize = 12;
const BUFFER_BYTES: usize = 64 << 10;

/// Writer of the first pass.
pub(super) struct SpoolWriter {
    file: BufWriter<File>,
    body: Vec<u8>,
    records: u64,
    asked: u64,
}

/// Results of the first pass; readable any number of times.
pub(super) struct ChunkSpool {
    file: File,
    vm: Uuid,
    records: u64,
    /// Chunks that the VM does not have: one answer is expected for each.
    pub(super) asked: u64,
}

/// A segment of the first pass. Its bytes are read again when they are stored.
#[derive(Debug)]
pub(super) struct SpooledSegment {
    /// Offset in the disk.
    pub(super) start: u64,
    pub(super) recipe_id: ChunkId,
    pub(super) entries: Vec<JobEntry>,
}

impl SpooledSegment {
    /// Its range in the disk.
    pub(super) fn range(&self) -> Range<u64> {
        let length: u64 = self.entries.iter().map(|entry| u64::from(entry.length)).sum();
        self.start..self.start + length
    }

    /// Bytes that are not holes.
    pub(super) fn data_bytes(&self) -> u64 {
        let is_data = |entry: &&JobEntry| !matches!(entry.state, ChunkState::Hole);
        let data = self.entries.iter().filter(is_data);
        data.map(|entry| u64::from(entry.length)).sum()
    }
}

/// One step of the second pass.
pub(super) enum SpoolItem {
    Step(TreeStep),
    Segment(SpooledSegment),
}

impl SpoolWriter {
    /// Creates a file in `directory`.
    pub(super) fn new(directory: &Path) -> Result<SpoolWriter> {
        let file = tempfile::tempfile_in(directory).map_err(|error| failed(&error))?;
        Ok(SpoolWriter {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            body: Vec::new(),
            records: 0,
            asked: 0,
        })
    }

    /// Writes a step; of a segment to be written, only the ids of its chunks.
    pub(super) fn push(&mut self, step: &TreeStep) -> Result<()> {
        self.body.clear();
        match step {
            TreeStep::Page(page) => {
                self.body.put_u8(1);
                put_option(&mut self.body, page.as_ref());
            }
            TreeStep::Segment(segment) => {
                self.body.put_u8(2);
                put_option(&mut self.body, segment.as_ref());
            }
            TreeStep::EndOfDisk { size_bytes, data_bytes } => {
                self.body.put_u8(3);
                self.body.put_u64(*size_bytes);
                self.body.put_u64(*data_bytes);
            }
            TreeStep::Write(job) => self.put_job(job),
        }
        let head = head_of(&self.body);
        self.records += 1;
        let written = self.file.write_all(&head).and_then(|()| self.file.write_all(&self.body));
        written.map_err(|error| failed(&error))
    }

    fn put_job(&mut self, job: &SegmentJob) {
        let body = &mut self.body;
        body.put_u8(4);
        body.put_u64(job.start);
        body.put_bytes(&job.recipe_id.0);
        body.put_varint(job.entries.len() as u64);
        for JobEntry { length, state, .. } in &job.entries {
            body.put_varint(u64::from(*length));
            match state {
                ChunkState::Hole => body.put_u8(0),
                ChunkState::Known(reference) => {
                    body.put_u8(1);
                    put_ref(body, reference);
                }
                ChunkState::New(NewChunk { id, .. }) | ChunkState::InFlight(id) => {
                    body.put_u8(2);
                    body.put_bytes(&id.0);
                    self.asked += 1;
                }
            }
        }
    }

    /// Ends writing and returns the spool of this VM.
    pub(super) fn finish(self, vm: Uuid) -> Result<ChunkSpool> {
        let file = self.file.into_inner().map_err(|error| failed(error.error()))?;
        Ok(ChunkSpool { file, vm, records: self.records, asked: self.asked })
    }
}

impl ChunkSpool {
    /// Visits each step, in order.
    /// # Errors
    /// Errors of the file, and errors of `visit`.
    pub(super) fn for_each<E: From<Error>>(
        &self,
        mut visit: impl FnMut(SpoolItem) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut records = self.records().map_err(|error| failed(&error))?;
        while let Some(body) = records.next().map_err(|error| failed(&error))? {
            let spooled = parse(body, self.vm).map_err(|detail| failed(&io::Error::other(detail)))?;
            visit(spooled)?;
        }
        Ok(())
    }

    /// The ids to be asked for, filtered by their number in the spool.
    pub(super) fn ids<'a>(
        &'a self,
        is_wanted: impl Fn(u64) -> bool + 'a,
    ) -> io::Result<impl Iterator<Item = io::Result<ShortId>> + 'a> {
        let mut records = self.records()?;
        let mut waiting = Vec::new().into_iter();
        let mut number = 0;
        Ok(std::iter::from_fn(move || {
            loop {
                if let Some(id) = waiting.next() {
                    return Some(Ok(id));
                }
                let body = match records.next() {
                    Ok(Some(body)) => body,
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                };
                match parse(body, self.vm) {
                    Ok(SpoolItem::Segment(segment)) => {
                        let asked = segment.entries.iter().filter_map(JobEntry::new_id);
                        let numbered = asked.zip(number..);
                        let wanted = numbered.filter(|(_, number)| is_wanted(*number));
                        let ids: Vec<ShortId> = wanted.map(|(id, _)| id.short()).collect();
                        number += segment.entries.iter().filter_map(JobEntry::new_id).count() as u64;
                        waiting = ids.into_iter();
                    }
                    Ok(SpoolItem::Step(_)) => {}
                    Err(detail) => return Some(Err(io::Error::other(detail))),
                }
            }
        }))
    }

    fn records(&self) -> io::Result<SpoolRecords> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(SpoolRecords {
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            body: Vec::new(),
            left: self.records,
        })
    }
}

/// Reads records one after another.
struct SpoolRecords {
    file: BufReader<File>,
    body: Vec<u8>,
    left: u64,
}

impl SpoolRecords {
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact(&mut head)?;
        let (length, _) = head.split_at(4);
        let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
        if length > MAX_RECORD_BYTES {
            return Err(io::Error::other("a record is too long"));
        }
        self.body.resize(length, 0);
        self.file.read_exact(&mut self.body)?;
        if head_of(&self.body) != head {
            return Err(io::Error::other("the checksum of a record does not match"));
        }
        Ok(Some(&self.body))
    }
}

/// Length and checksum.
fn head_of(body: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&blake3::hash(body).as_bytes()[..8]);
    head
}

fn put_ref(body: &mut Vec<u8>, reference: &FrameRef) {
    body.put_bytes(&reference.id.0);
    let FrameLocation { home, volume, pack, slot } = reference.location;
    body.put_u8(match home {
        PackHome::Shared => 0,
        PackHome::Private(_) => 1,
        PackHome::Recipes(_) => 2,
    });
    body.put_u32(volume);
    body.put_u64(pack.0);
    body.put_u32(slot);
}

fn put_option(body: &mut Vec<u8>, reference: Option<&FrameRef>) {
    body.put_u8(u8::from(reference.is_some()));
    if let Some(reference) = reference {
        put_ref(body, reference);
    }
}

fn parse(body: &[u8], vm: Uuid) -> std::result::Result<SpoolItem, String> {
    let mut input = Input::new(body);
    let parsed = fields(&mut input, vm).map_err(|error| error.to_string())?;
    input.finish().map_err(|error| error.to_string())?;
    Ok(parsed)
}

fn fields(input: &mut Input<'_>, vm: Uuid) -> std::result::Result<SpoolItem, DecodeError> {
    Ok(match input.bounded(4)? {
        1 => SpoolItem::Step(TreeStep::Page(option(input, vm)?)),
        2 => SpoolItem::Step(TreeStep::Segment(option(input, vm)?)),
        3 => SpoolItem::Step(TreeStep::EndOfDisk { size_bytes: input.u64()?, data_bytes: input.u64()? }),
        _ => {
            let start = input.u64()?;
            let recipe_id = ChunkId(input.array()?);
            let mut at = 0;
            let mut entries = Vec::new();
            for _ in 0..input.bounded(SEGMENT_BYTES)? {
                let length = input.bounded(SEGMENT_BYTES - at)?;
                let raw = at..at + length;
                at = raw.end;
                let state = match input.bounded(2)? {
                    0 => ChunkState::Hole,
                    1 => ChunkState::Known(reference(input, vm)?),
                    _ => ChunkState::New(NewChunk { id: ChunkId(input.array()?), raw, packed: None }),
                };
                entries.push(JobEntry::new(length as u32, state));
            }
            SpoolItem::Segment(SpooledSegment { start, recipe_id, entries })
        }
    })
}

fn option(input: &mut Input<'_>, vm: Uuid) -> std::result::Result<Option<FrameRef>, DecodeError> {
    match input.bounded(1)? {
        0 => Ok(None),
        _ => reference(input, vm).map(Some),
    }
}

fn reference(input: &mut Input<'_>, vm: Uuid) -> std::result::Result<FrameRef, DecodeError> {
    Ok(FrameRef {
        id: ChunkId(input.array()?),
        location: FrameLocation {
            home: match input.bounded(2)? {
                0 => PackHome::Shared,
                1 => PackHome::Private(vm),
                _ => PackHome::Recipes(vm),
            },
            volume: input.u32()?,
            pack: PackNumber(input.u64()?),
            slot: input.u32()?,
        },
    })
}

fn failed(error: &io::Error) -> Error {
    Error::Spool { detail: error.to_string() }
}

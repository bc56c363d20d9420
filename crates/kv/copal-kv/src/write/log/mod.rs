//! The log: one stream per memtable generation, with frames of operation groups.
//!
//! Format: docs/formats/kv-log.md v1
//! Invariants
//! - Before the first frame of a new log is acknowledged, every frame of the previous log is durable. So
//!   after a crash the logs together hold a prefix of the commit order (KV-3).
//! - A frame's checksum is seeded with the log's generation and the frame's position, so a frame of another
//!   log or at another position does not verify.
//! - A group counts only if its last frame exists. A `FIRST` frame drops an unfinished group before it.
//! - No length from disk is used before it is checked against the bytes that hold it.

use crate::{
    Error,
    format::entry::{KEYSPACE_LEN, MAX_KEY, MAX_SEQ},
    session::limits::MAX_GROUP_BYTES,
    tree::{
        manifest::{ObjectRole, label},
        value::pointer::MAX_VALUE,
    },
};
use bytes::Bytes;
use copal_codec::{DecodeError, Put, Reader, crc32c};
use copal_object::{
    Ack, CreateOptions, FramePos, Lsn, ObjectId, ObjectKind, ObjectLifetime, ReadCheck, ReservedFrame, Store,
    StoreError, Txn,
};

/// Bytes before each frame's part of the group.
pub(crate) const HEADER_LEN: usize = 40;
const MAGIC: u32 = 0x474c_564b; // "KVLG"
const VERSION: u8 = 1;
const FIRST: u8 = 1;
const LAST: u8 = 2;
/// Largest payload of one frame: a stream takes 1 MiB less its own header.
const MAX_FRAME: usize = (1 << 20) - FRAME_SLACK;
/// Bytes by which a frame stays below a power of two, so that with the header of the stream it fills a run of
/// pages.
const FRAME_SLACK: usize = 4096;
/// Shortest payload to which a frame of a longer group is cut.
const LEAST_FRAME: usize = (16 << 10) - FRAME_SLACK;
/// Most bytes of deferred operations that a leader logs before a batch, in the same group.
const MAX_BEFORE: usize = 4 << 20;

/// One logged operation; each takes one sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogOp<B = Bytes> {
    Put {
        key: B,
        value: B,
    },
    Delete {
        key: B,
    },
    /// A value written directly; `pointer` is encoded.
    Pointer {
        key: B,
        pointer: B,
    },
    DeleteRange {
        start: B,
        end: B,
    },
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const POINTER: u8 = 3;
const DELETE_RANGE: u8 = 4;

impl<B: AsRef<[u8]>> LogOp<B> {
    /// Appends the operation to a group.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (tag, key, rest) = match self {
            LogOp::Put { key, value } => (PUT, key, Some(value)),
            LogOp::Delete { key } => (DELETE, key, None),
            LogOp::Pointer { key, pointer } => (POINTER, key, Some(pointer)),
            LogOp::DeleteRange { start, end } => (DELETE_RANGE, start, Some(end)),
        };
        out.put_u8(tag);
        out.put_prefixed(key.as_ref());
        if let Some(rest) = rest {
            out.put_prefixed(rest.as_ref());
        }
    }
}

impl LogOp {
    /// Upper bound of the operation's encoded bytes.
    pub(crate) fn encoded_bound(key: usize, rest: usize) -> usize {
        1 + 10 + key + 10 + rest
    }

    fn decode(group: &Bytes, input: &mut Reader<'_>) -> Result<LogOp, DecodeError> {
        let tag = input.u8()?;
        let key = slice(group, input, MAX_KEY)?;
        Ok(match tag {
            PUT => LogOp::Put { key, value: slice(group, input, MAX_VALUE)? },
            DELETE => LogOp::Delete { key },
            POINTER => LogOp::Pointer { key, pointer: slice(group, input, MAX_VALUE)? },
            DELETE_RANGE => LogOp::DeleteRange { start: key, end: slice(group, input, MAX_KEY)? },
            _ => {
                let at = input.position();
                return Err(DecodeError::UnknownKind {
                    at,
                    kind: u64::from(tag),
                    newest: u64::from(DELETE_RANGE),
                });
            }
        })
    }

    fn keys_are_whole(&self) -> bool {
        match self {
            LogOp::Put { key, .. } | LogOp::Delete { key } | LogOp::Pointer { key, .. } => {
                key.len() >= KEYSPACE_LEN
            }
            LogOp::DeleteRange { start, end } => start.len() >= KEYSPACE_LEN && start < end,
        }
    }
}

/// A length-prefixed field, sharing the group's buffer.
fn slice(group: &Bytes, input: &mut Reader<'_>, max: usize) -> Result<Bytes, DecodeError> {
    let field = input.prefixed(max)?;
    let end = input.position();
    Ok(group.slice(end - field.len()..end))
}

/// Splits an encoded group into frame payloads: each as long as possible, and shorter where the store has no
/// run of pages for that.
#[derive(Debug)]
pub(crate) struct GroupFrames<'a> {
    generation: u64,
    first_seq: u64,
    count: u32,
    rest: &'a [u8],
    is_begun: bool,
    limit: usize,
}

impl<'a> GroupFrames<'a> {
    pub(crate) fn new(generation: u64, first_seq: u64, count: u32, ops: &'a [u8]) -> GroupFrames<'a> {
        GroupFrames { generation, first_seq, count, rest: ops, is_begun: false, limit: MAX_FRAME }
    }

    /// The next payload, for the frame of this number, and whether it is the last one.
    pub(crate) fn next_frame(&self, position: u64) -> (Bytes, bool) {
        let (part, rest) = self.split();
        let is_last = rest.is_empty();
        let flags = if self.is_begun { 0 } else { FIRST } | if is_last { LAST } else { 0 };
        let place = (self.generation, position);
        (frame(place, flags, self.first_seq, self.count, part), is_last)
    }

    /// Goes to the next payload, after this one got its frame.
    pub(crate) fn advance(&mut self) {
        (self.is_begun, self.rest) = (true, self.split().1);
    }

    /// Halves the length of the next payloads; `false`: they are short already.
    pub(crate) fn shorten(&mut self) -> bool {
        let longest = HEADER_LEN + self.split().0.len();
        let shorter = (longest.next_power_of_two() / 2).saturating_sub(FRAME_SLACK);
        let can_be = shorter >= LEAST_FRAME;
        if can_be {
            self.limit = shorter;
        }
        can_be
    }

    fn split(&self) -> (&'a [u8], &'a [u8]) {
        self.rest.split_at(self.rest.len().min(self.limit - HEADER_LEN))
    }
}

/// All frame payloads of a group. `position` is the number of the first frame.
#[cfg(test)]
pub(crate) fn frames(generation: u64, position: u64, first_seq: u64, count: u32, ops: &[u8]) -> Vec<Bytes> {
    let mut cut = GroupFrames::new(generation, first_seq, count, ops);
    let mut frames = Vec::new();
    loop {
        let (payload, is_last) = cut.next_frame(position + frames.len() as u64);
        frames.push(payload);
        cut.advance();
        if is_last {
            return frames;
        }
    }
}

/// One frame with its checksum, for the log's generation and its position.
fn frame((generation, position): (u64, u64), flags: u8, first_seq: u64, count: u32, part: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(HEADER_LEN + part.len());
    out.put_u32(MAGIC);
    out.put_u8(VERSION);
    out.put_u8(flags);
    out.put_u16(0);
    out.put_u64(generation);
    out.put_u64(first_seq);
    out.put_u32(count);
    out.put_u32(part.len() as u32);
    out.put_u32(0);
    let sum = sum(generation, position, &out, part);
    out.put_u32(sum);
    out.put_bytes(part);
    Bytes::from(out)
}

/// The checksum of a frame: generation and position first, then the header up to the checksum, then the part.
fn sum(generation: u64, position: u64, header: &[u8], part: &[u8]) -> u32 {
    let seed = crc32c(crc32c(0, &generation.to_le_bytes()), &position.to_le_bytes());
    crc32c(crc32c(seed, header), part)
}

/// One group as it was committed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogGroup {
    /// Sequence number of the first operation; the others follow without a gap.
    pub(crate) first_seq: u64,
    pub(crate) ops: Vec<LogOp>,
}

/// Reassembles groups, frame by frame.
#[derive(Debug)]
pub(crate) struct GroupAssembler {
    generation: u64,
    open: Option<OpenGroup>,
}

#[derive(Debug)]
struct OpenGroup {
    first_seq: u64,
    count: u32,
    body: Vec<u8>,
}

impl GroupAssembler {
    pub(crate) fn new(generation: u64) -> GroupAssembler {
        GroupAssembler { generation, open: None }
    }

    /// Bytes of the unfinished group.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.body.len() as u64)
    }

    /// Takes the frame at `position`; returns the group that it completes.
    /// # Errors
    /// `Corrupt` when the frame is not the one that was written there.
    pub(crate) fn push(&mut self, position: u64, frame: &Bytes) -> Result<Option<LogGroup>, Error> {
        let place = || format!("log {} frame {position}", self.generation);
        let head =
            FrameHead::parse(frame, self.generation, position).map_err(|why| Error::corrupt(place(), why))?;
        if head.first && head.last {
            // A group in one frame needs no reassembly.
            self.open = None;
            let ops = decode_ops(frame.slice(HEADER_LEN..), head.count)
                .map_err(|why| Error::corrupt(place(), why))?;
            let first_seq = head.first_seq;
            return Ok(Some(LogGroup { first_seq, ops }));
        }
        let part = &frame[HEADER_LEN..];
        if head.first {
            self.open = Some(OpenGroup { first_seq: head.first_seq, count: head.count, body: Vec::new() });
        }
        let Some(open) = &mut self.open else {
            return Err(Error::corrupt(place(), "the group it continues has no beginning"));
        };
        if open.first_seq != head.first_seq || open.count != head.count {
            return Err(Error::corrupt(place(), "it continues another group"));
        }
        if open.body.len() + part.len() > MAX_GROUP_BYTES + MAX_BEFORE {
            return Err(Error::corrupt(place(), "the group is longer than any batch"));
        }
        open.body.extend_from_slice(part);
        if !head.last {
            return Ok(None);
        }
        let Some(open) = self.open.take() else {
            return Ok(None);
        };
        let (first_seq, count) = (open.first_seq, open.count);
        let ops = decode_ops(Bytes::from(open.body), count).map_err(|why| Error::corrupt(place(), why))?;
        Ok(Some(LogGroup { first_seq, ops }))
    }
}

pub(crate) fn decode_ops(body: Bytes, count: u32) -> Result<Vec<LogOp>, String> {
    let mut input = Reader::new(&body);
    let mut ops = Vec::new();
    while !input.is_empty() {
        let op = LogOp::decode(&body, &mut input).map_err(|error| error.to_string())?;
        if !op.keys_are_whole() {
            return Err("an operation has no keyspace".to_owned());
        }
        ops.push(op);
    }
    if ops.len() != count as usize {
        return Err(format!("{} operations instead of {count}", ops.len()));
    }
    Ok(ops)
}

struct FrameHead {
    first: bool,
    last: bool,
    first_seq: u64,
    count: u32,
}

/// The stored fields, not yet verified.
struct FrameFields {
    magic: u32,
    version: u8,
    flags: u8,
    generation: u64,
    first_seq: u64,
    count: u32,
    len: u32,
    sum: u32,
}

impl FrameFields {
    fn read(frame: &[u8]) -> Result<FrameFields, DecodeError> {
        let mut input = Reader::new(frame);
        let (magic, version, flags) = (input.u32()?, input.u8()?, input.u8()?);
        input.zeros(2)?;
        let (generation, first_seq) = (input.u64()?, input.u64()?);
        let (count, len) = (input.u32()?, input.u32()?);
        input.zeros(4)?;
        Ok(FrameFields { magic, version, flags, generation, first_seq, count, len, sum: input.u32()? })
    }
}

impl FrameHead {
    fn parse(frame: &[u8], generation: u64, position: u64) -> Result<FrameHead, String> {
        let fields = FrameFields::read(frame).map_err(|error| error.to_string())?;
        if fields.magic != MAGIC {
            return Err("it does not start like a log frame".to_owned());
        }
        let part = &frame[HEADER_LEN..];
        let (stored, computed) = (fields.sum, sum(generation, position, &frame[..HEADER_LEN - 4], part));
        if stored != computed || fields.generation != generation || part.len() != fields.len as usize {
            return Err(format!("its checksum is {stored:08x}, its bytes give {computed:08x}"));
        }
        let FrameFields { version, flags, first_seq, count, .. } = fields;
        if version != VERSION || flags & !(FIRST | LAST) != 0 {
            return Err(format!("it has version {version}, this build reads {VERSION}"));
        }
        // Replay increments the first sequence for each operation.
        if first_seq > MAX_SEQ - u64::from(count) {
            return Err(format!("its sequence {first_seq} is above the limit"));
        }
        Ok(FrameHead { first: flags & FIRST != 0, last: flags & LAST != 0, first_seq, count })
    }
}

/// Frames with valid checksums around any bytes: flags, first sequence, count and length of a part, then the
/// part. A first sequence of 128 and more counts back from 2^64.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(generation: u64, bytes: &[u8]) -> Vec<Bytes> {
    let mut input = Reader::new(bytes);
    let mut frames = Vec::new();
    while let Ok([flags, first_seq, count, len]) = input.array::<4>() {
        let part = input.bytes(usize::from(len).min(input.remaining()));
        let place = (generation, frames.len() as u64);
        let (first_seq, count) = (first_seq.cast_signed() as u64, u32::from(count));
        frames.push(frame(place, flags, first_seq, count, part.unwrap_or_default()));
    }
    frames
}

/// A closing store leaves no log with more frames. Each frame takes at least a page, however little it holds.
/// So every opening would read a few MiB of log instead of a small table.
const LONG_FRAMES: u64 = 512;

/// The log that is being written.
#[derive(Debug)]
pub(crate) struct WriteLog {
    pub(crate) generation: u64,
    pub(crate) stream: ObjectId,
    /// Number of the next frame.
    position: u64,
    /// The acknowledgement of the last frame does not imply that it and all frames before it are durable.
    pub(crate) unsynced: bool,
}

/// A group to be logged.
#[derive(Clone, Copy)]
pub(crate) struct LoggedGroup<'a> {
    pub(crate) first_seq: u64,
    pub(crate) count: u32,
    /// Encoded operations of the group.
    pub(crate) ops: &'a [u8],
    /// The commit that the group must follow.
    pub(crate) after: Option<Lsn>,
}

impl WriteLog {
    /// Creates the stream of `generation`. Ordered: the first durable frame makes it durable.
    /// # Errors
    /// `NoSpace`, or a failed write.
    pub(crate) fn create(objects: &Store, generation: u64, stream: ObjectId) -> Result<WriteLog, StoreError> {
        let opts = CreateOptions {
            kind: ObjectKind::Stream,
            lifetime: ObjectLifetime::Short,
            expected_bytes: 0,
            check: ReadCheck::Caller,
            label: label(ObjectRole::Log, generation),
        };
        objects.commit(Txn::new().create(stream, opts), Ack::Ordered).wait()?;
        Ok(WriteLog { generation, stream, position: 0, unsynced: true })
    }

    /// Continues a log found at opening, after its last complete frame.
    pub(crate) fn resume(generation: u64, stream: ObjectId, position: u64) -> WriteLog {
        WriteLog { generation, stream, position, unsynced: true }
    }

    /// Whether this is the log `stream`, and `frame` its last.
    pub(crate) fn ends_with(&self, stream: ObjectId, frame: FramePos) -> bool {
        self.stream == stream && self.position == frame.0 + 1
    }

    /// Number of frames so far; each takes at least a page.
    pub(crate) fn frames(&self) -> u64 {
        self.position
    }

    /// Whether it is worth writing a table so that the next opening need not read this log.
    pub(crate) fn is_long(&self) -> bool {
        self.position > LONG_FRAMES
    }

    /// Appends all frames of a group except the last, and reserves that one. The caller must then write it
    /// and call [`WriteLog::placed`].
    ///
    /// In a full store without long runs of pages the frames become shorter, as long as there is space for
    /// the group. `after`: the group counts only if that commit survives.
    /// # Errors
    /// `NoSpace`: the group does not count, although some of its frames may exist. Otherwise a failed write.
    pub(crate) fn reserve_group(
        &mut self,
        objects: &Store,
        group: LoggedGroup<'_>,
        ack: Ack,
    ) -> Result<ReservedFrame, StoreError> {
        let LoggedGroup { first_seq, count, ops, after } = group;
        let mut frames = GroupFrames::new(self.generation, first_seq, count, ops);
        loop {
            let (payload, is_last) = frames.next_frame(self.position);
            let ack = if is_last { ack } else { Ack::Ordered };
            match objects.reserve_frame(self.stream, &payload, after, ack) {
                Ok(frame) if is_last => return Ok(frame),
                Ok(frame) => self.placed(frame.write().wait()?, ack),
                Err(StoreError::NoSpace { .. }) if frames.shorten() => continue,
                Err(error) => return Err(error),
            }
            frames.advance();
        }
    }

    /// Records that the frame has its number and will be acknowledged as `ack`.
    pub(crate) fn placed(&mut self, FramePos(position): FramePos, ack: Ack) {
        assert_eq!(position, self.position, "the stream is written by this log alone");
        self.position += 1;
        self.unsynced = ack != Ack::Durable;
    }

    /// Appends a group and waits until it is durable.
    /// # Errors
    /// As [`WriteLog::reserve_group`].
    pub(crate) fn append_durably(
        &mut self,
        objects: &Store,
        group: LoggedGroup<'_>,
    ) -> Result<(), StoreError> {
        let last = self.reserve_group(objects, group, Ack::Durable)?;
        self.placed(last.write().wait()?, Ack::Durable);
        Ok(())
    }
}

/// Copies of a frame while it is read: the device buffer, its payload, and its part of a growing group.
const COPIES: u64 = 4;

/// Reads a log from its beginning; calls `apply` for each complete group. Returns the number of frames.
/// Blocks.
///
/// `held` is called with the temporary memory of each frame and its group. With `lost`, unreadable frames and
/// the rest of their groups are skipped and listed there.
/// # Errors
/// `Corrupt` in the middle of the log, unless there is `lost`; or an error of `apply`. A torn end is no
/// error.
pub(crate) fn replay(
    objects: &Store,
    generation: u64,
    stream: ObjectId,
    mut held: impl FnMut(u64),
    mut apply: impl FnMut(LogGroup) -> Result<(), Error>,
    mut lost: Option<&mut Vec<String>>,
) -> Result<u64, Error> {
    let mut reader = objects.frames(stream, FramePos(0))?;
    let mut assembler = GroupAssembler::new(generation);
    let mut position = 0;
    let named = |error| match error {
        StoreError::Corrupt { range, .. } => Error::corrupt(
            format!("log {generation} (object {})", stream.0),
            format!("frame {} cannot be read", range.start),
        ),
        error => Error::from(error),
    };
    loop {
        let (FramePos(at), frame) = match (reader.next_frame(), &mut lost) {
            (Ok(Some(found)), _) => found,
            (Ok(None), _) => return Ok(position),
            (Err(error @ StoreError::Corrupt { .. }), Some(lost)) => {
                lost.push(named(error).to_string());
                position += 1;
                if objects.stat(stream).is_none_or(|stat| position >= stat.len) {
                    return Ok(position);
                }
                assembler = GroupAssembler::new(generation);
                reader = objects.frames(stream, FramePos(position))?;
                continue;
            }
            (Err(error), _) => return Err(named(error)),
        };
        held(COPIES * frame.len() as u64 + assembler.held_bytes());
        if at != position {
            return Err(Error::corrupt(format!("log {generation}"), format!("frame {position} is missing")));
        }
        position += 1;
        match (assembler.push(at, &frame), &mut lost) {
            (Ok(Some(group)), _) => apply(group)?,
            (Ok(None), _) => {}
            (Err(error), Some(lost)) => {
                lost.push(error.to_string());
                assembler = GroupAssembler::new(generation);
            }
            (Err(error), None) => return Err(error),
        }
    }
}

#[cfg(test)]
mod format_tests;

#[cfg(test)]
mod tests;

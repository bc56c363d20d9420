//! Operations in a journal record. They are physical, so replay decides nothing.
//!
//! Format: docs/formats/object-record.md v1

use crate::{
    CreateOptions, ObjectKind, ObjectLifetime, ReadCheck,
    format::{
        moved_part::MovedPart,
        run::{PageRun, put_run, take_run},
        sum_rule::SumRule,
    },
};
use bytes::Bytes;
use copal_codec::{DecodeError, Put, Reader};

/// One step from one state of the tables to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordOp {
    Create {
        id: u64,
        what: ObjectTraits,
    },
    /// Pages `at..` of the object are now at `run`; one sum per unit, by the rule of the
    /// object. `epoch` 0: the record's own.
    Map {
        id: u64,
        at: u64,
        run: PageRun,
        epoch: u64,
        rule: SumRule,
        sums: Vec<u32>,
    },
    /// A sealed object: data pages, then its sum trailer, whose hash is here.
    Publish {
        id: u64,
        what: ObjectTraits,
        len: u64,
        runs: Vec<PageRun>,
        trailer: u128,
        epoch: u64,
    },
    Unmap {
        id: u64,
        at: u64,
        pages: u64,
    },
    /// A unit was cut: its rest becomes a unit in the same place.
    Resum {
        id: u64,
        at: u64,
        pages: u32,
        sum: u32,
    },
    Length {
        id: u64,
        len: u64,
    },
    Clone {
        from: u64,
        to: u64,
    },
    Seal {
        id: u64,
    },
    Delete {
        id: u64,
    },
    StreamExtent {
        id: u64,
        run: PageRun,
        first: u64,
        incarnation: u64,
    },
    /// Pages of one frame; the stream has no extents (`log` backend).
    StreamFrame {
        id: u64,
        run: PageRun,
        frame: u64,
    },
    StreamTrim {
        id: u64,
        upto: u64,
    },
    /// The stream ends before frame `cut.from`.
    StreamTruncate {
        id: u64,
        cut: TailCut,
    },
    /// The record counts only if this frame survives.
    Dep {
        id: u64,
        frame: u64,
    },
    /// Frames below these numbers are durable. Written while the live checkpoint is older than version 4.
    Durable {
        streams: Vec<(u64, u64)>,
    },
    /// A mount: records after it carry `mount`; open streams continue at the given places.
    Mount {
        mount: u64,
        cuts: Vec<StreamCut>,
    },
    /// The store has this many pages.
    Grow {
        pages: u64,
    },
    /// Durable frames with the place of the last one, and the longest frame from now on.
    Frames {
        streams: Vec<StreamFrames>,
    },
    /// Bytes of the pages of `run`, which a `Map` of the same record names. They may not be at their place (`cow`
    /// backend).
    Inline {
        run: PageRun,
        bytes: Bytes,
    },
    /// The inline pages of all records whose last commit is not above `upto` are at their places.
    InlinePlaced {
        upto: u64,
    },
    /// Pages of objects and streams are now in `to`, whose pages have the sum `sum` (`log` backend).
    Move {
        to: PageRun,
        sum: u32,
        epoch: u64,
        parts: Vec<MovedPart>,
    },
}

/// The durable frames of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DurableFrames {
    /// Frames below this number are durable; a stream that ends before it is damaged.
    pub(crate) next: u64,
    /// Page of its piece at which frame `next - 1` begins, if it is known. A hint: it counts only if that
    /// frame is found there.
    pub(crate) last: Option<u32>,
}

/// An unknown page.
const NO_PAGE: u32 = u32::MAX;

impl DurableFrames {
    /// Bytes in a record and in a checkpoint.
    pub(crate) const LEN: u64 = 12;

    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put_u64(self.next);
        out.put_u32(self.last.unwrap_or(NO_PAGE));
    }

    pub(crate) fn take(input: &mut Reader<'_>) -> Result<DurableFrames, DecodeError> {
        let (next, last) = (input.u64()?, input.u32()?);
        Ok(DurableFrames { next, last: (last != NO_PAGE).then_some(last) })
    }

    /// The one of both that knows more.
    pub(crate) fn later(self, other: DurableFrames) -> DurableFrames {
        if (other.next, other.last.is_some()) > (self.next, self.last.is_some()) { other } else { self }
    }
}

/// Frames of a stream as [`RecordOp::Frames`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamFrames {
    pub(crate) id: u64,
    pub(crate) durable: DurableFrames,
    /// No frame has more pages until a later record says so.
    pub(crate) pages_max: u32,
}

/// Place where a stream continues after a mount. Everything behind the first `kept` pages of piece number
/// `piece` is a new use of the space; later pieces are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamCut {
    pub(crate) id: u64,
    pub(crate) piece: u32,
    pub(crate) kept: u32,
    pub(crate) next: u64,
    pub(crate) incarnation: u64,
}

/// Place at which a stream is cut. Its frames from `from` on are gone, and frame `from` is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailCut {
    pub(crate) from: u64,
    /// Pages that stay of the piece with frame `from`.
    pub(crate) kept: u32,
    /// Pages of the last piece that frames may have used. Those behind it become a piece of their own.
    pub(crate) used: u32,
    pub(crate) incarnation: u64,
}

/// `CreateOptions` as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectTraits {
    pub(crate) kind: ObjectKind,
    pub(crate) lifetime: ObjectLifetime,
    pub(crate) check: ReadCheck,
    pub(crate) sums: SumRule,
    /// log2 of the expected size, rounded up; 0 when unknown.
    pub(crate) expected_log2: u8,
    pub(crate) label: [u8; 16],
}

/// Bytes of an object's traits.
pub(crate) const TRAITS_LEN: u64 = 20;
/// Bits of the byte of checks.
const CHECK_CALLER: u8 = 1;
const SUM_HASHES: u8 = 2;

impl ObjectTraits {
    /// `sums`: the rule that the store uses for new objects.
    pub(crate) fn of(opts: &CreateOptions, sums: SumRule) -> ObjectTraits {
        let expected = opts.expected_bytes;
        let expected_log2 = if expected < 2 { 0 } else { (64 - (expected - 1).leading_zeros()) as u8 };
        ObjectTraits {
            kind: opts.kind,
            lifetime: opts.lifetime,
            check: opts.check,
            sums,
            expected_log2,
            label: opts.label,
        }
    }

    pub(crate) fn put(&self, out: &mut impl Put) {
        out.put_u8(match self.kind {
            ObjectKind::Plain => 0,
            ObjectKind::Sealed => 1,
            ObjectKind::Stream => 2,
        });
        out.put_u8(match self.lifetime {
            ObjectLifetime::Short => 0,
            ObjectLifetime::Medium => 1,
            ObjectLifetime::Long => 2,
        });
        let check = match self.check {
            ReadCheck::Pages => 0,
            ReadCheck::Caller => CHECK_CALLER,
        };
        let sums = match self.sums {
            SumRule::Crc32c => 0,
            SumRule::Hashes => SUM_HASHES,
        };
        out.put_u8(check | sums);
        out.put_u8(self.expected_log2);
        out.put_bytes(&self.label);
    }

    pub(crate) fn take(input: &mut Reader<'_>) -> Result<ObjectTraits, DecodeError> {
        let at = input.position();
        let known = |value: u8, max: u8| {
            if value > max {
                return Err(DecodeError::UnknownKind { at, kind: value.into(), newest: max.into() });
            }
            Ok(value)
        };
        let kind = match known(input.u8()?, 2)? {
            0 => ObjectKind::Plain,
            1 => ObjectKind::Sealed,
            _ => ObjectKind::Stream,
        };
        let lifetime = match known(input.u8()?, 2)? {
            0 => ObjectLifetime::Short,
            1 => ObjectLifetime::Medium,
            _ => ObjectLifetime::Long,
        };
        let sums = known(input.u8()?, CHECK_CALLER | SUM_HASHES)?;
        let check = if sums & CHECK_CALLER == 0 { ReadCheck::Pages } else { ReadCheck::Caller };
        let sums = if sums & SUM_HASHES == 0 { SumRule::Crc32c } else { SumRule::Hashes };
        let expected_log2 = known(input.u8()?, 64)?;
        Ok(ObjectTraits { kind, lifetime, check, sums, expected_log2, label: input.array()? })
    }
}

const CREATE: u8 = 1;
const MAP: u8 = 2;
const PUBLISH: u8 = 3;
const UNMAP: u8 = 4;
const RESUM: u8 = 5;
const LENGTH: u8 = 6;
const CLONE: u8 = 7;
const SEAL: u8 = 8;
const DELETE: u8 = 9;
const STREAM_EXTENT: u8 = 10;
const STREAM_TRIM: u8 = 11;
const DEP: u8 = 12;
const DURABLE: u8 = 13;
const MOUNT: u8 = 14;
const GROW: u8 = 15;
const FRAMES: u8 = 16;
const STREAM_FRAME: u8 = 17;
const MOVE: u8 = 18;
const STREAM_TRUNCATE: u8 = 19;
const MAP_HASHED: u8 = 20;
const INLINE: u8 = 21;
const INLINE_PLACED: u8 = 22;

impl RecordOp {
    /// Appends the operation: one byte of kind, then its fields.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            RecordOp::Create { id, what } => {
                put_words(out, CREATE, &[*id]);
                what.put(out);
            }
            RecordOp::Map { id, at, run, epoch, rule, sums } => {
                let kind = if *rule == SumRule::Crc32c { MAP } else { MAP_HASHED };
                put_words(out, kind, &[*id, *at]);
                put_run(out, *run);
                out.put_u64(*epoch);
                put_list(out, sums, |out, &sum| out.put_u32(sum));
            }
            RecordOp::Publish { id, what, len, runs, trailer, epoch } => {
                put_words(out, PUBLISH, &[*id]);
                what.put(out);
                out.put_u64(*len);
                put_list(out, runs, |out, &run| put_run(out, run));
                out.put_u128(*trailer);
                out.put_u64(*epoch);
            }
            RecordOp::Unmap { id, at, pages } => put_words(out, UNMAP, &[*id, *at, *pages]),
            RecordOp::Resum { id, at, pages, sum } => {
                put_words(out, RESUM, &[*id, *at]);
                out.put_u32(*pages);
                out.put_u32(*sum);
            }
            RecordOp::Length { id, len } => put_words(out, LENGTH, &[*id, *len]),
            RecordOp::Clone { from, to } => put_words(out, CLONE, &[*from, *to]),
            RecordOp::Seal { id } => put_words(out, SEAL, &[*id]),
            RecordOp::Delete { id } => put_words(out, DELETE, &[*id]),
            RecordOp::StreamExtent { id, run, first, incarnation } => {
                put_words(out, STREAM_EXTENT, &[*id]);
                put_run(out, *run);
                out.put_u64(*first);
                out.put_u64(*incarnation);
            }
            RecordOp::StreamFrame { id, run, frame } => {
                put_words(out, STREAM_FRAME, &[*id]);
                put_run(out, *run);
                out.put_u64(*frame);
            }
            RecordOp::StreamTrim { id, upto } => put_words(out, STREAM_TRIM, &[*id, *upto]),
            RecordOp::StreamTruncate { id, cut } => {
                put_words(out, STREAM_TRUNCATE, &[*id, cut.from]);
                out.put_u32(cut.kept);
                out.put_u32(cut.used);
                out.put_u64(cut.incarnation);
            }
            RecordOp::Dep { id, frame } => put_words(out, DEP, &[*id, *frame]),
            RecordOp::Durable { streams } => {
                out.put_u8(DURABLE);
                put_list(out, streams, |out, (id, frame)| {
                    out.put_u64(*id);
                    out.put_u64(*frame);
                });
            }
            RecordOp::Mount { mount, cuts } => {
                put_words(out, MOUNT, &[*mount]);
                put_list(out, cuts, put_cut);
            }
            RecordOp::Grow { pages } => put_words(out, GROW, &[*pages]),
            RecordOp::Frames { streams } => {
                out.put_u8(FRAMES);
                put_list(out, streams, put_frames);
            }
            RecordOp::Inline { run, bytes } => {
                out.put_u8(INLINE);
                put_run(out, *run);
                out.put_u32(bytes.len() as u32);
                out.put_bytes(bytes);
            }
            RecordOp::InlinePlaced { upto } => put_words(out, INLINE_PLACED, &[*upto]),
            RecordOp::Move { to, sum, epoch, parts } => {
                out.put_u8(MOVE);
                put_run(out, *to);
                out.put_u32(*sum);
                out.put_u64(*epoch);
                put_list(out, parts, |out, part| part.put(out));
            }
        }
    }

    /// Reads one operation. Counts are bounded by the remaining bytes before anything is allocated.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<RecordOp, DecodeError> {
        let at = input.position();
        Ok(match input.u8()? {
            CREATE => RecordOp::Create { id: input.u64()?, what: ObjectTraits::take(input)? },
            kind @ (MAP | MAP_HASHED) => RecordOp::Map {
                id: input.u64()?,
                at: input.u64()?,
                run: take_run(input)?,
                epoch: input.u64()?,
                rule: if kind == MAP { SumRule::Crc32c } else { SumRule::Hashes },
                sums: take_list(input, 4, Reader::u32)?,
            },
            PUBLISH => RecordOp::Publish {
                id: input.u64()?,
                what: ObjectTraits::take(input)?,
                len: input.u64()?,
                runs: take_list(input, 12, take_run)?,
                trailer: input.u128()?,
                epoch: input.u64()?,
            },
            UNMAP => RecordOp::Unmap { id: input.u64()?, at: input.u64()?, pages: input.u64()? },
            RESUM => {
                RecordOp::Resum { id: input.u64()?, at: input.u64()?, pages: input.u32()?, sum: input.u32()? }
            }
            LENGTH => RecordOp::Length { id: input.u64()?, len: input.u64()? },
            CLONE => RecordOp::Clone { from: input.u64()?, to: input.u64()? },
            SEAL => RecordOp::Seal { id: input.u64()? },
            DELETE => RecordOp::Delete { id: input.u64()? },
            STREAM_EXTENT => RecordOp::StreamExtent {
                id: input.u64()?,
                run: take_run(input)?,
                first: input.u64()?,
                incarnation: input.u64()?,
            },
            STREAM_TRIM => RecordOp::StreamTrim { id: input.u64()?, upto: input.u64()? },
            STREAM_TRUNCATE => RecordOp::StreamTruncate { id: input.u64()?, cut: take_tail_cut(input)? },
            DEP => RecordOp::Dep { id: input.u64()?, frame: input.u64()? },
            DURABLE => {
                RecordOp::Durable { streams: take_list(input, 16, |input| Ok((input.u64()?, input.u64()?)))? }
            }
            MOUNT => RecordOp::Mount { mount: input.u64()?, cuts: take_list(input, 32, take_cut)? },
            GROW => RecordOp::Grow { pages: input.u64()? },
            FRAMES => RecordOp::Frames { streams: take_list(input, 24, take_frames)? },
            STREAM_FRAME => {
                RecordOp::StreamFrame { id: input.u64()?, run: take_run(input)?, frame: input.u64()? }
            }
            INLINE => {
                let run = take_run(input)?;
                let len = input.u32()? as usize;
                RecordOp::Inline { run, bytes: Bytes::copy_from_slice(input.bytes(len)?) }
            }
            INLINE_PLACED => RecordOp::InlinePlaced { upto: input.u64()? },
            MOVE => RecordOp::Move {
                to: take_run(input)?,
                sum: input.u32()?,
                epoch: input.u64()?,
                parts: take_list(input, MovedPart::LEN, MovedPart::take)?,
            },
            unknown => return Err(unknown_op(at, unknown)),
        })
    }
}

fn unknown_op(at: usize, kind: u8) -> DecodeError {
    DecodeError::UnknownKind { at, kind: kind.into(), newest: INLINE_PLACED.into() }
}

fn put_words(out: &mut Vec<u8>, kind: u8, words: &[u64]) {
    out.put_u8(kind);
    words.iter().for_each(|&word| out.put_u64(word));
}

fn put_cut(out: &mut Vec<u8>, cut: &StreamCut) {
    out.put_u64(cut.id);
    out.put_u32(cut.piece);
    out.put_u32(cut.kept);
    out.put_u64(cut.next);
    out.put_u64(cut.incarnation);
}

fn put_frames(out: &mut Vec<u8>, frames: &StreamFrames) {
    out.put_u64(frames.id);
    frames.durable.put(out);
    out.put_u32(frames.pages_max);
}

fn take_frames(input: &mut Reader<'_>) -> Result<StreamFrames, DecodeError> {
    Ok(StreamFrames { id: input.u64()?, durable: DurableFrames::take(input)?, pages_max: input.u32()? })
}

/// Most pages of the record of a mount that cuts at most so many streams.
pub(crate) fn mount_pages_max(streams: usize, page_bytes: usize) -> u32 {
    let ops_bytes = 1 + 8 + 4 + streams * 32;
    1 + ops_bytes.div_ceil(page_bytes) as u32
}

fn take_cut(input: &mut Reader<'_>) -> Result<StreamCut, DecodeError> {
    Ok(StreamCut {
        id: input.u64()?,
        piece: input.u32()?,
        kept: input.u32()?,
        next: input.u64()?,
        incarnation: input.u64()?,
    })
}

fn take_tail_cut(input: &mut Reader<'_>) -> Result<TailCut, DecodeError> {
    Ok(TailCut { from: input.u64()?, kept: input.u32()?, used: input.u32()?, incarnation: input.u64()? })
}

/// A u32 count and that many items.
fn put_list<T>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u32(items.len() as u32);
    items.iter().for_each(|item| put(out, item));
}

/// A u32 count and that many items of at least `item_len` bytes.
pub(crate) fn take_list<'a, T>(
    input: &mut Reader<'a>,
    item_len: usize,
    mut take: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let at = input.position();
    let count = input.u32()? as usize;
    let max = input.remaining() / item_len;
    if count > max {
        return Err(DecodeError::TooLong { at, len: count as u64, max: max as u64 });
    }
    (0..count).map(|_| take(input)).collect()
}

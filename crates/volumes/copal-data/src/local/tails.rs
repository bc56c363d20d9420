//! Last bytes of many files: their heads are looked up together, then their checksums, then the bytes are read together.
//!
//! Invariants
//! - Each file has one answer, at most [`FILES`] at a time.
//! - A file with another shape (no pieces), with damage, or deleted meanwhile is read by itself.

use super::{LocalCore, body, read};
use crate::format::{BLOCK_BYTES, FileHead, PIECE_BYTES, parse_sums, piece_len};
use crate::keys;
use bytes::Bytes;
use copal_kv::ValuePart;
use copal_volume::{FileId, FileInfo, FileTailSink, ReadOptions, VolumeError, VolumeId};
use std::ops::{ControlFlow, Range};

/// Most files that are read together.
const FILES: usize = 64;
/// Most bytes in flight from the engine.
const IN_FLIGHT_BYTES: u64 = 4 << 20;

/// Part of the tail of a file in one piece.
struct TailPart {
    /// Index of the file in its group.
    file: usize,
    piece: u32,
    /// Wanted bytes of the piece, and the blocks that they touch.
    bytes: Range<u64>,
    cover: Range<u64>,
}

/// A file whose tail is being read.
struct FileTail {
    head: FileHead,
    /// Place of the first byte.
    start: u64,
    bytes: Vec<u8>,
    missing: usize,
}

/// See `VolumeStore::tails`.
pub(super) fn tails(
    core: &LocalCore,
    vid: VolumeId,
    names: &[&[u8]],
    tail_bytes: u64,
    options: &ReadOptions,
    sink: &mut FileTailSink<'_>,
) -> Result<(), VolumeError> {
    for (group, names) in names.chunks(FILES).enumerate() {
        let first = group * FILES;
        let mut answered = vec![false; names.len()];
        let flow = read_group(core, vid, names, tail_bytes, options, &mut |file, tail| {
            answered[file] = true;
            sink(first + file, Ok(tail))
        });
        if flow.is_break() {
            break;
        }
        for file in (0..names.len()).filter(|file| !answered[*file]) {
            if sink(first + file, read_alone(core, vid, names[file], tail_bytes, options)).is_break() {
                return core.alive(vid);
            }
        }
    }
    core.alive(vid)
}

fn read_alone(
    core: &LocalCore,
    vid: VolumeId,
    name: &[u8],
    tail_bytes: u64,
    options: &ReadOptions,
) -> Result<(FileInfo, Bytes), VolumeError> {
    let info = read::stat(core, vid, name, options)?;
    let of_this = ReadOptions { if_file: Some(info.fid), ..*options };
    let bytes = read::get(core, vid, name, info.size.saturating_sub(tail_bytes)..info.size, &of_this)?;
    Ok((info, bytes))
}

/// The parts of the tail of one file.
fn parts(file: usize, tail: &FileTail) -> impl Iterator<Item = TailPart> + use<> {
    let (start, size) = (tail.start, tail.head.size);
    (start / PIECE_BYTES..size.div_ceil(PIECE_BYTES)).map(move |piece| {
        let at = piece * PIECE_BYTES;
        let len = piece_len(size, piece as u32);
        let bytes = start.saturating_sub(at)..len;
        let cover = bytes.start / BLOCK_BYTES * BLOCK_BYTES..len;
        TailPart { file, piece: piece as u32, bytes, cover }
    })
}

/// Reads the tails of files in pieces; `take` gets those that are sound.
fn read_group(
    core: &LocalCore,
    vid: VolumeId,
    names: &[&[u8]],
    tail_bytes: u64,
    options: &ReadOptions,
    take: &mut dyn FnMut(usize, (FileInfo, Bytes)) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let spaces = &core.spaces;
    let named: Vec<_> = names.iter().map(|name| keys::named(vid, name)).collect();
    let rows = spaces.files.multi_get(&named);
    let mut tails: Vec<Option<FileTail>> = named
        .iter()
        .zip(rows)
        .map(|(key, row)| {
            let head = FileHead::parse(key, &row.ok()??).ok()?;
            let is_wanted = options.if_file.is_none_or(|wanted| wanted == head.fid);
            let is_short = head.inline.is_some() || body::is_single_block(head.size);
            let start = head.size.saturating_sub(tail_bytes);
            let tail = FileTail { head, start, bytes: Vec::new(), missing: 0 };
            (is_wanted && !is_short && tail_bytes > 0).then_some(tail)
        })
        .collect();
    let mut wanted: Vec<TailPart> = Vec::new();
    for (file, tail) in tails.iter_mut().enumerate() {
        let Some(tail) = tail else { continue };
        let before = wanted.len();
        wanted.extend(parts(file, tail));
        tail.missing = wanted.len() - before;
    }
    let key = |part: &TailPart| {
        let fid = tails[part.file].as_ref().map(|tail| tail.head.fid);
        keys::piece(vid, fid.unwrap_or(FileId(0)), part.piece)
    };
    let piece_keys: Vec<_> = wanted.iter().map(key).collect();
    let sums = spaces.sums.multi_get(&piece_keys);
    let values: Vec<ValuePart> =
        wanted.iter().enumerate().map(|(key, part)| ValuePart { key, bytes: part.cover.clone() }).collect();
    let mut flow = ControlFlow::Continue(());
    let read = spaces.extents.read_parts(&piece_keys, &values, IN_FLIGHT_BYTES, &mut |index, answer| {
        let (part, key) = (&wanted[index], &piece_keys[index]);
        let Some(tail) = &mut tails[part.file] else { return ControlFlow::Continue(()) };
        let sound = answer.ok().flatten().filter(|bytes| {
            let row = sums[index].as_ref().ok().and_then(Option::as_ref);
            let sums = row.and_then(|row| parse_sums(key, row, piece_len(tail.head.size, part.piece)).ok());
            bytes.len() as u64 == part.cover.end - part.cover.start
                && sums.is_some_and(|sums| {
                    body::check_blocks(&tail.head, part.piece, key, &sums, part.cover.start, bytes).is_ok()
                })
        });
        let Some(bytes) = sound else {
            tails[part.file] = None;
            return ControlFlow::Continue(());
        };
        tail.bytes.resize((tail.head.size - tail.start) as usize, 0);
        let at = (u64::from(part.piece) * PIECE_BYTES + part.bytes.start - tail.start) as usize;
        let found = &bytes[(part.bytes.start - part.cover.start) as usize..];
        tail.bytes[at..at + found.len()].copy_from_slice(found);
        tail.missing -= 1;
        if tail.missing == 0 {
            let bytes = Bytes::from(std::mem::take(&mut tail.bytes));
            flow = take(part.file, (tail.head.info(), bytes));
        }
        flow
    });
    if let Err(error) = read {
        tracing::debug!(%error, "tails of files are read one by one");
    }
    flow
}

//! Reading bytes of objects.
//!
//! A range takes one device read per run of pages that covers it. `ReadCheck::Pages` reads whole pages and
//! verifies them; `ReadCheck::Caller` reads logical blocks and leaves verification to the caller.
//! Invariants
//! - Bytes in flight are returned after their write has completed, never before.
//! - Pages that a read uses are not reused while it runs.

use crate::{
    ObjectId, ReadCheck, StoreError,
    engine::pump::wait_change,
    format::{hash128, run::PageRun},
    state::{StoreCore, pieces},
    tables::{ObjectEntry, trailer_pages, unit_pages},
};
use bytes::Bytes;
use copal_device::{AlignedBuf, Completion, DeviceError, Io, IoClass, IoDone, IoKind};
use std::{ops::Range, sync::Arc};

/// One command of a read, and the destination of its bytes.
struct ReadPart {
    /// First byte on the device, and bytes, of the command.
    at: u64,
    len: usize,
    /// Wanted bytes inside the command.
    wanted: Range<usize>,
    /// Offset of the wanted bytes in the answer.
    target: usize,
    /// Sums of the pages of the command, in order; empty if not verified here.
    sums: Vec<u32>,
    /// Byte offset inside the object of the first page, for errors.
    object_at: u64,
}

/// A planned read.
struct ReadPlan {
    id: ObjectId,
    len: usize,
    parts: Vec<ReadPart>,
    ticket: u64,
    page_bytes: usize,
    /// Offset of the answer inside the object.
    start: u64,
    /// The sum trailer, if sums must be fetched first.
    trailer: Option<SumTrailer>,
}

struct SumTrailer {
    runs: Vec<PageRun>,
    hash: u128,
}

/// See `Store::read`.
pub(crate) fn read(
    store: &Arc<StoreCore>,
    id: ObjectId,
    range: &Range<u64>,
    class: IoClass,
) -> Completion<Result<Bytes, StoreError>> {
    start_read(store, id, range, class, true)
}

fn start_read(
    store: &Arc<StoreCore>,
    id: ObjectId,
    range: &Range<u64>,
    class: IoClass,
    alone: bool,
) -> Completion<Result<Bytes, StoreError>> {
    let mut plan = match plan_read(store, id, range) {
        Ok(plan) => plan,
        Err(error) => return Completion::ready(Err(error)),
    };
    if let Some(trailer) = plan.trailer.take()
        && let Err(error) = fetch_sums(store, &mut plan, &trailer)
    {
        store.unpin(plan.ticket);
        return Completion::ready(Err(error));
    }
    if let [part] = plan.parts.as_slice()
        && alone
        && class != IoClass::Background
    {
        let result = store.device.read_now(part.at, AlignedBuf::stale(part.len));
        store.unpin(plan.ticket);
        return Completion::ready(result.map_err(StoreError::Device).and_then(|buf| plan.answer(vec![buf])));
    }
    if plan.parts.is_empty() {
        store.unpin(plan.ticket);
        return Completion::ready(plan.answer(Vec::new()));
    }
    let ios = plan
        .parts
        .iter()
        .map(|part| Io { at: part.at, kind: IoKind::Read(AlignedBuf::stale(part.len)), class })
        .collect();
    let inner = Arc::clone(store);
    store.device.submit(ios).map(move |done: Vec<IoDone>| {
        inner.unpin(plan.ticket);
        let bufs: Result<Vec<AlignedBuf>, DeviceError> = done
            .into_iter()
            .map(|done| done.result.map(|()| done.buf.unwrap_or_else(|| AlignedBuf::zeroed(0))))
            .collect();
        plan.answer(bufs?)
    })
}

/// See `Store::read_many`.
pub(crate) fn read_many(
    store: &Arc<StoreCore>,
    reads: &[(ObjectId, Range<u64>)],
    class: IoClass,
) -> Vec<Completion<Result<Bytes, StoreError>>> {
    reads.iter().map(|(id, range)| start_read(store, *id, range, class, reads.len() == 1)).collect()
}

fn plan_read(store: &Arc<StoreCore>, id: ObjectId, range: &Range<u64>) -> Result<ReadPlan, StoreError> {
    let mut state = store.state.lock();
    loop {
        let Some(object) = state.tables.object(id.0) else {
            let known = state.tables.entries.contains_key(&id.0);
            return Err(if known { StoreError::WrongKind(id) } else { StoreError::NotFound(id) });
        };
        let mut plan = plan(store, id, object, range);
        let busy = plan.parts.iter().any(|part| state.is_unwritten(pages_of_part(store, part)));
        if busy && state.fence.failure().is_none() {
            wait_change(store, &mut state);
            continue;
        }
        let pinned = plan.parts.iter().map(|part| pages_of_part(store, part));
        let sums = plan.trailer.iter().flat_map(|trailer| &trailer.runs);
        let pinned = pinned.chain(sums.copied()).collect();
        plan.ticket = state.space.pin(pinned);
        return Ok(plan);
    }
}

fn pages_of_part(store: &StoreCore, part: &ReadPart) -> PageRun {
    let page = store.shape.page_bytes as u64;
    let first = part.at / page;
    PageRun::new(first, ((part.at + part.len as u64).div_ceil(page) - first) as u32)
}

fn plan(store: &StoreCore, id: ObjectId, object: &ObjectEntry, range: &Range<u64>) -> ReadPlan {
    let page_bytes = store.shape.page_bytes;
    let page = page_bytes as u64;
    let end = range.end.min(object.len);
    let start = range.start.min(end);
    let verify = object.what.check == ReadCheck::Pages;
    let block = if verify { page } else { u64::from(store.shape.geometry.logical_block) };
    let mut parts = Vec::new();
    for extent in object.map.overlapping(start / page, end.div_ceil(page)) {
        let sums = object.map.sums_of(extent.at, unit_pages(object.what.check, page_bytes));
        // The cut is relative to the range, so that the number of commands does not depend on its position in
        // the extent.
        let first = extent.at.max(start / page);
        let last = (extent.at + u64::from(extent.run.pages)).min(end.div_ceil(page));
        let cut = PageRun::new(extent.run.at + (first - extent.at), (last - first) as u32);
        for piece in pieces(cut, store.shape.io_pages()) {
            let object_at = (first + (piece.at - cut.at)) * page;
            let from = start.max(object_at);
            let to = end.min(object_at + u64::from(piece.pages) * page);
            if from >= to {
                continue;
            }
            // Rounded to the verified unit, or to the device's block.
            let within = (from - object_at) / block * block;
            let until = (to - object_at).next_multiple_of(block);
            let first_page = ((object_at + within) / page - extent.at) as usize;
            let pages = ((until - within) / page) as usize;
            let sums = if verify {
                sums.get(first_page..first_page + pages).unwrap_or(&[]).to_vec()
            } else {
                Vec::new()
            };
            let skip = (from - object_at - within) as usize;
            parts.push(ReadPart {
                at: store.shape.byte(piece.at) + within,
                len: (until - within) as usize,
                wanted: skip..skip + (to - from) as usize,
                target: (from - start) as usize,
                sums,
                object_at: object_at + within,
            });
        }
    }
    let trailer = object.trailer.as_deref().filter(|_| verify).map(|&hash| {
        let data = object.data_pages(page_bytes);
        let pages = trailer_pages(data, 1, page_bytes);
        let runs = object.map.overlapping(data, data + pages).map(|extent| {
            let skip = data.saturating_sub(extent.at);
            PageRun::new(extent.run.at + skip, extent.run.pages - skip as u32)
        });
        SumTrailer { runs: runs.collect(), hash }
    });
    ReadPlan { id, len: (end - start) as usize, parts, ticket: 0, page_bytes, start, trailer }
}

/// Reads the sums of a published `ReadCheck::Pages` object.
fn fetch_sums(store: &StoreCore, plan: &mut ReadPlan, trailer: &SumTrailer) -> Result<(), StoreError> {
    let mut bytes = Vec::new();
    for &run in &trailer.runs {
        bytes.extend(store.read_pages(run)?);
    }
    if hash128(&bytes) != trailer.hash {
        let range = plan.start..plan.start + plan.len as u64;
        return Err(StoreError::Corrupt { id: plan.id, range });
    }
    for part in &mut plan.parts {
        let first = (part.object_at / plan.page_bytes as u64) as usize * 4;
        let count = part.len / plan.page_bytes * 4;
        let sums = bytes.get(first..first + count).unwrap_or(&[]);
        part.sums =
            sums.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect();
    }
    Ok(())
}

impl ReadPlan {
    fn answer(self, bufs: Vec<AlignedBuf>) -> Result<Bytes, StoreError> {
        for (part, buf) in self.parts.iter().zip(&bufs) {
            let bad = buf
                .chunks(self.page_bytes)
                .zip(&part.sums)
                .position(|(page, &sum)| copal_codec::crc32c(0, page) != sum);
            if let Some(index) = bad {
                let from = part.object_at + (index * self.page_bytes) as u64;
                return Err(StoreError::Corrupt { id: self.id, range: from..from + self.page_bytes as u64 });
            }
        }
        if let ([part], 1) = (self.parts.as_slice(), bufs.len())
            && part.target == 0
            && part.wanted.len() == self.len
        {
            let wanted = part.wanted.clone();
            let whole: Bytes = bufs.into_iter().map(Bytes::from_owner).next().unwrap_or_default();
            return Ok(whole.slice(wanted));
        }
        let mut out = AlignedBuf::stale(self.len);
        let covered: usize = self.parts.iter().map(|part| part.wanted.len()).sum();
        if covered < self.len {
            out.fill(0);
        }
        for (part, buf) in self.parts.iter().zip(&bufs) {
            out[part.target..part.target + part.wanted.len()].copy_from_slice(&buf[part.wanted.clone()]);
        }
        Ok(Bytes::from_owner(out))
    }
}

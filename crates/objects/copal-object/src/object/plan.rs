//! Plan of a range: which bytes of the device hold it.

use super::{answer::RangeAnswer, command::ReadPart};
use crate::{
    ObjectId, ReadCheck, StoreError,
    format::{hash128, run::PageRun},
    state::{StoreCore, StoreState},
    tables::{ObjectEntry, trailer_pages, unit_pages},
};
use std::{ops::Range, sync::Arc};

/// Keeps pages from being reused until it is dropped.
pub(super) struct ReadPin {
    store: Arc<StoreCore>,
    ticket: u64,
}

impl ReadPin {
    pub(super) fn take(store: &Arc<StoreCore>, state: &mut StoreState, runs: Vec<PageRun>) -> ReadPin {
        ReadPin { store: Arc::clone(store), ticket: state.space.pin(runs) }
    }
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        self.store.unpin(self.ticket);
    }
}

/// The parts of one range, in the order of the object. Valid as long as its pages are pinned.
pub(super) struct RangePlan {
    pub(super) parts: Vec<ReadPart>,
    pub(super) answer: RangeAnswer,
    /// The sum trailer, if sums must be read first.
    pub(super) trailer: Option<SumTrailer>,
}

/// Place and hash of the sums of a published object.
pub(super) struct SumTrailer {
    runs: Vec<PageRun>,
    hash: u128,
}

impl RangePlan {
    /// Plans `range` of an object; its parts belong to range number `number`.
    /// # Errors
    /// `NotFound`, `WrongKind`.
    pub(super) fn new(
        store: &StoreCore,
        state: &StoreState,
        number: u32,
        id: ObjectId,
        range: &Range<u64>,
    ) -> Result<RangePlan, StoreError> {
        let Some(object) = state.tables.object(id.0) else {
            let known = state.tables.entries.contains(id.0);
            return Err(if known { StoreError::WrongKind(id) } else { StoreError::NotFound(id) });
        };
        let end = range.end.min(object.len);
        let start = range.start.min(end);
        let parts = parts(store, number, object, start..end);
        let mut answer = RangeAnswer::new(id, start..end, object.what.sums, &parts);
        let parts = from_memory(state, &mut answer, parts, store.shape.page_bytes);
        let page_bytes = store.shape.page_bytes;
        let published = object.trailer.as_deref().filter(|_| object.what.check == ReadCheck::Pages);
        let trailer = published.filter(|_| !parts.is_empty()).map(|&hash| {
            let data = object.data_pages(page_bytes);
            let pages = trailer_pages(data, 1, page_bytes);
            let runs = object.map.overlapping(data, data + pages).map(|extent| {
                let skip = data.saturating_sub(extent.at);
                PageRun::new(extent.run.at + skip, extent.run.pages - skip as u32)
            });
            SumTrailer { runs: runs.collect(), hash }
        });
        Ok(RangePlan { parts, answer, trailer })
    }

    /// Whether a write of one of its pages has not completed.
    pub(super) fn is_in_flight(&self, store: &StoreCore, state: &StoreState) -> bool {
        self.parts.iter().any(|part| state.is_unwritten(part.pages(store.shape.page_bytes)))
    }

    /// All pages that its reads use.
    pub(super) fn pages(&self, store: &StoreCore) -> impl Iterator<Item = PageRun> {
        let sums = self.trailer.iter().flat_map(|trailer| trailer.runs.iter().copied());
        self.parts.iter().map(|part| part.pages(store.shape.page_bytes)).chain(sums)
    }

    /// Reads the sums of a published `ReadCheck::Pages` object. `last`: the sums that were read last, by
    /// their hash.
    pub(super) fn fetch_sums(
        &mut self,
        store: &StoreCore,
        last: &mut Option<(u128, Vec<u8>)>,
    ) -> Result<(), StoreError> {
        let Some(trailer) = self.trailer.take() else { return Ok(()) };
        if last.as_ref().is_none_or(|(hash, _)| *hash != trailer.hash) {
            let mut bytes = Vec::new();
            for &run in &trailer.runs {
                bytes.extend(store.read_pages(run)?);
            }
            if hash128(&bytes) != trailer.hash {
                return Err(self.answer.corrupt());
            }
            *last = Some((trailer.hash, bytes));
        }
        let bytes = last.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let page_bytes = store.shape.page_bytes;
        for part in &mut self.parts {
            let first = (part.object_at / page_bytes as u64) as usize * 4;
            let sums = bytes.get(first..first + part.len / page_bytes * 4).unwrap_or(&[]);
            part.sums = sums
                .chunks_exact(4)
                .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]))
                .collect();
        }
        Ok(())
    }
}

/// Adds the parts that are not at their places yet; returns the others.
fn from_memory(
    state: &StoreState,
    answer: &mut RangeAnswer,
    parts: Vec<ReadPart>,
    page_bytes: usize,
) -> Vec<ReadPart> {
    let mut left = Vec::with_capacity(parts.len());
    for part in parts {
        let run = part.pages(page_bytes);
        if !state.inline.holds(run) && !state.space.placement().journal().holds(run) {
            left.push(part);
            continue;
        }
        let mut rest = Some(part);
        while let Some(part) = rest.take() {
            let page = part.at / page_bytes as u64;
            let within = (part.at % page_bytes as u64) as usize;
            let first = (page_bytes - within).min(part.len);
            let part = match first < part.len {
                true => {
                    let (part, behind) = part.split(first, page_bytes);
                    rest = Some(behind);
                    part
                }
                false => part,
            };
            match state.waiting_page(page) {
                Some(bytes) => answer.add(&part, &bytes, within, page_bytes),
                None => left.push(part),
            }
        }
    }
    left
}

/// Address of the first byte of a range, to sort by; none if nothing is read for it.
pub(super) fn first_address(
    store: &StoreCore,
    state: &StoreState,
    id: ObjectId,
    range: &Range<u64>,
) -> Option<u64> {
    let page = store.shape.page_bytes as u64;
    let object = state.tables.object(id.0)?;
    let end = range.end.min(object.len);
    if range.start >= end {
        return None;
    }
    let extent = object.map.overlapping(range.start / page, end.div_ceil(page)).next()?;
    let start = range.start.max(extent.at * page);
    Some(store.shape.byte(extent.run.at) + (start - extent.at * page))
}

fn parts(store: &StoreCore, number: u32, object: &ObjectEntry, bytes: Range<u64>) -> Vec<ReadPart> {
    let page_bytes = store.shape.page_bytes;
    let page = page_bytes as u64;
    let (start, end) = (bytes.start, bytes.end);
    let verify = object.what.check == ReadCheck::Pages;
    let block = if verify { page } else { u64::from(store.shape.geometry.logical_block) };
    let mut parts = Vec::new();
    if start == end {
        return parts;
    }
    for extent in object.map.overlapping(start / page, end.div_ceil(page)) {
        let extent_at = extent.at * page;
        let from = start.max(extent_at);
        let to = end.min(extent.end() * page);
        if from >= to {
            continue;
        }
        // Rounded to the verified unit, or to the device's block.
        let within = (from - extent_at) / block * block;
        let until = (to - extent_at).next_multiple_of(block);
        let sums = match verify {
            true => {
                let sums = object.map.sums_of(extent.at, unit_pages(object.what.check, page_bytes));
                sums.get((within / page) as usize..(until / page) as usize).unwrap_or(&[]).to_vec()
            }
            false => Vec::new(),
        };
        let skip = (from - extent_at - within) as usize;
        parts.push(ReadPart {
            range: number,
            at: store.shape.byte(extent.run.at) + within,
            len: (until - within) as usize,
            wanted: skip..skip + (to - from) as usize,
            target: (from - start) as usize,
            sums,
            object_at: extent_at + within,
        });
    }
    parts
}

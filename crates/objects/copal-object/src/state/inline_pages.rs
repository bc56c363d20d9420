//! Inline pages: data of small commits that lies in records of the journal, and not at its place yet.
//!
//! Design: docs/design/object.md#inline-data OBJ-38
//! Invariants
//! - A page is here until it is written at its place, or has no owner any more. Reads take it from here.
//! - A page counts as placed only when a flush has followed its write.
//! - A page that a checkpoint in progress names is written also after it lost its owner, and is not reused before.
//!
//! Not here: the writes (`engine::inline_batch`), the records (`commit`).

use crate::format::run::PageRun;
use bytes::Bytes;
use copal_device::AlignedBuf;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

/// Limits of inline data. By default there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineLimits {
    /// Most bytes of data of a transaction that lie in its record.
    pub(crate) data_bytes: usize,
    /// Bytes from which pages are written to their places. Commits wait while there are twice as many.
    pub(crate) placing_bytes: usize,
}

impl InlineLimits {
    /// For disks that turn: 64 KiB pass the head in a twentieth of a turn.
    pub(crate) const FOR_DISKS: InlineLimits = InlineLimits { data_bytes: 64 << 10, placing_bytes: 8 << 20 };
}

/// Pages of one batch.
const BATCH_PAGES: usize = 1024;
/// Commands of one batch.
const BATCH_RUNS: usize = 128;

/// A page and the commit whose record holds it.
#[derive(Debug)]
struct InlinePage {
    bytes: Bytes,
    lsn: u64,
    /// It has no owner any more; the pin keeps it from being reused.
    pin: Option<u64>,
}

/// Pages on their way to their places.
#[derive(Debug)]
pub(crate) struct PlacingBatch {
    pub(crate) runs: Vec<(PageRun, AlignedBuf)>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct InlinePages {
    waiting: BTreeMap<u64, InlinePage>,
    in_flight: BTreeMap<u64, InlinePage>,
    /// Written while an epoch was open, and not flushed.
    unflushed: VecDeque<(u64, Vec<u64>)>,
    /// Pages that are not placed, by commit.
    unplaced: BTreeMap<u64, u32>,
    /// Commit in the last `InlinePlaced`.
    told: u64,
    /// Page behind the last batch: the next one goes on from there.
    next_page: u64,
    /// Batches follow one another until half of the pages are left.
    drains: bool,
    placing_bytes: usize,
    page_bytes: usize,
}

impl InlinePages {
    pub(crate) fn new(page_bytes: usize, placing_bytes: usize) -> InlinePages {
        InlinePages { page_bytes, placing_bytes, ..InlinePages::default() }
    }

    /// An object gets the pages of `run` with commit `lsn`. Their bytes follow, for those that it keeps.
    pub(crate) fn expect(&mut self, run: PageRun, lsn: u64) {
        for at in run.at..run.end() {
            let page = InlinePage { bytes: Bytes::new(), lsn, pin: None };
            let before = self.waiting.insert(at, page);
            debug_assert!(before.is_none(), "page {at} has an owner");
        }
        *self.unplaced.entry(lsn).or_default() += run.pages;
    }

    /// The bytes of `run`.
    pub(crate) fn fill(&mut self, run: PageRun, bytes: &Bytes) {
        for (at, page) in self.waiting.range_mut(run.at..run.end()) {
            let from = (at - run.at) as usize * self.page_bytes;
            page.bytes = bytes.slice(from..from + self.page_bytes);
        }
    }

    /// The page has no owner any more. `needed`: last commit of a checkpoint in progress; a page that it names is
    /// pinned with `pin`.
    pub(crate) fn forget(&mut self, run: PageRun, needed: Option<u64>, mut pin: impl FnMut(PageRun) -> u64) {
        let pages: Vec<u64> = self.waiting.range(run.at..run.end()).map(|(&at, _)| at).collect();
        for at in pages {
            let Some(page) = self.waiting.get_mut(&at) else { continue };
            if needed.is_some_and(|needed| page.lsn <= needed) {
                page.pin = page.pin.or_else(|| Some(pin(PageRun::new(at, 1))));
            } else if let Some(page) = self.waiting.remove(&at) {
                self.place(page.lsn);
            }
        }
    }

    /// A page of commit `lsn` is placed.
    fn place(&mut self, lsn: u64) {
        if let Some(pages) = self.unplaced.get_mut(&lsn) {
            *pages -= 1;
            if *pages == 0 {
                self.unplaced.remove(&lsn);
            }
        }
    }

    /// The bytes of a page that is not at its place.
    pub(crate) fn page(&self, at: u64) -> Option<&Bytes> {
        self.waiting.get(&at).or_else(|| self.in_flight.get(&at)).map(|page| &page.bytes)
    }

    /// Whether a page of `run` is not at its place.
    pub(crate) fn holds(&self, run: PageRun) -> bool {
        let of = |pages: &BTreeMap<u64, InlinePage>| pages.range(run.at..run.end()).next().is_some();
        of(&self.waiting) || of(&self.in_flight)
    }

    /// Whether commits must wait until pages are placed.
    pub(crate) fn is_crowded(&self) -> bool {
        (self.waiting.len() + self.in_flight.len()) * self.page_bytes
            > 2 * self.placing_bytes.max(self.page_bytes)
    }

    /// All pages of commits up to here are placed and durable.
    pub(crate) fn placed_lsn(&self) -> u64 {
        self.unplaced.first_key_value().map_or(u64::MAX, |(&lsn, _)| lsn - 1)
    }

    /// Like [`InlinePages::placed_lsn`], if no record says so yet.
    pub(crate) fn placed_news(&mut self) -> Option<u64> {
        let (&first, _) = self.unplaced.first_key_value()?;
        let is_news = first - 1 > self.told;
        self.told = first - 1;
        is_news.then_some(self.told)
    }

    /// The epoch whose flush makes written pages durable.
    pub(crate) fn unflushed_epoch(&self) -> Option<u64> {
        self.unflushed.back().map(|&(epoch, _)| epoch)
    }

    /// Takes the next batch, in the order of addresses: if many pages wait, or if one of a commit up to `needed`
    /// does.
    pub(crate) fn take(&mut self, needed: Option<u64>, run_pages: u32) -> Option<PlacingBatch> {
        if !self.in_flight.is_empty() || self.waiting.is_empty() {
            return None;
        }
        let bytes = self.waiting.len() * self.page_bytes;
        self.drains = bytes > self.placing_bytes || self.drains && bytes > self.placing_bytes / 2;
        let is_needed = needed
            .is_some_and(|needed| self.unplaced.first_key_value().is_some_and(|(&lsn, _)| lsn <= needed));
        if !self.drains && !is_needed {
            return None;
        }
        let mut runs: Vec<PageRun> = Vec::new();
        let ahead = (Bound::Included(self.next_page), Bound::Unbounded);
        let from = if self.waiting.range(ahead).next().is_some() { self.next_page } else { 0 };
        for &at in self.waiting.range(from..).map(|(at, _)| at).take(BATCH_PAGES) {
            let is_last = runs.len() == BATCH_RUNS;
            match runs.last_mut() {
                Some(last) if last.end() == at && last.pages < run_pages => last.pages += 1,
                _ if is_last => break,
                _ => runs.push(PageRun::new(at, 1)),
            }
        }
        self.next_page = runs.last().map_or(0, |run| run.end());
        Some(PlacingBatch { runs: runs.into_iter().map(|run| (run, self.start(run))).collect() })
    }

    /// Moves the pages of `run` to those in flight; returns their bytes.
    fn start(&mut self, run: PageRun) -> AlignedBuf {
        let mut buf = AlignedBuf::stale(run.pages as usize * self.page_bytes);
        for (at, out) in (run.at..run.end()).zip(buf.chunks_mut(self.page_bytes)) {
            if let Some(page) = self.waiting.remove(&at) {
                out.copy_from_slice(&page.bytes);
                self.in_flight.insert(at, page);
            }
        }
        buf
    }

    /// The batch is written while epoch `open` is open. Returns the pins that end.
    pub(crate) fn written(&mut self, open: u64) -> Vec<u64> {
        let pages = std::mem::take(&mut self.in_flight);
        let lsns = pages.values().map(|page| page.lsn).collect();
        self.unflushed.push_back((open, lsns));
        pages.into_values().filter_map(|page| page.pin).collect()
    }

    /// All epochs up to `epoch` are durable.
    pub(crate) fn flushed(&mut self, epoch: u64) {
        while let Some((_, lsns)) = self.unflushed.pop_front_if(|(written, _)| *written <= epoch) {
            lsns.into_iter().for_each(|lsn| self.place(lsn));
        }
    }
}

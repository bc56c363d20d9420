//! Discards: free space is given back to the device, a command at a time.
//!
//! The store is divided into chunks. A chunk with pages that came free is looked at once: if all of it is free, its
//! pages are taken, and free again when the discard has ended. Neighbours share a command.
//!
//! Design: docs/design/object.md#space OBJ-19
//! Invariants
//! - Pages under a discard are taken: nobody else gets them before it has ended (OBJ-19). They count as quarantine,
//!   and no checkpoint names them, so a crash gives them back.
//! - A store that is nearly full discards nothing.
//! - While the device has other commands, discards take a twentieth of its time.
//! - A failed discard is the last one of its opening, and nobody but its count learns of it.
//!
//! Not here: discards of files (`hostfs`), and of all free space at once (`shrink`).

use crate::{DiscardMode, format::run::PageRun, space::placement::Placement};
use copal_device::Geometry;
use std::time::Duration;

/// Least bytes of a discard.
const DISCARD_BYTES_LEAST: u64 = 1 << 20;
/// Bytes from which neighbours are left to the next discard: commands of others wait for so many at most.
const DISCARD_BYTES_MOST: u64 = 32 << 20;
/// Discards take one part in so many of the time of a busy device.
const TIME_ONE_IN: u32 = 20;

/// Time, and the number of commands that the device has got so far besides discards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceLoad {
    pub(crate) now: Duration,
    pub(crate) commands: u64,
}

/// A discard on the device.
#[derive(Debug)]
struct PendingDiscard {
    run: PageRun,
    begun: DeviceLoad,
}

/// Chunks to look at, and the discard in flight.
#[derive(Debug, Default)]
pub(crate) struct SpaceDiscards {
    /// Pages of a chunk; 0: nothing is discarded.
    chunk_pages: u64,
    /// Most pages of a command.
    most_pages: u64,
    paced: bool,
    /// Chunks with pages that came free since the chunk was looked at last, a bit each, and their number.
    freed: Vec<u64>,
    freed_chunks: u64,
    /// Word of `freed` to look at next.
    next: usize,
    pending: Option<PendingDiscard>,
    /// No discard begins before.
    resume_at: Duration,
    failed: u64,
}

impl SpaceDiscards {
    /// Discards of a store on a device, as `mode` says. Chunks are multiples of `granule` pages. A file's blocks would
    /// go to its file system, and a later write may find no block there: `shrink` does that, and lists them first
    /// (OBJ-18).
    pub(crate) fn new(
        mode: DiscardMode,
        geometry: &Geometry,
        rotational: bool,
        page_bytes: usize,
        granule: u64,
    ) -> SpaceDiscards {
        let wanted = match mode {
            DiscardMode::Auto => !rotational,
            DiscardMode::On => true,
            DiscardMode::Off => false,
        };
        if !wanted || geometry.discard_unit == 0 || geometry.gives_back {
            return SpaceDiscards::default();
        }
        let bytes = DISCARD_BYTES_LEAST.max(geometry.discard_unit.into()).next_power_of_two();
        let chunk_pages = (bytes / page_bytes as u64).max(granule);
        let most_pages = (DISCARD_BYTES_MOST / page_bytes as u64).max(chunk_pages);
        SpaceDiscards { chunk_pages, most_pages, paced: true, ..SpaceDiscards::default() }
    }

    /// Discards of chunks of `pages` pages at any time.
    pub(crate) fn unpaced(pages: u64) -> SpaceDiscards {
        SpaceDiscards { chunk_pages: pages, most_pages: 2 * pages, ..SpaceDiscards::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.chunk_pages > 0
    }

    /// Discards that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// The pages under a discard.
    pub(crate) fn pending(&self) -> Option<PageRun> {
        self.pending.as_ref().map(|pending| pending.run)
    }

    pub(crate) fn pending_pages(&self) -> u64 {
        self.pending().map_or(0, |run| run.pages.into())
    }

    /// Whether a discard may begin, but for the load of the device.
    pub(crate) fn is_due(&self) -> bool {
        self.freed_chunks > 0 && self.pending.is_none()
    }

    /// Pages of `run` came free.
    pub(crate) fn note_free(&mut self, run: PageRun) {
        if !self.is_on() {
            return;
        }
        for chunk in run.at / self.chunk_pages..run.end().div_ceil(self.chunk_pages) {
            let (word, bit) = ((chunk / 64) as usize, 1 << (chunk % 64));
            if word >= self.freed.len() {
                self.freed.resize(word + 1, 0);
            }
            self.freed_chunks += u64::from(self.freed[word] & bit == 0);
            self.freed[word] |= bit;
        }
    }

    /// Takes the pages of the next discard from `placement`: at most `room` of them.
    pub(crate) fn begin(
        &mut self,
        load: DeviceLoad,
        room: u64,
        placement: &mut dyn Placement,
    ) -> Option<PageRun> {
        if !self.is_due() || load.now < self.resume_at || room < self.chunk_pages {
            return None;
        }
        let most = self.most_pages.min(room);
        let mut run: Option<PageRun> = None;
        while let Some(chunk) = self.next_chunk(run.map(|run| run.end() / self.chunk_pages)) {
            let pages = PageRun::new(chunk * self.chunk_pages, self.chunk_pages as u32);
            let is_free = pages.end() <= placement.pages_end() && placement.take_free(pages);
            match &mut run {
                Some(run) if is_free => run.pages += pages.pages,
                Some(_) => break,
                None => run = is_free.then_some(pages),
            }
            if run.is_some_and(|run| u64::from(run.pages) + self.chunk_pages > most) {
                break;
            }
        }
        self.pending = run.map(|run| PendingDiscard { run, begun: load });
        run
    }

    /// The next chunk that was freed in part, or `wanted` if it was; it is listed no more.
    fn next_chunk(&mut self, wanted: Option<u64>) -> Option<u64> {
        let chunk = match wanted {
            Some(chunk) => {
                let bits = self.freed.get((chunk / 64) as usize)?;
                (bits >> (chunk % 64) & 1 == 1).then_some(chunk)?
            }
            None => {
                let words = self.freed.len();
                let found =
                    (0..words).map(|ahead| (self.next + ahead) % words).find(|&word| self.freed[word] != 0);
                self.next = found?;
                self.next as u64 * 64 + u64::from(self.freed[self.next].trailing_zeros())
            }
        };
        self.freed[(chunk / 64) as usize] &= !(1 << (chunk % 64));
        self.freed_chunks -= 1;
        Some(chunk)
    }

    /// The discard of `run` has ended; `done`: with success. `false`: it was none of these.
    pub(crate) fn end(&mut self, run: PageRun, done: bool, load: DeviceLoad) -> bool {
        let Some(PendingDiscard { begun, .. }) = self.pending.take_if(|pending| pending.run == run) else {
            return false;
        };
        let took = load.now.saturating_sub(begun.now);
        // An idle device takes the next one at once. Otherwise a later event or clean mark goes on.
        let is_busy = load.commands != begun.commands;
        self.resume_at = if self.paced && is_busy { load.now + took * (TIME_ONE_IN - 1) } else { load.now };
        if !done {
            *self = SpaceDiscards { failed: self.failed + 1, ..SpaceDiscards::default() };
        }
        true
    }
}

#[cfg(test)]
mod tests;

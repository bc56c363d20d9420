//! Index of free runs: per chunk of bitmap its longest free run, and a tree that joins them.
//!
//! A search descends to the first chunk with a run of the wanted length and reads the bits of that chunk only.
//! Its cost does not depend on the number of free runs or on their lengths.
//! Design: docs/design/object.md#space
//! Invariants
//! - Free pages at the beginning and at the end of a chunk are exact.
//! - The longest run of a chunk is exact, or too long and the chunk is *stale*: a part of its longest run was
//!   taken. A bounded number of chunks is stale.
//!
//! Not here: the bits (`allocator`).

use std::collections::VecDeque;

pub(super) const WORD_PAGES: u64 = 64;
/// Words of a chunk: 4 KiB of bitmap.
const CHUNK_WORDS: u64 = 512;
const CHUNK_PAGES: u64 = CHUNK_WORDS * WORD_PAGES;
/// Most stale chunks. A search may read each of them in vain.
const STALE_MAX: usize = 32;

/// The pages of a bitmap that a search may use.
#[derive(Clone, Copy)]
pub(super) struct UsablePages<'a> {
    /// Bit set: taken.
    pub(super) taken: &'a [u64],
    /// Only zones that are written count, each of so many words.
    pub(super) written: Option<(&'a [bool], usize)>,
}

#[cfg(test)]
thread_local! {
    /// Words and nodes read on this thread, for the test that a search does not read the whole bitmap.
    pub(super) static VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl UsablePages<'_> {
    /// Bits of the usable pages of a word.
    fn word(&self, word: u64) -> u64 {
        #[cfg(test)]
        VISITED.set(VISITED.get() + 1);
        let word = word as usize;
        let Some(taken) = self.taken.get(word) else {
            return 0;
        };
        match self.written {
            Some((zones, zone_words)) if !zones[word / zone_words] => 0,
            _ => !taken,
        }
    }

    /// First page from `at` on that is not usable; at most `end`.
    pub(super) fn run_end(&self, at: u64, end: u64) -> u64 {
        let mut page = at;
        while page < end {
            let here = (self.word(page / WORD_PAGES) >> (page % WORD_PAGES)).trailing_ones();
            page += u64::from(here);
            if u64::from(here) == 0 || !page.is_multiple_of(WORD_PAGES) {
                break;
            }
        }
        page.min(end)
    }

    /// First page of the usable pages that end before `at`; at least `start`.
    fn run_start(&self, at: u64, start: u64) -> u64 {
        let mut page = at;
        while page > start {
            let within = (page - 1) % WORD_PAGES + 1;
            let word = self.word((page - 1) / WORD_PAGES) << (WORD_PAGES - within);
            let here = u64::from(word.leading_ones()).min(within);
            page -= here;
            if here < within {
                break;
            }
        }
        page.max(start)
    }

    /// First usable run of at least `shortest` pages in the pages `from..end`, which begin and end with a chunk
    /// but for `from`. Otherwise, the number of usable pages before `end`.
    fn first_run(&self, from: u64, end: u64, shortest: u64) -> Result<u64, u64> {
        let mut open = 0;
        for word in from / WORD_PAGES..end / WORD_PAGES {
            let first = word * WORD_PAGES;
            let mut bits = self.word(word);
            if from > first {
                bits &= u64::MAX << (from - first);
            }
            if open + u64::from(bits.trailing_ones()) >= shortest {
                return Ok(first - open);
            }
            let starts = starts_of_runs(bits, shortest);
            if starts != 0 {
                return Ok(first + u64::from(starts.trailing_zeros()));
            }
            open = if bits == u64::MAX { open + WORD_PAGES } else { bits.leading_ones().into() };
        }
        Err(open)
    }

    /// The exact runs of a chunk.
    fn summary(&self, chunk: u64) -> RunSummary {
        let (mut open, mut longest) = (0u64, 0u64);
        let mut before = None;
        for word in chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS {
            let bits = self.word(word);
            if bits == u64::MAX {
                open += WORD_PAGES;
                continue;
            }
            let ending = open + u64::from(bits.trailing_ones());
            before.get_or_insert(ending);
            longest = longest.max(ending);
            while longest < WORD_PAGES && starts_of_runs(bits, longest + 1) != 0 {
                longest += 1;
            }
            open = bits.leading_ones().into();
        }
        RunSummary {
            before: before.unwrap_or(open) as u32,
            after: open as u32,
            longest: longest.max(open) as u32,
        }
    }
}

/// Bits where a run of `length` set bits begins that lies in the word.
fn starts_of_runs(bits: u64, length: u64) -> u64 {
    if length > WORD_PAGES {
        return 0;
    }
    let mut starts = bits;
    let mut covered = 1;
    while covered < length && starts != 0 {
        let step = covered.min(length - covered);
        starts &= starts >> step;
        covered += step;
    }
    starts
}

/// Free pages at the beginning and at the end of a range, and its longest run. Counts saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunSummary {
    before: u32,
    after: u32,
    longest: u32,
}

impl RunSummary {
    /// The summary of two neighbours of `pages` pages each.
    fn join(self, next: RunSummary, pages: u32) -> RunSummary {
        let across = self.after.saturating_add(next.before);
        RunSummary {
            before: if self.before == pages { pages.saturating_add(next.before) } else { self.before },
            after: if next.after == pages { pages.saturating_add(self.after) } else { next.after },
            longest: self.longest.max(next.longest).max(across),
        }
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct RunIndex {
    /// A complete binary tree: node 1 is the root, the children of n are 2n and 2n + 1.
    nodes: Vec<RunSummary>,
    /// Number of leaves, a power of two; a leaf is a chunk.
    leaves: usize,
    stale: Vec<bool>,
    /// Stale chunks, the oldest first; some may be exact again.
    stale_order: VecDeque<u32>,
}

/// Progress of a search: free pages that end where the next node begins.
struct RunSearch {
    open: u64,
    shortest: u64,
    /// Chunks before this one are passed.
    first: usize,
}

impl RunIndex {
    /// Gives the index as many chunks as `pages` need; new ones have no free page.
    pub(super) fn resize(&mut self, pages: u64) {
        let chunks = pages.div_ceil(CHUNK_PAGES) as usize;
        let leaves = chunks.next_power_of_two();
        if leaves == self.leaves {
            return;
        }
        let mut nodes = vec![RunSummary::default(); 2 * leaves];
        let kept = self.leaves.min(leaves);
        nodes[leaves..leaves + kept].copy_from_slice(&self.nodes[self.leaves..self.leaves + kept]);
        self.nodes = nodes;
        self.leaves = leaves;
        self.stale.resize(leaves, false);
        self.stale_order.retain(|&chunk| (chunk as usize) < leaves);
        let (mut level, mut pages) = (leaves / 2, CHUNK_PAGES as u32);
        while level > 0 {
            for node in level..2 * level {
                self.nodes[node] = self.nodes[2 * node].join(self.nodes[2 * node + 1], pages);
            }
            level /= 2;
            pages = pages.saturating_mul(2);
        }
    }

    /// Reads the chunks of the pages `from..to` again, after any change of their bits.
    pub(super) fn update(&mut self, usable: UsablePages<'_>, from: u64, to: u64) {
        if from < to {
            let last = (to - 1) / CHUNK_PAGES;
            (from / CHUNK_PAGES..=last).for_each(|chunk| self.read(usable, chunk as usize));
        }
    }

    /// The pages `from..to` are no longer usable.
    pub(super) fn taken(&mut self, usable: UsablePages<'_>, from: u64, to: u64) {
        for (chunk, start, end) in chunks(from, to) {
            let (from, to) = (from.max(start), to.min(end));
            let leaf = self.nodes[self.leaves + chunk];
            if leaf.longest > 0 && !self.stale[chunk] {
                let run = usable.run_end(to, end) - usable.run_start(from, start);
                if run >= leaf.longest.into() {
                    self.make_stale(usable, chunk);
                }
            }
            let (before, after) = ((from - start) as u32, (end - to) as u32);
            let leaf = self.nodes[self.leaves + chunk];
            self.set(
                chunk,
                RunSummary { before: leaf.before.min(before), after: leaf.after.min(after), ..leaf },
            );
        }
    }

    /// The pages `from..to` are usable now.
    pub(super) fn freed(&mut self, usable: UsablePages<'_>, from: u64, to: u64) {
        for (chunk, start, end) in chunks(from, to) {
            let at = usable.run_start(from.max(start), start);
            let upto = usable.run_end(to.min(end), end);
            let run = (upto - at) as u32;
            let leaf = self.nodes[self.leaves + chunk];
            self.set(
                chunk,
                RunSummary {
                    before: if at == start { run } else { leaf.before },
                    after: if upto == end { run } else { leaf.after },
                    longest: leaf.longest.max(run),
                },
            );
        }
    }

    /// First page, not before `from`, of the first `shortest` or more usable pages in a row.
    pub(super) fn find(&mut self, usable: UsablePages<'_>, from: u64, shortest: u64) -> Option<u64> {
        let chunk = (from / CHUNK_PAGES) as usize;
        if chunk >= self.leaves {
            return None;
        }
        let mut search = RunSearch { open: 0, shortest, first: chunk };
        if !from.is_multiple_of(CHUNK_PAGES) {
            let end = (chunk as u64 + 1) * CHUNK_PAGES;
            let leaf = self.nodes[self.leaves + chunk];
            search.first += 1;
            search.open = if u64::from(leaf.longest) < shortest {
                (end - from).min(leaf.after.into())
            } else {
                match usable.first_run(from, end, shortest) {
                    Ok(at) => return Some(at),
                    Err(open) => open,
                }
            };
        }
        self.descend(usable, &mut search, 1, 0, self.leaves)
    }

    /// Searches the chunks of `node`, which begin with chunk `first`.
    fn descend(
        &mut self,
        usable: UsablePages<'_>,
        search: &mut RunSearch,
        node: usize,
        first: usize,
        chunks: usize,
    ) -> Option<u64> {
        #[cfg(test)]
        VISITED.set(VISITED.get() + 1);
        if first + chunks <= search.first {
            return None;
        }
        let start = first as u64 * CHUNK_PAGES;
        if first >= search.first {
            let summary = self.nodes[node];
            if search.open + u64::from(summary.before) >= search.shortest {
                return Some(start - search.open);
            }
            if u64::from(summary.longest) < search.shortest {
                let pages = chunks as u64 * CHUNK_PAGES;
                let is_free = u64::from(summary.before) == pages;
                search.open = if is_free { search.open + pages } else { summary.after.into() };
                return None;
            }
            if chunks == 1 {
                return match usable.first_run(start, start + CHUNK_PAGES, search.shortest) {
                    Ok(at) => Some(at),
                    Err(open) => {
                        search.open = open;
                        self.read(usable, first);
                        None
                    }
                };
            }
        }
        let half = chunks / 2;
        self.descend(usable, search, 2 * node, first, half)
            .or_else(|| self.descend(usable, search, 2 * node + 1, first + half, half))
    }

    /// Makes the longest run of a chunk exact.
    fn read(&mut self, usable: UsablePages<'_>, chunk: usize) {
        self.stale[chunk] = false;
        self.set(chunk, usable.summary(chunk as u64));
    }

    fn make_stale(&mut self, usable: UsablePages<'_>, chunk: usize) {
        self.stale[chunk] = true;
        self.stale_order.push_back(chunk as u32);
        if self.stale_order.len() > STALE_MAX
            && let Some(oldest) = self.stale_order.pop_front()
            && self.stale[oldest as usize]
        {
            self.read(usable, oldest as usize);
        }
    }

    fn set(&mut self, chunk: usize, summary: RunSummary) {
        let mut node = self.leaves + chunk;
        let mut summary = summary;
        let mut pages = CHUNK_PAGES as u32;
        while self.nodes[node] != summary {
            self.nodes[node] = summary;
            node /= 2;
            if node == 0 {
                break;
            }
            summary = self.nodes[2 * node].join(self.nodes[2 * node + 1], pages);
            pages = pages.saturating_mul(2);
        }
    }
}

/// Chunks that the pages `from..to` touch: number, first page and end of each.
fn chunks(from: u64, to: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let numbers = from / CHUNK_PAGES..to.div_ceil(CHUNK_PAGES);
    numbers.map(|chunk| (chunk as usize, chunk * CHUNK_PAGES, (chunk + 1) * CHUNK_PAGES))
}

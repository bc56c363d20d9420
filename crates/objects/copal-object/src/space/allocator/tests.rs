//! The allocator compared with a plain vector of booleans.

use super::*;
use crate::{
    backend::cow::CowPlacement,
    space::{journal_place::JournalRing, placement::Placement, run_index::VISITED},
};

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = copal_testkit::Random::new(seed);
    move |below| random.below(below)
}

#[test]
fn pages_are_never_given_out_twice_and_all_can_be_had() {
    let mut next = random(3);
    let mut allocator = PageAllocator::new(1000);
    let mut taken = vec![false; 1000];
    let mut owned: Vec<PageRun> = Vec::new();
    for step in 0..4000u64 {
        let free = taken.iter().filter(|&&page| !page).count() as u64;
        assert_eq!(allocator.free_pages(), free);
        let pages = 1 + next(60);
        match next(3) {
            0 | 1 => match allocator.allocate(pages, next(CLASSES as u64) as usize) {
                Some(runs) => {
                    assert_eq!(crate::format::run::pages_of(&runs), pages);
                    for run in runs {
                        for page in run.at..run.end() {
                            assert!(!std::mem::replace(&mut taken[page as usize], true), "page {page}");
                        }
                        owned.push(run);
                    }
                }
                None => assert!(pages > free, "step {step}: {pages} of {free}"),
            },
            _ if !owned.is_empty() => {
                let run = owned.swap_remove(next(owned.len() as u64) as usize);
                allocator.release(run);
                (run.at..run.end()).for_each(|page| taken[page as usize] = false);
            }
            _ => {}
        }
    }
}

#[test]
fn one_run_is_found_wherever_it_is() {
    for at in [0u64, 1, 63, 64, 65, 500, 900] {
        let mut allocator = PageAllocator::new(1000);
        assert!(allocator.take(PageRun::new(0, 1000)));
        allocator.release(PageRun::new(at, 100));
        for class in 0..CLASSES {
            let run = allocator.allocate_run(100, class, false).unwrap();
            assert_eq!(run, PageRun::new(at, 100));
            assert!(allocator.allocate_run(1, class, false).is_none());
            allocator.release(run);
        }
    }
}

#[test]
fn written_space_is_kept_apart() {
    let mut allocator = PageAllocator::new(4 * ZONE_PAGES);
    assert!(allocator.allocate_run(8, 0, true).is_none());
    allocator.note_written(PageRun::new(ZONE_PAGES - 1, ZONE_PAGES as u32 + 5));
    assert_eq!(allocator.written_zones(), [(1, 1)]);
    let run = allocator.allocate_run(ZONE_PAGES as u32, 0, true).unwrap();
    assert_eq!(run, PageRun::new(ZONE_PAGES, ZONE_PAGES as u32));
    assert!(allocator.allocate_run(1, 0, true).is_none());
}

#[test]
fn growth_adds_free_pages_at_the_end() {
    let mut allocator = PageAllocator::new(100);
    assert!(allocator.allocate(100, 0).is_some());
    assert!(allocator.allocate(1, 0).is_none());
    allocator.grow(1000);
    assert_eq!(allocator.free_pages(), 900);
    assert_eq!(allocator.allocate_run(900, 1, false), Some(PageRun::new(100, 900)));
}

#[test]
#[should_panic(expected = "freed twice")]
fn freeing_twice_is_our_own_bug() {
    let mut allocator = PageAllocator::new(100);
    allocator.release(PageRun::new(5, 1));
}

#[test]
fn free_runs_are_the_pages_that_are_not_taken() {
    let mut next = random(9);
    for pages in [1, 63, 64, 65, 1000, 200_000] {
        let mut allocator = PageAllocator::new(pages);
        for _ in 0..next(40) {
            let run = PageRun::new(next(pages), 1 + next(90) as u32);
            allocator.take(run);
        }
        let runs = allocator.free_ranges();
        let free: u64 = runs.iter().map(|range| range.end - range.start).sum();
        assert_eq!(free, allocator.free_pages());
        let is_free = |at| allocator.is_free(PageRun::new(at, 1));
        assert!(runs.iter().all(|range| range.clone().all(is_free)));
        assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
    }
}

/// A random walk over cuts, growth, hollow runs and allocations, compared with a vector of page states.
#[test]
fn hollow_pages_are_not_allocated_and_cut_pages_are_removed() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Is {
        Free,
        Owned,
        Hollow,
    }
    let mut next = random(11);
    let mut allocator = PageAllocator::new(1000);
    let mut model = vec![Is::Free; 1000];
    for step in 0..6000u64 {
        let pages = model.len() as u64;
        match next(7) {
            0 | 1 => {
                let wanted = 1 + next(40);
                for run in allocator.allocate(wanted, next(CLASSES as u64) as usize).unwrap_or_default() {
                    for page in &mut model[run.at as usize..run.end() as usize] {
                        assert_eq!(std::mem::replace(page, Is::Owned), Is::Free, "step {step}");
                    }
                }
            }
            2 => {
                let at = next(pages);
                let end = (at..pages.min(at + 60))
                    .find(|&page| model[page as usize] != Is::Owned)
                    .unwrap_or(pages.min(at + 60));
                if end > at {
                    allocator.release(PageRun::new(at, (end - at) as u32));
                    model[at as usize..end as usize].fill(Is::Free);
                }
            }
            3 => {
                let (at, len) = (next(pages), next(90));
                allocator.note_written(PageRun::new(at, len as u32));
                allocator.make_hollow(at..at + len);
                let hollow = model.iter_mut().skip(at as usize).take(len as usize);
                hollow.filter(|page| **page == Is::Free).for_each(|page| *page = Is::Hollow);
            }
            4 => {
                let first = allocator.hollow().iter().next();
                if let Some(range) = first {
                    let end = range.start + 1 + next(range.end - range.start);
                    allocator.fill(range.start..end);
                    model[range.start as usize..end as usize].fill(Is::Free);
                }
            }
            5 => {
                let used = model.iter().rposition(|&page| page == Is::Owned);
                let least = used.map_or(1, |page| page as u64 + 1);
                let to = least + next(pages + 1 - least);
                allocator.cut(to);
                model.truncate(to as usize);
            }
            _ => {
                let to = pages + next(100);
                allocator.grow(to);
                model.resize(to as usize, Is::Free);
            }
        }
        let count = |is| model.iter().filter(|&&page| page == is).count() as u64;
        assert_eq!(allocator.pages(), model.len() as u64);
        assert_eq!(
            (allocator.free_pages(), allocator.hollow().pages()),
            (count(Is::Free), count(Is::Hollow))
        );
        assert_eq!(allocator.zone_runs(), allocator.written_zones().len() as u64, "step {step}");
        for range in allocator.hollow().iter() {
            assert!(model[range.start as usize..range.end as usize].iter().all(|&page| page == Is::Hollow));
        }
    }
}

/// A twin of the allocator without an index: it looks at every page.
struct PageVector {
    taken: Vec<bool>,
    written: Vec<bool>,
    cursors: [usize; CLASSES],
}

impl PageVector {
    fn of(allocator: &PageAllocator) -> PageVector {
        let pages = 0..allocator.pages;
        PageVector {
            taken: pages.clone().map(|page| !allocator.is_free(PageRun::new(page, 1))).collect(),
            written: pages.map(|page| allocator.written[(page / ZONE_PAGES) as usize]).collect(),
            cursors: allocator.cursors,
        }
    }

    /// The run that next fit finds, by its definition.
    fn next_fit(&mut self, pages: usize, class: usize, written: bool) -> Option<PageRun> {
        let words = self.taken.len().div_ceil(WORD_PAGES as usize);
        let start = self.cursors[class].min(words - 1) * WORD_PAGES as usize;
        let at = [start, 0].into_iter().find_map(|from| {
            let mut open = 0;
            (from..self.taken.len()).find(|&page| {
                open = if self.taken[page] || (written && !self.written[page]) { 0 } else { open + 1 };
                open == pages
            })
        })?;
        let run = PageRun::new((at + 1 - pages) as u64, pages as u32);
        self.taken[run.at as usize..run.end() as usize].fill(true);
        self.cursors[class] = (run.end() / WORD_PAGES) as usize;
        Some(run)
    }
}

/// Every allocation is the one of the twin, with runs that cross chunks, in written and in any space.
#[test]
fn the_index_finds_the_run_that_a_look_at_every_page_finds() {
    for seed in 0..6 {
        let mut next = random(seed);
        let pages = [700, 32_768, 70_000, 131_072, 140_001, 98_000][seed as usize];
        let mut allocator = PageAllocator::new(pages);
        let mut owned: Vec<PageRun> = Vec::new();
        for zone in 0..pages / ZONE_PAGES {
            if next(3) > 0 {
                allocator.note_written(PageRun::new(zone * ZONE_PAGES, ZONE_PAGES as u32));
            }
        }
        let mut twin = PageVector::of(&allocator);
        for step in 0..3000u64 {
            let most = [4, 90, 700, 40_000][next(4) as usize];
            let (length, class) = (1 + next(most), next(CLASSES as u64) as usize);
            if next(5) < 3 || owned.is_empty() {
                let written = next(3) == 0;
                let found = allocator.allocate_run(length as u32, class, written);
                let expected = twin.next_fit(length as usize, class, written);
                assert_eq!(found, expected, "seed {seed}, step {step}: {length} pages");
                owned.extend(found);
            } else {
                // All of a run, or the middle of it.
                let run = owned.swap_remove(next(owned.len() as u64) as usize);
                let kept = if next(2) == 0 { 0 } else { run.pages / 3 };
                let freed = PageRun::new(run.at + u64::from(kept), run.pages - 2 * kept);
                allocator.release(freed);
                twin.taken[freed.at as usize..freed.end() as usize].fill(false);
            }
            if step % 500 == 499 {
                let first = next(pages);
                allocator.forget_written(first);
                let at = next(pages);
                let length = next(pages - at + 1) as u32;
                allocator.note_written(PageRun::new(at, length));
                twin.written = PageVector::of(&allocator).written;
            }
        }
        let free = twin.taken.iter().filter(|taken| !**taken).count() as u64;
        assert_eq!(allocator.free_pages(), free);
    }
}

/// An allocator of 1 TiB, whose pages are taken by `bits`.
fn tebibyte(bits: impl Fn(usize) -> u64) -> PageAllocator {
    let pages = 1u64 << 28;
    let mut allocator = PageAllocator::new(pages);
    allocator.bits.iter_mut().enumerate().for_each(|(word, taken)| *taken = bits(word));
    allocator.free = allocator.bits.iter().map(|taken| u64::from(taken.count_zeros())).sum();
    allocator.written.fill(true);
    allocator.free_runs.update(UsablePages { taken: &allocator.bits, written: None }, 0, pages);
    allocator.update_written_runs(0, pages);
    allocator
}

/// Symptom: with every second page free, 16 pages of 1 TiB took 2.3 s of processor time.
/// Cause: a search read all bits of the bitmap, once for each shorter length that it tried.
/// Fix: an index of the longest runs leads each search to the chunk with its run.
#[test]
fn a_search_reads_few_words_in_any_fragmentation() {
    type TakenBits = fn(usize) -> u64;
    let patterns: [(&str, TakenBits); 6] = [
        ("every second page", |_| 0xaaaa_aaaa_aaaa_aaaa),
        ("runs of 15", |_| 0x8000_8000_8000_8000),
        ("runs of 15 and of 30", |word| [0x8000_8000_8000_8000, 0xc000_0000_8000_8000][word % 2]),
        ("two pages at the end of a chunk", |word| {
            if word % 512 == 511 { 0x0aaa_aaaa_aaaa_aaaa << 1 } else { 0xaaaa_aaaa_aaaa_aaaa }
        }),
        ("one page in 4,096", |word| if word % 64 == 63 { u64::MAX >> 1 } else { u64::MAX }),
        ("the last 256 pages", |word| if word >= (1 << 22) - 4 { 0 } else { u64::MAX }),
    ];
    for (name, bits) in patterns {
        let mut allocator = tebibyte(bits);
        let mut most = 0;
        let mut count = |work: &mut dyn FnMut(&mut PageAllocator)| {
            let before = VISITED.get();
            work(&mut allocator);
            most = most.max(VISITED.get() - before);
        };
        for round in 0..40u32 {
            for class in 0..CLASSES {
                for pages in [16, 256, 1, 17] {
                    count(&mut |allocator| {
                        if let Some(runs) = allocator.allocate(pages, class)
                            && round % 3 == 0
                        {
                            runs.into_iter().for_each(|run| allocator.release(run));
                        }
                    });
                    count(&mut |allocator| {
                        let _ = allocator.allocate_run(pages as u32, class, true);
                    });
                }
            }
        }
        // A word takes about three nanoseconds.
        assert!(most <= 250_000, "{name}: one call read {most} words and nodes");
    }
}

/// Pages are taken out of the longest run of many chunks, so the lengths in the index are too long.
#[test]
fn a_search_reads_few_words_after_holes_in_many_long_runs() {
    let mut allocator = tebibyte(|word| if word % 512 < 4 { 0 } else { u64::MAX });
    for chunk in 0..8192 {
        assert!(allocator.take(PageRun::new(chunk * 32_768 + 128, 1)));
    }
    let before = VISITED.get();
    assert!(allocator.allocate_run(129, 3, false).is_none());
    assert!(allocator.allocate(256, 3).is_some_and(|runs| runs.len() == 2 || runs.len() == 3));
    let visited = VISITED.get() - before;
    assert!(visited <= 100_000, "{visited} words and nodes");
}

/// Symptom: the commit that ended a checkpoint took 12 ms of processor time, a quarter of the checkpoint's, after 16,384
/// writes of one page.
/// Cause: each freed page was freed by itself, and read the bits of its free neighbours.
/// Fix: neighbours that come free together are freed as one run.
#[test]
fn neighbours_that_come_free_together_read_few_words() {
    let mut allocator = PageAllocator::new(1 << 20);
    let run = allocator.allocate_run(1 << 14, 3, false).unwrap();
    let free = allocator.free_pages();
    let mut placement = CowPlacement::new(allocator, JournalRing::default());
    // In the order in which a ring of writes frees them, but for a gap.
    let (gap, half) = (run.at + 100, run.at + 8192);
    let pages = (half..run.end()).chain(run.at..half).filter(|&at| at != gap);
    let before = VISITED.get();
    placement.release_all(pages.map(|at| PageRun::new(at, 1)).collect());
    let visited = VISITED.get() - before;
    assert!(visited <= 10_000, "{visited} words and nodes");
    assert_eq!(placement.free_pages(), free + run.pages as u64 - 1);
    placement.release(PageRun::new(gap, 1));
    assert_eq!(placement.free_pages(), free + run.pages as u64);
}

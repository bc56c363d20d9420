//! The allocator compared with a plain vector of booleans.

use super::*;

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

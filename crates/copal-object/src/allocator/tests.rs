//! The allocator against a plain vector of booleans.

use super::*;

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn pages_are_never_given_out_twice_and_all_can_be_had() {
    let mut next = random(3);
    let mut allocator = Allocator::new(1000);
    let mut taken = vec![false; 1000];
    let mut owned: Vec<Run> = Vec::new();
    for step in 0..4000u64 {
        let free = taken.iter().filter(|&&page| !page).count() as u64;
        assert_eq!(allocator.free_pages(), free);
        let pages = 1 + next(60);
        match next(3) {
            0 | 1 => match allocator.allocate(pages, next(CLASSES as u64) as usize) {
                Some(runs) => {
                    assert_eq!(crate::run::pages_of(&runs), pages);
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
        let mut allocator = Allocator::new(1000);
        assert!(allocator.take(Run::new(0, 1000)));
        allocator.release(Run::new(at, 100));
        for class in 0..CLASSES {
            let run = allocator.allocate_run(100, class, false).unwrap();
            assert_eq!(run, Run::new(at, 100));
            assert!(allocator.allocate_run(1, class, false).is_none());
            allocator.release(run);
        }
    }
}

#[test]
fn written_space_is_kept_apart() {
    let mut allocator = Allocator::new(4 * ZONE_PAGES);
    assert!(allocator.allocate_run(8, 0, true).is_none());
    allocator.note_written(Run::new(ZONE_PAGES - 1, ZONE_PAGES as u32 + 5));
    assert_eq!(allocator.written_zones(), [(1, 1)]);
    let run = allocator.allocate_run(ZONE_PAGES as u32, 0, true).unwrap();
    assert_eq!(run, Run::new(ZONE_PAGES, ZONE_PAGES as u32));
    assert!(allocator.allocate_run(1, 0, true).is_none());
}

#[test]
fn growth_adds_free_pages_at_the_end() {
    let mut allocator = Allocator::new(100);
    assert!(allocator.allocate(100, 0).is_some());
    assert!(allocator.allocate(1, 0).is_none());
    allocator.grow(1000);
    assert_eq!(allocator.free_pages(), 900);
    assert_eq!(allocator.allocate_run(900, 1, false), Some(Run::new(100, 900)));
}

#[test]
#[should_panic(expected = "freed twice")]
fn freeing_twice_is_our_own_bug() {
    let mut allocator = Allocator::new(100);
    allocator.release(Run::new(5, 1));
}

#[test]
fn free_runs_are_the_pages_that_are_not_taken() {
    let mut next = random(9);
    for pages in [1, 63, 64, 65, 1000, 200_000] {
        let mut allocator = Allocator::new(pages);
        for _ in 0..next(40) {
            let run = Run::new(next(pages), 1 + next(90) as u32);
            allocator.take(run);
        }
        let runs = allocator.free_runs();
        assert_eq!(crate::run::pages_of(&runs), allocator.free_pages());
        assert!(runs.iter().all(|&run| run.pages > 0 && allocator.is_free(run)));
        assert!(runs.windows(2).all(|pair| pair[0].end() <= pair[1].at));
    }
}

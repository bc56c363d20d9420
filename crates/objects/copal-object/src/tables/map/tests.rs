//! The extent map compared with one place and one sum per page.

use super::*;
use std::collections::BTreeMap;

/// A sum that identifies the places it covers.
fn sum_of(places: &[u64]) -> u32 {
    places.iter().fold(17u32, |sum, &place| sum.wrapping_mul(31).wrapping_add(place as u32))
}

fn sums_for(run: PageRun, unit: u32) -> Vec<u32> {
    let places: Vec<u64> = (run.at..run.end()).collect();
    places.chunks(unit as usize).map(sum_of).collect()
}

/// The step of a transaction after a cut: every unit with sum 0 gets the sum of its remaining pages.
fn heal(map: &mut ExtentMap, unit: u32) {
    let cut: Vec<ObjectExtent> =
        map.iter().filter(|extent| extent.run.pages <= unit && map.sums_of(extent.at, unit) == [0]).collect();
    for extent in cut {
        let places: Vec<u64> = (extent.run.at..extent.run.end()).collect();
        assert!(map.resum(extent.at, extent.run.pages, sum_of(&places), unit));
    }
}

#[test]
fn places_and_sums_follow_random_inserts_and_removes() {
    for unit in [1u32, 4, 16] {
        let mut random = copal_testkit::Random::new(u64::from(unit));
        let mut next = move |below| random.below(below);
        let mut map = ExtentMap::default();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut place = 100u64;
        for _ in 0..3000 {
            let at = next(120);
            let pages = 1 + next(40);
            let mut removed: Vec<u64> =
                map.remove(at, at + pages, unit).iter().flat_map(|run| run.at..run.end()).collect();
            removed.sort_unstable();
            let mut expected: Vec<u64> = (at..at + pages).filter_map(|page| model.remove(&page)).collect();
            expected.sort_unstable();
            assert_eq!(removed, expected);
            if next(3) > 0 {
                place += next(2);
                let run = PageRun::new(place, pages as u32);
                map.insert(at, run, &sums_for(run, unit), unit);
                model.extend((0..pages).map(|i| (at + i, place + i)));
                place += pages;
            }
            heal(&mut map, unit);
            let mut seen = BTreeMap::new();
            for extent in map.iter() {
                seen.extend((0..u64::from(extent.run.pages)).map(|i| (extent.at + i, extent.run.at + i)));
                assert_eq!(map.sums_of(extent.at, unit), sums_for(extent.run, unit), "{extent:?}");
            }
            assert_eq!(seen, model);
        }
    }
}

#[test]
fn appends_that_lie_side_by_side_become_one_extent() {
    let mut map = ExtentMap::default();
    for page in 0..1000u64 {
        map.insert(page, PageRun::new(5000 + page, 1), &[page as u32], 1);
    }
    assert_eq!(map.extents(), 1);
    assert_eq!(map.sums_of(0, 1).len(), 1000);
    assert_eq!(map.sums_of(0, 1)[999], 999);
}

#[test]
fn a_long_run_is_split_and_a_published_one_has_no_sums() {
    let mut map = ExtentMap::default();
    map.insert(0, PageRun::new(0, 200_000), &[], 16);
    assert_eq!(map.pages(), 200_000);
    assert!(map.iter().all(|extent| map.sums_of(extent.at, 16).is_empty()));
    assert_eq!(map.overlapping(70_000, 70_001).count(), 1);
}

/// 16 bytes per extent.
#[test]
fn an_extent_takes_sixteen_bytes() {
    assert_eq!(size_of::<PackedExtent>(), 16);
}

//! The engine in a process that may use its budget and a stated overhead, with many times as much data: one
//! store, or two that share the budget.
//!
//! Where a memory cgroup can be made, the kernel kills a process that exceeds it. Page cache counts, and
//! there is little, as the device uses direct I/O. Everywhere, the test checks the peak of the process's own
//! memory.

use crate::{alone::run_alone, world::*};
use copal_kv::MemoryBudget;
use copal_testkit::MemoryCap;
use std::ops::Bound;

/// Memory of a process besides its budget: its code (a test binary's, with line tables), threads and stacks,
/// the page of zeros (1 MiB), and fragmentation of the system's allocator.
const OVERHEAD: u64 = 12 * MIB;
const BUDGET: &str = "COPAL_TEST_MEMORY_BUDGET";
const STORES: &str = "COPAL_TEST_MEMORY_STORES";
const TEST: &str = "capped::a_store_many_times_its_budget_lives_under_a_memory_cap";

#[test]
#[expect(clippy::print_stderr, reason = "a skipped check has to say so; the peaks are shown on failure")]
fn a_store_many_times_its_budget_lives_under_a_memory_cap() {
    let told = |name| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    if let (Some(budget), Some(stores)) = (told(BUDGET), told(STORES)) {
        return work(budget, stores);
    }
    for (budget, stores) in [(4 * MIB, 1), (10 * MIB, 1), (10 * MIB, 2)] {
        let limit = budget + OVERHEAD;
        let cap = MemoryCap::new(limit);
        if cap.is_none() {
            assert!(
                std::env::var_os("COPAL_TEST_REQUIRE_MEMCG").is_none(),
                "no memory cgroup can be made here: it takes root and a writable /sys/fs/cgroup"
            );
            eprintln!(
                "SKIPPED the kernel's cap: no memory cgroup can be made here; the peak is looked at instead"
            );
        }
        let output =
            run_alone(TEST, cap.as_ref(), &[(BUDGET, &budget.to_string()), (STORES, &stores.to_string())]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success(),
            "with {limit} bytes the process ended with {}: {told}",
            output.status
        );
        let peak =
            text.lines().find_map(|line| line.split_once("peak bytes: ")?.1.trim().parse::<u64>().ok());
        let peak = peak.unwrap_or_else(|| panic!("the process did its work: {told}"));
        let in_group = cap.and_then(|cap| cap.peak_bytes());
        eprintln!(
            "budget {budget}, {stores} stores: peak {peak} resident, {in_group:?} in the group, limit {limit}"
        );
        assert!(peak <= limit, "{peak} bytes resident at most, {limit} allowed");
        assert!(peak > budget / 2, "{peak} bytes: the budget of {budget} was used");
    }
}

/// Loads, reads, scans, overwrites and merges ten times 4 MiB, or six times 10 MiB; prints the peak.
#[expect(clippy::print_stdout, reason = "read by the process that started this one")]
fn work(budget_bytes: u64, stores: u64) {
    let dir = tempfile::tempdir().unwrap();
    let budget = MemoryBudget::new(budget_bytes);
    let opened: Vec<_> = (0..stores)
        .map(|store| open(&objects(dir.path(), &format!("store {store}"), 512 * MIB), &budget))
        .collect();
    // Neighbours are in different stores.
    let space = |number: u64| &opened[(number % stores) as usize].1;
    let mut random = Random::new(budget_bytes);
    let keys = (40 * MIB).max(6 * budget_bytes) / 1000;
    for number in 0..keys {
        space(number).put(&key(number), &value(number, 1000), DEFERRED).unwrap();
    }
    for _ in 0..20_000 {
        let number = random.below(2 * keys);
        let found = space(number).get(&key(number)).unwrap();
        assert_eq!(found.is_some(), number < keys);
    }
    // The iterators of all stores are open at the same time.
    let walks = opened.iter().map(|(_, space)| space.iter((Bound::Unbounded, Bound::Unbounded)));
    let mut walks: Vec<_> = walks.collect();
    let mut walked = 0;
    while !walks.is_empty() {
        walks.retain_mut(|walk| walk.next().map(Result::unwrap).is_some());
        walked += walks.len() as u64;
    }
    assert_eq!(walked, keys);
    for number in (0..keys).step_by(10) {
        space(number).put(&key(number), &value(number + 1, 1000), DEFERRED).unwrap();
    }
    for (_, space) in &opened {
        space.compact_range((Bound::Unbounded, Bound::Unbounded)).unwrap();
    }
    for number in (0..keys).step_by(997) {
        let tag = number + u64::from(number.is_multiple_of(10));
        assert_eq!(space(number).get(&key(number)).unwrap().unwrap(), value(tag, 1000));
    }
    for (store, _) in &opened {
        let stats = store.stats();
        assert!(stats.memory_bytes <= budget_bytes, "{stats:?}");
        assert!(stats.user_bytes >= 6 * budget_bytes / stores && stats.merges > 10, "{stats:?}");
        store.close().unwrap();
    }
    println!("peak bytes: {}", peak_bytes());
}

/// Peak resident bytes of this process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

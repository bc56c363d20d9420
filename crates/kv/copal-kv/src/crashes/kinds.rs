//! One short history per kind of background work, and one disabled ordering per kind that must be detected.

use super::*;

type Kind = fn(&mut Recorder);

/// Inline, separated and direct values, a delete, and a second log after the flush.
fn flush(recorder: &mut Recorder) {
    recorder.put(b"x1", value(1, 20), Durability::Process);
    recorder.put(b"x2", value(2, 700), Durability::Deferred);
    recorder.put(b"y1", value(3, 3500), Durability::Device);
    recorder.delete(b"x1", Durability::Process);
    recorder.flush();
    recorder.put(b"x3", value(4, 20), Durability::Process);
    recorder.flush();
}

/// Two overlapping runs; dropped versions and a delete, and values that die with them.
fn merge(recorder: &mut Recorder) {
    recorder.put(b"x1", value(1, 700), Durability::Process);
    recorder.put(b"x2", value(2, 3500), Durability::Process);
    recorder.put(b"y1", value(3, 30), Durability::Process);
    recorder.flush();
    recorder.put(b"x1", value(4, 900), Durability::Process);
    recorder.delete(b"x2", Durability::Process);
    recorder.put(b"y2", value(5, 30), Durability::Process);
    recorder.flush();
    recorder.compact();
}

/// Tables of a few entries and memory for four threads.
fn small_tables() -> Options {
    Options { memory_bytes: 64 << 20, table_bytes: 512, merge_threads: 4, ..options(None) }
}

/// Two runs of many small tables, with dropped versions and deletes in every range of keys.
fn wide_merge(recorder: &mut Recorder) {
    let key = |i: u8| [b'x', i];
    for i in 0..8 {
        recorder.put(&key(i), value(u64::from(i), 400), Durability::Deferred);
    }
    recorder.flush();
    for i in 0..8 {
        match i % 4 {
            0 => recorder.delete(&key(i), Durability::Deferred),
            _ => recorder.put(&key(i), value(100 + u64::from(i), 450), Durability::Deferred),
        }
    }
    recorder.flush();
    recorder.compact();
}

/// Purges a group with values of all kinds; its neighbour stays.
fn purge(recorder: &mut Recorder) {
    for (key, len) in [(b"x1", 20), (b"x2", 700), (b"x3", 3500), (b"y1", 3500)] {
        recorder.put(key, value(len as u64, len), Durability::Process);
    }
    recorder.flush();
    recorder.purge(b"x", Durability::Deferred);
    recorder.put(b"y2", value(9, 20), Durability::Process);
    recorder.compact();
}

/// Direct values and the log that points to them.
fn values(recorder: &mut Recorder) {
    recorder.put(b"x1", value(1, 9000), Durability::Device);
    recorder.put(b"x2", value(2, 5000), Durability::Process);
    recorder.put(b"x3", value(3, 70_000), Durability::Device);
}

fn judged(kind: Kind, seeds: std::ops::Range<u64>) -> u64 {
    judged_with(&options(None), kind, seeds)
}

#[expect(clippy::print_stdout, reason = "how much a run on demand covers")]
fn judged_with(options: &Options, kind: Kind, seeds: std::ops::Range<u64>) -> u64 {
    let mut all = 0;
    for seed in seeds {
        let mut recorder = Recorder::with_options(seed, options.clone());
        kind(&mut recorder);
        let (wrong, judged) = recorder.judge_all(seed, states_per_step());
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        all += judged;
        println!("seed {seed}: {judged} states");
    }
    all
}

/// The same history with one disabled ordering is detected for some order of the device's writes.
fn caught(kind: Kind, flaw: Flaw) {
    let caught = (0..4).any(|seed| {
        let mut recorder = Recorder::new(seed, Some(flaw));
        kind(&mut recorder);
        let (wrong, _) = recorder.judge_all(seed, 64);
        !wrong.is_empty()
    });
    assert!(caught, "{flaw:?} went unnoticed");
}

#[test]
fn a_crash_in_a_flush_loses_nothing_and_leaves_nothing() {
    let states = judged(flush, 0..1);
    assert!(states > 300, "only {states} states");
}

#[test]
fn a_crash_in_a_merge_loses_nothing_and_leaves_nothing() {
    let states = judged(merge, 0..1);
    assert!(states > 300, "only {states} states");
}

#[test]
fn a_crash_in_a_merge_on_four_threads_loses_nothing_and_leaves_nothing() {
    let states = judged_with(&small_tables(), wide_merge, 0..1);
    assert!(states > 300, "only {states} states");
}

#[test]
fn a_crash_in_a_purge_keeps_the_group_or_drops_all_of_it() {
    let states = judged(purge, 0..1);
    assert!(states > 300, "only {states} states");
}

#[test]
fn a_crash_among_direct_values_leaves_no_pointer_without_its_value() {
    let states = judged(values, 0..1);
    assert!(states > 100, "only {states} states");
}

#[test]
fn a_flush_that_deletes_its_log_early_is_caught() {
    caught(flush, Flaw::LogDeletedEarly);
}

#[test]
fn a_merge_that_deletes_its_inputs_early_is_caught() {
    caught(merge, Flaw::InputsDeletedEarly);
}

#[test]
fn a_purge_that_drops_values_early_is_caught() {
    caught(purge, Flaw::ValuesDroppedEarly);
}

#[test]
fn a_log_that_does_not_wait_for_its_values_is_caught() {
    caught(values, Flaw::LogBeforeValues);
}

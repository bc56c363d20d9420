//! Steps of one merge on several threads: each thread has a key range of its own.
//!
//! Invariants
//! - The threads share the memory for merges, so there are only as many as have useful windows.
//! - A store without threads, under pressure for space, or with little memory merges on one thread.
//! - Ranges meet at the start of a table of the largest input: the tables of one step stay whole.

use crate::{
    Error, engine::Engine, format::entry::KeyRange, session::limits::default_merge_threads, table::ReadSizes,
    tree::version::SortedRun,
};
use bytes::Bytes;
use std::{sync::Arc, thread};

/// Least memory for the buffers of one output.
const LEAST_OUTPUT: u64 = 512 << 10;
/// Memory for the reads of merges. Half of the memory for merges is for outputs; index pages take some of the
/// rest.
pub(super) fn read_bytes(engine: &Engine) -> u64 {
    engine.budget.merge_bytes() / 8 * 3
}

/// Memory for the output of a flush, and for the outputs of a merge together: they write at the same time.
pub(super) fn output_bytes(engine: &Engine) -> u64 {
    engine.budget.merge_bytes() / 4
}

/// Number of threads for a merge of `inputs` runs.
pub(super) fn threads(engine: &Engine, inputs: usize) -> usize {
    if !engine.options.threads || engine.writes.pressure.is_on() {
        return 1;
    }
    let wanted = match engine.options.merge_threads {
        0 => default_merge_threads(),
        threads => threads as usize,
    };
    // A window to merge from and one to read, for each input.
    let reads = 2 * inputs.max(1) as u64 * ReadSizes::of(&engine.objects).least_window();
    let most = (read_bytes(engine) / reads).min(output_bytes(engine) / LEAST_OUTPUT).max(1);
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX))
}

/// Cuts the largest of `ranges` until there are `parts`, or none holds the bytes of two tables: less would
/// leave many small tables.
pub(super) fn divide(ranges: &mut Vec<KeyRange>, runs: &[Arc<SortedRun>], parts: usize, table_bytes: u64) {
    let bytes = |range: &KeyRange| -> u64 {
        runs.iter().flat_map(|run| run.overlapping(range)).map(|slice| slice.bytes()).sum()
    };
    while ranges.len() < parts {
        let largest = (0..ranges.len()).max_by_key(|index| bytes(&ranges[*index]));
        let Some(index) = largest.filter(|index| bytes(&ranges[*index]) >= 2 * table_bytes) else {
            return;
        };
        let Some(middle) = middle_of(&ranges[index], runs) else {
            return;
        };
        let second = KeyRange { start: middle.clone(), end: ranges[index].end.clone() };
        ranges[index].end = middle;
        ranges.insert(index + 1, second);
    }
}

/// The start of the table at the middle of the largest input in `range`.
fn middle_of(range: &KeyRange, runs: &[Arc<SortedRun>]) -> Option<Bytes> {
    let bytes = |run: &SortedRun| -> u64 { run.overlapping(range).map(|slice| slice.bytes()).sum() };
    let largest = runs.iter().max_by_key(|run| bytes(run))?;
    let half = bytes(largest) / 2;
    let mut before = 0;
    for slice in largest.overlapping(range) {
        if before >= half && slice.range.start > range.start {
            return Some(slice.range.start.clone());
        }
        before += slice.bytes();
    }
    // The last table holds more than half.
    let last = largest.overlapping(range).last()?;
    (last.range.start > range.start).then(|| last.range.start.clone())
}

/// Calls `step` with each of `ranges`, the first one on this thread. Blocks until all have returned. `None`:
/// the thread could not be started, so this range waits for the next call.
///
/// # Panics
/// When a step panicked.
pub(super) fn on_each<T: Send>(
    ranges: &mut [KeyRange],
    step: impl Fn(&mut KeyRange) -> Result<T, Error> + Sync,
) -> Vec<Option<Result<T, Error>>> {
    let Some((first, others)) = ranges.split_first_mut() else {
        return Vec::new();
    };
    let step = &step;
    thread::scope(|scope| {
        let threads: Vec<_> = others
            .iter_mut()
            .map(|range| {
                let thread = thread::Builder::new().name("copal-kv-merge".to_owned());
                thread.spawn_scoped(scope, move || step(range))
            })
            .collect();
        let mut outcomes = vec![Some(step(first))];
        outcomes.extend(threads.into_iter().map(|thread| {
            let thread = thread.inspect_err(|error| tracing::warn!(%error, "cannot start a merge thread"));
            Some(thread.ok()?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        }));
        outcomes
    })
}

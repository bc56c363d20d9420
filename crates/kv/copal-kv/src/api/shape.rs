//! Fills the public counters from the engine's counters and the current tree.

use crate::{
    api::stats::{LevelStats, Stats},
    engine::Engine,
    session::{counters::EngineCounters, read_counters::ReadCount},
    tree::{damaged_parts, manifest::format::TreeLevel},
    write::admission,
};
use std::sync::atomic::Ordering::Relaxed;

/// Counters since the opening, and the current shape of the tree.
pub(crate) fn stats(engine: &Engine) -> Stats {
    let mut stats = Stats::default();
    fill_counts(&engine.counters, &mut stats);
    stats.debt_bytes = admission::debt(engine).bytes;
    stats.space_shortages = engine.writes.pressure.shortages();
    let reads = engine.caches.cache.counts();
    stats.filter_probes = reads.filter_probes;
    stats.filter_negatives = reads.filter_negatives;
    stats.false_positives = reads.false_positives;
    stats.data_block_reads = reads.data_block_reads;
    stats.index_page_reads = reads.index_page_reads;
    stats.memory = engine.caches.cache.memory().bytes();
    stats.memory_bytes = stats.memory.total();
    stats.filter_page_reads = reads.filter_page_reads;
    fill_shape(engine, &mut stats);
    stats
}

/// Fills the figures of the tree and of the device.
fn fill_shape(engine: &Engine, stats: &mut Stats) {
    let device = engine.objects.counters();
    stats.device_reads = device.reads;
    stats.device_read_bytes = device.read_bytes;
    stats.device_writes = device.writes;
    stats.device_write_bytes = device.write_bytes;
    stats.device_flushes = device.flushes + device.fua_writes;
    let view = engine.super_version();
    stats.frozen_memtables = view.frozen.len() as u64;
    stats.damaged_ranges = damaged_parts::parts(&view.version).len() as u64;
    for run in &view.version.runs {
        let level = if run.level == TreeLevel::BOTTOM { LevelStats::BOTTOM } else { run.level.0 };
        if stats.levels.last().is_none_or(|last| last.level != level) {
            stats.levels.push(LevelStats { level, ..LevelStats::default() });
        }
        let Some(of) = stats.levels.last_mut() else {
            continue;
        };
        of.runs += 1;
        for slice in &run.slices {
            let meta = &slice.table.meta;
            of.tables += 1;
            of.bytes += meta.bytes;
            of.entries += meta.entries;
            of.droppable += meta.droppable;
        }
    }
    drop(view);
    for value in engine.stored.tree.lock().manifest.state.values.values() {
        stats.value_objects += 1;
        stats.value_bytes += value.meta.accounted;
        stats.dead_value_bytes += value.dead.total();
    }
}

/// Fills the counters of the session.
fn fill_counts(counters: &EngineCounters, stats: &mut Stats) {
    stats.gets = counters.reads.sum(ReadCount::Gets);
    stats.seeks = counters.reads.sum(ReadCount::Seeks);
    stats.deleted_passed = counters.reads.sum(ReadCount::DeletedPassed);
    stats.batched_reads = counters.batched_reads.load(Relaxed);
    stats.read_batches = counters.read_batches.load(Relaxed);
    stats.row_hits = counters.reads.sum(ReadCount::RowHits);
    stats.flushes = counters.flushes.load(Relaxed);
    stats.merges = counters.merges.load(Relaxed);
    stats.write_bytes = counters.write_bytes.load(Relaxed);
    stats.user_bytes = counters.user_bytes.load(Relaxed);
    stats.flush_nanos = counters.flush_nanos.load(Relaxed);
    stats.merge_nanos = counters.merge_nanos.load(Relaxed);
    stats.paced_nanos = counters.paced_nanos.load(Relaxed);
    stats.stalled_nanos = counters.stalled_nanos.load(Relaxed);
    stats.groups = counters.groups.load(Relaxed);
    stats.kill_safe_groups = counters.kill_safe_groups.load(Relaxed);
    stats.writes = counters.writes.load(Relaxed);
}

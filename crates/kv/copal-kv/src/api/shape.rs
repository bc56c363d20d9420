//! What the engine has counted and how its tree looks now.

use crate::{
    api::stats::{LevelStats, Stats},
    care::set_apart,
    engine::Engine,
    tree::manifest::format::Level,
};

impl Engine {
    /// Counters since the opening, and what stands in the tree now.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.counters.fill(&mut stats);
        stats.debt_bytes = self.debt().bytes;
        stats.space_shortages = self.writes.pressure.shortages();
        let reads = self.caches.cache.counts();
        stats.filter_probes = reads.filter_probes;
        stats.filter_negatives = reads.filter_negatives;
        stats.false_positives = reads.false_positives;
        stats.data_block_reads = reads.data_block_reads;
        stats.index_page_reads = reads.index_page_reads;
        stats.memory = self.caches.cache.memory().bytes();
        stats.memory_bytes = stats.memory.total();
        stats.filter_page_reads = reads.filter_page_reads;
        self.fill_shape(&mut stats);
        stats
    }

    /// What stands in the tree and was done by the device.
    fn fill_shape(&self, stats: &mut Stats) {
        let device = self.objects.counters();
        stats.device_reads = device.reads;
        stats.device_read_bytes = device.read_bytes;
        stats.device_writes = device.writes;
        stats.device_write_bytes = device.write_bytes;
        stats.device_flushes = device.flushes + device.fua_writes;
        let view = self.super_version();
        stats.frozen_memtables = view.frozen.len() as u64;
        stats.damaged_ranges = set_apart::parts(&view.version).len() as u64;
        for run in &view.version.runs {
            let level = if run.level == Level::BOTTOM { LevelStats::BOTTOM } else { run.level.0 };
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
        for value in self.stored.tree.lock().manifest.state.values.values() {
            stats.value_objects += 1;
            stats.value_bytes += value.meta.accounted;
            stats.dead_value_bytes += value.dead.total();
        }
    }
}

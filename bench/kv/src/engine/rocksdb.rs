//! RocksDB through the `rocksdb` crate.
//!
//! *As shipped*: its defaults with the whole-key Bloom filter that its documentation recommends. *Tuned*:
//! Ribbon filters, filters and indexes partitioned and in the block cache with the top level pinned, direct
//! reads, direct merges, recycled logs, levels sized from the bottom. Its memory is then the block cache, the
//! memtables, and the buffers of merges, which are sized by the cache. The process has one malloc arena
//! (`peer`).

use super::{Engine, beyond};
use crate::{
    keys::Key,
    protocol::{Filters, Safety, Spec},
};
use anyhow::{Context, Result};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, Cache, CompactOptions, DB,
    DBCompressionType, Direction, IteratorMode, Options, WaitForCompactOptions, WriteBatch, WriteOptions,
    properties,
};
use std::{collections::BTreeMap, fs};

pub(super) struct Rocks {
    db: DB,
    options: String,
    synced: WriteOptions,
    unsynced: WriteOptions,
}

impl Rocks {
    pub(super) fn open(spec: &Spec) -> Result<Rocks> {
        fs::create_dir_all(&spec.directory)?;
        let tuned = spec.filters == Filters::Tuned;
        let mut table = BlockBasedOptions::default();
        // As shipped, indexes and filters lie on the heap outside the cache: they get half of the memory.
        let cache_bytes = match (tuned, spec.cache_data) {
            (true, _) => spec.memory_bytes,
            (false, true) => spec.memory_bytes / 2,
            (false, false) => 64 << 10,
        };
        table.set_block_cache(&Cache::new_lru_cache(cache_bytes as usize));
        if tuned {
            table.set_ribbon_filter(spec.bits);
            table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            table.set_partition_filters(true);
            table.set_cache_index_and_filter_blocks(true);
            table.set_cache_index_and_filter_blocks_with_high_priority(true);
            table.set_pin_top_level_index_and_filter(true);
            table.set_pin_l0_filter_and_index_blocks_in_cache(true);
            table.set_optimize_filters_for_memory(true);
        } else {
            table.set_bloom_filter(spec.bits, false);
        }
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(spec.write_buffer_bytes as usize);
        // The default, 256 MiB, is for stores like the design's of 10 GB. A small set should have as many
        // levels.
        options.set_max_bytes_for_level_base((spec.data_bytes / 40).clamp(4 << 20, 256 << 20));
        if spec.background_threads > 0 {
            options.increase_parallelism(spec.background_threads as i32);
            options.set_max_subcompactions(spec.background_threads as u32);
        }
        if spec.table_bytes > 0 {
            options.set_target_file_size_base(spec.table_bytes);
        }
        if tuned {
            options.set_use_direct_reads(true);
            options.set_use_direct_io_for_flush_and_compaction(true);
            options.set_recycle_log_file_num(4);
            options.set_level_compaction_dynamic_level_bytes(true);
            options.set_max_background_jobs(2);
            // With direct reads, each of the dozen inputs of a merge from level 0 has a buffer of this size.
            // With the default, 2 MiB, they exceed a cache of 16 MiB under a cap of 40.
            let ahead_bytes = (spec.memory_bytes / 32).clamp(256 << 10, 2 << 20);
            options.set_compaction_readahead_size(ahead_bytes as usize);
            options.set_writable_file_max_buffer_size(ahead_bytes.min(1 << 20));
        }
        let db = DB::open(&options, &spec.directory).context("opening RocksDB")?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Rocks {
            db,
            options: format!(
                "{}, {} {:.2} bits, cache {cache_bytes} B, write buffer {} B",
                if tuned { "tuned" } else { "as shipped" },
                if tuned { "Ribbon (as Bloom of)" } else { "Bloom" },
                spec.bits,
                spec.write_buffer_bytes
            ),
            synced,
            unsynced: WriteOptions::default(),
        })
    }

    fn write_options(&self, safety: Safety) -> &WriteOptions {
        if safety == Safety::Device { &self.synced } else { &self.unsynced }
    }
}

impl Engine for Rocks {
    fn put(&self, key: &[u8], value: &[u8], safety: Safety) -> Result<()> {
        Ok(self.db.put_opt(key, value, self.write_options(safety))?)
    }

    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, self.write_options(safety))?)
    }

    fn delete(&self, key: &[u8], safety: Safety) -> Result<()> {
        Ok(self.db.delete_opt(key, self.write_options(safety))?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.db.get_pinned(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Key]) -> Result<u64> {
        let mut found = 0;
        for value in self.db.multi_get(keys) {
            found += u64::from(value?.is_some());
        }
        Ok(found)
    }

    fn scan(&self, from: &[u8], entries: usize) -> Result<usize> {
        let mut count = 0;
        let walk = self.db.iterator(IteratorMode::From(from, Direction::Forward));
        for entry in walk.take(entries) {
            std::hint::black_box(entry?);
            count += 1;
        }
        Ok(count)
    }

    fn purge(&self, prefix: &[u8]) -> Result<()> {
        let end = beyond(prefix).context("a prefix without an end")?;
        let mut batch = WriteBatch::default();
        batch.delete_range(prefix, &end);
        self.db.write_opt(batch, &self.synced)?;
        self.db.delete_file_in_range(prefix, &end)?;
        self.db.compact_range(Some(prefix), Some(&end));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn await_merges(&self) -> Result<()> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        Ok(self.db.wait_for_compact(&options)?)
    }

    fn compact(&self) -> Result<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        let property = |name| {
            let value = self.db.property_int_value(name);
            value.ok().flatten().unwrap_or(0) as f64
        };
        let memory = property(properties::BLOCK_CACHE_USAGE)
            + property(properties::ESTIMATE_TABLE_READERS_MEM)
            + property(properties::CUR_SIZE_ALL_MEM_TABLES);
        BTreeMap::from([("memory_bytes_now".to_owned(), memory)])
    }

    fn describe(&self) -> (String, String) {
        // The version of librocksdb-sys contains the bundled RocksDB version; the crate has no call for it.
        ("11.8.1 (crate rocksdb 0.25)".to_owned(), self.options.clone())
    }

    fn close(&self) -> Result<()> {
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

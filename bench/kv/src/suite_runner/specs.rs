//! Engines by name, and their options in a role.

use super::SuiteRunner;
use crate::protocol::{Filters, Kind, Spec};
use anyhow::{Result, bail};

/// All engines. `copal` is the default configuration: its memory holds filters, index pages and rows, and it
/// merges for readers. The other copals differ from each other in filters and rules only, on one tree that
/// stays as it was loaded.
pub(crate) const ALL: [&str; 14] = [
    "copal",
    "copal-ribbon-classes",
    "copal-ribbon-mq",
    "copal-ribbon-per-run",
    "copal-ribbon-fixed",
    "copal-bloom-classes",
    "copal-bloom-paper",
    "copal-bloom-per-run",
    "copal-bloom-fixed",
    "leveldb",
    "rocksdb",
    "rocksdb-tuned",
    "fjall",
    "fjall-tuned",
];

/// Options common to all engines of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    /// Filter bits per key in memory, on average.
    pub(crate) bits: f64,
    /// Memory for reads: filters, indexes, blocks, rows.
    pub(crate) memory_bytes: u64,
    /// Addition to copal's single budget, which also holds memtables, log and merges. Peers have memory for
    /// these outside of their caches.
    pub(crate) copal_extra_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    /// 0: each engine's default.
    pub(crate) table_bytes: u64,
    /// Whether Gets may be answered from cached blocks or rows.
    pub(crate) cache_data: bool,
    /// Whether copal caches blocks instead of rows.
    pub(crate) cache_blocks: bool,
    pub(crate) cap_bytes: Option<u64>,
    /// Name of the store to open, made by `SuiteRunner::loaded`, or of a copy of it.
    pub(crate) store: String,
}

impl SuiteRunner<'_> {
    /// Write buffer in the proportion of the design's base set (16 MiB and 10 GB), so that a small set has
    /// the tree of a large one.
    pub(crate) fn scaled_buffer(&self) -> u64 {
        (self.scale.data_bytes() / 640).clamp(512 << 10, 16 << 20)
    }

    /// Tables of 2 MiB, the size in LevelDB and the paper, or smaller ones for a small set.
    pub(crate) fn scaled_table(&self) -> u64 {
        2 << 20
    }

    /// Role of an engine that reads under a cap of that many percent of the data. `cache_data`: whether Gets
    /// may be answered from cached blocks or rows.
    pub(crate) fn reading_role(&self, bits: f64, percent: f64, cache_data: bool, store: String) -> Role {
        let memory_bytes = self.scale.memory_bytes(percent);
        Role {
            bits,
            memory_bytes,
            copal_extra_bytes: self.scale.copal_extra_bytes(memory_bytes),
            write_buffer_bytes: self.scaled_buffer(),
            table_bytes: self.scaled_table(),
            cache_data,
            cache_blocks: false,
            cap_bytes: Some(self.scale.cap_bytes(percent)),
            store,
        }
    }

    /// Options under which the engine of that name is opened in the role.
    pub(crate) fn spec(&self, name: &str, role: &Role) -> Result<Spec> {
        let (kind, filters) = match name {
            "copal" | "copal-ribbon-classes" => (Kind::Copal, Filters::Shipped),
            "copal-ribbon-per-run" => (Kind::Copal, Filters::RibbonPerRun),
            "copal-bloom-classes" => (Kind::Copal, Filters::BloomClasses),
            "copal-ribbon-mq" => (Kind::Copal, Filters::RibbonMq),
            "copal-ribbon-fixed" => (Kind::Copal, Filters::RibbonFixed),
            "copal-bloom-paper" => (Kind::Copal, Filters::BloomPaper),
            "copal-bloom-per-run" => (Kind::Copal, Filters::BloomPerRun),
            "copal-bloom-fixed" => (Kind::Copal, Filters::BloomFixed),
            "leveldb" => (Kind::Leveldb, Filters::Shipped),
            "rocksdb" => (Kind::Rocksdb, Filters::Shipped),
            "rocksdb-tuned" => (Kind::Rocksdb, Filters::Tuned),
            "fjall" => (Kind::Fjall, Filters::Shipped),
            "fjall-tuned" => (Kind::Fjall, Filters::Tuned),
            _ => bail!("there is no engine `{name}`"),
        };
        Ok(Spec {
            name: name.to_owned(),
            kind,
            filters,
            bits: match (kind, filters) {
                // RocksDB denotes a Ribbon filter by the Bloom filter of the same rate: 5.7 takes 4 bits.
                (Kind::Rocksdb, Filters::Tuned) => role.bits * 1.425,
                _ => role.bits,
            },
            memory_bytes: match kind {
                Kind::Copal => role.memory_bytes + role.copal_extra_bytes,
                _ => role.memory_bytes,
            },
            write_buffer_bytes: role.write_buffer_bytes,
            table_bytes: role.table_bytes,
            data_bytes: self.scale.data_bytes(),
            cache_data: role.cache_data,
            cache_blocks: role.cache_blocks,
            merge_for_reads: name == "copal",
            background_threads: 0,
            directory: self.scratch.join(&role.store),
        })
    }
}

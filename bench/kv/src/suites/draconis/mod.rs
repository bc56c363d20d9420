//! `draconis-fig4` to `draconis-fig8`: writes to LevelDB and to Copal, in key order and skewed, deferred and durable.
//!
//! One thread writes keys of 16 bytes and values of 512. In key order each key is new. Skewed, nine of ten keys come from
//! the first tenth of the key space. Both engines lie on one ext4, if possible of a loop device, whose block trace is
//! replayed on the models. One run makes figures 4 to 6, another one figures 7 and 8.
//!
//! Paper: draconis §3.2.2, §3.2.3

mod deferred;
mod durable;
mod place;
mod workload;

use crate::protocol::{Filters, Kind, Spec};
use anyhow::{Result, bail};
use clap::Args;
use copal_bench_harness::{disk_kind::DiskKind, model_disk::ModelDisk, report::Report};
use std::path::{Path, PathBuf};
use workload::{KeyOrder, WriteLoad};

pub(crate) use deferred::run as run_deferred;
pub(crate) use durable::run as run_durable;

/// Bytes of a key and its value.
const ENTRY_BYTES: u64 = 16 + 512;

#[derive(Args)]
pub(crate) struct Options {
    /// Disks, comma-separated: one of the machine on which the engines run, and the models on which the trace of its
    /// commands is replayed [default: loop,ssd,hdd]
    #[arg(long, value_enum, value_delimiter = ',')]
    on: Vec<DiskKind>,
    /// Bytes that each deferred load writes
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    size_mib: u64,
    /// Write 8 GiB in each deferred load, as the paper does
    #[arg(long, conflicts_with = "size_mib")]
    full: bool,
    /// Number of durable writes in each load
    #[arg(long, default_value_t = 10_000)]
    durable_writes: u64,
    /// Directory of the engines' files [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

impl Options {
    fn size_bytes(&self) -> u64 {
        if self.full { 8 << 30 } else { self.size_mib << 20 }
    }

    /// The disk of the machine. The commands for a model are those of a loop device, if no other disk is named.
    fn machine_disk(&self) -> Result<DiskKind> {
        let mut named = self.on.iter().filter(|kind| !kind.is_model());
        let disk = named.next().copied().unwrap_or(DiskKind::Loop);
        if named.next().is_some() {
            bail!("--on takes one disk of the machine; run the suite once for each");
        }
        Ok(disk)
    }

    /// The models whose rows are wanted.
    fn models(&self) -> Vec<ModelDisk> {
        let all = [DiskKind::Ssd, DiskKind::Hdd];
        let wanted = |kind: &DiskKind| self.on.is_empty() || self.on.contains(kind);
        all.into_iter().filter(wanted).filter_map(DiskKind::model).collect()
    }

    fn scratch(&self, root: &Path) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| root.join(".cache/bench")).join("draconis-kv")
    }
}

const ENGINES: [Kind; 2] = [Kind::Leveldb, Kind::Copal];

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Copal => "copal",
        Kind::Leveldb => "leveldb",
        Kind::Rocksdb | Kind::Fjall => "another engine",
    }
}

/// LevelDB with its defaults: a write buffer of 4 MiB, tables of 2 MiB. Copal with a budget of about the same. Durable
/// loads are short, so their write buffers are small: compactions would show after hours on a disk.
fn spec(kind: Kind, load: &WriteLoad, directory: PathBuf) -> Result<Spec> {
    if kind == Kind::Leveldb && !cfg!(feature = "leveldb") {
        bail!("this build has no LevelDB; build with `--features leveldb`");
    }
    Ok(Spec {
        name: name_of(kind).to_owned(),
        kind,
        filters: Filters::Shipped,
        bits: 10.0,
        memory_bytes: if load.durable { 16 << 20 } else { 64 << 20 },
        write_buffer_bytes: if load.durable { 256 << 10 } else { 4 << 20 },
        table_bytes: 0,
        data_bytes: load.live_bytes(),
        cache_data: true,
        cache_blocks: false,
        merge_for_reads: false,
        background_threads: 0,
        directory,
    })
}

/// Loads of one figure: in key order, and skewed over each key space.
fn loads(writes: u64, spaces: &[u64], durable: bool) -> Vec<WriteLoad> {
    let orders =
        std::iter::once(KeyOrder::Ascending).chain(spaces.iter().map(|&keys| KeyOrder::Skewed { keys }));
    orders.map(|order| WriteLoad { order, writes, durable }).collect()
}

fn notes(report: &mut Report, paper: &str) {
    report.note(
        "Rows of a model are disk time of the recorded block trace; the machine's rows are of two shared cores.",
    );
    report.note(format!("The paper: {paper}"));
}

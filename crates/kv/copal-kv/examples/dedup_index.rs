//! An index of chunks as a backup program uses it: nine of ten look-ups are for chunks that were never seen.
//!
//! `cargo run --release -p copal-kv --example dedup_index`

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use copal_device::MemoryDevice;
use copal_kv::{Durability, FilterOptions, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::error::Error;

const CHUNKS: u64 = 200_000;
const QUESTIONS: u64 = 50_000;

/// A fingerprint: spread over the key space like a hash.
fn fingerprint(chunk: u64) -> [u8; 16] {
    let mut random = copal_testkit::Random::new(chunk);
    let mut out = [0; 16];
    random.fill(&mut out);
    out
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = MemoryDevice::new(256 << 20);
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _recovery) = Objects::open(device, &OpenOptions::default())?;
    let options = Options {
        memory_bytes: 8 << 20,
        // The background thread would do the same; without it the counts are the same each time.
        filters: FilterOptions { background: false, ..FilterOptions::default() },
        ..Options::default()
    };
    let store = Store::open(objects, options)?;
    let chunks = store.keyspace("chunks", KeyspaceOptions::default())?;
    for first in (0..CHUNKS).step_by(500) {
        let mut batch = store.batch();
        for chunk in first..(first + 500).min(CHUNKS) {
            let place = format!("pack {:06} at {:08}", chunk / 400, chunk % 400 * 16_384);
            batch.put(&chunks, &fingerprint(chunk), place.into_bytes().into());
        }
        batch.commit(Durability::Process)?;
    }
    store.flush()?;

    let before = store.stats();
    let mut known = 0;
    for question in 0..QUESTIONS {
        // One in ten was seen before; the others are new.
        let chunk = if question % 10 == 0 { question } else { CHUNKS + question };
        known += u64::from(chunks.contains(&fingerprint(chunk))?);
        if question % 2000 == 0 {
            store.adjust_filters();
        }
    }
    let after = store.stats();
    let reads =
        |stats: &copal_kv::Stats| stats.data_block_reads + stats.index_page_reads + stats.filter_page_reads;
    println!("{QUESTIONS} questions, {known} chunks known");
    println!(
        "{} reads, {:.3} per question; {} false positives",
        reads(&after) - reads(&before),
        (reads(&after) - reads(&before)) as f64 / QUESTIONS as f64,
        after.false_positives - before.false_positives
    );
    println!("memory: {} kB of 8 MiB", after.memory_bytes / 1000);
    for run in &store.filters().runs {
        println!(
            "level {}: {} keys, {:.2} bits of filter per key",
            run.level,
            run.keys,
            8.0 * run.bytes as f64 / run.keys.max(1) as f64
        );
    }
    store.close()?;
    Ok(())
}

//! Prints what each Get reads in vain: adjusting rule x kind of filter unit x distribution of the keys asked
//! for, in the engine itself, at the same bytes of filters. Counts, not times: the same arguments print the
//! same table.
//!
//! `cargo run --release -p copal-kv --example reads_per_get [keys] [bits per key] [Gets] [FILE]`
//!
//! Keys are hashed and lie in seven runs, as a random load leaves them: a bottom of seven eighths and six
//! small runs. Half of the Gets ask for keys that are not there. Each row begins without a unit in memory,
//! asks `Gets` times unmeasured and as often measured. Rows and blocks are not cached; index pages are, and
//! are not counted. Without FILE the device is in memory; FILE is created and removed.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use copal_device::{Device, FileOptions, Image, MemoryDevice, open_file};
use copal_filter::KeyHash;
use copal_kv::{
    CacheMode, Durability, FilterKind, FilterMemory, FilterOptions, FilterRule, KeyspaceOptions, Options,
    Store,
};
use std::{path::Path, sync::Arc};

type Failed = Box<dyn std::error::Error>;

const VALUE: [u8; 100] = [7; 100];
const FIXED: FilterRule = FilterRule::Fixed { units: u8::MAX };
/// Gets between two adjustings.
const ADJUST_EVERY: u64 = 256;
/// The exponents of table 1 of the paper; 0 is uniform.
const SKEWS: [f64; 4] = [0.0, 0.99, 1.10, 1.20];
const ROWS: [(FilterKind, FilterRule, &str); 8] = [
    (FilterKind::Bloom, FIXED, "the paper's LevelDB"),
    (FilterKind::Bloom, FilterRule::Paper, "paper mode"),
    (FilterKind::Bloom, FilterRule::Classes, ""),
    (FilterKind::Ribbon, FIXED, "the best even share"),
    (FilterKind::Ribbon, FilterRule::Monkey, "the best per run"),
    (FilterKind::Ribbon, FilterRule::Paper, ""),
    (FilterKind::Ribbon, FilterRule::Classes, "the default"),
    (FilterKind::Ribbon, FilterRule::Fixed { units: 0 }, "no filter"),
];

fn key(i: u64) -> [u8; 16] {
    KeyHash::new(&i.to_le_bytes(), 1).0.to_be_bytes()
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: f64| arguments.next().map_or(Ok(default), |n| n.parse::<f64>());
    let (keys, bits, gets) = (number(400_000.0)? as u64, number(4.0)?, number(100_000.0)? as u64);
    let file = arguments.next();
    println!(
        "{keys} keys, {bits} bits of filter per key, {gets} Gets, half of them of absent keys. Reads per Get in vain \
         (false positives + filter pages), and all reads (0.5 for the keys that are there):\n"
    );
    print!("{:9} {:8}", "unit", "rule");
    SKEWS.iter().for_each(|skew| print!(" | {:>26}", name(*skew)));
    println!();
    let mut fixed_bloom = [0.0; SKEWS.len()];
    let mut device: Option<(FilterKind, Arc<dyn Device>)> = None;
    for (kind, rule, note) in ROWS {
        let loaded = match device.take() {
            Some((of, device)) if of == kind => device,
            _ => load(keys, kind, file.as_deref())?,
        };
        print!("{:9} {:8}", format!("{kind:?}"), rule.to_string());
        for (skew, reference) in SKEWS.into_iter().zip(&mut fixed_bloom) {
            let run = measure(&loaded, keys, gets, filters(kind, rule, bits), skew)?;
            let total = 0.5 + run.false_positives + run.page_reads;
            if kind == FilterKind::Bloom && rule == FIXED {
                *reference = total;
            }
            print!(
                " | {:.3}+{:.4} {:.3} {:5.2}x",
                run.false_positives,
                run.page_reads,
                total,
                *reference / total
            );
        }
        println!("  {note}");
        device = Some((kind, loaded));
    }
    if let Some(path) = file {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn name(skew: f64) -> String {
    if skew == 0.0 { "uniform".to_owned() } else { format!("zipf {skew:.2}") }
}

fn filters(kind: FilterKind, rule: FilterRule, bits: f64) -> FilterOptions {
    FilterOptions { kind, rule, memory: FilterMemory::BitsPerKey(bits), background: false }
}

fn open(device: &Arc<dyn Device>, keys: u64, filters: FilterOptions) -> Result<Store, Failed> {
    let (objects, _) = copal_object::Store::open(device.clone(), &copal_object::OpenOptions::default())?;
    let options = Options {
        // Room for all index pages and far more filters than asked for.
        memory_bytes: (64 << 20) + 32 * keys,
        table_bytes: 2 << 20,
        filters,
        // The tree stays as it was loaded.
        merge_for_reads: false,
        ..Options::default()
    };
    Ok(Store::open(objects, options)?)
}

/// A device with the tree of seven runs.
fn load(keys: u64, kind: FilterKind, file: Option<&str>) -> Result<Arc<dyn Device>, Failed> {
    let size = (keys * (VALUE.len() as u64 + 60) * 4 + (512 << 20)).next_multiple_of(1 << 20);
    let device: Arc<dyn Device> = match file {
        None => MemoryDevice::from_image(Image::zeroed(size), size),
        Some(path) => {
            let options = FileOptions { create_size: Some(size), allow_cow: true, ..FileOptions::default() };
            drop(std::fs::remove_file(path));
            open_file(Path::new(path), &options)?
        }
    };
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default())?;
    let store = open(&device, keys, filters(kind, FIXED, 0.0))?;
    let options = KeyspaceOptions { cache: CacheMode::Nothing, ..KeyspaceOptions::default() };
    let space = store.keyspace("keys", options)?;
    let put = |numbers: std::ops::Range<u64>| -> Result<(), Failed> {
        let mut from = numbers.start;
        while from < numbers.end {
            let mut batch = store.batch();
            for i in from..(from + 500).min(numbers.end) {
                batch.put(&space, &key(i), bytes::Bytes::from_static(&VALUE));
            }
            batch.commit(Durability::Deferred)?;
            from += 500;
        }
        Ok(store.flush()?)
    };
    let flushed = keys / 120;
    let bottom = keys - 15 * flushed;
    put(0..bottom)?;
    space.compact_range((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded))?;
    for run in 0..15 {
        let from = bottom + run * flushed;
        put(from..from + flushed)?;
        // Four runs of the first tier merge by themselves.
        while store.filters().runs.len() as u64 != 1 + (run + 1) / 4 + (run + 1) % 4 {
            std::thread::yield_now();
        }
    }
    store.close()?;
    store.objects().close()?;
    Ok(device)
}

/// Per Get.
struct Run {
    false_positives: f64,
    page_reads: f64,
}

fn measure(
    device: &Arc<dyn Device>,
    keys: u64,
    gets: u64,
    filters: FilterOptions,
    skew: f64,
) -> Result<Run, Failed> {
    let store = open(device, keys, filters)?;
    let space = store.open_keyspace("keys")?.ok_or("the keyspace is gone")?;
    let mut ranks = Ranks::new(keys, skew);
    let mut ask = |gets: u64| -> Result<(), Failed> {
        for i in 0..gets {
            // Ranks are spread over all runs; absent keys have numbers of their own, as hot as those that are
            // there.
            let number = ranks.next() * 2_654_435_761 % keys + keys * (i % 2);
            assert_eq!(space.get(&key(number))?.is_some(), number < keys);
            if i % ADJUST_EVERY == ADJUST_EVERY - 1 {
                store.adjust_filters();
            }
        }
        Ok(())
    };
    ask(gets)?;
    let before = store.stats();
    ask(gets)?;
    let after = store.stats();
    let filters = store.filters();
    assert!(filters.loaded_bytes <= filters.budget_bytes, "the budget is kept");
    store.close()?;
    store.objects().close()?;
    let per_get = |count: u64| count as f64 / gets as f64;
    Ok(Run {
        false_positives: per_get(after.false_positives - before.false_positives),
        page_reads: per_get(after.filter_page_reads - before.filter_page_reads),
    })
}

/// Numbers below a bound, the i-th as likely as (i+1)^-skew; the same ones each time.
struct Ranks {
    /// Sums of the weights up to each number.
    sums: Vec<f64>,
    random: copal_testkit::Random,
}

impl Ranks {
    fn new(bound: u64, skew: f64) -> Ranks {
        let mut sum = 0.0;
        let weight = |i: u64| {
            sum += (i as f64).powf(-skew);
            sum
        };
        Ranks { sums: (1..=bound).map(weight).collect(), random: copal_testkit::Random::new(1) }
    }

    fn next(&mut self) -> u64 {
        let at = self.random.unit() * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1) as u64
    }
}

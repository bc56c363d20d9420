//! Tests of elastic filters: accounts hold and units follow the rule, for any rule, kind and order of events.

use super::{FilteredTable, PredictedPartition};
use crate::{
    MemoryBudget,
    format::entry::{Entry, EntryKind, MAX_SEQ},
    memory::{budget::MemoryClass, cache::TableCache},
    session::options::{FilterMemory, FilterOptions},
    table::{ReadOptions, Table, TableBuilder, TableOptions},
    tree::inheritance::UnitPredictor,
};
use bytes::Bytes;
use copal_filter::{
    KeyHash, Kind,
    rules::{Change, Heat, PartitionId, Probe, Rule, RuleKind, Shape},
};
use copal_object::{ObjectId, ObjectLifetime};
pub(super) use copal_testkit::Random;
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

const SEED: u64 = 5;
const ID: ObjectId = ObjectId(3);
/// Keys of two partitions and a short one.
pub(super) const KEYS: u64 = 5000;

pub(super) fn key(table: u64, i: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&(table as u32).to_be_bytes());
    key[4..].copy_from_slice(&i.to_be_bytes());
    key
}

fn table_options(kind: Kind) -> TableOptions {
    TableOptions {
        compress: false,
        filter: kind,
        store_seed: SEED,
        lifetime: ObjectLifetime::Medium,
        expected_bytes: 0,
    }
}

/// Even numbers.
fn add_keys(builder: &mut TableBuilder<Vec<u8>>, number: u64) {
    for i in 0..KEYS {
        let entry = Entry { key: &key(number, 2 * i), seq: 1, kind: EntryKind::Put, value: b"v" };
        builder.add(entry).unwrap();
    }
}

pub(super) fn table_bytes(kind: Kind, number: u64) -> Bytes {
    let mut builder = TableBuilder::with_sink(Vec::new(), ID, table_options(kind));
    add_keys(&mut builder, number);
    builder.finish_sink().unwrap().0.into()
}

pub(super) fn open(bytes: &Bytes, cache: &Arc<TableCache>) -> Arc<Table> {
    let options = ReadOptions { store_seed: SEED };
    Table::open_bytes(bytes.clone(), ID, cache.clone(), options).unwrap()
}

/// Looks up number `i`, which exists if even.
pub(super) fn get(table: &Table, number: u64, i: u64) {
    let key = key(number, i % (2 * KEYS));
    let found = table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap();
    assert_eq!(found.is_some(), i.is_multiple_of(2));
    table.elastic().count_get();
}

/// Charged bytes never exceed the limit. Returns the charged bytes.
pub(super) fn assert_kept(cache: &Arc<TableCache>, limit: u64) -> u64 {
    let state = cache.elastic().state.lock();
    assert!(state.charged <= limit, "{} of {limit} bytes", state.charged);
    state.charged
}

/// While no thread moves units, three accounts agree.
pub(super) fn assert_exact(cache: &Arc<TableCache>, limit: u64) {
    let charged = assert_kept(cache, limit);
    assert_eq!(charged, cache.bytes().filters);
    assert_eq!(charged, cache.elastic().state.lock().rule.granted_bytes());
}

/// The units in memory are those charged.
pub(super) fn assert_loaded(cache: &Arc<TableCache>, tables: &[(u64, Arc<Table>)]) {
    let loaded = |table: &Table| -> u64 {
        let of = |index| table.slot(index).ask(|units| units.heap_bytes() as u64);
        (0..table.partitions()).filter_map(of).sum()
    };
    let sum: u64 = tables.iter().map(|(_, table)| loaded(table)).sum();
    assert_eq!(sum, cache.bytes().filters);
}

#[test]
fn the_charge_always_equals_the_grant_of_the_rule() {
    let kinds = [Kind::Ribbon, Kind::Bloom];
    let stored: Vec<Bytes> = (0..6).map(|i| table_bytes(kinds[i as usize % 2], i)).collect();
    for seed in 0..16u64 {
        let mut random = Random::new(seed + 1);
        let limit = [300, 2000, 9000, 1 << 20][random.below(4) as usize];
        let filters = FilterOptions {
            rule: RuleKind::ALL[seed as usize % 4],
            memory: [FilterMemory::Bytes(u64::MAX), FilterMemory::BitsPerKey(random.below(8) as f64)]
                [random.below(2) as usize],
            background: false,
            ..FilterOptions::default()
        };
        let cache = TableCache::new(1 << 20, limit, filters);
        let mut tables: Vec<(u64, Arc<Table>)> = Vec::new();
        for _ in 0..60 {
            match random.below(6) {
                0 if tables.len() < 4 => {
                    let number = random.below(6);
                    tables.push((number, open(&stored[number as usize], &cache)));
                }
                1 if !tables.is_empty() => {
                    let at = random.below(tables.len() as u64) as usize;
                    tables.swap_remove(at);
                }
                2 if !tables.is_empty() => {
                    // A merge has passed the first half.
                    let (number, table) = &tables[random.below(tables.len() as u64) as usize];
                    let from = Bytes::copy_from_slice(&key(*number, KEYS));
                    let rest = from..Bytes::copy_from_slice(&key(*number, 2 * KEYS));
                    table.keep_filters(random.below(3) as u8, &[rest]);
                }
                _ if !tables.is_empty() => {
                    let (number, table) = &tables[random.below(tables.len() as u64) as usize];
                    for _ in 0..300 {
                        get(table, *number, random.below(2 * KEYS));
                    }
                }
                _ => {}
            }
            assert_kept(&cache, limit);
            cache.adjust_filters();
            assert_exact(&cache, limit);
            assert_loaded(&cache, &tables);
        }
        tables.clear();
        assert_exact(&cache, 0);
    }
}

#[test]
fn threads_that_read_while_units_move_keep_the_limit_and_get_right_answers() {
    let stored: Vec<Bytes> = (0..4).map(|i| table_bytes(Kind::Ribbon, i)).collect();
    for rule in [RuleKind::Classes, RuleKind::Paper] {
        // About two columns of each partition.
        let limit = 4 * 3 * 512;
        let filters =
            FilterOptions { rule, memory: FilterMemory::Bytes(u64::MAX), ..FilterOptions::default() };
        let cache = TableCache::new(1 << 20, limit, filters);
        let tables: Vec<Arc<Table>> = stored.iter().map(|bytes| open(bytes, &cache)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3u64)
                .map(|thread| {
                    let (tables, cache) = (&tables, &cache);
                    scope.spawn(move || {
                        let mut random = Random::new(100 + thread);
                        for i in 0..20_000u64 {
                            // The hot table changes.
                            let hot = (i / 5000) % 4;
                            let number = if random.below(8) > 0 { hot } else { random.below(4) };
                            get(&tables[number as usize], number, random.below(2 * KEYS));
                            if i % 64 == 0 {
                                assert_kept(cache, limit);
                            }
                        }
                    })
                })
                .collect();
            let (stop, cache) = (&stop, &cache);
            // Tables open and close meanwhile.
            let churn = scope.spawn(move || {
                let bytes = table_bytes(Kind::Bloom, 9);
                while !stop.load(Ordering::Relaxed) {
                    let table = open(&bytes, cache);
                    for i in 0..200 {
                        get(&table, 9, i);
                    }
                    assert_kept(cache, limit);
                }
            });
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            churn.join().unwrap();
        });
        cache.adjust_filters();
        assert_exact(&cache, limit);
        let numbered: Vec<_> = (0u64..).zip(tables).collect();
        assert_loaded(&cache, &numbered);
        drop(numbered);
        // The background thread may hold the last reference to a table until its turn ends.
        cache.adjust_filters();
        assert_exact(&cache, 0);
    }
}

/// A rule that wants nothing and records the times of the probes.
struct Times(Arc<Mutex<Vec<(usize, u64)>>>);

impl Rule for Times {
    fn add(&mut self, _: PartitionId, _: Shape, _: Heat, _: u8, _: u64) {}
    fn remove(&mut self, _: PartitionId) {}
    fn heat(&self, _: PartitionId, _: u64) -> Heat {
        Heat::default()
    }
    fn predict(&self, _: Shape, _: Heat, _: u64) -> u8 {
        0
    }
    fn observe(&mut self, probes: &[Probe], now: u64) {
        self.0.lock().push((probes.len(), now));
    }
    fn step(&mut self, _: u64, _: u64) -> Vec<Change> {
        Vec::new()
    }
    fn correct(&mut self, _: PartitionId, _: u8) {}
    fn granted_bytes(&self) -> u64 {
        0
    }
}

/// Symptom: under the paper's rule no partition expired while up to a thousand probes gathered, which may be
/// longer than its lifeTime. A partition probed first had the same time as one probed last. Cause: all probes
/// were given to the rule with the time at which they were drained.
/// Fix: each ring carries the time at which it was full.
#[test]
fn the_rule_learns_when_probes_were_not_when_they_were_drained() {
    let filters = FilterOptions { background: false, ..FilterOptions::default() };
    let cache = TableCache::new(1 << 20, 0, filters);
    let times = Arc::new(Mutex::new(Vec::new()));
    cache.elastic().state.lock().rule = Box::new(Times(times.clone()));
    let table = open(&table_bytes(Kind::Ribbon, 0), &cache);
    // One probe each; the sixty-fourth is sampled before its Get is counted.
    for i in 0..1000 {
        get(&table, 0, i);
    }
    cache.adjust_filters();
    let rings = (1..=15).map(|ring| (64, 64 * ring - 1));
    let expected: Vec<(usize, u64)> = rings.chain([(40, 1000)]).collect();
    assert_eq!(*times.lock(), expected);
}

/// Two tables whose units fill the memory, both probed for absent keys; the first has enough Gets to want all
/// of it.
fn two_hot_tables() -> (Arc<TableCache>, [Arc<Table>; 2]) {
    let filters = FilterOptions {
        memory: FilterMemory::Bytes(u64::MAX),
        background: false,
        ..FilterOptions::default()
    };
    let cache = TableCache::new(1 << 20, HOT_LIMIT, filters);
    let tables = [0, 1].map(|number| open(&table_bytes(Kind::Ribbon, number), &cache));
    for i in 0..4000 {
        for (number, table) in (0u64..).zip(&tables) {
            get(table, number, 2 * i + 1);
        }
    }
    cache.adjust_filters();
    assert_exact(&cache, HOT_LIMIT);
    (cache, tables)
}

/// Two units for each partition of two tables.
const HOT_LIMIT: u64 = 2 * 3 * 2 * 256;

#[test]
fn a_change_never_reaches_the_next_partition_with_the_same_number() {
    // Symptom: after a merge that ran while units were moved, cold outputs held units that the rule had not
    // granted, and hot ones lost theirs. The charged bytes exceeded the bits per key.
    // Cause: a pending change named its partition by a number, which is reused as soon as the partition is
    // removed.
    // Fix: a change is void once its partition is removed.
    let (cache, [a, b]) = two_hot_tables();
    drop(b);
    // Loads for `a` are pending now; nothing settles between the end of `a` and the start of `c`.
    a.keep_filters(0, &[]);
    let c = open(&table_bytes(Kind::Ribbon, 2), &cache);
    cache.adjust_filters();
    assert_exact(&cache, HOT_LIMIT);
    assert_loaded(&cache, &[(0, a), (2, c)]);
}

#[test]
fn a_table_that_moves_to_another_run_while_units_wait_keeps_the_account() {
    // Symptom: as above, for a table that a merge moved by a record of the manifest.
    // Cause: the rule got it as a new partition with its present units, and the pending change was carried
    // out nevertheless.
    // Fix: the change is void; the thread that moves the table runs the rule again.
    let (cache, [a, b]) = two_hot_tables();
    drop(b);
    let whole = Bytes::new()..Bytes::from_static(&[0xff]);
    a.keep_filters(3, &[whole]);
    // As an adjuster that had run the rule before.
    cache.elastic().carry_out();
    assert_exact(&cache, HOT_LIMIT);
    let before = cache.bytes().filters;
    cache.adjust_filters();
    assert!(cache.bytes().filters > before, "the room of the other table is used");
    assert_exact(&cache, HOT_LIMIT);
}

#[test]
fn a_change_asked_for_before_a_get_loaded_units_itself_is_void() {
    // Symptom: more units were charged than the rule knew of.
    // Cause: a Get that found no units loaded as many as fitted and reported them to the rule. The change
    // that the rule had requested before was carried out nevertheless.
    // Fix: a report of a partition's units makes its pending change void.
    let (cache, [a, b]) = two_hot_tables();
    let elastic = cache.elastic();
    let numbers: Vec<_> = (0..a.partitions()).map(|index| a.slot(index).number().unwrap()).collect();
    for (index, number) in (0..).zip(&numbers) {
        let mut state = elastic.state.lock();
        let part = state.get(*number).unwrap();
        a.return_units(u64::from(part.units) * u64::from(part.shape.unit_bytes));
        state.set_units(*number, 0, false);
        state.correct(*number, 0);
        a.slot(index).swap(None);
    }
    drop(b);
    for (index, number) in (0..).zip(&numbers) {
        if let Some(units) = elastic.reserve(&*a, *number, index) {
            elastic.loaded(&*a, *number, index, 0, a.read_units(index, units), true);
        }
    }
    elastic.carry_out();
    assert_exact(&cache, HOT_LIMIT);
    assert_loaded(&cache, &[(0, a)]);
}

#[test]
fn units_give_way_when_others_take_of_the_same_budget() {
    // Symptom: units filled a quarter of the memory that had once been free, while tables, iterators and
    // memtables that readers pinned had long taken it.
    // Cause: the limit of units was evaluated only when a table came or went, or a unit was moved.
    // Fix: the limit follows every charge, so the rule runs with the present one.
    let filters = FilterOptions {
        rule: RuleKind::Fixed { units: u8::MAX },
        memory: FilterMemory::Bytes(u64::MAX),
        background: false,
        ..FilterOptions::default()
    };
    let budget = MemoryBudget::with_filters(4 << 20, filters);
    let cache = TableCache::of(&budget);
    let stored = table_bytes(Kind::Ribbon, 1);
    let tables: Vec<_> = (0..12).map(|_| (1, open(&stored, &cache))).collect();
    cache.adjust_filters();
    let all = cache.bytes().filters;
    assert!(all < budget.accounts().filter_limit(), "there is room for {all} bytes");
    let others = budget.accounts().charge(MemoryClass::Scans, 3 * budget.accounts().filter_limit() + all);
    let limit = budget.accounts().filter_limit();
    assert!(0 < limit && limit < all, "{limit} of {all} bytes are left");
    cache.adjust_filters();
    assert_exact(&cache, limit);
    assert_loaded(&cache, &tables);
    drop(others);
    cache.adjust_filters();
    assert_eq!(cache.bytes().filters, all);
}

#[test]
fn units_of_a_table_being_written_are_charged_or_not_loaded() {
    // Symptom: a flush or merge of many short entries held units of all partitions it had written outside the
    // budget.
    // Cause: units kept for new partitions were charged when they were loaded, not when they were made.
    // Fix: they are charged to the merge when they are made; if the budget is full, none are made.
    let write = |budget: &MemoryBudget| {
        let predicted = Arc::new(Mutex::new(Vec::new()));
        let mut builder = TableBuilder::with_sink(Vec::new(), ID, table_options(Kind::Ribbon));
        builder.observe(Box::new(UnitPredictor {
            budget: budget.accounts().clone(),
            elastic: budget.elastic().clone(),
            from: Arc::default(),
            level: 0,
            predicted: predicted.clone(),
        }));
        add_keys(&mut builder, 1);
        builder.finish_sink().unwrap();
        std::mem::take(&mut *predicted.lock())
    };
    let held = |predicted: &[PredictedPartition]| -> u64 {
        let of =
            |predicted: &PredictedPartition| predicted.units.as_ref().map_or(0, |units| units.heap_bytes());
        predicted.iter().map(of).sum::<usize>() as u64
    };
    let budget = MemoryBudget::new(4 << 20);
    let predicted = write(&budget);
    assert_eq!(predicted.len(), 3);
    assert!(held(&predicted) > 0);
    assert_eq!(held(&predicted), budget.bytes().merges);
    drop(predicted);
    assert_eq!(budget.bytes().merges, 0);
    let _merges = budget.accounts().charge(MemoryClass::Merges, 4 << 20);
    assert_eq!(held(&write(&budget)), 0);
}

/// Six units everywhere while they fit; the fifth unit of each page is damaged.
fn with_a_damaged_unit(limit: u64) -> (Arc<TableCache>, Arc<Table>) {
    let filters = FilterOptions {
        rule: RuleKind::Fixed { units: 6 },
        memory: FilterMemory::Bytes(u64::MAX),
        background: false,
        ..FilterOptions::default()
    };
    let cache = TableCache::new(1 << 20, limit, filters);
    let stored = table_bytes(Kind::Ribbon, 1);
    let mut changed = stored.to_vec();
    let whole = open(&stored, &TableCache::new(0, 0, filters));
    for index in 0..whole.partitions() {
        let unit_bytes = whole.filter_shape(index, 0).unwrap().unit_bytes as usize;
        changed[whole.filter_offset(index) as usize + 256 + 4 * unit_bytes] ^= 1;
    }
    let table = open(&Bytes::from(changed), &cache);
    (cache, table)
}

#[test]
fn a_partition_with_a_damaged_page_goes_without_and_is_not_tried_again() {
    let (cache, table) = with_a_damaged_unit(1 << 20);
    cache.adjust_filters();
    let counts = cache.counts();
    assert_eq!(counts.damaged_filters, u64::from(table.partitions()));
    assert_eq!(cache.bytes().filters, 0);
    for i in 0..2000 {
        get(&table, 1, i);
    }
    cache.adjust_filters();
    assert_eq!(cache.counts().filter_page_reads, counts.filter_page_reads, "tried again");
    assert_eq!(cache.counts().filter_negatives, 0);
    assert_exact(&cache, 0);
}

#[test]
fn a_partition_that_cannot_grow_keeps_the_units_it_has() {
    let room_for_three = 2 * 3 * 3 * 256;
    let (cache, table) = with_a_damaged_unit(room_for_three);
    // Another table takes half of the memory, then is dropped.
    let other = open(&table_bytes(Kind::Ribbon, 2), &cache);
    cache.adjust_filters();
    let units = |index| table.slot(index).ask(|units| units.count()).unwrap_or(0);
    let before: Vec<u8> = (0..table.partitions()).map(units).collect();
    assert!(before.iter().all(|units| (1..=4).contains(units)), "{before:?}");
    drop(other);
    cache.adjust_filters();
    assert_eq!(cache.counts().damaged_filters, u64::from(table.partitions()));
    let after: Vec<u8> = (0..table.partitions()).map(units).collect();
    assert_eq!(before, after);
    for i in 0..2000 {
        get(&table, 1, i);
    }
    assert!(cache.counts().filter_negatives > 500);
    assert_exact(&cache, room_for_three);
}

#[test]
fn the_last_reference_to_filter_memory_ends_its_thread() {
    let filters = FilterOptions::default();
    let bytes = table_bytes(Kind::Ribbon, 1);
    for _ in 0..20 {
        let cache = TableCache::new(1 << 20, 1 << 20, filters);
        let table = open(&bytes, &cache);
        for i in 0..2000 {
            get(&table, 1, i);
        }
        let elastic = Arc::downgrade(cache.elastic());
        drop(cache);
        drop(table);
        // The thread is joined by the thread that drops the last reference, or ends by itself if it drops the
        // last one.
        while elastic.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}

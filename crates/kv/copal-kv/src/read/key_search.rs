//! Search of many keys at once: pages that single look-ups would read one after another are read together.
//!
//! Design: docs/design/kv.md#look-ups
//! Invariants
//! - All keys are searched at one sequence of one view, so the results are consistent.
//! - Each key is searched in the runs as in a single look-up, newest first, one run at a time: never more
//!   reads than one by one. In each round all pages that keys wait for are read in one call, each page once.
//! - At most [`PAGES_BYTES`] of pages are read together, encoded and decoded. They are charged, and fewer are read
//!   together if memory is short.
//! - At most [`KEYS`] keys of the caller, with [`KEY_BYTES`], are searched together; fewer if memory is short.
//!
//! Not here: filters of partitions without loaded units, which each probe loads for itself (`table::filter`);
//! values (`multi_get`, `value_ranges`).

use crate::{
    Error,
    engine::Engine,
    format::{
        entry::KeyspaceId,
        index::{BlockAt, IndexPage},
    },
    memory::budget::{MemoryCharge, MemoryClass as Memory},
    read::get::{self, CachePolicy, FoundVersion, in_memtables, visible},
    session::{counters::EngineCounters, read_counters::ReadCount},
    table::{LookupPlace, TableHit, TakenBlock},
    tree::version::{SuperVersion, TableHandle},
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_filter::KeyHash;
use copal_object::{ObjectId, StoreError};
use std::{
    collections::{HashMap, HashSet},
    ops::{ControlFlow, Range},
    sync::Arc,
};

/// Most bytes of the pages that are read together, unless one page is longer.
const PAGES_BYTES: u64 = 8 << 20;
/// Most keys that are searched together.
const KEYS: usize = 8192;
/// Fewest keys that are searched together.
const FEWEST_KEYS: usize = 256;
/// Most bytes of these keys, unless one key is longer.
const KEY_BYTES: usize = 512 << 10;
/// Memory of a key besides its bytes, for the lists of a call.
const OF_A_KEY: usize = 256;
/// Memory of a page that is read, in times of its bytes: it is decoded while its bytes are still there.
const DECODED: u64 = 2;
/// Most bytes in flight for pages, gaps between them included, unless the pages are longer.
const IN_FLIGHT_BYTES: u64 = 2 << 20;
/// Share of the free memory that keys take, and that pages take.
const ROOM_SHARE: u64 = 4;

/// The visible version of a key.
pub(crate) enum KeyVersion {
    /// A cached row: the value.
    Row(Bytes),
    /// `from_table`: the value may be cached as a row.
    Stored { version: FoundVersion, from_table: bool },
}

pub(crate) type FoundKey = Result<Option<KeyVersion>, Error>;

/// A key that was found neither in memory nor in the runs so far.
struct PendingKey {
    /// Index among the keys of the caller.
    at: usize,
    hash: KeyHash,
    /// The next run to search.
    run: usize,
}

/// A key that the filter of one table let pass.
struct TableProbe {
    pending: PendingKey,
    table: Arc<TableHandle>,
    asked: LookupPlace,
    /// Newest range tombstone of that run over the key.
    cover: u64,
}

/// Table and partition of a probe.
type PartitionName = (u64, u32);

fn partition_of(probe: &TableProbe) -> PartitionName {
    (probe.table.table.number(), probe.asked.partition)
}

/// A probe with the index page of its partition, and the block that holds its key if the partition does.
struct IndexedProbe {
    probe: TableProbe,
    place: Result<(Arc<IndexPage>, BlockAt), Error>,
}

impl IndexedProbe {
    fn block(&self) -> Option<(PartitionName, u32)> {
        let (_, at) = self.place.as_ref().ok()?;
        Some((partition_of(&self.probe), at.number))
    }

    fn range(&self) -> Range<u64> {
        match &self.place {
            Ok((_, at)) => self.probe.table.table.block_range(self.probe.asked.partition, *at),
            Err(_) => 0..0,
        }
    }
}

/// One search with its state.
struct KeySearch<'a> {
    engine: &'a Engine,
    view: &'a SuperVersion,
    seq: u64,
    keys: &'a [Bytes],
    kept: CachePolicy<'a>,
    found: Vec<Option<FoundKey>>,
}

/// Searches `keys` of a keyspace as a reader at `seq` sees them in `view`. Calls `take` with consecutive groups
/// of internal keys and their versions. Blocks on reads.
pub(crate) fn search<K: AsRef<[u8]>>(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    keyspace: KeyspaceId,
    keys: &[K],
    kept: CachePolicy<'_>,
    mut take: impl FnMut(&[Bytes], Vec<FoundKey>),
) {
    let mut rest = keys;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |key: &&K| {
            bytes += key.as_ref().len();
            bytes <= KEY_BYTES
        };
        let room = engine.budget.room_for(Memory::Reads) / ROOM_SHARE;
        let most = (room as usize / (2 * OF_A_KEY)).clamp(FEWEST_KEYS, KEYS);
        let count = rest.iter().take(most).take_while(fits).count().max(1);
        let (together, after) = rest.split_at(count);
        let held = together.iter().map(|key| OF_A_KEY + key.as_ref().len()).sum::<usize>();
        let _keys = engine.budget.charge(Memory::Reads, held as u64);
        let together: Vec<Bytes> = together.iter().map(|key| keyspace.key(key.as_ref())).collect();
        take(&together, search_together(engine, view, seq, &together, kept));
        rest = after;
    }
}

fn search_together(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    keys: &[Bytes],
    kept: CachePolicy<'_>,
) -> Vec<FoundKey> {
    if let Err(error) = get::check_open(engine) {
        return keys.iter().map(|_| Err(error.clone())).collect();
    }
    let found = keys.iter().map(|_| None).collect();
    let mut search = KeySearch { engine, view, seq, keys, kept, found };
    search.run();
    let found: Vec<FoundKey> = search.found.into_iter().map(|found| found.unwrap_or(Ok(None))).collect();
    if engine.recorder.is_on() {
        for (key, found) in keys.iter().zip(&found) {
            if let Ok(found) = found {
                engine.recorder.note(key, found.is_some());
            }
        }
    }
    found
}

/// Reads all of `reads` together; answers in their order.
pub(super) fn read_together(
    engine: &Engine,
    reads: &[(ObjectId, Range<u64>)],
    in_flight_bytes: u64,
) -> Vec<Result<Bytes, StoreError>> {
    if reads.is_empty() {
        return Vec::new();
    }
    EngineCounters::add(&engine.counters.read_batches, 1);
    EngineCounters::add(&engine.counters.batched_reads, reads.len() as u64);
    let mut answers: Vec<_> = reads.iter().map(|(object, _)| Err(StoreError::NotFound(*object))).collect();
    engine.objects.read_many(reads, in_flight_bytes, IoClass::Foreground, &mut |index, answer| {
        answers[index] = answer;
        ControlFlow::Continue(())
    });
    answers
}

impl KeySearch<'_> {
    fn run(&mut self) {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by(|a, b| self.keys[*a].cmp(&self.keys[*b]));
        let mut pending: Vec<PendingKey> = order.into_iter().filter_map(|at| self.in_memory(at)).collect();
        while !pending.is_empty() {
            let probes: Vec<TableProbe> =
                pending.into_iter().filter_map(|pending| self.next_probe(pending)).collect();
            pending = self.look(probes);
        }
    }

    fn note(&mut self, at: usize, found: FoundKey) {
        self.found[at] = Some(found);
    }

    fn note_version(&mut self, at: usize, version: FoundVersion, from_table: bool) {
        self.note(at, Ok(Some(KeyVersion::Stored { version, from_table })));
    }

    /// Searches memtables and cached rows; if they do not have the key, it is pending.
    fn in_memory(&mut self, at: usize) -> Option<PendingKey> {
        self.engine.counters.reads.add(ReadCount::Gets);
        self.engine.caches.cache.elastic().count_get();
        let key = &self.keys[at];
        if let Some(version) = in_memtables(self.view, self.seq, key) {
            match version {
                None => self.note(at, Ok(None)),
                Some(version) => self.note_version(at, version, false),
            }
            return None;
        }
        if let Some(row) = get::row(self.engine, self.kept, key, self.seq) {
            self.note(at, Ok(Some(KeyVersion::Row(row))));
            return None;
        }
        let hash = KeyHash::new(key, self.engine.seed);
        Some(PendingKey { at, hash, run: 0 })
    }

    /// The next run whose filter lets the key pass. Without one the key is not found.
    fn next_probe(&mut self, mut pending: PendingKey) -> Option<TableProbe> {
        let (key, view) = (&self.keys[pending.at], self.view);
        while let Some(run) = view.version.runs.get(pending.run) {
            pending.run += 1;
            let Some(slice) = run.find(key) else { continue };
            let cover = slice.table.tombstones.cover(key, self.seq);
            match slice.table.table.ask(key, self.seq, &pending.hash) {
                Ok(Some(asked)) => {
                    let table = slice.table.clone();
                    return Some(TableProbe { pending, table, asked, cover });
                }
                Ok(None) if cover > 0 => break,
                Ok(None) => {}
                Err(error) => {
                    self.note(pending.at, Err(error.into()));
                    return None;
                }
            }
        }
        self.note(pending.at, Ok(None));
        None
    }

    /// Searches the partitions of all probes; returns the keys that were not found.
    fn look(&mut self, probes: Vec<TableProbe>) -> Vec<PendingKey> {
        let mut pending = Vec::new();
        let mut rest = probes;
        while !rest.is_empty() {
            let (count, charge) = self.fitting(&rest, |probe| {
                (partition_of(probe), probe.table.table.index_range(probe.asked.partition))
            });
            let behind = rest.split_off(count);
            let indexed = self.with_blocks(std::mem::replace(&mut rest, behind));
            drop(charge);
            self.look_in_blocks(indexed, &mut pending);
        }
        pending
    }

    /// Gets the index pages of all probes, each read once, and the block that each probe needs.
    fn with_blocks(&self, probes: Vec<TableProbe>) -> Vec<IndexedProbe> {
        let indexes = self.gather(
            &probes,
            |probe| Some(partition_of(probe)),
            |probe| probe.table.table.cached_index(probe.asked.partition),
            |probe| probe.table.table.index_range(probe.asked.partition),
            |probe, stored| probe.table.table.index_from(probe.asked.partition, stored),
        );
        let indexed = probes.into_iter().map(|probe| {
            let place = indexes[&partition_of(&probe)].clone().and_then(|index| {
                let at = probe.table.table.block_of(&index, &probe.asked, self.key(&probe))?;
                Ok((index, at))
            });
            IndexedProbe { probe, place }
        });
        indexed.collect()
    }

    /// Searches the blocks of all probes, as many together as there is memory for; adds the keys that were not found
    /// to `pending`.
    fn look_in_blocks(&mut self, indexed: Vec<IndexedProbe>, pending: &mut Vec<PendingKey>) {
        let mut rest = indexed;
        while !rest.is_empty() {
            let (count, _charge) = self.fitting(&rest, |indexed| (indexed.block(), indexed.range()));
            let behind = rest.split_off(count);
            let batch = std::mem::replace(&mut rest, behind);
            let found = self.look_together(&batch);
            for (IndexedProbe { probe, .. }, found) in batch.into_iter().zip(found) {
                let at = probe.pending.at;
                match found {
                    Err(error) => self.note(at, Err(error)),
                    Ok(Some(found)) => match visible(found.seq, probe.cover, found.kind, found.value) {
                        None => self.note(at, Ok(None)),
                        Some(version) => self.note_version(at, version, true),
                    },
                    Ok(None) if probe.cover > 0 => self.note(at, Ok(None)),
                    Ok(None) => pending.push(probe.pending),
                }
            }
        }
    }

    /// How many of `items` have pages that fit into memory together, and the charge for these: at least one, like a
    /// single look-up. Neighbours often share a page.
    fn fitting<T, N: PartialEq>(
        &self,
        items: &[T],
        page: impl Fn(&T) -> (N, Range<u64>),
    ) -> (usize, MemoryCharge) {
        let budget = &self.engine.budget;
        let most = (budget.room_for(Memory::Reads) / ROOM_SHARE).min(PAGES_BYTES);
        let (mut bytes, mut count, mut last) = (0, 0, None);
        for item in items {
            let (name, range) = page(item);
            let more = if last.as_ref() == Some(&name) { 0 } else { DECODED * (range.end - range.start) };
            if count > 0 && bytes + more > most {
                break;
            }
            bytes += more;
            count += 1;
            last = Some(name);
        }
        (count, budget.charge(Memory::Reads, bytes))
    }

    /// Bytes in flight for `reads` that are handed over together, and the charge for the gaps between them: memory
    /// for gaps is only taken if it is free.
    fn room_for_gaps(&self, reads: &[(ObjectId, Range<u64>)]) -> (u64, MemoryCharge) {
        let budget = &self.engine.budget;
        let bytes: u64 = reads.iter().map(|(_, range)| range.end - range.start).sum();
        let most = if reads.len() > 1 { IN_FLIGHT_BYTES } else { 0 };
        let gaps = (budget.room_for(Memory::Reads) / ROOM_SHARE).min(most).saturating_sub(bytes);
        (bytes + gaps, budget.charge(Memory::Reads, gaps))
    }

    /// Gets the blocks of all probes, each read once; then searches.
    fn look_together(&self, indexed: &[IndexedProbe]) -> Vec<Result<Option<TableHit>, Error>> {
        let blocks = self.gather(
            indexed,
            IndexedProbe::block,
            |IndexedProbe { probe, place }| {
                let (_, at) = place.as_ref().ok()?;
                probe.table.table.cached_block(probe.asked.partition, *at)
            },
            IndexedProbe::range,
            |IndexedProbe { probe, place }, stored| {
                let (_, at) = place.as_ref().map_err(Error::clone)?;
                Ok::<TakenBlock, Error>(probe.table.table.block_from(probe.asked.partition, *at, stored)?)
            },
        );
        let keep = self.kept.blocks();
        indexed
            .iter()
            .map(|IndexedProbe { probe, place }| {
                let (index, at) = place.as_ref().map_err(Error::clone)?;
                let taken = blocks[&(partition_of(probe), at.number)].clone()?;
                let was_read = !taken.cached;
                let found = probe.table.table.search(&probe.asked, index, taken, self.key(probe), keep)?;
                // The key has a next run, so this was not the oldest.
                if found.is_none() && was_read && probe.pending.run < self.view.version.runs.len() {
                    self.engine.counters.reads.add(ReadCount::WastedReads);
                }
                Ok(found)
            })
            .collect()
    }

    fn key(&self, probe: &TableProbe) -> &Bytes {
        &self.keys[probe.pending.at]
    }

    /// For each name that `items` need, a cached value, or one decoded from bytes that are all read together.
    fn gather<I, N, T, E>(
        &self,
        items: &[I],
        name: impl Fn(&I) -> Option<N>,
        cached: impl Fn(&I) -> Option<T>,
        range: impl Fn(&I) -> Range<u64>,
        make: impl Fn(&I, &[u8]) -> Result<T, E>,
    ) -> HashMap<N, Result<T, Error>>
    where
        I: HasObject,
        N: std::hash::Hash + Eq + Copy,
        E: Into<Error>,
    {
        let mut gathered: HashMap<N, Result<T, Error>> = HashMap::new();
        let mut missing: HashSet<N> = HashSet::new();
        let (mut wanted, mut reads) = (Vec::new(), Vec::new());
        for item in items {
            let Some(name) = name(item) else { continue };
            if gathered.contains_key(&name) || missing.contains(&name) {
                continue;
            }
            if let Some(there) = cached(item) {
                gathered.insert(name, Ok(there));
            } else {
                missing.insert(name);
                wanted.push((name, item));
                reads.push((item.object(), range(item)));
            }
        }
        let (in_flight, _gaps) = self.room_for_gaps(&reads);
        let read = read_together(self.engine, &reads, in_flight);
        for ((name, item), bytes) in wanted.into_iter().zip(read) {
            let made = match bytes {
                Ok(bytes) => make(item, &bytes).map_err(Into::into),
                Err(error) => Err(Error::from(error)),
            };
            gathered.insert(name, made);
        }
        gathered
    }
}

/// An item that is read from one object.
trait HasObject {
    fn object(&self) -> ObjectId;
}

impl HasObject for TableProbe {
    fn object(&self) -> ObjectId {
        self.table.meta.object
    }
}

impl HasObject for IndexedProbe {
    fn object(&self) -> ObjectId {
        self.probe.object()
    }
}

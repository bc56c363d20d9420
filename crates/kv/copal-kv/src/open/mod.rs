//! Opening: manifest, sweep of unnamed objects, logs, value objects, worker.
//!
//! Invariants
//! - Afterwards the store holds a prefix of the commit order, with everything that was acknowledged as
//!   durable (KV-1).
//! - Objects and value bytes that neither manifest nor log name are freed. A read-only opening frees nothing.
//! - A gap between logs or a damaged frame is an error, never an end. So is a manifest without an intact copy.
//! - A damaged table costs its own key range, not the opening (`quarantine`).
//!
//! Not here: replay of the logs (`replay`), and of the page-cache log (`replay_page_cache_log`).

pub(crate) mod close;
mod current;
pub(crate) mod leftovers;
pub(crate) mod page_cache_log;
mod replay;

use crate::{
    Error, MemoryBudget, Options,
    compact::{compactor::CompactorState, picker, value_separation::WorkerValues},
    engine::{Engine, first_super_version, open_or_set_apart},
    memory::{
        budget::{MemoryAccounts, MemoryClass},
        cache::TableCache,
        caches::StoreCaches,
        elastic::AtHand,
        rows::RowCache,
    },
    open::leftovers::{FoundObjects, UnnamedObject, unnamed},
    session::{
        counters::EngineCounters, get_recorder::GetRecorder, inline_work::InlineWorker, poison::PoisonFlag,
        signal::WakeSignal,
    },
    table::ReadOptions,
    tree::{
        current_view::CurrentView,
        garbage::{GarbageList, VersionEpochs},
        manifest::{
            Manifest, ObjectRole,
            format::{ManifestRecord, ValueMeta},
            rewrite,
            state::ManifestState,
        },
        memtable::Memtable,
        snapshots::SnapshotList,
        stored::{OpenTree, StoredState},
        value::{interval::page_aligned, pointer::VALUE_PAGE},
        version::{Handles, TreeVersion, filter_level},
    },
    write::{
        admission,
        commit::{
            queue::{CommitQueue, WIDTH},
            values::{DirectValues, GroupKey, OpenObject},
            writer::LogWriter,
        },
        log::WriteLog,
        page_cache_log::random_number,
        path::WritePath,
        pressure::SpacePressure,
        reserve::SpaceReserve,
        throttle::WriteThrottle,
    },
};
use copal_object::{Ack, ObjectId, ObjectStat, Op, Store as Objects};
use current::{Current, go_on};
use parking_lot::Mutex;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use replay::apply_groups;
pub(crate) use replay::insert;
use replay::{NamedValue, OversizePolicy, ReplayedLogs};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// Opens or creates the key-value store in `objects`, within `memory` or a budget of its own; its threads are
/// not running yet.
pub(crate) fn open(
    objects: Objects,
    options: Options,
    memory: Option<&MemoryBudget>,
) -> Result<Arc<Engine>, Error> {
    options.check()?;
    let ownership = objects.own(options.read_only).ok_or(Error::AlreadyOpen)?;
    let own = || {
        let mut filters = options.filters;
        filters.background &= options.threads;
        MemoryBudget::with_filters(options.memory_bytes, filters)
    };
    let memory = memory.cloned().unwrap_or_else(own);
    let budget = memory.accounts().clone();
    let store_count = budget.enter_store();
    let (manifest, state_charge) = match Manifest::open(&objects, &budget)? {
        Some(found) => found,
        None if options.read_only => {
            return Err(Error::corrupt("kv manifest", "there is none: nothing was ever stored here"));
        }
        None => {
            let manifest = Manifest::create(&objects, random_number()?, &budget)?;
            (manifest, budget.charge(MemoryClass::Manifest, 0))
        }
    };
    let found = FoundObjects::list(&objects);
    // A full store may use all remaining space of the object layer to open.
    let loan = objects.lend_system_space();
    objects.limit_in_flight(budget.write_bytes());
    let cache = TableCache::of(&memory);
    let read = ReadOptions { store_seed: manifest.seed };
    let mut handles = Handles::new();
    for (object, table) in &manifest.state.tables {
        let handle = open_or_set_apart(&objects, &cache, read, &table.meta)?;
        let level = filter_level(table.level, table.run);
        let none = &mut AtHand::default();
        handle.table.attach_filters(level, &mut Vec::new(), none);
        handles.insert(*object, handle);
        budget.check_used()?;
    }
    cache.elastic().adjust_to_budget(&AtHand::default());
    let beyond = if options.read_only { OversizePolicy::RefuseToRead } else { OversizePolicy::Flush };
    let mut replayed =
        ReplayedLogs::read(&objects, &manifest.state, &found, &budget, beyond, options.salvage)?;
    let seed = manifest.seed;
    let mut tree = OpenTree { manifest, handles, next_epoch: 2, next_run: 0, state_charge };
    let poison = Arc::new(PoisonFlag::default());
    let mut direct_values = DirectValues::default();
    let mut worker_values = WorkerValues::default();
    if !options.read_only {
        // In a transaction of its own, since the edit that frees the other objects may be a rewrite itself.
        rewrite::discard(&objects).map_err(|error| poison.failed_write(error))?;
        let sweep = OpeningSweep::new(&tree.manifest.state, &found, &replayed);
        sweep.run(&objects, &poison, &mut tree.manifest)?;
        resume_values(&objects, &tree.manifest.state, &mut direct_values, &mut worker_values);
    }
    tree.count_state();
    let signal = Arc::new(WakeSignal::default());
    let epochs = Arc::new(VersionEpochs::new(signal.clone()));
    let version = TreeVersion::new(1, &tree.manifest.state, &tree.handles, &epochs, &budget);
    let next_object = next_object(&tree.manifest.state, &found);
    let memtables = std::mem::take(&mut replayed.memtables);
    let newest = found.logs.keys().next_back().copied().unwrap_or(0);
    let generation = newest.max(tree.manifest.state.flushed_generation) + 1;
    let (writer, active, frozen) =
        current_log(&objects, &options, &budget, generation, memtables, next_object)?;
    drop(loan);
    let reserve = if options.read_only {
        SpaceReserve::none()
    } else {
        SpaceReserve::new(&objects, options.table_bytes)
    };
    let snapshots = Arc::new(SnapshotList::default());
    snapshots.advance(replayed.last_seq);
    let engine = Engine {
        objects,
        seed,
        lost_of_logs: replayed.lost.take().unwrap_or_default(),
        budget,
        caches: StoreCaches { cache, rows: RowCache::new(&memory) },
        writes: WritePath {
            queue: CommitQueue::new(WIDTH, snapshots.clone(), poison.clone()),
            writer: Mutex::new(writer),
            direct_values: Mutex::new(direct_values),
            reserve,
            pressure: SpacePressure::default(),
            throttle: WriteThrottle::default(),
        },
        stored: StoredState {
            tree: Mutex::new(tree),
            epochs,
            garbage: GarbageList::default(),
            damaged_values: Mutex::default(),
        },
        compactor: CompactorState::new(worker_values),
        attendant: InlineWorker::default(),
        _store_count: store_count,
        ownership: Mutex::new(Some(ownership)),
        view: CurrentView::new(first_super_version(active, frozen, version)),
        snapshots,
        signal,
        poison,
        counters: EngineCounters::default(),
        recorder: GetRecorder::default(),
        next_object: AtomicU64::new(next_object + 1),
        closed: AtomicBool::new(false),
        options,
    };
    let version = engine.super_version().version.clone();
    picker::count_tiers(&engine.counters, &version);
    drop(version);
    if replayed.is_too_much
        && let Err(error) = replay::flush_logs(&engine, replayed, &found)
    {
        replay::keep_logs(&engine, &found, error)?;
    }
    page_cache_log::replay_page_cache_log(&engine, &found)?;
    if !admission::has_reserve_beside(&engine, 0) {
        engine.writes.pressure.begin();
    }
    Ok(Arc::new(engine))
}

/// Operations and records that free unnamed objects and bytes.
#[derive(Default)]
struct OpeningSweep {
    ops: Vec<Op>,
    records: Vec<ManifestRecord>,
}

impl OpeningSweep {
    fn new(state: &ManifestState, found: &FoundObjects, replayed: &ReplayedLogs) -> OpeningSweep {
        let mut sweep = OpeningSweep::default();
        for UnnamedObject { object, role, explained } in
            unnamed(state, found, |value| replayed.named.contains_key(value))
        {
            if role == ObjectRole::Manifest {
                continue;
            }
            if !explained {
                tracing::warn!(object = object.0, "deleting an object without owner that no crash explains");
            }
            sweep.ops.push(Op::Delete { id: object });
        }
        for (object, stat) in &found.values {
            sweep.value(state, *object, stat, replayed.named.get(object));
        }
        let below = next_object(state, found);
        if state.settled_below != below {
            sweep.records.push(ManifestRecord::Settled { below });
        }
        sweep
    }

    /// Frees the unnamed bytes of a named value object: its tail, or pages inside.
    fn value(
        &mut self,
        state: &ManifestState,
        object: ObjectId,
        stat: &ObjectStat,
        named: Option<&NamedValue>,
    ) {
        let known = state.values.get(&object);
        let mut meta = match (known, named) {
            (None, None) => return,
            (Some(value), _) => value.meta.clone(),
            (None, Some(named)) => ValueMeta {
                object,
                keyspace: named.group.keyspace,
                group: named.group.prefix.clone(),
                accounted: 0,
                max_seq: 0,
                by_worker: false,
            },
        };
        let mut covered = named.map(|named| named.ranges.clone()).unwrap_or_default();
        covered.insert(0..meta.accounted);
        let mut orphans: Vec<Range<u64>> = covered.gaps(stat.len);
        let mut len = stat.len;
        if let Some(tail) = orphans.pop_if(|gap| gap.end == len) {
            len = tail.start;
            self.ops.push(Op::Truncate { id: object, len });
        }
        let mut dead = known.map(|value| value.dead.clone()).unwrap_or_default();
        for gap in &orphans {
            dead.insert(gap.clone());
        }
        // If a crash undid a punch, the object occupies more than expected.
        let expected = len.next_multiple_of(VALUE_PAGE) - dead.whole_pages(VALUE_PAGE);
        if !orphans.is_empty() || dead.len() > 0 && stat.allocated_bytes > expected {
            let pages = dead.iter().filter_map(|range| page_aligned(&range, VALUE_PAGE));
            self.ops.extend(pages.map(|range| Op::Punch { id: object, range }));
        }
        let max_seq = meta.max_seq.max(named.map_or(0, |named| named.max_seq));
        if known.is_none() || meta.accounted != len || meta.max_seq != max_seq {
            (meta.accounted, meta.max_seq) = (len, max_seq);
            self.records.push(ManifestRecord::Value(meta));
        }
        if !orphans.is_empty() {
            self.records.push(ManifestRecord::Dead { object, ranges: orphans });
        }
    }

    fn run(self, objects: &Objects, poison: &PoisonFlag, manifest: &mut Manifest) -> Result<(), Error> {
        const OPS_AT_ONCE: usize = 32;
        let OpeningSweep { mut ops, records } = self;
        while ops.len() > OPS_AT_ONCE {
            let rest = ops.split_off(OPS_AT_ONCE);
            let part = std::mem::replace(&mut ops, rest);
            manifest.commit(objects, poison, part, &[], Ack::Ordered)?;
        }
        if ops.is_empty() && records.is_empty() {
            return Ok(());
        }
        manifest.commit(objects, poison, ops, &records, Ack::Ordered)?;
        // No reader from before the opening waits for them.
        manifest.state.dropped.clear();
        Ok(())
    }
}

/// The first id that was never used.
fn next_object(state: &ManifestState, found: &FoundObjects) -> u64 {
    (found.highest + 1).max(state.next_object)
}

/// Continues the newest value object of each group.
fn resume_values(
    objects: &Objects,
    state: &ManifestState,
    direct: &mut DirectValues,
    worker: &mut WorkerValues,
) {
    for value in state.values.values() {
        let meta = &value.meta;
        // The object must end at its accounted length, or the next append would get another offset.
        if objects.stat(meta.object).is_none_or(|stat| stat.len != meta.accounted) {
            continue;
        }
        let group = GroupKey { keyspace: meta.keyspace, prefix: meta.group.clone() };
        let open = OpenObject { object: meta.object, len: meta.accounted, max_seq: meta.max_seq };
        if meta.by_worker {
            worker.resume(group, open);
        } else if meta.accounted.is_multiple_of(VALUE_PAGE) {
            direct.resume(group, open);
        }
    }
}

/// Continues the newest log; older ones wait for their flush. If there is none, begins a new one of
/// `generation`.
fn current_log(
    objects: &Objects,
    options: &Options,
    budget: &MemoryAccounts,
    generation: u64,
    memtables: Vec<(Arc<Memtable>, u64)>,
    next_object: u64,
) -> Result<Current, Error> {
    if let Some(current) = go_on(memtables) {
        return Ok(current);
    }
    if options.read_only {
        let log = WriteLog::resume(0, ObjectId(0), 0);
        return Ok((LogWriter::new(log), Arc::new(Memtable::new(0, ObjectId(0))), Vec::new()));
    }
    let log = WriteLog::create(objects, generation, ObjectId(next_object))?;
    let active = Memtable::new(generation, log.stream).with_filter(budget.memtable_bytes());
    let active = Arc::new(active);
    budget.watch(&active);
    Ok((LogWriter::new(log), active, Vec::new()))
}

#[cfg(test)]
mod tests;

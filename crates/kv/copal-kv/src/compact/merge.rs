//! One flush, and one step of a merge.
//!
//! Invariants
//! - All versions of a key are merged in one step: a step ends between two user keys.
//! - A failed step leaves the tree and the value objects unchanged.

use super::{
    install::TreeChange,
    output::RunOutput,
    picker::MergeJob,
    value_separation::{ValueSeparation, WorkerValues},
    version_gc::{SurvivingVersions, VersionVerdict},
};
use crate::{
    Error,
    broken::Flaw,
    compact::{install, parallel_merge},
    engine::Engine,
    format::{
        entry::{Entry, EntryKind, KEYSPACE_LEN, KeyRange, KeyspaceId, RangeTombstone, keyspace_of},
        entry_cursor::Cursor,
        merge::MergingCursor,
        range_tombstones::tombstones_of,
    },
    memory::budget::MemoryClass as Memory,
    session::{counters::EngineCounters, options::KeyspaceOptions},
    table::{ReadSizes, Scan},
    tree::{
        damaged_parts,
        inheritance::HeatInheritance,
        manifest::format::{ManifestRecord, TreeLevel},
        memtable::Memtable,
        value::{
            self,
            pointer::{VALUE_PAGE, ValuePointer},
        },
        version::{SortedRun, TableSlice, TreeVersion, filter_level},
    },
    write::{admission, commit::values::GroupKey},
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{ObjectId, Op};
use std::{collections::HashSet, ops::Range, sync::Arc, time::Instant};

/// Entries between two checks for due deferred writes and for the end of the session.
const LOOK_EVERY: u64 = 1024;
/// Most value bytes that one step moves; the step then ends, however small its table is.
const MOVED_BYTES: u64 = 32 << 20;
/// The same as a divisor of the store's size: moved values occupy both places until the step ends.
const MOVED_SHARE: u64 = 128;
/// A table smaller than the wanted size divided by this is merged with its neighbours instead of moved.
const SMALL_TABLE: u64 = 8;

/// Treatment of values in one step.
struct StepValues<'a> {
    engine: &'a Engine,
    separation: ValueSeparation<'a>,
    /// Separate values from the keyspace's threshold on.
    separate: bool,
    rewrite: &'a HashSet<ObjectId>,
    options: Option<(KeyspaceId, KeyspaceOptions)>,
    dead: Vec<(ObjectId, Range<u64>)>,
}

impl StepValues<'_> {
    /// Options of the keyspace of `key`.
    fn options(&mut self, key: &[u8]) -> Option<&KeyspaceOptions> {
        let keyspace = keyspace_of(key)?;
        if self.options.as_ref().is_none_or(|(id, _)| *id != keyspace) {
            self.options = Some((keyspace, self.engine.keyspace_options(keyspace)));
        }
        self.options.as_ref().map(|(_, options)| options)
    }

    /// The head of a value, which stays beside its pointer.
    fn head_of<'v>(&mut self, key: &[u8], value: &'v [u8]) -> &'v [u8] {
        self.options(key).map_or(&[], |options| options.head_of(value))
    }

    /// New kind and value of the entry in the output table; `None`: unchanged.
    fn place(&mut self, entry: Entry<'_>) -> Result<Option<(EntryKind, Vec<u8>)>, Error> {
        let engine = self.engine;
        let failed = |error| engine.poison.failed_write(error);
        match entry.kind {
            EntryKind::Put if self.separate => {
                let long =
                    |options: &&KeyspaceOptions| entry.value.len() >= options.separate_from_bytes as usize;
                let options = self.options(entry.key).filter(long);
                let Some(group) = options.and_then(|options| group_of(options, entry.key)) else {
                    return Ok(None);
                };
                let new_object = || engine.new_object();
                let head = self.head_of(entry.key, entry.value);
                let pointer = self
                    .separation
                    .place(&group, entry.value, head, entry.seq, new_object)
                    .map_err(failed)?;
                Ok(Some((EntryKind::Pointer, pointer.to_vec())))
            }
            EntryKind::Pointer if !self.rewrite.is_empty() => {
                let pointer = ValuePointer::decode(entry.value)?;
                if !self.rewrite.contains(&pointer.object) {
                    return Ok(None);
                }
                let options = self.options(entry.key);
                let Some(group) = options.and_then(|options| group_of(options, entry.key)) else {
                    return Ok(None);
                };
                let _value = engine.budget.charge(Memory::Merges, u64::from(pointer.len));
                let all = 0..u64::from(pointer.len);
                let value = match value::read(&engine.objects, entry.value, &all, IoClass::Background) {
                    // It stays in its object, which is kept; reads of it answer `Corrupt`.
                    Err(error) if error.is_corruption() => {
                        tracing::error!(%error, "a separated value is damaged and is not moved");
                        return Ok(None);
                    }
                    value => value?,
                };
                let new_object = || engine.new_object();
                let moved = self
                    .separation
                    .place(&group, &value, &pointer.head, entry.seq, new_object)
                    .map_err(failed)?;
                self.dead.push((pointer.object, pointer.range()));
                Ok(Some((EntryKind::Pointer, moved.to_vec())))
            }
            _ => Ok(None),
        }
    }

    /// Records that the value of a dropped entry is dead.
    fn drop_value(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        if entry.kind == EntryKind::Pointer {
            let pointer = ValuePointer::decode(entry.value)?;
            self.dead.push((pointer.object, pointer.range()));
        }
        Ok(())
    }
}

/// The value group of `key`.
pub(crate) fn group_of(options: &KeyspaceOptions, key: &[u8]) -> Option<GroupKey> {
    let keyspace = keyspace_of(key)?;
    let user = &key[KEYSPACE_LEN..];
    let prefix = &user[..user.len().min(usize::from(options.group_prefix_len))];
    Some(GroupKey { keyspace, prefix: Bytes::copy_from_slice(prefix) })
}

/// Writes the oldest frozen memtable to tables; `true` when there was one.
pub(crate) fn flush_oldest(engine: &Engine) -> Result<bool, Error> {
    // Released last, so that a waiter finds the memtable's memory returned.
    let mut values = engine.compactor.worker_values.lock();
    let view = engine.super_version();
    let Some(memtable) = view.frozen.last().cloned() else {
        return Ok(false);
    };
    drop(view);
    flush_log(engine, &mut values, &memtable)?;
    Ok(true)
}

/// Writes a memtable with the whole rest of its log to tables, and deletes the log.
pub(crate) fn flush_log(
    engine: &Engine,
    values: &mut WorkerValues,
    memtable: &Arc<Memtable>,
) -> Result<(), Error> {
    let mut change = TreeChange { flushed: Some(memtable.generation), ..TreeChange::default() };
    let delete_log = Op::Delete { id: memtable.log };
    if engine.broken(Flaw::LogDeletedEarly) {
        engine.too_early(vec![delete_log])?;
    } else {
        change.ops.push(delete_log);
    }
    flush(engine, values, memtable, memtable.generation, change)
}

/// Writes a memtable whose log continues after it to tables; everything before it must be in tables already.
pub(crate) fn flush_part(
    engine: &Engine,
    values: &mut WorkerValues,
    memtable: &Arc<Memtable>,
) -> Result<(), Error> {
    flush(engine, values, memtable, memtable.generation - 1, TreeChange::default())
}

/// On return the logs up to `generation` and all sequences of `memtable` are in tables.
fn flush(
    engine: &Engine,
    values: &mut WorkerValues,
    memtable: &Arc<Memtable>,
    generation: u64,
    mut change: TreeChange,
) -> Result<(), Error> {
    let view = engine.super_version();
    let bottom = view.version.runs.is_empty();
    let heat_of = HeatInheritance(view.version.runs.clone());
    drop(view);
    let began = Instant::now();
    let survivors = SurvivingVersions::new(&memtable.range_deletes(), engine.snapshots.stripes(), bottom);
    change.records.extend(memtable.value_metas().into_iter().map(ManifestRecord::Value));
    let last_seq = memtable.last_seq();
    change.records.push(ManifestRecord::Flushed { generation, last_seq });
    let mut cursor = memtable.cursor();
    cursor.first()?;
    let run = engine.new_run();
    let step = MergeStep {
        level: TreeLevel::TOP,
        run,
        range: KeyRange::all(),
        whole: true,
        separate: true,
        output_bytes: parallel_merge::output_bytes(engine),
        heat_of: Arc::new(heat_of),
    };
    write_step(engine, values, survivors, cursor, &step, &HashSet::new(), change, Vec::new())?;
    EngineCounters::add(&engine.counters.flushes, 1);
    EngineCounters::add(&engine.counters.flushed_bytes, memtable.charged_bytes());
    EngineCounters::add_time(&engine.counters.flush_nanos, began);
    Ok(())
}

/// Progress of one step.
enum StepOutcome {
    /// Nothing was left to do in the range.
    Finished,
    /// A table moved by a record, or the step met damage.
    Moved,
    Merged,
}

/// Like [`merge_step`]. Where the store is full, one thread repeats the step with the reserve.
pub(crate) fn step_in_reserve(engine: &Engine, job: &mut MergeJob) -> Result<bool, Error> {
    let mut threads = usize::MAX;
    admission::in_reserve(engine, || merge_step(engine, job, std::mem::replace(&mut threads, 1)))
}

/// Does the next step of `job` in each of its first ranges, on a thread each; `false` when the job is
/// finished. At most `most_threads` take part.
///
/// A step that meets damage changes nothing, and the next step avoids the damaged range.
pub(crate) fn merge_step(engine: &Engine, job: &mut MergeJob, most_threads: usize) -> Result<bool, Error> {
    let version = engine.super_version().version.clone();
    let runs = inputs_of(job, &version);
    let threads = parallel_merge::threads(engine, runs.len()).min(most_threads);
    parallel_merge::divide(&mut job.ranges, &runs, threads, engine.table_bytes());
    let mut ranges = std::mem::take(&mut job.ranges);
    let now = ranges.len().min(threads);
    let began = Instant::now();
    let outcomes = parallel_merge::on_each(&mut ranges[..now], |range| {
        let step = MergeInput { job, runs: &runs, version: &version, threads: now as u64 };
        step_around_damage(engine, &step, range)
    });
    let mut merged = 0;
    let mut worked = false;
    let mut result = Ok(());
    for (range, outcome) in ranges.iter_mut().zip(outcomes) {
        match outcome {
            // No thread for it: it stays for the next step.
            None => {}
            Some(Ok(StepOutcome::Finished)) => range.start = range.end.clone(),
            Some(Ok(StepOutcome::Moved)) => worked = true,
            Some(Ok(StepOutcome::Merged)) => merged += 1,
            Some(Err(error)) => result = Err(error),
        }
    }
    ranges.retain(|range| !range.is_empty());
    job.ranges = ranges;
    if merged > 0 {
        EngineCounters::add(&engine.counters.merges, merged);
        // The wall time of all threads together: writers are delayed until the merges are done.
        EngineCounters::add_time(&engine.counters.merge_nanos, began);
    }
    result.map(|()| worked || merged > 0 || !job.ranges.is_empty())
}

/// Input of the steps of one job.
struct MergeInput<'a> {
    job: &'a MergeJob,
    runs: &'a [Arc<SortedRun>],
    version: &'a TreeVersion,
    /// Threads that share the memory for merges.
    threads: u64,
}

/// The input runs of a job. Another job may have created the bottom run that this one writes to.
fn inputs_of(job: &MergeJob, version: &TreeVersion) -> Vec<Arc<SortedRun>> {
    let named = |run: &&Arc<SortedRun>| {
        job.inputs.contains(&(run.level, run.id))
            || job.target.level == TreeLevel::BOTTOM && run.level == TreeLevel::BOTTOM
    };
    version.runs.iter().filter(named).cloned().collect()
}

fn step_around_damage(
    engine: &Engine,
    input: &MergeInput<'_>,
    range: &mut KeyRange,
) -> Result<StepOutcome, Error> {
    // A step that moves values may append to the same objects as a flush, so a flush has to wait.
    let mut shared = (!input.job.rewrite.is_empty()).then(|| engine.compactor.worker_values.lock());
    let mut none = WorkerValues::default();
    let values = shared.as_deref_mut().unwrap_or(&mut none);
    let known = damaged_parts::parts(input.version).len();
    match range_step(engine, input, values, range) {
        Err(error) if error.is_corruption() && damaged_parts::parts(input.version).len() > known => {
            Ok(StepOutcome::Moved)
        }
        result => result,
    }
}

/// Does the next step in `left`, and moves its start behind it.
fn range_step(
    engine: &Engine,
    input: &MergeInput<'_>,
    values: &mut WorkerValues,
    left: &mut KeyRange,
) -> Result<StepOutcome, Error> {
    let MergeInput { job, runs, version, threads } = *input;
    let Some(range) = next_free_range(job, left, runs, &damaged_parts::ranges(version)) else {
        return Ok(StepOutcome::Finished);
    };
    if let Some((record, end)) = movable(job, runs, &range, engine.table_bytes() / SMALL_TABLE) {
        left.start = end;
        install::install(engine, TreeChange { records: vec![record], ..TreeChange::default() })?;
        return Ok(StepOutcome::Moved);
    }
    let slices: Vec<TableSlice> =
        runs.iter().flat_map(|run| run.overlapping(&range).cloned().collect::<Vec<_>>()).collect();
    let mut tombstones: Vec<RangeTombstone> = Vec::new();
    for slice in &slices {
        let inside = slice.table.tombstones.clipped(&slice.range.intersect(&range));
        tombstones.extend(tombstones_of(&inside));
    }
    let bottom = !has_older(version, runs, &range);
    let survivors = SurvivingVersions::new(&tombstones, engine.snapshots.stripes(), bottom);
    let bytes = |run: &Arc<SortedRun>| run.overlapping(&range).map(|slice| slice.table.meta.bytes).sum();
    let bytes: Vec<u64> = runs.iter().map(bytes).collect();
    let room = parallel_merge::read_bytes(engine) / threads;
    let scans = Scan::beside(&bytes, room, ReadSizes::of(&engine.objects));
    let cursors = runs.iter().zip(scans).map(|(run, scan)| run.cursor(&range, scan));
    let mut cursor = MergingCursor::new(cursors.collect());
    cursor.first()?;
    let MergeJob { target, rewrite, .. } = job;
    let step = MergeStep {
        level: target.level,
        run: target.run,
        range,
        whole: false,
        separate: false,
        output_bytes: parallel_merge::output_bytes(engine) / threads,
        heat_of: Arc::new(HeatInheritance(runs.iter().rev().cloned().collect())),
    };
    left.start =
        write_step(engine, values, survivors, cursor, &step, rewrite, TreeChange::default(), slices)?;
    Ok(StepOutcome::Merged)
}

/// Writes the surviving entries of `cursor` to tables of a run and installs them. Returns the key at which
/// the step ended.
#[expect(clippy::too_many_arguments, reason = "one call site for flush, one for merge; all of them differ")]
fn write_step(
    engine: &Engine,
    worker: &mut WorkerValues,
    mut survivors: SurvivingVersions,
    mut cursor: impl Cursor,
    step: &MergeStep,
    rewrite: &HashSet<ObjectId>,
    mut change: TreeChange,
    inputs: Vec<TableSlice>,
) -> Result<Bytes, Error> {
    engine.poison.check()?;
    let mut values = StepValues {
        engine,
        separation: ValueSeparation::new(&engine.objects, &engine.budget, worker),
        separate: step.separate,
        rewrite,
        options: None,
        dead: Vec::new(),
    };
    let mut output = RunOutput::new(
        engine,
        step.range.start.clone(),
        step.level == TreeLevel::BOTTOM,
        (step.heat_of.clone(), filter_level(step.level, step.run)),
        step.output_bytes,
    );
    let written = copy(engine, &mut values, &mut survivors, &mut cursor, &mut output, step);
    let finished = written.and_then(|cut| {
        let metas = values.separation.finish().map_err(|error| engine.poison.failed_write(error))?;
        Ok((cut, metas))
    });
    let (cut, metas) = match finished {
        Ok(done) => done,
        Err(error) => return Err(abandon(engine, values.separation, worker, error)),
    };
    let taken = KeyRange { start: step.range.start.clone(), end: cut.clone() };
    let StepValues { separation, dead, .. } = values;
    change.records.extend(metas.into_iter().map(ManifestRecord::Value));
    {
        let tree = engine.stored.tree.lock();
        for (object, range) in dead {
            let direct = tree.manifest.state.values.get(&object).is_some_and(|value| !value.meta.by_worker)
                || change.records.iter().any(
                    |record| matches!(record, ManifestRecord::Value(meta) if meta.object == object && !meta.by_worker),
                );
            let end = if direct { range.end.next_multiple_of(VALUE_PAGE) } else { range.end };
            change.dead.entry(object).or_default().push(range.start..end);
        }
    }
    change.merged = Some((inputs, taken.clone()));
    let tables: u64 = output.written.iter().map(|written| written.meta.bytes).sum();
    EngineCounters::add(&engine.counters.write_bytes, tables + separation.written);
    for written in output.written {
        change.add_table(written, step.level, step.run);
    }
    match install::install(engine, change) {
        Ok(()) => {
            separation.keep(worker);
            engine.compactor.deletions.add_found(survivors.found());
            if step.level == TreeLevel::BOTTOM {
                engine.compactor.deletions.forget_passed(&taken);
            }
            Ok(cut)
        }
        Err(error) => Err(abandon(engine, separation, worker, error)),
    }
}

/// Copies entries until the step's table is full or its range ends; returns the key at which it stopped.
fn copy(
    engine: &Engine,
    values: &mut StepValues<'_>,
    survivors: &mut SurvivingVersions,
    cursor: &mut impl Cursor,
    output: &mut RunOutput<'_>,
    step: &MergeStep,
) -> Result<Bytes, Error> {
    let size = engine.objects.space().size_bytes;
    let moved_bytes = MOVED_BYTES.min((size / MOVED_SHARE).max(256 << 10));
    let mut seen = 0u64;
    while let Some(entry) = cursor.entry() {
        seen += 1;
        if seen.is_multiple_of(LOOK_EVERY) {
            // The flusher may be logging them too, or be waiting for the log.
            admission::log_deferred(engine);
            if step.whole {
                // A flush is not interrupted.
            } else if engine.signal.stopping() {
                return Err(Error::Closed);
            }
        }
        if !step.whole && values.separation.written >= moved_bytes {
            output.end_soon();
        }
        if output.is_full_before(entry.key) {
            let cut = survivors.border_before(entry.key);
            output.cut(survivors, cut.clone())?;
            if !step.whole {
                return Ok(cut);
            }
        }
        match survivors.judge(cursor)? {
            VersionVerdict::Drop => values.drop_value(entry)?,
            VersionVerdict::Keep { droppable } => match values.place(entry)? {
                None => output.add(entry, droppable)?,
                Some((kind, value)) => output.add(Entry { kind, value: &value, ..entry }, droppable)?,
            },
        }
        cursor.next()?;
    }
    output.cut(survivors, step.range.end.clone())?;
    Ok(step.range.end.clone())
}

/// Truncates the bytes that a failed step appended to value objects.
fn abandon(
    engine: &Engine,
    separation: ValueSeparation<'_>,
    worker: &mut WorkerValues,
    error: Error,
) -> Error {
    if engine.poison.check().is_ok()
        && let Err(second) = separation.abandon(worker)
    {
        engine.poison.set(&format!("could not truncate the separated values of a failed step: {second}"));
    }
    error
}

/// Input and output of one step.
struct MergeStep {
    level: TreeLevel,
    run: u64,
    range: KeyRange,
    /// All tables in one transaction (a flush), instead of one table per step.
    whole: bool,
    separate: bool,
    /// Memory of the buffers of its table, bytes.
    output_bytes: u64,
    /// Source of the filters' inherited heat.
    heat_of: Arc<HeatInheritance>,
}

/// Like [`next_range`], but without quarantined ranges.
fn next_free_range(
    job: &MergeJob,
    left: &mut KeyRange,
    runs: &[Arc<SortedRun>],
    apart: &[KeyRange],
) -> Option<KeyRange> {
    let mut rest = left.clone();
    while let Some(free) = damaged_parts::next_free(&mut rest, apart) {
        rest.start = free.end.clone();
        left.start = free.start.clone();
        if let Some(found) = next_range(job, &free, runs) {
            return Some(found);
        }
    }
    None
}

/// Key range of the job's next step inside `left`: from the next key that needs work to the next key that
/// does not.
fn next_range(job: &MergeJob, left: &KeyRange, runs: &[Arc<SortedRun>]) -> Option<KeyRange> {
    let (upper, bottom): (Vec<&Arc<SortedRun>>, Vec<&Arc<SortedRun>>) =
        runs.iter().partition(|run| run.level != job.target.level || job.target.level != TreeLevel::BOTTOM);
    let needs_work = |slice: &TableSlice| {
        let meta = &slice.table.meta;
        job.thorough && meta.droppable > 0
            || meta.values.iter().any(|(object, _)| job.rewrite.contains(object))
    };
    let upper_slices = upper.iter().flat_map(|run| run.overlapping(left));
    let bottom_slices = bottom.iter().flat_map(|run| run.overlapping(left)).filter(|s| needs_work(s));
    let first = upper_slices.chain(bottom_slices).map(|slice| &slice.range.start).min()?;
    let mut start = left.start.clone().max(first.clone());
    let holding = bottom.iter().find_map(|run| run.find(&start));
    if let Some(slice) = holding {
        start = left.start.clone().max(slice.range.start.clone());
    }
    // The step ends at the first table of the bottom that no other input overlaps, since that table stays in
    // place.
    let rest = KeyRange { start: start.clone(), end: left.end.clone() };
    let untouched = |slice: &&TableSlice| {
        slice.range.start > start
            && !needs_work(slice)
            && upper.iter().all(|run| run.overlapping(&slice.range).next().is_none())
    };
    let end = bottom
        .iter()
        .flat_map(|run| run.overlapping(&rest))
        .find(untouched)
        .map_or(rest.end.clone(), |slice| slice.range.start.clone());
    Some(KeyRange { start, end })
}

/// The manifest record that moves a table which no other input overlaps, and the end of that table.
fn movable(
    job: &MergeJob,
    runs: &[Arc<SortedRun>],
    range: &KeyRange,
    least_bytes: u64,
) -> Option<(ManifestRecord, Bytes)> {
    let slices: Vec<(&Arc<SortedRun>, &TableSlice)> =
        runs.iter().flat_map(|run| run.overlapping(range).map(move |slice| (run, slice))).collect();
    let (run, first) = *slices.iter().min_by(|a, b| a.1.range.start.cmp(&b.1.range.start))?;
    let meta = &first.table.meta;
    let alone =
        slices.iter().all(|(other, slice)| Arc::ptr_eq(other, run) || !slice.range.overlaps(&first.range));
    let target = job.target;
    let settled = (run.level, run.id) == (target.level, target.run);
    let clean = meta.droppable == 0 && !meta.values.iter().any(|(object, _)| job.rewrite.contains(object));
    let whole = first.is_whole() && range.covers(&first.range);
    if settled || !alone || !clean || !whole || meta.bytes < least_bytes {
        return None;
    }
    let end = first.range.end.clone();
    let parts = vec![first.range.start.clone()..end.clone()];
    Some((ManifestRecord::Slices { object: meta.object, level: target.level, run: target.run, parts }, end))
}

/// Whether a run older than the inputs holds keys of `range`.
fn has_older(version: &TreeVersion, inputs: &[Arc<SortedRun>], range: &KeyRange) -> bool {
    let Some(last) = inputs.last() else { return true };
    let behind = version.runs.iter().skip_while(|run| !Arc::ptr_eq(run, last)).skip(1);
    behind.into_iter().any(|run| run.overlapping(range).next().is_some())
}

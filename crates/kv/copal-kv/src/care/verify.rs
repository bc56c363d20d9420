//! Consistency check of an open store: names, accounts, and on request every byte.
//!
//! Invariants checked
//! - Every object with one of this engine's labels is named by the manifest, is the manifest, or is a log of
//!   a memtable; no named object is missing. Leftovers that a kill explains are counted, but are no problem
//!   (`leftovers`).
//! - In each value object, the values that entries point to and the dead ranges do not overlap, and together
//!   they cover all accounted bytes.
//!
//! Names and accounts are taken at one moment, under the locks. The entries of that moment are then read from
//! a view, which keeps tables and values from being freed, so nothing waits.
//!
//! Not here: the object layer's own checks, repair.

use crate::{
    Error,
    engine::Engine,
    format::{
        entry::{EntryKind, KeyRange, MAX_SEQ},
        entry_cursor::Cursor,
    },
    memory::budget::{MemoryCharge, MemoryClass as Memory},
    open::leftovers::{FoundObjects, UnnamedObject, unnamed},
    table::{DamagedKeys, Scan, TableVerifier},
    tree::{
        garbage::GarbageItem,
        manifest::{MANIFEST, state::ValueState},
        stored::OpenTree,
        value::{
            self,
            interval::IntervalSet,
            pointer::{VALUE_PAGE, ValuePointer},
        },
        version::{SortedRun, SuperVersion, TableSlice},
    },
};
use arc_swap::Guard;
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::ObjectId;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

/// Values between two reports of progress.
const TELL_AFTER_VALUES: u64 = 64;

/// Depth of a verification; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerifyDepth {
    /// Names and accounts; walks every entry.
    Accounts,
    /// Every byte of every table.
    Tables,
    /// Every separated value.
    Values,
}

/// Result of [`Store::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Tables checked.
    pub tables: u64,
    /// Entries in tables and memtables, all versions.
    pub entries: u64,
    /// Separated values that entries point to.
    pub values: u64,
    /// Their bytes.
    pub value_bytes: u64,
    /// Bytes of the tables that were read, if all are.
    pub table_bytes: u64,
    /// Objects that a kill left: dropped ones, or outputs of an unfinished step. They are no damage; the next
    /// opening that may write frees them. Only a store that is open read-only has any.
    pub leftovers: u64,
    /// Their bytes, and the bytes at the ends of value objects that no log names.
    pub leftover_bytes: u64,
    /// One sentence per problem; empty: the store is sound.
    pub problems: Vec<String>,
}

impl VerifyReport {
    /// Whether there are no problems.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }
}

/// State of the store at one moment.
struct StoreMoment {
    view: Arc<SuperVersion>,
    /// Last sequence allocated to a commit; memtables keep filling.
    newest: u64,
    /// Accounts of the value objects.
    values: BTreeMap<ObjectId, ValueState>,
    _charge: MemoryCharge,
}

type Pointers = BTreeMap<ObjectId, Vec<Range<u64>>>;

/// A running verification.
struct StoreVerification<'a> {
    depth: VerifyDepth,
    /// Places of the values that entries point to.
    pointers: Pointers,
    report: VerifyReport,
    told: &'a mut dyn FnMut(&VerifyReport),
}

/// As [`crate::Store::verify_telling`].
pub(crate) fn verify(
    engine: &Engine,
    depth: VerifyDepth,
    told: &mut dyn FnMut(&VerifyReport),
) -> Result<VerifyReport, Error> {
    run(engine, StoreVerification { depth, pointers: Pointers::new(), report: VerifyReport::default(), told })
}

fn run(engine: &Engine, mut to: StoreVerification<'_>) -> Result<VerifyReport, Error> {
    let StoreMoment { view, newest, values, _charge } = verify_names_now(engine, &mut to.report);
    for memtable in view.memtables() {
        let mut cursor = memtable.cursor();
        cursor.first()?;
        collect(engine, &view, newest, &mut cursor, &mut to)?;
    }
    let mut unsure: HashSet<ObjectId> = HashSet::new();
    for run in &view.version.runs {
        for slice in &run.slices {
            to.report.tables += 1;
            if to.depth >= VerifyDepth::Tables {
                let found = TableVerifier::new(&slice.table.table).verify(IoClass::Background)?;
                for damaged in found.damaged.iter().filter(|damaged| concerns(slice, damaged)) {
                    to.report.problem(damaged.to_string());
                }
                to.report.table_bytes += slice.bytes();
                (to.told)(&to.report);
            }
            if !walk_slice(engine, &view, run, slice, &mut to)? {
                unsure.extend(slice.table.meta.values.iter().map(|(object, _)| *object));
            }
        }
    }
    let StoreVerification { mut pointers, mut report, told, .. } = to;
    told(&report);
    for (object, value) in &values {
        let live = pointers.remove(object).unwrap_or_default();
        if unsure.contains(object) {
            // Pointers of a damaged range are unknown, so live bytes cannot be told from lost ones.
            continue;
        }
        verify_accounts(*object, value, live, &mut report);
    }
    Ok(report)
}

/// Checks the names, and collects the rest of the state at this moment.
fn verify_names_now(engine: &Engine, report: &mut VerifyReport) -> StoreMoment {
    // Between two steps of the worker, two flushes and two commit groups, so that all their outputs have
    // names. The flusher sometimes begins a log, which has a name when the writer lock is free again.
    let _writer = engine.writes.writer.lock();
    let _still = engine.compactor.stand_still();
    let _values = engine.writes.direct_values.lock();
    // A commit that failed midway poisons the store; its remains have no owner.
    let _ = engine.writes.queue.drain();
    let tree = engine.stored.tree.lock();
    let view = engine.super_version();
    verify_names(engine, &tree, &view, report);
    let state = &tree.manifest.state;
    StoreMoment {
        view: Guard::into_inner(view),
        newest: engine.snapshots.allocated_seq(),
        values: state.values.clone(),
        _charge: engine.budget.charge(Memory::Manifest, state.heap_bytes()),
    }
}

/// Counts the entries of a slice outside its damaged parts; `false`: it has such parts.
fn walk_slice(
    engine: &Engine,
    view: &SuperVersion,
    run: &SortedRun,
    slice: &TableSlice,
    to: &mut StoreVerification<'_>,
) -> Result<bool, Error> {
    let scan = Scan { class: IoClass::Background, whole: true, ..Scan::default() };
    let mut whole = true;
    let mut rest = slice.range.clone();
    loop {
        let mut cursor = run.cursor(&rest, scan);
        let walked = cursor.first().and_then(|()| collect(engine, view, MAX_SEQ, &mut cursor, to));
        let Err(error) = walked else {
            return Ok(whole);
        };
        if !error.is_corruption() {
            return Err(error);
        }
        if to.depth < VerifyDepth::Tables {
            to.report.problem(error.to_string());
        }
        whole = false;
        // Entries before the damage were counted; continue after it.
        let lost = slice.table.table.lost_keys();
        let behind = lost.into_iter().find(|lost| lost.end.as_ref().is_none_or(|end| *end > rest.start));
        let Some(end) = behind.and_then(|lost| lost.end).filter(|end| *end < rest.end) else {
            return Ok(false);
        };
        rest.start = end;
    }
}

/// Checks that every object of the engine has a name, and every name an object.
fn verify_names(engine: &Engine, tree: &OpenTree, view: &SuperVersion, report: &mut VerifyReport) {
    let state = &tree.manifest.state;
    let found = FoundObjects::list(&engine.objects);
    let mut named: HashSet<ObjectId> = state.tables.keys().chain(state.values.keys()).copied().collect();
    named.insert(MANIFEST);
    named.extend(view.memtables().map(|memtable| memtable.log).filter(|log| log.0 != 0));
    let missing = named.iter().filter(|object| engine.objects.stat(**object).is_none());
    missing.for_each(|object| report.problem(format!("object {} is missing", object.0)));
    let logged: HashMap<ObjectId, u64> = view
        .memtables()
        .flat_map(|memtable| memtable.value_metas())
        .map(|meta| (meta.object, meta.accounted))
        .collect();
    let stray_logs = found.logs.range(state.flushed_generation + 1..);
    for (_, log) in stray_logs.filter(|(_, log)| !named.contains(log)) {
        report.problem(format!("log {} has no owner", log.0));
    }
    let waiting: HashSet<ObjectId> = engine.stored.garbage.items().into_iter().filter_map(deleted).collect();
    for found in unnamed(state, &found, |value| logged.contains_key(value)) {
        let UnnamedObject { object, role, explained } = found;
        if engine.options.read_only && explained {
            report.leftovers += 1;
            report.leftover_bytes += engine.objects.stat(object).map_or(0, |stat| stat.allocated_bytes);
        } else if !waiting.contains(&object) {
            report.problem(format!("{role} {} has no owner", object.0));
        }
    }
    if engine.options.read_only {
        for (object, stat) in &found.values {
            let known = state.values.get(object).map(|value| value.meta.accounted);
            if let Some(end) = known.max(logged.get(object).copied()) {
                report.leftover_bytes += stat.len.saturating_sub(end);
            }
        }
    }
}

/// Counts the entries of a cursor up to `newest` and records the places of their values; reads
/// the values if asked to.
fn collect(
    engine: &Engine,
    view: &SuperVersion,
    newest: u64,
    cursor: &mut impl Cursor,
    to: &mut StoreVerification<'_>,
) -> Result<(), Error> {
    while let Some(entry) = cursor.entry() {
        if entry.seq > newest {
            cursor.next()?;
            continue;
        }
        to.report.entries += 1;
        if entry.kind == EntryKind::Pointer {
            let pointer = ValuePointer::decode(entry.value)?;
            if engine.objects.stat(pointer.object).is_none() {
                // A purge drops value objects at once and leaves the entries under its tombstone to the next merge.
                if !is_purged(view, entry.key, entry.seq) {
                    to.report.problem(format!(
                        "an entry points to value object {}, which does not exist",
                        pointer.object.0
                    ));
                }
                cursor.next()?;
                continue;
            }
            to.report.values += 1;
            to.report.value_bytes += u64::from(pointer.len);
            to.pointers.entry(pointer.object).or_default().push(pointer.range());
            if to.depth == VerifyDepth::Values {
                let (key, pointer) = (Bytes::copy_from_slice(entry.key), cursor.value());
                let problem = check_value(engine, view, &key, entry.seq, &pointer)?;
                problem.into_iter().for_each(|problem| to.report.problem(problem));
                if to.report.values.is_multiple_of(TELL_AFTER_VALUES) {
                    (to.told)(&to.report);
                }
            }
        }
        cursor.next()?;
    }
    Ok(())
}

/// Whether the damage lies in the part of the table that the slice covers.
pub(crate) fn concerns(slice: &TableSlice, damaged: &DamagedKeys) -> bool {
    damaged.lost.as_ref().is_none_or(|(start, end)| {
        let lost =
            KeyRange { start: start.clone(), end: end.clone().unwrap_or_else(|| slice.range.end.clone()) };
        lost.overlaps(&slice.range)
    })
}

fn deleted(item: GarbageItem) -> Option<ObjectId> {
    match item {
        GarbageItem::Delete(object) => Some(object),
        GarbageItem::Punch(..) => None,
    }
}

/// Whether a range tombstone hides the entry.
pub(crate) fn is_purged(view: &SuperVersion, key: &[u8], seq: u64) -> bool {
    let in_memtables = view.memtables().any(|memtable| memtable.cover(key, MAX_SEQ) > seq);
    in_memtables || view.version.runs.iter().any(|run| run.cover(key, MAX_SEQ) > seq)
}

/// Checks that live values and dead ranges of an object do not overlap and cover all accounted bytes.
fn verify_accounts(object: ObjectId, value: &ValueState, live: Vec<Range<u64>>, report: &mut VerifyReport) {
    let mut all = IntervalSet::default();
    let mut sum = 0;
    for range in live {
        // A direct value owns its padding.
        let end = if value.meta.by_worker { range.end } else { range.end.next_multiple_of(VALUE_PAGE) };
        sum += end - range.start;
        all.insert(range.start..end);
    }
    for range in value.dead.iter() {
        sum += range.end - range.start;
        all.insert(range);
    }
    if all.total() != sum {
        report.problem(format!("value object {}: {} bytes have two owners", object.0, sum - all.total()));
    }
    let lost: u64 = all.gaps(value.meta.accounted).iter().map(|gap| gap.end - gap.start).sum();
    if lost > 0 {
        report.problem(format!("value object {}: {lost} bytes have no owner", object.0));
    }
}

/// Reads the separated value of an entry. Returns a sentence about its damage, and records that for
/// `damaged_ranges`. A value under a tombstone may be deleted, which is no problem.
pub(crate) fn check_value(
    engine: &Engine,
    view: &SuperVersion,
    key: &Bytes,
    seq: u64,
    pointer: &Bytes,
) -> Result<Option<String>, Error> {
    let decoded = ValuePointer::decode(pointer)?;
    let gone = || engine.objects.stat(decoded.object).is_none() && is_purged(view, key, seq);
    if gone() {
        return Ok(None);
    }
    let all = 0..u64::from(decoded.len);
    let read = value::read(&engine.objects, pointer, &all, IoClass::Background);
    match read {
        Ok(_) => Ok(None),
        // Freed between the check and the read.
        Err(_) if gone() => Ok(None),
        Err(error) if error.is_corruption() => {
            let what = error.to_string();
            let mut damaged = engine.stored.damaged_values.lock();
            damaged.insert(key.clone(), (pointer.clone(), what.clone()));
            Ok(Some(what))
        }
        Err(error) => Err(error),
    }
}

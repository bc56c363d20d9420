//! Opening: recovery, then the mount that makes its result the only one there is.
//!
//! Design: docs/design/object.md#recovery OBJ-4, OBJ-9, OBJ-11, OBJ-13
//! Invariants
//! - Nothing is allocated before the mount record, or a checkpoint in its place, is durable (OBJ-4).
//! - A read-only open writes nothing at all, not even a flush.

use crate::{
    OlderState, OpenError, OpenOptions, RecoveryReport, StoreError,
    allocator::Allocator,
    broken::{Broken, Flaw},
    checkpoint::superblock_io,
    checkpointer::Checkpointer,
    entropy::Entropy,
    epoch::Epochs,
    format::superblock::BACKEND_HOSTFS,
    format::{
        ops::{Cut, RecordOp},
        record,
        superblock::Superblock,
    },
    group::Groups,
    hostfs::{FileSpace, HostFiles},
    journal::Journal,
    lenient::Lenient,
    owners::Owners,
    pending::Pending,
    placement::Placement,
    recent::RecentPages,
    recovery::{self, Recovered, Source},
    run::Run,
    sealed::Sealed,
    shared::SharedRuns,
    space::{SpaceMap, stream_extent_smallest},
    state::{IN_FLIGHT_BYTES_MAX, Inner, Shape, State},
    tail::Tail,
};
use copal_device::{Class, Device, DeviceError, Io, IoKind};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// A store of which less than one such part is left is not opened.
const CUT_PARTS_MAX: u64 = 4;

/// What tests change about an open store.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) entropy: Entropy,
    pub(crate) broken: Broken,
    pub(crate) eager: bool,
    pub(crate) stream_extent_pages: Option<u64>,
    /// Mount as if the journal had no room for the mount record.
    pub(crate) mount_by_checkpoint: bool,
    /// Always take the lowest free pages, so that freed ones are reused soon.
    pub(crate) lowest_first: bool,
    /// Give the lowest free pages back, so that holes are soon met, and leave none to spare.
    pub(crate) gives_lowest: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            entropy: Entropy::System,
            broken: Broken::default(),
            eager: false,
            stream_extent_pages: None,
            mount_by_checkpoint: false,
            lowest_first: false,
            gives_lowest: false,
        }
    }
}

/// What a store lies on.
pub(crate) enum Ground {
    /// A device of its own.
    Device(Arc<dyn Device>),
    /// Files of a directory.
    Files(Arc<HostFiles>),
}

impl Ground {
    fn device(&self, options: &OpenOptions) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = match self {
            Ground::Device(device) => Arc::clone(device),
            Ground::Files(files) => Arc::<HostFiles>::clone(files),
        };
        if options.salvage && options.read_only {
            return Lenient::over(device);
        }
        device
    }

    /// Whether the store was made for this.
    fn fits(&self, backend: u8) -> Result<(), OpenError> {
        let (device, directory) = ("on a device", "in a directory");
        match self {
            Ground::Device(_) if backend == BACKEND_HOSTFS => Err(OpenError::Backend {
                is: directory,
                given: device,
            }),
            Ground::Files(_) if backend != BACKEND_HOSTFS => Err(OpenError::Backend {
                is: device,
                given: directory,
            }),
            _ => Ok(()),
        }
    }
}

/// Opens the store on `ground`.
pub(crate) fn open(
    ground: Ground,
    options: &OpenOptions,
    tuning: Tuning,
) -> Result<(Arc<Inner>, RecoveryReport), OpenError> {
    let device = ground.device(options);
    if !options.read_only && !tuning.broken.by(Flaw::NoFlushAtOpen) {
        // What a killed process left in the cache is read next: it must not vanish later (OBJ-11).
        submit(
            device.as_ref(),
            vec![Io {
                at: 0,
                kind: IoKind::Flush,
                class: Class::Commit,
            }],
        )?;
    }
    let (superblock, stale_copies) = recovery::newest_superblock(device.as_ref())?;
    ground.fits(superblock.backend)?;
    let salvage = options.salvage && options.read_only;
    let page_bytes = superblock.page_bytes as usize;
    let source = Source {
        device: device.as_ref(),
        page_bytes,
        salvage,
        broken: tuning.broken,
    };
    let device_bytes = device.geometry().size;
    let cut = |store_bytes| OpenError::Truncated {
        store_bytes,
        device_bytes,
    };
    let accept_tail_loss = options.accept_tail_loss || salvage;
    let journal_end = superblock.journal_at + superblock.journal_pages;
    let size_bytes = superblock.size_bytes;
    let mut recovered = recovery::recover(&source, superblock, stale_copies, accept_tail_loss);
    if salvage && recovered.is_err() {
        recovered = recover_older(&source).map_or(recovered, Ok);
    }
    let recovered = recovered.map_err(|error| {
        if device_bytes < size_bytes && !matches!(error, OpenError::TailLoss { .. }) {
            cut(size_bytes)
        } else {
            error
        }
    })?;
    let Some(store_bytes) = recovered.tables.size_bytes() else {
        let what = format!(
            "it says it has {} pages of {page_bytes} bytes",
            recovered.tables.pages
        );
        return Err(OpenError::Damaged { what });
    };
    // What is derived of a store is sized by its length, so what is there has to bear some relation to it.
    if device_bytes < store_bytes / CUT_PARTS_MAX {
        return Err(cut(store_bytes));
    }
    let mut report = recovered.report.clone();
    let stale = recovered.stale_copies.clone();
    let needed = recovered.needed.clone();
    if device_bytes < store_bytes {
        // The copies of the checkpoint are not asked: it was read. Neither are streams: their ends were found, or it had
        // not come so far.
        let end = recovered.tables.objects_end().max(journal_end);
        if end * page_bytes as u64 > device_bytes && !salvage {
            return Err(cut(store_bytes));
        }
        report.cut_bytes = store_bytes - device_bytes;
    }
    let inner = assemble(ground, options, tuning, recovered)?;
    if options.read_only {
        report.superblock_copies_repaired = 0;
        report.checkpoint_pages_repaired = 0;
        return Ok((inner, report));
    }
    if report.cut_bytes > 0 {
        grow_back(&inner, device_bytes, store_bytes)?;
    }
    if !inner.shape.broken.by(Flaw::NoMount) {
        mount(&inner, &needed).map_err(|error| match error {
            StoreError::Device(error) => OpenError::Device(error),
            other => OpenError::Damaged {
                what: format!("the store cannot be mounted: {other}"),
            },
        })?;
    }
    if !stale.is_empty() {
        repair_superblocks(&inner, &stale)?;
    }
    inner.remove_unknown_files()?;
    if (report.checkpoint_pages_repaired > 0 || report.cut_bytes > 0)
        && let Err(error) = checkpoint_now(&inner)
    {
        // The next one is two whole copies as well.
        tracing::warn!(%error, "the damaged copy of the checkpoint could not be written anew yet");
        report.checkpoint_pages_repaired = 0;
    }
    Ok((inner, report))
}

/// An older state, of which a superblock still knows: its tables and its part of the journal may not have been
/// overwritten yet. Its report says how much older it is.
fn recover_older(source: &Source<'_>) -> Option<Recovered> {
    let mut superblocks = recovery::older_superblocks(source.device).into_iter();
    let newest = superblocks.next()?;
    let mut older = superblocks.find_map(|superblock| {
        let recovered = recovery::recover(source, superblock, Vec::new(), true);
        recovered
            .inspect_err(|error| tracing::warn!(%error, "an older state cannot be read either"))
            .ok()
    })?;
    older.report.older_state = Some(OlderState {
        generation: older.superblock.generation,
        newest: newest.generation,
        missing_commits: newest.checkpoint_lsn.saturating_sub(older.last_lsn),
    });
    Some(older)
}

/// Somebody cut off what held nothing: the store is as long as before, and what came back was never written.
fn grow_back(inner: &Inner, device_bytes: u64, store_bytes: u64) -> Result<(), OpenError> {
    inner.device.grow(store_bytes).map_err(|error| {
        tracing::warn!(%error, "the store cannot get the space back that was cut off it");
        OpenError::Truncated {
            store_bytes,
            device_bytes,
        }
    })?;
    let first = device_bytes / inner.shape.page_bytes as u64;
    inner.state.lock().space.allocator.forget_written(first);
    Ok(())
}

fn submit(device: &dyn Device, ios: Vec<Io>) -> Result<(), DeviceError> {
    device
        .submit(ios)
        .wait()
        .into_iter()
        .try_for_each(|done| done.result)
}

fn assemble(
    ground: Ground,
    options: &OpenOptions,
    tuning: Tuning,
    recovered: Recovered,
) -> Result<Arc<Inner>, OpenError> {
    let Recovered {
        superblock,
        mut tables,
        checkpoint_runs,
        ends,
        zones,
        hollow,
        ..
    } = recovered;
    let page_bytes = tables.page_bytes;
    let device = ground.device(options);
    let max_bytes = options.max_size_bytes.unwrap_or(u64::MAX);
    let (files, empty) = match ground {
        Ground::Device(_) => {
            let mut pages = Allocator::new(tables.pages);
            pages.lowest_first = tuning.lowest_first;
            (None, Placement::Pages(pages))
        }
        Ground::Files(files) => {
            let numbers = files
                .numbers_taken()
                .map_err(|error| DeviceError::io("list", 0, 0, error))?;
            let space = FileSpace::on(Arc::clone(&files), &numbers, page_bytes, max_bytes);
            (Some(files), Placement::Files(space))
        }
    };
    let spare = (options.salvage && options.read_only).then(|| empty.emptied());
    let derived = recovery::derive_space(&tables, &superblock, &checkpoint_runs, &zones, &hollow, empty);
    let (allocator, shared) = match (derived, spare) {
        // Who only reads needs no free space.
        (Err(_), Some(spare)) => (spare, SharedRuns::default()),
        (derived, _) => derived?,
    };
    tables.shared = shared;
    let space = SpaceMap::new(allocator);
    let shape = Shape {
        page_bytes,
        uuid: superblock.uuid,
        read_only: options.read_only,
        salvage: options.salvage && options.read_only,
        max_size_bytes: options.max_size_bytes.unwrap_or(u64::MAX) / page_bytes as u64 * page_bytes as u64,
        geometry: device.geometry(),
        stream_extent_pages: tuning
            .stream_extent_pages
            .unwrap_or_else(|| stream_extent_smallest(page_bytes)),
        broken: tuning.broken,
        eager: tuning.eager,
        mount_by_checkpoint: tuning.mount_by_checkpoint,
        gives_lowest: tuning.gives_lowest,
    };
    let tails = ends
        .into_iter()
        .map(|(id, end)| {
            let tail = Tail {
                next: end.next,
                used: end.used,
                piece: end.piece,
                durable: end.next,
                damaged: end.damaged,
                pending: Pending::default(),
            };
            (id, tail)
        })
        .collect();
    let journal = Journal {
        at: superblock.journal_at,
        pages: superblock.journal_pages,
        head: recovered.head,
        tail: recovered.tail,
        seq: recovered.next_seq,
        flushed_seq: recovered.next_seq,
        previous: recovered.previous,
        mount: superblock.mount,
        store: superblock.uuid as u64,
        page_bytes,
    };
    let mut state = State {
        tables,
        space,
        epochs: Epochs::new(recovered.epoch),
        journal,
        groups: Groups::new(recovered.last_lsn),
        checkpointer: Checkpointer::new(superblock, checkpoint_runs),
        tails,
        orphans: Vec::new(),
        frame_tickets: 0,
        recent: RecentPages::default(),
        entropy: tuning.entropy,
        in_flight: BTreeMap::new(),
        in_flight_bytes: 0,
        in_flight_limit: IN_FLIGHT_BYTES_MAX,
        unflushed_bytes: 0,
        spare_extents: Vec::new(),
        written_waiters: VecDeque::new(),
        durable_waiters: VecDeque::new(),
        wanted_lsn: 0,
        sealed: Sealed::at_open(recovered.last_lsn),
        drain_epoch: 0,
        resizing: false,
        failure: None,
        closed: false,
        broken: tuning.broken,
        mounted: tuning.broken.by(Flaw::NoMount),
        places: BTreeMap::new(),
        outbox: Vec::new(),
        deliveries: Vec::new(),
    };
    state.reckon_checkpoint();
    let driver = device.driver();
    Ok(Arc::new(Inner {
        files,
        device,
        driver,
        shape,
        state: Mutex::new(state),
        changed: Condvar::new(),
        owners: Owners::default(),
    }))
}

/// Writes the mount record and waits until it is durable; when the journal has no room for it, a checkpoint with a new
/// chain seed stands in for it (OBJ-9).
fn mount(inner: &Arc<Inner>, needed: &[Run]) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    let mut held = Vec::new();
    let mount = state.entropy.next();
    let cuts = cut_streams(inner, &mut state);
    let op = RecordOp::Mount { mount, cuts };
    let old_mount = std::mem::replace(&mut state.journal.mount, mount);
    let mut encoded = Vec::new();
    op.encode(&mut encoded);
    let pages = record::pages_for(encoded.len(), inner.shape.page_bytes);
    // Exactly at the head, where a dropped record may still stand: skipped over, it would be found again.
    let fits = pages * inner.shape.page_bytes <= state.journal.record_bytes_max()
        && state.journal.place(pages as u64, 0) == Some(state.journal.head)
        && !inner.shape.mount_by_checkpoint;
    let lsn = state.groups.last_lsn;
    state.enter(&op, lsn);
    let goal = state.epochs.open;
    if fits {
        state.groups.open.forced = true;
        state.groups.open.releasing = true;
        let closed = inner.close_group(&mut state);
        debug_assert!(closed, "the record was measured");
        state.epochs.want(goal);
    } else {
        // The tables are as the record would have left them; the checkpoint says so instead.
        state.groups.open.ops.clear();
        let freed = std::mem::take(&mut state.groups.open.freed);
        state.space.quarantine(goal, freed);
        // Should this be cut short, the next recovery reads the same pages again: the checkpoint goes elsewhere.
        let files = inner
            .files
            .as_deref()
            .map(|files| (files, inner.shape.page_bytes as u64));
        held = hold(&mut state.space.allocator, files, needed)?;
        if inner.shape.broken.by(Flaw::KeepChain) {
            state.journal.mount = old_mount;
        } else {
            state.journal.previous = state.entropy.next();
            // It takes the record's number: from an older superblock on, this one is missing.
            state.journal.seq += 1;
        }
        state.checkpointer.forced = true;
    }
    let finished = state.checkpointer.finished;
    loop {
        if let Some(error) = &state.failure {
            return Err(StoreError::Device(error.clone()));
        }
        inner.advance(&mut state);
        let done = if fits {
            state.epochs.flushed >= goal
        } else {
            state.checkpointer.finished > finished
        };
        if done {
            held.iter().for_each(|&run| state.space.allocator.release(run));
            state.mounted = true;
            // Mounts may have filled the journal: a checkpoint starts before the first group stands in its way.
            drop(state);
            inner.pump();
            return Ok(());
        }
        if state.outbox.is_empty() && !fits && state.checkpointer.is_idle() {
            let page = inner.shape.page_bytes as u64;
            return Err(StoreError::NoSpace {
                needed_bytes: page,
                free_bytes: 0,
            });
        }
        inner.wait_change(&mut state);
    }
}

/// Takes those of `runs` that are free, each page looked at once. Dropped records may name pages that no store of this
/// size has, or that the files of a directory, given with the bytes of a page, do not reach: nothing was read there,
/// nothing has to stay.
fn hold(
    space: &mut Placement,
    files: Option<(&HostFiles, u64)>,
    runs: &[Run],
) -> Result<Vec<Run>, DeviceError> {
    let clipped = runs
        .iter()
        .filter_map(|&run| space.clip(run))
        .filter_map(|run| match files {
            Some((files, page_bytes)) => files.clip(run, page_bytes).transpose(),
            None => Some(Ok(run)),
        });
    let mut runs = clipped.collect::<Result<Vec<Run>, DeviceError>>()?;
    runs.sort_unstable();
    let mut held: Vec<Run> = Vec::new();
    let mut from = 0;
    for run in runs {
        let first = held.len();
        for at in run.at.max(from)..run.end() {
            let page = Run::new(at, 1);
            if !space.take(page) {
                continue;
            }
            match held[first..].last_mut() {
                Some(last) if last.end() == at => last.pages += 1,
                _ => held.push(page),
            }
        }
        from = from.max(run.end());
    }
    Ok(held)
}

/// Where each open stream goes on, under a new incarnation (OBJ-13). A damaged one stays as it is, so that the damage is
/// found again.
fn cut_streams(inner: &Inner, state: &mut State) -> Vec<Cut> {
    let mut ids: Vec<u64> = state.tails.keys().copied().collect();
    ids.sort_unstable();
    let mut cuts = Vec::new();
    for id in ids {
        let (Some(tail), Some(stream)) = (state.tails.get_mut(&id), state.tables.stream(id)) else {
            continue;
        };
        let Some(piece) = stream.pieces.get(tail.piece) else {
            continue;
        };
        if tail.damaged {
            continue;
        }
        let incarnation = if inner.shape.broken.by(Flaw::KeepIncarnation) {
            piece.incarnation
        } else {
            state.entropy.next()
        };
        cuts.push(Cut {
            id,
            piece: tail.piece as u32,
            kept: tail.used,
            next: tail.next,
            incarnation,
        });
        if tail.used < piece.run.pages {
            tail.used = 0;
        }
    }
    cuts
}

pub(crate) fn repair_superblocks(inner: &Inner, stale: &[usize]) -> Result<(), DeviceError> {
    let superblock: Superblock = inner.state.lock().checkpointer.superblock.clone();
    let ios = stale
        .iter()
        .map(|&copy| superblock_io(&superblock, copy))
        .collect();
    submit(inner.device.as_ref(), ios)?;
    submit(
        inner.device.as_ref(),
        vec![Io {
            at: 0,
            kind: IoKind::Flush,
            class: Class::Commit,
        }],
    )
}

/// Writes a checkpoint of everything up to now and waits until it is durable.
pub(crate) fn checkpoint_now(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    state.writable()?;
    let mut goal = None;
    loop {
        state.writable()?;
        inner.advance(&mut state);
        match goal {
            // One that is in the making may be older than what the caller wants in it.
            None if state.checkpointer.is_idle() => {
                goal = Some(state.checkpointer.finished + 1);
                state.checkpointer.forced = true;
                continue;
            }
            Some(goal) if state.checkpointer.finished >= goal => return Ok(()),
            Some(_) if !state.is_moving() => return Err(inner.no_checkpoint(&state)),
            _ => inner.wait_change(&mut state),
        }
    }
}

/// Waiting for everything to be durable, checkpointing, and refusing writes from then on.
pub(crate) fn close(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let closed = write_all(inner);
    // The thread that delivers an answer holds the store until its hook returns: whoever drops the last handle now gives
    // up the device, and its lock, at once.
    inner.device.settle();
    closed
}

/// Makes everything durable and takes the last checkpoint; nothing is written any more.
fn write_all(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    if inner.shape.read_only || state.closed {
        state.closed = true;
        return Ok(());
    }
    if let Some(error) = &state.failure {
        return Err(StoreError::Device(error.clone()));
    }
    state.closed = true;
    // Everything that is on its way becomes durable first, so that the checkpoint knows the end of every stream.
    let lsn = state.groups.last_lsn;
    let epoch = state.epochs.open;
    state.wanted_lsn = state.wanted_lsn.max(lsn);
    if state.tails.values().any(|tail| !tail.pending.is_empty()) {
        state.epochs.want(epoch);
    }
    let mut checkpoint = None;
    loop {
        if let Some(error) = &state.failure {
            return Err(StoreError::Device(error.clone()));
        }
        inner.advance(&mut state);
        let settled = state.groups.durable_lsn >= lsn
            && state.groups.is_open_empty()
            && state.tails.values().all(|tail| tail.pending.is_empty());
        match checkpoint {
            None if settled && state.checkpointer.is_idle() => {
                checkpoint = Some(state.checkpointer.finished + 1);
                state.checkpointer.forced = true;
                continue;
            }
            Some(goal) if state.checkpointer.finished >= goal => return Ok(()),
            Some(_) if state.checkpointer.is_idle() && state.outbox.is_empty() => {
                // No space for it: the journal says the same.
                return Ok(());
            }
            // Neither the journal nor a checkpoint has room for what was committed last.
            None if !state.is_moving() && !state.groups.is_open_empty() => {
                return Err(inner.no_checkpoint(&state));
            }
            _ => inner.wait_change(&mut state),
        }
    }
}

#[cfg(test)]
mod tests;

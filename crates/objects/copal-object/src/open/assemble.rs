//! The open store as it stands in memory, made from what recovery found.

use super::{Backend, Tuning};
use crate::{
    OpenError, OpenOptions,
    flaw::Flaw,
    recovery::{self, Recovered},
    space::{SpaceMap, placement::Placement, recent::RecentPages, stream_extent_smallest},
    state::{
        IN_FLIGHT_BYTES_MAX, Shape, StoreCore, StoreState, checkpointer::Checkpointer, clean_mark::CleanMark,
        epoch::Epochs, group::Groups, journal::Journal, owners::Owners, pending_frames::PendingFrames,
        tail::Tail,
    },
    stream::walk::End,
    tables::shared::SharedRuns,
};
use copal_device::Geometry;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// The store on `backend` in the state `recovered`; nothing is written.
pub(super) fn assemble(
    backend: Backend,
    options: &OpenOptions,
    tuning: Tuning,
    mut recovered: Recovered,
) -> Result<Arc<StoreCore>, OpenError> {
    let page_bytes = recovered.tables.page_bytes;
    let device = backend.device(options);
    let max_bytes = options.max_size_bytes.unwrap_or(u64::MAX);
    let (files, empty) = backend.into_empty_space(recovered.tables.pages, page_bytes, max_bytes, &tuning)?;
    let only_saves = options.salvage && options.read_only;
    let (space, shared) = space(&recovered, empty, only_saves)?;
    recovered.tables.shared = shared;
    let shape = shape(&recovered, options, &tuning, device.geometry());
    let mut state = state(recovered, space, tuning);
    state.reckon_checkpoint();
    let driver = device.driver();
    Ok(Arc::new(StoreCore {
        files,
        device,
        driver,
        shape,
        state: Mutex::new(state),
        changed: Condvar::new(),
        owners: Owners::default(),
    }))
}

/// What is free of `empty`, and what is shared. Who only saves what can be saved needs no free space: when it
/// cannot be known, there is none.
fn space(
    recovered: &Recovered,
    empty: Placement,
    only_saves: bool,
) -> Result<(Placement, SharedRuns), OpenError> {
    let spare = only_saves.then(|| empty.emptied());
    let derived = recovery::derive_space(
        &recovered.tables,
        &recovered.superblock,
        &recovered.checkpoint_runs,
        &recovered.zones,
        &recovered.hollow,
        empty,
    );
    match (derived, spare) {
        (Err(_), Some(spare)) => Ok((spare, SharedRuns::default())),
        (derived, _) => derived,
    }
}

fn shape(recovered: &Recovered, options: &OpenOptions, tuning: &Tuning, geometry: Geometry) -> Shape {
    let page_bytes = recovered.tables.page_bytes;
    Shape {
        page_bytes,
        uuid: recovered.superblock.uuid,
        read_only: options.read_only,
        salvage: options.salvage && options.read_only,
        max_size_bytes: options.max_size_bytes.unwrap_or(u64::MAX) / page_bytes as u64 * page_bytes as u64,
        geometry,
        stream_extent_pages: tuning.stream_extent_pages.unwrap_or_else(|| stream_extent_smallest(page_bytes)),
        broken: tuning.broken,
        eager: tuning.eager,
        mount_by_checkpoint: tuning.mount_by_checkpoint,
        gives_lowest: tuning.gives_lowest,
    }
}

/// Nothing is on its way, nobody waits.
fn state(recovered: Recovered, space: Placement, tuning: Tuning) -> StoreState {
    let journal = journal(&recovered);
    StoreState {
        tables: recovered.tables,
        space: SpaceMap::new(space),
        epochs: Epochs::new(recovered.epoch),
        journal,
        groups: Groups::new(recovered.last_lsn),
        checkpointer: Checkpointer::new(recovered.superblock, recovered.checkpoint_runs),
        tails: recovered.ends.into_iter().map(|(id, end)| (id, tail(&end))).collect(),
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
        clean_mark: CleanMark::at_open(recovered.last_lsn),
        drain_epoch: 0,
        resizing: false,
        is_growth_refused: false,
        failure: None,
        closed: false,
        broken: tuning.broken,
        mounted: tuning.broken.by(Flaw::NoMount),
        raw_extents: BTreeMap::new(),
        outbox: Vec::new(),
        deliveries: Vec::new(),
    }
}

fn journal(recovered: &Recovered) -> Journal {
    let superblock = &recovered.superblock;
    Journal {
        at: superblock.journal_at,
        pages: superblock.journal_pages,
        head: recovered.head,
        tail: recovered.tail,
        seq: recovered.next_seq,
        flushed_seq: recovered.next_seq,
        previous: recovered.previous,
        mount: superblock.mount,
        store: superblock.uuid as u64,
        page_bytes: recovered.tables.page_bytes,
    }
}

fn tail(end: &End) -> Tail {
    Tail {
        next: end.next,
        used: end.used,
        piece: end.piece,
        durable: end.next,
        damaged: end.damaged,
        pending: PendingFrames::default(),
    }
}

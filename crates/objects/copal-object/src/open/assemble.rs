//! Assembly of an open store in memory from the recovered state.

use super::{JournalStart, OpenOverrides, StoreBackend, backend::EmptySpace};
use crate::{
    OpenOptions, StoreOpenError,
    backend::log::{CommitHead, LogPlacement},
    checkpoint::CHAIN_PAGES_IN_FLIGHT,
    flaw::StoreFlaw,
    format::{checkpoint::CHAIN_PAGE_MAX, ops::DurableFrames},
    recovery::{self, RecoveredStore},
    space::segment_table::SegmentTable,
    space::{
        SpaceState, discards::SpaceDiscards, journal_place::JournalRing, placement::Placement,
        stream_extent_least, stream_extent_smallest,
    },
    state::{
        StoreCore, StoreShape, StoreState,
        checkpoint::CheckpointState,
        cleaner::CleanerState,
        commit::{CommitState, chain::RecordChain},
        fence::WriteFence,
        inline_pages::{InlineLimits, InlinePages},
        owners::StoreOwners,
        pending_frames::PendingFrames,
        queue::WorkQueue,
        stream::{StreamState, StreamTail},
    },
    stream::walk::StreamEnd,
    tables::{chunks::EntryChunks, shared::SharedRuns},
};
use copal_device::{
    Device, Geometry,
    probe::{DeviceProfile, ProfileBackend},
};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};

/// Entries of a chunk, in tests that want many of them.
const SHORT_CHUNK_ENTRIES: usize = 4;

/// Builds the store on `backend` in the state `recovered`; writes nothing.
pub(super) fn assemble(
    backend: StoreBackend,
    options: &OpenOptions,
    tuning: OpenOverrides,
    mut recovered: RecoveredStore,
) -> Result<Arc<StoreCore>, StoreOpenError> {
    let page_bytes = recovered.tables.page_bytes;
    let device = backend.device(options);
    let max_bytes = options.max_size_bytes.unwrap_or(u64::MAX);
    let EmptySpace { files, placement: empty } = backend.into_empty_space(
        recovered.tables.pages,
        page_bytes,
        max_bytes,
        journal_start(&recovered),
        &tuning,
    )?;
    let only_saves = options.salvage && options.read_only;
    let (space, shared) = space(&recovered, empty, only_saves)?;
    recovered.tables.shared = shared;
    if tuning.short_chain_pages {
        let entries = std::mem::replace(&mut recovered.tables.entries, EntryChunks::new(0));
        recovered.tables.entries = entries.with_most(SHORT_CHUNK_ENTRIES);
    }
    let profile = profile(&recovered.superblock.profile);
    let of_profile = profile.as_ref().map(|profile| profile.gap_bytes);
    let gap_bytes = options.gap_bytes.or(of_profile).unwrap_or_else(|| gap_bytes(device.as_ref()));
    let inline = tuning.inline.unwrap_or_else(|| inline_limits(options, device.as_ref(), profile.as_ref()));
    let depth = profile.as_ref().map_or(DEPTH_UNKNOWN, DeviceProfile::depth);
    let shape = shape(&recovered, options, &tuning, device.geometry(), (gap_bytes, depth, inline.data_bytes));
    let turns = shape.geometry.rotational || profile.is_some_and(|profile| profile.rotational);
    let granule = space.free_granule();
    let discards = match tuning.discard_pages {
        Some(pages) => SpaceDiscards::unpaced(pages.max(granule)),
        None if options.read_only => SpaceDiscards::default(),
        None => SpaceDiscards::new(options.discard, &shape.geometry, turns, page_bytes, granule),
    };
    let mut state = state(recovered, space, discards, inline, tuning);
    state.update_checkpoint_reserve();
    let driver = device.driver();
    Ok(Arc::new(StoreCore {
        files,
        device,
        driver,
        shape,
        state: Mutex::new(state),
        changed: Condvar::new(),
        owners: StoreOwners::default(),
        verified: OnceLock::new(),
    }))
}

/// Free space of `empty`, and shared pages. Salvage needs no free space: if it cannot be derived, there is
/// none.
fn space(
    recovered: &RecoveredStore,
    empty: Box<dyn Placement>,
    only_saves: bool,
) -> Result<(Box<dyn Placement>, SharedRuns), StoreOpenError> {
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

/// Distance that a turning disk reads through in the time of another access.
const GAP_BYTES_TURNING: u64 = 1 << 20;
/// The same for the emulated disk: 12.5 ms at 192 MB/s, rounded down.
const GAP_BYTES_EMULATED_TURNING: u64 = 2 << 20;
/// The same for flash, also behind a controller.
const GAP_BYTES_FLASH: u64 = 64 << 10;

/// Commands in flight on a device without a profile.
const DEPTH_UNKNOWN: usize = 64;

/// The profile in a superblock. One of a later release says nothing here; the store works without it.
pub(crate) fn profile(text: &str) -> Option<DeviceProfile> {
    if text.is_empty() {
        return None;
    }
    let parsed = text.parse();
    parsed.inspect_err(|error| tracing::warn!(%error, "the profile of the disk in the store is ignored")).ok()
}

/// See `Store::gap_bytes`. Only emulated devices have a driver. Files count as flash: the file system places them,
/// and virtual disks often claim to turn.
fn gap_bytes(device: &dyn Device) -> u64 {
    let geometry = device.geometry();
    match (geometry.rotational, device.driver()) {
        (true, Some(_)) => GAP_BYTES_EMULATED_TURNING,
        (true, None) if !geometry.gives_back => GAP_BYTES_TURNING,
        _ => GAP_BYTES_FLASH,
    }
}

/// Data lies in records on disks whose probe chose a log, and on those that turn. Files count as flash unless they have
/// a profile.
fn inline_limits(
    options: &OpenOptions,
    device: &dyn Device,
    profile: Option<&DeviceProfile>,
) -> InlineLimits {
    let geometry = device.geometry();
    let is_slow = match profile {
        Some(profile) => profile.backend == ProfileBackend::Log,
        None => geometry.rotational && !geometry.gives_back,
    };
    if options.inline_data.unwrap_or(is_slow) { InlineLimits::FOR_DISKS } else { InlineLimits::default() }
}

fn shape(
    recovered: &RecoveredStore,
    options: &OpenOptions,
    tuning: &OpenOverrides,
    geometry: Geometry,
    (gap_bytes, depth, inline_bytes): (u64, usize, usize),
) -> StoreShape {
    let page_bytes = recovered.tables.page_bytes;
    StoreShape {
        page_bytes,
        uuid: recovered.superblock.uuid,
        read_only: options.read_only,
        salvage: options.salvage && options.read_only,
        max_size_bytes: options.max_size_bytes.unwrap_or(u64::MAX) / page_bytes as u64 * page_bytes as u64,
        geometry,
        gap_bytes,
        depth,
        inline_bytes,
        stream_extent_pages: tuning.stream_extent_pages.unwrap_or_else(|| stream_extent_smallest(page_bytes)),
        broken: tuning.broken,
        eager: tuning.eager,
        mount_by_checkpoint: tuning.mount_by_checkpoint,
        gives_lowest: tuning.gives_lowest,
        chain_page_bytes: if tuning.short_chain_pages { page_bytes } else { CHAIN_PAGE_MAX },
        chain_pages_in_flight: if tuning.short_chain_pages { 1 } else { CHAIN_PAGES_IN_FLIGHT },
        cleaner_trigger: tuning.cleaner_trigger,
    }
}

/// The state of an idle store: no command in flight, no waiter.
fn state(
    recovered: RecoveredStore,
    space: Box<dyn Placement>,
    discards: SpaceDiscards,
    limits: InlineLimits,
    tuning: OpenOverrides,
) -> StoreState {
    let chain = chain(&recovered);
    let is_unnamed = |id, end: &StreamEnd| {
        recovered.tables.stream(id).is_some_and(|stream| end.next > stream.durable.next)
    };
    let unnamed =
        recovered.ends.iter().filter(|(id, end)| is_unnamed(**id, end)).map(|(id, _)| *id).collect();
    let tails = recovered.ends.into_iter().map(|(id, end)| (id, tail(&end))).collect();
    let least_extent_pages =
        tuning.stream_extent_pages.unwrap_or_else(|| stream_extent_least(recovered.tables.page_bytes));
    let mut inline = InlinePages::new(recovered.tables.page_bytes, limits.placing_bytes);
    recovered.inline.iter().for_each(|(run, bytes, lsn)| {
        inline.expect(*run, *lsn);
        inline.fill(*run, bytes);
    });
    let mounted = tuning.broken.by(StoreFlaw::NoMount);
    StoreState {
        tables: recovered.tables,
        space: SpaceState::new(space, least_extent_pages, discards),
        commit: CommitState::new(chain, recovered.epoch, recovered.last_lsn),
        streams: StreamState::new(tails, unnamed),
        inline,
        checkpoint: CheckpointState::new(recovered.superblock, recovered.checkpoint_runs, mounted),
        cleaner: CleanerState::default(),
        fence: WriteFence::default(),
        queue: WorkQueue::default(),
        entropy: tuning.entropy,
        broken: tuning.broken,
    }
}

/// The place of the next record: in the ring, or in the segments that recovery found.
fn journal_start(recovered: &RecoveredStore) -> JournalStart {
    let superblock = &recovered.superblock;
    if let Some(found) = &recovered.segments {
        let segment_pages = superblock.segment_bytes / superblock.page_bytes;
        let table = SegmentTable::new(recovered.tables.pages, segment_pages, recovered.tables.page_bytes);
        let store = superblock.uuid as u64;
        let page = recovered.head as u32;
        let mut head = CommitHead::new(store, found.chain.clone(), found.number, page, found.next.clone());
        head.set_tail(recovered.tail);
        return JournalStart::Segments(Box::new(LogPlacement::new(table, head)));
    }
    JournalStart::Ring(JournalRing {
        at: recovered.superblock.journal_at,
        pages: recovered.superblock.journal_pages,
        head: recovered.head,
        tail: recovered.tail,
        page_bytes: recovered.tables.page_bytes,
    })
}

fn chain(recovered: &RecoveredStore) -> RecordChain {
    RecordChain {
        seq: recovered.next_seq,
        flushed_seq: recovered.next_seq,
        previous: recovered.previous,
        mount: recovered.superblock.mount,
        store: recovered.superblock.uuid as u64,
    }
}

fn tail(end: &StreamEnd) -> StreamTail {
    StreamTail {
        next: end.next,
        used: end.used,
        piece: end.piece,
        durable: DurableFrames { next: end.next, last: end.last },
        damaged: end.damaged,
        pending: PendingFrames::default(),
    }
}

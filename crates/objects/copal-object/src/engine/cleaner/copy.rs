//! Copy of a batch: its pages are read in few commands, and written as one run.

use crate::{
    flaw::StoreFlaw,
    format::{moved_part::MovedPart, run::PageRun, sum_rule::SumRule},
    space::home::PageHome,
    space::segment_table::SegmentTable,
    state::cleaner::plan,
    state::{
        StoreCore, StoreState,
        cleaner::{BatchCopy, BatchRead, CleaningRound, RoundStep, StuckSegment},
        pieces,
        queue::IoPurpose,
    },
};
use copal_device::{AlignedBuf, DeviceError, Io, IoClass, IoDone, IoKind};

const SURVIVOR_HOME: PageHome =
    PageHome { class: 0, owner: PageHome::SURVIVORS, in_group: false, is_frame: false };

/// Longest batch in bytes.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Most parts of a batch.
const BATCH_PARTS_MAX: usize = 1024;

/// Starts to read the next batch. `false`: it must wait.
pub(super) fn start(store: &StoreCore, state: &mut StoreState) -> bool {
    let placement = state.space.placement();
    let (segment, rest) = (placement.survivor_segment(), placement.survivor_rest());
    let size = placement.segments().map_or(1, SegmentTable::segment_pages);
    let pages_max = ((BATCH_BYTES_MAX / store.shape.page_bytes) as u32).min(size);
    let parts_max = (placement.journal().record_bytes_max() / 4 / MovedPart::LEN).clamp(1, BATCH_PARTS_MAX);
    let Some(mut round) = state.cleaner.round.take() else {
        return false;
    };
    if round.parts.iter().take(parts_max).any(|planned| state.is_unwritten(planned.part.from)) {
        state.cleaner.round = Some(CleaningRound { step: RoundStep::Ready, ..round });
        return false;
    }
    // The rest of the present segment is filled first.
    let parts = &mut round.parts;
    let batch = plan::next_batch(parts, rest.min(pages_max), parts_max)
        .or_else(|| plan::short_batch(parts, rest))
        .or_else(|| plan::next_batch(parts, pages_max, parts_max));
    state.cleaner.round = Some(round);
    let Some(mut batch) = batch else {
        return state.cleaner.cut_short();
    };
    // From here on the pages are pinned: a part that still is where it was has the content that is read (OBJ-20).
    state.keep_unchanged_parts(&mut batch.parts);
    if batch.parts.is_empty() {
        return state.cleaner.set_step(RoundStep::Ready);
    }
    let mut sources: Vec<PageRun> = batch.parts.iter().map(|part| part.from).collect();
    // A copy in the rest of the present segment takes no room of a checkpoint.
    let free = state.space.placement().segments_for_survivors(state.space.checkpoint_pages());
    if rest < batch.pages && free == 0 {
        return state.cleaner.cut_short();
    }
    let Some(to) = state.space.allocate_run(batch.pages, SURVIVOR_HOME, false) else {
        return state.cleaner.cut_short();
    };
    let placement = state.space.placement();
    if let (Some(left), Some(segments)) = (segment, placement.segments())
        && placement.survivor_segment() != segment
    {
        let owned = segments.owned_pages(left);
        if owned + rest >= size {
            // It is as full as its parts allow: none of them has died since.
            state.cleaner.stuck.insert(left, StuckSegment { owned, room: None });
        }
    }
    state.cleaner.copy_pages = to.pages.into();
    let windows = windows(store, &mut sources);
    let pin = state.space.pin(windows.clone());
    let read = |run: &PageRun| Io {
        at: store.shape.byte(run.at),
        kind: IoKind::Read(AlignedBuf::stale(run.pages as usize * store.shape.page_bytes)),
        class: IoClass::Background,
    };
    let ios = windows.iter().map(read).collect();
    let read = BatchRead { batch, to, windows, pin };
    state.queue.submit(IoPurpose::MoveRead(Box::new(read)), ios);
    state.cleaner.set_step(RoundStep::Copying)
}

/// Joins runs whose distance the device reads through, within one command.
fn windows(store: &StoreCore, sources: &mut [PageRun]) -> Vec<PageRun> {
    sources.sort_unstable();
    let most = u64::from(store.shape.io_pages());
    let gap = store.shape.gap_bytes / store.shape.page_bytes as u64;
    let mut windows: Vec<PageRun> = Vec::new();
    for part in sources.iter().flat_map(|&run| pieces(run, store.shape.io_pages())) {
        match windows.last_mut() {
            Some(last) if part.at <= last.end() + gap && part.end().max(last.end()) - last.at <= most => {
                last.pages = (part.end().max(last.end()) - last.at) as u32;
            }
            Some(last) if part.at < last.end() => {
                let rest = (part.end().saturating_sub(last.end())) as u32;
                let at = last.end();
                if rest > 0 {
                    windows.push(PageRun::new(at, rest));
                }
            }
            _ => windows.push(part),
        }
    }
    windows
}

/// A batch was read: writes the copy. Takes the mutex; the caller pumps afterwards.
pub(crate) fn batch_read(store: &StoreCore, read: BatchRead, done: Vec<IoDone>) {
    let copied = collect(done).map(|bufs| assemble(store, &read, &bufs));
    let mut state = store.state.lock();
    if store.shape.broken.by(StoreFlaw::CopyWithoutPin) {
        state.space.unpin(read.pin);
    }
    let (bufs, sum) = match copied {
        Ok(copied) => copied,
        Err(error) => {
            tracing::warn!(%error, "pages that were to be moved cannot be read; their segment stays as it is");
            super::drop_copy(&mut state, read.pin, read.to);
            state.cleaner.skip_batch();
            return;
        }
    };
    if state.fence.failure().is_some() || state.fence.is_closed() {
        super::drop_copy(&mut state, read.pin, read.to);
        state.cleaner.round = None;
        return;
    }
    let bytes = store.shape.byte(read.to.pages.into());
    let epoch = state.commit.begin_write(&[read.to], bytes);
    let copy = BatchCopy { parts: read.batch.parts, to: read.to, sum, epoch, pin: read.pin };
    let ios = store.write_ios(read.to, bufs, IoClass::Background);
    state.queue.submit(IoPurpose::MoveWrite { epoch, copy: Box::new(copy) }, ios);
}

/// The copy is written: it belongs to the epoch that is open now.
pub(crate) fn copy_written(state: &mut StoreState, copy: BatchCopy) {
    let epoch = state.commit.open_epoch();
    state.cleaner.copied(BatchCopy { epoch, ..copy });
}

fn collect(done: Vec<IoDone>) -> Result<Vec<AlignedBuf>, DeviceError> {
    let buf = |done: IoDone| done.result.map(|()| done.buf.unwrap_or_else(|| AlignedBuf::zeroed(0)));
    done.into_iter().map(buf).collect()
}

/// The copy in buffers of one write command each, and the sum of all.
fn assemble(store: &StoreCore, read: &BatchRead, bufs: &[AlignedBuf]) -> (Vec<AlignedBuf>, u32) {
    let page_bytes = store.shape.page_bytes;
    let most = store.shape.io_pages();
    let mut out: Vec<AlignedBuf> =
        pieces(read.to, most).map(|piece| AlignedBuf::zeroed(piece.pages as usize * page_bytes)).collect();
    for part in &read.batch.parts {
        for index in 0..part.from.pages {
            let page = part.from.at + u64::from(index);
            let behind = read.windows.partition_point(|window| window.at <= page);
            let Some(window) = behind.checked_sub(1) else { continue };
            let at = (page - read.windows[window].at) as usize * page_bytes;
            let Some(bytes) = bufs[window].get(at..at + page_bytes) else { continue };
            let to = part.offset + index;
            let within = (to % most) as usize * page_bytes;
            out[(to / most) as usize][within..within + page_bytes].copy_from_slice(bytes);
        }
    }
    let sum = out.iter().fold(0, |sum, buf| SumRule::Hashes.sum(sum, buf, page_bytes));
    (out, sum)
}

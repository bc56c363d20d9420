//! Frames as data of groups: the `log` backend places a frame beside the record of its group.
//!
//! All pages of a frame lie in its group, under the sum of the group's data: nothing in the frame itself tells it from
//! one that another stream had in the same place. Such a frame is durable with its commit. Everything it comes after lies in its own record or in an earlier one,
//! so the order of records replaces incarnations and dependencies.
//! Design: docs/design/object.md#log OBJ-12, OBJ-13, OBJ-14
//! Invariants
//! - One operation of a record names each frame; a frame without it does not exist.

use super::new_frame::{NewFrame, STREAM_CLASS};
use crate::{
    Ack, FramePos, StoreError,
    engine::admission::{close_full_group, wait_journal},
    format::{
        frame::{self, FrameHeader},
        ops::RecordOp,
        run::PageRun,
        sum_rule::SumRule,
    },
    resize::grow::make_available,
    space::home::PageHome,
    state::{
        StoreCore, StoreState,
        commit::group::{GroupAdmission, GroupRoom},
        queue::IoPurpose,
    },
    stream::reserved_frame::{FrameRoute, ReservedFrame},
    tables::StreamPiece,
};
use copal_device::{AlignedBuf, Completion, IoClass};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Most bytes of the operation that names a frame, in a record and in a checkpoint.
const FRAME_OP_BYTES: usize = 64;

/// Places the frame in the open group. `None`: the mutex was released to wait, and the caller must check everything
/// again.
/// # Errors
/// `NoSpace`, `Fenced`.
pub(super) fn ride(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    frame: &NewFrame<'_>,
) -> Result<Option<ReservedFrame>, StoreError> {
    let missing = state.pages_for_tables(FRAME_OP_BYTES as u64, false);
    if missing > 0 || u64::from(frame.pages) > state.space.available_pages() {
        let needed = missing + u64::from(frame.pages);
        make_available(store, state, needed, needed)?;
        return Ok(None);
    }
    let home = PageHome { class: STREAM_CLASS, owner: frame.stream, in_group: true, is_frame: true };
    let Some(run) = state.space.allocate_run(frame.pages, home, false) else {
        if !state.waits_for_group() {
            return Err(state.no_space(frame.pages.into()));
        }
        close_full_group(store, state)?;
        return Ok(None);
    };
    match state.find_room(FRAME_OP_BYTES, false) {
        Ok(GroupRoom::Admitted(admitted)) => Ok(Some(enter_frame(store, state, frame, run, admitted))),
        Ok(room) => {
            state.space.release(run);
            match room {
                GroupRoom::JournalFull => wait_journal(store, state)?,
                _ => close_full_group(store, state)?,
            }
            Ok(None)
        }
        Err(error) => {
            state.space.release(run);
            Err(error)
        }
    }
}

/// Enters the frame into the open group.
fn enter_frame(
    store: &Arc<StoreCore>,
    state: &mut StoreState,
    frame: &NewFrame<'_>,
    run: PageRun,
    admitted: GroupAdmission,
) -> ReservedFrame {
    let lsn = state.commit.take_lsn(admitted, false);
    let number = state.streams.number_frame(frame.stream, 0).number;
    let header = FrameHeader {
        incarnation: StreamPiece::RIDING,
        frame: number,
        flushed_frame: 0,
        after: frame.after,
        rule: state.tables.stream(frame.stream).map_or_else(SumRule::default, |stream| stream.what.sums),
    };
    let mut buf = AlignedBuf::stale(frame.pages as usize * store.shape.page_bytes);
    frame::encode(&header, frame.payload, &mut buf);
    state.enter(&RecordOp::StreamFrame { id: frame.stream, run, frame: number }, lsn);
    write(store, state, run, buf);
    let at = FramePos(number);
    let completion = acknowledge(store, state, frame.ack, lsn, at);
    ReservedFrame::new(store, at, FrameRoute::Queued { completion })
}

/// Writes the frame with its group, or apart from it if it is long.
fn write(store: &StoreCore, state: &mut StoreState, run: PageRun, buf: AlignedBuf) {
    let Some(buf) = state.space.placement_mut().journal_mut().fill(run, buf) else {
        return;
    };
    let bytes = buf.len() as u64;
    let epoch = state.commit.begin_write(&[run], bytes);
    let group = state.commit.open_group();
    state.commit.await_writes(1);
    let io = store.write_io(run.at, buf, IoClass::Commit);
    state.queue.submit(IoPurpose::Data { group, epoch, runs: vec![run], bytes }, vec![io]);
}

fn acknowledge(
    store: &StoreCore,
    state: &mut StoreState,
    ack: Ack,
    lsn: u64,
    at: FramePos,
) -> Completion<Result<FramePos, StoreError>> {
    if ack == Ack::Ordered {
        return Completion::ready(Ok(at));
    }
    let (completer, completion) = store.promise();
    match ack {
        Ack::Durable => state.commit.wait_durable(lsn, completer),
        _ => state.commit.wait_written(lsn, completer),
    }
    completion.map(move |committed| committed.map(|_| at))
}

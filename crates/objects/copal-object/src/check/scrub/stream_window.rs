//! A window over one piece of a stream: its durable frames.

use super::{
    order::{PartPlace, ScrubPart},
    reads::{WINDOW_BYTES, WindowResult, read_run},
};
use crate::{
    FramePos, ObjectId, StoreError,
    check::{
        fsck::StoreDamage,
        piece_frames::{PieceFrame, PieceFrames},
    },
    format::{frame, run::PageRun},
    state::{StoreCore, StoreState},
    stream::read_ahead::ReadAhead,
    tables::StreamPiece,
};
use std::cell::Cell;

/// Frames of a piece that a scrub reads.
struct PlannedFrames {
    piece: StreamPiece,
    trimmed: u64,
    /// Frames below this one are durable and belong to the piece.
    limit: u64,
    /// Recovery found the stream damaged at this frame, which the piece should hold.
    lost: Option<u64>,
}

/// The frames of a part, unless the stream has given the piece up meanwhile.
fn plan(state: &StoreState, part: &ScrubPart) -> Option<PlannedFrames> {
    let PartPlace::Stream(first) = part.within else { return None };
    let stream = state.tables.stream(part.id)?;
    let tail = state.streams.tail(part.id)?;
    let before = stream.pieces.partition_point(|piece| piece.first < first);
    let mut of_number = stream.pieces.iter().skip(before).take_while(|piece| piece.first == first);
    let index = before + of_number.position(|piece| piece.run.at == part.run.at)?;
    let piece = *stream.pieces.get(index)?;
    let behind = stream.pieces.get(index + 1).map_or(u64::MAX, |next| next.first);
    let is_at_end = tail.damaged && (piece.first..behind).contains(&tail.next);
    // Frames that ride are durable with their groups.
    let durable = match piece.incarnation == StreamPiece::RIDING {
        true if state.is_unwritten(piece.run) => return None,
        true => tail.next,
        false => tail.durable.next,
    };
    Some(PlannedFrames {
        piece,
        trimmed: stream.trimmed,
        limit: behind.min(durable).min(tail.next),
        lost: is_at_end.then_some(tail.next),
    })
}

/// Reads the next frames of a part. Returns the page up to which it was read, and the pages read ahead.
pub(super) fn read(
    store: &StoreCore,
    part: &ScrubPart,
    ahead: ReadAhead,
) -> Result<(WindowResult, u64, ReadAhead), StoreError> {
    let page_bytes = store.shape.page_bytes;
    let window_pages = (WINDOW_BYTES / page_bytes as u64) as u32;
    let done = |damages| (WindowResult { damages, read_bytes: 0 }, part.run.end(), ReadAhead::default());
    let mut state = store.state.lock();
    let Some(planned) = plan(&state, part) else { return Ok(done(Vec::new())) };
    let PlannedFrames { piece, trimmed, limit, lost } = planned;
    let lost = lost.map(|frame| damage(part.id, frame));
    if piece.first >= limit {
        return Ok(done(lost.into_iter().collect()));
    }
    let from = (part.at - part.run.at) as u32;
    // A window, the frame at its end, and the pages read ahead.
    let reach = window_pages + 2 * frame::pages_max(page_bytes);
    let pinned = PageRun::new(part.at, reach.min(piece.run.pages.saturating_sub(from)).max(1));
    let ticket = state.space.pin(vec![pinned]);
    drop(state);
    let read_bytes = Cell::new(0);
    let read = |run: PageRun| {
        read_bytes.set(read_bytes.get() + u64::from(run.pages) * page_bytes as u64);
        read_run(store, run)
    };
    let mut frames = PieceFrames::new(&piece, from, limit, page_bytes, &read).with_ahead(ahead);
    let mut damages = Vec::new();
    let mut ended = false;
    let mut failed = None;
    while !ended && frames.at() < from.saturating_add(window_pages) {
        match frames.next() {
            Ok(Some(PieceFrame::Whole { .. })) => {}
            Ok(Some(PieceFrame::Missing { frame })) if frame < trimmed => {}
            Ok(Some(PieceFrame::Missing { frame })) => damages.push(damage(part.id, frame)),
            Ok(None) => ended = true,
            Err(error) if error.is_passing() => {
                failed = Some(error);
                break;
            }
            // The medium cannot read the frame, so the places of later ones are unknown.
            Err(_) => {
                damages.push(damage(part.id, frames.number()));
                ended = true;
            }
        }
    }
    let to = if ended { part.run.end() } else { part.run.at + u64::from(frames.at()) };
    let ahead = frames.into_ahead();
    store.unpin(ticket);
    if let Some(error) = failed {
        return Err(error.into());
    }
    damages.extend(lost.filter(|_| ended));
    Ok((WindowResult { read_bytes: read_bytes.get(), damages }, to, ahead))
}

fn damage(id: u64, frame: u64) -> StoreDamage {
    StoreDamage::Stream { id: ObjectId(id), frame: FramePos(frame) }
}

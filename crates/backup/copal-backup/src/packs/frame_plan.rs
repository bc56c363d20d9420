//! The order in which frames of many packs are read: pack after pack as the packs were written, ascending in
//! each pack.
//!
//! A store places files in about the order in which they were written, so one pass over the plan is about one
//! pass over the device. A plan holds no footer: those of all packs of a plan could exceed any bound.

use crate::packs::pack::FrameLocation;
use crate::packs::pack_store::LocatedFrame;
use copal_volume::FileId;
use std::ops::Range;

/// A frame that is to be read.
#[derive(Clone, Copy)]
pub(crate) struct PlannedFrame {
    file: FileId,
    pub(crate) location: FrameLocation,
    /// The requests for the frame, in [`FramePlan::requests`].
    from: u32,
    to: u32,
}

impl PlannedFrame {
    /// A frame for the request of this number.
    pub(crate) fn of(located: &LocatedFrame, request: u32) -> PlannedFrame {
        PlannedFrame { file: located.footer.file, location: located.location, from: request, to: request }
    }
}

/// Frames in reading order, each once.
pub(crate) struct FramePlan {
    frames: Vec<PlannedFrame>,
    requests: Vec<u32>,
}

impl FramePlan {
    /// The plan of these frames; several requests may name one frame.
    pub(crate) fn new(mut wanted: Vec<PlannedFrame>) -> FramePlan {
        wanted.sort_unstable_by_key(|frame| (frame.file, frame.location, frame.from));
        let requests = wanted.iter().map(|frame| frame.from).collect();
        let mut frames: Vec<PlannedFrame> = Vec::with_capacity(wanted.len());
        for (at, frame) in (0..).zip(wanted) {
            match frames.last_mut().filter(|last| last.location == frame.location) {
                Some(last) => last.to = at + 1,
                None => frames.push(PlannedFrame { from: at, to: at + 1, ..frame }),
            }
        }
        FramePlan { frames, requests }
    }

    /// The frames, pack by pack. No part is empty.
    pub(crate) fn packs(&self) -> Vec<&[PlannedFrame]> {
        let of_one = |a: &PlannedFrame, b: &PlannedFrame| {
            let pack =
                |frame: &PlannedFrame| (frame.location.home, frame.location.volume, frame.location.pack);
            pack(a) == pack(b)
        };
        self.frames.chunk_by(of_one).collect()
    }

    /// The requests for a frame of this plan; at least one.
    pub(crate) fn requests(&self, frame: &PlannedFrame) -> &[u32] {
        let range: Range<usize> = frame.from as usize..frame.to as usize;
        &self.requests[range]
    }

    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }
}

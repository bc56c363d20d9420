//! Reads the stored bytes of many frames of one pack with one call of the store.
//!
//! The caller hands over all frames of the pack that it knows it needs. How near two of them must lie to be
//! one read, and how long a read may be, is decided by the store, which knows its device.
//!
//! Invariant: damage of one frame does not hide others: adjacent frames that could not be read together are
//! read one by one.

use crate::packs::pack::reader::{self, PackFooter};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{ReadOptions, VolumeError, VolumeId};
use std::ops::{ControlFlow, Range};

/// Most bytes of adjacent frames that are one range: the memory of one answer. A store puts some answers together, and
/// the allocator maps blocks of 128 KiB anew each time: with 256 KiB, half of the page faults of a fetch were these.
const ANSWER_BYTES: u64 = 120 << 10;

/// Receives frames: the index of the slot that was asked for, and the stored bytes. `Break` ends the call.
pub(crate) type FrameSink<'s> = dyn FnMut(usize, Result<&[u8]>) -> ControlFlow<()> + 's;

impl PackStore {
    /// Reads the frames in `slots` of a pack; they ascend, and the pack has them. `sink` gets each once, in any
    /// order, with its damage if it cannot be read.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn read_frames(
        &self,
        (footer, vid): (&PackFooter, VolumeId),
        slots: &[u32],
        sink: &mut FrameSink<'_>,
    ) -> Result<()> {
        let rows = |run: &Range<usize>| {
            let rows = |at: usize| &footer.rows[slots[at] as usize];
            u64::from(rows(run.start).offset)..rows(run.end - 1).end()
        };
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(slots.len());
        for at in 0..slots.len() {
            let joins = |last: &&mut Range<usize>| {
                let (one, other) = (rows(last), rows(&(at..at + 1)));
                one.end == other.start && other.end - one.start <= ANSWER_BYTES
            };
            match runs.last_mut().filter(joins) {
                Some(last) => last.end = at + 1,
                None => runs.push(at..at + 1),
            }
        }
        let mut alone = Vec::new();
        let pack = footer.number;
        let flow = self.read_runs(vid, footer, &runs, rows, &mut |run, answer| match answer {
            Ok(bytes) => {
                let start = rows(&run).start;
                for at in run {
                    let place = rows(&(at..at + 1));
                    let frame = &bytes[(place.start - start) as usize..(place.end - start) as usize];
                    sink(at, Ok(frame))?;
                }
                ControlFlow::Continue(())
            }
            Err(error) if run.len() == 1 => sink(run.start, Err(error)),
            Err(error) => {
                tracing::debug!(%pack, %error, "adjacent frames are read one by one");
                alone.extend(run.map(|at| at..at + 1));
                ControlFlow::Continue(())
            }
        })?;
        if flow.is_break() || alone.is_empty() {
            return Ok(());
        }
        self.read_runs(vid, footer, &alone, rows, &mut |run, answer| match answer {
            Ok(bytes) => sink(run.start, Ok(&bytes)),
            Err(error) => sink(run.start, Err(error)),
        })
        .map(drop)
    }

    /// Reads the ranges that `place` returns for runs of frames. `take` gets every run once.
    /// # Errors
    /// Errors of the store that are not damage.
    fn read_runs(
        &self,
        vid: VolumeId,
        footer: &PackFooter,
        runs: &[Range<usize>],
        place: impl Fn(&Range<usize>) -> Range<u64>,
        take: &mut dyn FnMut(Range<usize>, Result<Bytes>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let ranges: Vec<Range<u64>> = runs.iter().map(place).collect();
        self.answers_of(vid, footer, &ranges, &mut |index, answer| take(runs[index].clone(), answer))
    }

    /// Reads ranges of a pack. `take` gets every range once, in any order, with its damage if it cannot be
    /// read; so it does if another host removed the pack.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn read_ranges(
        &self,
        (footer, vid): (&PackFooter, VolumeId),
        ranges: &[Range<u64>],
        take: &mut dyn FnMut(usize, Result<Bytes>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.answers_of(vid, footer, ranges, take).map(drop)
    }

    /// As [`PackStore::read_ranges`]; returns whether `take` has ended the call.
    fn answers_of(
        &self,
        vid: VolumeId,
        footer: &PackFooter,
        ranges: &[Range<u64>],
        take: &mut dyn FnMut(usize, Result<Bytes>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let pack = footer.number;
        let mut answered = vec![false; ranges.len()];
        let mut flow = ControlFlow::Continue(());
        let mut failed: Option<Error> = None;
        let mut sink = |index: usize, answer: std::result::Result<Bytes, VolumeError>| {
            answered[index] = true;
            let wanted = ranges[index].end - ranges[index].start;
            flow = match self.read_of(pack, wanted, answer) {
                Err(error) if !error.is_corruption() => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
                answer => take(index, answer),
            };
            flow
        };
        let (name, options) = (pack.file_name(), ReadOptions::ANY_COPY);
        let read = self.volumes.store.read_ranges(vid, name.as_bytes(), ranges, &options, &mut sink);
        if let Some(error) = failed {
            return Err(error);
        }
        if flow.is_break() {
            return Ok(flow);
        }
        let is_removed = match read {
            Err(VolumeError::NotFound | VolumeError::VolumeGone) => true,
            read => read.map(|()| false)?,
        };
        for index in (0..ranges.len()).filter(|index| !answered[*index]) {
            let error = match is_removed {
                true => self.removed(pack),
                false => reader::damaged(pack, "a part of it got no answer"),
            };
            if take(index, Err(error)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

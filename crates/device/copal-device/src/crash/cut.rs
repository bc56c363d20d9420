//! Durable image and open changes at one step of a history.
//!
//! Invariants
//! - Open changes are ordered by completion, then those still in flight by submission. Where two surviving
//!   changes overlap, the later one wins.
//! - When a change becomes durable, overlapping open changes that completed before it are cut away: they
//!   cannot come back.

use super::states::{CrashStates, StateLimits};
use crate::Image;
use crate::image::{PAGE, Page};
use crate::record::{DeviceChange, DeviceHistory, HistoryEvent};
use std::collections::HashMap;
use std::sync::Arc;

/// A longer fill is torn into this many pieces; a shorter one at every block.
const FILL_PIECES: u64 = 4;

/// Content of one unit of tearing.
#[derive(Clone, Debug)]
pub(super) enum UnitContent {
    /// A whole page of the image's tree, shared.
    Page(Arc<Page>),
    /// Bytes of a write, from an offset on.
    Bytes(Arc<[u8]>, usize),
    Fill(u8),
    /// The device grew; `at` is the new length.
    Size,
    /// The device shrank; `at` is the new length.
    Cut,
}

/// A part of a change that survives or is lost as a whole.
#[derive(Clone, Debug)]
pub(super) struct TornUnit {
    pub(super) at: u64,
    pub(super) len: u64,
    content: UnitContent,
}

impl TornUnit {
    pub(super) fn apply(&self, image: &mut Image) {
        match self.content {
            UnitContent::Size => return image.resize(image.size().max(self.at)),
            UnitContent::Cut => return image.resize(image.size().min(self.at)),
            _ => {}
        }
        // A change beyond an end that did not survive is lost with that end.
        if self.at + self.len > image.size() {
            return;
        }
        match &self.content {
            UnitContent::Page(page) => image.set_page(self.at / PAGE as u64, Some(Arc::clone(page))),
            UnitContent::Bytes(data, from) => image.write(self.at, &data[*from..*from + self.len as usize]),
            UnitContent::Fill(byte) => image.fill(self.at, self.len, *byte),
            UnitContent::Size | UnitContent::Cut => {}
        }
    }

    fn overlaps(&self, other: &TornUnit) -> bool {
        let has_bytes = |unit: &TornUnit| !matches!(unit.content, UnitContent::Size | UnitContent::Cut);
        has_bytes(self) && has_bytes(other) && self.at < other.at + other.len && other.at < self.at + self.len
    }

    /// The parts of this unit outside `over`.
    fn outside(self, over: &TornUnit) -> Vec<TornUnit> {
        if !self.overlaps(over) {
            return vec![self];
        }
        let end = self.at + self.len;
        let before = self.at..over.at.clamp(self.at, end);
        let after = (over.at + over.len).clamp(self.at, end)..end;
        [before, after].into_iter().filter(|part| !part.is_empty()).map(|part| self.part(part)).collect()
    }

    fn part(&self, range: std::ops::Range<u64>) -> TornUnit {
        let skip = (range.start - self.at) as usize;
        let content = match &self.content {
            UnitContent::Page(page) => UnitContent::Bytes(Arc::from(&page[..]), skip),
            UnitContent::Bytes(data, from) => UnitContent::Bytes(Arc::clone(data), from + skip),
            UnitContent::Fill(byte) => UnitContent::Fill(*byte),
            UnitContent::Size => UnitContent::Size,
            UnitContent::Cut => UnitContent::Cut,
        };
        TornUnit { at: range.start, len: range.end - range.start, content }
    }
}

/// Splits a change into the units at which it may tear.
fn units_of(change: &DeviceChange, block: u64) -> Vec<TornUnit> {
    match change {
        DeviceChange::Bytes { at, data, .. } => (0..data.len() as u64)
            .step_by(block as usize)
            .map(|from| {
                let len = block.min(data.len() as u64 - from);
                TornUnit { at: at + from, len, content: content_of(data, from as usize, at + from, len) }
            })
            .collect(),
        DeviceChange::Fill { at, len, byte } => {
            let piece = len.div_ceil(FILL_PIECES).next_multiple_of(block).max(block);
            (0..*len)
                .step_by(piece as usize)
                .map(|from| TornUnit {
                    at: at + from,
                    len: piece.min(len - from),
                    content: UnitContent::Fill(*byte),
                })
                .collect()
        }
        DeviceChange::Size { size } => vec![TornUnit { at: *size, len: 0, content: UnitContent::Size }],
        DeviceChange::Cut { size } => vec![TornUnit { at: *size, len: 0, content: UnitContent::Cut }],
    }
}

fn content_of(data: &Arc<[u8]>, from: usize, at: u64, len: u64) -> UnitContent {
    let whole_page = len == PAGE as u64 && at.is_multiple_of(PAGE as u64);
    match data[from..].first_chunk::<PAGE>() {
        Some(page) if whole_page => UnitContent::Page(Arc::new(*page)),
        _ => UnitContent::Bytes(Arc::clone(data), from),
    }
}

/// A change that no completed flush covers.
#[derive(Clone, Debug)]
pub(super) struct OpenChange {
    pub(super) id: u64,
    pub(super) units: Vec<TornUnit>,
    /// Its position among completions; `None` while in flight.
    ended: Option<u64>,
    alone: bool,
}

/// Replays a history event by event.
pub(super) struct HistoryReplay {
    durable: Image,
    open: Vec<OpenChange>,
    /// Per flush in flight, the number of changes that had ended when it began.
    flushes: HashMap<u64, u64>,
    ended: u64,
    block: u64,
}

impl HistoryReplay {
    pub(super) fn new(history: &DeviceHistory) -> HistoryReplay {
        let block = u64::from(history.logical_block);
        HistoryReplay {
            durable: history.start.clone(),
            open: Vec::new(),
            flushes: HashMap::new(),
            ended: 0,
            block,
        }
    }

    pub(super) fn event(&mut self, event: &HistoryEvent) {
        match event {
            HistoryEvent::Begin { id, change } => {
                let units = units_of(change, self.block);
                let alone = change.is_durable_by_itself();
                self.open.push(OpenChange { id: *id, units, ended: None, alone });
            }
            HistoryEvent::End { id } => self.end(*id),
            HistoryEvent::Lost { id } => self.open.retain(|open| open.id != *id),
            HistoryEvent::FlushBegin { id } => {
                self.flushes.insert(*id, self.ended);
            }
            HistoryEvent::FlushEnd { id, honest } => {
                if let (Some(covered), true) = (self.flushes.remove(id), *honest) {
                    self.make_durable(|open| open.ended.is_some_and(|ended| ended < covered));
                }
            }
            HistoryEvent::Rot { at, data } => self.durable.write(*at, data),
            HistoryEvent::Reset { image } => {
                self.durable = image.clone();
                // A change in flight is not in the image; it ends later.
                self.open.retain(|open| open.ended.is_none());
            }
        }
    }

    /// Moves a change from "in flight" to its position among the completed ones.
    fn end(&mut self, id: u64) {
        let Some(index) = self.open.iter().position(|open| open.id == id) else {
            return;
        };
        let mut open = self.open.remove(index);
        open.ended = Some(self.ended);
        self.ended += 1;
        let alone = open.alone;
        let in_flight = self.open.partition_point(|other| other.ended.is_some());
        self.open.insert(in_flight, open);
        if alone {
            self.make_durable(|other| other.id == id);
        }
    }

    fn make_durable(&mut self, covered: impl Fn(&OpenChange) -> bool) {
        let (durable, mut open): (Vec<OpenChange>, Vec<OpenChange>) =
            std::mem::take(&mut self.open).into_iter().partition(covered);
        for change in &durable {
            for unit in &change.units {
                unit.apply(&mut self.durable);
            }
            let earlier = |other: &&mut OpenChange| other.ended.is_some() && other.ended < change.ended;
            for older in open.iter_mut().filter(earlier) {
                for over in &change.units {
                    older.units = std::mem::take(&mut older.units)
                        .into_iter()
                        .flat_map(|unit| unit.outside(over))
                        .collect();
                }
            }
        }
        open.retain(|change| !change.units.is_empty());
        self.open = open;
    }

    pub(super) fn cut(&self, step: usize) -> HistoryCut {
        HistoryCut { step, durable: self.durable.clone(), open: self.open.clone().into() }
    }
}

/// One step of a history: the durable image, and the changes that a crash may keep or lose.
#[derive(Clone, Debug)]
pub struct HistoryCut {
    pub(super) step: usize,
    pub(super) durable: Image,
    pub(super) open: Arc<[OpenChange]>,
}

impl HistoryCut {
    /// Number of events before this step.
    #[must_use]
    pub fn step(&self) -> usize {
        self.step
    }

    /// Number of changes that a crash at this step may lose, wholly or in part.
    #[must_use]
    pub fn open_changes(&self) -> usize {
        self.open.len()
    }

    /// The image if every open change is lost.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// The states that a crash at this step may leave.
    #[must_use]
    pub fn states(&self, limits: &StateLimits) -> CrashStates {
        CrashStates::new(self.clone(), limits)
    }
}

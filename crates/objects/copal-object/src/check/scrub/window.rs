//! A window over objects: the next units in the order of their addresses, read together.
//!
//! Invariants
//! - Its pages are pinned from the moment of planning until they are compared.
//! - Bytes that several objects share are read once.

use super::{
    order::{PartPlace, ScrubOrder, ScrubPart},
    reads::{WINDOW_BYTES, WindowResult, read_runs},
    sums::ObjectSums,
};
use crate::{
    ObjectId, StoreError,
    check::fsck::StoreDamage,
    format::{run::PageRun, sum_rule::SumRule},
    state::{StoreCore, StoreState, pieces},
    tables::{ObjectEntry, map::ObjectExtent, trailer_pages},
};
use copal_device::{AlignedBuf, DeviceError};
use std::ops::Range;

/// Most parts of one window: many objects may share its pages.
const PARTS_PER_WINDOW: usize = 512;

/// Bytes under one sum.
struct ScrubUnit {
    /// Pages inside the object.
    pages: Range<u64>,
    runs: Vec<PageRun>,
    /// Known, or behind the data of a published object.
    sum: Option<u32>,
}

/// Units of one object in a window.
struct ScrubChunk {
    id: u64,
    object: ObjectEntry,
    units: Vec<ScrubUnit>,
    /// Pages of the sums behind a published object.
    trailer: Vec<PageRun>,
}

/// Size of a window while it is planned.
struct WindowRoom {
    pages: u64,
    /// Page behind all planned runs.
    reach: u64,
}

impl WindowRoom {
    /// Pages from `at` on that still fit; at least `least` in an empty window.
    fn pages_at(&self, at: u64, least: u32, is_empty: bool) -> u64 {
        let fit = (self.reach.max(at) - at) + self.pages;
        if is_empty { fit.max(least.into()) } else { fit }
    }

    fn take(&mut self, run: PageRun) {
        let more = run.end().saturating_sub(run.at.max(self.reach));
        self.pages = self.pages.saturating_sub(more);
        self.reach = self.reach.max(run.end());
    }
}

/// Plans and reads the next window.
/// # Errors
/// The system cannot read at this time; the window is not read then.
pub(super) fn read(
    store: &StoreCore,
    order: &mut ScrubOrder,
    sums: &mut ObjectSums,
) -> Result<WindowResult, StoreError> {
    let mut room = WindowRoom { pages: WINDOW_BYTES / store.shape.page_bytes as u64, reach: 0 };
    let mut chunks: Vec<ScrubChunk> = Vec::new();
    let mut state = store.state.lock();
    for _ in 0..PARTS_PER_WINDOW {
        let Some(part) = order.first().filter(|part| matches!(part.within, PartPlace::Object(_))) else {
            break;
        };
        let is_empty = chunks.is_empty();
        let (chunk, to) = match plan(store, &state, &part, &mut room, is_empty) {
            PlannedPart::Units(chunk, to) => (Some(chunk), to),
            PlannedPart::Nothing(to) => (None, to),
            PlannedPart::NoRoom => break,
        };
        order.advance(to);
        chunks.extend(chunk);
    }
    let runs = |chunk: &ScrubChunk| {
        let units = chunk.units.iter().flat_map(|unit| unit.runs.iter().copied());
        units.chain(chunk.trailer.iter().copied()).collect::<Vec<_>>()
    };
    let ticket = state.space.pin(chunks.iter().flat_map(runs).collect());
    let walls: Vec<PageRun> = state.streams.raw_extent_runs().collect();
    drop(state);
    let compared = compare(store, &mut chunks, &walls, sums);
    store.unpin(ticket);
    Ok(compared?)
}

/// Plan of one part.
enum PlannedPart {
    /// These units, up to this page.
    Units(ScrubChunk, u64),
    /// Nothing is to be read up to this page.
    Nothing(u64),
    /// The window is full.
    NoRoom,
}

fn plan(
    store: &StoreCore,
    state: &StoreState,
    part: &ScrubPart,
    room: &mut WindowRoom,
    is_empty: bool,
) -> PlannedPart {
    let end = part.run.end();
    let PartPlace::Object(within) = part.within else { return PlannedPart::Nothing(end) };
    let Some(object) = state.tables.object(part.id) else { return PlannedPart::Nothing(end) };
    // Parts of it may have moved, and it may be longer or cut. A new place comes later, or is young.
    let page = within + (part.at - part.run.at);
    let is_in_place = |extent: &ObjectExtent| extent.run.at + within == part.run.at + extent.at;
    let left = object.map.overlapping(page, within + u64::from(part.run.pages)).find(is_in_place);
    let Some(extent) = left else { return PlannedPart::Nothing(end) };
    if extent.at > page {
        return PlannedPart::Nothing(extent.run.at);
    }
    let unit = object.unit(store.shape.page_bytes);
    // The place may lie within a unit, which is then left out.
    let pages = room.pages_at(part.at, 2 * unit, is_empty);
    let wanted = WantedUnits { extent, at: part.at, end, unit, pages };
    let (units, to) = match object.trailer {
        None => wanted.own(object),
        Some(_) => wanted.published(object, object.data_pages(store.shape.page_bytes)),
    };
    if units.is_empty() {
        return match to > part.at || is_empty {
            true => PlannedPart::Nothing(to.max(part.at + 1)),
            false => PlannedPart::NoRoom,
        };
    }
    if units.iter().flat_map(|unit| &unit.runs).any(|&run| state.is_unwritten(run)) {
        return PlannedPart::Nothing(to);
    }
    units.iter().flat_map(|unit| &unit.runs).for_each(|&run| room.take(run));
    let trailer = match object.trailer {
        None => Vec::new(),
        Some(_) => trailer_runs(store, object, unit),
    };
    PlannedPart::Units(ScrubChunk { id: part.id, object: object.clone(), units, trailer }, to)
}

/// Units of one extent: those that begin from device page `at` on and before `end`, within `pages` pages.
struct WantedUnits {
    extent: ObjectExtent,
    at: u64,
    end: u64,
    /// Pages under one sum.
    unit: u32,
    pages: u64,
}

impl WantedUnits {
    /// Device page behind the part and the extent.
    fn behind(&self) -> u64 {
        self.end.min(self.extent.run.end())
    }

    /// Units whose sums are in the tables: counted from the beginning of the extent. Also the page up to which they go.
    fn own(&self, object: &ObjectEntry) -> (Vec<ScrubUnit>, u64) {
        let run = self.extent.run;
        let first = ((self.at - run.at) as u32).next_multiple_of(self.unit);
        if run.at + u64::from(first) >= self.behind() {
            return (Vec::new(), self.behind());
        }
        let sums = object.map.sums_of(self.extent.at, self.unit);
        let units: Vec<ScrubUnit> = pieces(run, self.unit)
            .zip(sums)
            .skip((first / self.unit) as usize)
            .take_while(|(run, _)| run.at < self.end && run.end() - self.at <= self.pages)
            .map(|(piece, &sum)| {
                let at = self.extent.at + (piece.at - run.at);
                ScrubUnit { pages: at..at + u64::from(piece.pages), runs: vec![piece], sum: Some(sum) }
            })
            .collect();
        let to = units.last().map_or(self.at, |unit| unit.runs[0].end());
        (units, to)
    }

    /// Units of a published object: counted from its beginning, so one may continue in the next extent. A unit belongs
    /// to the extent of its first page. The object has `data` pages without its sums.
    fn published(&self, object: &ObjectEntry, data: u64) -> (Vec<ScrubUnit>, u64) {
        let (extent, unit) = (self.extent, u64::from(self.unit));
        let place = |page: u64| extent.run.at + (page - extent.at);
        let mut at = (extent.at + (self.at - extent.run.at)).next_multiple_of(unit);
        let mut units = Vec::new();
        let mut to = self.at;
        while at < extent.end().min(data) && place(at) < self.end {
            let end = (at + unit).min(data);
            let behind = place(end.min(extent.end()));
            if behind - self.at > self.pages {
                return (units, to);
            }
            let runs = object.map.overlapping(at, end).map(|extent| {
                let (from, upto) = (extent.at.max(at), extent.end().min(end));
                PageRun::new(extent.run.at + (from - extent.at), (upto - from) as u32)
            });
            units.push(ScrubUnit { pages: at..end, runs: runs.collect(), sum: None });
            (at, to) = (end.next_multiple_of(unit), behind);
        }
        (units, to.max(self.behind()))
    }
}

fn trailer_runs(store: &StoreCore, object: &ObjectEntry, unit: u32) -> Vec<PageRun> {
    let data = object.data_pages(store.shape.page_bytes);
    let end = data + trailer_pages(data, unit, store.shape.page_bytes);
    let runs = object.map.overlapping(data, end).map(|extent| {
        let from = extent.at.max(data);
        PageRun::new(extent.run.at + (from - extent.at), (extent.end() - from) as u32)
    });
    runs.collect()
}

/// Reads the pages of the chunks and compares them with their sums.
fn compare(
    store: &StoreCore,
    chunks: &mut [ScrubChunk],
    walls: &[PageRun],
    sums: &mut ObjectSums,
) -> Result<WindowResult, DeviceError> {
    let mut result = WindowResult::default();
    for chunk in chunks.iter_mut() {
        let Some(hash) = chunk.object.trailer.as_deref().copied() else { continue };
        let unit = chunk.object.unit(store.shape.page_bytes);
        match sums.find(store, hash, &chunk.trailer, &mut result.read_bytes)? {
            Some(all) => {
                for of_unit in &mut chunk.units {
                    let index = (of_unit.pages.start / u64::from(unit)) as usize * 4;
                    let sum = all.get(index..index + 4).and_then(|sum| sum.try_into().ok());
                    of_unit.sum = sum.map(u32::from_le_bytes);
                }
            }
            None => {
                chunk.units.clear();
                if sums.is_new_damage(chunk.id) {
                    let range = 0..chunk.object.len;
                    result.damages.push(StoreDamage::Object { id: ObjectId(chunk.id), range });
                }
            }
        }
    }
    let runs = chunks.iter().flat_map(|chunk| &chunk.units).flat_map(|unit| unit.runs.iter().copied());
    let commands = joined(store, runs.collect(), walls);
    let read = read_runs(store, &commands);
    if let Some(error) = read.iter().find_map(|read| read.as_ref().err().filter(|error| error.is_passing())) {
        return Err(error.clone());
    }
    let page = store.shape.page_bytes as u64;
    result.read_bytes += commands.iter().map(|run| u64::from(run.pages) * page).sum::<u64>();
    let window = WindowPages { store, commands, read };
    for chunk in chunks.iter() {
        for unit in &chunk.units {
            if window.sum(&unit.runs, chunk.object.what.sums)? != unit.sum {
                let start = unit.pages.start * page;
                let end = (unit.pages.end * page).min(chunk.object.len.max(start + 1));
                result.damages.push(StoreDamage::Object { id: ObjectId(chunk.id), range: start..end });
            }
        }
    }
    Ok(result)
}

/// Commands that read `runs`: neighbours and small gaps together, but none through a raw extent, whose pages are
/// used through the page cache only.
fn joined(store: &StoreCore, mut runs: Vec<PageRun>, walls: &[PageRun]) -> Vec<PageRun> {
    let gap_pages = store.shape.gap_bytes / store.shape.page_bytes as u64;
    let most = store.shape.io_pages();
    let mut commands: Vec<PageRun> = Vec::new();
    runs.sort_unstable();
    for run in runs {
        let mut rest = run;
        if let Some(last) = commands.last_mut() {
            let is_near = run.at <= last.end().saturating_add(gap_pages);
            let gap = PageRun::new(last.end(), run.at.saturating_sub(last.end()).min(u32::MAX.into()) as u32);
            let end = run.end().max(last.end()).min(last.at + u64::from(most));
            if is_near && end > run.at && !walls.iter().any(|wall| wall.overlaps(gap)) {
                last.pages = (end - last.at) as u32;
            }
            let done = last.end().max(run.at).min(run.end());
            rest = PageRun::new(done, (run.end() - done) as u32);
        }
        commands.extend(pieces(rest, most));
    }
    commands
}

/// The pages of a window, by command.
struct WindowPages<'a> {
    store: &'a StoreCore,
    commands: Vec<PageRun>,
    read: Vec<Result<AlignedBuf, DeviceError>>,
}

impl WindowPages<'_> {
    /// Sum of the pages of `runs`; `None` if the medium cannot read them.
    /// # Errors
    /// The system cannot read at this time.
    fn sum(&self, runs: &[PageRun], rule: SumRule) -> Result<Option<u32>, DeviceError> {
        let page_bytes = self.store.shape.page_bytes;
        let mut sum = 0;
        for run in runs {
            let mut at = run.at;
            while at < run.end() {
                let index = self.commands.partition_point(|command| command.end() <= at);
                let found = self
                    .commands
                    .get(index)
                    .zip(self.read.get(index))
                    .filter(|(command, _)| command.at <= at);
                let Some((command, read)) = found else { return Ok(None) };
                let end = run.end().min(command.end());
                let len = (end - at) as usize * page_bytes;
                let from = (at - command.at) as usize * page_bytes;
                match read {
                    Ok(bytes) => sum = rule.sum(sum, &bytes[from..from + len], page_bytes),
                    // The command failed perhaps for other pages.
                    Err(_) => match self.store.device.read_again(self.store.shape.byte(at), len) {
                        Ok(bytes) => sum = rule.sum(sum, &bytes, page_bytes),
                        Err(error) if error.is_passing() => return Err(error),
                        Err(_) => return Ok(None),
                    },
                }
                at = end;
            }
        }
        Ok(Some(sum))
    }
}

//! Tables: every object and stream of a store, as the result of its records.
//!
//! A commit and its replay after a crash use the same [`ObjectTables::apply`], so they cannot differ.
//! Invariants
//! - `apply` decides nothing: all places are in the operation.
//! - Bytes of a plain object's last page beyond its length are zero on the device.
//!
//! Not here: free space (`space`), the device, order and durability (`epoch`, `group`).

pub(crate) mod chain;
pub(crate) mod chunks;
mod entry;
pub(crate) mod map;
mod moves;
pub(crate) mod shared;
pub(crate) mod snapshot;

use crate::{
    ObjectKind,
    format::{
        checkpoint, frame,
        ops::{DurableFrames, ObjectTraits, RecordOp, StreamCut, StreamFrames},
        record::COUNTER_MAX,
        run::PageRun,
        sum_rule::SumRule,
        superblock::STORE_BYTES_MAX,
    },
    tables::{
        chunks::{CHUNK_ENTRIES, EntryChunks},
        map::{ExtentMap, OBJECT_PAGES_MAX},
        shared::SharedRuns,
        snapshot::entry_bytes,
    },
};
use std::sync::Arc;

/// Longest piece of frames that ride, so that the cleaner can move it at once.
const PIECE_BYTES_MAX: u64 = 4 << 20;

pub(crate) use entry::{ObjectEntry, StreamEntry, StreamPiece, TableEntry, unit_pages};

/// All objects and streams.
#[derive(Clone, Debug)]
pub(crate) struct ObjectTables {
    pub(crate) page_bytes: usize,
    /// Pages of the store.
    pub(crate) pages: u64,
    pub(crate) entries: EntryChunks,
    pub(crate) shared: SharedRuns,
    /// Bytes of all entries in a checkpoint ([`snapshot::encoded_len`]), updated by each operation.
    pub(crate) entry_bytes: u64,
    /// Pages of a segment; 0 without segments. No piece of a stream leaves its segment.
    pub(crate) segment_pages: u32,
    /// Version of the checkpoint before the next record. A build that reads it decodes that record too.
    pub(crate) checkpoint_version: u16,
}

/// An operation does not fit the tables: damage that no checksum caught, or a bug of Copal.
#[derive(Debug, thiserror::Error)]
#[error("operation on object {id} does not fit: {what}")]
pub(crate) struct OpMisfit {
    pub(crate) id: u64,
    pub(crate) what: &'static str,
}

/// Effect of an operation on space.
#[derive(Debug, Default)]
pub(crate) struct OpEffect {
    /// Pages without an owner now.
    pub(crate) freed: Vec<PageRun>,
}

/// Most pages of a store.
pub(crate) fn store_pages_max(page_bytes: usize) -> u64 {
    STORE_BYTES_MAX / page_bytes as u64
}

impl ObjectTables {
    pub(crate) fn new(page_bytes: usize, pages: u64) -> ObjectTables {
        ObjectTables {
            page_bytes,
            pages,
            entries: EntryChunks::new(CHUNK_ENTRIES),
            shared: SharedRuns::default(),
            entry_bytes: 0,
            segment_pages: 0,
            checkpoint_version: checkpoint::VERSION,
        }
    }

    /// Records name places and longest frames of streams, as the checkpoint does. Otherwise a frame may have any
    /// length.
    pub(crate) fn names_frames(&self) -> bool {
        self.checkpoint_version >= checkpoint::NAMES_FRAMES
    }

    /// Rule for the sums of new objects.
    pub(crate) fn sum_rule(&self) -> SumRule {
        match self.checkpoint_version >= checkpoint::HASHES_PAGES {
            true => SumRule::Hashes,
            false => SumRule::Crc32c,
        }
    }

    /// Records may have inline data.
    pub(crate) fn knows_inline(&self) -> bool {
        self.checkpoint_version >= checkpoint::INLINE_DATA
    }

    /// Pages of the longest frame that a checkpoint or record claims for a stream. A number that no frame can
    /// have limits nothing.
    pub(crate) fn frame_pages(&self, claimed: u32) -> u32 {
        let most = frame::pages_max(self.page_bytes);
        if (1..=most).contains(&claimed) { claimed } else { most }
    }

    /// Most pages of a frame of a new stream.
    fn frame_pages_of_new(&self) -> u32 {
        match self.names_frames() {
            true => frame::pages_max_of_new(self.page_bytes),
            false => frame::pages_max(self.page_bytes),
        }
    }

    pub(crate) fn object(&self, id: u64) -> Option<&ObjectEntry> {
        match self.entries.get(id) {
            Some(TableEntry::Object(object)) => Some(object),
            _ => None,
        }
    }

    pub(crate) fn stream(&self, id: u64) -> Option<&StreamEntry> {
        match self.entries.get(id) {
            Some(TableEntry::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn stream_mut(&mut self, id: u64) -> Option<&mut StreamEntry> {
        match self.entries.get_mut(id) {
            Some(TableEntry::Stream(stream)) => Some(Arc::make_mut(stream)),
            _ => None,
        }
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = (u64, &StreamEntry)> {
        self.entries.iter().filter_map(|(id, entry)| match entry {
            TableEntry::Stream(stream) => Some((id, stream.as_ref())),
            TableEntry::Object(_) => None,
        })
    }

    /// The next checkpoint says that these frames of `id` are durable.
    pub(crate) fn name_frames(&mut self, id: u64, durable: DurableFrames) {
        if let Some(stream) = self.stream_mut(id) {
            stream.durable = stream.durable.later(durable);
        }
    }

    /// Applies one operation of a record whose last commit is `lsn`.
    pub(crate) fn apply(&mut self, op: &RecordOp, lsn: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        let before = self.bytes_of(op);
        self.apply_op(op, lsn, effect)?;
        self.entry_bytes = self.entry_bytes + self.bytes_of(op) - before;
        Ok(())
    }

    /// Bytes in a checkpoint of the entries whose length the operation may change.
    fn bytes_of(&self, op: &RecordOp) -> u64 {
        let of = |id: &u64| {
            let entry = self.entries.get(*id);
            entry.map_or(0, |entry| entry_bytes(entry, self.page_bytes))
        };
        match op {
            RecordOp::Create { id, .. }
            | RecordOp::Map { id, .. }
            | RecordOp::Publish { id, .. }
            | RecordOp::Unmap { id, .. }
            | RecordOp::Resum { id, .. }
            | RecordOp::Delete { id }
            | RecordOp::StreamExtent { id, .. }
            | RecordOp::StreamFrame { id, .. }
            | RecordOp::StreamTrim { id, .. }
            | RecordOp::StreamTruncate { id, .. }
            | RecordOp::Clone { to: id, .. } => of(id),
            RecordOp::Mount { cuts, .. } => {
                let mut ids: Vec<u64> = cuts.iter().map(|cut| cut.id).collect();
                ids.sort_unstable();
                ids.dedup();
                ids.iter().map(of).sum()
            }
            RecordOp::Move { parts, .. } => {
                let mut ids: Vec<u64> = parts.iter().map(|part| part.id).collect();
                ids.sort_unstable();
                ids.dedup();
                ids.iter().map(of).sum()
            }
            RecordOp::Length { .. }
            | RecordOp::Seal { .. }
            | RecordOp::Dep { .. }
            | RecordOp::Inline { .. }
            | RecordOp::InlinePlaced { .. }
            | RecordOp::Durable { .. }
            | RecordOp::Frames { .. }
            | RecordOp::Grow { .. } => 0,
        }
    }

    fn apply_op(&mut self, op: &RecordOp, lsn: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        match op {
            RecordOp::Create { id, what } => self.create(*id, *what),
            RecordOp::Map { id, at, run, rule, sums, .. } => {
                self.map((*id, *at), *run, (*rule, sums), effect)
            }
            RecordOp::Publish { id, what, len, runs, trailer, .. } => {
                self.publish(*id, *what, *len, runs, *trailer)
            }
            RecordOp::Unmap { id, at, pages } => self.unmap(*id, *at, *pages, effect),
            RecordOp::Resum { id, at, pages, sum } => self.resum(*id, *at, *pages, *sum),
            RecordOp::Length { id, len } => self.set_len(*id, *len),
            RecordOp::Clone { from, to } => self.clone_object(*from, *to),
            RecordOp::Seal { id } => {
                self.plain(*id)?.sealed = true;
                Ok(())
            }
            RecordOp::Delete { id } => self.delete(*id, effect),
            RecordOp::StreamExtent { id, run, first, incarnation } => {
                let piece = StreamPiece { run: *run, first: *first, incarnation: *incarnation, lsn };
                self.stream_extent(*id, piece)
            }
            RecordOp::StreamFrame { id, run, frame } => self.stream_frame(*id, *run, *frame, lsn),
            RecordOp::StreamTrim { id, upto } => self.stream_trim(*id, *upto, effect),
            RecordOp::StreamTruncate { id, cut } => {
                let cut_at = self.stream_of(*id)?.truncate(cut, lsn, &mut effect.freed);
                cut_at.map_err(|what| OpMisfit { id: *id, what })
            }
            RecordOp::Durable { streams } => self.durable(streams),
            RecordOp::Frames { streams } => streams.iter().try_for_each(|frames| self.frames(frames, lsn)),
            RecordOp::Mount { cuts, .. } => cuts.iter().try_for_each(|cut| self.cut_stream(cut, lsn, effect)),
            RecordOp::Grow { pages } => self.grow(*pages),
            RecordOp::Move { to, parts, .. } => self.move_parts(*to, parts, effect),
            RecordOp::Inline { run, bytes } => {
                self.inside(0, *run)?;
                let fits = bytes.len() == run.pages as usize * self.page_bytes;
                match fits && self.segment_pages == 0 {
                    true => Ok(()),
                    false => Err(OpMisfit { id: 0, what: "inline bytes do not fill their pages" }),
                }
            }
            RecordOp::Dep { .. } | RecordOp::InlinePlaced { .. } => Ok(()),
        }
    }

    fn grow(&mut self, pages: u64) -> Result<(), OpMisfit> {
        if pages > store_pages_max(self.page_bytes) {
            return Err(OpMisfit { id: 0, what: "the store would exceed the largest size" });
        }
        self.pages = self.pages.max(pages);
        Ok(())
    }

    /// Bytes of the store; `None` if they exceed the largest size of a store.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let bytes = self.pages.checked_mul(self.page_bytes as u64)?;
        (bytes <= STORE_BYTES_MAX).then_some(bytes)
    }

    /// Page behind the last one that an object owns.
    pub(crate) fn objects_end(&self) -> u64 {
        let end_of = |entry: &TableEntry| match entry {
            TableEntry::Object(object) => object.map.iter().map(|extent| extent.run.end()).max(),
            TableEntry::Stream(_) => None,
        };
        self.entries.iter().filter_map(|(_, entry)| end_of(entry)).max().unwrap_or(0)
    }

    fn plain(&mut self, id: u64) -> Result<&mut ObjectEntry, OpMisfit> {
        match self.entries.get_mut(id) {
            Some(TableEntry::Object(object)) => Ok(object),
            Some(TableEntry::Stream(_)) => Err(OpMisfit { id, what: "it is a stream" }),
            None => Err(OpMisfit { id, what: "it does not exist" }),
        }
    }

    fn vacant(&self, id: u64) -> Result<(), OpMisfit> {
        if self.entries.contains(id) { Err(OpMisfit { id, what: "it exists" }) } else { Ok(()) }
    }

    fn inside(&self, id: u64, run: PageRun) -> Result<(), OpMisfit> {
        if run.end() > self.pages {
            Err(OpMisfit { id, what: "its pages are outside the store" })
        } else {
            Ok(())
        }
    }

    fn create(&mut self, id: u64, what: ObjectTraits) -> Result<(), OpMisfit> {
        self.vacant(id)?;
        let entry = if what.kind == ObjectKind::Stream {
            TableEntry::Stream(Arc::new(StreamEntry::new(what, self.frame_pages_of_new())))
        } else {
            let sealed = what.kind == ObjectKind::Sealed;
            TableEntry::Object(ObjectEntry {
                what,
                sealed,
                shares: false,
                len: 0,
                map: ExtentMap::none(),
                trailer: None,
            })
        };
        self.entries.insert(id, entry);
        Ok(())
    }

    fn map(
        &mut self,
        (id, at): (u64, u64),
        run: PageRun,
        (rule, sums): (SumRule, &[u32]),
        effect: &mut OpEffect,
    ) -> Result<(), OpMisfit> {
        self.inside(id, run)?;
        let page_bytes = self.page_bytes;
        let object = self.plain(id)?;
        let unit = object.unit(page_bytes);
        let end = at.saturating_add(run.pages.into());
        if end > OBJECT_PAGES_MAX
            || sums.len() != run.pages.div_ceil(unit) as usize
            || rule != object.what.sums
            || object.trailer.is_some()
        {
            return Err(OpMisfit { id, what: "its extent does not fit" });
        }
        let map = Arc::make_mut(&mut object.map);
        let removed = map.remove(at, end, unit);
        map.insert(at, run, sums, unit);
        self.shared.release(removed, &mut effect.freed);
        Ok(())
    }

    fn publish(
        &mut self,
        id: u64,
        what: ObjectTraits,
        len: u64,
        runs: &[PageRun],
        trailer: u128,
    ) -> Result<(), OpMisfit> {
        self.vacant(id)?;
        let unit = unit_pages(what.check, self.page_bytes);
        let mut map = ExtentMap::default();
        let mut at = 0;
        for &run in runs {
            self.inside(id, run)?;
            if at + u64::from(run.pages) > OBJECT_PAGES_MAX {
                return Err(OpMisfit { id, what: "it is too long" });
            }
            map.insert(at, run, &[], unit);
            at += u64::from(run.pages);
        }
        let data = len.div_ceil(self.page_bytes as u64);
        let wanted = data + trailer_pages(data, unit, self.page_bytes);
        if wanted != at {
            return Err(OpMisfit { id, what: "its extents do not fit its length" });
        }
        let (map, trailer) = (Arc::new(map), Some(Arc::new(trailer)));
        let object = ObjectEntry { what, sealed: true, shares: false, len, map, trailer };
        self.entries.insert(id, TableEntry::Object(object));
        Ok(())
    }

    fn unmap(&mut self, id: u64, at: u64, pages: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        let page_bytes = self.page_bytes;
        let object = self.plain(id)?;
        if object.trailer.is_some() {
            return Err(OpMisfit { id, what: "it is immutable" });
        }
        let unit = object.unit(page_bytes);
        let removed = Arc::make_mut(&mut object.map).remove(at, at.saturating_add(pages), unit);
        self.shared.release(removed, &mut effect.freed);
        Ok(())
    }

    fn resum(&mut self, id: u64, at: u64, pages: u32, sum: u32) -> Result<(), OpMisfit> {
        let page_bytes = self.page_bytes;
        let object = self.plain(id)?;
        let unit = object.unit(page_bytes);
        let has_sums = object.trailer.is_none() && pages > 0;
        if has_sums && Arc::make_mut(&mut object.map).resum(at, pages, sum, unit) {
            Ok(())
        } else {
            Err(OpMisfit { id, what: "the sum belongs to no unit" })
        }
    }

    fn set_len(&mut self, id: u64, len: u64) -> Result<(), OpMisfit> {
        let bytes_max = OBJECT_PAGES_MAX * self.page_bytes as u64;
        let object = self.plain(id)?;
        if len > bytes_max || object.trailer.is_some() {
            return Err(OpMisfit { id, what: "its length is impossible" });
        }
        object.len = len;
        Ok(())
    }

    /// Shares the whole pages; the last partial page of a plain object follows as a separate `Map`.
    fn clone_object(&mut self, from: u64, to: u64) -> Result<(), OpMisfit> {
        self.vacant(to)?;
        let page_bytes = self.page_bytes;
        let source = self.plain(from)?;
        source.shares = true;
        let mut copy = source.clone();
        if copy.trailer.is_none() {
            let whole = copy.len / page_bytes as u64;
            let unit = copy.unit(page_bytes);
            Arc::make_mut(&mut copy.map).remove(whole, OBJECT_PAGES_MAX, unit);
            copy.len = whole * page_bytes as u64;
        }
        for extent in copy.map.iter() {
            self.shared.share(extent.run);
        }
        self.entries.insert(to, TableEntry::Object(copy));
        Ok(())
    }

    fn delete(&mut self, id: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        let runs = match self.entries.remove(id) {
            Some(TableEntry::Object(object)) => object.map.iter().map(|extent| extent.run).collect(),
            Some(TableEntry::Stream(stream)) => stream.pieces.iter().map(|piece| piece.run).collect(),
            None => {
                return Err(OpMisfit { id, what: "it does not exist" });
            }
        };
        self.shared.release(runs, &mut effect.freed);
        Ok(())
    }

    fn stream_of(&mut self, id: u64) -> Result<&mut StreamEntry, OpMisfit> {
        self.stream_mut(id).ok_or(OpMisfit { id, what: "it is no stream" })
    }

    fn stream_extent(&mut self, id: u64, piece: StreamPiece) -> Result<(), OpMisfit> {
        self.inside(id, piece.run)?;
        let stream = self.stream_of(id)?;
        if stream.pieces.last().is_some_and(|last| last.first > piece.first) {
            return Err(OpMisfit { id, what: "its extents are out of order" });
        }
        if piece.first > COUNTER_MAX {
            return Err(OpMisfit { id, what: "no stream has so many frames as are before its extent" });
        }
        stream.pieces.push(piece);
        Ok(())
    }

    /// A frame that lies in its group's record, or apart from it in pages of its own.
    fn stream_frame(&mut self, id: u64, run: PageRun, frame: u64, lsn: u64) -> Result<(), OpMisfit> {
        self.inside(id, run)?;
        let (page_bytes, segment_pages) = (self.page_bytes as u64, self.segment_pages);
        let stream = self.stream_of(id)?;
        if frame < stream.durable.next || frame >= COUNTER_MAX {
            return Err(OpMisfit { id, what: "its frames are out of order" });
        }
        match stream.pieces.last_mut() {
            Some(last)
                if last.run.end() == run.at
                    && frame == stream.durable.next
                    && last.incarnation == StreamPiece::RIDING
                    && (u64::from(last.run.pages) + u64::from(run.pages)) * page_bytes <= PIECE_BYTES_MAX
                    && !run.at.is_multiple_of(segment_pages.into()) =>
            {
                last.run.pages += run.pages;
            }
            _ => stream.pieces.push(StreamPiece { run, first: frame, incarnation: StreamPiece::RIDING, lsn }),
        }
        stream.durable = DurableFrames { next: frame + 1, last: None };
        Ok(())
    }

    fn stream_trim(&mut self, id: u64, upto: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        let stream = self.stream_of(id)?;
        // Frame numbers continue from there.
        if upto > COUNTER_MAX {
            return Err(OpMisfit { id, what: "no stream has so many frames as are trimmed" });
        }
        stream.trimmed = stream.trimmed.max(upto);
        let dead = stream.pieces.windows(2).take_while(|pair| pair[1].first <= upto).count();
        effect.freed.extend(stream.pieces.drain(..dead).map(|piece| piece.run));
        // Frames that ride leave no space for later ones.
        if upto >= stream.durable.next && stream.rides() {
            effect.freed.extend(stream.pieces.drain(..).map(|piece| piece.run));
        }
        Ok(())
    }

    fn durable(&mut self, streams: &[(u64, u64)]) -> Result<(), OpMisfit> {
        for &(id, frame) in streams {
            self.stream_of(id)?;
            self.name_frames(id, DurableFrames { next: frame, last: None });
        }
        Ok(())
    }

    fn frames(&mut self, frames: &StreamFrames, lsn: u64) -> Result<(), OpMisfit> {
        let pages_max = self.frame_pages(frames.pages_max);
        let stream = self.stream_of(frames.id)?;
        stream.durable = stream.durable.later(frames.durable);
        if pages_max > stream.frame_pages_max {
            stream.frame_pages_max = pages_max;
            // Frames behind this record may be that long, and count only with it.
            if let Some(piece) = stream.pieces.last_mut() {
                piece.lsn = piece.lsn.max(lsn);
            }
        }
        Ok(())
    }

    /// Ends the stream at `cut`: pages behind it are a new use of the space, later pieces are freed.
    fn cut_stream(&mut self, cut: &StreamCut, lsn: u64, effect: &mut OpEffect) -> Result<(), OpMisfit> {
        let id = cut.id;
        let stream = self.stream_of(id)?;
        // Recovery read these frames after a flush.
        stream.durable = stream.durable.later(DurableFrames { next: cut.next, last: None });
        let index = cut.piece as usize;
        let Some(piece) = stream.pieces.get_mut(index) else {
            return if stream.pieces.is_empty() {
                Ok(())
            } else {
                Err(OpMisfit { id, what: "it is cut outside" })
            };
        };
        if cut.kept > piece.run.pages || !(piece.first..=COUNTER_MAX).contains(&cut.next) {
            return Err(OpMisfit { id, what: "it is cut outside" });
        }
        let kept = cut.kept;
        let rest = PageRun::new(piece.run.at + u64::from(kept), piece.run.pages - kept);
        piece.run.pages = kept;
        effect.freed.extend(stream.pieces.drain(index + 1..).map(|piece| piece.run));
        if kept == 0 {
            stream.pieces.pop();
        }
        if rest.pages > 0 {
            stream.pieces.push(StreamPiece { run: rest, first: cut.next, incarnation: cut.incarnation, lsn });
        }
        Ok(())
    }
}

/// Pages of the sum trailer behind `data_pages` pages.
pub(crate) fn trailer_pages(data_pages: u64, unit: u32, page_bytes: usize) -> u64 {
    (data_pages.div_ceil(unit.into()) * 4).div_ceil(page_bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its id, an empty object takes 64 bytes.
    #[test]
    fn an_entry_is_short() {
        assert!(size_of::<TableEntry>() <= 56, "{} bytes", size_of::<TableEntry>());
    }

    /// Symptom: a mount record whose cut continues at a frame before its piece was applied, and every later
    /// opening refused the next checkpoint as damaged.
    /// Cause: the order of pieces was checked where they are added and read, but not where they are cut.
    /// Fix: such a record counts as damage.
    #[test]
    fn a_stream_continues_behind_the_piece_it_is_cut_in() {
        let mut tables = ObjectTables::new(4096, 1 << 20);
        let what = ObjectTraits::of(
            &crate::CreateOptions { kind: ObjectKind::Stream, ..crate::CreateOptions::default() },
            SumRule::Hashes,
        );
        let mut effect = OpEffect::default();
        tables.create(3, what).unwrap();
        for (at, first) in [(4096, 0), (4352, 20)] {
            let piece = StreamPiece { run: PageRun::new(at, 256), first, incarnation: 9, lsn: 1 };
            tables.stream_extent(3, piece).unwrap();
        }
        let cut = |next| StreamCut { id: 3, piece: 1, kept: 2, next, incarnation: 10 };
        assert!(tables.cut_stream(&cut(19), 2, &mut effect).is_err());
        tables.cut_stream(&cut(20), 2, &mut effect).unwrap();
    }

    #[test]
    fn a_table_of_32_mib_takes_one_extent_and_no_sums() {
        let mut tables = ObjectTables::new(4096, 1 << 20);
        let what = ObjectTraits::of(
            &crate::CreateOptions { check: crate::ReadCheck::Caller, ..crate::CreateOptions::default() },
            SumRule::Hashes,
        );
        let runs = vec![PageRun::new(5000, 8193)];
        tables.publish(7, what, 32 << 20, &runs, 1).unwrap();
        assert_eq!(tables.object(7).unwrap().map.extents(), 1);
    }
}

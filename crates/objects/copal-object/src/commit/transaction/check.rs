//! First step of a transaction: every reason to refuse it, and the resources it needs.
//!
//! Operations see the effects of earlier ones, so each object is tracked in a light shadow (length, kind).
//! Old bytes are looked up in the tables as they were before the transaction; these cover all bytes that a
//! later operation keeps.

use super::{Runs, SumUnit};
use crate::{
    CreateOptions, FramePos, ObjectId, ObjectKind, ObjectLifetime, Op, ReadCheck, StoreError, Txn,
    format::{ops::ObjectTraits, run::PageRun},
    object::{placement_class::placement_class, writer::StagedObject},
    space::home::PageHome,
    state::{StoreShape, StoreState},
    tables::{
        ObjectEntry, TableEntry,
        map::OBJECT_PAGES_MAX,
        snapshot::{ENTRY_BYTES_MAX, entry_bytes, published_bytes_max},
        unit_pages,
    },
};
use std::{collections::HashMap, ops::Range};

/// Space needed by one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpNeed {
    pub(crate) pages: u64,
    pub(crate) home: PageHome,
    /// Pages under one sum.
    unit: u32,
    /// Bytes in the record, without those that depend on the runs.
    fixed_bytes: usize,
}

impl OpNeed {
    /// Most bytes in the record, for any layout of the pages.
    fn bytes_max(&self) -> usize {
        self.fixed_bytes + 2 * self.pages as usize * (MAP_BYTES + 12)
    }
}

/// Resources that a transaction needs before it can be applied.
#[derive(Debug, Default)]
pub(crate) struct TransactionNeeds {
    pub(crate) per_op: Vec<OpNeed>,
    pub(crate) pages: u64,
    pub(crate) units: Vec<SumUnit>,
    /// Streams that are cut, each with the frame before which it ends.
    pub(crate) cuts: Vec<(u64, u64)>,
    /// Its data lies in the record.
    pub(crate) inline: bool,
    /// Only frees space: may use the store's own reserve.
    pub(crate) releases: bool,
    /// Only deletes, trims and seals: the next checkpoint does not grow.
    shrinks: bool,
    /// Most bytes that it adds to the next checkpoint beyond those of its operations.
    table_bytes: u64,
}

/// Most bytes of a `Map` without its sums, and of a `Resum`.
const MAP_BYTES: usize = 48;
/// Bytes of an `Inline` without its data, and of an `InlinePlaced`.
const INLINE_BYTES: usize = 17;
const INLINE_PLACED_BYTES: usize = 9;

impl TransactionNeeds {
    /// Upper bound of the inline bytes in the record.
    pub(crate) fn inline_bytes(&self, page_bytes: usize) -> usize {
        match self.inline {
            true => INLINE_PLACED_BYTES + self.pages as usize * (INLINE_BYTES + page_bytes),
            false => 0,
        }
    }

    /// Upper bound of the other operations' bytes in the record.
    pub(crate) fn ops_bytes_with(&self, runs: &Runs) -> usize {
        let with_runs = |(need, runs): (&OpNeed, &Vec<PageRun>)| {
            let maps: usize = runs
                .iter()
                .map(|run| MAP_BYTES + 4 * (run.pages.div_ceil(need.unit.max(1)) as usize + 2))
                .sum();
            need.fixed_bytes + 2 * maps
        };
        self.per_op.iter().zip(runs).map(with_runs).sum()
    }

    /// The same, if the data of each operation is one run.
    pub(crate) fn ops_bytes_in_group(&self) -> usize {
        let run = |need: &OpNeed| match need.pages {
            0 => Vec::new(),
            pages => vec![PageRun::new(0, u32::try_from(pages).unwrap_or(u32::MAX))],
        };
        self.ops_bytes_with(&self.per_op.iter().map(run).collect())
    }

    /// Upper bound of the growth of the next checkpoint, from the bytes of the operations. An extent with its
    /// sums takes at most as much in a checkpoint as in the record that maps it.
    pub(crate) fn table_bytes_with(&self, ops_bytes: usize) -> u64 {
        if self.shrinks { 0 } else { self.table_bytes + ops_bytes as u64 }
    }
}

#[derive(Clone)]
struct ObjectShadow {
    id: u64,
    kind: ObjectKind,
    sealed: bool,
    published: bool,
    check: ReadCheck,
    lifetime: ObjectLifetime,
    len: u64,
    /// First kept frame of a stream; `len` is the number of its next one.
    trimmed: u64,
    /// The object in the tables that owns these pages.
    source: Option<u64>,
}

struct TransactionChecker<'a> {
    state: &'a StoreState,
    page: u64,
    page_bytes: usize,
    shadows: HashMap<u64, Option<ObjectShadow>>,
    needs: TransactionNeeds,
}

/// Checks a transaction against the tables.
pub(crate) fn check(
    state: &StoreState,
    txn: &Txn,
    shape: &StoreShape,
) -> Result<TransactionNeeds, StoreError> {
    let mut checker = TransactionChecker {
        state,
        page: shape.page_bytes as u64,
        page_bytes: shape.page_bytes,
        shadows: HashMap::new(),
        needs: TransactionNeeds { releases: true, shrinks: true, ..TransactionNeeds::default() },
    };
    for (stream, frame) in &txn.after {
        checker.dependency(*stream, *frame)?;
    }
    for op in &txn.ops {
        let need = checker.op(op)?;
        checker.needs.pages += need.pages;
        checker.needs.per_op.push(need);
    }
    if let Some(first) = checker.needs.per_op.first_mut() {
        first.fixed_bytes += 17 * txn.after.len();
    }
    let mut needs = checker.needs;
    needs.inline = is_inline(state, &needs, shape);
    Ok(needs)
}

/// Whether the data lies in the record: then a commit takes one write, where the disk must not move twice.
fn is_inline(state: &StoreState, needs: &TransactionNeeds, shape: &StoreShape) -> bool {
    let bytes = needs.pages as usize * shape.page_bytes;
    let journal = state.space.placement().journal();
    // Among others, two writes of much data cost more than the way between two places.
    let is_alone = state.commit.is_idle() && state.commit.is_open_empty();
    let most = if is_alone { shape.inline_bytes } else { shape.inline_bytes / 4 };
    bytes > 0
        && bytes <= most
        && bytes <= journal.record_bytes_max() / 2
        && !journal.has_data()
        // A full store saves the room in its journal.
        && state.space.fits_checkpoint()
        && state.tables.knows_inline()
}

impl TransactionChecker<'_> {
    fn dependency(&self, stream: ObjectId, frame: FramePos) -> Result<(), StoreError> {
        let next =
            self.state.tables.stream(stream.0).and(self.state.streams.tail(stream.0)).map(|tail| tail.next);
        if next.is_some_and(|next| frame.0 < next) {
            return Ok(());
        }
        Err(StoreError::UnknownDependency { stream: Some(stream), frame: Some(frame), lsn: 0 })
    }

    fn publish(&mut self, staged: &StagedObject) -> Result<OpNeed, StoreError> {
        self.vacant(staged.id())?;
        let shadow = ObjectShadow {
            id: staged.id().0,
            kind: ObjectKind::Sealed,
            sealed: true,
            published: true,
            check: staged.traits().check,
            lifetime: staged.traits().lifetime,
            len: staged.len(),
            trimmed: 0,
            source: None,
        };
        self.shadows.insert(staged.id().0, Some(shadow));
        self.needs.table_bytes += published_bytes_max(staged.runs());
        Ok(OpNeed { fixed_bytes: 80 + 12 * staged.runs().len(), ..OpNeed::default() })
    }

    fn op(&mut self, op: &Op) -> Result<OpNeed, StoreError> {
        let releases = matches!(
            op,
            Op::Truncate { .. }
                | Op::Punch { .. }
                | Op::TrimStream { .. }
                | Op::TruncateStream { .. }
                | Op::Delete { .. }
        );
        self.needs.releases &= releases;
        self.needs.shrinks &= matches!(op, Op::TrimStream { .. } | Op::Delete { .. } | Op::Seal { .. });
        match op {
            Op::Create { id, opts } => self.create(*id, opts),
            Op::Publish(staged) => self.publish(staged),
            Op::Write { id, at, data } => {
                self.writable(*id)?;
                self.write(*id, *at, data.len() as u64)
            }
            Op::Append { id, at, data } => {
                let actual = self.writable(*id)?.len;
                if *at != actual {
                    return Err(StoreError::WrongLength { id: *id, given: *at, actual });
                }
                self.write(*id, *at, data.len() as u64)
            }
            Op::Truncate { id, len } => {
                self.writable(*id)?;
                self.truncate(*id, *len)
            }
            Op::Punch { id, range } => self.punch(*id, range),
            Op::Seal { id } => {
                self.writable(*id)?;
                self.shadow_mut(*id)?.sealed = true;
                Ok(OpNeed { fixed_bytes: 9, ..OpNeed::default() })
            }
            Op::Clone { from, to } => self.clone_object(*from, *to),
            Op::TrimStream { id, upto } => self.trim_stream(*id, upto.0),
            Op::TruncateStream { id, from } => self.truncate_stream(*id, from.0),
            Op::Delete { id } => {
                self.shadow(*id)?;
                self.shadows.insert(id.0, None);
                Ok(OpNeed { fixed_bytes: 9, ..OpNeed::default() })
            }
        }
    }

    fn stream(&mut self, id: ObjectId) -> Result<&mut ObjectShadow, StoreError> {
        let shadow = self.shadow_mut(id)?;
        if shadow.kind == ObjectKind::Stream { Ok(shadow) } else { Err(StoreError::WrongKind(id)) }
    }

    fn trim_stream(&mut self, id: ObjectId, upto: u64) -> Result<OpNeed, StoreError> {
        let stream = self.stream(id)?;
        stream.trimmed = stream.trimmed.max(upto.min(stream.len));
        Ok(OpNeed { fixed_bytes: 17, ..OpNeed::default() })
    }

    fn truncate_stream(&mut self, id: ObjectId, from: u64) -> Result<OpNeed, StoreError> {
        let stream = self.stream(id)?;
        if from < stream.trimmed || from > stream.len {
            return Err(StoreError::FrameRange { id, frames: stream.trimmed..stream.len, given: from });
        }
        let (is_shorter, source) = (from < stream.len, stream.source);
        stream.len = from;
        self.needs.cuts.extend(source.filter(|_| is_shorter).map(|id| (id, from)));
        Ok(OpNeed { fixed_bytes: 33, ..OpNeed::default() })
    }

    fn create(&mut self, id: ObjectId, opts: &CreateOptions) -> Result<OpNeed, StoreError> {
        self.vacant(id)?;
        let shadow = ObjectShadow {
            id: id.0,
            kind: opts.kind,
            sealed: opts.kind == ObjectKind::Sealed,
            published: false,
            check: opts.check,
            lifetime: opts.lifetime,
            len: 0,
            trimmed: 0,
            source: None,
        };
        self.shadows.insert(id.0, Some(shadow));
        self.needs.table_bytes += ENTRY_BYTES_MAX;
        Ok(OpNeed { fixed_bytes: 29, ..OpNeed::default() })
    }

    fn write(&mut self, id: ObjectId, at: u64, len: u64) -> Result<OpNeed, StoreError> {
        let shadow = self.shadow(id)?;
        let end = at.checked_add(len).ok_or(StoreError::TooLarge)?;
        if end > OBJECT_PAGES_MAX * self.page {
            return Err(StoreError::TooLarge);
        }
        let (first, last) = (at / self.page, end.div_ceil(self.page));
        let mut need = self.need_for(&shadow);
        if len == 0 {
            return Ok(need);
        }
        need.pages = last - first;
        if !at.is_multiple_of(self.page) && first * self.page < shadow.len {
            self.want_page(&shadow, first);
        }
        if !end.is_multiple_of(self.page) && end < shadow.len {
            self.want_page(&shadow, last - 1);
        }
        self.want_cut(&shadow, first);
        self.want_cut(&shadow, last);
        self.shadow_mut(id)?.len = shadow.len.max(end);
        Ok(need)
    }

    fn truncate(&mut self, id: ObjectId, len: u64) -> Result<OpNeed, StoreError> {
        let shadow = self.shadow(id)?;
        if len > OBJECT_PAGES_MAX * self.page {
            return Err(StoreError::TooLarge);
        }
        let mut need = self.need_for(&shadow);
        if len < shadow.len {
            let whole = len / self.page;
            if !len.is_multiple_of(self.page) {
                need.pages = 1;
                self.want_page(&shadow, whole);
                self.want_cut(&shadow, whole);
            }
            self.want_cut(&shadow, len.div_ceil(self.page));
        } else if len > shadow.len {
            self.needs.releases = false;
        }
        self.shadow_mut(id)?.len = len;
        Ok(need)
    }

    fn punch(&mut self, id: ObjectId, range: &Range<u64>) -> Result<OpNeed, StoreError> {
        let shadow = self.shadow(id)?;
        if shadow.kind == ObjectKind::Stream || shadow.published {
            return Err(StoreError::WrongKind(id));
        }
        if let Some((from, to)) = punched_pages(range, shadow.len, self.page) {
            self.want_cut(&shadow, from);
            self.want_cut(&shadow, to);
        }
        Ok(OpNeed { pages: 0, ..self.need_for(&shadow) })
    }

    fn clone_object(&mut self, from: ObjectId, to: ObjectId) -> Result<OpNeed, StoreError> {
        let shadow = self.shadow(from)?;
        self.vacant(to)?;
        if shadow.kind == ObjectKind::Stream {
            return Err(StoreError::WrongKind(from));
        }
        // As long as the original, including additions of this transaction.
        let original = shadow
            .source
            .and_then(|id| self.state.tables.entries.get(id))
            .map_or(0, |entry| entry_bytes(entry, self.page_bytes));
        let so_far: usize = self.needs.per_op.iter().map(|need| need.bytes_max()).sum();
        self.needs.table_bytes += self.needs.table_bytes + so_far as u64 + original + ENTRY_BYTES_MAX;
        let shadow = ObjectShadow { id: to.0, ..shadow };
        let mut need = self.need_for(&shadow);
        if !shadow.published && !shadow.len.is_multiple_of(self.page) {
            need.pages = 1;
            self.want_page(&shadow, shadow.len / self.page);
            self.want_cut(&shadow, shadow.len / self.page);
        }
        self.shadows.insert(to.0, Some(shadow));
        Ok(need)
    }

    fn need_for(&self, shadow: &ObjectShadow) -> OpNeed {
        let unit = unit_pages(shadow.check, self.page_bytes);
        let home = PageHome {
            class: placement_class(shadow.lifetime),
            owner: shadow.id,
            in_group: true,
            is_frame: false,
        };
        // Unmap, length, and a new sum on either side of two cuts.
        OpNeed { pages: 0, home, unit, fixed_bytes: 2 * MAP_BYTES + 4 * 32 }
    }

    /// Requests the old bytes of the unit around `page`, if there is one.
    fn want_page(&mut self, shadow: &ObjectShadow, page: u64) {
        self.needs.units.extend(self.unit(shadow, page));
    }

    /// Like [`TransactionChecker::want_page`], if `page` lies inside a unit and not at its start.
    fn want_cut(&mut self, shadow: &ObjectShadow, page: u64) {
        self.needs.units.extend(self.unit(shadow, page).filter(|unit| unit.at < page));
    }

    fn unit(&self, shadow: &ObjectShadow, page: u64) -> Option<SumUnit> {
        let id = shadow.source?;
        unit_around(id, self.state.tables.object(id)?, page, self.page_bytes)
    }

    fn shadow(&mut self, id: ObjectId) -> Result<ObjectShadow, StoreError> {
        self.shadow_mut(id).map(|shadow| shadow.clone())
    }

    fn shadow_mut(&mut self, id: ObjectId) -> Result<&mut ObjectShadow, StoreError> {
        let state = self.state;
        let slot = self.shadows.entry(id.0).or_insert_with(|| shadow_of(state, id));
        slot.as_mut().ok_or(StoreError::NotFound(id))
    }

    fn writable(&mut self, id: ObjectId) -> Result<&mut ObjectShadow, StoreError> {
        let shadow = self.shadow_mut(id)?;
        if shadow.kind == ObjectKind::Stream || shadow.sealed {
            return Err(StoreError::WrongKind(id));
        }
        Ok(shadow)
    }

    fn vacant(&mut self, id: ObjectId) -> Result<(), StoreError> {
        match self.shadow(id) {
            Ok(_) => Err(StoreError::Exists(id)),
            Err(_) => Ok(()),
        }
    }
}

fn shadow_of(state: &StoreState, id: ObjectId) -> Option<ObjectShadow> {
    let of = |what: &ObjectTraits| ObjectShadow {
        id: id.0,
        kind: what.kind,
        sealed: false,
        published: false,
        check: what.check,
        lifetime: what.lifetime,
        len: 0,
        trimmed: 0,
        source: Some(id.0),
    };
    state.tables.entries.get(id.0).map(|entry| match entry {
        TableEntry::Object(object) => ObjectShadow {
            sealed: object.sealed,
            published: object.trailer.is_some(),
            len: object.len,
            ..of(&object.what)
        },
        TableEntry::Stream(stream) => {
            ObjectShadow { len: state.streams.next_frame(id.0), trimmed: stream.trimmed, ..of(&stream.what) }
        }
    })
}

/// Pages that a punch frees: whole ones, and the last partial one if the range reaches the end.
pub(crate) fn punched_pages(range: &Range<u64>, len: u64, page: u64) -> Option<(u64, u64)> {
    let from = range.start.div_ceil(page);
    let to = if range.end >= len { len.div_ceil(page) } else { range.end / page };
    (from < to).then_some((from, to))
}

/// The unit that holds `page` of an object with sums in memory.
pub(crate) fn unit_around(id: u64, object: &ObjectEntry, page: u64, page_bytes: usize) -> Option<SumUnit> {
    if object.trailer.is_some() {
        return None;
    }
    let unit = object.unit(page_bytes);
    let extent = object.map.overlapping(page, page + 1).next()?;
    let index = ((page - extent.at) as u32) / unit;
    let from = index * unit;
    let pages = unit.min(extent.run.pages - from);
    let sum = object.map.sums_of(extent.at, unit).get(index as usize).copied()?;
    let run = PageRun::new(extent.run.at + u64::from(from), pages);
    Some(SumUnit { id, at: extent.at + u64::from(from), run, rule: object.what.sums, sum })
}

//! Last step of a transaction: physical operations and data writes. It cannot fail.

use super::{
    FetchedPages, Runs, SumUnit,
    check::{TransactionNeeds, punched_pages, unit_around},
    stream_cut::CutPlaces,
};
use crate::{
    ObjectId, Op, Txn,
    flaw::StoreFlaw,
    format::{
        ops::{ObjectTraits, RecordOp},
        run::{PageRun, pages_of},
        sum_rule::SumRule,
    },
    state::{StoreCore, StoreState, commit::group::GroupAdmission, queue::IoPurpose},
};
use bytes::Bytes;
use copal_device::{AlignedBuf, Io, IoClass};
use std::sync::Arc;

/// State while one transaction is applied.
struct TransactionApplier<'a> {
    inner: &'a StoreCore,
    state: &'a mut StoreState,
    fetched: &'a FetchedPages,
    cuts: &'a CutPlaces,
    lsn: u64,
    /// Data of this transaction that is not submitted yet.
    writes: Vec<(PageRun, AlignedBuf)>,
    is_inline: bool,
}

/// Applies a checked transaction with its allocated pages; returns its position.
pub(crate) fn apply(
    store: &StoreCore,
    state: &mut StoreState,
    txn: Txn,
    needs: &TransactionNeeds,
    runs: Runs,
    (fetched, cuts): (&FetchedPages, &CutPlaces),
    admitted: GroupAdmission,
) -> u64 {
    let lsn = state.commit.take_lsn(admitted, needs.releases && !txn.ops.is_empty());
    let (writes, is_inline) = (Vec::new(), needs.inline);
    let mut applier = TransactionApplier { inner: store, state, fetched, cuts, lsn, writes, is_inline };
    for (stream, frame) in &txn.after {
        // A frame that rides lies in this record or an earlier one.
        if !applier.state.space.placement().frames_ride() {
            applier.enter(&RecordOp::Dep { id: stream.0, frame: frame.0 });
            applier.state.await_frames(stream.0, frame.0);
        }
    }
    for (op, runs) in txn.ops.into_iter().zip(runs) {
        applier.op(op, runs);
    }
    let writes = applier.writes;
    if needs.inline {
        enter_inline(state, writes, lsn);
    } else {
        submit_data(store, state, writes);
    }
    lsn
}

/// Enters the data into the record. It is written to its place later.
fn enter_inline(state: &mut StoreState, writes: Vec<(PageRun, AlignedBuf)>, lsn: u64) {
    if let Some(upto) = state.inline.placed_news() {
        state.enter(&RecordOp::InlinePlaced { upto }, lsn);
    }
    for (run, buf) in writes {
        let bytes = Bytes::from_owner(buf);
        state.inline.fill(run, &bytes);
        state.enter(&RecordOp::Inline { run, bytes }, lsn);
    }
}

fn submit_data(store: &StoreCore, state: &mut StoreState, writes: Vec<(PageRun, AlignedBuf)>) {
    let journal = state.space.placement_mut().journal_mut();
    let apart = |(run, buf): (PageRun, AlignedBuf)| journal.fill(run, buf).map(|buf| (run, buf));
    let writes: Vec<(PageRun, AlignedBuf)> = writes.into_iter().filter_map(apart).collect();
    if writes.is_empty() {
        return;
    }
    let bytes = writes.iter().map(|(_, buf)| buf.len() as u64).sum();
    let runs: Vec<PageRun> = writes.iter().map(|(run, _)| *run).collect();
    let epoch = state.commit.begin_write(&runs, bytes);
    let group = state.commit.open_group();
    state.commit.await_writes(1);
    let ios: Vec<Io> =
        writes.into_iter().map(|(run, buf)| store.write_io(run.at, buf, IoClass::Commit)).collect();
    state.queue.submit(IoPurpose::Data { group, epoch, runs, bytes }, ios);
}

impl TransactionApplier<'_> {
    fn enter(&mut self, op: &RecordOp) {
        self.state.enter(op, self.lsn);
    }

    fn op(&mut self, op: Op, runs: Vec<PageRun>) {
        match op {
            Op::Create { id, opts } => {
                self.state.forget_stream(id.0);
                let of_bytes = self.inner.shape.broken.by(StoreFlaw::SumsOfBytes);
                let rule = if of_bytes { SumRule::Crc32c } else { self.state.tables.sum_rule() };
                let what = ObjectTraits::of(&opts, rule);
                self.enter(&RecordOp::Create { id: id.0, what });
                if opts.kind == crate::ObjectKind::Stream {
                    self.state.streams.open_tail(id.0);
                }
            }
            Op::Publish(staged) => {
                let (op, runs) = staged.publish();
                self.enter(&op);
                self.state.space.publish(pages_of(&runs));
            }
            Op::Write { id, at, data } | Op::Append { id, at, data } => self.write(id, at, &data, runs),
            Op::Truncate { id, len } => self.truncate(id, len, runs),
            Op::Punch { id, range } => self.punch(id, &range),
            Op::Seal { id } => self.enter(&RecordOp::Seal { id: id.0 }),
            Op::Clone { from, to } => self.clone_object(from, to, runs),
            Op::TrimStream { id, upto } => {
                let next = self.state.streams.next_frame(id.0);
                self.enter(&RecordOp::StreamTrim { id: id.0, upto: upto.0.min(next) });
            }
            Op::TruncateStream { id, from } => self.truncate_stream(id.0, from.0),
            Op::Delete { id } => {
                self.enter(&RecordOp::Delete { id: id.0 });
                self.state.forget_stream(id.0);
            }
        }
    }

    /// A stream that ends there already stays as it is, unless damage is behind its end.
    fn truncate_stream(&mut self, id: u64, from: u64) {
        let tail = self.state.streams.open_tail(id);
        let is_cut = tail.next > from || tail.damaged;
        if !is_cut || self.state.tables.stream(id).is_none_or(|stream| stream.piece_of(from).is_none()) {
            return;
        }
        let cut = self.cuts.cut(self.state, self.inner, (id, from));
        self.enter(&RecordOp::StreamTruncate { id, cut });
        let last = self.state.tables.stream(id).and_then(|stream| stream.pieces.last());
        // Pages behind a piece that was not cut belong to no frame.
        let used =
            last.filter(|piece| piece.incarnation != cut.incarnation).map_or(0, |piece| piece.run.pages);
        self.state.cut_stream(id, from, used);
    }

    fn page(&self) -> u64 {
        self.inner.shape.page_bytes as u64
    }

    fn len(&self, id: ObjectId) -> u64 {
        self.state.tables.object(id.0).map_or(0, |object| object.len)
    }

    fn rule(&self, id: ObjectId) -> SumRule {
        self.state.tables.object(id.0).map_or_else(SumRule::default, |object| object.what.sums)
    }

    fn unit_at(&self, id: ObjectId, page: u64) -> Option<SumUnit> {
        let object = self.state.tables.object(id.0)?;
        unit_around(id.0, object, page, self.inner.shape.page_bytes)
    }

    /// Content of a device page: written by this transaction, or fetched.
    fn content(&self, page: u64) -> &[u8] {
        let size = self.inner.shape.page_bytes;
        for (run, buf) in self.writes.iter().rev() {
            if (run.at..run.end()).contains(&page) {
                let from = (page - run.at) as usize * size;
                return &buf[from..from + size];
            }
        }
        self.fetched
            .page(page)
            .expect("the check requested every unit whose bytes are merged or summed again")
    }

    /// Old bytes of one page of the object; `None` for a hole.
    fn old_page(&self, id: ObjectId, page: u64) -> Option<Vec<u8>> {
        let unit = self.unit_at(id, page)?;
        Some(self.content(unit.run.at + (page - unit.at)).to_vec())
    }

    /// New sums for the parts of units that remain when pages `from..to` are removed.
    fn remainders(&self, id: ObjectId, from: u64, to: u64) -> Vec<RecordOp> {
        let mut rest: Vec<(u64, PageRun)> = Vec::new();
        if let Some(unit) = self.unit_at(id, from).filter(|unit| unit.at < from) {
            rest.push((unit.at, PageRun::new(unit.run.at, (from - unit.at) as u32)));
        }
        if let Some(unit) = self.unit_at(id, to).filter(|unit| unit.at < to) {
            let skip = to - unit.at;
            rest.push((to, PageRun::new(unit.run.at + skip, unit.run.pages - skip as u32)));
        }
        let rule = self.rule(id);
        let resum = |(at, run): (u64, PageRun)| {
            let pages = run.at..run.end();
            let sum =
                pages.fold(0, |sum, page| rule.sum(sum, self.content(page), self.inner.shape.page_bytes));
            RecordOp::Resum { id: id.0, at, pages: run.pages, sum }
        };
        rest.into_iter().map(resum).collect()
    }

    fn write(&mut self, id: ObjectId, at: u64, data: &Bytes, runs: Vec<PageRun>) {
        if data.is_empty() {
            return;
        }
        let page = self.page();
        let old_len = self.len(id);
        let end = at + data.len() as u64;
        let (first, last) = (at / page, end.div_ceil(page));
        let head = (!at.is_multiple_of(page)).then(|| self.old_page(id, first)).flatten();
        let tail =
            (!end.is_multiple_of(page) && end < old_len).then(|| self.old_page(id, last - 1)).flatten();
        let resums = self.remainders(id, first, last);
        // The last partial page has a sum of its own.
        let apart = !end.is_multiple_of(page);
        let mut next = first;
        for run in split_last(runs, apart) {
            let fill = PageFill { at, data, head: head.as_deref(), tail: tail.as_deref(), first, last, page };
            self.map(id, next, run, |object_page, out| fill.page(object_page, out));
            next += u64::from(run.pages);
        }
        resums.iter().for_each(|op| self.enter(op));
        if end > old_len {
            self.enter(&RecordOp::Length { id: id.0, len: end });
        }
    }

    /// Writes `run` as pages `at..` of the object.
    fn map(&mut self, id: ObjectId, at: u64, run: PageRun, fill: impl Fn(u64, &mut [u8])) {
        let size = self.inner.shape.page_bytes;
        let unit = self.state.tables.object(id.0).map_or(1, |object| object.unit(size));
        let rule = self.rule(id);
        let mut sums = Vec::new();
        // Whole units in each command, so that a sum never spans two buffers.
        let step = (self.inner.shape.io_pages() / unit * unit).max(unit);
        for piece in crate::state::pieces(run, step) {
            let mut buf = AlignedBuf::zeroed(piece.pages as usize * size);
            for (index, out) in buf.chunks_mut(size).enumerate() {
                fill(at + (piece.at - run.at) + index as u64, out);
            }
            sums.extend(rule.unit_sums(&buf, unit, size));
            if run.pages == 1 {
                self.state.space.keep_recent(run.at, Arc::from(&buf[..]));
            }
            if self.is_inline {
                // A later operation of the transaction may free it.
                self.state.inline.expect(piece, self.lsn);
            }
            self.writes.push((piece, buf));
        }
        self.enter(&RecordOp::Map { id: id.0, at, run, epoch: 0, rule, sums });
    }

    fn truncate(&mut self, id: ObjectId, len: u64, runs: Vec<PageRun>) {
        let page = self.page();
        let old_len = self.len(id);
        if len < old_len {
            let whole = len / page;
            let kept = (len % page) as usize;
            let partial = if kept > 0 { self.old_page(id, whole) } else { None };
            let resums = self.remainders(id, whole, old_len.div_ceil(page));
            let pages = old_len.div_ceil(page) - whole;
            self.enter(&RecordOp::Unmap { id: id.0, at: whole, pages });
            resums.iter().for_each(|op| self.enter(op));
            let mut runs = runs.into_iter();
            match (partial, runs.next()) {
                (Some(old), Some(run)) => {
                    self.map(id, whole, run, |_, out| out[..kept].copy_from_slice(&old[..kept]));
                }
                (None, Some(run)) => self.state.space.release(run),
                _ => {}
            }
        }
        self.enter(&RecordOp::Length { id: id.0, len });
    }

    fn punch(&mut self, id: ObjectId, range: &std::ops::Range<u64>) {
        let Some((from, to)) = punched_pages(range, self.len(id), self.page()) else {
            return;
        };
        let resums = self.remainders(id, from, to);
        self.enter(&RecordOp::Unmap { id: id.0, at: from, pages: to - from });
        resums.iter().for_each(|op| self.enter(op));
    }

    fn clone_object(&mut self, from: ObjectId, to: ObjectId, runs: Vec<PageRun>) {
        let page = self.page();
        let len = self.len(from);
        let published = self.state.tables.object(from.0).is_some_and(|object| object.trailer.is_some());
        let whole = len / page;
        let old = if published { None } else { self.old_page(from, whole) };
        let resums = if published { Vec::new() } else { self.remainders(from, whole, whole) };
        self.enter(&RecordOp::Clone { from: from.0, to: to.0 });
        for op in &resums {
            // The copy lost the unit's end, the original did not.
            if let RecordOp::Resum { at, pages, sum, .. } = op
                && *at < whole
            {
                self.enter(&RecordOp::Resum { id: to.0, at: *at, pages: *pages, sum: *sum });
            }
        }
        match (old, runs.into_iter().next()) {
            (Some(old), Some(run)) => self.map(to, whole, run, |_, out| out.copy_from_slice(&old)),
            (None, Some(run)) => self.state.space.release(run),
            _ => {}
        }
        if !published {
            self.enter(&RecordOp::Length { id: to.0, len });
        }
    }
}

/// Bytes of a write, page by page, merged with the old content.
struct PageFill<'a> {
    at: u64,
    data: &'a [u8],
    head: Option<&'a [u8]>,
    tail: Option<&'a [u8]>,
    first: u64,
    last: u64,
    page: u64,
}

impl PageFill<'_> {
    fn page(&self, page: u64, out: &mut [u8]) {
        match (self.head, self.tail) {
            (Some(old), _) if page == self.first => out.copy_from_slice(old),
            (_, Some(old)) if page == self.last - 1 => out.copy_from_slice(old),
            _ => {}
        }
        let start = page * self.page;
        let from = self.at.max(start);
        let to = (self.at + self.data.len() as u64).min(start + self.page);
        let source = &self.data[(from - self.at) as usize..(to - self.at) as usize];
        out[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
    }
}

/// Splits the last page off the last run.
fn split_last(mut runs: Vec<PageRun>, apart: bool) -> Vec<PageRun> {
    if apart
        && let Some(last) = runs.last_mut()
        && last.pages > 1
    {
        last.pages -= 1;
        let page = PageRun::new(last.end(), 1);
        runs.push(page);
    }
    runs
}

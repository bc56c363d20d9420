//! Transactions of a history: their effect on the store and on the model.

use super::{
    model::{AckPromise, FrameLine, LineFrame, ModelCommit, ModelEntry, PromisedCommit, Snapshot},
    script::{AwaitedAck, HistoryRunner},
    stores::PAGE,
};
use crate::{Ack, CreateOptions, FramePos, ObjectId, ObjectKind, Op, ReadCheck, StoreError, Txn};
use bytes::Bytes;
use std::rc::Rc;

/// Random parameters of a change; all are drawn, even if only some are used.
struct ObjectChange {
    choice: u64,
    data: Vec<u8>,
    at: u64,
    /// Id of the clone.
    copy: u64,
}

impl ObjectChange {
    /// Whether it changes the bytes of a changeable object with content `bytes`.
    fn is_inside(&self, bytes: &[u8]) -> bool {
        match self.choice {
            0..=2 => bytes.len() < 30_000,
            choice => choice <= 6,
        }
    }

    fn inside(self, id: ObjectId, bytes: &mut Vec<u8>, ops: &mut Vec<Op>) {
        let (at, data) = (self.at as usize, self.data);
        ops.push(match self.choice {
            0..=2 => {
                let at = bytes.len() as u64;
                bytes.extend(&data);
                let data = Bytes::from(data);
                Op::Append { id, at, data }
            }
            3 | 4 => {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(&data);
                Op::Write { id, at: at as u64, data: Bytes::from(data) }
            }
            5 => {
                bytes.resize(at, 0);
                Op::Truncate { id, len: at as u64 }
            }
            _ => {
                let end = at + data.len();
                let first = at.next_multiple_of(PAGE);
                let last = if end >= bytes.len() { bytes.len() } else { end / PAGE * PAGE };
                if first < last {
                    bytes[first..last].fill(0);
                }
                Op::Punch { id, range: at as u64..end as u64 }
            }
        });
    }
}

fn create(id: u64, bytes: Vec<u8>, now: &mut Snapshot, ops: &mut Vec<Op>) {
    let check = if id.is_multiple_of(2) { ReadCheck::Pages } else { ReadCheck::Caller };
    ops.push(Op::Create { id: ObjectId(id), opts: CreateOptions { check, ..CreateOptions::default() } });
    ops.push(Op::Append { id: ObjectId(id), at: 0, data: Bytes::from(bytes.clone()) });
    let sealed = false;
    now.insert(id, ModelEntry::Object { bytes, sealed });
}

impl HistoryRunner<'_> {
    pub(super) fn transaction(&mut self) {
        let mut now = self.model.now();
        let mut ops = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            self.op(&mut now, &mut ops);
        }
        let mut deps = Vec::new();
        if self.random.one_in(4) {
            let streams: Vec<u64> = streams(&self.model.now());
            if let Some(&stream) = streams.first() {
                let (line, frames) = self.model.frames(stream);
                if frames > 0 && now.contains_key(&stream) {
                    deps.push(LineFrame { stream, line, frame: frames - 1 });
                }
            }
        }
        self.commit(now, ops, deps);
    }

    fn commit(&mut self, after: Snapshot, ops: Vec<Op>, deps: Vec<LineFrame>) {
        let ack = self.ack();
        let after_frames = deps.iter().map(|dep| (ObjectId(dep.stream), FramePos(dep.frame)));
        let before = self.store.inner.state.lock().commit.last_lsn();
        let mut completion = self.store.commit(Txn::new().ops(ops).after_all(after_frames), ack);
        if let Some(result) = completion.try_take() {
            match result {
                Ok(lsn) => {
                    self.model.commits.push(ModelCommit { lsn: lsn.0, after: Rc::new(after), deps });
                    let what = PromisedCommit::Commit { lsn: lsn.0 };
                    if ack != Ack::Ordered {
                        let step = self.world.step();
                        self.model.promises.push(AckPromise { step, what, durable: ack == Ack::Durable });
                    }
                }
                Err(StoreError::TooLarge | StoreError::NoSpace { .. }) => {}
                Err(error) => panic!("a transaction was refused: {error}"),
            }
            return;
        }
        let lsn = self.store.inner.state.lock().commit.last_lsn();
        assert!(lsn > before, "a commit that waits has its place");
        self.model.commits.push(ModelCommit { lsn, after: Rc::new(after), deps });
        self.awaited.push(AwaitedAck::Commit(lsn, ack, completion));
    }

    fn op(&mut self, now: &mut Snapshot, ops: &mut Vec<Op>) {
        let id = 1 + self.random.below(4);
        let oid = ObjectId(id);
        if self.random.one_in(5) {
            self.stream_op(now, ops);
            return;
        }
        let change = ObjectChange {
            choice: self.random.below(10),
            data: {
                let len = [300, 4096, 5000, 9000][self.random.below(4) as usize];
                self.bytes(len)
            },
            at: self.random.below(9000),
            copy: 1 + self.random.below(4),
        };
        match now.get_mut(&id) {
            None => create(id, change.data, now, ops),
            Some(ModelEntry::Object { bytes, sealed: false }) if change.is_inside(bytes) => {
                change.inside(oid, bytes, ops);
            }
            Some(ModelEntry::Object { sealed, .. }) if !*sealed && change.choice == 7 => {
                *sealed = true;
                ops.push(Op::Seal { id: oid });
            }
            Some(ModelEntry::Object { .. }) if change.choice == 8 => {
                let thing = now[&id].clone();
                if let std::collections::btree_map::Entry::Vacant(slot) = now.entry(change.copy) {
                    slot.insert(thing);
                    ops.push(Op::Clone { from: oid, to: ObjectId(change.copy) });
                }
            }
            Some(ModelEntry::Object { .. }) => {
                now.remove(&id);
                ops.push(Op::Delete { id: oid });
            }
            Some(ModelEntry::Stream { .. }) => {}
        }
    }

    fn stream_op(&mut self, now: &mut Snapshot, ops: &mut Vec<Op>) {
        let streams = streams(now);
        match self.random.below(5) {
            0 | 1 if streams.len() < 2 => {
                let id = self.next_stream;
                self.next_stream += 1;
                let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
                ops.push(Op::Create { id: ObjectId(id), opts });
                now.insert(id, ModelEntry::Stream { trimmed: 0, line: 0 });
                self.model.lines.insert(id, vec![FrameLine::default()]);
            }
            2 => {
                let Some(&id) = streams.first() else { return };
                if let Some(ModelEntry::Stream { trimmed, line }) = now.get_mut(&id) {
                    let frames = self.model.lines[&id][*line].frames.len() as u64;
                    let kept = frames - *trimmed;
                    let some = self.random.below(kept + 1);
                    // Up to the last frame, which may still be in flight.
                    *trimmed += if self.plan.seed % 8 == 6 { kept } else { some };
                    ops.push(Op::TrimStream { id: ObjectId(id), upto: FramePos(*trimmed) });
                }
            }
            4 => {
                let Some(&id) = streams.last() else { return };
                if let Some(ModelEntry::Stream { trimmed, line }) = now.get_mut(&id) {
                    let frames = self.model.lines[&id][*line].frames.len() as u64;
                    let from = frames - self.random.below((frames - *trimmed).min(4) + 1);
                    // A cut that takes no frame is none.
                    if from < frames {
                        *line = self.model.cut(id, *line, from);
                    }
                    ops.push(Op::TruncateStream { id: ObjectId(id), from: FramePos(from) });
                }
            }
            3 if self.random.one_in(3) => {
                let Some(&id) = streams.first() else { return };
                now.remove(&id);
                ops.push(Op::Delete { id: ObjectId(id) });
            }
            _ => {}
        }
    }

    pub(super) fn publish(&mut self) {
        let id = 10 + self.random.below(3);
        let mut now = self.model.now();
        let mut ops = Vec::new();
        if now.remove(&id).is_some() {
            ops.push(Op::Delete { id: ObjectId(id) });
        }
        let len = 1 + self.random.below(12_000) as usize;
        let data = self.bytes(len);
        let check = if self.random.one_in(2) { ReadCheck::Pages } else { ReadCheck::Caller };
        let mut writer =
            self.store.writer(ObjectId(id), CreateOptions { check, ..CreateOptions::default() }).unwrap();
        writer.append(&data).unwrap();
        let staged = writer.finish().unwrap();
        self.poll();
        if self.random.one_in(8) {
            return;
        }
        let events = self.random.below(5);
        self.drive(events);
        ops.push(Op::Publish(staged));
        now.insert(id, ModelEntry::Object { bytes: data, sealed: true });
        self.commit(now, ops, Vec::new());
    }
}

pub(super) fn streams(snapshot: &Snapshot) -> Vec<u64> {
    snapshot
        .iter()
        .filter(|(_, thing)| matches!(thing, ModelEntry::Stream { .. }))
        .map(|(&id, _)| id)
        .collect()
}

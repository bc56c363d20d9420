//! Frames of a history, some with commits of another thread beside them.

use super::{
    model::{Commit, Frame, Promise, Promised, Thing},
    script::{Awaited, Runner},
    stores::World,
    transactions::streams,
};
use crate::{Ack, CreateOptions, FramePos, Lsn, ObjectId, StoreError, Txn, engine::pump::pump};
use bytes::Bytes;
use copal_device::Device;
use parking_lot::Mutex;
use std::{rc::Rc, sync::Arc};

/// Position and object of what was committed while a frame was written through; the first one comes after the
/// frame.
type Beside = Arc<Mutex<Vec<(u64, u64)>>>;

impl Runner<'_> {
    pub(super) fn frame(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            let streams = streams(&self.model.now());
            if streams.is_empty() {
                return;
            }
            let stream = streams[self.random.below(streams.len() as u64) as usize];
            let len = [50, 1000, 1000, 5000][self.random.below(4) as usize];
            let payload = self.bytes(len);
            let after = if self.random.one_in(3) {
                self.model.commits.last().map_or(0, |commit| commit.lsn)
            } else {
                0
            };
            let ack = self.ack();
            let number = self.model.frames[&stream].len() as u64;
            let lsn = (after > 0).then_some(Lsn(after));
            let beside = self.arm_beside(stream, number);
            let mut completion =
                self.store.append_frame(ObjectId(stream), Bytes::from(payload.clone()), lsn, ack);
            self.note_beside(beside.as_ref(), stream, number);
            let taken = completion.try_take();
            match taken {
                Some(Ok(pos)) => {
                    assert_eq!(pos.0, number);
                    if ack != Ack::Ordered {
                        let step = self.world.step();
                        let what = Promised::Frame { stream, frame: number };
                        self.model.promises.push(Promise { step, what, durable: ack == Ack::Durable });
                    }
                }
                Some(Err(StoreError::NoSpace { .. })) => return,
                Some(Err(error)) => panic!("a frame was refused: {error}"),
                None => self.awaited.push(Awaited::Frame(stream, number, ack, completion)),
            }
            self.model.frames.entry(stream).or_default().push(Frame { payload, after });
            self.poll();
        }
    }

    /// Sometimes: if the next frame is written through, another thread commits something that comes after it;
    /// then a checkpoint goes as far as it can, or a flush, and a record behind it. Returns where these
    /// commits are noted.
    fn arm_beside(&mut self, stream: u64, number: u64) -> Option<Beside> {
        let World::Device(device) = &self.world else {
            return None;
        };
        if !self.random.one_in(2) {
            return None;
        }
        let ids = [self.next_beside, self.next_beside + 1];
        self.next_beside += 2;
        let events = self.random.below(24);
        let by_checkpoint = self.random.one_in(2);
        let (store, device) = (self.store.clone(), device.clone());
        let noted = Beside::default();
        let done = noted.clone();
        device.clone().beside_next_write_through(Some(Box::new(move || {
            let drive = |events| (0..events).all(|_| device.drive());
            let create = |id, after| {
                let opts = CreateOptions::default();
                let id = ObjectId(id);
                if let Ok(lsn) =
                    store.commit(Txn::new().create(id, opts).after_all(after), Ack::Ordered).wait()
                {
                    done.lock().push((lsn.0, id.0));
                }
            };
            // Where the journal is short a commit would wait for a checkpoint, and that for the frame.
            let is_short = || {
                let journal = &store.inner.state.lock().journal;
                journal.used_pages() * 4 > journal.pages
            };
            if is_short() {
                return;
            }
            create(ids[0], vec![(ObjectId(stream), FramePos(number))]);
            if by_checkpoint {
                store.inner.state.lock().checkpointer.forced = true;
                pump(&store.inner);
            } else if !done.lock().is_empty() {
                let mut state = store.inner.state.lock();
                let open = state.epochs.open;
                state.epochs.want(open);
                drop(state);
                pump(&store.inner);
                drive(events);
                if !is_short() {
                    create(ids[1], Vec::new());
                }
            }
            drive(events);
        })));
        Some(noted)
    }

    fn note_beside(&mut self, beside: Option<&Beside>, stream: u64, number: u64) {
        let Some(noted) = beside else { return };
        self.world.device().beside_next_write_through(None);
        for (index, (lsn, id)) in noted.lock().drain(..).enumerate() {
            let mut after = self.model.now();
            let thing = Thing::Object { bytes: Vec::new(), sealed: false };
            after.insert(id, thing);
            let deps = if index == 0 { vec![(stream, number)] } else { Vec::new() };
            let after = Rc::new(after);
            self.model.commits.push(Commit { lsn, after, deps });
        }
    }
}

//! Frames of a history, some with concurrent commits of another thread.

use super::{
    model::{AckPromise, LineFrame, ModelCommit, ModelEntry, ModelFrame, PromisedCommit},
    script::{AwaitedAck, HistoryRunner},
    stores::SimWorld,
    transactions::streams,
};
use crate::{Ack, CreateOptions, FramePos, Lsn, ObjectId, StoreError, Txn, engine::pump::pump};
use bytes::Bytes;
use copal_device::Device;
use parking_lot::Mutex;
use std::{rc::Rc, sync::Arc};

/// Position and object of each commit made while a frame was written through; the first one comes after the
/// frame.
type Beside = Arc<Mutex<Vec<(u64, u64)>>>;

pub(super) fn frame(runner: &mut HistoryRunner<'_>) {
    for _ in 0..1 + runner.random.below(3) {
        let streams = streams(&runner.model.now());
        if streams.is_empty() {
            return;
        }
        let stream = streams[runner.random.below(streams.len() as u64) as usize];
        let len = [50, 1000, 1000, 5000][runner.random.below(4) as usize];
        let payload = runner.bytes(len);
        let after = if runner.random.one_in(3) {
            runner.model.commits.last().map_or(0, |commit| commit.lsn)
        } else {
            0
        };
        let ack = runner.ack();
        let (line, number) = runner.model.frames(stream);
        let placed = LineFrame { stream, line, frame: number };
        let lsn = (after > 0).then_some(Lsn(after));
        let beside = arm_beside(runner, placed);
        let mut completion =
            runner.store.append_frame(ObjectId(stream), Bytes::from(payload.clone()), lsn, ack);
        note_beside(runner, beside.as_ref(), placed);
        let taken = completion.try_take();
        match taken {
            Some(Ok(pos)) => {
                assert_eq!(pos.0, number);
                if ack != Ack::Ordered {
                    let step = runner.world.step();
                    let what = PromisedCommit::Frame(placed);
                    runner.model.promises.push(AckPromise { step, what, durable: ack == Ack::Durable });
                }
            }
            Some(Err(StoreError::NoSpace { .. })) => return,
            Some(Err(error)) => panic!("a frame was refused: {error}"),
            None => runner.awaited.push(AwaitedAck::Frame(placed, ack, completion)),
        }
        let lines = runner.model.lines.get_mut(&stream).expect("every stream has lines");
        lines[line].frames.push(ModelFrame { payload, after });
        runner.poll();
    }
}

/// Sometimes arms concurrent work: if the next frame is written through, another thread commits a transaction
/// that comes after it. Then a checkpoint proceeds as far as possible, or a flush and a further record
/// follow. Some checkpoints proceed without that transaction, so that nothing waits for the frame. Returns
/// the list of these commits.
fn arm_beside(runner: &mut HistoryRunner<'_>, placed: LineFrame) -> Option<Beside> {
    let SimWorld::Device(device) = &runner.world else {
        return None;
    };
    if !runner.random.one_in(2) {
        return None;
    }
    let ids = [runner.next_beside, runner.next_beside + 1];
    runner.next_beside += 2;
    let events = runner.random.below(24);
    let by_checkpoint = runner.random.one_in(2);
    let (store, device) = (runner.store.clone(), device.clone());
    let noted = Beside::default();
    let done = noted.clone();
    device.clone().beside_next_write_through(Some(Box::new(move || {
        let drive = |events| (0..events).all(|_| device.drive());
        let create = |id, after| {
            let opts = CreateOptions::default();
            let id = ObjectId(id);
            if let Ok(lsn) = store.commit(Txn::new().create(id, opts).after_all(after), Ack::Ordered).wait() {
                done.lock().push((lsn.0, id.0));
            }
        };
        // With a short journal a commit would wait for a checkpoint, and that for the frame.
        let is_short = || {
            let state = store.inner.state.lock();
            let journal = state.space.placement().journal();
            journal.used_pages() * 4 > journal.pages()
        };
        let is_alone = by_checkpoint && events.is_multiple_of(2);
        if !is_alone && is_short() {
            return;
        }
        if !is_alone {
            create(ids[0], vec![(ObjectId(placed.stream), FramePos(placed.frame))]);
        }
        if by_checkpoint {
            store.inner.state.lock().checkpoint.force();
            pump(&store.inner);
        } else if !done.lock().is_empty() {
            let mut state = store.inner.state.lock();
            let open = state.commit.open_epoch();
            state.commit.want_epoch(open);
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

fn note_beside(runner: &mut HistoryRunner<'_>, beside: Option<&Beside>, placed: LineFrame) {
    let Some(noted) = beside else { return };
    runner.world.device().beside_next_write_through(None);
    for (index, (lsn, id)) in noted.lock().drain(..).enumerate() {
        let mut after = runner.model.now();
        let thing = ModelEntry::Object { bytes: Vec::new(), sealed: false };
        after.insert(id, thing);
        let deps = if index == 0 { vec![placed] } else { Vec::new() };
        let after = Rc::new(after);
        runner.model.commits.push(ModelCommit { lsn, after, deps });
    }
}

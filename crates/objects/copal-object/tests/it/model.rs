//! Random transactions compared with a map of vectors: reopen, close, reads of bytes in flight, refusals.

use crate::{
    basics::{plain, stream},
    conformance::Make,
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::*;
use copal_testkit::Random;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
enum Thing {
    Object { bytes: Vec<u8>, check: ReadCheck, sealed: bool, published: bool },
    Stream { frames: Vec<Vec<u8>>, trimmed: usize },
}

/// Random choices of the history.
struct Choices(Random);

impl Choices {
    fn next(&mut self, below: u64) -> u64 {
        self.0.below(below)
    }

    fn len(&mut self) -> usize {
        let most = [10, 4096, 9000, 200_000][self.next(4) as usize];
        self.next(most) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let first = self.next(256);
        (0..len as u64).map(|i| (first + i * 7 + i / 251) as u8).collect()
    }
}

const PAGE: usize = 4096;

/// One random operation that must succeed, applied to the model.
fn step(choices: &mut Choices, store: &Store, model: &mut BTreeMap<u64, Thing>, ops: &mut Vec<Op>) {
    let id = 1 + choices.next(12);
    let oid = ObjectId(id);
    match model.get_mut(&id) {
        None => {
            let thing = create(choices, store, oid, ops);
            model.insert(id, thing);
        }
        Some(Thing::Stream { frames, trimmed }) => match choices.next(5) {
            0 => {
                *trimmed = *trimmed + choices.next((frames.len() - *trimmed) as u64 + 1) as usize;
                ops.push(Op::TrimStream { id: oid, upto: FramePos(*trimmed as u64) });
            }
            1 if choices.next(5) == 0 => {
                model.remove(&id);
                ops.push(Op::Delete { id: oid });
            }
            2 => {
                let kept = *trimmed + choices.next((frames.len() - *trimmed) as u64 + 1) as usize;
                ops.push(Op::TruncateStream { id: oid, from: FramePos(kept as u64) });
                frames.truncate(kept);
            }
            _ => {}
        },
        Some(Thing::Object { bytes, sealed, published, .. }) => match choices.next(9) {
            choice @ 0..=4 if !*sealed => change(choices, choice, oid, bytes, ops),
            5 if !*published => punch(choices, oid, bytes, ops),
            6 if !*sealed && choices.next(3) == 0 => {
                ops.push(Op::Seal { id: oid });
                *sealed = true;
            }
            7 => {
                let copy = model[&id].clone();
                let to = 1 + choices.next(12);
                if let std::collections::btree_map::Entry::Vacant(slot) = model.entry(to) {
                    slot.insert(copy);
                    ops.push(Op::Clone { from: oid, to: ObjectId(to) });
                }
            }
            8 if choices.next(2) == 0 => {
                model.remove(&id);
                ops.push(Op::Delete { id: oid });
            }
            _ => {}
        },
    }
}

/// A new object or stream.
fn create(choices: &mut Choices, store: &Store, id: ObjectId, ops: &mut Vec<Op>) -> Thing {
    match choices.next(3) {
        0 => {
            ops.push(Op::Create { id, opts: stream() });
            Thing::Stream { frames: Vec::new(), trimmed: 0 }
        }
        1 => {
            let check = [ReadCheck::Pages, ReadCheck::Caller][choices.next(2) as usize];
            ops.push(Op::Create { id, opts: plain(check) });
            Thing::Object { bytes: Vec::new(), check, sealed: false, published: false }
        }
        _ => {
            let check = [ReadCheck::Pages, ReadCheck::Caller][choices.next(2) as usize];
            let len = choices.len() * 3;
            let bytes = choices.bytes(len);
            let mut writer = store.writer(id, plain(check)).unwrap();
            bytes.chunks(5000).for_each(|part| writer.append(part).unwrap());
            ops.push(Op::Publish(writer.finish().unwrap()));
            Thing::Object { bytes, check, sealed: true, published: true }
        }
    }
}

/// An append, a write inside, or a cut.
fn change(choices: &mut Choices, choice: u64, id: ObjectId, bytes: &mut Vec<u8>, ops: &mut Vec<Op>) {
    match choice {
        0 | 1 => {
            let len = choices.len();
            let data = choices.bytes(len);
            ops.push(Op::Append { id, at: bytes.len() as u64, data: Bytes::from(data.clone()) });
            bytes.extend(data);
        }
        2 | 3 => {
            let at = choices.next(bytes.len() as u64 + 10_000) as usize;
            let len = choices.len();
            let data = choices.bytes(len);
            ops.push(Op::Write { id, at: at as u64, data: Bytes::from(data.clone()) });
            if !data.is_empty() {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(&data);
            }
        }
        _ => {
            let len = choices.next(bytes.len() as u64 + 5000) as usize;
            ops.push(Op::Truncate { id, len: len as u64 });
            bytes.resize(len, 0);
        }
    }
}

fn punch(choices: &mut Choices, id: ObjectId, bytes: &mut [u8], ops: &mut Vec<Op>) {
    let from = choices.next(bytes.len() as u64 + 1) as usize;
    let to = from + choices.len();
    ops.push(Op::Punch { id, range: from as u64..to as u64 });
    let first = from.next_multiple_of(PAGE);
    let last = if to >= bytes.len() { bytes.len() } else { to / PAGE * PAGE };
    if first < last {
        bytes[first..last].fill(0);
    }
}

fn compare(store: &Store, model: &BTreeMap<u64, Thing>, filler: Option<ObjectId>) {
    let listed = store.list(ObjectId(0), 1000);
    let listed: Vec<u64> =
        listed.iter().filter(|stat| Some(stat.id) != filler).map(|stat| stat.id.0).collect();
    assert_eq!(listed, model.keys().copied().collect::<Vec<_>>());
    for (&id, thing) in model {
        match thing {
            Thing::Object { bytes, sealed, .. } => {
                let found = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait().unwrap();
                assert_eq!(found.len(), bytes.len(), "object {id}");
                assert!(found == bytes[..], "object {id} differs");
                assert_eq!(store.stat(ObjectId(id)).unwrap().sealed, *sealed);
            }
            Thing::Stream { frames, trimmed } => {
                let mut reader = store.frames(ObjectId(id), FramePos(0)).unwrap();
                for (index, frame) in frames.iter().enumerate().skip(*trimmed) {
                    let (pos, payload) = reader.next_frame().unwrap().unwrap();
                    assert_eq!((pos.0, &payload[..]), (index as u64, &frame[..]));
                }
                assert!(reader.next_frame().unwrap().is_none());
            }
        }
    }
}

fn run(make: Make, seed: u64, steps: u32, filler: Option<ObjectId>) {
    let (backend, mut store) = make();
    let mut choices = Choices(Random::new(seed));
    let mut model = BTreeMap::new();
    for index in 0..steps {
        let mut ops = Vec::new();
        for _ in 0..1 + choices.next(4) {
            step(&mut choices, &store, &mut model, &mut ops);
        }
        let ack = [Ack::Ordered, Ack::Written, Ack::Durable][choices.next(3) as usize];
        store.commit(Txn::new().ops(ops), ack).wait().unwrap();
        for (&id, thing) in &mut model {
            if let Thing::Stream { frames, .. } = thing
                && choices.next(2) == 0
            {
                let len = choices.len();
                let frame = choices.bytes(len);
                let ack = [Ack::Ordered, Ack::Written, Ack::Durable][choices.next(3) as usize];
                let pos =
                    store.append_frame(ObjectId(id), Bytes::from(frame.clone()), None, ack).wait().unwrap();
                assert_eq!(pos.0, frames.len() as u64);
                frames.push(frame);
            }
        }
        match choices.next(40) {
            0 => {
                // Perhaps nothing was flushed, but the device keeps the writes: a kill.
                drop(store);
                store = backend.open();
            }
            1 => {
                store.close().unwrap();
                drop(store);
                store = backend.open();
            }
            2 => store.sync(Lsn(u64::MAX)).wait().unwrap(),
            _ => {}
        }
        if index % 10 == 0 || index + 1 == steps {
            compare(&store, &model, filler);
        }
    }
    let space = store.space();
    assert_eq!(
        space.size_bytes,
        space.live_bytes
            + space.staged_bytes
            + space.quarantine_bytes
            + space.reserved_bytes
            + space.free_bytes
    );
}

pub(crate) fn a_random_history_reads_like_the_model(make: Make, seeds: u64) {
    for seed in 0..seeds {
        run(make, seed, 300, None);
    }
}

/// As [`a_random_history_reads_like_the_model`], in a store that holds `filler` already.
pub(crate) fn a_random_history_reads_like_the_model_beside(make: Make, seeds: u64, filler: ObjectId) {
    for seed in 100..100 + seeds {
        run(make, seed, 300, Some(filler));
    }
}

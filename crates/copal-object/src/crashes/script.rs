//! Random histories: actions on a store, lives that end by kills and power losses, and the enumeration at the end.

use super::{
    check::{Outcome, check, outcome},
    model::{Commit, Frame, Model, Promise, Promised, Snapshot, Thing},
};
use crate::{
    Ack, Check, CreateOptions, FramePos, Lsn, MkfsOptions, ObjectId, ObjectKind, Op, OpenError, OpenOptions,
    Store, StoreError, Txn, broken::Broken, entropy::Entropy, format::superblock::BACKEND_COW,
    hostfs::twin::Twin, open::Tuning,
};
use bytes::Bytes;
use copal_device::{
    Completion, Device, Image,
    crash::{self, Limits},
    fault::{FaultDevice, FaultOptions, Order},
};
pub(super) use copal_testkit::Random;
use parking_lot::Mutex;
use std::{rc::Rc, sync::Arc, sync::OnceLock};

/// One history.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) broken: Broken,
    pub(super) states: usize,
    /// Long lives of ordered commits and few completions: the journal fills while a checkpoint is under way.
    pub(super) busy: bool,
}

const PAGE: usize = 4096;
const SIZE: u64 = 64 << 20;
const JOURNAL_PAGES: u64 = 16;

fn empty_store() -> Image {
    static EMPTY: OnceLock<Image> = OnceLock::new();
    let make = || {
        let device = FaultDevice::with_options(
            Image::zeroed(SIZE),
            FaultOptions {
                order: Order::Immediate,
                record: false,
                ..FaultOptions::default()
            },
        );
        let dyn_device: Arc<dyn Device> = device.clone();
        let options = MkfsOptions {
            journal_bytes: Some(JOURNAL_PAGES * PAGE as u64),
            ..MkfsOptions::default()
        };
        crate::mkfs::mkfs(
            &dyn_device,
            &options,
            &mut Entropy::Seed(Random::new(1)),
            BACKEND_COW,
        )
        .unwrap();
        device.image()
    };
    EMPTY.get_or_init(make).clone()
}

/// An object that leaves little room, so that stores drain and grow. Not looked at.
pub(super) const FILLER: u64 = 5000;

fn nearly_full_store() -> Image {
    static FULL: OnceLock<Image> = OnceLock::new();
    let make = || {
        let options = FaultOptions {
            order: Order::Immediate,
            record: false,
            ..FaultOptions::default()
        };
        let device = FaultDevice::with_options(empty_store(), options);
        let store = open(device.clone(), tuning(Broken::default(), false, false, 3)).unwrap();
        let opts = CreateOptions {
            check: Check::Caller,
            ..CreateOptions::default()
        };
        let mut writer = store.writer(ObjectId(FILLER), opts).unwrap();
        let len = store.space().free_bytes - 30 * PAGE as u64;
        for _ in 0..len >> 20 {
            writer.append(&vec![0; 1 << 20]).unwrap();
        }
        writer.append(&vec![0; (len % (1 << 20)) as usize]).unwrap();
        let ops = vec![Op::Publish(writer.finish().unwrap())];
        store
            .commit(
                Txn {
                    ops,
                    after: Vec::new(),
                },
                Ack::Durable,
            )
            .wait()
            .unwrap();
        store.close().unwrap();
        device.image()
    };
    FULL.get_or_init(make).clone()
}

/// Position and object of what was committed while a frame was written through; the first one comes after the frame.
type Beside = Arc<Mutex<Vec<(u64, u64)>>>;

/// Something that will be acknowledged.
enum Awaited {
    Commit(u64, Ack, Completion<Result<Lsn, StoreError>>),
    Frame(u64, u64, Ack, Completion<Result<FramePos, StoreError>>),
}

/// What the store lies on.
#[derive(Clone)]
pub(super) enum World {
    Device(Arc<FaultDevice>),
    Files(Twin),
}

impl World {
    pub(super) fn step(&self) -> usize {
        match self {
            World::Device(device) => device.step(),
            World::Files(twin) => twin.step(),
        }
    }

    /// Files do what they are asked at once.
    fn drive(&self) -> bool {
        match self {
            World::Device(device) => device.drive(),
            World::Files(_) => false,
        }
    }

    fn device(&self) -> &Arc<FaultDevice> {
        match self {
            World::Device(device) => device,
            World::Files(_) => unreachable!("histories of files have lives of their own"),
        }
    }
}

pub(super) struct Runner<'a> {
    pub(super) plan: &'a Plan,
    pub(super) random: Random,
    pub(super) model: Model,
    pub(super) world: World,
    pub(super) store: Store,
    awaited: Vec<Awaited>,
    eager: bool,
    mount_by_checkpoint: bool,
    next_stream: u64,
    /// Object of the next commit beside a frame; not used twice.
    next_beside: u64,
    /// Events of the history that the model knows nothing of any more.
    pub(super) start: usize,
}

/// Runs one history and enumerates its end; the number of states tried, or the first violation.
pub(super) fn run(plan: &Plan) -> Result<usize, String> {
    let mut random = Random::new(plan.seed.wrapping_mul(0x1234_5677).wrapping_add(77));
    let eager = random.one_in(2);
    let mount_by_checkpoint = random.one_in(8);
    let full = random.one_in(4);
    let image = if full { nearly_full_store() } else { empty_store() };
    let device = fault_device(image, random.below(1 << 40));
    let tuning = tuning(plan.broken, eager, mount_by_checkpoint, random.below(1 << 40));
    let store = open(device.clone(), tuning).map_err(|error| format!("first open: {error}"))?;
    let mut runner = Runner::new(plan, random, World::Device(device), store);
    (runner.eager, runner.mount_by_checkpoint) = (eager, mount_by_checkpoint);
    let lives = 1 + runner.random.below(4);
    for life in 0..lives {
        let last = life + 1 == lives;
        let actions = if plan.busy {
            60
        } else {
            3 + runner.random.below(14)
        };
        for _ in 0..actions {
            runner.action();
        }
        if last {
            break;
        }
        if runner.random.one_in(3) {
            runner.kill()?;
        } else {
            runner.power_loss()?;
        }
    }
    runner.enumerate()
}

fn fault_device(image: Image, seed: u64) -> Arc<FaultDevice> {
    FaultDevice::with_options(
        image,
        FaultOptions {
            seed,
            full_host: true,
            ..FaultOptions::default()
        },
    )
}

fn tuning(broken: Broken, eager: bool, mount_by_checkpoint: bool, seed: u64) -> Tuning {
    Tuning {
        entropy: Entropy::Seed(Random::new(seed)),
        broken,
        eager,
        stream_extent_pages: Some(3),
        mount_by_checkpoint,
        lowest_first: true,
        gives_lowest: seed.is_multiple_of(2),
    }
}

fn open(device: Arc<dyn Device>, tuning: Tuning) -> Result<Store, OpenError> {
    let (store, report) = Store::open_tuned(device, &OpenOptions::default(), tuning)?;
    if let Some(stream) = report.damaged_streams.first() {
        return Err(OpenError::Damaged {
            what: format!("stream {} after a crash", stream.0),
        });
    }
    Ok(store)
}

impl<'a> Runner<'a> {
    pub(super) fn new(plan: &'a Plan, random: Random, world: World, store: Store) -> Runner<'a> {
        Runner {
            plan,
            random,
            model: Model::new(),
            start: world.step(),
            world,
            store,
            awaited: Vec::new(),
            eager: false,
            mount_by_checkpoint: false,
            next_stream: 100,
            next_beside: 10_000,
        }
    }
}

impl Runner<'_> {
    pub(super) fn tuning(&mut self) -> Tuning {
        let seed = self.random.below(1 << 40);
        tuning(self.plan.broken, self.eager, self.mount_by_checkpoint, seed)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let first = self.random.below(1 << 32);
        (0..len as u64)
            .map(|i| (first.wrapping_mul(i / 7 + 3).wrapping_add(i * 13) >> 3) as u8)
            .collect()
    }

    fn ack(&mut self) -> Ack {
        if self.plan.busy && !self.random.one_in(8) {
            return Ack::Ordered;
        }
        match self.random.below(5) {
            0 | 1 => Ack::Ordered,
            2 => Ack::Written,
            _ => Ack::Durable,
        }
    }

    /// Notes what has been acknowledged by now.
    pub(super) fn poll(&mut self) {
        let step = self.world.step();
        let mut left = Vec::new();
        for mut awaited in std::mem::take(&mut self.awaited) {
            let (done, what, ack) = match &mut awaited {
                Awaited::Commit(lsn, ack, completion) => {
                    let done = completion.try_take().map(|result| result.map(drop));
                    (done, Promised::Commit { lsn: *lsn }, *ack)
                }
                Awaited::Frame(stream, frame, ack, completion) => {
                    let done = completion.try_take().map(|result| result.map(drop));
                    (
                        done,
                        Promised::Frame {
                            stream: *stream,
                            frame: *frame,
                        },
                        *ack,
                    )
                }
            };
            match done {
                Some(Ok(())) if ack != Ack::Ordered => {
                    self.model.promises.push(Promise {
                        step,
                        what,
                        durable: ack == Ack::Durable,
                    });
                }
                Some(_) => {}
                None => left.push(awaited),
            }
        }
        self.awaited = left;
    }

    fn drive(&mut self, events: u64) {
        for _ in 0..events {
            let more = self.world.drive();
            self.poll();
            if !more {
                break;
            }
        }
    }

    pub(super) fn action(&mut self) {
        if self.plan.busy {
            self.transaction();
            self.poll();
            let events = self.random.below(4);
            self.drive(events);
            return;
        }
        match self.random.below(12) {
            0..=4 => self.transaction(),
            5 | 6 => self.frame(),
            7 => self.publish(),
            8 => {
                let durable = self.random.one_in(2);
                if durable {
                    let events = 1 + self.random.below(30);
                    self.drive(events);
                }
            }
            9 if self.plan.seed % 4 == 3 && self.random.one_in(2) => {
                self.store.seal().expect("an idle store is sealed");
                assert!(!self.store.seal().expect("twice"), "a sealed store needs no seal");
            }
            10 if self.random.one_in(3) => match self.store.shrink() {
                Ok(_) | Err(StoreError::NoSpace { .. }) => {}
                Err(error) => panic!("the store does not shrink: {error}"),
            },
            9 => {
                let last = self.store.inner.state.lock().groups.last_lsn;
                let (lsn, ack) = (last, Ack::Durable);
                let completion = self
                    .store
                    .sync(Lsn(last))
                    .map(move |result| result.map(|()| Lsn(last)));
                self.awaited.push(Awaited::Commit(lsn, ack, completion));
            }
            _ => {
                let events = self.random.below(6);
                self.drive(events);
            }
        }
        self.poll();
        if self.random.one_in(3) {
            let events = self.random.below(4);
            self.drive(events);
        }
    }

    fn transaction(&mut self) {
        let mut now = self.model.now();
        let mut ops = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            self.op(&mut now, &mut ops);
        }
        let mut deps = Vec::new();
        if self.random.one_in(4) {
            let streams: Vec<u64> = streams(&self.model.now());
            if let Some(&stream) = streams.first() {
                let frames = self.model.frames.get(&stream).map_or(0, Vec::len) as u64;
                if frames > 0 && now.contains_key(&stream) {
                    deps.push((stream, frames - 1));
                }
            }
        }
        self.commit(now, ops, deps);
    }

    fn commit(&mut self, after: Snapshot, ops: Vec<Op>, deps: Vec<(u64, u64)>) {
        let ack = self.ack();
        let after_frames = deps
            .iter()
            .map(|&(stream, frame)| (ObjectId(stream), FramePos(frame)))
            .collect();
        let before = self.store.inner.state.lock().groups.last_lsn;
        let mut completion = self.store.commit(
            Txn {
                ops,
                after: after_frames,
            },
            ack,
        );
        if let Some(result) = completion.try_take() {
            match result {
                Ok(lsn) => {
                    self.model.commits.push(Commit {
                        lsn: lsn.0,
                        after: Rc::new(after),
                        deps,
                    });
                    let what = Promised::Commit { lsn: lsn.0 };
                    if ack != Ack::Ordered {
                        let step = self.world.step();
                        self.model.promises.push(Promise {
                            step,
                            what,
                            durable: ack == Ack::Durable,
                        });
                    }
                }
                Err(StoreError::TooLarge | StoreError::NoSpace { .. }) => {}
                Err(error) => panic!("a transaction was refused: {error}"),
            }
            return;
        }
        let lsn = self.store.inner.state.lock().groups.last_lsn;
        assert!(lsn > before, "a commit that waits has its place");
        self.model.commits.push(Commit {
            lsn,
            after: Rc::new(after),
            deps,
        });
        self.awaited.push(Awaited::Commit(lsn, ack, completion));
    }

    fn op(&mut self, now: &mut Snapshot, ops: &mut Vec<Op>) {
        let id = 1 + self.random.below(4);
        let oid = ObjectId(id);
        if self.random.one_in(5) {
            self.stream_op(now, ops);
            return;
        }
        let choice = self.random.below(10);
        let len = [300, 4096, 5000, 9000][self.random.below(4) as usize];
        let data = self.bytes(len);
        let at = self.random.below(9000);
        let copy = 1 + self.random.below(4);
        match now.get_mut(&id) {
            None => {
                let check = if id.is_multiple_of(2) {
                    Check::Pages
                } else {
                    Check::Caller
                };
                ops.push(Op::Create {
                    id: oid,
                    opts: CreateOptions {
                        check,
                        ..CreateOptions::default()
                    },
                });
                ops.push(Op::Append {
                    id: oid,
                    at: 0,
                    data: Bytes::from(data.clone()),
                });
                now.insert(
                    id,
                    Thing::Object {
                        bytes: data,
                        sealed: false,
                    },
                );
            }
            Some(Thing::Object { bytes, sealed }) => match choice {
                0..=2 if !*sealed && bytes.len() < 30_000 => {
                    ops.push(Op::Append {
                        id: oid,
                        at: bytes.len() as u64,
                        data: Bytes::from(data.clone()),
                    });
                    bytes.extend(data);
                }
                3 | 4 if !*sealed => {
                    let at = at as usize;
                    bytes.resize(bytes.len().max(at + data.len()), 0);
                    bytes[at..at + data.len()].copy_from_slice(&data);
                    ops.push(Op::Write {
                        id: oid,
                        at: at as u64,
                        data: Bytes::from(data),
                    });
                }
                5 if !*sealed => {
                    bytes.resize(at as usize, 0);
                    ops.push(Op::Truncate { id: oid, len: at });
                }
                6 if !*sealed => {
                    let end = at as usize + len;
                    let first = (at as usize).next_multiple_of(PAGE);
                    let last = if end >= bytes.len() {
                        bytes.len()
                    } else {
                        end / PAGE * PAGE
                    };
                    if first < last {
                        bytes[first..last].fill(0);
                    }
                    ops.push(Op::Punch {
                        id: oid,
                        range: at..end as u64,
                    });
                }
                7 if !*sealed => {
                    *sealed = true;
                    ops.push(Op::Seal { id: oid });
                }
                8 => {
                    let thing = now[&id].clone();
                    if let std::collections::btree_map::Entry::Vacant(slot) = now.entry(copy) {
                        slot.insert(thing);
                        ops.push(Op::Clone {
                            from: oid,
                            to: ObjectId(copy),
                        });
                    }
                }
                _ => {
                    now.remove(&id);
                    ops.push(Op::Delete { id: oid });
                }
            },
            Some(Thing::Stream { .. }) => {}
        }
    }

    fn stream_op(&mut self, now: &mut Snapshot, ops: &mut Vec<Op>) {
        let streams = streams(now);
        match self.random.below(4) {
            0 | 1 if streams.len() < 2 => {
                let id = self.next_stream;
                self.next_stream += 1;
                let opts = CreateOptions {
                    kind: ObjectKind::Stream,
                    ..CreateOptions::default()
                };
                ops.push(Op::Create {
                    id: ObjectId(id),
                    opts,
                });
                now.insert(id, Thing::Stream { trimmed: 0 });
                self.model.frames.insert(id, Vec::new());
            }
            2 => {
                let Some(&id) = streams.first() else { return };
                let frames = self.model.frames[&id].len() as u64;
                if let Some(Thing::Stream { trimmed }) = now.get_mut(&id) {
                    let kept = frames - *trimmed;
                    let some = self.random.below(kept + 1);
                    // Up to the last frame, which may be on its way yet.
                    *trimmed += if self.plan.seed % 8 == 6 { kept } else { some };
                    ops.push(Op::TrimStream {
                        id: ObjectId(id),
                        upto: FramePos(*trimmed),
                    });
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

    fn frame(&mut self) {
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
                self.store
                    .append_frame(ObjectId(stream), Bytes::from(payload.clone()), lsn, ack);
            self.note_beside(beside.as_ref(), stream, number);
            let taken = completion.try_take();
            match taken {
                Some(Ok(pos)) => {
                    assert_eq!(pos.0, number);
                    if ack != Ack::Ordered {
                        let step = self.world.step();
                        let what = Promised::Frame {
                            stream,
                            frame: number,
                        };
                        self.model.promises.push(Promise {
                            step,
                            what,
                            durable: ack == Ack::Durable,
                        });
                    }
                }
                Some(Err(StoreError::NoSpace { .. })) => return,
                Some(Err(error)) => panic!("a frame was refused: {error}"),
                None => self.awaited.push(Awaited::Frame(stream, number, ack, completion)),
            }
            self.model
                .frames
                .entry(stream)
                .or_default()
                .push(Frame { payload, after });
            self.poll();
        }
    }

    /// Sometimes: if the next frame is written through, another thread commits something that comes after it; then a
    /// checkpoint goes as far as it can, or a flush, and a record behind it. Returns where these commits are noted.
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
                let ops = vec![Op::Create { id, opts }];
                if let Ok(lsn) = store.commit(Txn { ops, after }, Ack::Ordered).wait() {
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
                store.inner.pump();
            } else if !done.lock().is_empty() {
                let mut state = store.inner.state.lock();
                let open = state.epochs.open;
                state.epochs.want(open);
                drop(state);
                store.inner.pump();
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
            let thing = Thing::Object {
                bytes: Vec::new(),
                sealed: false,
            };
            after.insert(id, thing);
            let deps = if index == 0 {
                vec![(stream, number)]
            } else {
                Vec::new()
            };
            let after = Rc::new(after);
            self.model.commits.push(Commit { lsn, after, deps });
        }
    }

    fn publish(&mut self) {
        let id = 10 + self.random.below(3);
        let mut now = self.model.now();
        let mut ops = Vec::new();
        if now.remove(&id).is_some() {
            ops.push(Op::Delete { id: ObjectId(id) });
        }
        let len = 1 + self.random.below(12_000) as usize;
        let data = self.bytes(len);
        let check = if self.random.one_in(2) {
            Check::Pages
        } else {
            Check::Caller
        };
        let mut writer = self
            .store
            .writer(
                ObjectId(id),
                CreateOptions {
                    check,
                    ..CreateOptions::default()
                },
            )
            .unwrap();
        writer.append(&data).unwrap();
        let staged = writer.finish().unwrap();
        self.poll();
        if self.random.one_in(8) {
            return;
        }
        let events = self.random.below(5);
        self.drive(events);
        ops.push(Op::Publish(staged));
        now.insert(
            id,
            Thing::Object {
                bytes: data,
                sealed: true,
            },
        );
        self.commit(now, ops, Vec::new());
    }

    /// The process that waited is gone.
    pub(super) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    /// The process dies; the device keeps what it has.
    fn kill(&mut self) -> Result<(), String> {
        self.poll();
        let step = self.world.step();
        self.forget_awaited();
        let device = self.world.device().reopen();
        let tuning = self.tuning();
        let store = open(device.clone(), tuning).map_err(|error| format!("after a kill: {error}"))?;
        let history = device.history();
        // Power is lost while the next process recovers: what the kill left was not durable yet (OBJ-11).
        for cut in crash::cuts(&history).filter(|cut| cut.step() >= step) {
            let states = cut.states(&Limits {
                exhaustive: 6,
                samples: 16,
                seed: 3,
            });
            let all = states.count_all();
            for _ in 0..all.min(10) {
                let index = self.random.below(all);
                let Some(state) = states.get(index) else { break };
                let tuning = self.tuning();
                let survivor = open(state.device(), tuning)
                    .map_err(|error| format!("power loss after a kill: {error}; {}", state.describe()))?;
                let found = outcome(&survivor);
                check(&survivor, &found, &self.model, step, true).map_err(|violation| {
                    format!("power loss after a kill: {violation}; {}", state.describe())
                })?;
            }
        }
        self.world = World::Device(device);
        self.settle(store, step, false)
    }

    /// Power is lost; the device is left in one of its possible states.
    fn power_loss(&mut self) -> Result<(), String> {
        self.poll();
        let history = self.world.device().history();
        let step = history.len();
        let limits = Limits {
            exhaustive: 8,
            samples: 64,
            seed: self.random.below(1 << 40),
        };
        let states = crash::states(&history, step, &limits);
        let index = self.random.below(states.count_all());
        let state = states.get(index).ok_or("no such state")?;
        self.awaited.clear();
        let device = fault_device(state.image().clone(), self.random.below(1 << 40));
        let tuning = self.tuning();
        let store = open(device.clone(), tuning)
            .map_err(|error| format!("after a power loss: {error}; {}", state.describe()))?;
        self.world = World::Device(device);
        self.settle(store, step, true)
    }

    pub(super) fn settle(&mut self, store: Store, step: usize, durable_only: bool) -> Result<(), String> {
        self.store = store;
        let outcome = outcome(&self.store);
        check(&self.store, &outcome, &self.model, step, durable_only)?;
        self.model.settle(outcome.lsn, &outcome.ends);
        self.start = self.world.step();
        Ok(())
    }

    /// Every kind of crash in the last life.
    fn enumerate(mut self) -> Result<usize, String> {
        self.poll();
        let history = self.world.device().history();
        let cuts: Vec<_> = crash::cuts(&history)
            .filter(|cut| cut.step() >= self.start)
            .collect();
        let limits = Limits {
            exhaustive: 10,
            samples: 64,
            seed: self.plan.seed,
        };
        let per_cut = (self.plan.states / cuts.len().max(1)).max(2);
        let mut tried = 0;
        for cut in cuts {
            let states = cut.states(&limits);
            let all = states.count_all();
            for draw in 0..per_cut as u64 {
                if draw >= all {
                    break;
                }
                // All of them when they are few; else nothing, everything, and a draw.
                let index = match draw {
                    _ if all <= per_cut as u64 => draw,
                    0 => 0,
                    1 => all - 1,
                    _ => self.random.below(all),
                };
                let Some(state) = states.get(index) else { break };
                tried += 1;
                self.state(&state)
                    .map_err(|violation| format!("{violation}; {}", state.describe()))?;
            }
        }
        Ok(tried)
    }

    fn state(&mut self, state: &crash::CrashState) -> Result<(), String> {
        let step = state.step();
        let crash_again = self.random.one_in(12);
        let first: Outcome = if crash_again {
            let device = fault_device(state.image().clone(), self.random.below(1 << 40));
            let tuning = self.tuning();
            let store = open(device.clone(), tuning).map_err(|error| error.to_string())?;
            let first = outcome(&store);
            check(&store, &first, &self.model, step, true)?;
            drop(store);
            self.crash_in_recovery(&device, &first, step)?;
            first
        } else {
            let device = state.device();
            let tuning = self.tuning();
            let store = open(Arc::clone(&device), tuning).map_err(|error| error.to_string())?;
            let first = outcome(&store);
            check(&store, &first, &self.model, step, true)?;
            drop(store);
            let tuning = self.tuning();
            let store = open(device, tuning).map_err(|error| format!("OBJ-30: {error}"))?;
            let second = outcome(&store);
            if second != first {
                return Err(format!("OBJ-30: {first:?}, then {second:?}"));
            }
            check(&store, &second, &self.model, step, true)
                .map_err(|violation| format!("again: {violation}"))?;
            self.epochs_only_grow(state, &store)?;
            first
        };
        drop(first);
        Ok(())
    }

    /// OBJ-10: no epoch number of any record that the walk saw is used again.
    fn epochs_only_grow(&self, state: &crash::CrashState, store: &Store) -> Result<(), String> {
        let seen = crate::crashes::largest_epoch(state.device().as_ref());
        let open = store.inner.state.lock().epochs.open;
        if open > seen {
            Ok(())
        } else {
            Err(format!("OBJ-10: epoch {open} is open, {seen} was used before"))
        }
    }

    /// Recovery itself crashes, at each of its own events.
    fn crash_in_recovery(
        &mut self,
        device: &FaultDevice,
        first: &Outcome,
        step: usize,
    ) -> Result<(), String> {
        let history = device.history();
        let limits = Limits {
            exhaustive: 6,
            samples: 8,
            seed: 1,
        };
        for cut in crash::cuts(&history) {
            for state in cut.states(&limits).take(12) {
                let tuning = self.tuning();
                let store = open(state.device(), tuning).map_err(|error| format!("OBJ-30: {error}"))?;
                let again = outcome(&store);
                if again != *first {
                    return Err(format!("OBJ-30: {first:?}, with a crash inside {again:?}"));
                }
                check(&store, &again, &self.model, step, true)?;
            }
        }
        Ok(())
    }
}

fn streams(snapshot: &Snapshot) -> Vec<u64> {
    snapshot
        .iter()
        .filter(|(_, thing)| matches!(thing, Thing::Stream { .. }))
        .map(|(&id, _)| id)
        .collect()
}

//! One random trace gives the same answers on every backend and every page size, illegal calls included.
//!
//! Answers are results, kinds of errors and bytes read; positions of commits are not compared, since each backend has
//! commits of its own. Holes are punched at multiples of the longest page.

use crate::basics::{plain, stream};
use bytes::Bytes;
use copal_device::{Device, IoClass, MemoryDevice};
use copal_object::*;
use copal_testkit::Random;
use std::{fmt::Write as _, ops::ControlFlow, sync::Arc};

const PAGES: [u32; 3] = [4096, 8192, 16_384];

/// Backend, and whether data of small commits lies in records.
type TraceLayout = (BackendKind, Option<bool>);

const LAYOUTS: [TraceLayout; 4] = [
    (BackendKind::Cow, None),
    (BackendKind::Cow, Some(true)),
    (BackendKind::Log, None),
    (BackendKind::Hostfs, None),
];

/// Storage of one store.
enum TraceBackend {
    Device(Arc<dyn Device>, Option<bool>),
    Directory(tempfile::TempDir),
}

impl TraceBackend {
    fn new((backend, inline_data): TraceLayout, page_bytes: u32) -> TraceBackend {
        let options = MkfsOptions { backend, page_bytes: Some(page_bytes), ..MkfsOptions::default() };
        if backend == BackendKind::Hostfs {
            let dir = tempfile::tempdir().unwrap();
            Store::mkfs_dir(dir.path(), &options).unwrap();
            return TraceBackend::Directory(dir);
        }
        let device: Arc<dyn Device> = MemoryDevice::new(256 << 20);
        Store::mkfs(&device, &options).unwrap();
        TraceBackend::Device(device, inline_data)
    }

    fn open(&self) -> Store {
        let options = OpenOptions::default();
        match self {
            TraceBackend::Device(device, inline_data) => {
                let options = OpenOptions { inline_data: *inline_data, ..options };
                Store::open(Arc::clone(device), &options).unwrap().0
            }
            TraceBackend::Directory(dir) => Store::open_dir(dir.path(), &options).unwrap().0,
        }
    }
}

/// The variant of an error and its object, without positions and sizes of free space.
fn kind(error: &StoreError) -> String {
    match error {
        StoreError::NoSpace { .. } => "NoSpace".into(),
        StoreError::UnknownDependency { .. } => "UnknownDependency".into(),
        error => format!("{error:?}"),
    }
}

fn answer<T>(result: &Result<T, StoreError>) -> String {
    result.as_ref().map_or_else(kind, |_| "done".into())
}

/// A call with random arguments, many of which fit no object.
struct TraceCall<'a> {
    store: &'a Store,
    random: &'a mut Random,
    answers: &'a mut Vec<String>,
}

impl TraceCall<'_> {
    fn id(&mut self) -> ObjectId {
        ObjectId(1 + self.random.below(10))
    }

    fn bytes(&mut self) -> Bytes {
        let most = [1, 300, 5000, 70_000][self.random.below(4) as usize];
        let len = self.random.below(most) as usize;
        Bytes::from(self.random.bytes(len))
    }

    /// The length of the object, or a wrong one.
    fn end(&mut self, id: ObjectId) -> u64 {
        let len = self.store.stat(id).map_or(0, |stat| stat.len);
        if self.random.one_in(6) { len + self.random.below(3) } else { len }
    }

    fn op(&mut self) -> Op {
        let id = self.id();
        let check = [ReadCheck::Pages, ReadCheck::Caller][self.random.below(2) as usize];
        match self.random.below(15) {
            0 => Op::Create { id, opts: stream() },
            1 | 2 => Op::Create { id, opts: plain(check) },
            3..=5 => Op::Append { id, at: self.end(id), data: self.bytes() },
            6 | 7 => Op::Write { id, at: self.random.below(200_000), data: self.bytes() },
            8 => Op::Truncate { id, len: self.random.below(200_000) },
            9 => {
                let most = u64::from(PAGES[2]);
                let (from, to) = (self.random.below(8) * most, self.random.below(20) * most);
                Op::Punch { id, range: from..to }
            }
            10 if self.random.one_in(3) => Op::Seal { id },
            11 => Op::Clone { from: id, to: self.id() },
            12 => Op::TrimStream { id, upto: FramePos(self.random.below(12)) },
            13 => Op::TruncateStream { id, from: FramePos(self.random.below(12)) },
            _ if self.random.one_in(2) => Op::Delete { id },
            _ => Op::Append { id, at: self.end(id), data: Bytes::new() },
        }
    }

    fn txn(&mut self) -> Txn {
        let mut txn = Txn::new();
        for _ in 0..self.random.below(4) {
            txn = txn.op(self.op());
        }
        txn
    }

    fn commit(&mut self) {
        let mut txn = self.txn();
        if self.random.one_in(8) {
            let (stream, frame) = (self.id(), FramePos(self.random.below(12)));
            txn = txn.after(stream, frame);
        }
        let ack = [Ack::Ordered, Ack::Written, Ack::Durable][self.random.below(3) as usize];
        let result = self.store.commit(txn, ack).wait();
        self.answers.push(answer(&result));
    }

    /// Two commits spend one reservation, which may be too small for both or for none.
    fn spend(&mut self) {
        let bytes = [0, 5000, 1 << 20][self.random.below(3) as usize];
        let reserved = self.store.reserve(bytes);
        self.answers.push(format!("reserved {}", answer(&reserved)));
        let Ok(reservation) = reserved else { return };
        assert!(reservation.bytes() >= bytes, "whole pages are reserved");
        for _ in 0..2 {
            let before_bytes = reservation.bytes();
            let txn = self.txn().spend(&reservation);
            let result = self.store.commit(txn, Ack::Ordered).wait();
            let after_bytes = reservation.bytes();
            assert!(after_bytes <= before_bytes && (result.is_ok() || after_bytes == before_bytes));
            self.answers.push(format!("spent {}", answer(&result)));
        }
    }

    fn publish(&mut self) {
        let id = self.id();
        let data = self.bytes();
        let result = self.store.writer(id, plain(ReadCheck::Caller)).and_then(|mut writer| {
            data.chunks(5000).try_for_each(|part| writer.append(part))?;
            let staged = writer.finish()?;
            self.store.commit(Txn::new().publish(staged), Ack::Ordered).wait()
        });
        self.answers.push(answer(&result));
    }

    fn frame(&mut self) {
        let id = self.id();
        let payload = if self.random.one_in(40) { Bytes::from(vec![1; 1 << 20]) } else { self.bytes() };
        let after = self.random.one_in(10).then_some(Lsn(1 << 40));
        let ack = [Ack::Ordered, Ack::Written, Ack::Durable][self.random.below(3) as usize];
        let result = self.store.append_frame(id, payload, after, ack).wait();
        self.answers.push(format!("frame {:?}", result.map_err(|error| kind(&error))));
    }

    fn read(&mut self) {
        let id = self.id();
        let (from, to) = (self.random.below(220_000), self.random.below(300_000));
        let result = self.store.read(id, from..to, IoClass::Foreground).wait();
        let told = result.map(|bytes| (bytes.len(), copal_codec::crc32c(0, &bytes)));
        self.answers.push(format!("read {id:?} {:?}", told.map_err(|error| kind(&error))));
    }

    /// Ranges that overlap, are empty or reversed, pass the end, or are of streams and of no object.
    fn read_many(&mut self) {
        let range = |call: &mut Self| {
            let id = call.id();
            (id, call.random.below(220_000)..call.random.below(300_000))
        };
        let count = 1 + self.random.below(12);
        let reads: Vec<_> = (0..count).map(|_| range(self)).collect();
        let budget_bytes = [4096, 1 << 20][self.random.below(2) as usize];
        let mut told = vec![None; reads.len()];
        self.store.read_many(&reads, budget_bytes, IoClass::Foreground, &mut |index, found| {
            let found = found.map(|bytes| (bytes.len(), copal_codec::crc32c(0, &bytes)));
            let before = told[index].replace(format!("{:?}", found.map_err(|error| kind(&error))));
            assert_eq!(before, None, "range {index} is answered once");
            ControlFlow::Continue(())
        });
        self.answers.push(format!("ranges {reads:?} {told:?}"));
    }

    fn frames(&mut self) {
        let id = self.id();
        let from = FramePos(self.random.below(12));
        let mut told = String::new();
        match self.store.frames(id, from) {
            Ok(mut reader) => loop {
                match reader.next_frame() {
                    Ok(Some((at, payload))) => {
                        write!(told, "{} {} ", at.0, copal_codec::crc32c(0, &payload)).unwrap();
                    }
                    Ok(None) => break,
                    Err(error) => {
                        told += &kind(&error);
                        break;
                    }
                }
            },
            Err(error) => told = kind(&error),
        }
        self.answers.push(format!("frames {id:?} {told}"));
    }

    fn list(&mut self) {
        let stats = self.store.list(ObjectId(0), 100).into_iter();
        let stats: Vec<_> = stats.map(|stat| (stat.id.0, stat.len, stat.sealed, stat.kind)).collect();
        self.answers.push(format!("{stats:?}"));
    }
}

/// The answers to the trace of `seed`.
fn answers(layout: TraceLayout, page_bytes: u32, seed: u64) -> Vec<String> {
    let storage = TraceBackend::new(layout, page_bytes);
    let mut store = storage.open();
    let mut random = Random::new(seed);
    let mut answers = Vec::new();
    for _ in 0..400 {
        let choice = random.below(24);
        let mut call = TraceCall { store: &store, random: &mut random, answers: &mut answers };
        match choice {
            0..=8 => call.commit(),
            9 => call.publish(),
            10..=12 => call.frame(),
            13..=15 => call.read(),
            16 | 17 => call.frames(),
            18 => call.list(),
            19 | 20 => call.read_many(),
            21 | 22 => call.spend(),
            _ => {
                if random.one_in(2) {
                    answers.push(answer(&store.close()));
                    answers.push(answer(&store.commit(Txn::new().delete(ObjectId(1)), Ack::Ordered).wait()));
                }
                drop(store);
                store = storage.open();
            }
        }
    }
    let mut call = TraceCall { store: &store, random: &mut random, answers: &mut answers };
    call.list();
    answers
}

#[test]
fn every_backend_and_page_size_gives_the_same_answers() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..4 {
        let wanted = answers(LAYOUTS[0], 4096, seed);
        for layout in LAYOUTS {
            for page_bytes in PAGES {
                let found = answers(layout, page_bytes, seed);
                for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    let place = format!("seed {seed}, {layout:?} with pages of {page_bytes}");
                    assert_eq!(found, wanted, "{place}, answer {index}");
                }
                assert_eq!(found.len(), wanted.len());
            }
        }
        kinds.extend(wanted.iter().map(|told| told.split(['(', ' ', '{']).next().unwrap_or("").to_owned()));
    }
    for kind in [
        "done",
        "reserved",
        "spent",
        "ranges",
        "Exists",
        "NotFound",
        "WrongKind",
        "WrongLength",
        "UnknownDependency",
        "Fenced",
    ] {
        assert!(kinds.contains(kind), "no call was answered with {kind}: {kinds:?}");
    }
}

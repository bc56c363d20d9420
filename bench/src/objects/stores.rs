//! Object stores for the suites: creation, opening, and the counted operations.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_device::{Device, DeviceClock, DeviceCounters, FileOptions, open_file};
use copal_object::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, ObjectKind, ObjectLifetime, Op, OpenOptions,
    ReadCheck, Store, Txn,
};
use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

/// A store of any backend.
pub(crate) struct BenchStore {
    pub(crate) store: Store,
    next: u64,
}

impl BenchStore {
    /// In one preallocated file.
    pub(crate) fn in_file(path: &Path, size: u64, backend: BackendKind) -> Result<BenchStore> {
        let options = FileOptions { create_size: Some(size), ..FileOptions::default() };
        let device = open_file(path, &options).context("creating a store's file")?;
        BenchStore::on_device(&device, backend)
    }

    /// Over the whole of a device.
    pub(crate) fn on_device(device: &Arc<dyn Device>, backend: BackendKind) -> Result<BenchStore> {
        let options = MkfsOptions { backend, ..MkfsOptions::default() };
        Store::mkfs(device, &options).context("formatting a store")?;
        let (store, _) = Store::open(device.clone(), &OpenOptions::default()).context("opening a store")?;
        Ok(BenchStore { store, next: 1 })
    }

    /// `hostfs`, in a directory: the control.
    pub(crate) fn in_directory(path: &Path) -> Result<BenchStore> {
        Store::mkfs_dir(path, &MkfsOptions::default()).context("making a store of files")?;
        let (store, _) =
            Store::open_dir(path, &OpenOptions::default()).context("opening a store of files")?;
        Ok(BenchStore { store, next: 1 })
    }

    /// Counters of the commands that reached the device.
    pub(crate) fn counters(&self) -> DeviceCounters {
        self.store.counters()
    }

    pub(crate) fn fresh_id(&mut self) -> ObjectId {
        self.next += 1;
        ObjectId(self.next)
    }

    /// A new object of this kind, durable.
    pub(crate) fn create(&mut self, kind: ObjectKind) -> Result<ObjectId> {
        let id = self.fresh_id();
        self.commit(vec![Op::Create { id, opts: options(kind, 0) }], Ack::Durable)?;
        Ok(id)
    }

    pub(crate) fn commit(&self, ops: Vec<Op>, ack: Ack) -> Result<()> {
        self.store.commit(Txn::new().ops(ops), ack).wait().context("a commit")?;
        Ok(())
    }

    /// One durable frame at the end of a stream.
    pub(crate) fn append_frame(&self, stream: ObjectId, payload: &Bytes) -> Result<()> {
        self.store.append_frame(stream, payload.clone(), None, Ack::Durable).wait().context("an append")?;
        Ok(())
    }
}

pub(crate) fn options(kind: ObjectKind, expected_bytes: u64) -> CreateOptions {
    CreateOptions {
        kind,
        lifetime: ObjectLifetime::Medium,
        expected_bytes,
        check: ReadCheck::Pages,
        label: *b"bench\0\0\0\0\0\0\0\0\0\0\0",
    }
}

/// A store with one stream.
pub(crate) struct StreamStore {
    store: BenchStore,
    stream: ObjectId,
}

impl StreamStore {
    pub(crate) fn new(mut store: BenchStore) -> Result<StreamStore> {
        let stream = store.create(ObjectKind::Stream)?;
        Ok(StreamStore { store, stream })
    }

    /// Durable appends of `bytes`, one at each call.
    pub(crate) fn append(&self, bytes: usize) -> impl FnMut() -> Result<()> + '_ {
        let payload = Bytes::from(vec![0x5a; bytes]);
        move || self.store.append_frame(self.stream, &payload)
    }

    /// Durable frames a second by the clock of the device, with `depth` on their way: `frames` of them, or on a disk of
    /// the machine as many as end within `time`. The stream is trimmed afterwards.
    pub(crate) fn rate(
        &self,
        clock: &DeviceClock,
        bytes: usize,
        depth: u64,
        frames: u64,
        time: Duration,
    ) -> Result<f64> {
        let payload = Bytes::from(vec![0x5a; bytes]);
        let begin = clock.now();
        let mut on_their_way = VecDeque::new();
        let (mut started, mut ended) = (0_u64, 0);
        let mut last = None;
        loop {
            let is_late = !clock.is_virtual() && clock.since(begin) >= time;
            while started - ended < depth && started < frames && !is_late {
                let frame = self.store.store.append_frame(self.stream, payload.clone(), None, Ack::Durable);
                on_their_way.push_back(frame);
                started += 1;
            }
            let Some(frame) = on_their_way.pop_front() else { break };
            last = Some(frame.wait().context("an append")?);
            ended += 1;
        }
        let rate = ended as f64 / clock.since(begin).as_secs_f64().max(1e-9);
        if let Some(upto) = last {
            self.store.commit(vec![Op::TrimStream { id: self.stream, upto }], Ack::Durable)?;
        }
        Ok(rate)
    }
}

/// Operations that create objects with `payload`.
pub(crate) fn new_objects(store: &mut BenchStore, objects: u64, payload: &Bytes) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..objects {
        let id = store.fresh_id();
        ops.push(Op::Create { id, opts: options(ObjectKind::Plain, payload.len() as u64) });
        ops.push(Op::Append { id, at: 0, data: payload.clone() });
    }
    ops
}

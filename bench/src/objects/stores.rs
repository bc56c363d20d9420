//! Object stores for the suites: creation, opening, and the counted operations.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_device::{DeviceCounters, FileOptions, open_file};
use copal_object::{
    Ack, CreateOptions, MkfsOptions, ObjectId, ObjectKind, ObjectLifetime, Op, OpenOptions, ReadCheck, Store,
    Txn,
};
use std::path::Path;

/// A store of either backend.
pub(super) struct FileStore {
    pub(super) store: Store,
    next: u64,
}

impl FileStore {
    /// `cow`, in one preallocated file.
    pub(super) fn make(path: &Path, size: u64) -> Result<FileStore> {
        let options = FileOptions { create_size: Some(size), ..FileOptions::default() };
        let device = open_file(path, &options).context("creating a store's file")?;
        Store::mkfs(&device, &MkfsOptions::default()).context("formatting a store")?;
        let (store, _) = Store::open(device, &OpenOptions::default()).context("opening a store")?;
        Ok(FileStore { store, next: 1 })
    }

    /// `hostfs`, in a directory: the control.
    pub(super) fn in_directory(path: &Path) -> Result<FileStore> {
        Store::mkfs_dir(path, &MkfsOptions::default()).context("making a store of files")?;
        let (store, _) =
            Store::open_dir(path, &OpenOptions::default()).context("opening a store of files")?;
        Ok(FileStore { store, next: 1 })
    }

    /// Counters of the commands that reached the device.
    pub(super) fn counters(&self) -> DeviceCounters {
        self.store.counters()
    }

    pub(super) fn fresh_id(&mut self) -> ObjectId {
        self.next += 1;
        ObjectId(self.next)
    }

    /// A new object of this kind, durable.
    pub(super) fn create(&mut self, kind: ObjectKind) -> Result<ObjectId> {
        let id = self.fresh_id();
        self.commit(vec![Op::Create { id, opts: options(kind, 0) }], Ack::Durable)?;
        Ok(id)
    }

    pub(super) fn commit(&self, ops: Vec<Op>, ack: Ack) -> Result<()> {
        self.store.commit(Txn::new().ops(ops), ack).wait().context("a commit")?;
        Ok(())
    }

    /// One durable frame at the end of a stream.
    pub(super) fn append_frame(&self, stream: ObjectId, payload: &Bytes) -> Result<()> {
        self.store.append_frame(stream, payload.clone(), None, Ack::Durable).wait().context("an append")?;
        Ok(())
    }
}

pub(super) fn options(kind: ObjectKind, expected_bytes: u64) -> CreateOptions {
    CreateOptions {
        kind,
        lifetime: ObjectLifetime::Medium,
        expected_bytes,
        check: ReadCheck::Pages,
        label: *b"bench\0\0\0\0\0\0\0\0\0\0\0",
    }
}

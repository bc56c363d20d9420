//! Object stores for the suites: made, opened, and asked for the operations that are counted.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_device::{Counters, Device, FileOptions, open_file};
use copal_object::{
    Ack, Check, CreateOptions, Lifetime, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, Store, Txn,
};
use std::{path::Path, sync::Arc};

/// A `cow` store in one preallocated file.
pub(super) struct FileStore {
    device: Arc<dyn Device>,
    pub(super) store: Store,
    next: u64,
}

impl FileStore {
    pub(super) fn make(path: &Path, size: u64) -> Result<FileStore> {
        let options = FileOptions {
            create_size: Some(size),
            ..FileOptions::default()
        };
        let device = open_file(path, &options).context("creating a store's file")?;
        Store::mkfs(&device, &MkfsOptions::default()).context("formatting a store")?;
        let (store, _) =
            Store::open(Arc::clone(&device), &OpenOptions::default()).context("opening a store")?;
        Ok(FileStore {
            device,
            store,
            next: 1,
        })
    }

    /// What reached the device.
    pub(super) fn counters(&self) -> Counters {
        self.device.counters()
    }

    pub(super) fn fresh_id(&mut self) -> ObjectId {
        self.next += 1;
        ObjectId(self.next)
    }

    /// A new object of this kind, durable.
    pub(super) fn create(&mut self, kind: ObjectKind) -> Result<ObjectId> {
        let id = self.fresh_id();
        self.commit(
            vec![Op::Create {
                id,
                opts: options(kind, 0),
            }],
            Ack::Durable,
        )?;
        Ok(id)
    }

    pub(super) fn commit(&self, ops: Vec<Op>, ack: Ack) -> Result<()> {
        self.store
            .commit(
                Txn {
                    ops,
                    after: Vec::new(),
                },
                ack,
            )
            .wait()
            .context("a commit")?;
        Ok(())
    }

    /// One durable frame at the end of a stream.
    pub(super) fn append_frame(&self, stream: ObjectId, payload: &Bytes) -> Result<()> {
        self.store
            .append_frame(stream, payload.clone(), None, Ack::Durable)
            .wait()
            .context("an append")?;
        Ok(())
    }
}

pub(super) fn options(kind: ObjectKind, expected_bytes: u64) -> CreateOptions {
    CreateOptions {
        kind,
        lifetime: Lifetime::Medium,
        expected_bytes,
        check: Check::Pages,
        label: *b"bench\0\0\0\0\0\0\0\0\0\0\0",
    }
}

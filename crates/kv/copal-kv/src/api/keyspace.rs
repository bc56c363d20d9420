//! Named ordered maps, batches over them, and snapshots of them.

use crate::{
    CacheMode, Durability, Error, Iter, KeyspaceOptions, Store,
    compact::{merge::group_of, worker},
    engine::Engine,
    format::entry::{KeyRange, KeyspaceId, MAX_USER_KEY},
    memory::rows::RowEpoch,
    read::{
        get::{self, CachePolicy, WantedPart},
        multi_get,
        value_ranges::{self, ValuePart, ValuePartSink},
    },
    tree::{
        snapshots::HeldSnapshot,
        value::pointer::{MAX_VALUE, piece_sums},
        version::SuperVersion,
    },
    write::commit::{WriteOp, WriteRequest, leader, values::GroupKey},
};
use arc_swap::Guard;
use bytes::Bytes;
use std::{
    ops::{Bound, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// State that all handles of one keyspace share.
pub(crate) struct KeyspaceHandle {
    pub(crate) id: KeyspaceId,
    name: String,
    options: KeyspaceOptions,
    row_epoch: Arc<RowEpoch>,
    pub(crate) dropped: AtomicBool,
}

impl KeyspaceHandle {
    pub(crate) fn new(
        engine: &Engine,
        id: KeyspaceId,
        name: &str,
        options: KeyspaceOptions,
    ) -> KeyspaceHandle {
        KeyspaceHandle {
            id,
            name: name.to_owned(),
            options,
            row_epoch: engine.caches.rows.space(id),
            dropped: AtomicBool::new(false),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::NoKeyspace(self.name.clone()));
        }
        Ok(())
    }

    /// The cache policy of look-ups.
    fn kept(&self) -> CachePolicy<'_> {
        match self.options.cache {
            CacheMode::Rows => CachePolicy::Row(&self.row_epoch),
            CacheMode::Blocks => CachePolicy::Block,
            CacheMode::Nothing => CachePolicy::Nothing,
        }
    }

    fn multi_get<K: AsRef<[u8]>>(
        &self,
        engine: &Engine,
        view: &SuperVersion,
        seq: u64,
        keys: &[K],
    ) -> Vec<Result<Option<Bytes>, Error>> {
        if let Err(error) = self.check() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        multi_get::multi_get(engine, view, seq, self.id, keys, self.kept())
    }

    /// The operation that stores `value`: inline, or directly in a value object.
    pub(crate) fn put(&self, key: &[u8], value: impl Into<ValueBytes>) -> Result<WriteOp, Error> {
        self.check()?;
        let key = self.id.checked_key(key)?;
        let ValueBytes(value) = value.into();
        if value.len() > MAX_VALUE {
            return Err(Error::ValueTooLong(value.len()));
        }
        if value.len() >= self.options.direct_from_bytes.max(1) as usize
            && let Some(group) = group_of(&self.options, &key)
        {
            let GroupKey { keyspace, prefix } = group;
            let sums = piece_sums(&value);
            let head = value.slice(..self.options.head_of(&value).len());
            return Ok(WriteOp::Direct { key, value, sums, head, group: GroupKey { keyspace, prefix } });
        }
        // Copied: a slice would keep its whole source buffer in memory as long as the memtable.
        Ok(WriteOp::Put { key, value: Bytes::copy_from_slice(&value) })
    }

    fn delete(&self, key: &[u8]) -> Result<WriteOp, Error> {
        self.check()?;
        Ok(WriteOp::Delete { key: self.id.checked_key(key)? })
    }

    /// `None`: the range is empty.
    pub(crate) fn delete_range(&self, range: KeyRange) -> Result<Option<WriteOp>, Error> {
        self.check()?;
        let KeyRange { start, end } = range;
        Ok((start < end).then_some(WriteOp::DeleteRange { start, end }))
    }
}

pub(crate) struct ValueBytes(Bytes);
impl From<&[u8]> for ValueBytes {
    fn from(value: &[u8]) -> ValueBytes {
        ValueBytes(Bytes::copy_from_slice(value))
    }
}
impl From<Bytes> for ValueBytes {
    fn from(value: Bytes) -> ValueBytes {
        ValueBytes(value)
    }
}

/// Named ordered map inside a store; cheap to clone. Keys are bytes, ordered bytewise.
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) store: Store,
    pub(crate) handle: Arc<KeyspaceHandle>,
}

impl Keyspace {
    pub(crate) fn new(store: &Store, handle: &Arc<KeyspaceHandle>) -> Keyspace {
        Keyspace { store: store.clone(), handle: handle.clone() }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.store.engine()
    }

    /// Name of the keyspace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Options from the creation of the keyspace.
    #[must_use]
    pub fn options(&self) -> &KeyspaceOptions {
        &self.handle.options
    }

    fn look_up(&self, key: &[u8], want: &WantedPart) -> Result<Option<Bytes>, Error> {
        self.handle.check()?;
        let engine = self.store.engine();
        let (view, seq) = engine.super_version_now();
        get::get(engine, &view, seq, &self.handle.id.key(key), want, self.handle.kept())
    }

    /// The value of `key`. Blocks on reads.
    /// # Errors
    /// `Corrupt`: the bytes are damaged. `NoKeyspace`: the keyspace was dropped.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.look_up(key, &WantedPart::all())
    }

    /// The values of many keys, in the order of `keys`, all at one moment. Reads that several look-ups would
    /// issue one after another are issued together. Blocks on reads.
    /// # Errors
    /// Per key, as [`Keyspace::get`]: damage of one key does not affect the others.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Bytes>, Error>> {
        let engine = self.store.engine();
        let (view, seq) = engine.super_version_now();
        self.handle.multi_get(engine, &view, seq, keys)
    }

    /// Bytes `range` of the value; shorter where the value ends first. Reads only the 64 KiB pieces that
    /// overlap the range.
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_range(&self, key: &[u8], range: Range<u64>) -> Result<Option<Bytes>, Error> {
        self.look_up(key, &WantedPart::Part(range))
    }

    /// Reads many parts of values, each as [`Keyspace::get_range`] does, all at one moment. `keys` are searched
    /// together, each once; then all parts of separated values are read in the order of their places, with
    /// neighbours in one read. So a caller hands over all parts that it knows it needs.
    ///
    /// `sink` gets each part once, on this thread, in the order in which the reads end. Damage of one part does
    /// not affect the others. At most `budget_bytes` of values are in flight, or one part if that is longer.
    /// Answers may share memory. Blocks on reads.
    /// # Errors
    /// `NoKeyspace`: the keyspace was dropped. All other errors go to `sink`.
    pub fn read_parts<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        parts: &[ValuePart],
        budget_bytes: u64,
        sink: &mut ValuePartSink<'_>,
    ) -> Result<(), Error> {
        self.handle.check()?;
        let engine = self.store.engine();
        let (view, seq) = engine.super_version_now();
        let (id, kept) = (self.handle.id, self.handle.kept());
        value_ranges::read_parts(engine, &view, seq, id, kept, keys, parts, budget_bytes, sink);
        Ok(())
    }

    /// Whether `key` exists; reads no separated value.
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.look_up(key, &WantedPart::Presence)?.is_some())
    }

    /// Stores `value` under `key`. Blocks until `durability` is reached.
    /// # Errors
    /// - `NoSpace`: nothing was written.
    /// - `Poisoned`: an earlier write failed.
    /// - `KeyTooLong`, `ValueTooLong`.
    /// - `BatchTooLarge`: key and value exceed the memory that a batch may take; nothing was written.
    /// - `OverBudget`: other users of the memory budget leave too little at the moment; nothing was written.
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), Error> {
        let op = self.handle.put(key, value)?;
        let engine = self.store.engine();
        let write = WriteRequest::new(vec![op], durability);
        leader::check_size(engine, &write)?;
        leader::commit_with_room(engine, write)
    }

    /// Deletes `key`, whether or not it exists. Works in a full store.
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<(), Error> {
        let op = self.handle.delete(key)?;
        leader::commit_with_room(self.store.engine(), WriteRequest::new(vec![op], durability))
    }

    /// Iterates over the keys of a range as of now.
    #[must_use]
    pub fn iter(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Iter {
        self.walk(self.handle.id.between(range))
    }

    /// Iterates over the keys that start with `prefix` as of now.
    #[must_use]
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        self.walk(self.handle.id.prefix(prefix))
    }

    pub(crate) fn key_range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> KeyRange {
        self.handle.id.between(range)
    }

    fn walk(&self, range: KeyRange) -> Iter {
        let engine = self.store.engine();
        let (view, seq) = engine.super_version_now();
        let view = Guard::into_inner(view);
        Iter::new(engine, view, None, seq, range, WantedPart::Head(self.handle.options.head_bytes()))
    }

    /// Deletes all keys with the prefix at once. Value objects that hold no other keys are deleted in the
    /// background without being read.
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn purge_prefix(&self, prefix: &[u8], durability: Durability) -> Result<(), Error> {
        let range = self.handle.id.prefix(prefix);
        let Some(op) = self.handle.delete_range(range)? else {
            return Ok(());
        };
        let engine = self.store.engine();
        leader::commit(engine, WriteRequest::new(vec![op], durability))?;
        #[cfg(test)]
        if engine.broken(crate::broken::Flaw::ValuesDroppedEarly) {
            crate::compact::sweep::sweep_too_early(engine)?;
        }
        engine.signal.request_rotation();
        Ok(())
    }

    /// Merges everything in the range to the bottom and frees stale data. Blocks.
    ///
    /// On return the space of keys deleted before the call is free, unless a snapshot or an iterator still
    /// reads them.
    /// # Errors
    /// `NoSpace`: not even one table fits. Damaged parts of the range stay as they are, and are no error.
    pub fn compact_range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<(), Error> {
        let engine = self.store.engine();
        if engine.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.handle.check()?;
        let range = self.handle.id.between(range);
        if range.is_empty() { Ok(()) } else { worker::compact_now(engine, range) }
    }
}

/// Atomic writes to any keyspaces.
pub struct Batch {
    store: Store,
    ops: Result<Vec<WriteOp>, Error>,
    memory_bytes: u64,
    is_essential: bool,
}

impl Batch {
    pub(crate) fn new(store: &Store) -> Batch {
        Batch { store: store.clone(), ops: Ok(Vec::new()), memory_bytes: 0, is_essential: false }
    }

    /// Lets the batch use the reserve of a full store, as deletes do. It is for small rows that are needed to
    /// open, close or empty the store. Has no effect above 1 MiB of log, or with a value for a value object.
    pub fn essential(&mut self) -> &mut Batch {
        self.is_essential = true;
        self
    }

    fn add(&mut self, op: impl FnOnce() -> Result<Option<WriteOp>, Error>) -> &mut Batch {
        if let Ok(ops) = &mut self.ops {
            match op() {
                Ok(Some(op)) => {
                    self.memory_bytes += op.room_bytes();
                    ops.push(op);
                }
                Ok(None) => {}
                Err(error) => self.ops = Err(error),
            }
        }
        self
    }

    /// Stores `value` under `key`. `commit` reports an invalid key or value.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: Bytes) -> &mut Batch {
        self.add(|| keyspace.handle.put(key, value).map(Some))
    }

    /// Deletes `key`.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) -> &mut Batch {
        self.add(|| keyspace.handle.delete(key).map(Some))
    }

    /// Deletes keys in [start, end).
    pub fn delete_range(&mut self, keyspace: &Keyspace, start: &[u8], end: &[u8]) -> &mut Batch {
        self.add(|| {
            for key in [start, end] {
                if key.len() > MAX_USER_KEY {
                    return Err(Error::KeyTooLong(key.len()));
                }
            }
            let id = keyspace.handle.id;
            keyspace.handle.delete_range(KeyRange { start: id.key(start), end: id.key(end) })
        })
    }

    /// Number of operations so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.as_ref().map_or(0, Vec::len)
    }

    /// Whether the batch has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the operations so far take in log and memtable: keys, small values and their
    /// overhead.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Commits all operations in their order. Blocks until `durability` is reached.
    /// # Errors
    /// As [`Keyspace::put`]; `BatchTooLarge` when [`Batch::memory_bytes`] exceeds [`Store::batch_bytes`]. On
    /// an error none of the operations took effect.
    pub fn commit(self, durability: Durability) -> Result<(), Error> {
        let store = self.store.clone();
        match self.into_write(durability)? {
            Some(write) => leader::commit_with_room(store.engine(), write),
            None => Ok(()),
        }
    }

    /// `None`: the batch is empty.
    fn into_write(self, durability: Durability) -> Result<Option<WriteRequest>, Error> {
        let ops = self.ops?;
        if ops.is_empty() {
            return Ok(None);
        }
        let mut write = WriteRequest::new(ops, durability);
        if self.is_essential {
            write = write.essential();
        }
        leader::check_size(self.store.engine(), &write)?;
        Ok(Some(write))
    }
}

/// Repeatable view of all keyspaces. Its versions are kept until its last clone is dropped.
#[derive(Clone)]
pub struct Snapshot {
    store: Store,
    held: Arc<HeldSnapshot>,
}

impl Snapshot {
    pub(crate) fn new(store: &Store) -> Snapshot {
        let held = Arc::new(store.engine().snapshots.hold());
        Snapshot { store: store.clone(), held }
    }

    /// The value of `key` at the snapshot. Blocks on reads.
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let engine = self.store.engine();
        let view = engine.super_version();
        let (key, kept) = (keyspace.handle.id.key(key), keyspace.handle.kept());
        get::get(engine, &view, self.held.seq, &key, &WantedPart::all(), kept)
    }

    /// The values of many keys at the snapshot, in the order of `keys`; see [`Keyspace::multi_get`].
    /// # Errors
    /// Per key, as [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Vec<Result<Option<Bytes>, Error>> {
        let engine = self.store.engine();
        keyspace.handle.multi_get(engine, &engine.super_version(), self.held.seq, keys)
    }

    /// Iterates over a range at the snapshot.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Iter {
        let engine = self.store.engine();
        let range = keyspace.handle.id.between(range);
        Iter::new(
            engine,
            Guard::into_inner(engine.super_version()),
            Some(self.held.clone()),
            self.held.seq,
            range,
            WantedPart::Head(keyspace.options().head_bytes()),
        )
    }
}

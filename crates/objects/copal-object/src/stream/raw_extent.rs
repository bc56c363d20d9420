//! Raw extents: a caller's own bytes in the first extent of a stream without frames.
//!
//! For data that must survive a kill and may be lost in a power failure. It is written through the page
//! cache, so that no device is waited for, at any offset, repeatedly and in place. No checksum and no order
//! covers these bytes. A stream's extents have none in the metadata either, so format and recovery do not
//! know raw extents: they find a stream without frames.
//!
//! Invariants
//! - Its pages are pinned while a [`RawExtent`] exists: after its stream was deleted they are not reused, and
//!   the extent returns `NotFound`. The stream takes no frames meanwhile.
//! - While the store is open its pages are used through the page cache only; the walk that looks for frames
//!   has read them before.
//! - A failed write ends all writing, like any other.
//!
//! Not here: meaning of the bytes, and which of them count after a power loss (the caller's checksums
//! decide).

use crate::{
    ObjectId, StoreError,
    format::run::PageRun,
    state::{StoreCore, StoreState},
    stream::{extent::extend_stream, frame_reader::FrameReader},
    tables::StreamEntry,
};
use copal_device::{AlignedBuf, DeviceError, Io, IoClass, IoKind};
use parking_lot::MutexGuard;
use std::{ops::Range, sync::Arc};

/// Unit of reads and writes without a page cache; a multiple of every logical block.
const PAGE: u64 = 4096;

/// See the module's text.
#[derive(Clone)]
pub struct RawExtent {
    pinned: Arc<PinnedRun>,
    at: u64,
    len: u64,
}

/// A raw extent and its stream. Shared by all copies of a [`RawExtent`]; the pin ends with the last of them.
struct PinnedRun {
    inner: Arc<StoreCore>,
    stream: ObjectId,
    run: PageRun,
    pin: u64,
}

impl Drop for PinnedRun {
    fn drop(&mut self) {
        self.inner.state.lock().streams.release_raw_extent(self.pin);
        self.inner.unpin(self.pin);
    }
}

impl PinnedRun {
    /// `NotFound` if the stream was deleted, even if another one has its id now.
    fn expect_stream(&self, state: &StoreState) -> Result<(), StoreError> {
        match first_run(state, self.stream) {
            Some(run) if run == self.run => Ok(()),
            _ => Err(StoreError::NotFound(self.stream)),
        }
    }
}

impl RawExtent {
    /// Length in bytes; a multiple of 4096.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Writes `bytes` at `offset`. They survive a kill when this returns. They survive a power loss only
    /// after [`RawExtent::flush`]; before it, any subset of their blocks may survive. With a page cache
    /// (`Store::has_page_cache`) this does not wait for the device; otherwise it does, for each block.
    /// # Errors
    /// `Device`: writing ends until the store is reopened. `NotFound`: the stream was deleted. `Fenced`,
    /// `ReadOnly`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        if self.pinned.inner.shape.read_only {
            return Err(StoreError::ReadOnly);
        }
        self.expect_writable()?;
        let written = self.range("cached write", offset, bytes.len()).and_then(|at| {
            match self.pinned.inner.device.page_cache() {
                Some(cache) => cache.write_cached(at, bytes),
                None => self.each_page(at, bytes.len(), |page, within, part| {
                    let device = &self.pinned.inner.device;
                    let mut buf = device.read_now(page, AlignedBuf::zeroed(PAGE as usize))?;
                    buf[within..within + part.len()].copy_from_slice(&bytes[part]);
                    device.write_through(page, buf).map(drop)
                }),
            }
        });
        written.map_err(|error| self.failed(error))
    }

    /// Fills `out` from `offset` on. Blocks on the device for bytes that are not in the page cache.
    /// # Errors
    /// `Device`. `NotFound`: the stream was deleted.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.pinned.expect_stream(&self.pinned.inner.state.lock())?;
        let at = self.range("cached read", offset, out.len())?;
        let read = match self.pinned.inner.device.page_cache() {
            Some(cache) => cache.read_cached(at, out),
            None => self.each_page(at, out.len(), |page, within, part| {
                let buf = self.pinned.inner.device.read_now(page, AlignedBuf::zeroed(PAGE as usize))?;
                let len = part.len();
                out[part].copy_from_slice(&buf[within..within + len]);
                Ok(())
            }),
        };
        read.map_err(StoreError::Device)
    }

    /// Splits a range of the device into pages: start of each page, offset in it, and range of the caller's
    /// bytes.
    fn each_page(
        &self,
        at: u64,
        len: usize,
        mut visit: impl FnMut(u64, usize, Range<usize>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < len {
            let from = at + done as u64;
            let within = (from % PAGE) as usize;
            let end = len.min(done + PAGE as usize - within);
            visit(from - within as u64, within, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Prepares the extent for repeated writes: where the device supports it, they wait for no other command
    /// on the same file. Blocks while the extent is read in.
    pub fn prepare(&self) {
        if let Some(cache) = self.pinned.inner.device.page_cache() {
            cache.prepare(self.at, self.len);
        }
    }

    /// Makes earlier writes survive a power loss. Blocks on the device.
    /// # Errors
    /// `Device`: writing ends until the store is reopened. `NotFound`: the stream was deleted. `Fenced`.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.expect_writable()?;
        let flush = Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit };
        let done = self.pinned.inner.device.submit(vec![flush]).wait();
        let flushed = done.into_iter().try_for_each(|done| done.result);
        flushed.map_err(|error| self.failed(error))
    }

    fn expect_writable(&self) -> Result<(), StoreError> {
        let state = self.pinned.inner.state.lock();
        state.writable()?;
        self.pinned.expect_stream(&state)
    }

    fn failed(&self, error: DeviceError) -> StoreError {
        let mut state = self.pinned.inner.state.lock();
        state.fence.fail(error.clone());
        StoreError::Device(error)
    }

    /// Device offset of `len` bytes at `offset`.
    fn range(&self, op: &'static str, offset: u64, len: usize) -> Result<u64, DeviceError> {
        let len = len as u64;
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            Ok(self.at + offset)
        } else {
            Err(DeviceError::OutOfRange { op, at: offset, len })
        }
    }
}

impl std::fmt::Debug for RawExtent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawExtent").field("len", &self.len).finish_non_exhaustive()
    }
}

/// See `Store::raw_extent`.
pub(crate) fn raw_extent(
    store: &Arc<StoreCore>,
    stream: ObjectId,
    bytes: u64,
) -> Result<Option<RawExtent>, StoreError> {
    // A frame reader reports objects that are no streams.
    drop(FrameReader::new(store, stream, crate::FramePos(0))?);
    let mut state = store.state.lock();
    let run = match first_run(&state, stream) {
        Some(run) => run,
        // Frames that ride leave their stream no space of its own.
        None if store.shape.read_only || bytes == 0 || state.space.placement().frames_ride() => {
            return Ok(None);
        }
        None => take_run(store, &mut state, stream, bytes)?,
    };
    let pin = state.space.pin_lasting(vec![run]);
    state.streams.hold_raw_extent(pin, stream.0, run);
    drop(state);
    let (at, len) = (store.shape.byte(run.at), store.shape.byte(run.pages.into()));
    let pinned = Arc::new(PinnedRun { inner: Arc::clone(store), stream, run, pin });
    Ok(Some(RawExtent { pinned, at, len }))
}

/// Allocates the first extent of a stream: space that was written before, or zeros.
fn take_run(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    stream: ObjectId,
    bytes: u64,
) -> Result<PageRun, StoreError> {
    let pages = bytes.div_ceil(store.shape.page_bytes as u64);
    let pages = u32::try_from(pages).map_err(|_| StoreError::TooLarge)?;
    loop {
        state.writable()?;
        if let Some(run) = first_run(state, stream) {
            return Ok(run);
        }
        if state.tables.stream(stream.0).is_none() {
            return Err(StoreError::NotFound(stream));
        }
        extend_stream(store, state, stream.0, pages, 0)?;
    }
}

fn first_run(state: &StoreState, stream: ObjectId) -> Option<PageRun> {
    let stream: &StreamEntry = state.tables.stream(stream.0)?;
    stream.pieces.first().map(|piece| piece.run)
}

#[cfg(test)]
mod tests {
    use crate::{
        Ack, CreateOptions, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, Store, StoreError, Txn,
    };
    use copal_device::{
        Device,
        fault::{Fault, FaultDevice, WriteFault},
    };
    use std::sync::Arc;

    const LOG: ObjectId = ObjectId(9);

    fn open(device: &Arc<FaultDevice>) -> Store {
        let device: Arc<dyn Device> = device.clone();
        Store::open(device, &OpenOptions::default()).unwrap().0
    }

    fn store_with_a_stream() -> (Arc<FaultDevice>, Store) {
        let device = FaultDevice::new(64 << 20, 3);
        let dynamic: Arc<dyn Device> = device.clone();
        Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
        let store = open(&device);
        let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
        let txn = Txn::new().create(LOG, opts);
        store.commit(txn, Ack::Durable).wait().unwrap();
        (device, store)
    }

    fn read(store: &Store, offset: u64, len: usize) -> Vec<u8> {
        let extent = store.raw_extent(LOG, 0).unwrap().unwrap();
        let mut out = vec![0xee; len];
        extent.read(offset, &mut out).unwrap();
        out
    }

    #[test]
    fn a_place_survives_a_kill_with_its_bytes_and_the_store_checks_clean() {
        let (device, store) = store_with_a_stream();
        assert!(store.raw_extent(LOG, 0).unwrap().is_none(), "nothing was asked for");
        let extent = store.raw_extent(LOG, 300_000).unwrap().unwrap();
        assert!(extent.len_bytes() >= 300_000);
        store.commit(Txn::new(), Ack::Durable).wait().unwrap();
        extent.write(5000, b"waiting").unwrap();
        let device = device.reopen();
        drop((extent, store));
        for _ in 0..3 {
            let store = open(&device);
            assert_eq!(read(&store, 4999, 9), b"\0waiting\0");
            let report = store.check(&crate::CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "{:?}", report.damages);
            store.close().unwrap();
        }
    }

    /// Symptom: a caller with the raw extent of a deleted stream wrote into the pages of the object that had
    /// them next.
    /// Cause: a raw extent was only an address and a length, which were not checked again.
    /// Fix: its pages stay pinned as long as the raw extent exists, which reports that its stream was
    /// deleted. A stream takes no frames over it.
    #[test]
    fn a_place_ends_with_its_stream_and_never_reaches_into_another_object() {
        let (_device, store) = store_with_a_stream();
        let extent = store.raw_extent(LOG, 4 << 20).unwrap().unwrap();
        let frame = store.append_frame(LOG, b"frame".as_slice().into(), None, Ack::Ordered);
        assert!(matches!(frame.wait(), Err(StoreError::InUse(LOG))));
        let commit = |ops| {
            let txn = Txn::new().ops(ops);
            store.commit(txn, Ack::Durable).wait().map(drop)
        };
        commit(vec![Op::Delete { id: LOG }]).unwrap();
        // All free pages are used again; objects that do not fit are refused.
        for id in (100..160).map(ObjectId) {
            let opts = CreateOptions::default();
            let data = vec![id.0 as u8; 1 << 20].into();
            let ops = vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }];
            if commit(ops).is_err() {
                break;
            }
        }
        for _ in 0..2 {
            assert!(matches!(extent.write(0, &[0xee; 1 << 20]), Err(StoreError::NotFound(LOG))));
            assert!(matches!(extent.read(0, &mut [0; 9]), Err(StoreError::NotFound(LOG))));
            assert!(matches!(extent.flush(), Err(StoreError::NotFound(LOG))));
            // The same id, for another stream.
            let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
            let _ = commit(vec![Op::Create { id: LOG, opts }]);
        }
        let looked = crate::CheckOptions { data: true, repair: false };
        let report = store.check(&looked).unwrap();
        assert!(report.is_clean(), "{:?}", report.damages);
        let held = store.space().quarantine_bytes;
        assert!(held >= 4 << 20, "the pages are pinned: {held}");
        drop(extent);
        store.commit(Txn::new(), Ack::Durable).wait().unwrap();
        assert!(store.space().quarantine_bytes < 4 << 20);
    }

    #[test]
    fn nothing_is_written_outside_or_after_a_failure() {
        let (device, store) = store_with_a_stream();
        let extent = store.raw_extent(LOG, 8192).unwrap().unwrap();
        store.commit(Txn::new(), Ack::Durable).wait().unwrap();
        device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
        assert!(matches!(extent.write(0, b"x"), Err(StoreError::Device(_))));
        assert!(matches!(extent.write(0, b"x"), Err(StoreError::Fenced)));
        let fenced = store.commit(Txn::new(), Ack::Ordered).wait();
        assert!(fenced.is_err(), "a store that lost a write takes no more");
        let store = open(&device.reopen());
        let extent = store.raw_extent(LOG, 0).unwrap().unwrap();
        assert!(extent.write(extent.len_bytes() - 1, b"xy").is_err());
    }

    #[test]
    fn only_a_stream_has_a_place() {
        let (_device, store) = store_with_a_stream();
        let missing = store.raw_extent(ObjectId(77), 4096);
        assert!(matches!(missing, Err(StoreError::NotFound(_))));
        let create = Op::Create { id: ObjectId(10), opts: CreateOptions::default() };
        let txn = Txn::new().op(create);
        store.commit(txn, Ack::Ordered).wait().unwrap();
        let plain = store.raw_extent(ObjectId(10), 4096);
        assert!(matches!(plain, Err(StoreError::WrongKind(_))));
    }
}

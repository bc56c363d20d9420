//! Devices below the object store.
#![allow(missing_docs, unused_variables, clippy::todo)]
use std::sync::Arc;

/// Importance of an I/O: `Commit` first, then `Foreground`; `Background` yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Commit,
    Foreground,
    Background,
}

/// Owned, aligned, zero-initialised buffer (4096-byte alignment). Moves into an I/O and back.
pub struct AlignedBuf {
    _p: (),
}
impl AlignedBuf {
    pub fn zeroed(len: usize) -> AlignedBuf {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}
impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        todo!()
    }
}

pub struct Geometry {
    pub size: u64,
    pub logical_block: u32,
    pub dma_alignment: u32,
    pub max_io: u32,
    pub volatile_cache: bool,
    pub fua: bool,
    pub discard_unit: u32,
}

pub enum IoKind {
    Read(AlignedBuf),
    Write { buf: AlignedBuf, fua: bool },
    Flush,
    Discard(u64),
    WriteZeroes(u64),
}
pub struct Io {
    pub at: u64,
    pub kind: IoKind,
    pub class: Class,
}
/// What became of one `Io`; the buffer returns in either case.
pub struct IoDone {
    pub result: Result<(), DeviceError>,
    pub buf: Option<AlignedBuf>,
}

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error("{op} of {len} bytes at {at} failed: {source}")]
    Io {
        op: &'static str,
        at: u64,
        len: u64,
        source: Arc<std::io::Error>,
    },
    #[error("an earlier write or flush failed; reopen the store")]
    Poisoned,
    #[error("{op} of {len} bytes at {at} is outside the device or not aligned")]
    OutOfRange { op: &'static str, at: u64, len: u64 },
}

/// One value that arrives later: `.wait()` for threads, `Future` for any executor; dropping detaches.
pub struct Completion<T> {
    _t: std::marker::PhantomData<T>,
}
impl<T> Completion<T> {
    pub fn ready(value: T) -> Completion<T> {
        todo!()
    }
    pub fn wait(self) -> T {
        todo!()
    }
    pub fn try_take(&mut self) -> Option<T> {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub fua_writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub discard_bytes: u64,
    pub zeroes: u64,
    pub zero_bytes: u64,
}

pub trait Device: Send + Sync {
    fn geometry(&self) -> Geometry;
    /// No order among I/Os, within or across calls.
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>>;
    /// On the caller's thread, no hop.
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;
    /// On the caller's thread, durable when it returns.
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;
    /// Makes the device at least `size` bytes long; returns the new size. `Err` when it cannot grow.
    fn grow(&self, size: u64) -> Result<u64, DeviceError>;
    fn counters(&self) -> Counters;
    /// Memory and fault devices own no thread: runs the next pending event; false when idle.
    fn drive(&self) -> bool;
}

pub struct MemoryDevice;
impl MemoryDevice {
    pub fn new(size: u64) -> Arc<dyn Device> {
        todo!()
    }
}
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    pub create_size: Option<u64>,
    pub read_only: bool,
    pub force_pread: bool,
    pub allow_cow: bool,
    pub unsafe_volatile: bool,
}
/// Opens a preallocated file or a block device: io_uring + O_DIRECT, pread/pwrite when the ring is refused.
pub fn open_file(path: &std::path::Path, options: &FileOptions) -> Result<Arc<dyn Device>, OpenError> {
    todo!()
}
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is in use by another process; wait for it to finish")]
    Locked { path: String },
}

//! The `Device` trait: contract of all devices.
//!
//! Invariants
//! - I/Os have no order, within a call or across calls; a caller that needs an order waits for completions.
//! - Every I/O completes exactly once and returns its buffer, also when it fails.
//! - `at` and length are multiples of the logical block; anything else is `OutOfRange` and has no effect.

pub(crate) mod clock;
pub(crate) mod tally;

use crate::completion::CompletionDriver;
use crate::{AlignedBuf, Completion, DeviceClock, DeviceError};
use std::sync::Arc;

/// Priority of an I/O: `Commit`, then `Foreground`, then `Background`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// A commit waits for it.
    Commit,
    /// A read or write of a caller waits for it.
    Foreground,
    /// No caller waits: flushes of memtables, merges, scrubbing.
    Background,
}

/// Rules for writes to a device that is divided into zones (SMR disks, ZNS drives).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZonedModel {
    /// No zones, or none that the host sees.
    #[default]
    None,
    /// Any write works; a write at the end of its zone is cheaper.
    HostAware,
    /// A write works at the end of its zone only.
    HostManaged,
}

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Current bytes of the device; only [`Device::grow`] and [`Device::cut`] change it.
    pub size: u64,
    /// Smallest unit that the device writes atomically, in bytes; a power of two.
    pub logical_block: u32,
    /// Alignment of buffers in memory, in bytes; [`AlignedBuf`] satisfies it.
    pub dma_alignment: u32,
    /// Longest single I/O in bytes; the caller splits longer ones.
    pub max_io: u32,
    /// The device may lose a completed write before a flush.
    pub volatile_cache: bool,
    /// `fua` is one command; otherwise the kernel issues a write and a flush.
    pub fua: bool,
    /// Granularity of discards in bytes; 0 if the device takes none.
    pub discard_unit: u32,
    /// Discarded and cut-off ranges go back to the host, which may use them for other files. Call
    /// [`Device::reserve`] before writing there again.
    pub gives_back: bool,
    /// Rules of its zones.
    pub zoned: ZonedModel,
    /// Bytes of a zone; 0 without zones.
    pub zone_bytes: u64,
    /// A command at another place waits for a turning disk: reading through a gap costs less than a second
    /// command.
    pub rotational: bool,
}

/// Kind of an I/O, with its data.
#[derive(Debug)]
pub enum IoKind {
    /// Fills the whole buffer.
    Read(AlignedBuf),
    /// Writes the whole buffer; with `fua` it is durable when it completes.
    Write {
        /// The bytes.
        buf: AlignedBuf,
        /// Durable on completion.
        fua: bool,
    },
    /// Makes all writes durable that completed before this flush was submitted. `at` is not used.
    Flush,
    /// Discards this many bytes from `at` on; they read as anything from now on. A hint: it may have no
    /// effect.
    Discard(u64),
    /// Writes this many zero bytes from `at` on. They are really written, so later overwrites change no file
    /// metadata.
    WriteZeroes(u64),
}

impl IoKind {
    /// Name of the kind, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            IoKind::Read(_) => "read",
            IoKind::Write { .. } => "write",
            IoKind::Flush => "flush",
            IoKind::Discard(_) => "discard",
            IoKind::WriteZeroes(_) => "write zeroes",
        }
    }

    /// Number of affected bytes; 0 for a flush.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self {
            IoKind::Read(buf) | IoKind::Write { buf, .. } => buf.len() as u64,
            IoKind::Flush => 0,
            IoKind::Discard(len) | IoKind::WriteZeroes(len) => *len,
        }
    }

    /// The buffer, so that the caller gets it back.
    #[must_use]
    pub fn into_buf(self) -> Option<AlignedBuf> {
        match self {
            IoKind::Read(buf) | IoKind::Write { buf, .. } => Some(buf),
            IoKind::Flush | IoKind::Discard(_) | IoKind::WriteZeroes(_) => None,
        }
    }
}

/// One command to a device.
#[derive(Debug)]
pub struct Io {
    /// First byte.
    pub at: u64,
    /// Kind of the command.
    pub kind: IoKind,
    /// Its priority.
    pub class: IoClass,
}

/// Result of one `Io`, with its buffer in either case.
#[derive(Debug)]
pub struct IoDone {
    /// Success or the error.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read or write.
    pub buf: Option<AlignedBuf>,
}

/// Commands and bytes that reached the device since it was opened: the cost unit of the object layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Read commands.
    pub reads: u64,
    /// Bytes they read.
    pub read_bytes: u64,
    /// Write commands, `fua` or not.
    pub writes: u64,
    /// Bytes they wrote.
    pub write_bytes: u64,
    /// Number of `writes` that were durable on completion.
    pub fua_writes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Discard commands.
    pub discards: u64,
    /// Bytes they discarded.
    pub discard_bytes: u64,
    /// Write-zeroes commands.
    pub zeroes: u64,
    /// Bytes they zeroed.
    pub zero_bytes: u64,
}

impl std::ops::Sub for DeviceCounters {
    type Output = DeviceCounters;

    /// Difference since `earlier`.
    fn sub(self, earlier: DeviceCounters) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            fua_writes: self.fua_writes - earlier.fua_writes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            discard_bytes: self.discard_bytes - earlier.discard_bytes,
            zeroes: self.zeroes - earlier.zeroes,
            zero_bytes: self.zero_bytes - earlier.zero_bytes,
        }
    }
}

/// Byte access to a device through the kernel's page cache: any range, not only whole blocks. A write
/// survives a kill of the process (C8), and no device is waited for.
///
/// While the device is open, each page of 4 KiB is accessed either this way or by the other commands, never
/// both.
pub trait PageCache: Send + Sync {
    /// Prepares the range, whole pages of 4 KiB, for repeated cached writes. Where possible these then wait
    /// for no other command on the device. Only the last prepared range counts. Blocks while the range is
    /// read in.
    fn prepare(&self, _at: u64, _len: u64) {}

    /// Writes `bytes` at `at`, on the caller's thread. Blocks on the device if the kernel must read a page in
    /// or has too many dirty pages. Outside the prepared range it also waits for other commands on the same
    /// file.
    /// # Errors
    /// `Io`: the device is poisoned from now on. `Poisoned`, `OutOfRange`, `ReadOnly`.
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Fills `out` from `at` on, on the caller's thread. Blocks on the device for pages that are not in
    /// memory.
    /// # Errors
    /// `Io`, `OutOfRange`. A poisoned device still reads.
    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;
}

/// A block device, a preallocated file, or an emulation of one. The crate's module text has the crash
/// contract.
pub trait Device: Send + Sync {
    /// Current properties of the device.
    fn geometry(&self) -> Geometry;

    /// Starts `ios`; the completion delivers all results together. I/Os have no order, within or across
    /// calls.
    /// Blocks only while the device's queue is full, and never when called from a completion's hook.
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>>;

    /// Reads the whole of `buf` from `at`, on the caller's thread, without the queue.
    /// # Errors
    /// `Io`: this range is damaged. `OutOfRange`. A poisoned device still reads.
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;

    /// Like [`Device::read_now`], with one retry: a single error is not damage. For reads while a store is
    /// opened, where an error decides which data counts.
    /// # Errors
    /// As [`Device::read_now`].
    fn read_again(&self, at: u64, len: usize) -> Result<AlignedBuf, DeviceError> {
        self.read_now(at, AlignedBuf::zeroed(len)).or_else(|error| match error {
            DeviceError::Io { .. } => self.read_now(at, AlignedBuf::zeroed(len)),
            error => Err(error),
        })
    }

    /// Writes `buf` at `at` on the caller's thread. It is durable when the call returns; earlier writes are
    /// not.
    /// # Errors
    /// `Io`: the device is poisoned from now on. `Poisoned`, `OutOfRange`, `ReadOnly`.
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;

    /// Makes the device at least `size` bytes long; returns the new size. New bytes read as zeros, but their
    /// space may be unwritten. The size is durable after the next flush.
    /// # Errors
    /// `CannotGrow`: it keeps its size, nothing is poisoned.
    fn grow(&self, size: u64) -> Result<u64, DeviceError>;

    /// Whether this kind of device can grow, if its host allows it. Does not block.
    fn can_grow(&self) -> bool {
        true
    }

    /// Shortens the device to `size` bytes where possible, and returns the resulting length. The bytes beyond
    /// are lost, and a command there is `OutOfRange`. The caller has no command in flight there. Durable
    /// after the next flush.
    /// # Errors
    /// `Io`: it keeps its size. `Poisoned`, `ReadOnly`.
    fn cut(&self, _size: u64) -> Result<u64, DeviceError> {
        Ok(self.geometry().size)
    }

    /// Allocates space for a discarded range, so that a write there cannot fail on a full host. Its bytes may
    /// read as anything. Blocks on the file system.
    /// # Errors
    /// `CannotGrow`: some of the range may have space; nothing is poisoned. `OutOfRange`, `Poisoned`,
    /// `ReadOnly`, `Io`.
    fn reserve(&self, _at: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Commands and bytes that reached the device since it was opened.
    fn counters(&self) -> DeviceCounters;

    /// Runs the next pending event of a device without a thread. `false` when idle, and always on real
    /// devices.
    fn drive(&self) -> bool;

    /// The clock of the device's times. A device that wraps another one passes on that one's clock.
    fn clock(&self) -> DeviceClock {
        DeviceClock::wall()
    }

    /// Access through the kernel's page cache, if the device has it.
    fn page_cache(&self) -> Option<&dyn PageCache> {
        None
    }

    /// Waits until every submitted I/O is answered and the hooks have returned, so that hooks hold nothing
    /// any more. Called before a device is given up. Returns at once when called from a hook.
    fn wait_idle(&self) {}

    /// Name of the implementation: "memory", "io_uring", "thread pool". For display.
    fn engine(&self) -> &'static str {
        "memory"
    }

    /// Driver for completions that end by this device's I/Os; pass it to [`Completion::pair`]. `None` for
    /// devices that complete by themselves.
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        None
    }
}

/// `Ok` if a range is aligned and inside the device.
pub(crate) fn check_range(
    geometry: &Geometry,
    op: &'static str,
    at: u64,
    len: u64,
) -> Result<(), DeviceError> {
    let block = u64::from(geometry.logical_block);
    let aligned = at.is_multiple_of(block) && len.is_multiple_of(block) && len > 0;
    let inside = at.checked_add(len).is_some_and(|end| end <= geometry.size);
    if aligned && inside { Ok(()) } else { Err(DeviceError::OutOfRange { op, at, len }) }
}

/// `Ok` if a range is inside the device; it need not be aligned.
pub(crate) fn check_inside(
    geometry: &Geometry,
    op: &'static str,
    at: u64,
    len: u64,
) -> Result<(), DeviceError> {
    match at.checked_add(len) {
        Some(end) if end <= geometry.size => Ok(()),
        _ => Err(DeviceError::OutOfRange { op, at, len }),
    }
}

/// Like [`check_range`], for a whole command; flushes are always in range.
pub(crate) fn check_io(geometry: &Geometry, io: &Io) -> Result<(), DeviceError> {
    match &io.kind {
        IoKind::Flush => Ok(()),
        kind => {
            let len = kind.len_bytes();
            let buffered = matches!(kind, IoKind::Read(_) | IoKind::Write { .. });
            if buffered && len > u64::from(geometry.max_io) {
                return Err(DeviceError::OutOfRange { op: kind.name(), at: io.at, len });
            }
            check_range(geometry, kind.name(), io.at, len)
        }
    }
}

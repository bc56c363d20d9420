//! The seam: what every device does.
//!
//! Invariants
//! - I/Os have no order, within a call or across calls; whoever needs one waits for completions.
//! - Every I/O completes exactly once and gives its buffer back, also when it fails.
//! - `at` and length are multiples of the logical block; anything else is `OutOfRange` and touches nothing.

use crate::completion::CompletionDriver;
use crate::{AlignedBuf, Completion, DeviceError};
use std::sync::Arc;

/// Importance of an I/O: `Commit` first, then `Foreground`; `Background` yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// Somebody's commit waits for it.
    Commit,
    /// Somebody's read or write waits for it.
    Foreground,
    /// Nobody waits: flushes of memtables, merges, scrubbing.
    Background,
}

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the device now; changed by [`Device::grow`] and [`Device::cut`] only.
    pub size: u64,
    /// Smallest unit the device writes whole, in bytes; a power of two.
    pub logical_block: u32,
    /// Alignment of buffers in memory, in bytes; [`AlignedBuf`] satisfies it.
    pub dma_alignment: u32,
    /// Longest single I/O in bytes; split what is longer.
    pub max_io: u32,
    /// A completed write may be lost until flushed.
    pub volatile_cache: bool,
    /// `fua` is one command; otherwise the kernel makes it a write and a flush.
    pub fua: bool,
    /// Granularity of discards in bytes; 0 when the device takes none.
    pub discard_unit: u32,
    /// What is discarded or cut off goes to somebody else, as with a file: [`Device::reserve`] before it is
    /// written again.
    pub gives_back: bool,
}

/// What an I/O does.
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
    /// Makes durable what completed before this was submitted. `at` is not used.
    Flush,
    /// Gives up this many bytes from `at` on; they read as anything from now on. A hint: it may do nothing.
    Discard(u64),
    /// Writes this many zero bytes from `at` on: really written, so that later overwrites change no metadata.
    WriteZeroes(u64),
}

impl IoKind {
    /// The word for it in errors.
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

    /// Bytes it covers; 0 for a flush.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self {
            IoKind::Read(buf) | IoKind::Write { buf, .. } => buf.len() as u64,
            IoKind::Flush => 0,
            IoKind::Discard(len) | IoKind::WriteZeroes(len) => *len,
        }
    }

    /// The buffer, to give it back.
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
    /// What to do there.
    pub kind: IoKind,
    /// How urgent it is.
    pub class: IoClass,
}

/// What became of one `Io`; the buffer returns in either case.
#[derive(Debug)]
pub struct IoDone {
    /// Whether it worked.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read or write.
    pub buf: Option<AlignedBuf>,
}

/// What reached the device since it was opened: the unit of account of this layer.
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
    /// Those of `writes` that were durable on completion.
    pub fua_writes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Discard commands.
    pub discards: u64,
    /// Bytes they gave up.
    pub discard_bytes: u64,
    /// Write-zeroes commands.
    pub zeroes: u64,
    /// Bytes they zeroed.
    pub zero_bytes: u64,
}

impl std::ops::Sub for DeviceCounters {
    type Output = DeviceCounters;

    /// What happened since `earlier`.
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

/// Bytes of a device by way of the kernel's page cache: any range, not only whole blocks. What is written is
/// there after a kill of the process (C8), and no device is waited for.
///
/// A page of 4 KiB is used either this way or by the other commands for as long as the device is open, never
/// both.
pub trait PageCache: Send + Sync {
    /// The bytes from `at` on, whole pages of 4 KiB, will be written again and again: from now on that waits
    /// for no other command on the device, where it can be had. The last such range counts. Blocks for
    /// reading it in.
    fn prepare(&self, _at: u64, _len: u64) {}

    /// Writes `bytes` at `at`, on the caller's thread. Blocks on the device when the kernel has to read a
    /// page in or has too much to write back, and outside of what was prepared also for other commands on the
    /// same file.
    /// # Errors
    /// `Io`: the device is poisoned from now on. `Poisoned`, `OutOfRange`, `ReadOnly`.
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Fills `out` from `at` on, on the caller's thread. Blocks on the device for what is not in memory.
    /// # Errors
    /// `Io`, `OutOfRange`. A poisoned device still reads.
    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;
}

/// A block device, a preallocated file, or something that behaves like one. See the crate's crash contract.
pub trait Device: Send + Sync {
    /// What the device is like now.
    fn geometry(&self) -> Geometry;

    /// Starts `ios`; they complete together. No order among I/Os, within or across calls.
    /// Blocks only while the device's queue is full, and never when called from a completion's hook.
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>>;

    /// Reads the whole of `buf` from `at`, on the caller's thread, without a hop.
    /// # Errors
    /// `Io`: this range is damaged. `OutOfRange`. A poisoned device still reads.
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;

    /// As [`Device::read_now`], and once more where that failed: a device that errs once is not damaged. For
    /// what is read while a store is opened, where an error decides what counts.
    /// # Errors
    /// As [`Device::read_now`].
    fn read_again(&self, at: u64, len: usize) -> Result<AlignedBuf, DeviceError> {
        self.read_now(at, AlignedBuf::zeroed(len)).or_else(|error| match error {
            DeviceError::Io { .. } => self.read_now(at, AlignedBuf::zeroed(len)),
            error => Err(error),
        })
    }

    /// Writes `buf` at `at` on the caller's thread; durable when it returns (and nothing earlier with it).
    /// # Errors
    /// `Io`: the device is poisoned from now on. `Poisoned`, `OutOfRange`, `ReadOnly`.
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError>;

    /// Makes the device at least `size` bytes long; returns the new size. New bytes read as zeros but are not
    /// yet written space. The size is durable after the next flush.
    /// # Errors
    /// `CannotGrow`: it keeps its size, nothing is poisoned.
    fn grow(&self, size: u64) -> Result<u64, DeviceError>;

    /// Whether the device is of a kind that grows, as far as its host lets it. Does not block.
    fn can_grow(&self) -> bool {
        true
    }

    /// Makes the device `size` bytes long where it can, and returns how long it is then: what lay behind is
    /// gone, and a command that reaches there is `OutOfRange`. The caller has none under way there. Durable
    /// after the next flush.
    /// # Errors
    /// `Io`: it keeps its size. `Poisoned`, `ReadOnly`.
    fn cut(&self, _size: u64) -> Result<u64, DeviceError> {
        Ok(self.geometry().size)
    }

    /// Has space for all of a range that was discarded, so that a write there cannot find the host full. Its
    /// bytes may read as anything. Blocks on the file system.
    /// # Errors
    /// `CannotGrow`: some of it may have space; nothing is poisoned. `OutOfRange`, `Poisoned`, `ReadOnly`,
    /// `Io`.
    fn reserve(&self, _at: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// What reached the device since it was opened.
    fn counters(&self) -> DeviceCounters;

    /// Runs the next pending event of a device without a thread; `false` when idle, and always on real
    /// devices.
    fn drive(&self) -> bool;

    /// The way through the kernel's page cache, where there is one.
    fn page_cache(&self) -> Option<&dyn PageCache> {
        None
    }

    /// Waits until everything that was submitted is answered and the hooks of the answers have returned: what
    /// they held is let go then. Called by who means to give the device up; from a hook it returns at once.
    fn wait_idle(&self) {}

    /// What does the work: "memory", "io_uring", "thread pool". For a person to read.
    fn engine(&self) -> &'static str {
        "memory"
    }

    /// What a waiter has to drive: give it to [`Completion::pair`] for completions that end by this device's
    /// I/Os. `None` for devices that complete by themselves.
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        None
    }
}

/// `Ok` when a range is aligned and inside the device.
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

/// `Ok` when a range is inside the device; it need not be aligned.
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

/// As [`check_range`], for a whole command; flushes are always in range.
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

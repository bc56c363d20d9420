//! Real devices: one preallocated file or a block device, with direct I/O.
//!
//! `submit` goes to an engine. The ring ([`uring`]) has a few threads beside it for flushes, discards
//! and zeroes. If the kernel refuses the ring, a thread pool does everything ([`pread`]). A single
//! read or durable write skips both and runs on the caller's thread.
//!
//! Paper: Draconis §4.2 proposes direct access past kernel and file system. The block layer stays here
//! (Arrakis needs a device for itself). The page cache is bypassed; so is the file system's metadata, on a
//! file whose space is written.

mod block;
mod filesystem;
mod geometry;
mod mapped;
mod open;
mod overlap;
mod pread;
mod queue;
mod target;
mod uring;

use crate::device::tally::IoTally;
use crate::device::{check_inside, check_io, check_range};
use crate::error::{DeviceError, DeviceOpenError};
use crate::{AlignedBuf, Completion, Device, DeviceCounters, Geometry, Io, IoDone, IoKind, PageCache};
pub use geometry::{DiskCommands, is_on_rotational_disk};
pub use overlap::{kernel_use, mounted_on, overlap_in_use, share_bytes};
use pread::ThreadPool;
use queue::{IoJob, JobQueue, JobReply, ResultBatch};
use std::path::Path;
use std::sync::Arc;
use target::FileTarget;
use uring::IoRing;

/// How [`open_file`] opens.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Create the file with this many reserved bytes; it must not exist. `None`: it must exist.
    pub create_size: Option<u64>,
    /// Remove the name of the created file at once: its space is free when it is closed, also after a kill.
    pub unnamed: bool,
    /// Share the file with other readers and write nothing.
    pub read_only: bool,
    /// Use the thread pool even when the kernel offers io_uring.
    pub force_pread: bool,
    /// Accept a copy-on-write file system (btrfs, ZFS), where preallocation promises nothing.
    pub allow_cow: bool,
    /// Accept a file system in memory (tmpfs), where nothing survives a reboot.
    pub unsafe_volatile: bool,
    /// Let discards punch holes into a file. The space goes back to the file system, and reusing it changes
    /// metadata inside a commit.
    pub punch_holes: bool,
}

/// Opens a preallocated file or a block device with io_uring and O_DIRECT, or with pread/pwrite if the kernel
/// refuses the ring. Blocks: it flushes possible writes of an earlier process.
/// # Errors
/// See [`DeviceOpenError`].
pub fn open_file(path: &Path, options: &FileOptions) -> Result<Arc<dyn Device>, DeviceOpenError> {
    let target = Arc::new(open::open(path, options)?);
    let tally = Arc::new(IoTally::default());
    let engine = FileEngine::start(&target, &tally, options.force_pread)
        .map_err(|source| DeviceOpenError::Io { path: path.display().to_string(), source })?;
    Ok(Arc::new(FileDevice { target, tally, engine }))
}

/// Threads beside a ring, for commands that the ring does not take.
const BESIDE: usize = 4;

enum FileEngine {
    Ring { ring: IoRing, beside: ThreadPool },
    Pool(ThreadPool),
}

impl FileEngine {
    fn start(
        target: &Arc<FileTarget>,
        tally: &Arc<IoTally>,
        force_pread: bool,
    ) -> std::io::Result<FileEngine> {
        if !force_pread {
            match IoRing::start(target, tally) {
                Ok(ring) => {
                    let beside = ThreadPool::start(target, tally, BESIDE)?;
                    return Ok(FileEngine::Ring { ring, beside });
                }
                Err(error) => tracing::info!(%error, "io_uring is refused here; using a pool of threads"),
            }
        }
        ThreadPool::start(target, tally, pread::THREADS).map(FileEngine::Pool)
    }

    fn queues(&self) -> Vec<&JobQueue> {
        match self {
            FileEngine::Ring { ring, beside } => vec![ring.queue(), beside.queue()],
            FileEngine::Pool(pool) => vec![pool.queue()],
        }
    }

    /// The queue that serves commands of this kind.
    fn queue(&self, kind: &IoKind) -> &JobQueue {
        match self {
            FileEngine::Ring { ring, .. } if uring::takes(kind) => ring.queue(),
            FileEngine::Ring { beside: pool, .. } | FileEngine::Pool(pool) => pool.queue(),
        }
    }
}

struct FileDevice {
    engine: FileEngine,
    target: Arc<FileTarget>,
    tally: Arc<IoTally>,
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        if ios.is_empty() {
            return Completion::ready(Vec::new());
        }
        let geometry = self.target.geometry();
        let (completer, completion) = Completion::pair(None);
        let mut alone = None;
        let mut batch = None;
        match ios.len() {
            1 => alone = Some(completer),
            len => batch = Some(ResultBatch::new(len, completer)),
        }
        for (place, io) in ios.into_iter().enumerate() {
            let reply = match (alone.take(), &batch) {
                (Some(completer), _) => JobReply::Alone(completer),
                (None, Some(batch)) => JobReply::Part(Arc::clone(batch), place),
                (None, None) => break,
            };
            match check_io(&geometry, &io) {
                Ok(()) => self.engine.queue(&io.kind).push(IoJob { io, reply }),
                Err(error) => reply.deliver(IoDone { result: Err(error), buf: io.kind.into_buf() }),
            }
        }
        completion
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.on_this_thread(at, IoKind::Read(buf))
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.on_this_thread(at, IoKind::Write { buf, fua: true })
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.target.grow(size)
    }

    fn can_grow(&self) -> bool {
        self.target.can_grow()
    }

    fn cut(&self, size: u64) -> Result<u64, DeviceError> {
        self.target.cut(size)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.target.geometry(), "reserve", at, len)?;
        self.target.reserve(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.tally.counters()
    }

    fn drive(&self) -> bool {
        false
    }

    fn engine(&self) -> &'static str {
        match self.engine {
            FileEngine::Ring { .. } => "io_uring",
            FileEngine::Pool(_) => "thread pool",
        }
    }

    fn wait_idle(&self) {
        let queues = self.engine.queues();
        // A hook may submit to the other queue.
        while queues.iter().any(|queue| queue.wait_idle()) {}
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.target.has_page_cache().then_some(self)
    }
}

impl PageCache for FileDevice {
    fn prepare(&self, at: u64, len: u64) {
        let inside = check_inside(&self.target.geometry(), "mapping", at, len);
        if inside.is_err() || self.target.may_write().is_err() {
            return;
        }
        if let Err(error) = self.target.map(at, len as usize) {
            tracing::info!(%error, "the range cannot be mapped; cached writes wait for other commands on the file");
        }
    }

    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        const OP: &str = "cached write";
        check_inside(&self.target.geometry(), OP, at, bytes.len() as u64)?;
        self.target.may_write()?;
        self.target.write_cached(at, bytes).map_err(|error| {
            let error = DeviceError::io(OP, at, bytes.len() as u64, error);
            self.target.poison(&error);
            error
        })
    }

    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        const OP: &str = "cached read";
        let len = out.len() as u64;
        check_inside(&self.target.geometry(), OP, at, len)?;
        let read = self.target.read_cached(at, out);
        read.map_err(|error| DeviceError::io(OP, at, len, error))
    }
}

impl FileDevice {
    fn on_this_thread(&self, at: u64, mut kind: IoKind) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.target.geometry(), kind.name(), at, kind.len_bytes())?;
        pread::run(&self.target, at, &mut kind)?;
        self.tally.count(&kind);
        match kind {
            IoKind::Read(buf) | IoKind::Write { buf, .. } => Ok(buf),
            IoKind::Flush | IoKind::Discard(_) | IoKind::WriteZeroes(_) => Ok(AlignedBuf::zeroed(0)),
        }
    }
}

#[cfg(test)]
mod tests;

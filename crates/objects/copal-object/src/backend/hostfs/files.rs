//! A directory as a device: the address space is (file, offset), one file per object.
//!
//! An address has a file's number in the high bits and an offset of 36 bits. File 0, `store`, holds
//! superblocks and journal at their usual places. The others are `objects/<number>`. I/O is buffered, on the
//! caller's thread. This is how a careful program uses a file system, so it is the control in measurements of
//! the other backend.
//!
//! Design: docs/design/object.md#files-in-a-directory
//! Invariants
//! - A flush syncs every file written since the last one, and the directory if a name was created or removed
//!   (C3).
//! - A flush answers only when the syncs of other threads that it relies on have ended too. It fails if one
//!   of them did.
//! - Unwritten ranges read as zeros, also in files that do not exist.
//! - A failed write or sync poisons the handle until it is reopened (C7).
//! - The first flush syncs every existing file: writes of a killed process are read next and must not vanish
//!   later.
//! - Only clean files are closed: a sync always happens on the handle that wrote.
//! - An admitted write finds blocks: if the host has none any more, the reserve releases some. Admission
//!   counts the host's free space, and of the reserve only the store's own part.
//!
//! Not here: which object has which file (`space`), the system calls (`directory`).

use copal_device::{
    AlignedBuf, Completion, Device, DeviceCounters, DeviceError, DeviceOpenError, Geometry, Io, IoDone,
    IoKind, PageCache, ZonedModel,
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::format::run::PageRun;

use super::{
    directory::{FILES_MAX, HostFile, NameSet, RealDirectory, StoreDirectory},
    syncs::FileSyncs,
};

/// Bits of an address for the offset in the file: 64 GiB.
pub(crate) const OFFSET_BITS: u32 = 36;
/// Largest file.
pub(crate) const FILE_BYTES: u64 = 1 << OFFSET_BITS;
/// Largest number of clean files kept open.
const OPEN_MAX: usize = 256;
const IO_BYTES_MAX: u32 = 1 << 20;
/// Bytes reserved for deletes on a full file system: their logs, tables and checkpoints. Less on a small file
/// system: an eighth of its free space.
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
/// Most bytes that may be admitted before the host is queried again.
const LOOK_BYTES: u64 = 4 << 20;
/// Least number of bytes that the reserve releases at once.
const RESERVE_STEP_BYTES: u64 = 1 << 20;

/// The files of one store.
pub(crate) struct HostFiles {
    directory: Box<dyn StoreDirectory>,
    read_only: bool,
    rotational: bool,
    inside: Mutex<FileTable>,
    /// Signals the end of a sync.
    synced: Condvar,
    /// A write found no block, and the reserve has not grown since. The free space that the file system
    /// reports is then not usable, as under a quota, or other programs have taken it.
    is_full: AtomicBool,
}

#[derive(Default)]
struct FileTable {
    open: HashMap<u32, Arc<dyn HostFile>>,
    written: BTreeSet<u32>,
    /// Files and names taken from `written` and `names_changed` whose sync has not ended.
    syncs: FileSyncs,
    /// A previous process may have been killed: any file may hold bytes that no sync covers (C5).
    inherited: bool,
    names_changed: bool,
    reserve_bytes: u64,
    /// The first failure of a write or sync.
    poisoned: Option<DeviceError>,
    counters: DeviceCounters,
}

impl FileTable {
    /// Takes numbers and handles of the files written since the last call.
    fn take_written(&mut self) -> (BTreeSet<u32>, Vec<Arc<dyn HostFile>>) {
        let numbers = std::mem::take(&mut self.written);
        let handles = numbers.iter().filter_map(|number| self.open.get(number).cloned()).collect();
        (numbers, handles)
    }
}

impl FileTable {
    /// `Err` after a failed write or sync. A full host is reported to every thread.
    fn expect_unpoisoned(&self) -> Result<(), DeviceError> {
        match &self.poisoned {
            None => Ok(()),
            Some(error) if error.is_host_full() => Err(error.clone()),
            Some(_) => Err(DeviceError::Poisoned),
        }
    }

    /// Closes all files without unsynced writes; returns whether there were any.
    fn close_clean(&mut self) -> bool {
        let (before, written) = (self.open.len(), &self.written);
        self.open.retain(|number, _| written.contains(number));
        self.open.len() < before
    }
}

/// Whether the system has no descriptor left.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::MFILE | Errno::NFILE))
}

impl HostFiles {
    /// Creates the directories; an existing store is refused.
    pub(crate) fn create(dir: &Path) -> Result<Arc<HostFiles>, DeviceOpenError> {
        Ok(HostFiles::on(Box::new(RealDirectory::create(dir)?), false))
    }

    /// Opens the directory of a store and locks it: exclusively, or shared with other readers.
    pub(crate) fn open(dir: &Path, read_only: bool) -> Result<Arc<HostFiles>, DeviceOpenError> {
        let directory = RealDirectory::open(dir, read_only)?;
        Ok(HostFiles::on(Box::new(directory), read_only))
    }

    /// The files of any directory.
    pub(crate) fn on(directory: Box<dyn StoreDirectory>, read_only: bool) -> Arc<HostFiles> {
        let reserve_bytes = if read_only { 0 } else { directory.reserve_bytes() };
        let rotational = directory.is_rotational();
        Arc::new(HostFiles {
            directory,
            read_only,
            rotational,
            inside: Mutex::new(FileTable {
                reserve_bytes,
                inherited: !read_only,
                names_changed: !read_only,
                ..FileTable::default()
            }),
            synced: Condvar::new(),
            is_full: AtomicBool::new(false),
        })
    }

    /// Writable bytes: the free space of the host's file system, and the reserve. After a write that found no
    /// block the free space counts as zero until the reserve grows again; a quota is noticed in no other way.
    pub(crate) fn free_bytes(&self) -> u64 {
        if self.is_full() {
            self.refill();
        }
        let reserve_bytes = self.inside.lock().reserve_bytes;
        match self.is_full() {
            true => reserve_bytes,
            false => self.directory.free_bytes().saturating_add(reserve_bytes),
        }
    }

    /// Whether the host had no block for the last write that needed one.
    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Bytes that may be admitted before the host is queried again. Other programs write there too, and the
    /// reserve must then hold the admitted writes.
    pub(crate) fn look_bytes(&self) -> u64 {
        LOOK_BYTES.min(self.inside.lock().reserve_bytes / 2)
    }

    /// Refills the reserve, if the host has enough for it and as much again for other programs.
    pub(crate) fn refill(&self) {
        if self.read_only {
            return;
        }
        let mut inside = self.inside.lock();
        let free = self.directory.free_bytes();
        let have = inside.reserve_bytes;
        let whole = RESERVE_BYTES.min(free.saturating_add(have) / 8) & !(RESERVE_STEP_BYTES - 1);
        let wanted = match self.is_full() {
            true => whole.max(have + RESERVE_STEP_BYTES),
            false => whole,
        };
        if wanted <= have || free < 2 * (wanted - have) {
            return;
        }
        match self.directory.keep_reserve(wanted) {
            Ok(()) => {
                inside.reserve_bytes = wanted;
                self.is_full.store(false, Ordering::Release);
            }
            Err(error) => {
                tracing::info!(%error, "no reserve for deletes on a full file system")
            }
        }
    }

    /// Runs a call that may need blocks. While the host has none, the reserve releases some and the call is
    /// repeated.
    fn with_reserve<T>(&self, bytes: u64, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_full(&error) && self.spend(bytes) => {}
                other => return other,
            }
        }
    }

    /// Releases `bytes` of the reserve to the file system; `false` if the reserve is empty.
    fn spend(&self, bytes: u64) -> bool {
        let mut inside = self.inside.lock();
        let left = inside.reserve_bytes.saturating_sub(bytes.next_multiple_of(RESERVE_STEP_BYTES));
        if inside.reserve_bytes == 0 || self.directory.keep_reserve(left).is_err() {
            return false;
        }
        tracing::info!(left_bytes = left, "the file system is full; the store uses its reserve");
        inside.reserve_bytes = left;
        self.is_full.store(true, Ordering::Release);
        true
    }

    /// Numbers of the existing object files, known or not.
    pub(crate) fn numbers(&self) -> io::Result<Vec<u32>> {
        Ok(self.directory.numbers()?.files)
    }

    /// Numbers that no new file can have: those of files and of other entries.
    pub(crate) fn numbers_taken(&self) -> io::Result<Vec<u32>> {
        let numbered = self.directory.numbers()?;
        Ok([numbered.files, numbered.others].concat())
    }

    /// Opens the file; `None` if it does not exist and is not to be made.
    fn file(&self, inside: &mut FileTable, number: u32, make: bool) -> io::Result<Option<Arc<dyn HostFile>>> {
        if let Some(file) = inside.open.get(&number) {
            return Ok(Some(Arc::clone(file)));
        }
        let opened = match self.directory.open(number, make) {
            Err(error) if is_out_of_descriptors(&error) && inside.close_clean() => {
                self.directory.open(number, make)
            }
            opened => opened,
        };
        let Some((file, is_new)) = opened? else {
            return Ok(None);
        };
        inside.names_changed |= is_new;
        if inside.open.len() >= OPEN_MAX {
            inside.close_clean();
        }
        inside.open.insert(number, Arc::clone(&file));
        Ok(Some(file))
    }

    fn make_file(&self, number: u32) -> io::Result<Arc<dyn HostFile>> {
        let made = self.with_reserve(4096, || self.file(&mut self.inside.lock(), number, true))?;
        made.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let (number, offset) = split(at);
        let file = self.file(&mut self.inside.lock(), number, false)?;
        let filled = match &file {
            Some(file) => file.read_at(buf, offset)?,
            None => 0,
        };
        buf[filled..].fill(0);
        Ok(())
    }

    /// The pages of `run`, which lies in one file, up to that file's end; `None` if there are none.
    pub(crate) fn clip(&self, run: PageRun, page_bytes: u64) -> Result<Option<PageRun>, DeviceError> {
        let at = run.at * page_bytes;
        let (number, offset) = split(at);
        let len = || match self.file(&mut self.inside.lock(), number, false)? {
            Some(file) => file.len(),
            None => Ok(0),
        };
        let len = len().map_err(|error| DeviceError::io("measure", at, 0, error))?;
        let left = len.saturating_sub(offset).div_ceil(page_bytes);
        let pages = left.min(run.pages.into()) as u32;
        Ok((pages > 0).then(|| PageRun::new(run.at, pages)))
    }

    fn write(&self, at: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let (number, offset) = split(at);
        let file = self.make_file(number)?;
        self.with_reserve(bytes.len() as u64, || file.write_at(bytes, offset))?;
        self.note_written(number, &file);
        if durable {
            self.sync(Some((number, &file)))?;
        }
        Ok(())
    }

    /// Called after the write, so that a later flush finds the file, on the handle that wrote.
    fn note_written(&self, number: u32, file: &Arc<dyn HostFile>) {
        let mut inside = self.inside.lock();
        inside.written.insert(number);
        inside.open.entry(number).or_insert_with(|| Arc::clone(file));
    }

    /// Syncs all unsynced writes. A file that is written again meanwhile is synced again by the next flush.
    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.sync_inherited()?;
        self.sync(None)
    }

    /// Makes writes durable, of file `only` or of all, and created and removed names.
    fn sync(&self, only: Option<(u32, &Arc<dyn HostFile>)>) -> io::Result<()> {
        let mut inside = self.inside.lock();
        let (numbers, files) = match only {
            Some((number, file)) => (BTreeSet::from([number]), vec![Arc::clone(file)]),
            None => inside.take_written(),
        };
        let names = std::mem::take(&mut inside.names_changed);
        let ticket = inside.syncs.begin(numbers, names);
        drop(inside);
        let result = self.sync_now(&files, names);
        let mut inside = self.inside.lock();
        inside.syncs.end(ticket);
        let failed = |error: &io::Error| DeviceError::io("flush", 0, 0, error.kind().into());
        if let Err(error) = &result {
            inside.poisoned.get_or_insert_with(|| failed(error));
        }
        self.synced.notify_all();
        result?;
        // Files that another thread took for its sync are no longer listed here, and that thread may have
        // received the error.
        let others = inside.syncs.running();
        while inside.syncs.concern(&others, only.map(|(number, _)| number)) {
            self.synced.wait(&mut inside);
        }
        match &inside.poisoned {
            None => Ok(()),
            Some(error) if error.is_host_full() => Err(io::ErrorKind::StorageFull.into()),
            Some(_) => Err(io::Error::other("a write or sync of another thread failed")),
        }
    }

    fn sync_now(&self, files: &[Arc<dyn HostFile>], names: bool) -> io::Result<()> {
        files.iter().try_for_each(|file| file.sync_data())?;
        if names {
            self.directory.sync_names(NameSet::Objects)?;
            self.directory.sync_names(NameSet::Store)?;
        }
        Ok(())
    }

    /// Once, before the first read (OBJ-11): syncs every existing file. A clean file costs an open and no
    /// I/O.
    fn sync_inherited(&self) -> io::Result<()> {
        if !self.inside.lock().inherited {
            return Ok(());
        }
        for number in std::iter::once(0).chain(self.numbers()?) {
            if let Some((file, _)) = self.directory.open(number, false)? {
                file.sync_data()?;
            }
        }
        self.inside.lock().inherited = false;
        Ok(())
    }

    /// Gives up a range: removes the file if the range covers it, otherwise punches a hole.
    fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        let (number, offset) = split(at);
        if offset == 0 && len == FILE_BYTES {
            let mut inside = self.inside.lock();
            inside.open.remove(&number);
            inside.written.remove(&number);
            inside.names_changed |= self.directory.remove(number)?;
            drop(inside);
        } else if let Some(file) = self.file(&mut self.inside.lock(), number, false)? {
            file.punch(offset, len);
        }
        self.refill();
        Ok(())
    }

    /// Writes zeros up to the end of the file; beyond it the file reads as zeros already.
    fn write_zeroes(&self, at: u64, len: u64) -> io::Result<()> {
        let (number, offset) = split(at);
        let file = self.make_file(number)?;
        let zeros = vec![0; IO_BYTES_MAX as usize];
        let end = file.len()?.min(offset + len);
        let mut from = offset;
        while from < end {
            let take = (end - from).min(zeros.len() as u64) as usize;
            self.with_reserve(take as u64, || file.write_at(&zeros[..take], from))?;
            from += take as u64;
        }
        self.note_written(number, &file);
        Ok(())
    }

    fn run(&self, at: u64, kind: &mut IoKind) -> Result<(), DeviceError> {
        let (op, len) = (kind.name(), kind.len_bytes());
        let flush = matches!(kind, IoKind::Flush);
        let changes = !matches!(kind, IoKind::Read(_));
        check(at, kind)?;
        if changes && self.read_only && !flush {
            return Err(DeviceError::ReadOnly);
        }
        if changes {
            self.inside.lock().expect_unpoisoned()?;
        }
        let result = match kind {
            IoKind::Read(buf) => self.read(at, buf),
            IoKind::Write { buf, fua } => self.write(at, buf, *fua),
            IoKind::Flush => self.flush(),
            IoKind::Discard(len) => self.discard(at, *len),
            IoKind::WriteZeroes(len) => self.write_zeroes(at, *len),
        };
        let mut inside = self.inside.lock();
        match result {
            Ok(()) => {
                count(&mut inside.counters, kind);
                Ok(())
            }
            Err(error) => {
                let error = DeviceError::io(op, at, len, error);
                if changes && !matches!(kind, IoKind::Discard(_)) {
                    inside.poisoned.get_or_insert_with(|| error.clone());
                }
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for HostFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostFiles").finish_non_exhaustive()
    }
}

impl Device for HostFiles {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: u64::from(FILES_MAX) << OFFSET_BITS,
            logical_block: 4096,
            dma_alignment: 512,
            max_io: IO_BYTES_MAX,
            volatile_cache: true,
            fua: false,
            discard_unit: 4096,
            gives_back: true,
            zoned: ZonedModel::None,
            zone_bytes: 0,
            rotational: self.rotational,
        }
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let done = ios.into_iter().map(|Io { at, mut kind, .. }| {
            let result = self.run(at, &mut kind);
            IoDone { result, buf: kind.into_buf() }
        });
        Completion::ready(done.collect())
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let mut kind = IoKind::Read(buf);
        self.run(at, &mut kind)?;
        Ok(kind.into_buf().unwrap_or_else(|| AlignedBuf::zeroed(0)))
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let mut kind = IoKind::Write { buf, fua: true };
        self.run(at, &mut kind)?;
        Ok(kind.into_buf().unwrap_or_else(|| AlignedBuf::zeroed(0)))
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        let have = self.geometry().size;
        if size <= have {
            return Ok(have);
        }
        Err(DeviceError::CannotGrow {
            size: have,
            wanted: size,
            reason: "a directory has no more file numbers",
        })
    }

    fn counters(&self) -> DeviceCounters {
        self.inside.lock().counters
    }

    fn drive(&self) -> bool {
        false
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        Some(self)
    }

    fn engine(&self) -> &'static str {
        "files"
    }
}

/// All I/O here goes through the page cache; these two methods take any range inside a file.
impl PageCache for HostFiles {
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        const OP: &str = "cached write";
        check_inside(OP, at, bytes.len())?;
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        self.inside.lock().expect_unpoisoned()?;
        self.write(at, bytes, false).map_err(|error| {
            let error = DeviceError::io(OP, at, bytes.len() as u64, error);
            let mut inside = self.inside.lock();
            inside.poisoned.get_or_insert_with(|| error.clone());
            error
        })
    }

    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        const OP: &str = "cached read";
        let len = out.len();
        check_inside(OP, at, len)?;
        let read = self.read(at, out);
        read.map_err(|error| DeviceError::io(OP, at, len as u64, error))
    }
}

fn check_inside(op: &'static str, at: u64, len: usize) -> Result<(), DeviceError> {
    let (number, offset) = split(at);
    let len = len as u64;
    if number < FILES_MAX && offset + len <= FILE_BYTES {
        Ok(())
    } else {
        Err(DeviceError::OutOfRange { op, at, len })
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn split(at: u64) -> (u32, u64) {
    ((at >> OFFSET_BITS) as u32, at & (FILE_BYTES - 1))
}

/// Ranges lie inside one file, on its 4 KiB blocks; buffers are no longer than one I/O.
fn check(at: u64, kind: &IoKind) -> Result<(), DeviceError> {
    let (op, len) = (kind.name(), kind.len_bytes());
    let (number, offset) = split(at);
    let most = match kind {
        IoKind::Flush => return Ok(()),
        IoKind::Read(_) | IoKind::Write { .. } => u64::from(IO_BYTES_MAX),
        IoKind::Discard(_) | IoKind::WriteZeroes(_) => FILE_BYTES,
    };
    let aligned = at.is_multiple_of(4096) && len.is_multiple_of(4096) && len > 0;
    let inside = number < FILES_MAX && len <= most && offset + len <= FILE_BYTES;
    if aligned && inside { Ok(()) } else { Err(DeviceError::OutOfRange { op, at, len }) }
}

fn count(counters: &mut DeviceCounters, kind: &IoKind) {
    let len = kind.len_bytes();
    match kind {
        IoKind::Read(_) => {
            (counters.reads, counters.read_bytes) = (counters.reads + 1, counters.read_bytes + len)
        }
        IoKind::Write { fua, .. } => {
            counters.writes += 1;
            counters.write_bytes += len;
            counters.fua_writes += u64::from(*fua);
        }
        IoKind::Flush => counters.flushes += 1,
        IoKind::Discard(_) => {
            counters.discards += 1;
            counters.discard_bytes += len;
        }
        IoKind::WriteZeroes(_) => {
            counters.zeroes += 1;
            counters.zero_bytes += len;
        }
    }
}

#[cfg(test)]
mod flush_tests;
#[cfg(test)]
mod tests;

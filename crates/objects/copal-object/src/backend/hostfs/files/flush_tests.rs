//! Flushes concurrent with syncs of other threads.
//!
//! Symptom: a flush was answered, and commits were acknowledged as durable, while another thread was still in
//! the `fdatasync` of the same files or in the `fsync` of their names. A flush of a file was also answered
//! after its sync had failed in the other thread.
//! Cause: a sync first takes files and names off the list of dirty ones; a second flush found nothing to do.
//! Fix: syncs in progress are listed too, and a flush answers when those that it relies on have ended.

use super::{
    super::directory::{HostFile, NameSet, NumberedNames, RealDirectory, StoreDirectory},
    *,
};
use copal_device::IoClass;
use std::sync::mpsc;

/// Object of a sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syncing {
    Data,
    Names,
}

/// Stops the first sync of one kind until the test decides its result.
struct Gate {
    what: Syncing,
    reached: mpsc::Sender<()>,
    end: mpsc::Receiver<io::Result<()>>,
}

#[derive(Clone, Default)]
struct Gates(Arc<Mutex<Option<Gate>>>);

impl Gates {
    fn pass(&self, what: Syncing) -> io::Result<()> {
        let gate = self.0.lock().take_if(|gate| gate.what == what);
        let Some(gate) = gate else { return Ok(()) };
        gate.reached.send(()).unwrap();
        gate.end.recv().unwrap()
    }
}

struct GatedDirectory {
    inner: RealDirectory,
    gates: Gates,
}

struct GatedFile {
    inner: Arc<dyn HostFile>,
    gates: Gates,
}

impl StoreDirectory for GatedDirectory {
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>> {
        let opened = self.inner.open(number, make)?;
        Ok(opened.map(|(inner, is_new)| {
            let gates = self.gates.clone();
            let file: Arc<dyn HostFile> = Arc::new(GatedFile { inner, gates });
            (file, is_new)
        }))
    }

    fn remove(&self, number: u32) -> io::Result<bool> {
        self.inner.remove(number)
    }

    fn sync_names(&self, names: NameSet) -> io::Result<()> {
        self.gates.pass(Syncing::Names)?;
        self.inner.sync_names(names)
    }

    fn numbers(&self) -> io::Result<NumberedNames> {
        self.inner.numbers()
    }

    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }

    fn reserve_bytes(&self) -> u64 {
        self.inner.reserve_bytes()
    }

    fn keep_reserve(&self, bytes: u64) -> io::Result<()> {
        self.inner.keep_reserve(bytes)
    }
}

impl HostFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_at(buf, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.inner.write_at(bytes, at)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gates.pass(Syncing::Data)?;
        self.inner.sync_data()
    }

    fn punch(&self, at: u64, len: u64) {
        self.inner.punch(at, len);
    }
}

fn submit(files: &HostFiles, at: u64, kind: IoKind) -> Result<(), DeviceError> {
    let class = IoClass::Commit;
    files.submit(vec![Io { at, kind, class }]).wait().remove(0).result
}

fn flush(files: &HostFiles) -> Result<(), DeviceError> {
    submit(files, 0, IoKind::Flush)
}

fn write(files: &HostFiles, number: u64, fua: bool) -> Result<(), DeviceError> {
    let mut buf = AlignedBuf::zeroed(4096);
    buf.fill(number as u8);
    submit(files, number << OFFSET_BITS, IoKind::Write { buf, fua })
}

/// Two new files. `first` runs and stops inside a sync of `what`; `second` runs meanwhile; then that sync
/// ends with `end`. Returns both answers, and whether the second came before the first.
fn beside(
    first: fn(&HostFiles) -> Result<(), DeviceError>,
    what: Syncing,
    second: fn(&HostFiles) -> Result<(), DeviceError>,
    end: io::Result<()>,
) -> (bool, [Result<(), DeviceError>; 2]) {
    let home = tempfile::tempdir().unwrap();
    let gates = Gates::default();
    let inner = RealDirectory::create(home.path()).unwrap();
    let directory = GatedDirectory { inner, gates: gates.clone() };
    let files = HostFiles::on(Box::new(directory), false);
    flush(&files).unwrap();
    write(&files, 5, false).unwrap();
    write(&files, 7, false).unwrap();
    let (reached, at_the_gate) = mpsc::channel();
    let (release, outcome) = mpsc::channel();
    *gates.0.lock() = Some(Gate { what, reached, end: outcome });
    std::thread::scope(|scope| {
        let one = scope.spawn(|| first(&files));
        at_the_gate.recv().unwrap();
        let other = scope.spawn(|| second(&files));
        // Either it answers, or it waits; a waiting thread takes the extra notification.
        while !other.is_finished() && !files.synced.notify_one() {
            std::thread::yield_now();
        }
        let early = other.is_finished();
        release.send(end).unwrap();
        (early, [one.join().unwrap(), other.join().unwrap()])
    })
}

fn waits(
    first: fn(&HostFiles) -> Result<(), DeviceError>,
    what: Syncing,
    second: fn(&HostFiles) -> Result<(), DeviceError>,
) {
    let (early, answers) = beside(first, what, second, Ok(()));
    assert!(!early, "it answered before the sync that it relies on");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let (early, answers) = beside(first, what, second, Err(io::Error::other("worn out")));
    assert!(!early);
    assert!(answers.iter().all(Result::is_err), "unsynced data is durable in no answer: {answers:?}");
    let (_, answers) = beside(first, what, second, Err(io::ErrorKind::StorageFull.into()));
    for answer in answers {
        assert!(answer.as_ref().is_err_and(DeviceError::is_host_full), "{answer:?}");
    }
}

#[test]
fn a_flush_waits_for_the_files_another_flush_syncs() {
    waits(flush, Syncing::Data, flush);
}

#[test]
fn a_flush_waits_for_the_names_another_flush_syncs() {
    waits(flush, Syncing::Names, flush);
}

#[test]
fn a_flush_waits_for_the_names_a_durable_write_syncs() {
    waits(|files| write(files, 9, true), Syncing::Names, flush);
}

#[test]
fn a_durable_write_waits_for_the_names_a_flush_syncs() {
    waits(flush, Syncing::Names, |files| write(files, 5, true));
}

#[test]
fn a_durable_write_waits_for_the_sync_of_its_file() {
    waits(flush, Syncing::Data, |files| write(files, 5, true));
}

#[test]
fn each_command_behind_one_that_found_no_space_names_the_full_host() {
    let home = tempfile::tempdir().unwrap();
    let gates = Gates::default();
    let inner = RealDirectory::create(home.path()).unwrap();
    let directory = GatedDirectory { inner, gates: gates.clone() };
    let files = HostFiles::on(Box::new(directory), false);
    write(&files, 5, false).unwrap();
    let (reached, _at_the_gate) = mpsc::channel();
    let (release, end) = mpsc::channel();
    let what = Syncing::Data;
    *gates.0.lock() = Some(Gate { what, reached, end });
    release.send(Err(io::ErrorKind::QuotaExceeded.into())).unwrap();
    for answer in [flush(&files), write(&files, 6, false), flush(&files), files.write_cached(0, b"x")] {
        assert!(answer.as_ref().is_err_and(DeviceError::is_host_full), "{answer:?}");
    }
}

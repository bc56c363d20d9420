//! Failures that a healthy disk does not show, on both engines.

use super::*;
use crate::IoClass;
use crate::file::target::TargetKind;

/// A device with a read-only descriptor that it takes for writable: every write fails.
fn unwritable(force_pread: bool) -> (tempfile::NamedTempFile, FileDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let readable = std::fs::File::open(file.path()).unwrap();
    (file, device_on(readable, force_pread))
}

/// A device of 1 MiB on a descriptor.
fn device_on(file: std::fs::File, force_pread: bool) -> FileDevice {
    let fd = file.into();
    let geometry = crate::memory::memory_geometry(1 << 20);
    let target = Arc::new(FileTarget::new(fd, TargetKind::File { punch_holes: false }, geometry, false));
    let tally = Arc::new(IoTally::default());
    let engine = FileEngine::start(&target, &tally, force_pread).unwrap();
    FileDevice { engine, target, tally }
}

fn io(at: u64, kind: IoKind) -> Vec<Io> {
    vec![Io { at, kind, class: IoClass::Commit }]
}

fn result(device: &FileDevice, at: u64, kind: IoKind) -> Result<(), DeviceError> {
    device.submit(io(at, kind)).wait().remove(0).result
}

fn a_write() -> IoKind {
    IoKind::Write { buf: AlignedBuf::zeroed(4096), fua: false }
}

#[test]
fn a_failed_write_poisons_writes_and_flushes_but_not_reads() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        assert!(result(&device, 0, IoKind::Flush).is_ok());
        assert_eq!(result(&device, 0, a_write()).unwrap_err().raw_os_error(), Some(libc::EBADF));
        for kind in [a_write(), IoKind::Flush, IoKind::WriteZeroes(4096), IoKind::Discard(4096)] {
            let name = kind.name();
            assert!(matches!(result(&device, 0, kind), Err(DeviceError::Poisoned)), "{name}");
        }
        let through = device.write_through(0, AlignedBuf::zeroed(4096));
        assert!(matches!(through, Err(DeviceError::Poisoned)));
        assert!(matches!(device.grow(2 << 20), Err(DeviceError::Poisoned)));
        assert!(result(&device, 0, IoKind::Read(AlignedBuf::zeroed(4096))).is_ok());
        assert_eq!(device.counters().writes, 0, "failed commands are not counted");
    }
}

#[test]
fn a_failed_durable_write_on_the_callers_thread_poisons_the_engine_too() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        let through = device.write_through(0, AlignedBuf::zeroed(4096));
        assert_eq!(through.unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert!(matches!(result(&device, 0, IoKind::Flush), Err(DeviceError::Poisoned)));
    }
}

/// Symptom: a store whose host ran full inside a write did not report it. Later commands answered that an
/// earlier one failed, and a data server reported a failed disk.
/// Cause: the device recorded that it was poisoned, but not the reason.
/// Fix: a full host is an error of its own, and every later command names it.
#[test]
fn a_host_that_is_full_is_named_by_every_later_command() {
    for force_pread in [false, true] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let device = device_on(full, force_pread);
        for kind in [a_write(), a_write(), IoKind::Flush, IoKind::WriteZeroes(4096)] {
            let error = result(&device, 0, kind).unwrap_err();
            assert!(error.is_host_full(), "{error}");
            assert!(error.to_string().ends_with("free space there, then reopen the store"));
        }
        let through = device.write_through(0, AlignedBuf::zeroed(4096));
        assert!(through.unwrap_err().is_host_full());
        assert!(device.grow(2 << 20).unwrap_err().is_host_full());
    }
}

#[test]
fn failed_zeroes_poison_as_well() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        assert!(result(&device, 0, IoKind::WriteZeroes(3 << 18)).is_err());
        assert!(matches!(result(&device, 0, a_write()), Err(DeviceError::Poisoned)));
    }
}

#[test]
fn a_read_beyond_the_end_of_a_shortened_file_is_damage_and_poisons_nothing() {
    for force_pread in [false, true] {
        let (file, device) = unwritable(force_pread);
        file.as_file().set_len(8192 + 100).unwrap();
        for at in [8192, 65536] {
            let error = result(&device, at, IoKind::Read(AlignedBuf::zeroed(4096))).unwrap_err();
            assert!(matches!(error, DeviceError::Io { op: "read", len: 4096, .. }), "{error}");
            assert!(device.read_now(at, AlignedBuf::zeroed(4096)).is_err());
        }
        assert!(result(&device, 0, IoKind::Flush).is_ok());
    }
}

/// A writable device of 1 MiB whose kernel moves one page at a time.
fn moving_pages(force_pread: bool) -> (tempfile::NamedTempFile, FileDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let device = device_on(file.reopen().unwrap(), force_pread);
    device.target.transfer_bytes_max.store(4096, std::sync::atomic::Ordering::Relaxed);
    (file, device)
}

fn pattern(len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + at / 4096) as u8 | 1);
    buf
}

#[test]
fn a_partial_transfer_continues_where_it_ended() {
    for force_pread in [false, true] {
        let (file, device) = moving_pages(force_pread);
        let wanted = pattern(10 * 4096);
        for (at, fua) in [(8192, false), (65536, true)] {
            let write = IoKind::Write { buf: pattern(wanted.len()), fua };
            assert!(result(&device, at, write).is_ok());
        }
        assert!(device.write_through(131_072, pattern(wanted.len())).is_ok());
        let content = std::fs::read(file.path()).unwrap();
        for at in [8192, 65536, 131_072] {
            assert!(content[at..at + wanted.len()] == wanted[..], "written at {at}");
            let read = IoKind::Read(AlignedBuf::zeroed(wanted.len()));
            let done = device.submit(io(at as u64, read)).wait().remove(0);
            assert!(done.result.is_ok() && done.buf.is_some_and(|buf| buf[..] == wanted[..]), "{at}");
            let read = device.read_now(at as u64, AlignedBuf::zeroed(wanted.len())).unwrap();
            assert!(read[..] == wanted[..], "{at}");
        }
        let counters = device.counters();
        let counts = (counters.reads, counters.writes);
        assert_eq!(counts, (6, 3), "a command counts once, in however many transfers");
    }
}

/// The part that is read before the end is no answer.
#[test]
fn a_read_that_ends_in_its_middle_is_an_error() {
    for (force_pread, pages_at_a_time) in [(false, true), (false, false), (true, true), (true, false)] {
        let (file, device) = moving_pages(force_pread);
        if !pages_at_a_time {
            device.target.transfer_bytes_max.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
        }
        assert!(result(&device, 0, IoKind::Write { buf: pattern(65536), fua: false }).is_ok());
        for len in [3 * 4096, 3 * 4096 + 512, 0] {
            file.as_file().set_len(len).unwrap();
            let error = result(&device, 0, IoKind::Read(AlignedBuf::zeroed(8 * 4096))).unwrap_err();
            let DeviceError::Io { op: "read", at: 0, len: 32768, source, .. } = &error else {
                panic!("{error:?}");
            };
            assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
            assert!(device.read_now(0, AlignedBuf::zeroed(8 * 4096)).is_err());
        }
        assert_eq!(device.counters().reads, 0, "no read has ended");
        assert!(result(&device, 0, IoKind::Flush).is_ok(), "damage of a range poisons nothing");
    }
}

#[test]
fn dropping_a_device_finishes_submitted_commands() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        let reads: Vec<_> =
            (0..200).map(|at| device.submit(io(at * 4096, IoKind::Read(AlignedBuf::zeroed(4096))))).collect();
        drop(device);
        for mut completion in reads {
            let done = completion.try_take().expect("everything has completed when the drop returns");
            assert!(done[0].result.is_ok());
        }
    }
}

/// The last handle may be dropped inside a hook, on the engine's own thread, which cannot join itself.
#[test]
fn a_device_may_be_dropped_by_its_own_hook() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        let device = Arc::new(device);
        let (completer, completion) = Completion::pair(None);
        let inner = Arc::clone(&device);
        let read = device.submit(io(0, IoKind::Read(AlignedBuf::zeroed(4096))));
        drop(device);
        read.on_complete(move |_| {
            drop(inner);
            completer.complete(());
        });
        completion.wait();
    }
}

#[test]
fn a_panicking_hook_poisons_the_device_and_the_engine_lives_on() {
    for force_pread in [false, true] {
        let (_file, device) = unwritable(force_pread);
        let caller = std::thread::current().id();
        // If the read completes before the hook is registered, the hook runs on this thread; then try another
        // read.
        while !matches!(result(&device, 0, IoKind::Flush), Err(DeviceError::Poisoned)) {
            let read = device.submit(io(0, IoKind::Read(AlignedBuf::zeroed(4096))));
            read.on_complete(move |_| {
                assert_eq!(std::thread::current().id(), caller, "a bug above");
            });
        }
        for _ in 0..20 {
            assert!(result(&device, 0, IoKind::Read(AlignedBuf::zeroed(4096))).is_ok());
        }
    }
}

/// A store to a page beyond the end of the file would be a SIGBUS.
#[test]
fn a_file_that_is_cut_off_below_a_mapping_is_an_error_and_ends_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    let options = FileOptions {
        create_size: Some(1 << 20),
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device = open_file(&path, &options).unwrap();
    let cache = device.page_cache().unwrap();
    cache.prepare(65536, 65536);
    cache.write_cached(65536, &[1; 65536]).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    let failed = cache.write_cached(70_000, &[2; 100]).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EFAULT), "{failed}");
    assert!(matches!(cache.write_cached(70_000, &[2; 100]), Err(DeviceError::Poisoned)));
}

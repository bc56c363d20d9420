//! Opening of devices: existing files, permissions, locks, file systems, and the sentence of each refusal.

use crate::scratch;
use copal_device::{
    AlignedBuf, Device, DeviceError, DeviceOpenError, FileOptions, Io, IoClass, IoKind, open_file,
};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

const SIZE: u64 = 1 << 20;

fn new(size: u64) -> FileOptions {
    FileOptions { create_size: Some(size), ..FileOptions::default() }
}

fn existing() -> FileOptions {
    FileOptions::default()
}

fn reader() -> FileOptions {
    FileOptions { read_only: true, ..FileOptions::default() }
}

fn refused(path: &Path, options: &FileOptions) -> DeviceOpenError {
    match open_file(path, options) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&*path.display().to_string()), "the path is missing: {text}");
            error
        }
    }
}

fn byte(device: &Arc<dyn Device>, at: u64) -> u8 {
    device.read_now(at, AlignedBuf::zeroed(4096)).unwrap()[0]
}

#[test]
fn written_bytes_survive_a_reopen() {
    let directory = scratch();
    let path = directory.path().join("store");
    for force_pread in [false, true] {
        let device = if force_pread {
            open_file(&path, &FileOptions { force_pread, ..existing() }).unwrap()
        } else {
            open_file(&path, &new(SIZE)).unwrap()
        };
        assert_eq!(device.geometry().size, SIZE);
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(3 + u8::from(force_pread));
        device.write_through(8192, buf).unwrap();
        drop(device);
        let device = open_file(&path, &existing()).unwrap();
        assert_eq!(byte(&device, 8192), 3 + u8::from(force_pread));
    }
}

#[test]
fn space_is_reserved_when_a_file_is_created_and_grown() {
    use std::os::unix::fs::MetadataExt;
    let directory = scratch();
    let path = directory.path().join("store");
    let device = open_file(&path, &new(SIZE - 1)).unwrap();
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!((device.geometry().size, allocated()), (SIZE, SIZE), "rounded up, and allocated");
    assert_eq!(device.grow(3 * SIZE).unwrap(), 3 * SIZE);
    assert_eq!((std::fs::metadata(&path).unwrap().len(), allocated()), (3 * SIZE, 3 * SIZE));
}

#[test]
fn punched_and_cut_ranges_go_back_to_the_file_system_until_reserved() {
    use std::os::unix::fs::MetadataExt;
    let directory = scratch();
    let path = directory.path().join("store");
    let options = FileOptions { punch_holes: true, ..new(SIZE) };
    let device = open_file(&path, &options).unwrap();
    assert!(device.geometry().gives_back && device.geometry().discard_unit > 0);
    let blocks = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let discard = Io { at: SIZE / 4, kind: IoKind::Discard(SIZE / 4), class: IoClass::Background };
    let done = device.submit(vec![discard]).wait();
    done.into_iter().for_each(|done| done.result.unwrap());
    assert_eq!(blocks(), SIZE - SIZE / 4);
    device.reserve(SIZE / 4, SIZE / 4).unwrap();
    assert_eq!(blocks(), SIZE);
    // A range that is written through the page cache may lie behind the new end.
    let cache = device.page_cache().unwrap();
    cache.prepare(SIZE - 65_536, 65_536);
    assert_eq!(device.cut(SIZE / 2).unwrap(), SIZE / 2);
    assert_eq!((std::fs::metadata(&path).unwrap().len(), blocks()), (SIZE / 2, SIZE / 2));
    assert!(cache.write_cached(SIZE - 4096, b"x").is_err());
    device.grow(SIZE).unwrap();
    cache.write_cached(SIZE - 4096, b"x").unwrap();
    assert_eq!(byte(&device, SIZE - 4096), b'x');
}

#[test]
fn a_missing_and_an_existing_file_are_distinguished() {
    let directory = scratch();
    let path = directory.path().join("store");
    assert!(matches!(refused(&path, &existing()), DeviceOpenError::NotFound { .. }));
    assert!(matches!(refused(&path.join("below"), &existing()), DeviceOpenError::NotFound { .. }));
    assert!(matches!(refused(&path.join("below"), &new(SIZE)), DeviceOpenError::NotFound { .. }));
    std::fs::write(&path, b"precious").unwrap();
    assert!(matches!(refused(&path, &new(SIZE)), DeviceOpenError::Exists { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn one_writer_or_many_readers() {
    let directory = scratch();
    let path = directory.path().join("store");
    let writer = open_file(&path, &new(SIZE)).unwrap();
    for options in [existing(), reader()] {
        let error = refused(&path, &options);
        assert!(matches!(error, DeviceOpenError::Locked { .. }) && error.is_retryable(), "{error}");
    }
    drop(writer);
    let readers = [open_file(&path, &reader()).unwrap(), open_file(&path, &reader()).unwrap()];
    assert!(matches!(refused(&path, &existing()), DeviceOpenError::Locked { .. }));
    drop(readers);
    assert!(open_file(&path, &existing()).is_ok());
}

#[test]
fn a_reader_needs_no_right_to_write_and_never_writes() {
    let directory = scratch();
    let path = directory.path().join("store");
    drop(open_file(&path, &new(SIZE)).unwrap());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    for force_pread in [false, true] {
        let device = open_file(&path, &FileOptions { force_pread, ..reader() }).unwrap();
        assert_eq!(byte(&device, 0), 0);
        let write = |kind| device.submit(vec![Io { at: 0, kind, class: IoClass::Commit }]).wait().remove(0);
        let done = write(IoKind::Write { buf: AlignedBuf::zeroed(4096), fua: false });
        assert!(matches!(done.result, Err(DeviceError::ReadOnly)));
        assert!(done.buf.is_some(), "the buffer comes back");
        assert!(matches!(write(IoKind::WriteZeroes(4096)).result, Err(DeviceError::ReadOnly)));
        assert!(matches!(device.write_through(0, AlignedBuf::zeroed(4096)), Err(DeviceError::ReadOnly)));
        assert!(matches!(device.grow(2 * SIZE), Err(DeviceError::ReadOnly)));
        assert!(write(IoKind::Flush).result.is_ok(), "an opening flushes first, also for reading");
    }
    // Root may do anything; other users are refused.
    if !rustix::process::geteuid().is_root() {
        assert!(matches!(refused(&path, &existing()), DeviceOpenError::Permission { .. }));
    }
}

#[test]
fn only_files_and_block_devices_are_devices() {
    let directory = scratch();
    let error = refused(directory.path(), &existing());
    assert!(matches!(error, DeviceOpenError::WrongKind { found: "a directory", .. }), "{error}");
    let error = refused(Path::new("/dev/null"), &existing());
    assert!(matches!(error, DeviceOpenError::WrongKind { found: "a character device", .. }), "{error}");
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert!(matches!(refused(&pipe, &existing()), DeviceOpenError::WrongKind { found: "a pipe", .. }));
}

#[test]
fn a_file_that_does_not_fit_is_refused_and_leaves_nothing_behind() {
    let directory = scratch();
    let path = directory.path().join("store");
    let error = refused(&path, &new(1 << 60));
    assert!(matches!(error, DeviceOpenError::NoSpace { bytes, .. } if bytes == 1 << 60), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_device_that_cannot_grow_says_so_and_goes_on() {
    let directory = scratch();
    let path = directory.path().join("store");
    let device = open_file(&path, &new(SIZE)).unwrap();
    let error = device.grow(1 << 60).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    assert_eq!(device.geometry().size, SIZE);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE, "space added before the failure is returned");
    device.write_through(0, AlignedBuf::zeroed(4096)).unwrap();
}

#[test]
fn memory_file_systems_are_refused_unless_the_loss_is_accepted() {
    let shared = Path::new("/dev/shm");
    let is_memory = rustix::fs::statfs(shared).is_ok_and(|stat| stat.f_type as u64 == 0x0102_1994);
    if !is_memory {
        return;
    }
    let directory = tempfile::tempdir_in(shared).unwrap();
    let path = directory.path().join("store");
    let error = refused(&path, &new(SIZE));
    assert!(matches!(error, DeviceOpenError::Volatile { file_system: "tmpfs", .. }), "{error}");
    assert!(!path.exists());
    for force_pread in [false, true] {
        let accepted = FileOptions { unsafe_volatile: true, force_pread, ..new(SIZE) };
        let device = open_file(&path, &accepted).unwrap();
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(9);
        device.write_through(4096, buf).unwrap();
        assert_eq!(byte(&device, 4096), 9);
        drop(device);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_odd_end_of_a_file_is_not_used() {
    let directory = scratch();
    let path = directory.path().join("store");
    std::fs::write(&path, vec![1; 8192 + 100]).unwrap();
    let device = open_file(&path, &existing()).unwrap();
    assert_eq!(device.geometry().size, 8192);
    assert_eq!(byte(&device, 4096), 1);
}

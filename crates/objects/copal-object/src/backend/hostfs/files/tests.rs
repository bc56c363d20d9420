use super::*;
use copal_device::{IoClass, conformance};

fn write(at: u64, byte: u8) -> Io {
    let mut buf = AlignedBuf::zeroed(4096);
    buf.fill(byte);
    Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Foreground }
}

fn discard(at: u64, len: u64) -> Io {
    Io { at, kind: IoKind::Discard(len), class: IoClass::Background }
}

fn submit(files: &HostFiles, io: Io) -> Result<(), DeviceError> {
    files.submit(vec![io]).wait().remove(0).result
}

#[test]
fn a_directory_conforms_as_a_device() {
    let home = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    let make = |_: u64| {
        number.set(number.get() + 1);
        let files: Arc<dyn Device> = HostFiles::create(&home.path().join(number.get().to_string())).unwrap();
        files
    };
    conformance::run(&make, conformance::Traits { grows: false, counts_exactly: true });
}

#[test]
fn an_object_file_is_created_by_its_first_write_and_removed_completely() {
    let home = tempfile::tempdir().unwrap();
    let files = HostFiles::create(home.path()).unwrap();
    let at = 5 << OFFSET_BITS;
    submit(&files, write(at + 8192, 7)).unwrap();
    assert_eq!(files.numbers().unwrap(), [5]);
    assert_eq!(std::fs::metadata(home.path().join("objects/000005")).unwrap().len(), 12288);
    submit(&files, discard(at, FILE_BYTES)).unwrap();
    assert_eq!(files.numbers().unwrap(), []);
    let read = files.read_now(at + 8192, AlignedBuf::zeroed(4096)).unwrap();
    assert!(read.iter().all(|&byte| byte == 0), "absent bytes read as zeros");
}

#[test]
fn a_range_lies_in_one_file() {
    let home = tempfile::tempdir().unwrap();
    let files = HostFiles::create(home.path()).unwrap();
    let mut io = write((1 << OFFSET_BITS) - 4096, 1);
    io.kind = IoKind::Write { buf: AlignedBuf::zeroed(8192), fua: false };
    assert!(matches!(submit(&files, io), Err(DeviceError::OutOfRange { .. })));
}

#[test]
fn more_files_than_may_be_open_are_all_synced() {
    let home = tempfile::tempdir().unwrap();
    let files = HostFiles::create(home.path()).unwrap();
    for number in 1..=OPEN_MAX as u64 + 40 {
        submit(&files, write(number << OFFSET_BITS, number as u8)).unwrap();
    }
    assert!(files.inside.lock().written.len() > OPEN_MAX, "unsynced files stay open");
    files.flush().unwrap();
    assert!(files.inside.lock().written.is_empty());
    let last = OPEN_MAX as u64 + 41;
    submit(&files, write(last << OFFSET_BITS, 1)).unwrap();
    assert!(files.inside.lock().open.len() <= OPEN_MAX);
}

#[test]
fn one_writer_or_many_readers() {
    let home = tempfile::tempdir().unwrap();
    let writer = HostFiles::create(home.path()).unwrap();
    assert!(matches!(HostFiles::open(home.path(), true), Err(DeviceOpenError::Locked { .. })));
    drop(writer);
    let reader = HostFiles::open(home.path(), true).unwrap();
    let another = HostFiles::open(home.path(), true).unwrap();
    assert!(matches!(HostFiles::open(home.path(), false), Err(DeviceOpenError::Locked { .. })));
    assert!(matches!(submit(&reader, write(0, 1)), Err(DeviceError::ReadOnly)));
    drop((reader, another));
    assert!(HostFiles::open(home.path(), false).is_ok());
}

use super::*;
use copal_testkit::Random;
use std::cell::RefCell;

const SIZE: u64 = 5 * BLOCK_BYTES + 1000;
const SNAPSHOT: [u8; 16] = [7; 16];

fn below_bytes() -> Vec<u8> {
    Random::new(1).bytes(SIZE as usize)
}

fn read_below(below: &[u8]) -> impl Fn(u64, &mut [u8]) -> Result<(), DiskError> {
    |offset, buf| {
        buf.copy_from_slice(&below[offset as usize..][..buf.len()]);
        Ok(())
    }
}

fn open(path: &Path) -> Overlay {
    Overlay::open(path, SNAPSHOT, "sda", SIZE).unwrap()
}

/// Random writes, zeroings, flushes and restarts, compared with a disk in memory. A crash is a copy of the
/// file in which each unflushed page is present or missing at random.
#[test]
fn an_overlay_is_a_disk_through_restarts_and_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let below = below_bytes();
    let mut crashes = 0;
    for seed in 0..60 {
        let path = dir.path().join(format!("o{seed}"));
        let mut random = Random::new(seed);
        let mut overlay = open(&path);
        let mut truth = below.clone();
        // The disk at the last flush, the file at that time, and the bytes written since.
        let (mut flushed, mut file_then) = (truth.clone(), std::fs::read(&path).unwrap());
        let mut touched = vec![false; SIZE as usize];
        for _ in 0..40 {
            let at = random.below(SIZE);
            let len = (1 + random.below(2 * BLOCK_BYTES)).min(SIZE - at);
            let range = at as usize..(at + len) as usize;
            match random.below(10) {
                0..=4 => {
                    let data = random.bytes(len as usize);
                    overlay.write_at(at, &data, read_below(&below)).unwrap();
                    truth[range.clone()].copy_from_slice(&data);
                    touched[range].fill(true);
                }
                5..=6 => {
                    overlay.zero(at, len, read_below(&below)).unwrap();
                    truth[range.clone()].fill(0);
                    touched[range].fill(true);
                }
                7 => {
                    overlay.flush().unwrap();
                    (flushed, file_then) = (truth.clone(), std::fs::read(&path).unwrap());
                    touched.fill(false);
                }
                8 => {
                    overlay.flush().unwrap();
                    drop(overlay);
                    overlay = open(&path);
                    (flushed, file_then) = (truth.clone(), std::fs::read(&path).unwrap());
                    touched.fill(false);
                }
                _ => {
                    crashes += 1;
                    let now = std::fs::read(&path).unwrap();
                    let mut after = file_then.clone();
                    for (page, fresh) in after.chunks_mut(4096).zip(now.chunks(4096)) {
                        if random.below(2) == 0 {
                            page.copy_from_slice(fresh);
                        }
                    }
                    let crashed = dir.path().join("crashed");
                    std::fs::write(&crashed, &after).unwrap();
                    let crashed = open(&crashed);
                    let mut seen = vec![0; SIZE as usize];
                    crashed.read_at(0, &mut seen, read_below(&below)).unwrap();
                    for (at, byte) in seen.iter().enumerate() {
                        // A byte has the flushed value, unless it was written since.
                        assert!(
                            *byte == flushed[at] || touched[at],
                            "seed {seed}: byte {at} was neither flushed nor written"
                        );
                    }
                }
            }
            let mut seen = vec![0; len as usize];
            overlay.read_at(at, &mut seen, read_below(&below)).unwrap();
            assert!(seen == truth[at as usize..(at + len) as usize], "seed {seed}");
        }
    }
    assert!(crashes > 100);
}

#[test]
fn an_overlay_belongs_to_one_disk_and_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("o");
    let overlay = open(&path);
    assert_eq!(overlay.run_at(0, SIZE), (false, SIZE));
    let again = Overlay::open(&path, SNAPSHOT, "sda", SIZE);
    assert!(matches!(again, Err(OverlayError::InUse { .. })));
    drop(overlay);
    for (snapshot, disk, size) in [([8; 16], "sda", SIZE), (SNAPSHOT, "sdb", SIZE), (SNAPSHOT, "sda", 4096)] {
        let other = Overlay::open(&path, snapshot, disk, size);
        assert!(matches!(other, Err(OverlayError::OfAnother { .. })));
    }
    let image = dir.path().join("image");
    std::fs::write(&image, vec![1; 100_000]).unwrap();
    let taken = Overlay::open(&image, SNAPSHOT, "sda", SIZE);
    assert!(matches!(taken, Err(OverlayError::Unreadable { .. })));
    assert_eq!(std::fs::read(&image).unwrap(), vec![1; 100_000]);
}

#[test]
fn a_block_that_is_unreadable_below_can_be_overwritten_completely() {
    let dir = tempfile::tempdir().unwrap();
    let overlay = open(&dir.path().join("o"));
    let damaged = |_: u64, _: &mut [u8]| Err(DiskError::Damaged);
    assert_eq!(overlay.write_at(10, b"x", damaged), Err(DiskError::Damaged));
    overlay.write_at(0, &vec![5; BLOCK_BYTES as usize], damaged).unwrap();
    overlay.write_at(10, b"x", damaged).unwrap();
    let mut one = [0; 12];
    overlay.read_at(0, &mut one, damaged).unwrap();
    assert_eq!(one, *b"\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05x\x05");
    assert_eq!(overlay.run_at(0, SIZE), (true, BLOCK_BYTES));
}

/// Records the calls of a flush in their order.
#[derive(Default)]
struct Recorder {
    calls: RefCell<Vec<&'static str>>,
    is_broken: bool,
}

impl FlushedFile for Recorder {
    fn sync(&self) -> std::io::Result<()> {
        self.calls.borrow_mut().push("sync");
        match self.is_broken {
            true => Err(std::io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }

    fn write_bits(&self, _: &[u8], _: u64) -> std::io::Result<()> {
        self.calls.borrow_mut().push("bits");
        Ok(())
    }
}

/// Symptom: no test detected an overlay that wrote its bits before its blocks, which after a power cut
/// exposes blocks that were never written. Fix: this test.
#[test]
fn bits_are_written_after_the_blocks_are_durable() {
    let mut state =
        OverlayState { bitmap: vec![0; PAGE_BYTES as usize], unwritten: BTreeSet::new(), is_poisoned: false };
    state.set(3);
    let broken = Recorder { is_broken: true, ..Recorder::default() };
    assert!(flush_blocks_then_bits(&broken, &mut state).is_err());
    assert_eq!(broken.calls.into_inner(), ["sync"], "the blocks may be lost");
    let file = Recorder::default();
    flush_blocks_then_bits(&file, &mut state).unwrap();
    assert_eq!(file.calls.take(), ["sync", "bits", "sync"]);
    flush_blocks_then_bits(&file, &mut state).unwrap();
    assert_eq!(file.calls.into_inner(), ["sync"], "there are no new bits");
}

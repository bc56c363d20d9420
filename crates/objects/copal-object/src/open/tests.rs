//! Stores with valid sums and impossible sizes: they are refused before any computation with them.

use super::mount::hold;
use crate::{
    MkfsOptions, OpenOptions, RecoveryReport, Store, StoreOpenError,
    backend::hostfs::{FileSpace, HostFiles},
    backend::{cow::CowPlacement, hostfs::FilePlacement},
    checkpoint::superblock_ios,
    format::{
        ops::RecordOp,
        record::{self, RecordHeader},
        run::PageRun,
        segment::ChainSegment,
        superblock::Superblock,
    },
    recovery,
    space::{SpaceState, allocator::PageAllocator, discards::SpaceDiscards, journal_place::JournalRing},
    tables::{
        ObjectTables,
        chain::{ChainEncoder, ChainPlace, encode_chain},
        snapshot::{CheckpointParts, CheckpointPosition},
    },
};
use copal_device::{AlignedBuf, Device, Io, IoClass, IoKind, MemoryDevice};
use std::sync::Arc;

fn device() -> (Arc<dyn Device>, Superblock) {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (superblock, _) = recovery::newest_superblock(device.as_ref()).unwrap();
    (device, superblock)
}

fn write(device: &dyn Device, ios: Vec<Io>) {
    for done in device.submit(ios).wait() {
        done.result.unwrap();
    }
}

fn write_at(device: &dyn Device, at: u64, buf: AlignedBuf) {
    let kind = IoKind::Write { buf, fua: false };
    let class = IoClass::Foreground;
    write(device, vec![Io { at, kind, class }]);
}

/// Makes the superblock name a checkpoint of an empty store of `pages` pages of `page_bytes`.
fn with_checkpoint(device: &dyn Device, superblock: &mut Superblock, page_bytes: u32, pages: u64) {
    let position = CheckpointPosition {
        uuid: superblock.uuid,
        lsn: 0,
        next_seq: 1,
        journal_head: 0,
        epoch: 1,
        mount_pages: 0,
        segment: ChainSegment::default(),
    };
    let tables = ObjectTables::new(page_bytes as usize, pages);
    let parts = CheckpointParts::of(&tables, &position, &[], &[]);
    let place = vec![ChainPlace { run: PageRun::new(900, 1), copy: None }];
    let (head, chain) = encode_chain(ChainEncoder::new(0, parts, place, page_bytes as usize));
    for (run, buf) in chain {
        write_at(device, run.at * u64::from(page_bytes), buf);
    }
    superblock.page_bytes = page_bytes;
    superblock.journal_at = 20;
    superblock.journal_pages = 100;
    superblock.checkpoint_at = head.at;
    superblock.checkpoint_bytes = head.bytes.into();
    superblock.checkpoint_hash = head.hash;
    superblock.checkpoint_copy_at = head.copy_at;
    for generation in [2, 3] {
        superblock.generation = generation;
        write(device, superblock_ios(superblock));
    }
}

fn opens(device: Arc<dyn Device>) -> Result<RecoveryReport, StoreOpenError> {
    Store::open(device, &OpenOptions::default()).map(|(_, report)| report)
}

/// Symptom: a journal record that grows the store to 2^52 pages or more panicked at open in debug builds. In
/// release builds the size wrapped to a small one, and the allocator asked for terabytes of bits.
/// Cause: GROW took any number, and `pages * page_bytes` was not checked.
/// Fix: no store is longer than 2^60 bytes, and a record beyond that is damage.
#[test]
fn a_record_that_grows_the_store_beyond_any_device_is_damage() {
    for pages in [1 << 52, (1 << 48) + 1, u64::MAX] {
        let (device, superblock) = device();
        let header = RecordHeader {
            store: superblock.uuid as u64,
            mount: superblock.mount,
            seq: 1,
            previous: superblock.chain_seed,
            transactions: 0,
            epoch: 1,
            flushed_epoch: 1,
            first_lsn: 1,
            flushed_seq: 1,
        };
        let mut ops = Vec::new();
        RecordOp::Grow { pages }.encode(&mut ops);
        let mut buf = AlignedBuf::zeroed(4096);
        record::encode(&header, &ops, &mut buf);
        write_at(device.as_ref(), superblock.journal_at * 4096, buf);
        let opened = opens(device);
        assert!(matches!(opened, Err(StoreOpenError::Damaged { .. })), "{pages} pages: {opened:?}");
    }
}

/// Symptom: a checkpoint of 2^50 pages of 16 KiB opened as a store of no bytes, in debug builds with a panic.
/// Cause: its pages were bounded by a number that fits pages of 4 KiB only: 2^50 x 2^14 is 0 in 64 bits.
/// Fix: the bound is 2^60 bytes in pages of the store.
#[test]
fn a_checkpoint_of_more_bytes_than_any_device_has_is_damage() {
    for pages in [1 << 50, (1 << 46) + 1] {
        let (device, mut superblock) = device();
        with_checkpoint(device.as_ref(), &mut superblock, 16_384, pages);
        let opened = opens(device);
        assert!(matches!(opened, Err(StoreOpenError::Damaged { .. })), "{pages} pages: {opened:?}");
    }
}

/// A store of the largest size is not damaged: the device is too short for it.
#[test]
fn a_store_longer_than_its_device_is_truncated_not_damaged() {
    let (device, mut superblock) = device();
    with_checkpoint(device.as_ref(), &mut superblock, 16_384, 1 << 46);
    let opened = opens(device);
    assert!(
        matches!(opened, Err(StoreOpenError::Truncated { store_bytes, .. }) if store_bytes == 1 << 60),
        "{opened:?}"
    );
}

/// Symptom: an opening without room for its mount record counted to 2^32 for each such run of a dropped
/// record. A directory's space grew by a bit for each of these pages.
/// Cause: runs of a dropped record were never compared with the store's size, as those of a counting record
/// are.
/// Fix: pages beyond the store's size or behind the end of a directory's file are skipped, and each page is
/// checked once.
#[test]
fn runs_that_no_store_has_are_not_walked() {
    let mut wanted = vec![PageRun::new(u64::MAX - 3, 9), PageRun::new(5, 2), PageRun::new(6, 3)];
    let mut space = SpaceState::new(
        Box::new(CowPlacement::new(PageAllocator::new(1000), JournalRing::default())),
        16,
        SpaceDiscards::default(),
    );
    assert!(space.take(PageRun::new(100, 50)));
    wanted.extend([PageRun::new(90, u32::MAX); 1000]);
    let held = hold(&mut space, None, &wanted).unwrap();
    assert_eq!(held, [PageRun::new(5, 2), PageRun::new(7, 2), PageRun::new(90, 10), PageRun::new(150, 850)]);
    assert_eq!(space.free_pages(), 1000 - 50 - 864);
    held.iter().for_each(|&run| space.release(run));
    assert_eq!(space.free_pages(), 950);

    let mut space = SpaceState::new(
        Box::new(FilePlacement::new(FileSpace::new(4096, 1000), JournalRing::default())),
        16,
        SpaceDiscards::default(),
    );
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::create(&dir.path().join("store")).unwrap();
    for (file, pages) in [(0u64, 8), (6, 3)] {
        write_at(files.as_ref(), file << 36, AlignedBuf::zeroed(pages * 4096));
    }
    let file_pages = 1 << 24;
    wanted.extend((1..300_000).map(|file| PageRun::new(file * file_pages, file_pages as u32)));
    assert_eq!(
        hold(&mut space, Some((&files, 4096)), &wanted).unwrap(),
        [PageRun::new(5, 2), PageRun::new(7, 1), PageRun::new(6 * file_pages, 3)]
    );
}

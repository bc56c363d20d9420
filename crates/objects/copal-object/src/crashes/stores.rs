//! Stores for histories: an empty one, a nearly full one, and the devices and directories below them.

use crate::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, OpenOptions, ReadCheck, Store, StoreOpenError,
    Txn, backend::hostfs::sim_directory::SimDirectory, flaw::BrokenRule, format::superblock::BACKEND_COW,
    open::OpenOverrides, state::cleaner::CleanerTrigger, state::entropy::EntropySource,
    state::inline_pages::InlineLimits,
};
use copal_device::{
    Device, Image,
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_testkit::Random;
use std::{ops::Range, sync::Arc, sync::OnceLock};

pub(super) const PAGE: usize = 4096;
const SIZE: u64 = 64 << 20;
const JOURNAL_PAGES: u64 = 16;
const SEGMENT_PAGES: usize = 16;

pub(super) fn empty_store() -> Image {
    static EMPTY: OnceLock<Image> = OnceLock::new();
    EMPTY.get_or_init(|| empty_store_of(JOURNAL_PAGES)).clone()
}

/// A store whose records have room for inline data.
pub(super) fn store_with_long_records() -> Image {
    static EMPTY: OnceLock<Image> = OnceLock::new();
    EMPTY.get_or_init(|| empty_store_of(2 * JOURNAL_PAGES)).clone()
}

fn empty_store_of(journal_pages: u64) -> Image {
    let device = FaultDevice::with_options(
        Image::zeroed(SIZE),
        FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() },
    );
    let dyn_device: Arc<dyn Device> = device.clone();
    let options = MkfsOptions { journal_bytes: Some(journal_pages * PAGE as u64), ..MkfsOptions::default() };
    crate::open::mkfs::mkfs(&dyn_device, &options, &mut EntropySource::Seed(Random::new(1)), BACKEND_COW)
        .unwrap();
    device.image()
}

/// An empty store in segments so small that a history passes through several of them.
pub(super) fn store_in_segments() -> Image {
    static EMPTY: OnceLock<Image> = OnceLock::new();
    let make = || {
        let device = FaultDevice::with_options(
            Image::zeroed(SIZE),
            FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() },
        );
        let dyn_device: Arc<dyn Device> = device.clone();
        let options = MkfsOptions {
            backend: BackendKind::Log,
            segment_bytes: Some((SEGMENT_PAGES * PAGE) as u32),
            ..MkfsOptions::default()
        };
        crate::open::mkfs::mkfs_device(&dyn_device, &options, &mut EntropySource::Seed(Random::new(1)))
            .unwrap();
        // Few segments are left, so that histories reuse them.
        let store = open(device.clone(), tuning(BrokenRule::default(), false, false, 3)).unwrap();
        let opts = CreateOptions { check: ReadCheck::Caller, ..CreateOptions::default() };
        let mut writer = store.writer(ObjectId(FILLER), opts).unwrap();
        let len = store.space().free_bytes - 10 * (SEGMENT_PAGES * PAGE) as u64;
        (0..len >> 16).for_each(|_| writer.append(&vec![0; 1 << 16]).unwrap());
        store.commit(Txn::new().publish(writer.finish().unwrap()), Ack::Durable).wait().unwrap();
        store.close().unwrap();
        device.image()
    };
    EMPTY.get_or_init(make).clone()
}

/// An object that leaves little space, so that stores drain and grow. Its content is not checked.
pub(super) const FILLER: u64 = 5000;

pub(super) fn nearly_full_store() -> Image {
    static FULL: OnceLock<Image> = OnceLock::new();
    let make = || {
        let options =
            FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() };
        let device = FaultDevice::with_options(empty_store(), options);
        let store = open(device.clone(), tuning(BrokenRule::default(), false, false, 3)).unwrap();
        let opts = CreateOptions { check: ReadCheck::Caller, ..CreateOptions::default() };
        let mut writer = store.writer(ObjectId(FILLER), opts).unwrap();
        let len = store.space().free_bytes - 30 * PAGE as u64;
        for _ in 0..len >> 20 {
            writer.append(&vec![0; 1 << 20]).unwrap();
        }
        writer.append(&vec![0; (len % (1 << 20)) as usize]).unwrap();
        store.commit(Txn::new().publish(writer.finish().unwrap()), Ack::Durable).wait().unwrap();
        store.close().unwrap();
        device.image()
    };
    FULL.get_or_init(make).clone()
}

/// Empty objects that make a checkpoint three chain pages long, so that commits come between them.
pub(super) const BALLAST: Range<u64> = FILLER + 1..FILLER + 201;

pub(super) fn store_with_long_tables() -> Image {
    static LONG: OnceLock<Image> = OnceLock::new();
    let make = || {
        let options =
            FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() };
        let device = FaultDevice::with_options(empty_store(), options);
        let store = open(device.clone(), tuning(BrokenRule::default(), false, false, 5)).unwrap();
        for id in BALLAST {
            let txn = Txn::new().create(ObjectId(id), CreateOptions::default());
            store.commit(txn, Ack::Ordered).wait().unwrap();
        }
        store.close().unwrap();
        device.image()
    };
    LONG.get_or_init(make).clone()
}

/// Storage below the store.
#[derive(Clone)]
pub(super) enum SimWorld {
    Device(Arc<FaultDevice>),
    Files(SimDirectory),
}

impl SimWorld {
    pub(super) fn step(&self) -> usize {
        match self {
            SimWorld::Device(device) => device.step(),
            SimWorld::Files(sim) => sim.step(),
        }
    }

    /// Runs the next event. Files act at once.
    pub(super) fn drive(&self) -> bool {
        match self {
            SimWorld::Device(device) => device.drive(),
            SimWorld::Files(_) => false,
        }
    }

    pub(super) fn device(&self) -> &Arc<FaultDevice> {
        match self {
            SimWorld::Device(device) => device,
            SimWorld::Files(_) => unreachable!("histories of files have lives of their own"),
        }
    }
}

/// A device on a full host, which gives discarded bytes back to it; or one of its own.
pub(super) fn fault_device(image: Image, seed: u64, full_host: bool) -> Arc<FaultDevice> {
    FaultDevice::with_options(image, FaultOptions { seed, full_host, ..FaultOptions::default() })
}

pub(super) fn tuning(broken: BrokenRule, eager: bool, mount_by_checkpoint: bool, seed: u64) -> OpenOverrides {
    OpenOverrides {
        entropy: EntropySource::Seed(Random::new(seed)),
        broken,
        eager,
        stream_extent_pages: Some(3),
        mount_by_checkpoint,
        short_chain_pages: true,
        lowest_first: true,
        discard_pages: None,
        gives_lowest: seed.is_multiple_of(2),
        data_apart: seed.is_multiple_of(2),
        cleaner_trigger: if seed.is_multiple_of(3) {
            CleanerTrigger::Shortage
        } else {
            CleanerTrigger::Always
        },
        inline: Some(InlineLimits::default()),
    }
}

pub(super) fn open(device: Arc<dyn Device>, tuning: OpenOverrides) -> Result<Store, StoreOpenError> {
    let (store, report) = Store::open_tuned(device, &OpenOptions::default(), tuning)?;
    if let Some(stream) = report.damaged_streams.first() {
        return Err(StoreOpenError::Damaged { what: format!("stream {} after a crash", stream.0) });
    }
    Ok(store)
}

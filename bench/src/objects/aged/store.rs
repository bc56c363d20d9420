//! A store of one backend on a model of a disk, filled with objects and overwritten.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_device::{
    Device, DeviceCounters,
    emulated::{DiskModel, EmulatedDevice, ModelCounters},
};
use copal_object::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, ObjectKind, OpenOptions, ReadCheck, Store, Txn,
};
use copal_testkit::Random;
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// Bytes of a small object.
pub(super) const SMALL_BYTES: usize = 4096;
/// Mean length of a value, as of a mail.
pub(super) const VALUE_BYTES: usize = 28 << 10;
/// Small objects in the store.
const SMALL_OBJECTS: u64 = 16_000;
/// The stream of frames.
pub(super) const LOG: ObjectId = ObjectId(1);

/// Layout of a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AgedLayout {
    /// `cow` that writes data and record apart.
    CowApart,
    /// `cow` with the data of small commits in their records.
    CowInline,
    Log,
}

impl AgedLayout {
    /// Backend of the store, and whether small commits have their data in the record.
    pub(super) fn store(self) -> (BackendKind, Option<bool>) {
        let backend = if self == AgedLayout::Log { BackendKind::Log } else { BackendKind::Cow };
        (backend, Some(self == AgedLayout::CowInline))
    }

    pub(super) const ALL: [AgedLayout; 3] = [AgedLayout::CowApart, AgedLayout::CowInline, AgedLayout::Log];

    pub(super) fn name(self) -> &'static str {
        match self {
            AgedLayout::CowApart => "cow, data apart",
            AgedLayout::CowInline => "cow, data inline",
            AgedLayout::Log => "log",
        }
    }
}

/// State of the drive after so many commands.
#[derive(Clone, Copy)]
pub(super) struct DriveState {
    pub(super) time: Duration,
    pub(super) commands: DeviceCounters,
    pub(super) model: ModelCounters,
}

/// Objects of one size class: any of them is deleted at random.
#[derive(Default)]
pub(super) struct ObjectClass {
    objects: VecDeque<(ObjectId, usize)>,
}

impl ObjectClass {
    /// Removes a random object; returns it and its length.
    pub(super) fn take(&mut self, random: &mut Random) -> Option<(ObjectId, usize)> {
        let index = random.below(self.objects.len().max(1) as u64) as usize;
        self.objects.swap_remove_back(index)
    }

    pub(super) fn put(&mut self, object: ObjectId, len: usize) {
        self.objects.push_back((object, len));
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }
}

/// See the module's text.
pub(super) struct AgedStore<M: DiskModel + 'static> {
    pub(super) disk: Arc<EmulatedDevice<M>>,
    pub(super) store: Store,
    pub(super) random: Random,
    pub(super) small: ObjectClass,
    pub(super) values: ObjectClass,
    pub(super) content: Bytes,
    next: u64,
}

impl<M: DiskModel + 'static> Drop for AgedStore<M> {
    /// Commands on their way hold the store, and the store holds the disk: one that is not driven is never freed.
    fn drop(&mut self) {
        if let Some(driver) = self.disk.driver() {
            while driver.drive() {}
        }
    }
}

impl<M: DiskModel + 'static> AgedStore<M> {
    /// A new store without objects.
    pub(super) fn make(disk: Arc<EmulatedDevice<M>>, layout: AgedLayout) -> Result<AgedStore<M>> {
        let device: Arc<dyn Device> = disk.clone();
        let (backend, inline_data) = layout.store();
        Store::mkfs(&device, &MkfsOptions { backend, ..MkfsOptions::default() })
            .context("formatting a store")?;
        // The models cannot grow.
        let (store, _) = Store::open(device, &OpenOptions { inline_data, ..OpenOptions::default() })
            .context("opening a store")?;
        let mut random = Random::new(11);
        let content = Bytes::from(random.bytes(2 * VALUE_BYTES));
        let (small, values) = (ObjectClass::default(), ObjectClass::default());
        let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
        store.commit(Txn::new().create(LOG, opts), Ack::Durable).wait()?;
        Ok(AgedStore { disk, store, random, small, values, content, next: 2 })
    }

    pub(super) fn state(&self) -> DriveState {
        DriveState {
            time: self.disk.now(),
            commands: self.store.counters(),
            model: self.disk.model_counters(),
        }
    }

    /// A transaction that makes an object of `len` bytes.
    pub(super) fn creation(&mut self, len: usize) -> (Txn, ObjectId) {
        self.next += 1;
        let id = ObjectId(self.next);
        let opts = CreateOptions { check: ReadCheck::Caller, ..CreateOptions::default() };
        (Txn::new().create(id, opts).append(id, 0, self.content.slice(..len)), id)
    }

    /// A length between an eighth and the double of the mean.
    fn value_len(&mut self) -> usize {
        VALUE_BYTES / 8 + self.random.below(VALUE_BYTES as u64 * 7 / 4) as usize
    }

    /// Fills the store until `share` of it is live, then replaces values at random until `passes` times as many bytes
    /// are written as are live.
    pub(super) fn age(&mut self, share: f64, passes: f64) -> Result<()> {
        for _ in 0..SMALL_OBJECTS {
            let (txn, id) = self.creation(SMALL_BYTES);
            self.store.commit(txn, Ack::Ordered).wait().context("filling the store")?;
            self.small.put(id, SMALL_BYTES);
        }
        loop {
            let space = self.store.space();
            if space.live_bytes as f64 >= share * space.size_bytes as f64 {
                break;
            }
            for _ in 0..100 {
                let len = self.value_len();
                let (txn, id) = self.creation(len);
                self.store.commit(txn, Ack::Ordered).wait().context("filling the store")?;
                self.values.put(id, len);
            }
        }
        let live = self.store.space().live_bytes;
        let mut written = 0;
        while (written as f64) < passes * live as f64 {
            let Some((old, _)) = self.values.take(&mut self.random) else { break };
            let len = self.value_len();
            let (txn, id) = self.creation(len);
            self.store.commit(txn.delete(old), Ack::Ordered).wait().context("ageing the store")?;
            self.values.put(id, len);
            written += len as u64;
        }
        self.store.sync(copal_object::Lsn(u64::MAX)).wait().context("flushing the aged store")?;
        Ok(())
    }
}

//! `EmulatedDevice`: contents in memory behind a model of a disk, in virtual time.
//!
//! `submit` queues. Each [`Device::drive`] lets the drive serve one command, moves the clock to its end and
//! answers it. `read_now` and `write_through` serve commands until their own has ended. They answer no other
//! command, because its hook could take a lock that their caller holds; the next `drive` does.
//!
//! Invariants
//! - The answer to a command comes after the drive has served it.
//! - Contents of which nothing was written take no memory.

use super::disk_state::{DiskState, QueuedIo, ServedIo};
use super::hdd::{HddModel, HddProfile};
use super::model::{DiskModel, ModelCounters};
use super::ssd::{SsdModel, SsdProfile};
use crate::completion::CompletionDriver;
use crate::device::tally::IoTally;
use crate::device::{check_io, check_range};
use crate::{
    AlignedBuf, Completer, Completion, Device, DeviceClock, DeviceCounters, DeviceError, Geometry, Image, Io,
    IoClass, IoDone, IoKind, VirtualClock,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A hard disk in virtual time.
pub type Hdd = EmulatedDevice<HddModel>;
/// A flash drive in virtual time.
pub type Ssd = EmulatedDevice<SsdModel>;

/// A device whose times come from a model. See the module's text.
pub struct EmulatedDevice<M: DiskModel> {
    disk: Arc<EmulatedDisk<M>>,
}

struct EmulatedDisk<M> {
    state: Mutex<EmulatedState<M>>,
    geometry: Geometry,
    tally: IoTally,
}

struct EmulatedState<M> {
    disk: DiskState<M, Image>,
    /// Commands that ended while a thread waited for another one.
    ended: VecDeque<(Completer<IoDone>, IoDone)>,
}

impl EmulatedDevice<HddModel> {
    /// A disk of `size` zero bytes.
    ///
    /// # Panics
    /// As [`HddModel::new`], or when the size is no multiple of the logical block.
    #[must_use]
    pub fn new(size: u64, profile: HddProfile) -> Arc<Hdd> {
        Hdd::with_image(Image::zeroed(size), profile)
    }

    /// A disk that holds `image`.
    ///
    /// # Panics
    /// As [`Hdd::new`].
    #[must_use]
    pub fn with_image(image: Image, profile: HddProfile) -> Arc<Hdd> {
        let geometry = profile.geometry(image.size());
        EmulatedDevice::of_model(HddModel::new(image.size(), profile), image, geometry)
    }
}

impl EmulatedDevice<SsdModel> {
    /// A drive of `size` zero bytes, none of them mapped.
    ///
    /// # Panics
    /// As [`SsdModel::new`], or when the size is no multiple of the logical block.
    #[must_use]
    pub fn new(size: u64, profile: SsdProfile) -> Arc<Ssd> {
        Ssd::with_image(Image::zeroed(size), profile)
    }

    /// A drive that holds `image`; its translation layer is empty all the same.
    ///
    /// # Panics
    /// As [`Ssd::new`].
    #[must_use]
    pub fn with_image(image: Image, profile: SsdProfile) -> Arc<Ssd> {
        let geometry = profile.geometry(image.size());
        EmulatedDevice::of_model(SsdModel::new(image.size(), profile), image, geometry)
    }
}

impl<M: DiskModel + 'static> EmulatedDevice<M> {
    pub(crate) fn of_model(model: M, image: Image, geometry: Geometry) -> Arc<EmulatedDevice<M>> {
        assert!(
            image.size().is_multiple_of(u64::from(geometry.logical_block)),
            "the size of a device is a multiple of its block"
        );
        let disk = DiskState::new(model, image, &geometry);
        let state = EmulatedState { disk, ended: VecDeque::new() };
        Arc::new(EmulatedDevice {
            disk: Arc::new(EmulatedDisk { state: Mutex::new(state), geometry, tally: IoTally::default() }),
        })
    }

    /// The virtual clock: 0 when the device was made, then the end of the command that was served last.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.disk.state.lock().disk.model.now()
    }

    /// Work of the disk since the device was made.
    #[must_use]
    pub fn model_counters(&self) -> ModelCounters {
        self.disk.state.lock().disk.model.counters()
    }

    /// The contents. A copy shares its memory with the device until one of them changes.
    #[must_use]
    pub fn image(&self) -> Image {
        self.disk.state.lock().disk.contents.clone()
    }
}

impl<M: DiskModel> EmulatedDisk<M> {
    /// Starts a command on this thread and serves until it has ended.
    fn run_now(&self, at: u64, kind: IoKind) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.geometry, kind.name(), at, kind.len_bytes())?;
        let mut state = self.state.lock();
        let io = Io { at, kind, class: IoClass::Foreground };
        let own = state.disk.start(QueuedIo { io, completer: None, arrival: Duration::ZERO });
        while let Some(ServedIo { id, completer, done }) = state.disk.serve(&self.tally) {
            match completer {
                Some(completer) => state.ended.push_back((completer, done)),
                None if id == own => return done.buf.ok_or(DeviceError::Poisoned),
                None => {}
            }
        }
        Err(DeviceError::Poisoned)
    }
}

impl<M: DiskModel> VirtualClock for EmulatedDisk<M> {
    fn now(&self) -> Duration {
        self.state.lock().disk.model.now()
    }
}

impl<M: DiskModel> CompletionDriver for EmulatedDisk<M> {
    fn drive(&self) -> bool {
        let mut state = self.state.lock();
        let (completer, done) = match state.ended.pop_front() {
            Some(ended) => ended,
            None => match state.disk.serve(&self.tally) {
                Some(ServedIo { completer: Some(completer), done, .. }) => (completer, done),
                Some(_) => return true,
                None => return false,
            },
        };
        drop(state);
        completer.complete(done);
        true
    }
}

impl<M: DiskModel + 'static> Device for EmulatedDevice<M> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let mut parts = Vec::with_capacity(ios.len());
        let mut state = self.disk.state.lock();
        for io in ios {
            if let Err(error) = check_io(&self.disk.geometry, &io) {
                parts.push(Completion::ready(IoDone { result: Err(error), buf: io.kind.into_buf() }));
                continue;
            }
            let (completer, part) = Completion::pair(self.driver());
            state.disk.push(QueuedIo { io, completer: Some(completer), arrival: Duration::ZERO });
            parts.push(part);
        }
        state.disk.fill();
        drop(state);
        Completion::join(parts)
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.disk.run_now(at, IoKind::Read(buf))
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.disk.run_now(at, IoKind::Write { buf, fua: true })
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        let have = self.disk.geometry.size;
        if size <= have {
            return Ok(have);
        }
        Err(DeviceError::CannotGrow { size: have, wanted: size, reason: "an emulated disk keeps its size" })
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.disk.tally.counters()
    }

    fn drive(&self) -> bool {
        self.disk.drive()
    }

    fn clock(&self) -> DeviceClock {
        DeviceClock::of_model(self.disk.clone())
    }

    fn engine(&self) -> &'static str {
        self.disk.state.lock().disk.model.name()
    }

    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        Some(self.disk.clone())
    }
}

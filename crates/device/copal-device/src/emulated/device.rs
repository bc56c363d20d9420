//! `EmulatedDevice`: contents in memory behind a model of a disk, in virtual time.
//!
//! `submit` queues. Each [`Device::drive`] lets the drive serve one command, moves the clock to its end and
//! answers it. `read_now` and `write_through` serve commands until their own has ended. They answer no other
//! command, because its hook could take a lock that their caller holds; the next `drive` does.
//!
//! Invariants
//! - A command takes effect when the drive has served it, and the answer comes after that.
//! - At most the model's depth of queued commands is in the drive; the others wait by class, as in front of a
//!   real device.
//! - Contents of which nothing was written take no memory.

use super::hdd::{HddModel, HddProfile};
use super::model::{CommandKind, DiskModel, ModelCommand, ModelCounters};
use super::ssd::{SsdModel, SsdProfile};
use crate::class_queue::ClassQueue;
use crate::completion::CompletionDriver;
use crate::device::tally::IoTally;
use crate::device::{check_io, check_range};
use crate::memory::{DISCARDED, memory_geometry};
use crate::{
    AlignedBuf, Completer, Completion, Device, DeviceClock, DeviceCounters, DeviceError, Geometry, Image, Io,
    IoClass, IoDone, IoKind, VirtualClock,
};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
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
    model: M,
    image: Image,
    /// Commands that the drive has no room for yet.
    queue: ClassQueue<QueuedIo>,
    /// Commands in the drive, by id.
    running: HashMap<u64, QueuedIo>,
    /// Commands that ended while a thread waited for another one.
    ended: VecDeque<(Completer<IoDone>, IoDone)>,
    next_id: u64,
}

struct QueuedIo {
    io: Io,
    /// `None`: the submitting thread itself serves until the command has ended.
    completer: Option<Completer<IoDone>>,
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
        let geometry = Geometry {
            logical_block: profile.logical_block,
            discard_unit: 0,
            gives_back: false,
            rotational: true,
            ..memory_geometry(image.size())
        };
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
        let geometry = Geometry {
            logical_block: profile.logical_block,
            discard_unit: u32::try_from(profile.unit_bytes).unwrap_or(u32::MAX),
            gives_back: false,
            ..memory_geometry(image.size())
        };
        EmulatedDevice::of_model(SsdModel::new(image.size(), profile), image, geometry)
    }
}

impl<M: DiskModel + 'static> EmulatedDevice<M> {
    pub(crate) fn of_model(model: M, image: Image, geometry: Geometry) -> Arc<EmulatedDevice<M>> {
        assert!(
            image.size().is_multiple_of(u64::from(geometry.logical_block)),
            "the size of a device is a multiple of its block"
        );
        let state = EmulatedState {
            queue: ClassQueue::new(model.depth()),
            model,
            image,
            running: HashMap::new(),
            ended: VecDeque::new(),
            next_id: 0,
        };
        Arc::new(EmulatedDevice {
            disk: Arc::new(EmulatedDisk { state: Mutex::new(state), geometry, tally: IoTally::default() }),
        })
    }

    /// The virtual clock: 0 when the device was made, then the end of the command that was served last.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.disk.state.lock().model.now()
    }

    /// Work of the disk since the device was made.
    #[must_use]
    pub fn model_counters(&self) -> ModelCounters {
        self.disk.state.lock().model.counters()
    }

    /// The contents. A copy shares its memory with the device until one of them changes.
    #[must_use]
    pub fn image(&self) -> Image {
        self.disk.state.lock().image.clone()
    }
}

/// The command that the model serves for an I/O.
fn command_of(io: &Io) -> ModelCommand {
    let kind = match &io.kind {
        IoKind::Read(_) => CommandKind::Read,
        IoKind::Write { fua: true, .. } => CommandKind::WriteThrough,
        IoKind::Write { .. } | IoKind::WriteZeroes(_) => CommandKind::Write,
        IoKind::Flush => return ModelCommand { kind: CommandKind::Flush, at: 0, len: 0 },
        IoKind::Discard(_) => CommandKind::Discard,
    };
    ModelCommand { kind, at: io.at, len: io.kind.len_bytes() }
}

impl<M: DiskModel> EmulatedState<M> {
    /// Hands a command to the drive; returns its id.
    fn start(&mut self, queued: QueuedIo) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.model.accept(id, command_of(&queued.io));
        self.running.insert(id, queued);
        id
    }

    /// Hands queued commands to the drive while it has room.
    fn fill(&mut self) {
        while let Some(queued) = self.queue.pop() {
            self.start(queued);
        }
    }
}

impl<M: DiskModel> EmulatedDisk<M> {
    /// Serves one command. `None`: the drive has none.
    fn serve(&self, state: &mut EmulatedState<M>) -> Option<(u64, Option<Completer<IoDone>>, IoDone)> {
        let id = state.model.serve()?;
        let QueuedIo { io, completer } = state.running.remove(&id)?;
        if completer.is_some() {
            state.queue.finished(io.class);
            state.fill();
        }
        let mut kind = io.kind;
        match &mut kind {
            IoKind::Read(buf) => state.image.read(io.at, buf),
            IoKind::Write { buf, .. } => state.image.write(io.at, buf),
            IoKind::Flush => {}
            IoKind::Discard(_) if self.geometry.discard_unit == 0 => {}
            IoKind::Discard(len) => state.image.fill(io.at, *len, DISCARDED),
            IoKind::WriteZeroes(len) => state.image.fill(io.at, *len, 0),
        }
        self.tally.count(&kind);
        Some((id, completer, IoDone { result: Ok(()), buf: kind.into_buf() }))
    }

    /// Starts a command on this thread and serves until it has ended.
    fn run_now(&self, at: u64, kind: IoKind) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.geometry, kind.name(), at, kind.len_bytes())?;
        let mut state = self.state.lock();
        let own = state.start(QueuedIo { io: Io { at, kind, class: IoClass::Foreground }, completer: None });
        while let Some((id, completer, done)) = self.serve(&mut state) {
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
        self.state.lock().model.now()
    }
}

impl<M: DiskModel> CompletionDriver for EmulatedDisk<M> {
    fn drive(&self) -> bool {
        let mut state = self.state.lock();
        let (completer, done) = match state.ended.pop_front() {
            Some(ended) => ended,
            None => match self.serve(&mut state) {
                Some((_, Some(completer), done)) => (completer, done),
                Some((_, None, _)) => return true,
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
            state.queue.push(io.class, QueuedIo { io, completer: Some(completer) });
            parts.push(part);
        }
        state.fill();
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
        self.disk.state.lock().model.name()
    }

    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        Some(self.disk.clone())
    }
}

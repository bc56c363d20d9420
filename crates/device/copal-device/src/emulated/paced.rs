//! `PacedDevice`: a model of a disk on the wall clock, for programs with threads.
//!
//! One thread of the device serves the commands in the order of the drive. It answers each when the clock has
//! reached the end that the model computed. A command begins at the later of its submission and the end of the
//! one before it, so a late answer delays no other command. Times below 1 ms are those of the machine's timers.
//!
//! Invariants
//! - No command is answered, and none takes effect, before its end in the model.
//! - Hooks run on the device's thread, one at a time.
//! - Commands that were submitted before the device is dropped are served; the drop waits for them.

use super::contents::DiskContents;
use super::disk_state::{DiskState, QueuedIo, ServedIo};
use super::hdd::{HddModel, HddProfile};
use super::model::{DiskModel, ModelCounters};
use super::paced_clock::PacedClock;
use super::ssd::{SsdModel, SsdProfile};
use crate::completion::enter_delivering_thread;
use crate::device::tally::IoTally;
use crate::device::{check_io, check_range};
use crate::{
    AlignedBuf, Completer, Completion, Device, DeviceCounters, DeviceError, Geometry, Io, IoClass, IoDone,
    IoKind,
};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

/// A hard disk on the wall clock.
pub type PacedHdd = PacedDevice<HddModel>;
/// A flash drive on the wall clock.
pub type PacedSsd = PacedDevice<SsdModel>;

/// A device that takes as long as a model of a disk. See the module's text.
pub struct PacedDevice<M: DiskModel + 'static> {
    disk: Arc<PacedDisk<M>>,
    thread: Option<JoinHandle<()>>,
}

struct PacedDisk<M> {
    state: Mutex<PacedState<M>>,
    /// No submitted command is without an answer.
    idle: Condvar,
    geometry: Geometry,
    tally: IoTally,
    clock: Arc<dyn PacedClock>,
    thread: OnceLock<ThreadId>,
}

struct PacedState<M> {
    disk: DiskState<M, Box<dyn DiskContents>>,
    /// Commands that ended while a hook waited for another one.
    ended: VecDeque<(Completer<IoDone>, IoDone)>,
    /// Submitted commands whose hooks have not returned.
    unanswered: usize,
    is_dropped: bool,
    /// A hook panicked, so no thread serves any more.
    is_broken: bool,
}

impl PacedDevice<HddModel> {
    /// A disk that holds `contents` and whose time is that of `clock`, which no other device has.
    ///
    /// # Panics
    /// As [`HddModel::new`], or when the size is no multiple of the logical block.
    /// # Errors
    /// The size of the contents is unknown, or the system has no thread.
    pub fn new(
        contents: Box<dyn DiskContents>,
        profile: HddProfile,
        clock: Arc<dyn PacedClock>,
    ) -> Result<Arc<PacedHdd>, DeviceError> {
        let size = contents.size_bytes()?;
        let geometry = profile.geometry(size);
        PacedDevice::of_model(HddModel::new(size, profile), contents, geometry, clock)
    }
}

impl PacedDevice<SsdModel> {
    /// A drive that holds `contents` and whose time is that of `clock`, which no other device has. Its
    /// translation layer is empty all the same.
    ///
    /// # Panics
    /// As [`SsdModel::new`], or when the size is no multiple of the logical block.
    /// # Errors
    /// The size of the contents is unknown, or the system has no thread.
    pub fn new(
        contents: Box<dyn DiskContents>,
        profile: SsdProfile,
        clock: Arc<dyn PacedClock>,
    ) -> Result<Arc<PacedSsd>, DeviceError> {
        let size = contents.size_bytes()?;
        let geometry = profile.geometry(size);
        PacedDevice::of_model(SsdModel::new(size, profile), contents, geometry, clock)
    }
}

impl<M: DiskModel + 'static> PacedDevice<M> {
    fn of_model(
        model: M,
        contents: Box<dyn DiskContents>,
        geometry: Geometry,
        clock: Arc<dyn PacedClock>,
    ) -> Result<Arc<PacedDevice<M>>, DeviceError> {
        assert!(
            geometry.size.is_multiple_of(u64::from(geometry.logical_block)),
            "the size of a device is a multiple of its block"
        );
        let state = PacedState {
            disk: DiskState::new(model, contents, &geometry),
            ended: VecDeque::new(),
            unanswered: 0,
            is_dropped: false,
            is_broken: false,
        };
        let disk = Arc::new(PacedDisk {
            state: Mutex::new(state),
            idle: Condvar::new(),
            geometry,
            tally: IoTally::default(),
            clock,
            thread: OnceLock::new(),
        });
        let served = Arc::clone(&disk);
        let thread = std::thread::Builder::new()
            .name("paced-disk".to_owned())
            .spawn(move || served.run())
            .map_err(|error| DeviceError::io("start", 0, 0, error))?;
        Ok(Arc::new(PacedDevice { disk, thread: Some(thread) }))
    }

    /// Work of the disk since the device was made.
    #[must_use]
    pub fn model_counters(&self) -> ModelCounters {
        self.disk.state.lock().disk.model.counters()
    }
}

impl<M: DiskModel + 'static> Drop for PacedDevice<M> {
    fn drop(&mut self) {
        self.disk.state.lock().is_dropped = true;
        self.disk.clock.wake();
        // A hook may hold the last reference: then the thread ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl<M: DiskModel> PacedState<M> {
    fn queue(&mut self, io: Io, arrival: Duration) -> Completion<IoDone> {
        if self.is_broken {
            return refused(io, DeviceError::Poisoned);
        }
        let (completer, done) = Completion::pair(None);
        self.disk.push(QueuedIo { io, completer: Some(completer), arrival });
        self.unanswered += 1;
        done
    }
}

fn refused(io: Io, error: DeviceError) -> Completion<IoDone> {
    Completion::ready(IoDone { result: Err(error), buf: io.kind.into_buf() })
}

/// Breaks the device if a hook panics: no command has a thread any more.
struct ServiceGuard<'a, M: DiskModel>(&'a PacedDisk<M>);

impl<M: DiskModel> Drop for ServiceGuard<'_, M> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_broken = true;
        state.unanswered = 0;
        let ended = std::mem::take(&mut state.ended);
        let abandoned = state.disk.abandon();
        drop(state);
        self.0.idle.notify_all();
        drop((ended, abandoned));
    }
}

impl<M: DiskModel> PacedDisk<M> {
    /// Serves until the device is dropped and idle.
    fn run(&self) {
        enter_delivering_thread();
        let _ = self.thread.set(std::thread::current().id());
        let guard = ServiceGuard(self);
        loop {
            let ended = self.state.lock().ended.pop_front();
            let served = ended.or_else(|| {
                let ServedIo { completer, done, .. } = self.serve()?;
                Some((completer?, done))
            });
            let Some((completer, done)) = served else { break };
            completer.complete(done);
            let mut state = self.state.lock();
            state.unanswered -= 1;
            if state.unanswered == 0 {
                self.idle.notify_all();
            }
        }
        drop(guard);
    }

    /// Waits for the end of the next command and serves it. `None`: the device is dropped and idle.
    fn serve(&self) -> Option<ServedIo> {
        loop {
            let mut state = self.state.lock();
            let end = state.disk.model.next_end();
            match end {
                Some(end) if self.clock.now() >= end => return state.disk.serve(&self.tally),
                None if state.is_dropped => return None,
                _ => {}
            }
            drop(state);
            self.clock.pause(end);
        }
    }

    /// Runs a command for a caller that waits.
    fn run_now(&self, at: u64, kind: IoKind) -> Result<AlignedBuf, DeviceError> {
        check_range(&self.geometry, kind.name(), at, kind.len_bytes())?;
        let io = Io { at, kind, class: IoClass::Foreground };
        let done = if self.thread.get() == Some(&std::thread::current().id()) {
            self.run_in_hook(io)?
        } else {
            let (sender, receiver) = mpsc::channel();
            let mut state = self.state.lock();
            let arrival = self.clock.now();
            let done = state.queue(io, arrival);
            state.disk.fill();
            drop(state);
            self.clock.wake();
            done.on_complete(move |done| drop(sender.send(done)));
            // Without an answer, the device broke.
            receiver.recv().map_err(|_| DeviceError::Poisoned)?
        };
        done.result?;
        done.buf.ok_or(DeviceError::Poisoned)
    }

    /// Serves on the device's own thread until the command has ended. Others are answered when the hook has
    /// returned, because their hooks could take a lock that it holds.
    fn run_in_hook(&self, io: Io) -> Result<IoDone, DeviceError> {
        let arrival = self.clock.now();
        let own = self.state.lock().disk.start(QueuedIo { io, completer: None, arrival });
        loop {
            let Some(ServedIo { id, completer, done }) = self.serve() else {
                return Err(DeviceError::Poisoned);
            };
            match completer {
                Some(completer) => self.state.lock().ended.push_back((completer, done)),
                None if id == own => return Ok(done),
                None => {}
            }
        }
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let mut parts = Vec::with_capacity(ios.len());
        let mut state = self.state.lock();
        let arrival = self.clock.now();
        for io in ios {
            parts.push(match check_io(&self.geometry, &io) {
                Ok(()) => state.queue(io, arrival),
                Err(error) => refused(io, error),
            });
        }
        state.disk.fill();
        drop(state);
        self.clock.wake();
        Completion::join(parts)
    }
}

impl<M: DiskModel + 'static> Device for PacedDevice<M> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        self.disk.submit(ios)
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
        false
    }

    fn wait_idle(&self) {
        if self.disk.thread.get() == Some(&std::thread::current().id()) {
            return;
        }
        let mut state = self.disk.state.lock();
        while state.unanswered > 0 {
            self.disk.idle.wait(&mut state);
        }
    }

    fn engine(&self) -> &'static str {
        self.disk.state.lock().disk.model.name()
    }
}

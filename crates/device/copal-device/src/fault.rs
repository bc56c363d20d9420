//! A device in memory that records its history and injects faults.
//!
//! It owns no thread: a thread that waits for a completion runs the events, in submission order or in an
//! order drawn from the seed. So one thread and one seed give one run. [`FaultDevice::history`] feeds the
//! crash enumerator ([`crate::crash`]). [`FaultDevice::inject`] arms single faults; a [`FaultBudget`] draws
//! them at random.
//!
//! The model
//! - The medium and the kernel above it outlive the handle: [`FaultDevice::reopen`] stands for "the process
//!   was killed and started again". Completed writes are still present, none of them durable (C5).
//! - A failed write or flush poisons the handle (C7). Reopening after a failed flush finds a device that was
//!   reset: some legal crash state, durable from then on.
//! - Discarded ranges read as junk (C6).
//! - Activity of other threads during a write-through is armed as work
//!   ([`FaultDevice::beside_next_write_through`]).
//! - Writes through the page cache complete at once, so a kill keeps them; a power loss treats them like
//!   others.
//! - A pristine shadow is kept from the first fault on, for oracles and for [`FaultDevice::heal`].

mod inject;
mod medium;

pub use inject::{Fault, FaultBudget, FlushFault, WriteFault};

use crate::completion::CompletionDriver;
use crate::device::tally::IoTally;
use crate::device::{check_inside, check_io, check_range};
use crate::error::DeviceError;
use crate::memory::memory_geometry;
use crate::record::DeviceHistory;
use crate::{
    AlignedBuf, Completer, Completion, Device, DeviceCounters, Geometry, Image, Io, IoClass, IoDone, IoKind,
    PageCache,
};
use medium::{CommandPlan, FaultMedium};
use parking_lot::Mutex;
use std::sync::Arc;

/// Which of the I/Os in flight completes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionOrder {
    /// Before `submit` returns.
    Immediate,
    /// As submitted.
    Fifo,
    /// Last submitted first: the slowest device for the first caller.
    Lifo,
    /// Drawn from the seed.
    #[default]
    Shuffled,
}

/// Properties of a fault device.
#[derive(Clone, Debug)]
pub struct FaultOptions {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Order of completions.
    pub order: CompletionOrder,
    /// Unit of tearing in bytes: 512 or 4096.
    pub logical_block: u32,
    /// Growth beyond this is refused.
    pub max_size: u64,
    /// Random faults.
    pub budget: FaultBudget,
    /// Keep the history. Long runs turn it off to save memory.
    pub record: bool,
    /// The host's file system is full: a write into a discarded range fails until the range is reserved
    /// again.
    pub full_host: bool,
}

impl Default for FaultOptions {
    fn default() -> FaultOptions {
        FaultOptions {
            seed: 0,
            order: CompletionOrder::Shuffled,
            logical_block: 4096,
            max_size: u64::MAX,
            budget: FaultBudget::default(),
            record: true,
            full_host: false,
        }
    }
}

/// An I/O that was submitted and has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingIo {
    /// For [`FaultDevice::complete`].
    pub id: u64,
    /// "read", "write", "flush", "discard" or "write zeroes".
    pub op: &'static str,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// As submitted.
    pub class: IoClass,
}

struct InFlightIo {
    id: u64,
    io: Io,
    plan: CommandPlan,
    completer: Completer<IoDone>,
}

struct DiskState {
    medium: FaultMedium,
    queue: Vec<InFlightIo>,
    /// Handles of earlier generations are poisoned.
    generation: u64,
    /// Work of other threads during the next write-through.
    beside: Option<Beside>,
}

/// Work of other threads, done by the only thread.
type Beside = Box<dyn FnOnce() + Send>;

/// State shared by all handles: the medium, and the commands in flight.
struct FaultDisk {
    state: Mutex<DiskState>,
    tally: IoTally,
    options: FaultOptions,
}

/// A recording device in memory with faults. See the module's text.
pub struct FaultDevice {
    disk: Arc<FaultDisk>,
    generation: u64,
}

impl FaultDevice {
    /// `size` zero bytes, a multiple of 4096; completions in an order drawn from `seed`.
    #[must_use]
    pub fn new(size: u64, seed: u64) -> Arc<FaultDevice> {
        FaultDevice::from_image(Image::zeroed(size), seed)
    }

    /// Like [`FaultDevice::new`], with `image` on it, wholly durable.
    #[must_use]
    pub fn from_image(image: Image, seed: u64) -> Arc<FaultDevice> {
        FaultDevice::with_options(image, FaultOptions { seed, ..FaultOptions::default() })
    }

    /// A device with `image` on it and the properties in `options`.
    ///
    /// # Panics
    /// When the size is no multiple of the logical block.
    #[must_use]
    pub fn with_options(image: Image, options: FaultOptions) -> Arc<FaultDevice> {
        assert!(matches!(options.logical_block, 512 | 4096), "a logical block is 512 or 4096 bytes");
        assert!(
            image.size().is_multiple_of(u64::from(options.logical_block)),
            "the size of a device is a multiple of its block"
        );
        let medium = FaultMedium::new(image, &options);
        let state = Mutex::new(DiskState { medium, queue: Vec::new(), generation: 0, beside: None });
        Arc::new(FaultDevice {
            disk: Arc::new(FaultDisk { state, tally: IoTally::default(), options }),
            generation: 0,
        })
    }

    /// All events so far.
    #[must_use]
    pub fn history(&self) -> DeviceHistory {
        self.disk.state.lock().medium.history.clone()
    }

    /// Number of events so far. A test notes it at an acknowledgement and demands the data from all later
    /// steps.
    #[must_use]
    pub fn step(&self) -> usize {
        self.disk.state.lock().medium.history.len()
    }

    /// Current content as reads return it, without read faults.
    #[must_use]
    pub fn image(&self) -> Image {
        self.disk.state.lock().medium.image.clone()
    }

    /// The content if no fault had struck.
    #[must_use]
    pub fn pristine(&self) -> Image {
        let state = self.disk.state.lock();
        state.medium.shadow.as_ref().unwrap_or(&state.medium.image).clone()
    }

    /// Arms a fault.
    pub fn inject(&self, fault: Fault) {
        self.disk.state.lock().medium.inject(fault);
    }

    /// From now on growth beyond `max_size` is refused.
    pub fn limit_growth(&self, max_size: u64) {
        self.disk.state.lock().medium.max_size = max_size;
    }

    /// Disarms all faults and repairs the medium: it then holds the pristine content, durably.
    pub fn heal(&self) {
        self.disk.state.lock().medium.heal();
    }

    /// Runs `work` in the middle of the next write-through, as another thread would. A crash then may keep
    /// any part of that write, and a flush does not cover it. `None` disarms.
    pub fn beside_next_write_through(&self, work: Option<Box<dyn FnOnce() + Send>>) {
        self.disk.state.lock().beside = work;
    }

    /// I/Os in flight, in order of submission.
    #[must_use]
    pub fn pending(&self) -> Vec<PendingIo> {
        let state = self.disk.state.lock();
        state
            .queue
            .iter()
            .map(|pending| PendingIo {
                id: pending.id,
                op: pending.io.kind.name(),
                at: pending.io.at,
                len: pending.io.kind.len_bytes(),
                class: pending.io.class,
            })
            .collect()
    }

    /// Completes this I/O next, regardless of the order; `false` if it is not in flight.
    pub fn complete(&self, id: u64) -> bool {
        self.disk.run(|queue| queue.iter().position(|pending| pending.id == id))
    }

    /// Runs events until nothing is in flight.
    pub fn run_until_idle(&self) {
        while self.disk.drive() {}
    }

    /// The process dies and another opens the device. I/Os in flight happen or not, by the seed. This and all
    /// earlier handles answer `Poisoned` from now on. The history continues.
    #[must_use]
    pub fn reopen(&self) -> Arc<FaultDevice> {
        let (generation, orphans) = {
            let mut state = self.disk.state.lock();
            let orphans = std::mem::take(&mut state.queue);
            for pending in &orphans {
                state.medium.settle_in_flight(&pending.plan);
            }
            state.medium.revive();
            state.generation += 1;
            (state.generation, orphans)
        };
        for pending in orphans {
            let buf = pending.io.kind.into_buf();
            pending.completer.complete(IoDone { result: Err(DeviceError::Poisoned), buf });
        }
        Arc::new(FaultDevice { disk: Arc::clone(&self.disk), generation })
    }
}

impl FaultDisk {
    /// Runs the pending I/O that `choose` selects.
    fn run(&self, choose: impl FnOnce(&[InFlightIo]) -> Option<usize>) -> bool {
        let mut state = self.state.lock();
        let Some(index) = choose(&state.queue) else {
            return false;
        };
        let InFlightIo { io, plan, completer, .. } = state.queue.remove(index);
        let mut kind = io.kind;
        let result = state.medium.execute(io.at, &mut kind, plan);
        drop(state);
        if result.is_ok() {
            self.tally.count(&kind);
        }
        completer.complete(IoDone { result, buf: kind.into_buf() });
        true
    }

    fn geometry(&self, size: u64) -> Geometry {
        Geometry { logical_block: self.options.logical_block, ..memory_geometry(size) }
    }
}

impl CompletionDriver for FaultDisk {
    fn drive(&self) -> bool {
        let chance = match self.options.order {
            CompletionOrder::Shuffled => self.state.lock().medium.random.next(),
            _ => 0,
        };
        let order = self.options.order;
        self.run(|queue| {
            let last = queue.len().checked_sub(1)?;
            Some(match order {
                CompletionOrder::Immediate | CompletionOrder::Fifo => 0,
                CompletionOrder::Lifo => last,
                CompletionOrder::Shuffled => (chance % (last as u64 + 1)) as usize,
            })
        })
    }
}

impl DiskState {
    fn admit(
        &mut self,
        geometry: &Geometry,
        generation: u64,
        io: &Io,
    ) -> Result<(u64, CommandPlan), DeviceError> {
        check_io(geometry, io)?;
        if generation != self.generation {
            return Err(DeviceError::Poisoned);
        }
        self.medium.begin(io.at, &io.kind)
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        let size = self.disk.state.lock().medium.image.size();
        self.disk.geometry(size)
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let mut parts = Vec::with_capacity(ios.len());
        let mut own = Vec::new();
        let mut state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        for io in ios {
            match state.admit(&geometry, self.generation, &io) {
                Ok((id, plan)) => {
                    let driver: Arc<dyn CompletionDriver> = self.disk.clone();
                    let (completer, part) = Completion::pair(Some(driver));
                    state.queue.push(InFlightIo { id, io, plan, completer });
                    own.push(id);
                    parts.push(part);
                }
                Err(error) => {
                    parts.push(Completion::ready(IoDone { result: Err(error), buf: io.kind.into_buf() }));
                }
            }
        }
        drop(state);
        if self.disk.options.order == CompletionOrder::Immediate {
            for id in own {
                self.complete(id);
            }
        }
        Completion::join(parts)
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let mut state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        check_range(&geometry, "read", at, buf.len() as u64)?;
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        let mut kind = IoKind::Read(buf);
        let (_, plan) = state.medium.begin(at, &kind)?;
        state.medium.execute(at, &mut kind, plan)?;
        self.disk.tally.count(&kind);
        drop(state);
        kind.into_buf().ok_or(DeviceError::Poisoned)
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let mut state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        let io = Io { at, kind: IoKind::Write { buf, fua: true }, class: IoClass::Commit };
        let (_, plan) = state.admit(&geometry, self.generation, &io)?;
        if let Some(work) = state.beside.take() {
            drop(state);
            work();
            state = self.disk.state.lock();
        }
        let mut kind = io.kind;
        state.medium.execute(at, &mut kind, plan)?;
        self.disk.tally.count(&kind);
        drop(state);
        kind.into_buf().ok_or(DeviceError::Poisoned)
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        let mut state = self.disk.state.lock();
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        let wanted = size.next_multiple_of(u64::from(self.disk.options.logical_block));
        state.medium.grow(wanted)
    }

    fn can_grow(&self) -> bool {
        self.disk.state.lock().medium.can_grow()
    }

    fn cut(&self, size: u64) -> Result<u64, DeviceError> {
        let mut state = self.disk.state.lock();
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        let wanted = size.next_multiple_of(u64::from(self.disk.options.logical_block));
        state.medium.cut(wanted)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        check_range(&geometry, "reserve", at, len)?;
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        state.medium.reserve(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.disk.tally.counters()
    }

    fn drive(&self) -> bool {
        self.disk.drive()
    }

    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        Some(self.disk.clone())
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        Some(self)
    }
}

/// A cached write is a write of whole blocks that completes at once. The rest of the blocks keeps its bytes,
/// as in a page of the kernel.
impl PageCache for FaultDevice {
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        check_inside(&geometry, "cached write", at, bytes.len() as u64)?;
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        let block = u64::from(geometry.logical_block);
        let (from, end) = (at - at % block, (at + bytes.len() as u64).next_multiple_of(block));
        let mut buf = AlignedBuf::zeroed((end - from) as usize);
        state.medium.image.read(from, &mut buf);
        buf[(at - from) as usize..][..bytes.len()].copy_from_slice(bytes);
        let mut kind = IoKind::Write { buf, fua: false };
        let (_, plan) = state.medium.begin(from, &kind)?;
        state.medium.execute(from, &mut kind, plan)
    }

    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.disk.state.lock();
        let geometry = self.disk.geometry(state.medium.image.size());
        check_inside(&geometry, "cached read", at, out.len() as u64)?;
        if self.generation != state.generation {
            return Err(DeviceError::Poisoned);
        }
        state.medium.image.read(at, out);
        Ok(())
    }
}

impl std::fmt::Debug for FaultDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.disk.state.lock();
        f.debug_struct("FaultDevice")
            .field("size", &state.medium.image.size())
            .field("events", &state.medium.history.len())
            .field("in_flight", &state.queue.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

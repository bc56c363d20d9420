//! Model of a flash drive: commands through one pipeline, writes into a buffer that drains to the medium, reads
//! from many dies.
//!
//! A write ends when its units are in the buffer, so it waits for the medium only while the buffer is full. A
//! write that covers a mapping unit partly reads that unit first, from its die. By default the medium takes
//! units at the constant rate of the drive's data sheet, which has the drive's own garbage collection in it.
//! With a translation layer ([`SsdProfile::translation`]) the medium is faster, and host and collection share it.
//!
//! All commands are served as they come. The end of a command depends on earlier ones only, so it is known when
//! the command is accepted.
//!
//! Paper: draconis §3.1 describes the drive of the default parameters: page, parallelism, limits

use super::model::{CommandKind, DiskModel, ModelCommand, ModelCounters, nanos};
use super::translation::{TranslationLayer, TranslationProfile};
use crate::Geometry;
use crate::memory::memory_geometry;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

/// Parameters of a flash drive; the default is a data-centre drive with power-loss protection (P3700).
#[derive(Clone, Debug)]
pub struct SsdProfile {
    /// Commands that the pipeline takes in a second.
    pub command_rate: f64,
    /// Time of a client before each command: of its program and of the kernel.
    pub client_time: Duration,
    /// Time of a write from the pipeline to the buffer.
    pub write_time: Duration,
    /// Time in which a die reads a mapping unit.
    pub read_time: Duration,
    /// Dies that read at the same time.
    pub dies: usize,
    /// Bytes of a mapping unit.
    pub unit_bytes: u64,
    /// Units that the write buffer holds. A small buffer shows the steady state, a large one a burst.
    pub buffer_units: u64,
    /// Units a second from the buffer to the medium, if there is no translation layer.
    pub drain_rate: f64,
    /// Bytes of reads that pass the interface in a second.
    pub read_bandwidth: f64,
    /// Time of a flush, and of the flush inside a durable write. 0: the buffer survives a power loss.
    pub flush_time: Duration,
    /// Number of commands that the drive takes at a time.
    pub queue_depth: usize,
    /// Smallest unit that the device writes atomically, in bytes.
    pub logical_block: u32,
    /// Translation layer, which sets the cost of each unit; `None`: all units cost the same.
    pub translation: Option<TranslationProfile>,
}

impl Default for SsdProfile {
    fn default() -> SsdProfile {
        SsdProfile {
            command_rate: 460_000.0,
            client_time: Duration::from_nanos(2800),
            write_time: Duration::from_micros(18),
            read_time: Duration::from_micros(75),
            dies: 64,
            unit_bytes: 4096,
            buffer_units: 64,
            drain_rate: 175_000.0,
            read_bandwidth: 2.8e9,
            flush_time: Duration::ZERO,
            queue_depth: 128,
            logical_block: 512,
            translation: None,
        }
    }
}

impl SsdProfile {
    /// A drive without power-loss protection: a flush takes a millisecond.
    #[must_use]
    pub fn consumer() -> SsdProfile {
        SsdProfile { flush_time: Duration::from_millis(1), ..SsdProfile::default() }
    }

    /// Properties of a drive of `size` bytes, as its device has them.
    pub(super) fn geometry(&self, size: u64) -> Geometry {
        Geometry {
            logical_block: self.logical_block,
            discard_unit: u32::try_from(self.unit_bytes).unwrap_or(u32::MAX),
            gives_back: false,
            ..memory_geometry(size)
        }
    }

    /// The same drive with a translation layer and this much spare space, as a share of its size.
    #[must_use]
    pub fn with_spare(self, spare: f64) -> SsdProfile {
        let translation = Some(TranslationProfile { spare, ..TranslationProfile::default() });
        SsdProfile { translation, ..self }
    }
}

/// A flash drive in virtual time.
pub struct SsdModel {
    profile: SsdProfile,
    translation: Option<TranslationLayer>,
    size: u64,
    now: u64,
    /// Commands in the drive: end, order, id.
    ends: BinaryHeap<Reverse<(u64, u64, u64)>>,
    accepted: u64,
    /// Times at which each part has done all its work so far.
    pipeline: u64,
    dies: Vec<u64>,
    interface: u64,
    drain: u64,
    flushing: u64,
    counters: ModelCounters,
    busy_until: u64,
}

impl SsdModel {
    /// An empty drive of `size` bytes.
    ///
    /// # Panics
    /// When a rate, the mapping unit, the depth or the number of dies is not positive, or the translation layer
    /// cannot be made.
    #[must_use]
    pub fn new(size: u64, profile: SsdProfile) -> SsdModel {
        let rates = [profile.command_rate, profile.drain_rate, profile.read_bandwidth];
        assert!(
            rates.iter().all(|rate| *rate > 0.0)
                && profile.dies > 0
                && profile.unit_bytes > 0
                && profile.queue_depth > 0,
            "a drive has dies, units and a queue, and makes progress"
        );
        let translation = profile.translation.as_ref().map(|translation| {
            assert!(translation.media_rate > 0.0, "the medium makes progress");
            TranslationLayer::new(size.div_ceil(profile.unit_bytes), profile.unit_bytes, translation)
        });
        SsdModel {
            translation,
            size,
            now: 0,
            ends: BinaryHeap::new(),
            accepted: 0,
            pipeline: 0,
            dies: vec![0; profile.dies],
            interface: 0,
            drain: 0,
            flushing: 0,
            counters: ModelCounters::default(),
            busy_until: 0,
            profile,
        }
    }

    fn units(&self, command: &ModelCommand) -> Range<u64> {
        command.at / self.profile.unit_bytes..command.end().div_ceil(self.profile.unit_bytes)
    }

    /// Reads units from their dies from `start` on; returns the end.
    fn read_units(&mut self, start: u64, units: impl Iterator<Item = u64>) -> u64 {
        let time = nanos(self.profile.read_time);
        let mut end = start;
        for unit in units {
            let dies = self.dies.len() as u64;
            let die = &mut self.dies[(unit % dies) as usize];
            *die = start.max(*die) + time;
            end = end.max(*die);
            self.counters.media_reads += 1;
        }
        end
    }

    fn read(&mut self, start: u64, command: &ModelCommand) -> u64 {
        let units = self.units(command);
        let end = self.read_units(start, units);
        let transfer = (command.len as f64 * 1e9 / self.profile.read_bandwidth).round() as u64;
        // The transfer of the first units overlaps the reads of the last.
        let first = start + nanos(self.profile.read_time);
        self.interface = self.interface.max(first) + transfer;
        end.max(self.interface)
    }

    fn write(&mut self, start: u64, command: &ModelCommand) -> u64 {
        let units = self.units(command);
        let bytes = self.profile.unit_bytes;
        let first = (!command.at.is_multiple_of(bytes)).then_some(units.start);
        let last =
            (!command.end().is_multiple_of(bytes)).then(|| units.end - 1).filter(|last| first != Some(*last));
        let partial = first.into_iter().chain(last);
        self.counters.partial_units += partial.clone().count() as u64;
        let start = self.read_units(start, partial);
        let (written, rate) = match (&mut self.translation, &self.profile.translation) {
            (Some(layer), Some(profile)) => {
                (units.map(|unit| layer.write(unit)).sum::<u64>(), profile.media_rate)
            }
            _ => (units.end - units.start, self.profile.drain_rate),
        };
        self.counters.media_writes += written;
        let drain_time = |units: u64| (units as f64 * 1e9 / rate).round() as u64;
        self.drain = self.drain.max(start) + drain_time(written);
        let taken = start.max(self.drain.saturating_sub(drain_time(self.profile.buffer_units)));
        taken + nanos(self.profile.write_time)
    }

    fn flush(&mut self, start: u64) -> u64 {
        if self.profile.flush_time.is_zero() {
            return start;
        }
        self.flushing = self.flushing.max(start) + nanos(self.profile.flush_time);
        self.flushing
    }

    fn trim(&mut self, command: &ModelCommand) {
        let bytes = self.profile.unit_bytes;
        if let Some(layer) = &mut self.translation {
            (command.at.div_ceil(bytes)..command.end() / bytes).for_each(|unit| layer.trim(unit));
        }
    }
}

impl DiskModel for SsdModel {
    fn name(&self) -> &'static str {
        "emulated SSD"
    }

    fn depth(&self) -> usize {
        self.profile.queue_depth
    }

    fn accept(&mut self, id: u64, mut command: ModelCommand, arrival: Duration) {
        command.at = command.at.min(self.size);
        command.len = command.len.min(self.size - command.at);
        let arrival = nanos(arrival) + nanos(self.profile.client_time);
        let start = self.pipeline.max(arrival) + (1e9 / self.profile.command_rate).round() as u64;
        self.pipeline = start;
        let end = match command.kind {
            CommandKind::Read => self.read(start, &command),
            CommandKind::Write => self.write(start, &command),
            CommandKind::WriteThrough => {
                let taken = self.write(start, &command);
                self.flush(taken)
            }
            CommandKind::Flush => self.flush(start),
            CommandKind::Discard => {
                self.trim(&command);
                start
            }
        };
        self.counters.busy += Duration::from_nanos(end.saturating_sub(self.busy_until.max(arrival)));
        self.busy_until = self.busy_until.max(end);
        self.ends.push(Reverse((end, self.accepted, id)));
        self.accepted += 1;
    }

    fn next_end(&mut self) -> Option<Duration> {
        self.ends.peek().map(|Reverse((end, ..))| Duration::from_nanos(*end))
    }

    fn serve(&mut self) -> Option<u64> {
        let Reverse((end, _, id)) = self.ends.pop()?;
        self.now = self.now.max(end);
        self.counters.commands += 1;
        Some(id)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn counters(&self) -> ModelCounters {
        let collected_units = self.translation.as_ref().map_or(0, TranslationLayer::collected);
        ModelCounters { collected_units, ..self.counters }
    }
}

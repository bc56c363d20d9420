//! Model of a hard disk: one head over turning tracks, and a queue in the order of the shortest positioning
//! time.
//!
//! The angle of a byte follows from its address. A seek takes a constant and a share that grows with the root
//! of the distance. The drive prepares a command while it serves another, so only a command that finds the
//! drive idle pays for its preparation. That is the difference between one command at a time, which misses a
//! turn, and two in the queue, which stream. An idle drive begins with the first command that comes; the order
//! of the queue counts among those that come meanwhile.
//!
//! A flush is not queued: the drive serves it after all commands before it, and before all behind it.

use super::model::{CommandKind, DiskModel, ModelCommand, ModelCounters, nanos};
use super::write_cache::WriteCache;
use crate::Geometry;
use crate::memory::memory_geometry;
use std::collections::VecDeque;
use std::time::Duration;

/// Parameters of a hard disk; the default is an ordinary disk of 7,200 turns a minute.
#[derive(Clone, Debug)]
pub struct HddProfile {
    /// Turns a minute.
    pub rpm: u32,
    /// Constant part of a seek.
    pub seek_base: Duration,
    /// Part of a seek over the whole stroke; a shorter one takes the root of its share.
    pub seek_stroke: Duration,
    /// Bytes that pass the head in one turn.
    pub track_bytes: u64,
    /// Bytes between the outermost and the innermost track; `None`: the size of the device. A store on a part
    /// of a larger disk seeks over that part only.
    pub stroke_bytes: Option<u64>,
    /// Preparation of a command by host and drive.
    pub command_time: Duration,
    /// Number of waiting commands among which the drive chooses.
    pub queue_depth: usize,
    /// Size of the volatile write cache, which a flush empties in one sweep; 0: writes go to the medium.
    pub write_cache_bytes: u64,
    /// A read that continues the last read takes its transfer only, since the track is in the drive's memory.
    pub read_ahead: bool,
    /// Smallest unit that the device writes atomically, in bytes.
    pub logical_block: u32,
}

impl Default for HddProfile {
    fn default() -> HddProfile {
        HddProfile {
            rpm: 7200,
            seek_base: Duration::from_micros(320),
            seek_stroke: Duration::from_micros(14_800),
            track_bytes: 1_600_000,
            stroke_bytes: None,
            command_time: Duration::from_micros(100),
            queue_depth: 32,
            write_cache_bytes: 0,
            read_ahead: false,
            logical_block: 4096,
        }
    }
}

impl HddProfile {
    /// Properties of a disk of `size` bytes, as its device has them.
    pub(super) fn geometry(&self, size: u64) -> Geometry {
        Geometry {
            logical_block: self.logical_block,
            discard_unit: 0,
            gives_back: false,
            rotational: true,
            ..memory_geometry(size)
        }
    }
}

/// Waits shorter than this are rounding errors of a head that is already there.
const ROUNDING_NANOS: f64 = 1000.0;

struct WaitingCommand {
    id: u64,
    command: ModelCommand,
    arrival: u64,
    /// End of the preparation.
    ready: u64,
}

/// The command that the head serves.
#[derive(Clone, Copy)]
struct BegunCommand {
    id: u64,
    end: u64,
}

/// A hard disk in virtual time.
pub struct HddModel {
    profile: HddProfile,
    stroke: f64,
    /// Nanoseconds of a turn.
    turn: f64,
    waiting: VecDeque<WaitingCommand>,
    /// The first waiting command found the drive idle and goes first.
    goes_first: bool,
    begun: Option<BegunCommand>,
    now: u64,
    /// First byte behind the last access.
    head: u64,
    /// First byte behind the last read, while the drive has its track in memory.
    read_end: Option<u64>,
    cache: WriteCache,
    size: u64,
    counters: ModelCounters,
}

impl HddModel {
    /// A disk of `size` bytes whose head stands over its first byte.
    ///
    /// # Panics
    /// When turns, track, stroke or depth are 0.
    #[must_use]
    pub fn new(size: u64, profile: HddProfile) -> HddModel {
        let stroke = profile.stroke_bytes.unwrap_or(size);
        assert!(
            profile.rpm > 0 && profile.track_bytes > 0 && stroke > 0 && profile.queue_depth > 0,
            "a disk turns, and has tracks and a queue"
        );
        HddModel {
            stroke: stroke as f64,
            turn: 60e9 / f64::from(profile.rpm),
            waiting: VecDeque::new(),
            goes_first: false,
            begun: None,
            now: 0,
            head: 0,
            read_end: None,
            cache: WriteCache::default(),
            size,
            counters: ModelCounters::default(),
            profile,
        }
    }

    /// Position of the command to serve next.
    fn choose(&self) -> Option<usize> {
        let is_flush = |waiting: &WaitingCommand| waiting.command.kind == CommandKind::Flush;
        if self.goes_first || self.waiting.front().is_some_and(is_flush) {
            return Some(0);
        }
        let window =
            self.waiting.iter().take(self.profile.queue_depth).take_while(|waiting| !is_flush(waiting));
        window.enumerate().min_by_key(|(_, waiting)| self.reach(waiting)).map(|(place, _)| place)
    }

    /// Time at which the transfer of a command could begin.
    fn reach(&self, waiting: &WaitingCommand) -> u64 {
        let start = self.now.max(waiting.ready);
        if self.takes_medium(&waiting.command) { self.arrive(start, waiting.command.at).1 } else { start }
    }

    /// Whether the head must be positioned for the command.
    fn takes_medium(&self, command: &ModelCommand) -> bool {
        match command.kind {
            CommandKind::Flush | CommandKind::Discard => false,
            CommandKind::WriteThrough => true,
            CommandKind::Write => command.len > self.profile.write_cache_bytes,
            CommandKind::Read => !self.continues(command) && !self.cache.covers(command.at, command.end()),
        }
    }

    /// Whether the drive has the begin of a read in memory already.
    fn continues(&self, command: &ModelCommand) -> bool {
        self.profile.read_ahead && self.read_end == Some(command.at)
    }

    /// Whether the head changes tracks on its way to `at`, and the time at which `at` is below it.
    fn arrive(&self, start: u64, at: u64) -> (bool, u64) {
        let seeks = at / self.profile.track_bytes != self.head / self.profile.track_bytes;
        let mut time = start as f64;
        if seeks {
            let share = (at.abs_diff(self.head) as f64 / self.stroke).min(1.0).sqrt();
            time += nanos(self.profile.seek_base) as f64 + nanos(self.profile.seek_stroke) as f64 * share;
        }
        let angle = (at % self.profile.track_bytes) as f64 / self.profile.track_bytes as f64;
        let wait = (angle * self.turn - time).rem_euclid(self.turn);
        let wait = if wait + ROUNDING_NANOS > self.turn { 0.0 } else { wait };
        (seeks, (time + wait).round() as u64)
    }

    fn transfer(&self, len: u64) -> u64 {
        (len as f64 / self.profile.track_bytes as f64 * self.turn).round() as u64
    }

    /// Moves the head and transfers; returns the end.
    fn access(&mut self, start: u64, at: u64, len: u64) -> u64 {
        let (seeks, reached) = self.arrive(start, at);
        self.counters.seeks += u64::from(seeks);
        self.counters.positioning += Duration::from_nanos(reached - start);
        self.head = at + len;
        reached + self.transfer(len)
    }

    /// Writes all dirty ranges to the medium.
    fn empty_cache(&mut self, start: u64) -> u64 {
        let sweep = self.cache.take_sweep(self.head);
        self.counters.media_writes += sweep.len() as u64;
        sweep.into_iter().fold(start, |time, (at, end)| self.access(time, at, end - at))
    }

    /// The command under the head; if there is none, the next one in the drive's order.
    fn begin(&mut self) -> Option<BegunCommand> {
        if self.begun.is_none() {
            let WaitingCommand { id, command, arrival, ready } = self.waiting.remove(self.choose()?)?;
            self.goes_first = false;
            let end = self.execute(self.now.max(ready), &command);
            self.counters.busy += Duration::from_nanos(end - self.now.max(arrival));
            self.begun = Some(BegunCommand { id, end });
        }
        self.begun
    }

    fn execute(&mut self, start: u64, command: &ModelCommand) -> u64 {
        let ModelCommand { kind, at, len } = *command;
        let takes_medium = self.takes_medium(command);
        match kind {
            CommandKind::Flush => self.empty_cache(start),
            CommandKind::Discard => start,
            CommandKind::Read if takes_medium => {
                self.counters.media_reads += 1;
                self.read_end = Some(command.end());
                self.access(start, at, len)
            }
            CommandKind::Read if self.continues(command) => {
                self.counters.media_reads += 1;
                (self.read_end, self.head) = (Some(command.end()), command.end());
                start + self.transfer(len)
            }
            CommandKind::Read => start,
            CommandKind::Write | CommandKind::WriteThrough if takes_medium => {
                self.counters.media_writes += 1;
                self.access(start, at, len)
            }
            CommandKind::Write | CommandKind::WriteThrough => {
                let full = self.cache.bytes().saturating_add(len) > self.profile.write_cache_bytes;
                let start = if full { self.empty_cache(start) } else { start };
                self.cache.insert(at, command.end());
                start
            }
        }
    }
}

impl DiskModel for HddModel {
    fn name(&self) -> &'static str {
        "emulated HDD"
    }

    fn depth(&self) -> usize {
        self.profile.queue_depth
    }

    fn accept(&mut self, id: u64, mut command: ModelCommand, arrival: Duration) {
        command.at = command.at.min(self.size);
        command.len = command.len.min(self.size - command.at);
        let arrival = nanos(arrival);
        let ready = arrival + nanos(self.profile.command_time);
        self.goes_first |= self.waiting.is_empty() && self.begun.is_none();
        self.waiting.push_back(WaitingCommand { id, command, arrival, ready });
    }

    fn next_end(&mut self) -> Option<Duration> {
        self.begin().map(|begun| Duration::from_nanos(begun.end))
    }

    fn serve(&mut self) -> Option<u64> {
        let BegunCommand { id, end } = self.begin()?;
        self.begun = None;
        self.counters.commands += 1;
        self.now = end;
        Some(id)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn counters(&self) -> ModelCounters {
        self.counters
    }
}

//! Loads on a device: commands of one kind, size and depth, for a number of commands or a time.

use super::{
    error::ProbeError,
    statistics::{quantile, rate_of_bursts},
};
use crate::{AlignedBuf, Device, Io, IoClass, IoDone, IoKind, random::DeviceRandom};
use std::{ops::Range, sync::mpsc, time::Duration};

/// Time limits that a load may take to tell bursts from a single slow command.
const PAUSE_LIMITS: u32 = 6;

/// Kind and size of the commands of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeLoad {
    pub(super) writes: bool,
    pub(super) bytes: u32,
    /// Commands that wait together.
    pub(super) depth: u32,
    /// Each command begins behind the one before it; otherwise anywhere.
    pub(super) sequential: bool,
}

impl ProbeLoad {
    pub(super) fn random(writes: bool, bytes: u32, depth: u32) -> ProbeLoad {
        ProbeLoad { writes, bytes, depth, sequential: false }
    }

    pub(super) fn sequential(writes: bool, bytes: u32, depth: u32) -> ProbeLoad {
        ProbeLoad { writes, bytes, depth, sequential: true }
    }
}

/// Commands of a load that ran without a pause.
#[derive(Debug, Default)]
pub(super) struct LoadSlice {
    /// Time of each command.
    pub(super) times: Vec<Duration>,
    /// Commands a second, from the moment when the depth was reached; between bursts, if there are some.
    pub(super) rate: f64,
    /// Most commands ended together with others, and none for most of the time.
    pub(super) is_in_bursts: bool,
}

impl LoadSlice {
    /// Time of a command of a load of depth 1: the median, or the mean of bursts.
    pub(super) fn lone_time(&mut self) -> Duration {
        match self.is_in_bursts {
            true => Duration::from_secs_f64(1.0 / self.rate.max(1e-3)),
            false => quantile(&mut self.times, 0.5),
        }
    }
}

/// Runs loads in one range of a device.
pub(super) struct LoadRunner<'a> {
    device: &'a dyn Device,
    span: Range<u64>,
    random: DeviceRandom,
    cursor: u64,
    /// Bytes that no layer below can compress.
    noise: Vec<u8>,
    is_ended: Box<dyn Fn() -> bool + Send>,
}

type Ended = (Duration, Vec<IoDone>);

impl<'a> LoadRunner<'a> {
    pub(super) fn new(
        device: &'a dyn Device,
        span: Range<u64>,
        seed: u64,
        is_ended: Box<dyn Fn() -> bool + Send>,
    ) -> LoadRunner<'a> {
        let mut random = DeviceRandom::new(seed);
        let noise = (0..1 << 17).flat_map(|_| random.next().to_le_bytes()).collect();
        LoadRunner { device, cursor: span.start, span, random, noise, is_ended }
    }

    pub(super) fn device(&self) -> &'a dyn Device {
        self.device
    }

    pub(super) fn now(&self) -> Duration {
        self.device.clock().now()
    }

    pub(super) fn random(&mut self) -> &mut DeviceRandom {
        &mut self.random
    }

    /// From now on commands go to this part of the range.
    pub(super) fn narrow(&mut self, span: Range<u64>) {
        self.cursor = span.start;
        self.span = span;
    }

    /// Place of the next command of `bytes`, a power of two.
    pub(super) fn place(&mut self, sequential: bool, bytes: u64) -> u64 {
        if !sequential {
            let first = self.span.start.div_ceil(bytes);
            let places = (self.span.end / bytes).saturating_sub(first);
            return (first + self.random.below(places)) * bytes;
        }
        if self.cursor + bytes > self.span.end {
            self.cursor = self.span.start;
        }
        let at = self.cursor;
        self.cursor += bytes;
        at
    }

    /// A buffer of bytes that differ from those of any other.
    pub(super) fn buffer(&mut self, bytes: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(bytes);
        self.refill(&mut buf);
        buf
    }

    fn refill(&mut self, buf: &mut AlignedBuf) {
        let bytes = buf.len();
        buf[..bytes].copy_from_slice(&self.noise[..bytes]);
        for page in buf.chunks_mut(512) {
            page[..8].copy_from_slice(&self.random.next().to_le_bytes());
        }
    }

    fn check_end(&self) -> Result<(), ProbeError> {
        if (self.is_ended)() { Err(ProbeError::Interrupted) } else { Ok(()) }
    }

    /// Runs one command and returns its time.
    pub(super) fn time(&self, io: Io) -> Result<Duration, ProbeError> {
        self.check_end()?;
        let begin = self.now();
        self.device.submit(vec![io]).wait().into_iter().try_for_each(|done| done.result)?;
        Ok(self.now().saturating_sub(begin))
    }

    /// Runs `load` until `commands` have ended or `limit` is over, but for at least as many commands as show
    /// its rate.
    pub(super) fn run(
        &mut self,
        load: ProbeLoad,
        commands: u64,
        limit: Duration,
    ) -> Result<LoadSlice, ProbeError> {
        let (ended, arrivals) = mpsc::channel::<Ended>();
        let depth = u64::from(load.depth);
        // The depth, and half as many at it.
        let least = depth + (depth / 2).max(3);
        let begin = self.now();
        let (mut started, mut finished) = (0, 0);
        let mut slice = LoadSlice::default();
        let (mut ramp_end, mut rate_end) = (begin, begin);
        let mut counted = 0;
        let mut spare = None;
        let mut ends: Vec<Duration> = Vec::new();
        let mut longest_pause = Duration::ZERO;
        loop {
            self.check_end()?;
            let elapsed = self.now().saturating_sub(begin);
            // A pause longer than all else is of a burst: the next one shows whether more follow.
            let is_told = 2 * longest_pause <= elapsed || elapsed >= PAUSE_LIMITS * limit;
            let is_over = finished >= least && (finished >= commands || elapsed >= limit) && is_told;
            while !is_over && started - finished < depth {
                self.start(load, spare.take(), &ended);
                started += 1;
            }
            if started == finished {
                break;
            }
            let (time, done) = self.next(&arrivals)?;
            finished += 1;
            for done in done {
                done.result?;
                spare = done.buf;
            }
            slice.times.push(time);
            let now = self.now();
            let end = now.saturating_sub(begin);
            longest_pause = longest_pause.max(end.saturating_sub(ends.last().copied().unwrap_or(end)));
            ends.push(end);
            if depth > 1 && finished == depth {
                ramp_end = now;
            } else if !is_over {
                counted += u64::from(depth == 1 || finished > depth);
                rate_end = now;
            }
        }
        let time = rate_end.saturating_sub(ramp_end).as_secs_f64().max(1e-9);
        let rate_of_bursts = rate_of_bursts(&ends);
        slice.is_in_bursts = rate_of_bursts.is_some();
        slice.rate = rate_of_bursts.unwrap_or(counted as f64 / time);
        Ok(slice)
    }

    fn start(&mut self, load: ProbeLoad, spare: Option<AlignedBuf>, ended: &mpsc::Sender<Ended>) {
        let at = self.place(load.sequential, load.bytes.into());
        let mut buf = spare.unwrap_or_else(|| AlignedBuf::zeroed(load.bytes as usize));
        let kind = match load.writes {
            true => {
                self.refill(&mut buf);
                IoKind::Write { buf, fua: false }
            }
            false => IoKind::Read(buf),
        };
        let (begin, ended, clock) = (self.now(), ended.clone(), self.device.clock());
        let done = self.device.submit(vec![Io { at, kind, class: IoClass::Foreground }]);
        // The receiver is gone after an error.
        done.on_complete(move |done| drop(ended.send((clock.since(begin), done))));
    }

    /// The next command that ends, with its time.
    fn next(&self, arrivals: &mpsc::Receiver<Ended>) -> Result<Ended, ProbeError> {
        loop {
            match arrivals.try_recv() {
                Ok(ended) => return Ok(ended),
                Err(mpsc::TryRecvError::Empty) if self.device.drive() => {}
                Err(_) => return arrivals.recv().map_err(|_| ProbeError::Lost),
            }
        }
    }
}

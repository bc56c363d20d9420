//! `ClosedLoad`: writes to a device of which a fixed number is always on its way.

use anyhow::{Context, Result};
use copal_device::{AlignedBuf, Device, Io, IoClass, IoDone, IoKind};
use copal_testkit::Random;
use std::{sync::mpsc, time::Duration};

/// Places of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOrder {
    Random,
    /// Each write begins behind the one before it.
    Sequential,
}

/// Writes of one size, order and depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedLoad {
    pub(super) order: WriteOrder,
    pub(super) bytes: u32,
    pub(super) depth: u64,
    /// Writes between two flushes, for which all writes wait; 0: no flush.
    pub(super) flush_every: u64,
}

/// End of a load: a number of writes, or on a disk of the machine a time if it comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadLimit {
    pub(super) writes: u64,
    pub(super) time: Duration,
}

impl LoadLimit {
    /// As many as a model needs to be steady, or a turn on a disk of the machine.
    pub(super) const TURN: LoadLimit = LoadLimit { writes: 20_000, time: Duration::from_millis(200) };
}

/// Turns of each load on a disk of the machine.
const TURNS: usize = 5;

/// Runs loads in turns and returns the most operations a second of each. Other work on the machine only lowers a rate. A model needs one
/// turn.
pub(super) fn in_turns<T>(
    device: &dyn Device,
    loads: &[T],
    mut run: impl FnMut(&T, LoadLimit) -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut best = vec![0.0_f64; loads.len()];
    let turns = if device.clock().is_virtual() { 1 } else { TURNS };
    for turn in 0..turns {
        for step in 0..loads.len() {
            let index = (turn + step) % loads.len();
            best[index] = best[index].max(run(&loads[index], LoadLimit::TURN)?);
        }
    }
    Ok(best)
}

/// A load that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadRate {
    pub(super) writes: u64,
    pub(super) seconds: f64,
}

impl LoadRate {
    pub(super) fn per_second(self) -> f64 {
        self.writes as f64 / self.seconds.max(1e-9)
    }
}

type EndedWrite = Vec<IoDone>;

impl ClosedLoad {
    pub(super) fn random(bytes: u32, depth: u64) -> ClosedLoad {
        ClosedLoad { order: WriteOrder::Random, bytes, depth, flush_every: 0 }
    }

    /// Runs the load over the whole device.
    pub(super) fn run(self, device: &dyn Device, limit: LoadLimit) -> Result<LoadRate> {
        let (sender, arrivals) = mpsc::channel();
        let clock = device.clock();
        let places = device.geometry().size / u64::from(self.bytes);
        let mut random = Random::new(u64::from(self.bytes) ^ self.depth << 32);
        let mut spare: Vec<AlignedBuf> = (0..self.depth).map(|_| noise(self.bytes, &mut random)).collect();
        let begin = clock.now();
        let (mut started, mut ended) = (0, 0);
        loop {
            let is_late = !clock.is_virtual() && ended > self.depth && clock.since(begin) >= limit.time;
            let is_over = ended >= limit.writes || is_late;
            let is_due = self.flush_every > 0 && started / self.flush_every > ended / self.flush_every;
            while !is_over && !is_due && started - ended < self.depth {
                let place = match self.order {
                    WriteOrder::Random => random.below(places),
                    WriteOrder::Sequential => started % places,
                };
                let mut buf = spare.pop().context("a buffer for each write on its way")?;
                buf[..8].copy_from_slice(&started.to_le_bytes());
                let at = place * u64::from(self.bytes);
                let io = Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Foreground };
                let sender: mpsc::Sender<EndedWrite> = sender.clone();
                // The receiver is gone after an error.
                device.submit(vec![io]).on_complete(move |done| drop(sender.send(done)));
                started += 1;
                if self.flush_every > 0 && started % self.flush_every == 0 {
                    break;
                }
            }
            if started == ended {
                break;
            }
            for done in next(device, &arrivals)? {
                done.result?;
                spare.extend(done.buf);
            }
            ended += 1;
            if self.flush_every > 0 && ended % self.flush_every == 0 {
                flush(device)?;
            }
        }
        Ok(LoadRate { writes: ended, seconds: clock.since(begin).as_secs_f64() })
    }
}

fn flush(device: &dyn Device) -> Result<()> {
    let io = Io { at: 0, kind: IoKind::Flush, class: IoClass::Foreground };
    device.submit(vec![io]).wait().into_iter().try_for_each(|done| done.result)?;
    Ok(())
}

fn next(device: &dyn Device, arrivals: &mpsc::Receiver<EndedWrite>) -> Result<EndedWrite> {
    loop {
        match arrivals.try_recv() {
            Ok(done) => return Ok(done),
            Err(mpsc::TryRecvError::Empty) if device.drive() => {}
            Err(_) => return arrivals.recv().context("a device that lost a command"),
        }
    }
}

/// Bytes that no layer below can compress.
fn noise(bytes: u32, random: &mut Random) -> AlignedBuf {
    let bytes: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    AlignedBuf::padded(&bytes, 512)
}

/// Writes from several threads, each waiting for its own.
pub(super) fn on_threads(
    device: &dyn Device,
    bytes: u32,
    threads: u64,
    limit: LoadLimit,
) -> Result<LoadRate> {
    let share = LoadLimit { writes: limit.writes / threads, ..limit };
    let one = |thread: u64| -> Result<LoadRate> {
        let mut random = Random::new(thread);
        let places = device.geometry().size / u64::from(bytes);
        let clock = device.clock();
        let begin = clock.now();
        let mut buf = noise(bytes, &mut random);
        let mut writes = 0;
        while writes < share.writes && clock.since(begin) < share.time {
            let at = random.below(places) * u64::from(bytes);
            let io = Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Foreground };
            let mut done = device.submit(vec![io]).wait();
            let done = done.pop().context("an answer for each command")?;
            done.result?;
            buf = done.buf.context("a write gives its buffer back")?;
            writes += 1;
        }
        Ok(LoadRate { writes, seconds: clock.since(begin).as_secs_f64() })
    };
    std::thread::scope(|scope| {
        let begin = |thread| std::thread::Builder::new().spawn_scoped(scope, move || one(thread));
        let running =
            (0..threads).map(begin).collect::<Result<Vec<_>, _>>().context("no thread for a writer")?;
        let mut sum = LoadRate::default();
        for thread in running {
            let rate = thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            sum = LoadRate { writes: sum.writes + rate.writes, seconds: sum.seconds.max(rate.seconds) };
        }
        Ok(sum)
    })
}

//! Look-ups and scans.

use super::{Done, Limit, on_threads};
use crate::{
    engine::Engine,
    keys::{Key, Random, Ranks, key, scattered},
    protocol::Request,
};
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    match request {
        Request::Gets { .. } => gets(engine, request),
        Request::MultiGets { .. } => multi_gets(engine, request),
        Request::Scans { .. } => scans(engine, request),
        _ => bail!("not a read: {request:?}"),
    }
}

/// Single look-ups from several threads.
fn gets(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Gets { keys, skew, missing, ops, seconds, threads, seed } = *request else {
        bail!("not such a read: {request:?}")
    };
    let ranks = Ranks::new(skew, keys);
    on_threads(threads, |thread| {
        let mut draw = Draw::new(&ranks, keys, missing, seed, thread);
        let limit = Limit::new(seconds, ops.div_ceil(threads as u64));
        let mut done = Done::new();
        let mut now = Instant::now();
        while !limit.reached(done.ops, now) {
            let before = done.ops.is_multiple_of(CPU_EVERY).then(thread_cpu);
            let found = draw.look_up(engine)?;
            if let Some(before) = before {
                done.cpu.add(thread_cpu().saturating_sub(before));
            }
            let end = Instant::now();
            done.latencies.add(end - now);
            now = end;
            done.ops += 1;
            done.found += u64::from(found);
        }
        Ok(done)
    })
}

/// Look-ups in batches from several threads.
fn multi_gets(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::MultiGets { keys, skew, missing, batch, seconds, threads, seed } = *request else {
        bail!("not such a read: {request:?}")
    };
    let ranks = Ranks::new(skew, keys);
    on_threads(threads, |thread| {
        let mut draw = Draw::new(&ranks, keys, missing, seed, thread);
        let limit = Limit::new(seconds, 0);
        let mut done = Done::new();
        let mut now = Instant::now();
        while !limit.reached(done.ops, now) {
            let drawn: Vec<(u64, bool)> = (0..batch).map(|_| draw.next()).collect();
            let wanted = drawn.iter().filter(|(_, there)| *there).count() as u64;
            let asked: Vec<Key> = drawn.iter().map(|(id, _)| key(*id)).collect();
            let found = engine.multi_get(&asked)?;
            if found != wanted {
                bail!("{found} of {wanted} keys were found");
            }
            let end = Instant::now();
            done.latencies.add(end - now);
            now = end;
            done.ops += batch as u64;
            done.found += found;
        }
        Ok(done)
    })
}

/// Scans of a few entries from random keys.
fn scans(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Scans { keys, skew, entries, seconds, seed } = *request else {
        bail!("not such a read: {request:?}")
    };
    let ranks = Ranks::new(skew, keys);
    let mut draw = Draw::new(&ranks, keys, 0.0, seed, 0);
    let limit = Limit::new(seconds, 0);
    let mut done = Done::new();
    let mut now = Instant::now();
    while !limit.reached(done.ops, now) {
        let (id, _) = draw.next();
        done.found += engine.scan(&key(id), entries)? as u64;
        let end = Instant::now();
        done.latencies.add(end - now);
        now = end;
        done.ops += 1;
    }
    Ok(done)
}

/// Number of look-ups per measurement of processor time: reading the clock costs a system call.
const CPU_EVERY: u64 = 16;

/// Processor time of the calling thread.
pub(super) fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Ids to look up: loaded ones and, with the given share, ids that were never loaded.
pub(super) struct Draw<'a> {
    ranks: &'a Ranks,
    keys: u64,
    missing: f64,
    random: Random,
}

impl<'a> Draw<'a> {
    pub(super) fn new(ranks: &'a Ranks, keys: u64, missing: f64, seed: u64, thread: u64) -> Draw<'a> {
        Draw { ranks, keys, missing, random: Random::new(seed.wrapping_mul(0x1000).wrapping_add(thread)) }
    }

    /// Looks up the next id and checks the answer against the known state.
    pub(super) fn look_up(&mut self, engine: &dyn Engine) -> Result<bool> {
        let (id, there) = self.next();
        let found = engine.get(&key(id))?.is_some();
        if found != there {
            let what = if found { "found, never stored" } else { "lost" };
            bail!("id {id} was {what}");
        }
        Ok(found)
    }

    /// An id and whether it exists.
    fn next(&mut self) -> (u64, bool) {
        let rank = self.ranks.draw(&mut self.random);
        if self.missing > 0.0 && self.random.unit() < self.missing {
            (rank + self.keys, false)
        } else {
            (scattered(rank, self.keys), true)
        }
    }
}

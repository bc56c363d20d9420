//! `WriteLoad`: the writes of one run, and the work of an engine for them.

use super::{
    super::super::engine,
    ENTRY_BYTES, name_of,
    place::{EnginePlace, TraceText},
};
use crate::{
    keys::{Random, fill_value},
    protocol::{Kind, Safety},
};
use anyhow::Result;
use std::{
    fs,
    time::{Duration, Instant},
};

/// Writes whose commands are recorded where each write waits for the disk. A longer record does not fit its buffer.
const TRACED_DURABLE: u64 = 4000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// Each key is the next number.
    Ascending,
    /// Nine of ten from the first tenth of `keys` numbers, one of ten from all.
    Skewed { keys: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WriteLoad {
    pub(super) order: KeyOrder,
    pub(super) writes: u64,
    /// Each write waits until it is safe from a power loss.
    pub(super) durable: bool,
}

/// One run of a load on an engine.
pub(super) struct LoadResult {
    pub(super) writes: u64,
    /// Until the last write had returned.
    pub(super) seconds: f64,
    /// Until no merge was due.
    pub(super) still_seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Tables written from memory.
    pub(super) tables: f64,
    pub(super) compactions: f64,
    pub(super) merged_bytes: f64,
    /// Commands of the disk, and the number of writes they belong to.
    pub(super) trace: Option<(TraceText, u64)>,
}

impl LoadResult {
    pub(super) fn per_second(&self) -> f64 {
        self.writes as f64 / self.seconds.max(1e-9)
    }
}

impl WriteLoad {
    pub(super) fn name(&self) -> String {
        match self.order {
            KeyOrder::Ascending => "in key order".to_owned(),
            KeyOrder::Skewed { keys } => format!("skewed over {keys} keys"),
        }
    }

    /// Bytes of the newest entries at the end, at most.
    pub(super) fn live_bytes(&self) -> u64 {
        let keys = match self.order {
            KeyOrder::Ascending => self.writes,
            KeyOrder::Skewed { keys } => keys.min(self.writes),
        };
        keys * ENTRY_BYTES
    }

    /// Runs the load on a new store, which is removed afterwards.
    pub(super) fn run(&self, kind: Kind, place: &EnginePlace) -> Result<LoadResult> {
        let directory = place.directory().join(name_of(kind));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        let engine = engine::open(&super::spec(kind, self, directory.clone())?)?;
        let safety = if self.durable { Safety::Device } else { Safety::Bulk };
        let traced = if self.durable { TRACED_DURABLE.min(self.writes) } else { self.writes };
        let mut random = Random::new(4);
        let mut value = [0; 512];
        let mut trace = None;
        place.start_trace()?;
        let (begin, cpu) = (Instant::now(), cpu_time());
        for number in 0..self.writes {
            fill_value(number, &mut value);
            engine.put(format!("{:016}", self.key(number, &mut random)).as_bytes(), &value, safety)?;
            if self.durable && number + 1 == traced {
                trace = place.stop_trace()?;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        engine.await_merges()?;
        if !self.durable {
            trace = place.stop_trace()?;
        }
        let still_seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
        let counters = engine.counters();
        let counter = |name: &str| counters.get(name).copied().unwrap_or(0.0);
        let (tables, compactions) = (counter("flushes"), counter("merges"));
        let merged_bytes = counter("merged_bytes");
        engine.close()?;
        drop(engine);
        fs::remove_dir_all(&directory)?;
        Ok(LoadResult {
            writes: self.writes,
            seconds,
            still_seconds,
            cpu_seconds,
            tables,
            compactions,
            merged_bytes,
            trace: trace.map(|text| (text, traced)),
        })
    }

    fn key(&self, number: u64, random: &mut Random) -> u64 {
        match self.order {
            KeyOrder::Ascending => number,
            KeyOrder::Skewed { keys } if random.below(10) < 9 => random.below((keys / 10).max(1)),
            KeyOrder::Skewed { keys } => random.below(keys),
        }
    }
}

/// Processor time of this process, all threads.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

//! The engine's process: reads requests, runs them, answers.
//!
//! Invariant: between two requests only the engine's own threads run here.

mod background_load;
mod churn;
mod queue;
mod reads;
mod writes;
mod ycsb;

use crate::{
    engine::{self, Engine},
    latency::Latencies,
    protocol::{Answer, Request},
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

/// Serves requests on standard input until `Close` or its end.
pub(crate) fn serve() -> Result<()> {
    let mut engine: Option<Box<dyn Engine>> = None;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let closing = matches!(request, Request::Close);
        let answer = handle(&mut engine, &request)
            .unwrap_or_else(|error| Answer { error: Some(format!("{error:#}")), ..Answer::default() });
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
        if closing {
            break;
        }
    }
    Ok(())
}

fn handle(slot: &mut Option<Box<dyn Engine>>, request: &Request) -> Result<Answer> {
    match request {
        Request::Open(spec) => {
            let started = Instant::now();
            let engine = slot.insert(engine::open(spec)?);
            let (version, options) = engine.describe();
            Ok(Answer { seconds: started.elapsed().as_secs_f64(), version, options, ..Answer::default() })
        }
        Request::Close => {
            if let Some(engine) = slot.take() {
                engine.close()?;
            }
            Ok(Answer::default())
        }
        request => measure(&**slot.as_ref().context("no engine is open")?, request),
    }
}

/// Performs a request other than `Open` and `Close`, with its time, processor time and counters.
pub(crate) fn measure(engine: &dyn Engine, request: &Request) -> Result<Answer> {
    let before = engine.counters();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let done = perform(engine, request)?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Answer {
        error: None,
        ops: done.ops,
        found: done.found,
        seconds,
        cpu_seconds: cpu_seconds() - cpu,
        latency: done.latencies.quantiles(),
        cpu: done.cpu.quantiles(),
        write_latency: done.write_latencies.quantiles(),
        counters: added(&before, engine.counters()),
        ..Answer::default()
    })
}

/// Result of a piece of work.
struct Done {
    ops: u64,
    found: u64,
    latencies: Latencies,
    cpu: Latencies,
    write_latencies: Latencies,
}

impl Done {
    fn new() -> Done {
        Done {
            ops: 0,
            found: 0,
            latencies: Latencies::new(),
            cpu: Latencies::new(),
            write_latencies: Latencies::new(),
        }
    }

    fn merge(&mut self, other: &Done) {
        self.ops += other.ops;
        self.found += other.found;
        self.latencies.merge(&other.latencies);
        self.cpu.merge(&other.cpu);
        self.write_latencies.merge(&other.write_latencies);
    }
}

fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    match request {
        Request::Load { .. } | Request::Writes { .. } | Request::LoadPrefix { .. } => {
            writes::perform(engine, request)
        }
        Request::Gets { .. } | Request::MultiGets { .. } | Request::Scans { .. } => {
            reads::perform(engine, request)
        }
        Request::Ycsb { .. } => ycsb::perform(engine, request),
        Request::Churn(_) => churn::perform(engine, request),
        Request::Queue { .. } => queue::perform(engine, request),
        Request::ReadsBesideWrites { .. } => background_load::perform(engine, request),
        Request::Purge { prefix } => {
            engine.purge(&[*prefix])?;
            Ok(Done::new())
        }
        Request::Flush => {
            engine.flush()?;
            Ok(Done::new())
        }
        Request::AwaitMerges => {
            engine.await_merges()?;
            Ok(Done::new())
        }
        Request::Compact => {
            engine.compact()?;
            Ok(Done::new())
        }
        Request::Facts => Ok(Done::new()),
        Request::Open(_) | Request::Close => unreachable!("handled before"),
    }
}

/// Runs `work` on that many threads, each with its own number, and sums the results.
fn on_threads(threads: usize, work: impl Fn(u64) -> Result<Done> + Sync) -> Result<Done> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut sum = Done::new();
        for thread in running {
            let done = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))?;
            sum.merge(&done);
        }
        Ok(sum)
    })
}

/// End of a piece of work: a time, or a number of operations.
struct Limit {
    end: Instant,
    ops: u64,
}

impl Limit {
    /// 0 stands for "no limit" in both.
    fn new(seconds: f64, ops: u64) -> Limit {
        let seconds = if seconds > 0.0 { seconds } else { 1e6 };
        Limit {
            end: Instant::now() + Duration::from_secs_f64(seconds),
            ops: if ops > 0 { ops } else { u64::MAX },
        }
    }

    fn reached(&self, done: u64, now: Instant) -> bool {
        done >= self.ops || now >= self.end
    }
}

/// Change of the counters between two readings; levels are the later ones.
fn added(before: &BTreeMap<String, f64>, now: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let difference = |name: &String, value: f64| {
        if name.ends_with("_now") { value } else { value - before.get(name).copied().unwrap_or(0.0) }
    };
    now.into_iter()
        .map(|(name, value)| {
            let value = difference(&name, value);
            (name, value)
        })
        .collect()
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields after the name, which may hold spaces: utime and stime are the 12th and 13th.
    let fields: Vec<&str> =
        text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / per_second
}

//! Shared state of all simulated processes: seed, virtual time, log of events, and counts of events.
//!
//! Invariant: all random numbers come from here, in the order in which the one thread asks.

use crate::rules::random::Random;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;

/// Wall clock at the beginning of a run: ms since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Target of a process' log lines.
struct Journal(Arc<World>);

impl std::io::Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        let host = self.0.turn.load(Ordering::Relaxed);
        self.0.log(|| format!("host {host}: {}", line.trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Number of last lines kept for the report of a violation.
const KEPT_LINES: usize = 200_000;

struct State {
    random: Random,
    hash: DefaultHasher,
    lines: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

/// Shared state of one run.
pub(super) struct World {
    began: Instant,
    state: Mutex<State>,
    /// The host whose process is running.
    turn: AtomicU32,
}

impl World {
    /// A world of one seed; must be created inside the runtime whose clock it uses.
    pub(super) fn new(seed: u64) -> Arc<World> {
        let state = State {
            random: Random(seed),
            hash: DefaultHasher::new(),
            lines: Vec::new(),
            counts: BTreeMap::new(),
        };
        Arc::new(World { began: Instant::now(), state: Mutex::new(state), turn: AtomicU32::default() })
    }

    /// Virtual time since the beginning, ms.
    pub(super) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// True wall clock: ms since 1970.
    pub(super) fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now_ms()
    }

    /// Uniform in 0..2^64.
    pub(super) fn draw(&self) -> u64 {
        self.state.lock().random.next()
    }

    /// Uniform in 0..end.
    pub(super) fn below(&self, end: u64) -> u64 {
        self.state.lock().random.below(end)
    }

    /// True once in `times` calls, on average.
    pub(super) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Uniform in `from..until` ms.
    pub(super) fn between(&self, from_ms: u64, until_ms: u64) -> Duration {
        Duration::from_millis(from_ms + self.below(until_ms - from_ms))
    }

    /// Logs an event; the line is part of the hash of the run.
    pub(super) fn log(&self, what: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.now_ms(), what());
        let mut state = self.state.lock();
        state.hash.write(line.as_bytes());
        if state.lines.len() < KEPT_LINES {
            state.lines.push(line);
        }
    }

    /// Marks the process of this host as running.
    pub(super) fn take_turn(&self, host: u32) {
        self.turn.store(host, Ordering::Relaxed);
    }

    /// Captures the log lines of processes while the guard exists.
    pub(super) fn write_down_logs(self: &Arc<World>) -> DefaultGuard {
        let world = Arc::clone(self);
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || Journal(Arc::clone(&world)));
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// Counts an event that some run must have.
    pub(super) fn sometimes(&self, what: &'static str) {
        *self.state.lock().counts.entry(what).or_default() += 1;
    }

    /// Hash of all log lines so far.
    pub(super) fn hash(&self) -> u64 {
        self.state.lock().hash.finish()
    }

    /// The log lines.
    pub(super) fn lines(&self) -> Vec<String> {
        self.state.lock().lines.clone()
    }

    /// Events and their counts.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().counts.clone()
    }
}

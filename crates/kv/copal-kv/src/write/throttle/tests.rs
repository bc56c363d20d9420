//! Tests of the delay alone, and of writers against a compactor in simulated time.

use super::*;

const MEASURED: MeasuredCosts =
    MeasuredCosts { merge_nanos: 1_000_000, user_bytes: 1000, flush_nanos: 0, flushed_bytes: 0 };

#[test]
fn the_price_grows_with_the_square_of_the_debt() {
    let at = |share| delay_nanos(1000, share, MEASURED);
    assert_eq!((at(0.0), at(0.5), at(1.0)), (0, 250_000, 1_000_000));
    assert_eq!(delay_nanos(1000, 1.0, MeasuredCosts::default()), 0);
    // Where merges were cheaper so far, a byte costs as much as two flushes of it.
    let flushes_alone =
        MeasuredCosts { merge_nanos: 500, user_bytes: 100, flush_nanos: 500, flushed_bytes: 100 };
    assert_eq!(delay_nanos(1000, 1.0, flushes_alone), 10_000);
}

/// Debt and price have no steps: one more byte changes either by almost nothing, also where a tier overflows.
#[test]
fn there_is_no_step_in_the_price() {
    const MEMTABLE: u64 = 1 << 20;
    for level in 0..3 {
        let mut before = (0, 0);
        for kib in 0..200 * 1024 {
            let mut tiers = [0; 3];
            tiers[level] = kib << 10;
            let debt = debt_of(&tiers, 0, MEMTABLE, 4);
            let now = (debt.bytes, delay_nanos(1 << 20, debt.share, MEASURED));
            assert!(now.0 - before.0 <= 1 << 10 && now.1 >= before.1);
            // Most that 1 KiB more may add to a square: 2 x share x (1 KiB / limit).
            let limit = delay_nanos(1 << 20, 1.0, MEASURED) as f64;
            assert!(((now.1 - before.1) as f64) < limit * 0.003, "level {level}, {kib} KiB");
            before = now;
        }
        assert!(before.1 > 0, "level {level} never had a price");
    }
}

#[test]
fn a_flush_changes_no_debt() {
    let full = debt_of(&[40 << 20, 0, 0], 8 << 20, 1 << 20, 4);
    assert_eq!(debt_of(&[48 << 20, 0, 0], 0, 1 << 20, 4), full);
}

#[test]
fn small_payments_are_saved_up_and_long_ones_spread() {
    let throttle = WriteThrottle::default();
    let paid: Duration = (0..1000).filter_map(|_| throttle.add(50_000)).sum();
    assert!(paid >= Duration::from_micros(49_800), "{paid:?} of 50 ms");
    let throttle = WriteThrottle::default();
    assert_eq!(throttle.add(250_000_000), Some(LONGEST));
    assert_eq!(throttle.add(0), Some(LONGEST));
    assert_eq!(throttle.add(0), Some(Duration::from_millis(50)));
    assert_eq!(throttle.add(0), None);
}

/// A flusher and a worker that each move `bytes_per_second`, three tiers over a bottom, and writers that
/// never pause.
struct Simulation {
    tiers: [u64; 3],
    memtables: u64,
    /// Bytes left to write of the merge of each tier; 0: none is running.
    left: [u64; 3],
    merge_nanos: u64,
    flush_nanos: u64,
    flushed: u64,
    bytes_per_second: u64,
}

const MEMTABLE: u64 = 1 << 20;
const SLICE: u64 = 64 << 10;

impl Simulation {
    fn measured(&self) -> MeasuredCosts {
        MeasuredCosts {
            merge_nanos: self.merge_nanos,
            user_bytes: self.flushed.max(4 * MEMTABLE),
            flush_nanos: self.flush_nanos,
            flushed_bytes: self.flushed,
        }
    }

    fn debt(&self) -> MergeDebt {
        debt_of(&self.tiers, self.memtables, MEMTABLE, 4)
    }

    fn nanos(&self, bytes: u64) -> u64 {
        bytes * 1_000_000_000 / self.bytes_per_second
    }

    /// The flusher's next memtable. Returns the time it took; `None`: nothing to do.
    fn flush(&mut self) -> Option<u64> {
        if self.memtables < MEMTABLE {
            return None;
        }
        self.memtables -= MEMTABLE;
        self.tiers[0] += MEMTABLE;
        self.flushed += MEMTABLE;
        let took = self.nanos(MEMTABLE);
        self.flush_nanos += took;
        Some(took)
    }

    /// The worker's next slice, of the first full tier. Returns the time it took; `None`: nothing to do.
    fn slice(&mut self) -> Option<u64> {
        let full =
            |level: &usize| self.left[*level] > 0 || self.tiers[*level] >= 4 * (MEMTABLE << (2 * level));
        let level = (0..3).find(full)?;
        if self.left[level] == 0 {
            self.left[level] = self.tiers[level];
        }
        let moved = SLICE.min(self.left[level]);
        self.left[level] -= moved;
        self.tiers[level] -= moved;
        if level < 2 {
            self.tiers[level + 1] += moved;
        }
        // Into the bottom, each byte rewrites nine of the bottom's.
        let written = if level == 2 { 10 * moved } else { moved };
        let took = self.nanos(written);
        self.merge_nanos += took;
        Some(took)
    }
}

#[test]
fn writers_that_never_rest_settle_at_the_speed_of_the_merges() {
    let mut simulation = Simulation {
        tiers: [0; 3],
        memtables: 0,
        left: [0; 3],
        merge_nanos: 0,
        flush_nanos: 0,
        flushed: 0,
        bytes_per_second: 100 << 20,
    };
    let throttle = WriteThrottle::default();
    // One clock for each; the one that is behind goes next.
    let (mut writer, mut flusher, mut worker) = (0u64, 0u64, 0u64);
    let (mut written, mut longest, mut worst) = (0u64, Duration::ZERO, 0.0f64);
    let (mut half, mut step, mut sum, mut groups) = (None, 0.0f64, 0.0, 0.0);
    const GROUP: u64 = 16 << 10;
    const TOTAL: u64 = 2 << 30;
    let mut before = 0.0;
    while written < TOTAL {
        if worker <= writer {
            worker = simulation.slice().map_or(writer + 1, |took| worker + took);
            continue;
        }
        if flusher <= writer {
            flusher = simulation.flush().map_or(writer + 1, |took| flusher + took);
            continue;
        }
        // Only the memory limit stops a writer: two memtables.
        if simulation.memtables >= 2 * MEMTABLE {
            writer = flusher + 1;
            continue;
        }
        // The group itself, at 400 MB/s, and its delay.
        written += GROUP;
        simulation.memtables += GROUP;
        writer += GROUP * 1_000_000_000 / (400 << 20);
        let share = simulation.debt().share;
        let measured = simulation.measured();
        if let Some(toll) = throttle.add(delay_nanos(GROUP, share, measured)) {
            longest = longest.max(toll);
            writer += toll.as_nanos() as u64;
        }
        worst = worst.max(share);
        if half.is_some() {
            (sum, groups) = (sum + share, groups + 1.0);
        }
        step = step.max(share - before);
        before = share;
        if half.is_none() && written >= TOTAL / 2 {
            half = Some((writer, simulation.merge_nanos, simulation.flushed));
        }
    }
    let (at, merging, flushed) = half.unwrap();
    let speed = (TOTAL / 2) as f64 / (writer - at) as f64;
    let per_byte = (simulation.merge_nanos - merging) as f64 / (simulation.flushed - flushed) as f64;
    let possible = 1.0 / per_byte;
    assert!((0.8..1.1).contains(&(speed / possible)), "{speed} of {possible} bytes per ns");
    let mean = sum / groups;
    // More before that: the first merge into the bottom costs more than anything measured before it.
    assert!(worst < 2.0, "debt went to {worst} of its limit");
    assert!((0.7..1.3).contains(&mean), "debt is at {mean} of its limit");
    assert!(longest <= LONGEST, "{longest:?}");
    assert!(longest < Duration::from_millis(20), "{longest:?} for a group of 16 KiB");
    // Between two groups the debt grows by the written bytes, never by a run.
    assert!(step < 0.02, "the debt jumped by {step} of its limit");
}

#[test]
fn writers_below_the_speed_of_the_merges_pay_next_to_nothing() {
    let mut simulation = Simulation {
        tiers: [0; 3],
        memtables: 0,
        left: [0; 3],
        merge_nanos: 0,
        flush_nanos: 0,
        flushed: 0,
        bytes_per_second: 100 << 20,
    };
    let throttle = WriteThrottle::default();
    let (mut writer, mut flusher, mut worker) = (0u64, 0u64, 0u64);
    let (mut paid, mut written) = (Duration::ZERO, 0u64);
    const GROUP: u64 = 16 << 10;
    while written < 1 << 30 {
        if worker <= writer {
            worker = simulation.slice().map_or(writer + 1, |took| worker + took);
            continue;
        }
        if flusher <= writer {
            flusher = simulation.flush().map_or(writer + 1, |took| flusher + took);
            continue;
        }
        written += GROUP;
        simulation.memtables += GROUP;
        // Half of the merges' throughput: 12 bytes written per user byte, flush included.
        writer += GROUP * 1_000_000_000 / (4 << 20);
        let measured = simulation.measured();
        paid += throttle.add(delay_nanos(GROUP, simulation.debt().share, measured)).unwrap_or_default();
    }
    let share = paid.as_nanos() as f64 / writer as f64;
    assert!(share < 0.02, "{paid:?} paid, {share} of the time");
}

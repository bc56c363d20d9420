//! `DeviceProbe`: the steps of a probe, in their order.

use super::{
    DecimalRatio, DeviceKind, DeviceProfile, PROBE_BYTES_MIN, ProbeConfidence, ProbeError, ProfileBackend,
    choice,
    confidence::ConfidenceWatch,
    load::{LoadRunner, ProbeLoad},
    series::{LoadSeries, steady_rate, take_turns},
    statistics::{cliff, knee, usual},
};
use crate::{Device, Io, IoClass, IoKind};
use std::{ops::Range, time::Duration};

/// Largest part of the range that is written beforehand.
const WRITTEN_BYTES_MAX: u64 = 1 << 30;
/// Longest single command.
const LONG_IO: u32 = 1 << 20;
/// Sizes of random writes among which the page is found.
const PAGE_SIZES: [u32; 7] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768];
/// A page without a cliff.
const USUAL_PAGE: u32 = 4096;
/// Depths among which the knees are found.
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Depth of the random writes that are compared with sequential ones.
const RATIO_DEPTH: u32 = 32;
/// Pages of a group.
const GROUP_PAGES: u32 = 16;
/// Bounds of the gap.
const GAP_BYTES: std::ops::RangeInclusive<u64> = 4096..=16 << 20;

/// Steps of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// Writes the range, so that reads find data.
    Prepare,
    /// Finds the page.
    Page,
    /// Compares sequential and random writes.
    Ratio,
    /// Finds the knees.
    Knees,
    /// Measures durable writes.
    Durable,
    /// Measures the bandwidth of reads; that of writes comes from their comparison.
    Bandwidth,
}

impl ProbeStep {
    /// Its name, for display.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProbeStep::Prepare => "write the range",
            ProbeStep::Page => "page",
            ProbeStep::Ratio => "sequential against random writes",
            ProbeStep::Knees => "depth",
            ProbeStep::Durable => "durable writes",
            ProbeStep::Bandwidth => "bandwidth",
        }
    }
}

/// Begin of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeProgress {
    /// The step.
    pub step: ProbeStep,
    /// Its number, from 0.
    pub number: usize,
    /// Number of steps.
    pub of: usize,
}

/// Options of a probe.
pub struct ProbeOptions {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// The probe's own range in bytes. Its contents are lost.
    pub range: Range<u64>,
    /// About the longest time on the device's clock.
    pub time_limit: Duration,
    /// Seed of places and orders.
    pub seed: u64,
    /// Whether the probe is to end; asked at each command.
    pub is_ended: Box<dyn Fn() -> bool + Send>,
    /// Commands that the disk below the device has completed so far; `None`: those of the device itself.
    pub disk_commands: Option<Box<dyn Fn() -> Option<u64> + Send>>,
}

impl ProbeOptions {
    /// A probe of the whole device, for at most 26 seconds.
    #[must_use]
    pub fn of(device: &dyn Device) -> ProbeOptions {
        ProbeOptions {
            kind: DeviceKind::Model,
            range: 0..device.geometry().size,
            time_limit: Duration::from_secs(26),
            seed: 1,
            is_ended: Box::new(|| false),
            disk_commands: None,
        }
    }
}

/// One probe of a device.
pub struct DeviceProbe<'a> {
    runner: LoadRunner<'a>,
    kind: DeviceKind,
    range: Range<u64>,
    time_limit: Duration,
    disk_commands: Option<Box<dyn Fn() -> Option<u64> + Send>>,
    watch: ConfidenceWatch,
    profile: DeviceProfile,
}

impl<'a> DeviceProbe<'a> {
    /// A probe that has measured nothing yet.
    #[must_use]
    pub fn new(device: &'a dyn Device, options: ProbeOptions) -> DeviceProbe<'a> {
        let ProbeOptions { kind, range, time_limit, seed, is_ended, disk_commands } = options;
        let geometry = device.geometry();
        let block = geometry.logical_block;
        DeviceProbe {
            runner: LoadRunner::new(device, range.clone(), seed, is_ended),
            watch: ConfidenceWatch::default(),
            profile: DeviceProfile {
                kind,
                rotational: geometry.rotational,
                zoned: geometry.zoned,
                logical_block: block,
                page_bytes: block.max(USUAL_PAGE),
                rmw_ratio: DecimalRatio(100),
                read_iops: 0,
                write_iops: 0,
                read_bytes_per_s: 0,
                write_bytes_per_s: 0,
                sequential_ratio: DecimalRatio(0),
                read_knee: 1,
                write_knee: 1,
                read_ns: 0,
                write_ns: 0,
                flush_ns: 0,
                fua_ns: 0,
                group_gain: DecimalRatio(0),
                durable_write_commands: DecimalRatio(0),
                gap_bytes: 0,
                plp: false,
                confidence: ProbeConfidence::High,
                backend: ProfileBackend::Cow,
                reason: String::new(),
            },
            kind,
            range,
            time_limit,
            disk_commands,
        }
    }

    /// Runs all steps; `progress` is called at the begin of each. Blocks for about the time limit.
    /// # Errors
    /// `TooSmall`, `Interrupted`, `Device`.
    pub fn run(mut self, progress: &mut dyn FnMut(ProbeProgress)) -> Result<DeviceProfile, ProbeError> {
        type Run<'a> = fn(&mut DeviceProbe<'a>, Duration) -> Result<(), ProbeError>;
        let bytes = self.range.end.saturating_sub(self.range.start);
        if bytes < PROBE_BYTES_MIN {
            return Err(ProbeError::TooSmall { bytes });
        }
        // DecimalRatio of the time limit.
        let steps: [(ProbeStep, u32, Run<'a>); 6] = [
            (ProbeStep::Prepare, 12, DeviceProbe::prepare),
            (ProbeStep::Page, 16, DeviceProbe::find_page),
            (ProbeStep::Ratio, 18, DeviceProbe::find_ratio),
            (ProbeStep::Knees, 26, DeviceProbe::find_knees),
            (ProbeStep::Durable, 12, DeviceProbe::time_durable_writes),
            (ProbeStep::Bandwidth, 10, DeviceProbe::find_bandwidth),
        ];
        for (number, (step, share, run)) in steps.into_iter().enumerate() {
            progress(ProbeProgress { step, number, of: steps.len() });
            let limit = self.time_limit * share / 100;
            run(&mut self, limit)?;
            self.look()?;
        }
        self.profile.gap_bytes = self.gap_bytes();
        self.profile.confidence = self.watch.confidence();
        let (backend, reason) = choice::choose(&self.profile);
        Ok(DeviceProfile { backend, reason, ..self.profile })
    }

    /// Repeats the reference load: random reads and writes, one at a time.
    fn look(&mut self) -> Result<(), ProbeError> {
        const COMMANDS: u64 = 16;
        let limit = self.time_limit / 150;
        let mut sum = Duration::ZERO;
        for writes in [false, true] {
            let load = ProbeLoad::random(writes, self.profile.logical_block.max(USUAL_PAGE), 1);
            sum += self.runner.run(load, COMMANDS, limit)?.lone_time();
        }
        self.watch.note_reference(sum);
        if !self.runner.device().clock().is_virtual() {
            self.watch.look_at_machine();
        }
        Ok(())
    }

    /// Writes a part of the range in sequence and keeps to it: flash answers reads of a place that was never
    /// written without reading. On a disk that turns, places far apart count more.
    fn prepare(&mut self, limit: Duration) -> Result<(), ProbeError> {
        if self.profile.rotational && self.kind != DeviceKind::File {
            return Ok(());
        }
        let Range { start, end } = self.range;
        let most = (end - start).min(WRITTEN_BYTES_MAX) / u64::from(LONG_IO);
        let written =
            self.runner.run(ProbeLoad::sequential(true, LONG_IO, 4), most, limit)?.times.len() as u64;
        let bytes = (written.min(most) * u64::from(LONG_IO)).max(PROBE_BYTES_MIN / 2);
        self.runner.narrow(start..start + bytes);
        Ok(())
    }

    fn find_page(&mut self, limit: Duration) -> Result<(), ProbeError> {
        let sizes: Vec<u32> =
            PAGE_SIZES.into_iter().filter(|size| *size >= self.profile.logical_block).collect();
        let loads: Vec<ProbeLoad> = sizes.iter().map(|&size| ProbeLoad::random(true, size, 1)).collect();
        let series = take_turns(&mut self.runner, &loads, limit, |_, _| true)?;
        let found = |time: fn(&LoadSeries) -> Duration| {
            let times: Vec<(u32, Duration)> = sizes.iter().copied().zip(series.iter().map(time)).collect();
            cliff(&times)
        };
        // Both agree, or other work on the machine made it up.
        if let (Some((page, quotient)), Some((fast_page, _))) =
            (found(LoadSeries::time), found(LoadSeries::fast_time))
            && page == fast_page
        {
            self.profile.page_bytes = page.max(self.profile.logical_block);
            self.profile.rmw_ratio = DecimalRatio::of(quotient);
        }
        Ok(())
    }

    fn find_ratio(&mut self, limit: Duration) -> Result<(), ProbeError> {
        let page = self.profile.page_bytes;
        let sequence = steady_rate(&mut self.runner, ProbeLoad::sequential(true, LONG_IO, 4), limit / 2)?;
        let random = steady_rate(&mut self.runner, ProbeLoad::random(true, page, RATIO_DEPTH), limit / 2)?;
        let pages = sequence * f64::from(LONG_IO) / f64::from(page);
        self.profile.write_bytes_per_s = (sequence * f64::from(LONG_IO)) as u64;
        self.profile.write_iops = random as u64;
        self.profile.sequential_ratio = DecimalRatio::of(pages / random.max(1e-3));
        Ok(())
    }

    fn find_knees(&mut self, limit: Duration) -> Result<(), ProbeError> {
        let page = self.profile.page_bytes;
        let loads: Vec<ProbeLoad> = [false, true]
            .into_iter()
            .flat_map(|writes| DEPTHS.map(|depth| ProbeLoad::random(writes, page, depth)))
            .collect();
        // A short slice of writes may end in a buffer: no rate beyond the lasting one counts.
        let lasting = self.profile.write_iops as f64;
        let rates = |series: &[LoadSeries], writes: bool| -> Vec<(u32, f64)> {
            let (first, most) = if writes { (DEPTHS.len(), lasting) } else { (0, f64::INFINITY) };
            DEPTHS.into_iter().zip(series[first..].iter().map(|series| series.rate().min(most))).collect()
        };
        // Far beyond the knee of the first rounds, more rounds cost time only.
        let near = |series: &[LoadSeries], place: usize| {
            let writes = place >= DEPTHS.len();
            loads[place].depth <= 4 * knee(&rates(series, writes))
        };
        let series = take_turns(&mut self.runner, &loads, limit, near)?;
        let reads = rates(&series, false);
        self.profile.read_knee = knee(&reads);
        self.profile.write_knee = knee(&rates(&series, true));
        self.profile.read_iops = reads.iter().map(|rate| rate.1).fold(0.0, f64::max) as u64;
        let lone = series.first().map(LoadSeries::lone_time).unwrap_or_default();
        self.profile.read_ns = lone.as_nanos() as u64;
        Ok(())
    }

    /// Times of a write, of its flush, of a write that is durable by itself, and of a group, each at the next
    /// place: that is how logs write.
    fn time_durable_writes(&mut self, limit: Duration) -> Result<(), ProbeError> {
        const TURNS_LEAST: usize = 12;
        const TURNS_MOST: usize = 250;
        let page = self.profile.page_bytes as usize;
        let begin = self.runner.now();
        let (mut writes, mut flushes, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let (mut through, mut groups, mut commands) = (Vec::new(), Vec::new(), Vec::new());
        while writes.len() < TURNS_LEAST
            || writes.len() < TURNS_MOST && self.runner.now().saturating_sub(begin) < limit
        {
            // In random order: a limit of commands in a window of time must not always hit the same ones.
            let first = self.runner.random().below(3);
            for part in 0..3 {
                match (first + part) % 3 {
                    0 => {
                        let (write, flush) = (self.time_write(page, false)?, self.time_flush()?);
                        writes.push(write);
                        flushes.push(flush);
                        alone.push(write + flush);
                    }
                    1 => {
                        let before = self.disk_commands();
                        through.push(self.time_write(page, true)?);
                        commands.push(self.disk_commands().saturating_sub(before));
                    }
                    _ => {
                        groups.push(self.time_write(page * GROUP_PAGES as usize, false)? + self.time_flush()?)
                    }
                }
            }
        }
        let nanos = |times: &mut Vec<Duration>| usual(times).as_nanos() as u64;
        let (one, group) = (nanos(&mut alone), nanos(&mut groups));
        commands.sort_unstable();
        let profile = &mut self.profile;
        profile.write_ns = nanos(&mut writes);
        profile.flush_ns = nanos(&mut flushes);
        profile.fua_ns = nanos(&mut through);
        profile.group_gain = DecimalRatio::of(f64::from(GROUP_PAGES) * one as f64 / group.max(1) as f64);
        profile.durable_write_commands = DecimalRatio(100 * commands[commands.len() / 2]);
        Ok(())
    }

    fn time_write(&mut self, bytes: usize, fua: bool) -> Result<Duration, ProbeError> {
        let at = self.runner.place(true, bytes as u64);
        let buf = self.runner.buffer(bytes);
        if fua {
            // As a store does: on this thread.
            let begin = self.runner.now();
            self.runner.device().write_through(at, buf)?;
            return Ok(self.runner.now().saturating_sub(begin));
        }
        self.runner.time(Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Commit })
    }

    fn time_flush(&self) -> Result<Duration, ProbeError> {
        self.runner.time(Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit })
    }

    /// Commands so far of the disk below, or of the device.
    fn disk_commands(&self) -> u64 {
        let below = self.disk_commands.as_ref().and_then(|count| count());
        below.unwrap_or_else(|| {
            let counters = self.runner.device().counters();
            counters.writes + counters.flushes
        })
    }

    fn find_bandwidth(&mut self, limit: Duration) -> Result<(), ProbeError> {
        // Where a slice at the largest depth would take longer than its share, one depth is enough.
        let is_fast =
            limit.as_secs_f64() * self.profile.write_bytes_per_s as f64 > 240.0 * f64::from(LONG_IO);
        let depths: &[u32] = if is_fast { &[1, 4, 16] } else { &[4] };
        let loads: Vec<ProbeLoad> =
            depths.iter().map(|&depth| ProbeLoad::sequential(false, LONG_IO, depth)).collect();
        let series = take_turns(&mut self.runner, &loads, limit, |_, _| true)?;
        let best = series.iter().map(LoadSeries::rate).fold(0.0, f64::max);
        self.profile.read_bytes_per_s = (best * f64::from(LONG_IO)) as u64;
        Ok(())
    }

    /// Distance that a sequential read passes in the time of a lone random one, in whole pages of 4 KiB.
    fn gap_bytes(&self) -> u64 {
        let DeviceProfile { read_ns, read_bytes_per_s, .. } = self.profile;
        let bytes = u128::from(read_ns) * u128::from(read_bytes_per_s) / 1_000_000_000;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX) / 4096 * 4096;
        bytes.clamp(*GAP_BYTES.start(), *GAP_BYTES.end())
    }
}

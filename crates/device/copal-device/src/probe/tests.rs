//! Probes of models with known parameters, and the text of profiles.

use super::{
    DecimalRatio, DeviceKind, DeviceProbe, DeviceProfile, ProbeConfidence, ProbeError, ProbeOptions,
    ProbeStep, ProfileBackend, ProfileTextError,
};
use crate::{
    Device, Image, MemoryDevice, ZonedModel,
    emulated::{DiskModel, EmulatedDevice, Hdd, HddProfile, ModelCommand, ModelCounters, Ssd, SsdProfile},
    random::DeviceRandom,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const MIB: u64 = 1 << 20;

fn probe(device: &dyn Device) -> DeviceProfile {
    let bytes = if device.geometry().rotational { device.geometry().size } else { 64 * MIB };
    let options = ProbeOptions { range: 0..bytes, ..ProbeOptions::of(device) };
    let began = device.clock().now();
    let profile = DeviceProbe::new(device, options).run(&mut |_| ()).unwrap();
    let took = device.clock().since(began);
    assert!(took <= Duration::from_secs(30), "{took:?}\n{profile}");
    assert!(!profile.plp, "only a person says so");
    profile
}

/// A disk of a few equal servers behind one bus: each command takes a server for a time, then the bus for its
/// bytes.
struct ServerModel {
    service: Duration,
    servers: Vec<u64>,
    bytes_per_s: f64,
    bus: u64,
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    now: u64,
    served: u64,
    /// Number of commands after which each takes ten times as long.
    slow_after: u64,
}

impl ServerModel {
    fn device(servers: usize, service: Duration, bytes_per_s: f64) -> ServerModel {
        ServerModel {
            service,
            servers: vec![0; servers],
            bytes_per_s,
            bus: 0,
            waiting: BinaryHeap::new(),
            now: 0,
            served: 0,
            slow_after: u64::MAX,
        }
    }

    fn make(self) -> std::sync::Arc<EmulatedDevice<ServerModel>> {
        let geometry = crate::memory::memory_geometry(1 << 30);
        EmulatedDevice::of_model(self, Image::zeroed(1 << 30), geometry)
    }
}

impl DiskModel for ServerModel {
    fn name(&self) -> &'static str {
        "servers"
    }

    fn depth(&self) -> usize {
        64
    }

    fn accept(&mut self, id: u64, command: ModelCommand, arrival: Duration) {
        self.served += 1;
        let slow = if self.served > self.slow_after { 10 } else { 1 };
        let service = self.service.as_nanos() as u64 * slow;
        let server = self.servers.iter_mut().min().expect("a disk has a server");
        let end = (*server).max(arrival.as_nanos() as u64) + service;
        *server = end;
        let transfer = (command.len as f64 / self.bytes_per_s * 1e9) as u64 * slow;
        self.bus = self.bus.max(end.saturating_sub(transfer)) + transfer;
        self.waiting.push(Reverse((self.bus.max(end), id)));
    }

    fn next_end(&mut self) -> Option<Duration> {
        self.waiting.peek().map(|Reverse((end, _))| Duration::from_nanos(*end))
    }

    fn serve(&mut self) -> Option<u64> {
        let Reverse((end, id)) = self.waiting.pop()?;
        self.now = self.now.max(end);
        Some(id)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn counters(&self) -> ModelCounters {
        ModelCounters::default()
    }
}

#[test]
fn a_hard_disk_gets_segments_and_reads_through_megabytes() {
    for profile in [HddProfile::default(), HddProfile { logical_block: 512, ..HddProfile::default() }] {
        let found = probe(&*Hdd::new(1 << 40, profile));
        assert_eq!(found.backend, ProfileBackend::Log, "{found}");
        let gap = found.gap_bytes as f64 / MIB as f64;
        assert!((1.5..=3.5).contains(&gap), "{found}");
        assert_eq!((found.page_bytes, found.rmw_ratio), (4096, DecimalRatio(100)), "{found}");
        assert!(
            found.sequential_ratio > DecimalRatio(10_000) && found.group_gain > DecimalRatio(1200),
            "{found}"
        );
        assert!((7_000_000..10_000_000).contains(&found.write_ns), "a turn: {found}");
        assert_eq!(found.confidence, ProbeConfidence::High, "{found}");
        assert_eq!(found.segment_bytes(), 32 << 20, "{found}");
        assert!((170_000_000..200_000_000).contains(&found.read_bytes_per_s), "{found}");
    }
}

#[test]
fn a_flash_drive_gets_free_pages_of_its_own_size() {
    for (unit, knee) in [(4096, 8), (16_384, 8)] {
        let profile = SsdProfile { unit_bytes: unit, logical_block: 512, ..SsdProfile::default() };
        let found = probe(&*Ssd::new(1 << 40, profile));
        assert_eq!(found.backend, ProfileBackend::Cow, "{found}");
        assert_eq!(u64::from(found.page_bytes), unit, "{found}");
        assert_eq!(u64::from(found.store_page_bytes()), unit, "{found}");
        assert!((400..460).contains(&found.rmw_ratio.0), "98 : 23 us: {found}");
        assert!(found.sequential_ratio <= DecimalRatio(150), "{found}");
        assert!(found.write_knee <= knee && found.write_knee >= knee / 2, "{found}");
        assert!((165_000..185_000).contains(&found.write_iops), "{found}");
        assert_eq!(found.durable_write_commands, DecimalRatio(100), "{found}");
        assert_eq!(found.confidence, ProbeConfidence::High, "{found}");
    }
    // The consumer's drive: its flush takes a millisecond.
    let found = probe(&*Ssd::new(1 << 40, SsdProfile::consumer()));
    assert_eq!(found.backend, ProfileBackend::Cow, "{found}");
    assert!((900_000..1_100_000).contains(&found.flush_ns) && !found.flush_may_be_ignored(), "{found}");
}

/// A throttle of commands makes each one dear, at any length; one of bytes makes none dear.
#[test]
fn throttles_of_commands_and_of_bytes_are_told_apart() {
    let commands = ServerModel::device(1, Duration::from_nanos(8_333_333), 1e9);
    let found = probe(&*commands.make());
    assert_eq!((found.backend, found.read_knee, found.write_knee), (ProfileBackend::Log, 1, 1), "{found}");
    assert!((110..130).contains(&found.write_iops) && (110..130).contains(&found.read_iops), "{found}");
    assert!((8_000_000..9_000_000).contains(&found.flush_ns), "a flush counts as a command: {found}");
    assert!(found.group_gain > DecimalRatio(1500), "{found}");

    let bytes = ServerModel::device(32, Duration::from_micros(50), 10e6);
    let found = probe(&*bytes.make());
    assert_eq!(found.backend, ProfileBackend::Cow, "{found}");
    assert!(found.sequential_ratio <= DecimalRatio(120), "{found}");
    assert!((9_000_000..11_000_000).contains(&found.write_bytes_per_s), "{found}");
}

/// A limit of commands a second as the kernel and clouds keep it: so many in each window of 100 ms, at once if they
/// come at once.
struct WindowModel {
    in_window: u64,
    /// Number of the window that takes the next command, and the commands that it has.
    window: u64,
    taken: u64,
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    now: u64,
    /// Commands before the limit begins.
    unlimited: u64,
}

impl WindowModel {
    fn of(in_window: u64) -> WindowModel {
        WindowModel { in_window, window: 0, taken: 0, ends: BinaryHeap::new(), now: 0, unlimited: 0 }
    }
}

impl DiskModel for WindowModel {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn depth(&self) -> usize {
        64
    }

    fn accept(&mut self, id: u64, _command: ModelCommand, arrival: Duration) {
        const WINDOW: u64 = 100_000_000;
        let arrival = arrival.as_nanos() as u64;
        if self.unlimited > 0 {
            self.unlimited -= 1;
            return self.ends.push(Reverse((arrival + 100_000, id)));
        }
        if arrival / WINDOW > self.window {
            (self.window, self.taken) = (arrival / WINDOW, 0);
        } else if self.taken == self.in_window {
            (self.window, self.taken) = (self.window + 1, 0);
        }
        self.taken += 1;
        self.ends.push(Reverse((arrival.max(self.window * WINDOW) + 100_000, id)));
    }

    fn next_end(&mut self) -> Option<Duration> {
        self.ends.peek().map(|Reverse((end, _))| Duration::from_nanos(*end))
    }

    fn serve(&mut self) -> Option<u64> {
        let Reverse((end, id)) = self.ends.pop()?;
        self.now = self.now.max(end);
        Some(id)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn counters(&self) -> ModelCounters {
        ModelCounters::default()
    }
}

/// Symptom: a disk limited to 120 commands a second showed 1,280,000 reads a second, a read of .1 ms, a knee of 16 and a
/// gap of 4 KiB, in some runs. Cause: the limit lets 12 commands pass at once and then none for a while. Slices ended
/// within a burst, and medians are those of its commands. Fix: a slice goes on until a second burst has begun, its rate
/// is that between two bursts, and the time of a command is the mean. Slices that are shorter than one burst still see
/// nothing.
#[test]
fn a_limit_that_lets_bursts_pass_is_seen_in_the_long_run() {
    for in_window in [12, 20] {
        let disk = WindowModel::of(in_window);
        let geometry = crate::memory::memory_geometry(1 << 30);
        let found = probe(&*EmulatedDevice::of_model(disk, Image::zeroed(1 << 30), geometry));
        let limit = in_window * 10;
        assert_eq!(
            (found.backend, found.read_knee, found.write_knee),
            (ProfileBackend::Log, 1, 1),
            "{found}"
        );
        for rate in [found.read_iops, found.write_iops] {
            assert!((limit * 8 / 10..=limit * 13 / 10).contains(&rate), "{found}");
        }
        let lone = 1_000_000_000 / limit;
        assert!((lone / 2..=lone * 3 / 2).contains(&found.read_ns), "{found}");
        assert!(found.gap_bytes >= MIB / 2, "{found}");
        assert!((lone / 2..=lone * 4).contains(&(found.write_ns + found.flush_ns)), "{found}");
        assert!(found.group_gain > DecimalRatio(400), "{found}");
    }
}

/// 8 ms for each command, sixteen at once: at any bandwidth, the reason says that flushes are slow.
#[test]
fn a_slow_but_parallel_disk_is_judged_by_its_flush() {
    for bytes_per_s in [80e6, 400e6] {
        let found = probe(&*ServerModel::device(16, Duration::from_millis(8), bytes_per_s).make());
        assert_eq!(found.backend, ProfileBackend::Log, "{found}");
        assert!(found.reason.contains("a flush takes 8.0"), "{found}");
        assert_eq!(found.write_knee, 16, "{found}");
    }
}

#[test]
fn a_disk_that_becomes_slow_half_way_lowers_the_confidence() {
    let mut disk = ServerModel::device(4, Duration::from_micros(200), 500e6);
    disk.slow_after = 8000;
    let found = probe(&*disk.make());
    assert_eq!(found.confidence, ProbeConfidence::Low, "{found}");
    // A limit in windows, whose bursts are as fast as the disk before.
    let geometry = crate::memory::memory_geometry(1 << 30);
    let disk = WindowModel { unlimited: 8000, ..WindowModel::of(12) };
    let found = probe(&*EmulatedDevice::of_model(disk, Image::zeroed(1 << 30), geometry));
    assert_eq!(found.confidence, ProbeConfidence::Low, "{found}");
}

/// Writes stay in the range, and an interrupted probe ends with the step before.
#[test]
fn a_probe_keeps_to_its_range_and_can_be_ended() {
    let marks = Image::zeroed(160 * MIB);
    let device = MemoryDevice::from_image(marks, 160 * MIB);
    let limit = Duration::from_millis(400);
    let options =
        || ProbeOptions { range: 48 * MIB..96 * MIB, time_limit: limit, ..ProbeOptions::of(&*device) };
    let mut steps = Vec::new();
    let mut progress = |at: super::ProbeProgress| steps.push(at.step);
    DeviceProbe::new(&*device, options()).run(&mut progress).unwrap();
    assert_eq!(
        (steps.len(), steps.first(), steps.last()),
        (6, Some(&ProbeStep::Prepare), Some(&ProbeStep::Bandwidth))
    );
    let is_zero = |at: u64| {
        let part = device.read_now(at, crate::AlignedBuf::zeroed(MIB as usize)).unwrap();
        part.iter().all(|byte| *byte == 0)
    };
    for mib in 0..160 {
        let is_inside = (48..96).contains(&mib);
        assert!(is_inside || is_zero(mib * MIB), "{mib}");
    }
    assert!(!is_zero(48 * MIB), "the range was written");
    let asked = AtomicUsize::new(0);
    let is_ended = Box::new(move || asked.fetch_add(1, Ordering::Relaxed) > 100);
    let mut begun = 0;
    let ended = DeviceProbe::new(&*device, ProbeOptions { is_ended, ..options() }).run(&mut |_| begun += 1);
    assert!((1..6).contains(&begun), "{begun}");
    assert!(matches!(ended, Err(ProbeError::Interrupted)));
    let short = ProbeOptions { range: 0..MIB, ..options() };
    assert!(matches!(DeviceProbe::new(&*device, short).run(&mut |_| ()), Err(ProbeError::TooSmall { .. })));
}

fn sample() -> DeviceProfile {
    DeviceProfile {
        kind: DeviceKind::Block,
        rotational: true,
        zoned: ZonedModel::None,
        logical_block: 512,
        page_bytes: 4096,
        rmw_ratio: DecimalRatio(100),
        read_iops: 210,
        write_iops: 240,
        read_bytes_per_s: 190_000_000,
        write_bytes_per_s: 190_000_000,
        sequential_ratio: DecimalRatio(19_327),
        read_knee: 32,
        write_knee: 32,
        read_ns: 12_500_000,
        write_ns: 8_350_000,
        flush_ns: 100_000,
        fua_ns: 8_350_000,
        group_gain: DecimalRatio(1550),
        durable_write_commands: DecimalRatio(200),
        gap_bytes: 2_375_680,
        plp: false,
        confidence: ProbeConfidence::High,
        backend: ProfileBackend::Log,
        reason: "sequential writes move 193.27 times as many pages as random ones".to_owned(),
    }
}

/// The text of the format page.
#[test]
fn the_text_of_a_profile_is_that_of_the_page_of_its_format() {
    let page = include_str!("../../../../../docs/formats/device-profile.md");
    let text = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(text, sample().to_string());
    assert_eq!(text.parse(), Ok(sample()));
}

#[test]
fn numbers_of_a_store_follow_from_the_figures() {
    let disk = sample();
    assert_eq!((disk.depth(), disk.segment_bytes(), disk.store_page_bytes()), (64, 32 << 20, 4096));
    let fast =
        DeviceProfile { read_knee: 1, write_knee: 2, read_ns: 80_000, page_bytes: 512, ..disk.clone() };
    assert_eq!((fast.depth(), fast.segment_bytes(), fast.store_page_bytes()), (8, 1 << 20, 4096));
    let coarse = DeviceProfile { page_bytes: 32_768, read_ns: u64::MAX >> 4, ..disk };
    assert_eq!((coarse.store_page_bytes(), coarse.segment_bytes()), (16_384, 64 << 20));
}

#[test]
fn broken_texts_are_refused_with_the_line() {
    let text = sample().to_string();
    for (from, to, line) in [
        ("kind block", "kind tape", 2),
        ("rotational yes", "rotational perhaps", 3),
        ("page_bytes 4096", "page_bytes 4097", 6),
        ("read_iops 210", "read_iops -210", 8),
        ("read_iops 210", "read_iops +210", 8),
        ("read_iops 210", "read_iops 99999999999999999999", 8),
        ("rmw_ratio 1.00", "rmw_ratio 1.000", 7),
        ("plp no", "plp", 22),
        ("gap_bytes", "gap", 21),
    ] {
        assert!(text.contains(from), "{from}");
        match text.replacen(from, to, 1).parse::<DeviceProfile>() {
            Err(ProfileTextError::Line { line: found, .. } | ProfileTextError::Value { line: found, .. }) => {
                assert_eq!(found, line, "{to}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    let more = format!("{text}more\n");
    assert!(matches!(more.parse::<DeviceProfile>(), Err(ProfileTextError::Line { line: 26, .. })));
    let newer = text.replacen("profile 1", "profile 2", 1);
    assert_eq!(newer.parse::<DeviceProfile>(), Err(ProfileTextError::Version { version: 2 }));
    assert_eq!("".parse::<DeviceProfile>(), Err(ProfileTextError::NotAProfile));
    let long = format!("{text}{}", "x".repeat(4000));
    assert!(matches!(long.parse::<DeviceProfile>(), Err(ProfileTextError::TooLong { .. })));
}

/// Parsed or refused, without a panic; a parsed one prints and parses to itself.
#[test]
fn any_bytes_are_a_profile_or_an_error() {
    let text = sample().to_string();
    let mut random = DeviceRandom::new(7);
    let mut good = 0;
    for _ in 0..20_000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = b"0123456789. \nyesno"[random.below(18) as usize],
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at + 1),
            }
        }
        crate::probe::fuzz::DECODERS.iter().for_each(|(_, decode)| decode(&bytes));
        good += u32::from(String::from_utf8_lossy(&bytes).parse::<DeviceProfile>().is_ok());
    }
    assert!(good > 100, "{good}");
}

/// Commands of a probe on the virtual clock, so that a change of its cost is seen.
#[test]
fn a_probe_of_a_slow_disk_takes_few_commands() {
    let disk = Hdd::new(1 << 40, HddProfile::default());
    probe(&*disk);
    let counters = disk.model_counters();
    assert!(counters.commands < 6000, "{counters:?}");
}

//! Writes of the translation layer, by use, spare space and pattern, against the figures of the design.

use super::{MIB, command, near};
use crate::emulated::{CommandKind, DiskModel, SsdModel, SsdProfile, TranslationProfile};
use crate::random::DeviceRandom;

/// Writes of the medium per write of the host, once the drive is in its steady state.
struct Amplification {
    model: SsdModel,
    next: u64,
}

/// Mapping units of a small drive: 512 blocks of 1 MiB.
const UNITS: u64 = 512 * 256;

impl Amplification {
    fn new(spare: f64) -> Amplification {
        let translation = TranslationProfile { block_bytes: MIB, spare, ..TranslationProfile::default() };
        let profile = SsdProfile { translation: Some(translation), ..SsdProfile::default() };
        Amplification { model: SsdModel::new(UNITS * 4096, profile), next: 0 }
    }

    fn run(&mut self, kind: CommandKind, unit: u64, units: u64) {
        let now = self.model.now();
        self.model.accept(self.next, command(kind, unit * 4096, units * 4096), now);
        assert_eq!(self.model.serve(), Some(self.next));
        self.next += 1;
    }

    fn write(&mut self, unit: u64) {
        self.run(CommandKind::Write, unit, 1);
    }

    /// Runs `step` until the drive is steady, then counts as many steps of one unit again.
    fn measure(mut self, steps: u64, mut step: impl FnMut(&mut Amplification)) -> f64 {
        (0..steps).for_each(|_| step(&mut self));
        let (begin, time) = (self.model.counters().media_writes, self.model.now());
        (0..steps).for_each(|_| step(&mut self));
        let written = (self.model.counters().media_writes - begin) as f64;
        let seconds = (self.model.now() - time).as_secs_f64();
        assert!(seconds > 0.99 * written / 464e3, "host and collection share the medium");
        written / steps as f64
    }
}

/// Updates in place of 80 % of a drive that was written completely once.
fn in_place(spare: f64) -> f64 {
    let mut drive = Amplification::new(spare);
    (0..UNITS).for_each(|unit| drive.write(unit));
    let mut random = DeviceRandom::new(1);
    drive.measure(2 * UNITS, |drive| drive.write(random.below(UNITS * 8 / 10)))
}

/// Each update goes to the next free unit, as `cow` does; the old place is free after a while.
fn out_of_place(spare: f64, trims: bool) -> f64 {
    let mut drive = Amplification::new(spare);
    let live = UNITS * 8 / 10;
    let mut places: Vec<u64> = (0..live).collect();
    let mut is_used: Vec<bool> = (0..UNITS).map(|unit| unit < live).collect();
    places.iter().for_each(|unit| drive.write(*unit));
    let (mut random, mut cursor) = (DeviceRandom::new(1), live as usize);
    let mut freed = std::collections::VecDeque::new();
    drive.measure(2 * UNITS, |drive| {
        while is_used[cursor % is_used.len()] {
            cursor += 1;
        }
        let to = cursor % is_used.len();
        is_used[to] = true;
        drive.write(to as u64);
        let place = &mut places[random.below(live) as usize];
        freed.push_back(std::mem::replace(place, to as u64));
        if freed.len() > 500
            && let Some(old) = freed.pop_front()
        {
            is_used[old as usize] = false;
            if trims {
                drive.run(CommandKind::Discard, old, 1);
            }
        }
    })
}

#[test]
fn use_and_spare_space_set_the_cost_of_collection() {
    near(in_place(0.07), 6.9, 0.1);
    near(in_place(0.28), 2.2, 0.1);
    near(out_of_place(0.07, false), 2.6, 0.1);
    near(out_of_place(0.28, false), 1.6, 0.1);
    near(out_of_place(0.07, true), 2.2, 0.1);
    near(out_of_place(0.28, true), 1.57, 0.1);
    // Segments of two blocks die whole: nothing is moved.
    let mut drive = Amplification::new(0.07);
    let segments = UNITS / 512 * 8 / 10;
    (0..segments).for_each(|segment| drive.run(CommandKind::Write, segment * 512, 512));
    let mut random = DeviceRandom::new(1);
    let moved = drive.measure(1000, |drive| drive.run(CommandKind::Write, random.below(segments) * 512, 512));
    near(moved / 512.0, 1.0, 1e-9);
}

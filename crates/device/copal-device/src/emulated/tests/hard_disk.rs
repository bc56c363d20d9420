//! Times of the hard disk against closed forms.
//!
//! Each expectation is computed here from the parameters, for the default ones and for others.

use super::{MIB, TIB, command, near, random_places, rate};
use crate::emulated::{CommandKind, DiskModel, HddModel, HddProfile};
use std::time::Duration;

/// Hard disks: the default one, and a fast one with other tracks and seeks.
fn disks() -> [HddProfile; 2] {
    let fast = HddProfile {
        rpm: 15_000,
        seek_base: Duration::from_micros(200),
        seek_stroke: Duration::from_micros(6_000),
        track_bytes: 1 << 20,
        command_time: Duration::from_micros(50),
        ..HddProfile::default()
    };
    [HddProfile::default(), fast]
}

/// Seconds of a turn, of a mean seek between random places, and of the transfer of a byte.
fn mechanics(disk: &HddProfile) -> (f64, f64, f64) {
    let turn = 60.0 / f64::from(disk.rpm);
    // The mean root of the distance between two random places is 8/15.
    let seek = disk.seek_base.as_secs_f64() + disk.seek_stroke.as_secs_f64() * 8.0 / 15.0;
    (turn, seek, turn / disk.track_bytes as f64)
}

#[test]
fn a_disk_reads_at_random_as_seek_and_half_a_turn_allow() {
    for disk in disks() {
        let (turn, seek, byte) = mechanics(&disk);
        let expected = 1.0 / (disk.command_time.as_secs_f64() + seek + turn / 2.0 + 4096.0 * byte);
        let mut model = HddModel::new(TIB, disk);
        let reads = random_places(TIB, 4096, 4000).map(|at| command(CommandKind::Read, at, 4096));
        let found = rate(&mut model, 1, reads);
        near(found, expected, 0.02);
        let counters = model.counters();
        assert_eq!((counters.commands, counters.media_reads, counters.media_writes), (4000, 4000, 0));
        assert!(
            counters.seeks > 3990 && counters.busy == model.now() && counters.positioning < counters.busy
        );
    }
    // The rate that the design names.
    let mut model = HddModel::new(TIB, HddProfile::default());
    let reads = random_places(TIB, 4096, 4000).map(|at| command(CommandKind::Read, at, 4096));
    near(rate(&mut model, 1, reads), 81.0, 0.03);
}

#[test]
fn a_disk_streams_waiting_commands_and_misses_a_turn_for_each_command_alone() {
    for disk in disks() {
        let (turn, _, byte) = mechanics(&disk);
        for kind in [CommandKind::Read, CommandKind::Write] {
            let sequence = || (0..500).map(|place| command(kind, place * MIB, MIB));
            let bandwidth =
                |depth| rate(&mut HddModel::new(TIB, disk.clone()), depth, sequence()) * MIB as f64;
            let queued = bandwidth(2);
            assert!(queued >= 0.95 / byte && queued <= 1.0 / byte, "{queued} of {}", 1.0 / byte);
            near(bandwidth(1), MIB as f64 / (turn + MIB as f64 * byte), 0.01);
        }
    }
    let sequence = (0..500).map(|place| command(CommandKind::Read, place * MIB, MIB));
    let alone = rate(&mut HddModel::new(TIB, HddProfile::default()), 1, sequence) * MIB as f64;
    near(alone, 76e6, 0.01);
}

#[test]
fn a_durable_append_takes_a_turn_of_the_disk() {
    for disk in disks() {
        let (turn, _, byte) = mechanics(&disk);
        let appends = (0..500).flat_map(|place| {
            [command(CommandKind::Write, place * 4096, 4096), command(CommandKind::Flush, 0, 0)]
        });
        let found = rate(&mut HddModel::new(TIB, disk.clone()), 1, appends) / 2.0;
        near(found, 1.0 / (turn + 4096.0 * byte), 0.01);
        // A durable write needs no flush on a disk without a volatile cache.
        let through = (0..500).map(|place| command(CommandKind::WriteThrough, place * 4096, 4096));
        near(rate(&mut HddModel::new(TIB, disk), 1, through), found, 0.01);
    }
    let appends = (0..500).flat_map(|place| {
        [command(CommandKind::Write, place * 4096, 4096), command(CommandKind::Flush, 0, 0)]
    });
    near(rate(&mut HddModel::new(TIB, HddProfile::default()), 1, appends) / 2.0, 119.5, 0.01);
}

/// With 32 waiting commands, the shortest positioning time must beat the order of arrival by far, and a flush
/// must end the choice.
#[test]
fn a_disk_takes_the_shortest_way_among_its_queue_and_none_past_a_flush() {
    let reads = || random_places(TIB, 4096, 2000).map(|at| command(CommandKind::Read, at, 4096));
    let disk = HddProfile::default();
    let alone = rate(&mut HddModel::new(TIB, disk.clone()), 1, reads());
    let queued = rate(&mut HddModel::new(TIB, disk.clone()), 32, reads());
    assert!(queued > 2.0 * alone, "{queued} of {alone}");
    // A drive without a queue gains nothing from commands that wait at the host.
    let shallow = HddProfile { queue_depth: 1, ..disk.clone() };
    near(rate(&mut HddModel::new(TIB, shallow), 32, reads()), alone, 0.02);
    // The first command finds the drive idle.
    let (write, flush) = (|at| command(CommandKind::Write, at, 4096), command(CommandKind::Flush, 0, 0));
    let mut model = HddModel::new(TIB, disk);
    for (id, command) in (0..).zip([write(0), write(TIB / 2), write(MIB), flush, write(4096)]) {
        model.accept(id, command, model.now());
    }
    let order: Vec<u64> = std::iter::from_fn(|| model.serve()).collect();
    assert_eq!(order, [0, 2, 1, 3, 4], "the nearer write, the flush behind both, then the nearest of all");
}

#[test]
fn a_write_cache_is_emptied_in_one_sweep() {
    let disk = HddProfile { write_cache_bytes: 64 << 20, ..HddProfile::default() };
    let command_time = disk.command_time.as_secs_f64();
    let (turn, _, _) = mechanics(&disk);
    let mut model = HddModel::new(TIB, disk.clone());
    let writes = random_places(TIB, 4096, 200).map(|at| command(CommandKind::Write, at, 4096));
    near(rate(&mut model, 1, writes), 1.0 / command_time, 0.01);
    assert_eq!(model.counters().media_writes, 0);
    let flushed = 1.0 / rate(&mut model, 1, std::iter::once(command(CommandKind::Flush, 0, 0)));
    // A sweep of n stops: each seeks over a 200th of the stroke, and waits for half a turn.
    let seek = disk.seek_base.as_secs_f64() + disk.seek_stroke.as_secs_f64() * (1f64 / 200.0).sqrt();
    near(flushed / 200.0, seek + turn / 2.0, 0.1);
    assert_eq!(model.counters().media_writes, 200);
    // Beyond its size the cache empties itself, and neighbours in it are one access.
    let sequence = (0..129).map(|place| command(CommandKind::Write, place * MIB, MIB));
    rate(&mut model, 1, sequence);
    assert_eq!(model.counters().media_writes, 202);
    near(
        rate(&mut model, 1, std::iter::once(command(CommandKind::Read, 128 * MIB, MIB))),
        1.0 / command_time,
        0.01,
    );
    let through = (0..50).map(|place| command(CommandKind::WriteThrough, place * 4096, 4096));
    near(rate(&mut model, 1, through), 1.0 / turn, 0.05);
}

#[test]
fn read_ahead_spares_a_read_that_continues_its_turn() {
    let pages = || (0..2057).map(|place| command(CommandKind::Read, place * 4096, 4096));
    for disk in disks() {
        let (turn, _, byte) = mechanics(&disk);
        let command_time = disk.command_time.as_secs_f64();
        near(rate(&mut HddModel::new(TIB, disk.clone()), 1, pages()), 1.0 / (turn + 4096.0 * byte), 0.01);
        let ahead = HddProfile { read_ahead: true, ..disk };
        let found = rate(&mut HddModel::new(TIB, ahead), 1, pages());
        near(found, 1.0 / (command_time + 4096.0 * byte), 0.05);
    }
}

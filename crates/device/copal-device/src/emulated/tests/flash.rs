//! Times of the flash drive against closed forms.
//!
//! Each expectation is computed here from the parameters, for the default ones and for others.

use super::{MIB, TIB, command, near, random_places, rate};
use crate::emulated::{CommandKind, ModelCommand, SsdModel, SsdProfile};
use std::time::Duration;

/// Flash drives: the default one, one with larger units and a slow flush, one with few dies.
fn drives() -> [SsdProfile; 3] {
    let coarse =
        SsdProfile { unit_bytes: 16 << 10, flush_time: Duration::from_millis(5), ..SsdProfile::default() };
    let small = SsdProfile {
        command_rate: 100_000.0,
        client_time: Duration::from_micros(5),
        write_time: Duration::from_micros(30),
        read_time: Duration::from_micros(50),
        drain_rate: 20_000.0,
        dies: 4,
        buffer_units: 8,
        ..SsdProfile::default()
    };
    [SsdProfile::default(), coarse, small]
}

fn writes(span: u64, len: u64, count: usize) -> impl Iterator<Item = ModelCommand> {
    random_places(span, len, count).map(move |at| command(CommandKind::Write, at, len))
}

/// Seconds before a command reaches the buffer or a die.
fn before(drive: &SsdProfile) -> f64 {
    drive.client_time.as_secs_f64() + 1.0 / drive.command_rate
}

#[test]
fn a_flash_write_is_a_command_and_a_buffer_and_a_partial_one_a_read_too() {
    for drive in drives() {
        let unit = drive.unit_bytes;
        let (write, read) = (drive.write_time.as_secs_f64(), drive.read_time.as_secs_f64());
        let found = |len| rate(&mut SsdModel::new(TIB, drive.clone()), 1, writes(TIB, len, 2000));
        near(found(unit), 1.0 / (before(&drive) + write).max(1.0 / drive.drain_rate), 0.01);
        near(found(512), 1.0 / (before(&drive) + read + write), 0.01);
        let flushed = writes(TIB, unit, 500).flat_map(|write| [write, command(CommandKind::Flush, 0, 0)]);
        let pair = 2.0 * before(&drive) + write + drive.flush_time.as_secs_f64();
        near(rate(&mut SsdModel::new(TIB, drive.clone()), 1, flushed) / 2.0, 1.0 / pair, 0.01);
        let through = random_places(TIB, unit, 2000).map(|at| command(CommandKind::WriteThrough, at, unit));
        let alone = before(&drive) + write + drive.flush_time.as_secs_f64();
        near(
            rate(&mut SsdModel::new(TIB, drive.clone()), 1, through),
            1.0 / alone.max(1.0 / drive.drain_rate),
            0.01,
        );
    }
    // The rates that the design names.
    let found = |len| rate(&mut SsdModel::new(TIB, SsdProfile::default()), 1, writes(TIB, len, 2000));
    near(found(4096), 43.5e3, 0.01);
    near(found(512), 10.2e3, 0.01);
    let flushed = writes(TIB, 4096, 500).flat_map(|write| [write, command(CommandKind::Flush, 0, 0)]);
    near(rate(&mut SsdModel::new(TIB, SsdProfile::default()), 1, flushed) / 2.0, 35.7e3, 0.01);
    let flushed = writes(TIB, 4096, 500).flat_map(|write| [write, command(CommandKind::Flush, 0, 0)]);
    near(rate(&mut SsdModel::new(TIB, SsdProfile::consumer()), 1, flushed) / 2.0, 973.0, 0.01);
}

#[test]
fn a_full_write_buffer_waits_for_the_medium_and_a_large_one_for_the_pipeline_only() {
    for drive in drives() {
        let unit = drive.unit_bytes;
        let whole = writes(TIB, unit, 20_000);
        near(rate(&mut SsdModel::new(TIB, drive.clone()), 64, whole), drive.drain_rate, 0.01);
        let double = writes(TIB, 2 * unit, 10_000);
        near(rate(&mut SsdModel::new(TIB, drive.clone()), 64, double), drive.drain_rate / 2.0, 0.01);
        let burst = SsdProfile { buffer_units: 1 << 20, ..drive.clone() };
        near(rate(&mut SsdModel::new(TIB, burst), 64, writes(TIB, unit, 20_000)), drive.command_rate, 0.01);
        // Partial writes wait for the dies, if these are slower than the medium.
        let dies = drive.dies as f64 / drive.read_time.as_secs_f64();
        let partial = rate(&mut SsdModel::new(TIB, drive.clone()), 512, writes(TIB, 512, 20_000));
        near(partial, drive.drain_rate.min(dies), 0.05);
    }
}

#[test]
fn flash_reads_scale_with_the_dies_up_to_pipeline_and_interface() {
    let drive = SsdProfile::default();
    let reads =
        |len, count| random_places(TIB, len, count).map(move |at| command(CommandKind::Read, at, len));
    let transfer = 4096.0 / drive.read_bandwidth;
    let alone = before(&drive) + drive.read_time.as_secs_f64() + transfer;
    near(rate(&mut SsdModel::new(TIB, drive.clone()), 1, reads(4096, 1000)), 1.0 / alone, 0.01);
    near(rate(&mut SsdModel::new(TIB, drive.clone()), 256, reads(4096, 20_000)), drive.command_rate, 0.02);
    let few = SsdProfile { dies: 4, ..drive.clone() };
    near(rate(&mut SsdModel::new(TIB, few), 256, reads(4096, 20_000)), 4.0 / 75e-6, 0.02);
    let long = rate(&mut SsdModel::new(TIB, drive.clone()), 32, reads(MIB, 1000)) * MIB as f64;
    near(long, drive.read_bandwidth, 0.02);
}

/// Figures 1 to 3 of the paper, from its parameters.
#[test]
fn the_cliff_below_the_page_and_the_knee_are_the_papers() {
    let drive = SsdProfile::default();
    let megabytes = |len: u64| {
        rate(&mut SsdModel::new(TIB, drive.clone()), 16, writes(TIB, len, 20_000)) * len as f64 / 1e6
    };
    for (len, expected) in [(512, 78.0), (1024, 155.0), (2048, 310.0), (4096, 722.0), (8192, 723.0)] {
        near(megabytes(len), expected, 0.1);
    }
    let host = SsdProfile { client_time: Duration::from_micros(25), ..drive.clone() };
    for (threads, expected) in [(1, 23e3), (2, 47e3), (4, 93e3), (8, 176e3), (16, 176e3), (64, 176e3)] {
        near(rate(&mut SsdModel::new(TIB, host.clone()), threads, writes(TIB, 4096, 20_000)), expected, 0.1);
    }
    let sequence = (0..20_000).map(|place| command(CommandKind::Write, place * 4096, 4096));
    near(rate(&mut SsdModel::new(TIB, drive), 16, sequence), 176e3, 0.1);
}

//! Measures one I/O: elapsed time, and processor time of the whole process, per path and engine.
//!
//! `cargo run --release --example device_cost -- DIRECTORY [OPERATIONS]`
//! The numbers depend on the machine; compare columns of one run.
#![expect(clippy::print_stdout, reason = "a program for a person to read")]

use copal_device::{
    AlignedBuf, Completion, Device, FileOptions, Io, IoClass, IoKind, MemoryDevice, open_file,
};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const SIZE: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// A prime: neighbouring numbers lie far apart, and every page is used.
const SPREAD: u64 = 2_654_435_761;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| String::from("."));
    let operations: u64 = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    println!("{:34} {:>10} {:>10} {:>10} {:>10}", "microseconds", "p50", "p90", "p99", "CPU each");
    measure_all("memory", &MemoryDevice::new(SIZE), operations * 10);
    for force_pread in [false, true] {
        let file = tempfile::Builder::new().tempdir_in(&directory)?;
        let path = file.path().join("device");
        let options = FileOptions { create_size: Some(SIZE), force_pread, ..FileOptions::default() };
        let device = open_file(Path::new(&path), &options)?;
        submit_and_wait(&device, 0, IoKind::WriteZeroes(SIZE));
        submit_and_wait(&device, 0, IoKind::Flush);
        measure_all(device.engine(), &device, operations);
    }
    Ok(())
}

fn measure_all(name: &str, device: &Arc<dyn Device>, operations: u64) {
    let at = |number: u64| number.wrapping_mul(SPREAD) % (SIZE / PAGE) * PAGE;
    let mut buf = Some(AlignedBuf::zeroed(PAGE as usize));
    measure(name, "read_now", operations, |number| {
        buf = buf.take().and_then(|buf| device.read_now(at(number), buf).ok());
    });
    measure(name, "submit read, depth 1", operations, |number| {
        let io = IoKind::Read(buf.take().unwrap_or_else(|| AlignedBuf::zeroed(PAGE as usize)));
        buf = submit_and_wait(device, at(number), io);
    });
    let mut flying: VecDeque<Completion<_>> = VecDeque::new();
    measure(name, "submit read, depth 16", operations, |number| {
        let kind = IoKind::Read(AlignedBuf::zeroed(PAGE as usize));
        flying.push_back(device.submit(vec![io(at(number), kind)]));
        if flying.len() == 16 {
            drop(flying.pop_front().map(Completion::wait));
        }
    });
    flying.drain(..).for_each(|completion| drop(completion.wait()));
    measure(name, "write_through", operations / 4, |number| {
        buf = buf.take().and_then(|buf| device.write_through(at(number), buf).ok());
    });
    measure(name, "submit write, then flush", operations / 4, |number| {
        let buffer = buf.take().unwrap_or_else(|| AlignedBuf::zeroed(PAGE as usize));
        buf = submit_and_wait(device, at(number), IoKind::Write { buf: buffer, fua: false });
        submit_and_wait(device, 0, IoKind::Flush);
    });
}

fn io(at: u64, kind: IoKind) -> Io {
    let class = IoClass::Foreground;
    Io { at, kind, class }
}

fn submit_and_wait(device: &Arc<dyn Device>, at: u64, kind: IoKind) -> Option<AlignedBuf> {
    let done = device.submit(vec![io(at, kind)]).wait().pop()?;
    assert!(done.result.is_ok(), "{:?}", done.result);
    done.buf
}

fn measure(device: &str, what: &str, operations: u64, mut operation: impl FnMut(u64)) {
    let cpu = cpu_seconds();
    let mut times: Vec<f64> = (0..operations)
        .map(|number| {
            let start = Instant::now();
            operation(number);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    let used = (cpu_seconds() - cpu) * 1e6 / operations as f64;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((operations - 1) as f64 * part) as usize];
    let name = format!("{device}: {what}");
    println!("{name:34} {:10.2} {:10.2} {:10.2} {used:10.2}", at(0.5), at(0.9), at(0.99));
}

/// User and system time of all threads, from `/proc/self/stat`, in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

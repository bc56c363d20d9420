//! Conformance suite that every implementation of [`Device`] runs.
//!
//! Crashes are not covered: the fault device has its own tests, and the crash contract of a real device
//! cannot be tested from inside the process. The suite panics at the first failure and names the check.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

use crate::random::DeviceRandom;
use crate::{
    AlignedBuf, Completion, Device, DeviceCounters, DeviceError, Io, IoClass, IoDone, IoKind, PageCache,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;

/// Differences between conforming devices.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// `grow` and `cut` work (files, memory). Otherwise they are refused without effect (block devices).
    pub grows: bool,
    /// Each command of the caller counts as exactly one command.
    pub counts_exactly: bool,
}

/// Runs all checks. `make` creates a device of at least the given bytes, filled with zeros.
///
/// # Panics
/// When the device does not conform.
pub fn run(make: &dyn Fn(u64) -> Arc<dyn Device>, traits: Traits) {
    let fresh = || {
        let device = make(8 * MIB);
        let geometry = device.geometry();
        assert!(geometry.size >= 8 * MIB, "the device is smaller than asked for");
        assert!(geometry.logical_block.is_power_of_two() && (512..=4096).contains(&geometry.logical_block));
        assert!(geometry.max_io >= 128 * 1024, "{} bytes at most in one I/O", geometry.max_io);
        device
    };
    a_fresh_device_reads_as_zeros(&fresh());
    written_bytes_are_read(&fresh());
    several_at_once_in_one_call(&fresh());
    bad_ranges_touch_nothing(&fresh());
    many_in_flight(&fresh());
    zeroes_are_written_where_asked_only(&fresh());
    discards_stay_inside_their_range(&fresh());
    durable_writes_and_flushes_succeed(&fresh());
    hooks_may_submit(&fresh());
    threads_share_it(&fresh());
    a_dropped_completion_detaches(&fresh());
    the_page_cache_holds_any_range(&fresh());
    growing(&fresh(), traits.grows);
    shrinking(&fresh(), traits.grows);
    if traits.counts_exactly {
        commands_are_counted(&fresh());
    }
}

fn filled(len: u64, seed: u64) -> AlignedBuf {
    let mut random = DeviceRandom::new(seed);
    let mut buf = AlignedBuf::zeroed(len as usize);
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    buf
}

fn one(device: &Arc<dyn Device>, at: u64, kind: IoKind) -> Completion<Vec<IoDone>> {
    device.submit(vec![Io { at, kind, class: IoClass::Foreground }])
}

fn done(completion: Completion<Vec<IoDone>>) -> Option<AlignedBuf> {
    let mut all = completion.wait();
    assert_eq!(all.len(), 1, "one I/O, one result");
    let IoDone { result, buf } = all.remove(0);
    if let Err(error) = result {
        panic!("an I/O failed: {error}");
    }
    buf
}

fn write(device: &Arc<dyn Device>, at: u64, buf: AlignedBuf) {
    let len = buf.len();
    let back = done(one(device, at, IoKind::Write { buf, fua: false }));
    assert_eq!(back.map(|buf| buf.len()), Some(len), "the buffer of a write comes back whole");
}

fn read(device: &Arc<dyn Device>, at: u64, len: u64) -> AlignedBuf {
    match device.read_now(at, AlignedBuf::zeroed(len as usize)) {
        Ok(buf) => buf,
        Err(error) => panic!("reading {len} bytes at {at}: {error}"),
    }
}

fn flush(device: &Arc<dyn Device>) {
    assert!(done(one(device, 0, IoKind::Flush)).is_none(), "a flush has no buffer");
}

fn a_fresh_device_reads_as_zeros(device: &Arc<dyn Device>) {
    for at in [0, 4 * MIB, 7 * MIB] {
        assert!(read(device, at, MIB).iter().all(|byte| *byte == 0), "not zero at {at}");
    }
}

/// Random writes and reads through both paths, compared with a vector.
fn written_bytes_are_read(device: &Arc<dyn Device>) {
    let block = u64::from(device.geometry().logical_block);
    let mut model = vec![0u8; 2 * MIB as usize];
    let mut random = DeviceRandom::new(1);
    for step in 0..300 {
        let at = random.below(2 * MIB / block) * block;
        let len = (1 + random.below(40)) * block;
        let len = len.min(2 * MIB - at);
        let range = at as usize..(at + len) as usize;
        match random.below(4) {
            0 => {
                let buf = filled(len, step);
                model[range].copy_from_slice(&buf);
                write(device, at, buf);
            }
            1 if step % 8 == 0 => {
                let buf = filled(len, step);
                model[range].copy_from_slice(&buf);
                assert!(device.write_through(at, buf).is_ok_and(|buf| buf.len() as u64 == len));
            }
            2 => {
                let mut dirty = AlignedBuf::zeroed(len as usize);
                dirty.fill(0xaa);
                let buf = done(one(device, at, IoKind::Read(dirty)));
                assert_eq!(buf.as_deref(), Some(&model[range]), "submitted read at {at}");
            }
            _ => assert_eq!(&read(device, at, len)[..], &model[range], "read on this thread at {at}"),
        }
    }
    assert_eq!(&read(device, 0, MIB)[..], &model[..MIB as usize]);
}

fn several_at_once_in_one_call(device: &Arc<dyn Device>) {
    let io = |at: u64, kind: IoKind, class| Io { at: at * 4096, kind, class };
    let write = |seed| IoKind::Write { buf: filled(4096, seed), fua: seed % 2 == 0 };
    let classes = [IoClass::Commit, IoClass::Foreground, IoClass::Background];
    let ios = (0..30).map(|at| io(at, write(at), classes[at as usize % 3])).collect();
    assert!(device.submit(ios).wait().iter().all(|done| done.result.is_ok()));
    let reads = (0..30).rev().map(|at| {
        let buf = AlignedBuf::zeroed(4096);
        io(at, IoKind::Read(buf), classes[at as usize % 3])
    });
    let results = device.submit(reads.collect()).wait();
    for (at, done) in (0..30).rev().zip(&results) {
        assert_eq!(done.buf.as_deref(), Some(&filled(4096, at)[..]), "results have the order of the call");
    }
    assert!(device.submit(Vec::new()).wait().is_empty());
}

fn bad_ranges_touch_nothing(device: &Arc<dyn Device>) {
    let geometry = device.geometry();
    let (size, block) = (geometry.size, u64::from(geometry.logical_block));
    write(device, 0, filled(8192, 5));
    let bad = [
        (1, block),
        (block / 2, block),
        (0, block - 1),
        (0, block + 8),
        (0, 0),
        (size, block),
        (size - block, 2 * block),
        (u64::MAX - block + 1, block),
        (0, u64::from(geometry.max_io) + block),
    ];
    for (at, len) in bad {
        let kinds = [
            IoKind::Read(AlignedBuf::zeroed(len as usize)),
            IoKind::Write { buf: AlignedBuf::zeroed(len as usize), fua: false },
        ];
        for kind in kinds {
            let name = kind.name();
            let good = Io { at: 0, kind: IoKind::Read(AlignedBuf::zeroed(4096)), class: IoClass::Commit };
            let mut results =
                device.submit(vec![Io { at, kind, class: IoClass::Commit }, good]).wait().into_iter();
            let refused = results.next().map(|done| (done.result, done.buf.map(|buf| buf.len() as u64)));
            assert!(
                matches!(refused, Some((Err(DeviceError::OutOfRange { .. }), Some(back))) if back == len),
                "a {name} of {len} bytes at {at} must be refused and give its buffer back"
            );
            assert!(results.next().is_some_and(|done| done.result.is_ok()), "its neighbour still works");
        }
    }
    let refused = |kind| one(device, size, kind).wait().remove(0).result;
    assert!(matches!(refused(IoKind::WriteZeroes(block)), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(refused(IoKind::Discard(block)), Err(DeviceError::OutOfRange { .. })));
    let misplaced = device.read_now(1, AlignedBuf::zeroed(4096));
    assert!(matches!(misplaced, Err(DeviceError::OutOfRange { .. })));
    let misplaced = device.write_through(size, AlignedBuf::zeroed(4096));
    assert!(matches!(misplaced, Err(DeviceError::OutOfRange { .. })));
    assert_eq!(&read(device, 0, 8192)[..], &filled(8192, 5)[..], "refused writes touch nothing");
}

fn many_in_flight(device: &Arc<dyn Device>) {
    let classes = [IoClass::Commit, IoClass::Foreground, IoClass::Background];
    let writes: Vec<_> = (0..1500u64)
        .map(|at| {
            let kind = IoKind::Write { buf: filled(4096, at), fua: false };
            device.submit(vec![Io { at: at * 4096, kind, class: classes[at as usize % 3] }])
        })
        .collect();
    for completion in writes {
        done(completion);
    }
    let reads: Vec<_> =
        (0..1500u64).map(|at| one(device, at * 4096, IoKind::Read(AlignedBuf::zeroed(4096)))).collect();
    for (at, completion) in (0..).zip(reads) {
        assert_eq!(done(completion).as_deref(), Some(&filled(4096, at)[..]), "block {at}");
    }
}

fn zeroes_are_written_where_asked_only(device: &Arc<dyn Device>) {
    for at in 0..4 {
        write(device, at * MIB, filled(MIB, at));
    }
    let (from, len) = (MIB / 2, 2 * MIB + 4096);
    done(one(device, from, IoKind::WriteZeroes(len)));
    let mut model: Vec<u8> = (0..4).flat_map(|at| filled(MIB, at).to_vec()).collect();
    model[from as usize..(from + len) as usize].fill(0);
    for at in 0..4 {
        let range = (at * MIB) as usize..((at + 1) * MIB) as usize;
        assert!(read(device, at * MIB, MIB)[..] == model[range], "zeroes went astray in MiB {at}");
    }
}

fn discards_stay_inside_their_range(device: &Arc<dyn Device>) {
    write(device, 0, filled(MIB, 1));
    done(one(device, 65536, IoKind::Discard(65536)));
    let model = filled(MIB, 1);
    let after = read(device, 0, MIB);
    assert!(after[..65536] == model[..65536] && after[131_072..] == model[131_072..]);
    write(device, 65536, filled(65536, 2));
    assert_eq!(&read(device, 65536, 65536)[..], &filled(65536, 2)[..]);
}

fn durable_writes_and_flushes_succeed(device: &Arc<dyn Device>) {
    write(device, 0, filled(4096, 1));
    flush(device);
    assert!(device.write_through(4096, filled(4096, 2)).is_ok());
    done(one(device, 8192, IoKind::Write { buf: filled(8192, 3), fua: true }));
    flush(device);
    let expected = [&filled(4096, 1)[..], &filled(4096, 2)[..], &filled(8192, 3)[..]].concat();
    assert_eq!(&read(device, 0, 16384)[..], &expected[..]);
}

/// A chain of I/Os, each submitted by the hook of the previous one: a state machine without a thread.
fn hooks_may_submit(device: &Arc<dyn Device>) {
    fn step(device: &Arc<dyn Device>, left: u64, end: crate::Completer<u64>) {
        if left == 0 {
            return end.complete(left);
        }
        let next = Arc::clone(device);
        let kind = IoKind::Write { buf: filled(4096, left), fua: false };
        one(device, left * 4096, kind).on_complete(move |mut all| {
            assert!(all.pop().is_some_and(|done| done.result.is_ok()));
            step(&next, left - 1, end);
        });
    }
    let (completer, completion) = Completion::pair(device.driver());
    step(device, 200, completer);
    assert_eq!(completion.wait(), 0);
    for at in 1..=200 {
        assert_eq!(&read(device, at * 4096, 4096)[..], &filled(4096, at)[..], "link {at} of the chain");
    }
}

fn threads_share_it(device: &Arc<dyn Device>) {
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let failures = &failures;
            scope.spawn(move || {
                for round in 0..50 {
                    let at = (thread * 64 + round) * 4096;
                    write(device, at, filled(4096, at));
                    if read(device, at, 4096)[..] != filled(4096, at)[..] {
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                    if round % 16 == 0 {
                        flush(device);
                    }
                }
            });
        }
    });
    assert_eq!(failures.load(Ordering::Relaxed), 0, "threads see their own writes");
}

fn a_dropped_completion_detaches(device: &Arc<dyn Device>) {
    let before = device.counters().writes;
    for at in 0..20 {
        drop(one(device, at * 4096, IoKind::Write { buf: filled(4096, at), fua: false }));
    }
    while device.counters().writes < before + 20 {
        if !device.drive() {
            std::thread::yield_now();
        }
    }
    for at in 0..20 {
        assert_eq!(&read(device, at * 4096, 4096)[..], &filled(4096, at)[..]);
    }
}

fn growing(device: &Arc<dyn Device>, grows: bool) {
    let size = device.geometry().size;
    write(device, size - 4096, filled(4096, 1));
    assert!(matches!(device.grow(size), Ok(same) if same == size), "to its own size");
    assert!(matches!(device.grow(4096), Ok(same) if same == size), "it never shrinks");
    if !grows {
        assert!(device.grow(size + MIB).is_err_and(|error| error.is_no_space()));
        return write(device, 0, filled(4096, 2));
    }
    let grown = device.grow(size + MIB);
    assert!(matches!(grown, Ok(new) if new >= size + MIB && new == device.geometry().size));
    assert_eq!(&read(device, size - 4096, 4096)[..], &filled(4096, 1)[..], "old bytes stay");
    assert!(read(device, size, MIB).iter().all(|byte| *byte == 0), "new bytes are zero");
    write(device, size + MIB - 4096, filled(4096, 3));
    assert_eq!(&read(device, size + MIB - 4096, 4096)[..], &filled(4096, 3)[..]);
}

fn shrinking(device: &Arc<dyn Device>, grows: bool) {
    let size = device.geometry().size;
    write(device, size - 2 * MIB, filled(MIB, 1));
    write(device, size - MIB, filled(MIB, 2));
    assert!(matches!(device.cut(size + MIB), Ok(same) if same == size), "it never grows");
    let cut = device.cut(size - MIB);
    assert!(matches!(cut, Ok(new) if new == device.geometry().size));
    if !grows {
        assert_eq!(device.geometry().size, size);
        return;
    }
    assert_eq!(device.geometry().size, size - MIB);
    assert_eq!(&read(device, size - 2 * MIB, MIB)[..], &filled(MIB, 1)[..]);
    let behind = device.read_now(size - MIB, AlignedBuf::zeroed(4096));
    assert!(matches!(behind, Err(DeviceError::OutOfRange { .. })));
    flush(device);
    assert!(matches!(device.grow(size), Ok(new) if new == size));
    let again = read(device, size - MIB, MIB);
    assert!(again.iter().all(|byte| *byte == 0), "cut bytes read as zeros");
    done(one(device, MIB, IoKind::Discard(MIB)));
    assert!(device.reserve(MIB, MIB).is_ok());
    write(device, MIB, filled(MIB, 4));
    assert_eq!(&read(device, MIB, MIB)[..], &filled(MIB, 4)[..]);
    assert!(device.reserve(MIB, MIB).is_ok(), "a range with space");
    assert_eq!(&read(device, MIB, MIB)[..], &filled(MIB, 4)[..], "and its bytes");
    assert!(device.reserve(size, 4096).is_err(), "outside");
}

fn commands_are_counted(device: &Arc<dyn Device>) {
    let before = device.counters();
    write(device, 0, filled(8192, 1));
    done(one(device, 8192, IoKind::Write { buf: filled(4096, 2), fua: true }));
    assert!(device.write_through(12288, filled(4096, 3)).is_ok());
    flush(device);
    read(device, 0, 16384);
    done(one(device, 0, IoKind::Read(AlignedBuf::zeroed(4096))));
    done(one(device, MIB, IoKind::WriteZeroes(2 * MIB)));
    done(one(device, MIB, IoKind::Discard(65536)));
    assert!(device.read_now(1, AlignedBuf::zeroed(4096)).is_err(), "refused, so not counted");
    let expected = DeviceCounters {
        reads: 2,
        read_bytes: 20480,
        writes: 3,
        write_bytes: 16384,
        fua_writes: 2,
        flushes: 1,
        discards: 1,
        discard_bytes: 65536,
        zeroes: 1,
        zero_bytes: 2 * MIB,
    };
    assert_eq!(device.counters() - before, expected);
}

/// Small writes, writes longer than any internal buffer, and writes that lie only partly in the prepared
/// range.
fn prepared_ranges_read_as_written(cache: &dyn PageCache, read: &dyn Fn(u64, usize) -> Vec<u8>) {
    let (from, len) = (2 * MIB, 512 << 10);
    let around = from - 8192..from + len + 8192;
    let mut expected = read(around.start, (around.end - around.start) as usize);
    cache.prepare(from, len);
    let writes = [
        (0, 1),
        (4090, 20),
        (8192, 4096),
        (100_000, 300_000),
        (0, len as usize),
        (77, 70_000),
        (-5, 10),
        (len as i64 - 3, 6),
        (-8192, 8192),
    ];
    for (number, (offset, len)) in (1u8..).zip(writes) {
        let at = from.wrapping_add_signed(offset);
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(number)).collect();
        assert!(cache.write_cached(at, &bytes).is_ok(), "{len} bytes at {at}");
        let place = (at - around.start) as usize;
        expected[place..place + len].copy_from_slice(&bytes);
        let found = read(around.start, expected.len());
        assert!(found == expected, "behind a write of {len} bytes at {offset}");
    }
}

fn the_page_cache_holds_any_range(device: &Arc<dyn Device>) {
    let Some(cache) = device.page_cache() else { return };
    let read = |at, len: usize| {
        let mut out = vec![0xee; len];
        assert!(cache.read_cached(at, &mut out).is_ok(), "{len} bytes at {at}");
        out
    };
    write(device, 0, filled(4096, 1));
    assert!(cache.write_cached(MIB + 4090, &[1; 20]).is_ok());
    assert!(cache.write_cached(MIB + 4100, &[2; 3]).is_ok());
    let expected = [&[0; 2][..], &[1; 10], &[2; 3], &[1; 7], &[0; 2]].concat();
    assert_eq!(read(MIB + 4088, 24), expected);
    flush(device);
    assert_eq!(read(MIB + 4088, 24), expected, "a flush changes nothing");
    assert_eq!(&read(0, 4096)[..], &filled(4096, 1)[..], "its neighbours stay");
    prepared_ranges_read_as_written(cache, &read);
    let size = device.geometry().size;
    let outside = |result| assert!(matches!(result, Err(DeviceError::OutOfRange { .. })));
    outside(cache.write_cached(size - 1, &[0; 2]));
    outside(cache.write_cached(u64::MAX, &[0; 2]));
    outside(cache.read_cached(size, &mut [0]));
}

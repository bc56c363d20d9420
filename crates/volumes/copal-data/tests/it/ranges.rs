//! Many ranges of a file: device commands.

use crate::stack::{MIB, blank, body, open, put, volume};
use copal_device::Device;
use copal_volume::{ReadOptions, VolumeStore};
use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

/// 300 ranges of 20 KB in a file of 24 MiB, in a scattered order.
#[test]
fn many_ranges_take_a_fraction_of_the_commands() {
    let device: Arc<dyn Device> = blank(128 * MIB);
    let store = open(&device);
    let vid = volume(&store, "v");
    let whole = body(1, 24 << 20);
    put(&store, vid, b"pack", whole.clone()).expect("put");
    drop(store);
    let store = open(&device);
    let ranges: Vec<_> = (0..300u64).map(|n| n * 113 % 300 * 80_000).map(|at| at..at + 20_000).collect();
    let count = |work: &dyn Fn()| {
        let before = device.counters();
        work();
        device.counters() - before
    };
    let options = ReadOptions::default();
    let together = count(&|| {
        let mut answers = 0;
        let read = store.read_ranges(vid, b"pack", &ranges, &options, &mut |index, answer| {
            let range = &ranges[index];
            assert!(answer.expect("bytes") == whole.slice(range.start as usize..range.end as usize));
            answers += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((read, answers), (Ok(()), 300));
    });
    let alone = count(&|| {
        for range in &ranges {
            store.get(vid, b"pack", range.clone(), &options).expect("get");
        }
    });
    assert!(together.reads <= 40, "{} reads, {} one by one", together.reads, alone.reads);
    assert!(alone.reads >= 300, "{} reads one by one", alone.reads);
    assert!(together.read_bytes <= 25 << 20, "{} bytes", together.read_bytes);
}

/// Symptom: a restore read the last 64 KiB of every few MiB of a pack twice, backwards, at the cost of a turn of the disk
/// each. Cause: ranges that share a block of checksums were read in runs of 256 KiB, each of which began with the last
/// block of the one before. Fix: a range is cut where a run ends.
#[test]
fn adjacent_ranges_read_each_block_once() {
    let device = blank(256 * MIB);
    let store = open(&device);
    let vid = volume(&store, "v");
    let whole = body(8, 24 << 20);
    put(&store, vid, b"pack", whole.clone()).expect("put");
    store.kv().flush().expect("flush");
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 1000;
    while at < whole.len() as u64 {
        let end = (at + 190_000 + at % 70_000).min(whole.len() as u64);
        ranges.push(at..end);
        at = end;
    }
    let read = |ranges: &[Range<u64>]| {
        let mut answered = vec![0; ranges.len()];
        let before = device.counters();
        let read = store.read_ranges(vid, b"pack", ranges, &ReadOptions::default(), &mut |index, answer| {
            let (from, to) = (ranges[index].start as usize, ranges[index].end as usize);
            assert!(answer.expect("bytes") == whole.slice(from..to), "{from} to {to}");
            answered[index] += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(read, Ok(()));
        assert!(answered.iter().all(|answers| *answers == 1), "{answered:?}");
        device.counters() - before
    };
    let counts = read(&ranges);
    // Rows besides.
    assert!(counts.read_bytes < (24 << 20) + 100_000, "{} bytes", counts.read_bytes);
    assert!(counts.reads <= 36, "{} reads of at most 1 MiB", counts.reads);
    // One of several pieces, one longer than a run, and overlapping ones.
    ranges.extend([3 << 20..6 << 20, 9 << 20..(11 << 20) + 77, (9 << 20) + 5000..(9 << 20) + 300_000]);
    read(&ranges);
}

/// A damaged block fails the ranges on it, also those that were cut at the end of a run, and no others.
#[test]
fn a_cut_range_on_damage_is_answered_once() {
    let device = blank(256 * MIB);
    let store = open(&device);
    let vid = volume(&store, "v");
    let whole = body(9, 6 << 20);
    let info = put(&store, vid, b"pack", whole.clone()).expect("put");
    let damaged = (1 << 20) + 70_000;
    let end = [&info.fid.0.to_be_bytes()[..], &0_u32.to_be_bytes()].concat();
    let space = store.kv().open_keyspace("extents").expect("keyspaces").expect("extents");
    let rows = space.prefix(b"").map(|row| row.expect("row"));
    let (key, piece) = { rows }.find(|(key, _)| key.ends_with(&end)).expect("the first piece");
    let mut piece = piece.to_vec();
    piece[damaged as usize] ^= 1;
    space.put(&key, &piece, copal_kv::Durability::Device).expect("put");
    let ranges: Vec<Range<u64>> = (0..30).map(|n| n * 200_000..(n + 1) * 200_000).collect();
    let mut answered = vec![0; ranges.len()];
    let read = store.read_ranges(vid, b"pack", &ranges, &ReadOptions::default(), &mut |index, answer| {
        let range = &ranges[index];
        let block = damaged / 65536 * 65536..(damaged / 65536 + 1) * 65536;
        let touches = range.start < block.end && range.end > block.start;
        match answer {
            Ok(bytes) => {
                assert!(!touches, "{range:?}");
                assert!(bytes == whole.slice(range.start as usize..range.end as usize), "{range:?}");
            }
            Err(error) => assert!(touches && error.is_corruption(), "{range:?}: {error}"),
        }
        answered[index] += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(read, Ok(()));
    assert!(answered.iter().all(|answers| *answers == 1), "{answered:?}");
}

/// The last bytes of many files are read together; a damaged or an absent file fails alone.
#[test]
fn last_bytes_of_many_files_take_few_reads() {
    let device = blank(256 * MIB);
    let store = open(&device);
    let vid = volume(&store, "v");
    let bodies: Vec<_> = (0..20).map(|seed| body(seed, 1_500_000 + seed as usize * 1000)).collect();
    let names: Vec<Vec<u8>> = (0..20).map(|number| format!("pack {number}").into_bytes()).collect();
    for (name, body) in names.iter().zip(&bodies) {
        put(&store, vid, name, body.clone()).expect("put");
    }
    store.close().expect("close");
    let store = open(&device);
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let count = |work: &dyn Fn()| {
        let before = device.counters();
        work();
        (device.counters() - before).reads
    };
    let options = ReadOptions::default();
    let together = count(&|| {
        let mut answers = 0;
        let done = store.tails(vid, &names, 64 << 10, &options, &mut |index, tail| {
            let (info, tail) = tail.expect("a file");
            assert_eq!(info.size, bodies[index].len() as u64);
            assert!(tail == bodies[index].slice(bodies[index].len() - (64 << 10)..));
            answers += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((done, answers), (Ok(()), 20));
    });
    assert!(together <= 30, "{together} reads for 20 files");
}

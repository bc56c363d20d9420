//! Many ranges of a file: device commands.

use crate::stack::{MIB, blank, body, open, put, volume};
use copal_device::Device;
use copal_volume::{ReadOptions, VolumeStore};
use std::{ops::ControlFlow, sync::Arc};

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

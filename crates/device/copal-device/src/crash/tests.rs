//! The enumerator compared with a block-by-block model of the possible contents after a crash.

use super::*;
use crate::fault::{CompletionOrder, Fault, FaultDevice, FaultOptions, WriteFault};
use crate::random::DeviceRandom;
use crate::{AlignedBuf, Completion, Device, Image, Io, IoClass, IoDone, IoKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: u64 = 4096;

fn device(blocks: u64, order: CompletionOrder) -> Arc<FaultDevice> {
    let options = FaultOptions { order, ..FaultOptions::default() };
    FaultDevice::with_options(Image::zeroed(blocks * BLOCK), options)
}

fn block_of(value: u8, blocks: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed((blocks * BLOCK) as usize);
    buf.fill(value);
    buf
}

fn submit(dev: &FaultDevice, at: u64, kind: IoKind) -> Completion<Vec<IoDone>> {
    dev.submit(vec![Io { at: at * BLOCK, kind, class: IoClass::Commit }])
}

fn write(value: u8, blocks: u64) -> IoKind {
    IoKind::Write { buf: block_of(value, blocks), fua: false }
}

/// First byte of each block.
fn values(image: &Image) -> Vec<u8> {
    (0..image.size() / BLOCK)
        .map(|block| {
            let mut byte = [0; BLOCK as usize];
            image.read(block * BLOCK, &mut byte);
            assert!(byte.iter().all(|other| *other == byte[0]), "block {block} is torn inside");
            byte[0]
        })
        .collect()
}

fn reachable(history: &DeviceHistory, step: usize) -> BTreeSet<Vec<u8>> {
    let limits = StateLimits { exhaustive: 20, ..StateLimits::default() };
    states(history, step, &limits).map(|state| values(state.image())).collect()
}

/// Possible contents of a block: the durable value, then later values that no flush covers, oldest first.
#[derive(Clone)]
struct Block {
    durable: u8,
    open: Vec<u8>,
}

fn product(blocks: &[Block]) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::from([Vec::new()]);
    for block in blocks {
        let choices: BTreeSet<u8> = block.open.iter().copied().chain([block.durable]).collect();
        all = all
            .iter()
            .flat_map(|prefix| choices.iter().map(|choice| [&prefix[..], &[*choice]].concat()))
            .collect();
    }
    all
}

#[test]
fn exhaustive_states_match_the_contract_exactly() {
    for seed in 0..150 {
        let mut random = DeviceRandom::new(seed);
        let dev = device(5, CompletionOrder::Immediate);
        let mut model = vec![Block { durable: 0, open: Vec::new() }; 5];
        let mut steps = vec![(0, model.clone())];
        for value in 1..=7u8 {
            let at = random.below(5);
            let len = 1 + random.below((5 - at).min(2));
            let covered = &mut model[at as usize..(at + len) as usize];
            match random.below(5) {
                0 => {
                    drop(submit(&dev, 0, IoKind::Flush));
                    for block in &mut model {
                        block.durable = block.open.pop().unwrap_or(block.durable);
                        block.open.clear();
                    }
                }
                1 => {
                    dev.write_through(at * BLOCK, block_of(value, len)).unwrap();
                    covered.fill(Block { durable: value, open: Vec::new() });
                }
                2 => {
                    drop(submit(&dev, at, IoKind::WriteZeroes(len * BLOCK)));
                    covered.iter_mut().for_each(|block| block.open.push(0));
                }
                _ => {
                    drop(submit(&dev, at, write(value, len)));
                    covered.iter_mut().for_each(|block| block.open.push(value));
                }
            }
            steps.push((dev.step(), model.clone()));
        }
        let history = dev.history();
        for (step, model) in &steps {
            assert_eq!(
                reachable(&history, *step),
                product(model),
                "seed {seed} step {step}\n{}",
                history.describe()
            );
        }
        let last = cuts(&history).last().unwrap();
        assert_eq!(last.step(), history.len());
    }
}

#[test]
fn a_flush_covers_only_writes_completed_before_it_began() {
    let dev = device(2, CompletionOrder::Fifo);
    let first = submit(&dev, 0, write(1, 1));
    let early = submit(&dev, 0, IoKind::Flush);
    dev.run_until_idle();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![0, 0], vec![1, 0]]));
    drop((first, early));
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![1, 0]]));
}

#[test]
fn a_write_in_flight_may_survive_and_is_not_hurt_by_the_completion_order() {
    let dev = device(2, CompletionOrder::Fifo);
    drop(submit(&dev, 0, write(1, 1)));
    let step = dev.step();
    drop(submit(&dev, 1, write(2, 1)));
    let second = dev.pending()[1].id;
    assert!(dev.complete(second));
    submit(&dev, 0, IoKind::Flush).wait();
    let history = dev.history();
    assert_eq!(reachable(&history, step), BTreeSet::from([vec![0, 0], vec![1, 0]]));
    let after = reachable(&history, dev.step());
    assert_eq!(
        after,
        BTreeSet::from([vec![0, 2], vec![1, 2]]),
        "the first was in flight when the flush began"
    );
}

#[test]
fn a_durable_write_makes_nothing_else_durable_and_cannot_be_undone_by_an_older_one() {
    let dev = device(2, CompletionOrder::Immediate);
    submit(&dev, 0, write(1, 2)).wait();
    dev.write_through(0, block_of(2, 1)).unwrap();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![2, 0], vec![2, 1]]));
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![2, 1]]));
}

/// Symptom: a checkpoint that named a commit whose frame was still being written through broke the order, and
/// no history showed it.
/// Cause: a write-through was one instant here, with nothing beside it.
/// Fix: a test can run work in the middle of a write-through, which stays open during any flush of that work.
#[test]
fn a_flush_beside_a_write_through_does_not_cover_it() {
    let dev = device(2, CompletionOrder::Immediate);
    let other = dev.clone();
    dev.beside_next_write_through(Some(Box::new(move || {
        submit(&other, 1, write(1, 1)).wait();
        submit(&other, 0, IoKind::Flush).wait();
    })));
    dev.write_through(0, block_of(2, 1)).unwrap();
    let history = dev.history();
    let flushed = dev.step() - 1;
    assert_eq!(reachable(&history, flushed), BTreeSet::from([vec![0, 1], vec![2, 1]]));
    assert_eq!(reachable(&history, dev.step()), BTreeSet::from([vec![2, 1]]));
}

/// Symptom: a simulated disk lost flushed data.
/// Cause: `heal` forgot a write in flight, which reached the image all the same.
/// Fix: it stays open.
#[test]
fn a_write_in_flight_outlives_the_repair_of_the_medium() {
    let dev = device(1, CompletionOrder::Fifo);
    dev.inject(Fault::Write { skip: 100, fault: WriteFault::Error });
    drop(submit(&dev, 0, write(1, 1)));
    dev.heal();
    let begun = dev.step();
    submit(&dev, 0, IoKind::Flush).wait();
    submit(&dev, 0, IoKind::Flush).wait();
    let history = dev.history();
    assert_eq!(reachable(&history, begun), BTreeSet::from([vec![0], vec![1]]));
    assert_eq!(reachable(&history, dev.step()), BTreeSet::from([vec![1]]));
}

/// Symptom: after a power cut a log's frame was back that had failed with an error long before. It lay over
/// the frame that was written in its place and flushed.
/// Cause: a failed write stayed open for ever, and open changes lie over completed ones.
/// Fix: when the device is opened again, a failed write either has happened or never will.
#[test]
fn a_write_that_failed_does_not_come_back_over_later_ones() {
    for seed in 0..8 {
        let options = FaultOptions { seed, order: CompletionOrder::Immediate, ..FaultOptions::default() };
        let dev = FaultDevice::with_options(Image::zeroed(BLOCK), options);
        dev.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
        submit(&dev, 0, write(1, 1)).wait();
        assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![0], vec![1]]));
        let dev = dev.reopen();
        submit(&dev, 0, write(2, 1)).wait();
        submit(&dev, 0, IoKind::Flush).wait();
        assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![2]]));
    }
}

#[test]
fn growth_is_open_until_flushed_and_writes_beyond_are_lost_with_it() {
    let dev = device(1, CompletionOrder::Immediate);
    assert_eq!(dev.grow(2 * BLOCK).unwrap(), 2 * BLOCK);
    submit(&dev, 1, write(7, 1)).wait();
    let seen = reachable(&dev.history(), dev.step());
    assert_eq!(seen, BTreeSet::from([vec![0], vec![0, 0], vec![0, 7]]));
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![0, 7]]));
}

#[test]
fn a_cut_is_open_until_flushed_and_cut_bytes_do_not_come_back() {
    let dev = device(2, CompletionOrder::Immediate);
    submit(&dev, 0, write(7, 2)).wait();
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(dev.cut(BLOCK).unwrap(), BLOCK);
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![7], vec![7, 7]]));
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(dev.grow(2 * BLOCK).unwrap(), 2 * BLOCK);
    submit(&dev, 0, IoKind::Flush).wait();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![7, 0]]));
}

/// A full host refuses a write into a discarded range unless the range was reserved again.
#[test]
fn on_a_full_host_a_write_into_a_hole_fails_until_the_hole_is_reserved() {
    let options =
        FaultOptions { order: CompletionOrder::Immediate, full_host: true, ..FaultOptions::default() };
    let dev = FaultDevice::with_options(Image::zeroed(4 * BLOCK), options);
    submit(&dev, 1, IoKind::Discard(2 * BLOCK)).wait();
    dev.reserve(BLOCK, BLOCK).unwrap();
    let result = |at, value| submit(&dev, at, write(value, 1)).wait().remove(0).result;
    assert!(result(1, 5).is_ok() && result(3, 5).is_ok());
    assert!(result(2, 5).is_err());
    let dev = dev.reopen();
    dev.reserve(2 * BLOCK, BLOCK).unwrap();
    assert!(dev.write_through(2 * BLOCK, block_of(6, 1)).is_ok());
}

#[test]
fn discarded_ranges_may_read_as_something_else_before_the_flush_already() {
    let dev = device(1, CompletionOrder::Immediate);
    dev.write_through(0, block_of(7, 1)).unwrap();
    submit(&dev, 0, IoKind::Discard(BLOCK)).wait();
    assert_eq!(reachable(&dev.history(), dev.step()), BTreeSet::from([vec![7], vec![0xd5]]));
}

#[test]
fn writes_tear_at_the_logical_block() {
    let options =
        FaultOptions { logical_block: 512, order: CompletionOrder::Immediate, ..FaultOptions::default() };
    let dev = FaultDevice::with_options(Image::zeroed(BLOCK), options);
    submit(&dev, 0, write(9, 1)).wait();
    let all = states(&dev.history(), dev.step(), &StateLimits::default());
    assert_eq!(all.count_all(), 1 << 8);
    let mut seen = BTreeSet::new();
    for state in all {
        let mut bytes = vec![0; BLOCK as usize];
        state.image().read(0, &mut bytes);
        let sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        seen.insert(sectors);
    }
    assert_eq!(seen.len(), 1 << 8);
}

/// Beyond the exhaustive limit all promised subsets are present, and number `n` is always the same state.
#[test]
fn sampled_states_hold_none_all_singles_prefixes_and_tears() {
    let dev = device(40, CompletionOrder::Immediate);
    for at in 0..20 {
        submit(&dev, at * 2, write(at as u8 + 1, 2)).wait();
    }
    let history = dev.history();
    let all = states(&history, dev.step(), &StateLimits::default());
    let by_value: BTreeMap<Vec<u8>, u64> =
        all.clone().map(|state| (values(state.image()), state.index())).collect();
    let whole = |keep: &dyn Fn(u8) -> bool| -> Vec<u8> {
        (0..40u8).map(|block| block / 2 + 1).map(|value| if keep(value) { value } else { 0 }).collect()
    };
    assert!(by_value.contains_key(&whole(&|_| false)));
    assert!(by_value.contains_key(&whole(&|_| true)));
    for one in 1..=20 {
        assert!(by_value.contains_key(&whole(&|value| value == one)));
        assert!(by_value.contains_key(&whole(&|value| value != one)));
        assert!(by_value.contains_key(&whole(&|value| value <= one)));
        let mut torn = whole(&|value| value != one);
        torn[usize::from(one) * 2 - 1] = one;
        assert!(by_value.contains_key(&torn), "second half of {one} alone lost its first");
    }
    assert!(by_value.len() > 250, "{} different states", by_value.len());
    for (value, index) in by_value.iter().step_by(17) {
        let state = all.get(*index).unwrap();
        assert_eq!(&values(state.image()), value);
        assert_eq!(state.index(), *index);
        assert!(state.describe().contains(&format!("state {index}")));
    }
    assert!(all.get(all.count_all()).is_none());
}

#[test]
fn a_long_write_is_torn_in_every_way_that_is_promised() {
    let dev = device(16, CompletionOrder::Immediate);
    submit(&dev, 0, write(1, 16)).wait();
    let all: BTreeSet<Vec<u8>> = states(&dev.history(), dev.step(), &StateLimits::default())
        .map(|state| values(state.image()))
        .collect();
    let ways: [&dyn Fn(usize) -> bool; 8] = [
        &|_| false,
        &|_| true,
        &|place| place == 0,
        &|place| place == 15,
        &|place| place != 0,
        &|place| place != 15,
        &|place| place < 8,
        &|place| place % 2 == 0,
    ];
    for (number, way) in ways.iter().enumerate() {
        let torn: Vec<u8> = (0..16).map(|place| u8::from(way(place))).collect();
        assert!(all.contains(&torn), "way {number}");
    }
}

#[test]
fn the_cut_points_reach_every_state_that_any_step_reaches() {
    for seed in 0..40 {
        let mut random = DeviceRandom::new(seed);
        let options = FaultOptions { seed, ..FaultOptions::default() };
        let dev = FaultDevice::with_options(Image::zeroed(4 * BLOCK), options);
        for value in 1..=6u8 {
            match random.below(4) {
                0 => drop(submit(&dev, 0, IoKind::Flush)),
                1 => drop(dev.write_through(random.below(4) * BLOCK, block_of(value, 1)).unwrap()),
                _ => drop(submit(&dev, random.below(4), write(value, 1))),
            }
            if random.one_in(2) {
                dev.drive();
            }
        }
        dev.run_until_idle();
        let history = dev.history();
        let points = history.cut_points();
        for step in 0..=history.len() {
            let next = points.iter().find(|point| **point >= step).unwrap();
            let (here, there) = (reachable(&history, step), reachable(&history, *next));
            assert!(here.is_subset(&there), "seed {seed} step {step}\n{}", history.describe());
        }
        let swept: Vec<u64> =
            all_cuts(&history).map(|cut| cut.states(&StateLimits::default()).count_all()).collect();
        let alone: Vec<u64> = (0..=history.len())
            .map(|step| states(&history, step, &StateLimits::default()).count_all())
            .collect();
        assert_eq!(swept, alone);
    }
}

#[test]
fn a_crash_state_can_crash_again() {
    let dev = device(2, CompletionOrder::Immediate);
    submit(&dev, 0, write(1, 1)).wait();
    for state in states(&dev.history(), dev.step(), &StateLimits::default()) {
        let first = values(state.image())[0];
        let again = state.fault_device(1);
        submit(&again, 1, write(5, 1)).wait();
        assert_eq!(
            reachable(&again.history(), again.step()),
            BTreeSet::from([vec![first, 0], vec![first, 5]])
        );
        assert_eq!(state.device().geometry().size, 2 * BLOCK);
    }
}

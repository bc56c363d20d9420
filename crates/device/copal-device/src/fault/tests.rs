//! Each fault has its documented effect and no other.

use super::*;
use crate::crash;

const BLOCK: u64 = 4096;

fn device(order: CompletionOrder) -> Arc<FaultDevice> {
    FaultDevice::with_options(Image::zeroed(16 * BLOCK), FaultOptions { order, ..FaultOptions::default() })
}

fn block_of(value: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCK as usize);
    buf.fill(value);
    buf
}

fn io(at: u64, kind: IoKind) -> Vec<Io> {
    vec![Io { at: at * BLOCK, kind, class: IoClass::Foreground }]
}

fn write(dev: &FaultDevice, at: u64, value: u8) -> Result<(), DeviceError> {
    let kind = IoKind::Write { buf: block_of(value), fua: false };
    let mut done = dev.submit(io(at, kind)).wait();
    assert_eq!(done[0].buf.as_ref().map(|buf| buf.len()), Some(BLOCK as usize), "the buffer comes back");
    done.remove(0).result
}

fn flush(dev: &FaultDevice) -> Result<(), DeviceError> {
    dev.submit(io(0, IoKind::Flush)).wait().remove(0).result
}

fn read(dev: &FaultDevice, at: u64) -> Result<u8, DeviceError> {
    dev.read_now(at * BLOCK, AlignedBuf::zeroed(BLOCK as usize)).map(|buf| buf[0])
}

#[test]
fn completions_come_in_the_order_asked_for() {
    let sequence = |order, seed| {
        let options = FaultOptions { order, seed, ..FaultOptions::default() };
        let dev = FaultDevice::with_options(Image::zeroed(16 * BLOCK), options);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for at in 0..8 {
            let seen = Arc::clone(&seen);
            let kind = IoKind::Write { buf: block_of(1), fua: false };
            dev.submit(io(at, kind)).on_complete(move |_| seen.lock().push(at));
        }
        dev.run_until_idle();
        seen.lock().clone()
    };
    assert_eq!(sequence(CompletionOrder::Immediate, 0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(sequence(CompletionOrder::Fifo, 0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(sequence(CompletionOrder::Lifo, 0), [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_ne!(sequence(CompletionOrder::Shuffled, 1), sequence(CompletionOrder::Shuffled, 2));
    assert_eq!(sequence(CompletionOrder::Shuffled, 3), sequence(CompletionOrder::Shuffled, 3));
}

#[test]
fn waiting_for_one_runs_others_too() {
    let dev = device(CompletionOrder::Fifo);
    let first = dev.submit(io(0, IoKind::Write { buf: block_of(1), fua: false }));
    let second = dev.submit(io(1, IoKind::Write { buf: block_of(2), fua: false }));
    assert_eq!(dev.pending().len(), 2);
    second.wait();
    assert!(first.is_ready());
    assert!(!dev.drive());
}

#[test]
fn a_latent_error_hurts_reads_of_its_range_until_it_is_written() {
    let dev = device(CompletionOrder::Immediate);
    dev.inject(Fault::ReadError { at: 3 * BLOCK, len: 1 });
    assert!(read(&dev, 2).is_ok());
    assert_eq!(read(&dev, 3).unwrap_err().raw_os_error(), Some(libc::EIO));
    write(&dev, 3, 5).unwrap();
    assert_eq!(read(&dev, 3).unwrap(), 5);
}

#[test]
fn a_flipped_bit_is_on_the_medium_and_heals() {
    let dev = device(CompletionOrder::Immediate);
    write(&dev, 1, 0b1000).unwrap();
    flush(&dev).unwrap();
    dev.inject(Fault::BitFlip { at: BLOCK, bit: 0 });
    assert_eq!(read(&dev, 1).unwrap(), 0b1001);
    let state = crash::states(&dev.history(), dev.step(), &crash::StateLimits::default()).next().unwrap();
    let mut byte = [0];
    state.image().read(BLOCK, &mut byte);
    assert_eq!(byte, [0b1001], "a crash does not repair it");
    dev.heal();
    assert_eq!(read(&dev, 1).unwrap(), 0b1000);
}

#[test]
fn lost_and_misdirected_writes_report_success() {
    let dev = device(CompletionOrder::Immediate);
    write(&dev, 1, 1).unwrap();
    write(&dev, 2, 2).unwrap();
    dev.inject(Fault::Write { skip: 1, fault: WriteFault::Lost });
    write(&dev, 5, 5).unwrap();
    write(&dev, 1, 9).unwrap();
    assert_eq!((read(&dev, 5).unwrap(), read(&dev, 1).unwrap()), (5, 1));
    dev.inject(Fault::Write { skip: 0, fault: WriteFault::Misdirected { to: 2 * BLOCK } });
    write(&dev, 3, 3).unwrap();
    assert_eq!((read(&dev, 3).unwrap(), read(&dev, 2).unwrap()), (0, 3));
    flush(&dev).unwrap();
    for state in crash::states(&dev.history(), dev.step(), &crash::StateLimits::default()) {
        let mut bytes = vec![0; 16 * BLOCK as usize];
        state.image().read(0, &mut bytes);
        let first: Vec<u8> = bytes.chunks(BLOCK as usize).take(6).map(|block| block[0]).collect();
        assert_eq!(first, [0, 1, 3, 0, 0, 5], "the history holds the changes of the medium");
    }
    dev.heal();
    let healed: Vec<u8> = (0..6).map(|at| read(&dev, at).unwrap()).collect();
    assert_eq!(healed, [0, 9, 2, 3, 0, 5]);
}

#[test]
fn a_stale_range_reads_as_it_was() {
    let dev = device(CompletionOrder::Immediate);
    write(&dev, 4, 1).unwrap();
    dev.inject(Fault::StaleRead { at: 4 * BLOCK, len: BLOCK });
    write(&dev, 4, 2).unwrap();
    write(&dev, 5, 3).unwrap();
    let buf = dev.read_now(4 * BLOCK, AlignedBuf::zeroed(2 * BLOCK as usize)).unwrap();
    assert_eq!((buf[0], buf[BLOCK as usize]), (1, 3));
    dev.heal();
    assert_eq!(read(&dev, 4).unwrap(), 2);
}

#[test]
fn a_failed_write_poisons_until_reopened_and_reads_go_on() {
    let dev = device(CompletionOrder::Immediate);
    write(&dev, 1, 1).unwrap();
    dev.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    assert_eq!(write(&dev, 2, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(matches!(write(&dev, 3, 3), Err(DeviceError::Poisoned)));
    assert!(matches!(flush(&dev), Err(DeviceError::Poisoned)));
    assert!(matches!(dev.write_through(0, block_of(1)), Err(DeviceError::Poisoned)));
    assert!(matches!(dev.grow(32 * BLOCK), Err(DeviceError::Poisoned)));
    assert_eq!(read(&dev, 1).unwrap(), 1);
    let again = dev.reopen();
    write(&again, 3, 3).unwrap();
    flush(&again).unwrap();
    assert_eq!(read(&again, 3).unwrap(), 3);
}

#[test]
fn after_a_failed_flush_the_reopened_device_holds_some_legal_state_durably() {
    let mut kept = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let dev = FaultDevice::new(16 * BLOCK, seed);
        write(&dev, 0, 1).unwrap();
        flush(&dev).unwrap();
        write(&dev, 0, 2).unwrap();
        write(&dev, 1, 3).unwrap();
        dev.inject(Fault::Flush { skip: 0, fault: FlushFault::Error });
        assert!(flush(&dev).is_err());
        let again = dev.reopen();
        let now = (read(&again, 0).unwrap(), read(&again, 1).unwrap());
        let open = crash::cuts(&again.history()).last().unwrap().open_changes();
        assert_eq!(open, 0, "no change is open after the reset");
        kept.insert(now);
    }
    assert_eq!(kept.into_iter().collect::<Vec<_>>(), [(1, 0), (1, 3), (2, 0), (2, 3)]);
}

#[test]
fn a_killed_process_keeps_completed_writes_and_loses_its_handle() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let options = FaultOptions { order: CompletionOrder::Fifo, seed, ..FaultOptions::default() };
        let dev = FaultDevice::with_options(Image::zeroed(16 * BLOCK), options);
        write(&dev, 0, 1).unwrap();
        let in_flight = dev.submit(io(1, IoKind::Write { buf: block_of(2), fua: false }));
        let again = dev.reopen();
        assert!(matches!(in_flight.wait()[0].result, Err(DeviceError::Poisoned)));
        assert!(matches!(write(&dev, 5, 5), Err(DeviceError::Poisoned)));
        assert!(matches!(read(&dev, 0), Err(DeviceError::Poisoned)));
        assert_eq!(read(&again, 0).unwrap(), 1);
        outcomes.insert(read(&again, 1).unwrap());
        let last = crash::cuts(&again.history()).last().unwrap();
        let alive = 1 + usize::from(read(&again, 1).unwrap() == 2);
        assert_eq!(
            last.open_changes(),
            alive,
            "changes that happened are still not durable, the rest never happen"
        );
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [0, 2]);
}

/// The smallest durable protocol: write, flush, promise. Returns a state that breaks the promise.
fn broken_promise(fault: Option<FlushFault>) -> Option<String> {
    let dev = device(CompletionOrder::Fifo);
    if let Some(fault) = fault {
        dev.inject(Fault::Flush { skip: 0, fault });
    }
    write(&dev, 0, 7).unwrap();
    flush(&dev).unwrap();
    let promised = dev.step();
    write(&dev, 1, 8).unwrap();
    crash::cuts(&dev.history())
        .filter(|cut| cut.step() >= promised)
        .flat_map(|cut| cut.states(&crash::StateLimits::default()))
        .find(|state| {
            let mut byte = [0];
            state.image().read(0, &mut byte);
            byte != [7]
        })
        .map(|state| state.describe())
}

#[test]
fn a_lying_flush_is_reported_as_loss_and_an_honest_one_is_not() {
    assert_eq!(broken_promise(None), None);
    let loss = broken_promise(Some(FlushFault::Lie)).unwrap();
    assert!(loss.contains("[-]"), "{loss}");
}

#[test]
fn growth_stops_at_the_limit_or_by_a_fault_and_poisons_nothing() {
    let options = FaultOptions { max_size: 32 * BLOCK, ..FaultOptions::default() };
    let dev = FaultDevice::with_options(Image::zeroed(16 * BLOCK), options);
    dev.inject(Fault::Grow { skip: 1 });
    assert_eq!(dev.grow(20 * BLOCK - 1).unwrap(), 20 * BLOCK);
    assert!(dev.grow(24 * BLOCK).unwrap_err().is_no_space());
    assert_eq!(dev.grow(24 * BLOCK).unwrap(), 24 * BLOCK);
    assert!(dev.grow(33 * BLOCK).unwrap_err().is_no_space());
    assert_eq!(dev.grow(BLOCK).unwrap(), 24 * BLOCK, "it never shrinks");
    write(&dev, 23, 1).unwrap();
    assert!(matches!(write(&dev, 24, 1), Err(DeviceError::OutOfRange { .. })));
}

#[test]
fn a_budget_is_spent_and_never_exceeded() {
    let budget = FaultBudget {
        read_errors: 2,
        bit_flips: 3,
        stale_reads: 1,
        lost_writes: 2,
        misdirected_writes: 2,
        one_in: 4,
        ..FaultBudget::default()
    };
    let options =
        FaultOptions { budget, order: CompletionOrder::Immediate, seed: 9, ..FaultOptions::default() };
    let dev = FaultDevice::with_options(Image::zeroed(16 * BLOCK), options);
    let mut random = crate::random::DeviceRandom::new(1);
    let (mut read_errors, mut wrong) = (0, 0);
    for value in 0..600u64 {
        let at = random.below(16);
        if random.one_in(2) {
            write(&dev, at, value as u8).unwrap();
            continue;
        }
        match dev.read_now(at * BLOCK, AlignedBuf::zeroed(BLOCK as usize)) {
            Err(_) => read_errors += 1,
            Ok(buf) => {
                let mut should = vec![0; BLOCK as usize];
                dev.pristine().read(at * BLOCK, &mut should);
                wrong += u32::from(should != buf[..]);
            }
        }
    }
    assert!(read_errors >= 1 && wrong >= 1, "{read_errors} read errors, {wrong} wrong reads");
    dev.heal();
    let mut images = [vec![0; 16 * BLOCK as usize], vec![0; 16 * BLOCK as usize]];
    dev.image().read(0, &mut images[0]);
    dev.pristine().read(0, &mut images[1]);
    assert_eq!(images[0], images[1]);
    let quiet = (0..16).map(|at| read(&dev, at)).filter(Result::is_err).count();
    assert_eq!(quiet, 0, "healed, and nothing new strikes");
}

#[test]
fn without_recording_the_history_stays_empty() {
    let dev = FaultDevice::with_options(
        Image::zeroed(BLOCK),
        FaultOptions { record: false, ..FaultOptions::default() },
    );
    write(&dev, 0, 1).unwrap();
    assert!(dev.history().is_empty());
    assert_eq!(dev.counters().writes, 1);
}

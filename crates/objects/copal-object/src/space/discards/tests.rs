//! Choice of chunks, pace, and the end after a failure.

use super::{DeviceLoad, SpaceDiscards};
use crate::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, OpenOptions, Store, Txn,
    backend::cow::CowPlacement,
    flaw::{BrokenRule, StoreFlaw},
    format::run::PageRun,
    open::OpenOverrides,
    space::{allocator::PageAllocator, journal_place::JournalRing, placement::Placement},
};
use copal_device::{
    Device, Image,
    fault::{FaultDevice, FaultOptions},
};
use std::{sync::Arc, time::Duration};

fn pages(pages: u64) -> CowPlacement {
    CowPlacement::new(PageAllocator::new(pages), JournalRing::default())
}

fn idle(millis: u64) -> DeviceLoad {
    DeviceLoad { now: Duration::from_millis(millis), commands: 0 }
}

#[test]
fn only_chunks_that_are_free_are_discarded_and_neighbours_together() {
    let mut placement = pages(1000);
    let mut discards = SpaceDiscards { most_pages: 64, ..SpaceDiscards::unpaced(16) };
    assert!(placement.take(PageRun::new(40, 1)));
    // Chunks 0, 1 and 3 are free, 2 is not, and no page of 4 came free.
    for run in [PageRun::new(5, 3), PageRun::new(20, 1), PageRun::new(33, 20)] {
        discards.note_free(run);
    }
    let first = discards.begin(idle(0), 500, &mut placement);
    assert_eq!(first, Some(PageRun::new(0, 32)));
    assert_eq!(placement.free_pages(), 1000 - 1 - 32);
    assert_eq!(discards.begin(idle(0), 500, &mut placement), None, "one at a time");
    assert!(
        !discards.end(PageRun::new(0, 16), true, idle(0)) && discards.end(PageRun::new(0, 32), true, idle(0))
    );
    assert_eq!(discards.begin(idle(0), 500, &mut placement), Some(PageRun::new(48, 16)));
    assert!(discards.end(PageRun::new(48, 16), true, idle(0)) && !discards.is_due());
    // The last page of chunk 2.
    placement.release(PageRun::new(40, 1));
    discards.note_free(PageRun::new(40, 1));
    assert_eq!(discards.begin(idle(0), 15, &mut placement), None, "too little is free");
    assert_eq!(discards.begin(idle(0), 16, &mut placement), Some(PageRun::new(32, 16)));
}

/// Discards of a second, each of which takes a millisecond, beside other commands or none.
fn discards_of_a_second(is_busy: bool) -> u64 {
    let mut placement = pages(100_000);
    let mut discards = SpaceDiscards { paced: true, most_pages: 16, ..SpaceDiscards::unpaced(16) };
    discards.note_free(PageRun::new(0, 64_000));
    let (mut now, mut done) = (0, 0);
    while now < 1000 {
        let load =
            |now| DeviceLoad { now: Duration::from_millis(now), commands: if is_busy { now } else { 0 } };
        let run = discards.begin(load(now), 50_000, &mut placement);
        now += 1;
        if let Some(run) = run {
            discards.end(run, true, load(now));
            done += 1;
        }
    }
    done
}

#[test]
fn discards_take_a_twentieth_of_a_busy_device_and_all_of_an_idle_one() {
    assert_eq!((discards_of_a_second(true), discards_of_a_second(false)), (50, 1000));
}

#[test]
fn a_failed_discard_is_the_last() {
    let mut placement = pages(1000);
    let mut discards = SpaceDiscards::unpaced(16);
    discards.note_free(PageRun::new(0, 900));
    let run = discards.begin(idle(0), 500, &mut placement).unwrap();
    assert!(discards.end(run, false, idle(1)));
    discards.note_free(PageRun::new(0, 900));
    assert_eq!(discards.begin(idle(2), 500, &mut placement), None);
    assert_eq!((discards.is_on(), discards.failed(), discards.pending_pages()), (false, 1, 0));
}

/// Bytes in quarantine while the first discard of a store is on the device, and when it has ended.
fn bytes_under_a_discard(backend: BackendKind, flaw: Option<StoreFlaw>) -> (u64, u64) {
    let device = FaultDevice::with_options(Image::zeroed(64 << 20), FaultOptions::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let segment_bytes = (backend == BackendKind::Log).then_some(1 << 16);
    Store::mkfs(&dynamic, &MkfsOptions { backend, segment_bytes, ..MkfsOptions::default() }).unwrap();
    let tuning =
        OpenOverrides { broken: BrokenRule { flaw }, discard_pages: Some(16), ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(dynamic, &OpenOptions::default(), tuning).unwrap();
    let id = ObjectId(1);
    let create = Txn::new().create(id, CreateOptions::default()).append(id, 0, vec![7; 1 << 20]);
    store.commit(create, Ack::Durable).wait().unwrap();
    store.commit(Txn::new().delete(id), Ack::Durable).wait().unwrap();
    let mark = ObjectId(2);
    let mut during = None;
    for _ in 0..1000 {
        if device.counters().discards > 0 || store.inner.state.lock().space.discarding_pages() > 0 {
            during = Some(store.space().quarantine_bytes);
            break;
        }
        if !device.drive() {
            let begin = if store.stat(mark).is_some() {
                Txn::new().delete(mark)
            } else {
                Txn::new().create(mark, CreateOptions::default())
            };
            drop(store.commit(begin, Ack::Durable));
        }
    }
    while device.drive() {}
    (during.expect("free space is discarded"), store.space().quarantine_bytes)
}

/// Also with the rule broken: histories reuse a segment too late to catch that (OBJ-19).
#[test]
fn pages_under_a_discard_count_as_quarantine() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let (during, after) = bytes_under_a_discard(backend, None);
        assert!(during >= 1 << 16 && after == 0, "{}: {during}, then {after}", backend.name());
        let (during, _) = bytes_under_a_discard(backend, Some(StoreFlaw::DiscardReleasedFirst));
        assert_eq!(during, 0, "{}: free pages are being discarded", backend.name());
    }
}

//! Tests of the rules of a fleet, each with its negative control.

use super::{Flaw, with};
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{PackPlace, Record};
use crate::delete::prune::removal_lists::RemovalLists;
use crate::delete::summary::format::{BLOCK_MAC_BYTES, HEADER_BYTES};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::*;
use crate::world::*;
use crate::{CancelFlag, Error, Silent};
use copal_volume::MemoryStore;

/// Asserts that the rule holds, and that it does not hold with the flaw.
fn control(flaw: &'static [Flaw], holds: impl Fn() -> bool) {
    assert!(holds(), "{flaw:?}: the rule does not hold");
    assert!(!with(flaw, &holds), "{flaw:?}: the flaw is not noticed");
}

fn noise(seed: u64) -> Disk {
    let mut disk = Disk::new(3 << 20);
    Random::new(seed).fill(&mut disk.bytes);
    disk
}

#[test]
fn a_removal_for_one_vm_takes_no_chunk_of_another() {
    control(&[Flaw::OneIndex], || {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let disk = noise(1);
        let web = back_up(&repository, "web", &disk, false);
        let db = back_up(&repository, "db", &disk, false);
        repository.forget(&[web.snapshot]).unwrap();
        // With the rule broken, it may meet its own damage.
        let _ = repository.prune(&thorough(), &Silent, &CancelFlag::new());
        // The rule holds on the thread that restores.
        let restored = std::thread::scope(|scope| {
            scope.spawn(|| try_restore(&repository, db.snapshot)).join().expect("a restore does not panic")
        });
        restored.is_ok_and(|bytes| bytes == disk.bytes)
    });
}

#[test]
fn a_prune_gives_way_to_a_session_that_opened_meanwhile() {
    control(&[Flaw::RemovesBesideSessions], || {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let web = back_up(&repository, "web", &noise(1), false);
        let (parts, vm) = (repository.parts(), web.vm.uuid);
        let state = parts.vm_state(vm).unwrap();
        let mut announced = RemovalLists::in_log(parts, vm, state.next_number);
        let opened = Record::Open { session: [1; 16], base: Some(web.snapshot) };
        let appended = parts.catalog().append(LogName::Vm(vm), state.next_number, &opened);
        assert!(matches!(appended, Ok(AppendOutcome::Done)));
        let pack = PackPlace { home: PackHome::Private(vm), volume: 0, pack: PackNumber(1) };
        let outcome = announced.add(&[pack]);
        matches!(outcome, Err(Error::Busy { .. })) && parts.vm_state(vm).unwrap().removing.is_empty()
    });
}

/// The number is free again, since a checkpoint covers the record that had it. A record that is created there
/// has no effect.
#[test]
fn a_prune_whose_number_a_checkpoint_covers_removes_nothing() {
    let repository = init_as(&MemoryStore::new(), FLEET);
    let web = back_up(&repository, "web", &noise(1), false);
    let (parts, vm) = (repository.parts(), web.vm.uuid);
    let mut announced = RemovalLists::in_log(parts, vm, parts.vm_state(vm).unwrap().next_number);
    for _ in 0..80 {
        parts.append(vm, &Record::Deleted { snapshots: vec![] }).unwrap();
    }
    let pack = PackPlace { home: PackHome::Private(vm), volume: 0, pack: PackNumber(1) };
    assert!(matches!(announced.add(&[pack]), Err(Error::Busy { .. })));
    assert!(parts.vm_state(vm).unwrap().removing.is_empty());
}

#[test]
fn a_damaged_vector_frees_nothing() {
    control(&[Flaw::NoVectorSeal], || {
        let store = MemoryStore::new();
        let (first, second) = {
            let repository = init_as(&store, FLEET);
            let mut disk = noise(1);
            let first = back_up(&repository, "web", &disk, false);
            disk.write(0, &[7; 100_000]);
            (first, (back_up(&repository, "web", &disk, false), disk))
        };
        let (second, disk) = second;
        let name = format!("s.{}.", second.snapshot);
        let bad = MemoryStore::new();
        copy_into(&store, &bad, |_, file, body| {
            if file.starts_with(name.as_bytes()) {
                let bits = HEADER_BYTES..body.len() - BLOCK_MAC_BYTES;
                body[bits].fill(0);
            }
            true
        });
        let repository = open(&bad);
        repository.forget(&[first.snapshot]).unwrap();
        let options = PruneOptions { max_unused_percent: 0, ..PruneOptions::default() };
        repository.prune(&options, &Silent, &CancelFlag::new()).unwrap();
        try_restore(&open(&bad), second.snapshot).is_ok_and(|bytes| bytes == disk.bytes)
    });
}

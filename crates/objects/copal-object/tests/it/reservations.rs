//! Reservations that commits spend.

use crate::{
    basics::{bytes, open, plain},
    conformance,
};
use copal_device::{Device, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn put(id: u64, len: u64) -> Txn {
    let id = ObjectId(id);
    Txn::new().create(id, plain(ReadCheck::Caller)).append(id, 0, bytes(len as usize, 3))
}

fn is_full(store: &Store, txn: Txn) -> bool {
    match store.commit(txn, Ack::Durable).wait() {
        Ok(_) => false,
        Err(StoreError::NoSpace { needed_bytes, free_bytes }) => {
            assert!(needed_bytes > free_bytes, "{needed_bytes} needed, {free_bytes} free");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// A store that cannot grow, without a free page beside `kept` bytes that are reserved.
fn filled(kept: u64) -> (conformance::Backend, Store, SpaceReservation) {
    let (backend, store) = limited();
    let reservation = store.reserve(kept).unwrap();
    let mut id = 100;
    for len in [MIB, 64 << 10, 4096, 1] {
        while !is_full(&store, put(id, len)) {
            id += 1;
        }
    }
    (backend, store, reservation)
}

fn limited() -> (conformance::Backend, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let options = OpenOptions { max_size_bytes: Some(64 << 20), ..OpenOptions::default() };
    let (store, _) = Store::open(Arc::clone(&device), &options).unwrap();
    (conformance::Backend::Memory(device), store)
}

/// At 100 % a commit takes the pages that were kept for it, to the last one; others are refused all the time.
#[test]
fn a_commit_spends_its_reservation_in_a_full_store() {
    let (backend, store, reservation) = filled(2 * MIB);
    assert!(is_full(&store, put(1, 1)));
    assert!(is_full(&store, put(1, 2 * MIB + 1).spend(&reservation)), "more than is reserved");
    assert_eq!(reservation.bytes(), 2 * MIB, "a refused commit spends nothing");
    assert!(!is_full(&store, put(1, MIB).spend(&reservation)));
    assert_eq!(reservation.bytes(), MIB);
    assert!(is_full(&store, put(2, 1)), "the rest is kept");
    assert!(!is_full(&store, put(2, MIB - 1).spend(&reservation)));
    assert_eq!(reservation.bytes(), 0);
    assert!(is_full(&store, put(3, 1).spend(&reservation)) && is_full(&store, put(3, 1)));
    let space = store.space();
    let parts = space.live_bytes + space.staged_bytes + space.quarantine_bytes + space.reserved_bytes;
    assert_eq!(space.size_bytes, parts + space.free_bytes);
    drop((reservation, store));
    let store = backend.open();
    for (id, len) in [(1, MIB), (2, MIB - 1)] {
        assert_eq!(store.stat(ObjectId(id)).unwrap().len, len);
    }
}

#[test]
fn a_dropped_reservation_gives_its_bytes_back_and_a_crash_forgets_it() {
    let (_backend, store, reservation) = filled(2 * MIB);
    assert!(!is_full(&store, put(1, MIB).spend(&reservation)));
    let unsent = put(2, 4096).spend(&reservation);
    drop(reservation);
    assert!(!is_full(&store, put(3, MIB)), "the rest is available to all");
    assert!(is_full(&store, unsent), "a transaction keeps nothing reserved");

    let (backend, store, reservation) = filled(2 * MIB);
    std::mem::forget(reservation);
    assert!(is_full(&store, put(1, 1)));
    drop(store);
    let conformance::Backend::Memory(device) = backend else { unreachable!() };
    assert!(!is_full(&open(&device), put(1, 2 * MIB)), "a later session has the bytes");
}

/// A reservation of one store is nothing for another one.
#[test]
fn a_reservation_of_another_store_is_not_spent() {
    let (_one, _store, reservation) = filled(2 * MIB);
    let (_other, store, _kept) = filled(MIB);
    assert!(is_full(&store, put(1, 1).spend(&reservation)));
    assert_eq!(reservation.bytes(), 2 * MIB);
}

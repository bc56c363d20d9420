//! The kept place of an interrupted scrub: an object of the store.
//!
//! Its id is near the end of all ids, so callers that number their objects upwards leave it out. A caller that uses
//! the id itself keeps its object, and no place is kept.
//! Format: docs/formats/object-scrub-place.md

use crate::{
    Ack, CreateOptions, ObjectId, StoreError, Txn, commit::transaction, format::scrub_place::ScrubPlace,
    object::read, state::StoreCore,
};
use bytes::Bytes;
use copal_device::IoClass;
use std::sync::Arc;

/// The object in which the store keeps the place of an interrupted scrub. A caller that looks for its highest id
/// leaves this one out.
pub const SCRUB_PLACE_ID: ObjectId = ObjectId(u64::MAX - 3);
const LABEL: [u8; 16] = *b"scrub place\0\0\0\0\0";
/// Most bytes that are read of it.
const PLACE_BYTES_MAX: u64 = 4096;

/// Owner of that object.
#[derive(PartialEq, Eq)]
enum PlaceOwner {
    Nobody,
    Scrub,
    Caller,
}

fn owner(store: &StoreCore) -> PlaceOwner {
    match store.state.lock().tables.entries.get(SCRUB_PLACE_ID.0) {
        None => PlaceOwner::Nobody,
        Some(crate::tables::TableEntry::Object(object)) if object.what.label == LABEL => PlaceOwner::Scrub,
        Some(_) => PlaceOwner::Caller,
    }
}

/// The kept place. A store that is open read-only has none: it could not be moved on.
pub(super) fn kept(store: &Arc<StoreCore>) -> Option<ScrubPlace> {
    if store.shape.read_only || owner(store) != PlaceOwner::Scrub {
        return None;
    }
    let bytes = read::read(store, SCRUB_PLACE_ID, &(0..PLACE_BYTES_MAX), IoClass::Background).wait();
    let bytes = bytes
        .inspect_err(|error| tracing::warn!(%error, "the place of the last scrub cannot be read"))
        .ok()?;
    let place = ScrubPlace::decode(&bytes);
    place.inspect_err(|error| tracing::warn!(%error, "the place of the last scrub is not understood")).ok()
}

/// Keeps a place instead of an earlier one. A store that cannot keep it is read from its beginning next time.
pub(super) fn keep(store: &Arc<StoreCore>, page: u64, damages: u64) {
    let txn = match owner(store) {
        PlaceOwner::Caller => return,
        PlaceOwner::Scrub => Txn::new().delete(SCRUB_PLACE_ID),
        PlaceOwner::Nobody => Txn::new(),
    };
    let data = Bytes::from(ScrubPlace { page, damages }.encode());
    let opts = CreateOptions { label: LABEL, ..CreateOptions::default() };
    commit(store, txn.create(SCRUB_PLACE_ID, opts).append(SCRUB_PLACE_ID, 0, data));
}

/// Removes the kept place.
pub(super) fn forget(store: &Arc<StoreCore>) {
    if owner(store) == PlaceOwner::Scrub {
        commit(store, Txn::new().delete(SCRUB_PLACE_ID));
    }
}

fn commit(store: &Arc<StoreCore>, txn: Txn) {
    if store.shape.read_only {
        return;
    }
    match transaction::commit(store, txn, Ack::Ordered).wait() {
        Ok(_) => {}
        // The store is full, or is being closed.
        Err(error @ (StoreError::NoSpace { .. } | StoreError::Fenced)) => {
            tracing::debug!(%error, "the place of the scrub is not kept");
        }
        Err(error) => tracing::warn!(%error, "the place of the scrub is not kept"),
    }
}

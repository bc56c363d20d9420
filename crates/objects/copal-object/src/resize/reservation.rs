//! Reservations: pages that only their owner gets. A commit may spend them.
//!
//! Design: docs/design/object.md#space
//! Invariants
//! - Reserved pages are free pages that no other operation counts as available.
//! - A commit takes the pages that it allocates from its reservation first, then from available space. A refused
//!   commit takes none.
//! - They exist in memory only: a crash gives all of them back.

use crate::{
    StoreError,
    resize::grow::make_available,
    state::{StoreCore, StoreState},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Pages of one reservation, which its owner and transactions share.
pub(crate) struct ReservedPages {
    inner: Arc<StoreCore>,
    /// Changes under the mutex of the store only.
    pages: AtomicU64,
}

impl ReservedPages {
    /// Pages that a transaction of `store` can spend.
    pub(crate) fn pages_for(&self, store: &Arc<StoreCore>) -> u64 {
        if Arc::ptr_eq(&self.inner, store) { self.pages.load(Ordering::Relaxed) } else { 0 }
    }

    /// Takes up to `pages` pages, which the caller has allocated.
    pub(crate) fn spend(&self, state: &mut StoreState, pages: u64) {
        let left = self.pages.load(Ordering::Relaxed);
        let spent = pages.min(left);
        self.pages.store(left - spent, Ordering::Relaxed);
        state.space.end_reservation(spent);
    }
}

/// Space reserved for its owner until it is dropped, or until commits have spent it
/// ([`Txn::spend`](crate::Txn::spend)). A crash gives it back.
pub struct SpaceReservation {
    reserved: Arc<ReservedPages>,
}

impl SpaceReservation {
    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let page_bytes = self.reserved.inner.shape.page_bytes as u64;
        self.reserved.pages.load(Ordering::Relaxed) * page_bytes
    }

    pub(crate) fn reserved(&self) -> Arc<ReservedPages> {
        Arc::clone(&self.reserved)
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        let store = Arc::clone(&self.reserved.inner);
        self.reserved.spend(&mut store.state.lock(), u64::MAX);
    }
}

impl std::fmt::Debug for SpaceReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceReservation").field("bytes", &self.bytes()).finish()
    }
}

/// Reserves space for the caller.
pub(crate) fn reserve(store: &Arc<StoreCore>, bytes: u64) -> Result<SpaceReservation, StoreError> {
    let pages = bytes.div_ceil(store.shape.page_bytes as u64);
    let mut state = store.state.lock();
    while pages > state.space.available_pages() {
        state.writable()?;
        make_available(store, &mut state, pages, pages)?;
    }
    state.space.reserve(pages);
    let reserved = ReservedPages { inner: Arc::clone(store), pages: AtomicU64::new(pages) };
    Ok(SpaceReservation { reserved: Arc::new(reserved) })
}

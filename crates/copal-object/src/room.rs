//! Making room: draining the quarantine, growing the store, reservations.
//!
//! Design: object.md §12
//! Invariants
//! - `NoSpace` comes before anything is written and poisons nothing.
//! - The host's full disk is met while growing, never inside a commit.

use crate::{
    StoreError,
    format::{ops::RecordOp, superblock::STORE_BYTES_MAX},
    space::growth_step_bytes,
    state::{Inner, State},
};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Space kept for its owner until dropped.
pub struct Reservation {
    inner: Arc<Inner>,
    pages: u64,
}

impl Reservation {
    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages * self.inner.shape.page_bytes as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.inner.state.lock().space.reserved_pages -= self.pages;
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation")
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl Inner {
    /// Keeps space for the caller.
    pub(crate) fn reserve(self: &Arc<Inner>, bytes: u64) -> Result<Reservation, StoreError> {
        let pages = bytes.div_ceil(self.shape.page_bytes as u64);
        let mut state = self.state.lock();
        while pages > state.space.available_pages() {
            state.writable()?;
            self.make_room(&mut state, pages, pages)?;
        }
        state.space.reserved_pages += pages;
        Ok(Reservation {
            inner: Arc::clone(self),
            pages,
        })
    }

    /// Gets closer to `wanted` available pages, so that the caller looks again; with fewer than `needed` to be had it is
    /// `NoSpace`. Releases the mutex meanwhile.
    pub(crate) fn make_room(
        self: &Arc<Inner>,
        state: &mut MutexGuard<'_, State>,
        wanted: u64,
        needed: u64,
    ) -> Result<(), StoreError> {
        let waiting = state.space.quarantine_pages() + crate::run::pages_of(&state.groups.open.freed);
        if waiting > 0 && state.space.available_pages() + waiting >= needed {
            return self.drain(state);
        }
        if self.grow(state, wanted.max(needed))? {
            return Ok(());
        }
        if waiting > 0 {
            // Several transactions may have had their eye on the same pages.
            self.drain(state)?;
            if state.space.available_pages() >= needed {
                return Ok(());
            }
        }
        Err(self.no_space(state, needed))
    }

    /// The refusal of something that needs `pages` pages.
    pub(crate) fn no_space(&self, state: &State, pages: u64) -> StoreError {
        let page = self.shape.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: pages.saturating_mul(page),
            free_bytes: state.space.available_pages() * page,
        }
    }

    /// Waits until what is in quarantine now is reusable, or some of it: a flush, an empty record, a flush (R3).
    fn drain(self: &Arc<Inner>, state: &mut MutexGuard<'_, State>) -> Result<(), StoreError> {
        if !state.groups.is_open_empty() && !self.close_group(state) {
            return self.wait_journal(state);
        }
        let Some(epoch) = state.space.quarantine_epoch() else {
            return Ok(());
        };
        state.drain_epoch = state.drain_epoch.max(epoch);
        // A look at pages may keep some of it for long, and the rest may be enough.
        let before = state.space.available_pages();
        MutexGuard::unlocked(state, || self.pump());
        while state.space.is_quarantined(epoch) && state.space.available_pages() <= before {
            state.writable()?;
            self.wait_change(state);
        }
        Ok(())
    }

    /// Makes the store larger by a step that covers `pages` more available pages; `false` when it cannot.
    fn grow(self: &Arc<Inner>, state: &mut MutexGuard<'_, State>, pages: u64) -> Result<bool, StoreError> {
        if self.files.is_some() {
            return Ok(self.ask_host(state, pages));
        }
        let page = self.shape.page_bytes as u64;
        let before = state.tables.pages;
        let size = before * page;
        let missing = pages.saturating_sub(state.space.available_pages()) * page;
        // Two hundredths of what is added are kept by the store.
        let step = growth_step_bytes(size).max((missing + missing / 32 + page).next_multiple_of(1 << 20));
        let most = self.shape.max_size_bytes.min(STORE_BYTES_MAX);
        let target = size.saturating_add(step).min(most);
        if target <= size {
            return Ok(false);
        }
        let grown = MutexGuard::unlocked(state, || {
            let _one_at_a_time = self.growing.lock();
            self.device.grow(target)
        });
        let new_size = match grown {
            Ok(new_size) => new_size.min(most),
            Err(error) => {
                tracing::warn!(%error, "the store cannot grow");
                return Ok(false);
            }
        };
        state.writable()?;
        let pages = new_size / page;
        if pages > state.tables.pages {
            self.enter_internal(state, &RecordOp::Grow { pages });
            state.space.allocator.grow(pages);
        }
        Ok(pages > before)
    }
}

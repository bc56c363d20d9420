//! Pins of exports in the catalog: for repositories in a cluster, where no lock shows readers.
//!
//! A pin is renewed every minute; one that is ten minutes old has no effect, so a dead export protects
//! nothing. Its age is the smaller one of the ages by the store's stamps and by this machine's clock: a
//! single clock that runs ahead ends no pin.

use crate::api::repository::Repository;
use crate::catalog::pins::{Shown, StoredPin, draw_stamp, drop_pins, list_pins, set_pin};
use crate::keys::random;
use crate::request::Snapshot;
use crate::request::error::Result;
use crate::request::open_session::HolderId;
use crate::sessions::parts::RepositoryParts;
use bytes::Bytes;
use copal_volume::FileId;
use std::time::{Duration, Instant};

/// Interval at which a pin is renewed.
const EVERY: Duration = Duration::from_secs(60);
/// Age from which a pin has no effect.
const HOLDS_MS: u64 = 10 * 60 * 1000;

/// A pin of an export of this process. If it is dropped without [`CatalogPin::end`], it has effect for ten
/// more minutes.
pub struct CatalogPin {
    shown: Shown,
    holder: HolderId,
    number: u64,
    file: (Bytes, FileId),
    set: Instant,
}

/// Carries out `Repository::pin`.
pub(crate) fn pin(parts: &RepositoryParts, shown: Shown) -> Result<CatalogPin> {
    let holder = HolderId(random()?);
    Ok(CatalogPin {
        shown,
        holder,
        number: 0,
        file: set_pin(parts.catalog().files(), shown, holder, 0)?,
        set: Instant::now(),
    })
}

/// Carries out `Repository::pinned`.
pub(crate) fn pinned(parts: &RepositoryParts) -> Result<Vec<Shown>> {
    let catalog = parts.catalog();
    let now_ms = parts.pack_store().volumes.store.now_ms();
    let pins = list_pins(catalog.files())?;
    let is_old = |now_ms: u64, pin: &StoredPin| now_ms.saturating_sub(pin.created_ms) > HOLDS_MS;
    let stamp_ms = match pins.iter().any(|pin| is_old(now_ms, pin)) {
        true => draw_stamp(catalog.files())?.unwrap_or(now_ms),
        false => now_ms,
    };
    let (old, live): (Vec<_>, Vec<_>) =
        pins.into_iter().partition(|pin| is_old(now_ms, pin) && is_old(stamp_ms, pin));
    let old: Vec<_> = old.into_iter().map(|pin| pin.file).collect();
    if !old.is_empty()
        && let Err(error) = drop_pins(catalog.files(), &old)
    {
        tracing::debug!(%error, "old pins could not be removed");
    }
    let mut shown: Vec<Shown> = Vec::new();
    for pin in live {
        if !shown.contains(&pin.shown) {
            shown.push(pin.shown);
        }
    }
    Ok(shown)
}

impl Shown {
    /// Whether the exported snapshot is still published. An export of several snapshots counts as published.
    /// So does one whose store does not answer.
    pub fn is_there(&self, repository: &Repository) -> bool {
        match self {
            Shown::Snapshot(id) => repository.is_published(*id).unwrap_or(true),
            Shown::Vm(_) | Shown::All => true,
        }
    }

    /// Whether a snapshot is in this scope.
    pub fn has(&self, snapshot: &Snapshot) -> bool {
        match self {
            Shown::Snapshot(id) => *id == snapshot.id,
            Shown::Vm(vm) => *vm == snapshot.vm.uuid,
            Shown::All => true,
        }
    }
}

impl CatalogPin {
    /// Renews the pin if a minute has passed; call it more often than that.
    /// # Errors
    /// Errors of the store; try again.
    pub fn keep(&mut self, repository: &Repository) -> Result<()> {
        if self.set.elapsed() < EVERY {
            return Ok(());
        }
        self.number += 1;
        let catalog = repository.parts().catalog();
        let file = set_pin(catalog.files(), self.shown, self.holder, self.number)?;
        let older = std::mem::replace(&mut self.file, file);
        self.set = Instant::now();
        drop_pins(catalog.files(), &[older])
    }

    /// Deletes the pin.
    /// # Errors
    /// Errors of the store: the pin has effect for ten more minutes.
    pub fn end(self, repository: &Repository) -> Result<()> {
        drop_pins(repository.parts().catalog().files(), &[self.file])
    }
}

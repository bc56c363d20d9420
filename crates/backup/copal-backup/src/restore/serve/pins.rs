//! Pins of doors on any host, in the catalog: for repositories in a cluster, where no lock tells of readers.
//!
//! A pin is set anew every minute; one that is ten minutes old holds nothing, so a dead door does not either.
//! The age of a pin is told by the store's stamps as well as by this machine's clock: a clock that is ahead
//! ends no pin.

use crate::api::repository::Repository;
use crate::catalog::pins::{Shown, StoredPin};
use crate::keys::random;
use crate::request::Snapshot;
use crate::request::error::Result;
use crate::request::open_session::HolderId;
use bytes::Bytes;
use copal_volume::FileId;
use std::time::{Duration, Instant};

/// How often a pin is set anew.
const EVERY: Duration = Duration::from_secs(60);
/// What is older holds nothing.
const HOLDS_MS: u64 = 10 * 60 * 1000;

/// A pin of this process's door. Dropped without [`CatalogPin::end`] it holds for ten minutes more.
pub struct CatalogPin {
    shown: Shown,
    holder: HolderId,
    number: u64,
    file: (Bytes, FileId),
    set: Instant,
}

impl Repository {
    /// Pins what a door shows, until [`CatalogPin::end`].
    /// # Errors
    /// `Denied`: this client may only read. Those of the store.
    pub fn pin(&self, shown: Shown) -> Result<CatalogPin> {
        let holder = HolderId(random()?);
        Ok(CatalogPin {
            shown,
            holder,
            number: 0,
            file: self.parts.catalog().set_pin(shown, holder, 0)?,
            set: Instant::now(),
        })
    }

    /// What doors show, each once; pins that hold nothing any more are taken away.
    /// # Errors
    /// Those of the store.
    pub fn pinned(&self) -> Result<Vec<Shown>> {
        let catalog = self.parts.catalog();
        let now_ms = self.parts.pack_store().volumes.store.now_ms();
        let pins = catalog.pins()?;
        let is_old = |now_ms: u64, pin: &StoredPin| now_ms.saturating_sub(pin.created_ms) > HOLDS_MS;
        let stamp_ms = match pins.iter().any(|pin| is_old(now_ms, pin)) {
            true => catalog.draw_stamp()?.unwrap_or(now_ms),
            false => now_ms,
        };
        let (old, live): (Vec<_>, Vec<_>) =
            pins.into_iter().partition(|pin| is_old(now_ms, pin) && is_old(stamp_ms, pin));
        let old: Vec<_> = old.into_iter().map(|pin| pin.file).collect();
        if !old.is_empty()
            && let Err(error) = catalog.drop_pins(&old)
        {
            tracing::debug!(%error, "old pins stay");
        }
        let mut shown: Vec<Shown> = Vec::new();
        for pin in live {
            if !shown.contains(&pin.shown) {
                shown.push(pin.shown);
            }
        }
        Ok(shown)
    }
}

impl Shown {
    /// Whether the snapshot that is shown is published. Several are shown as they come and go. When the store
    /// does not answer, it counts as published.
    pub fn is_there(&self, repository: &Repository) -> bool {
        match self {
            Shown::Snapshot(id) => repository.is_published(*id).unwrap_or(true),
            Shown::Vm(_) | Shown::All => true,
        }
    }

    /// Whether a snapshot is among it.
    pub fn has(&self, snapshot: &Snapshot) -> bool {
        match self {
            Shown::Snapshot(id) => *id == snapshot.id,
            Shown::Vm(vm) => *vm == snapshot.vm.uuid,
            Shown::All => true,
        }
    }
}

impl CatalogPin {
    /// Sets it anew if a minute has passed; to be called more often than that.
    /// # Errors
    /// Those of the store; to be tried again.
    pub fn keep(&mut self, repository: &Repository) -> Result<()> {
        if self.set.elapsed() < EVERY {
            return Ok(());
        }
        self.number += 1;
        let catalog = repository.parts.catalog();
        let file = catalog.set_pin(self.shown, self.holder, self.number)?;
        let older = std::mem::replace(&mut self.file, file);
        self.set = Instant::now();
        catalog.drop_pins(&[older])
    }

    /// Takes it away.
    /// # Errors
    /// Those of the store: it holds for ten minutes more.
    pub fn end(self, repository: &Repository) -> Result<()> {
        repository.parts.catalog().drop_pins(&[self.file])
    }
}

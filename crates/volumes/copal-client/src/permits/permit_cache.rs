//! Cache of the permits that a client shows to data servers. A master has signed each of them.
//!
//! - A client with all rights shows a permit only while it holds the writer lease, so that data servers notice
//!   the end of the lease.
//! - A named client shows a permit of the volume with every call.
//!
//! Not here: requests to the master (`permit_source`).
//!
//! Invariant: a permit that depends on a writer lease is never shown after that lease was released or taken
//! anew.

use crate::net::machine;
use bytes::Bytes;
use copal_proto::{incarnation_prefix, messages};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Permits of volumes in the cache. Beyond that number all are dropped and requested again.
const MAX_PERMITS: usize = 10_000;

/// The permits of one client.
pub(crate) struct PermitCache {
    client: Option<String>,
    /// Incarnation of new file ids.
    incarnation: AtomicU64,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    /// The writer lease that requests for permits name.
    lease: Option<HeldLease>,
    volumes: HashMap<u64, CachedPermit>,
}

struct HeldLease {
    number: u64,
    path: String,
    /// Shown by a client with all rights.
    permit: Bytes,
}

/// A permit, and until when it is shown without a request for another one.
struct CachedPermit {
    permit: Bytes,
    until: Instant,
}

impl PermitCache {
    pub(crate) fn new(client: Option<String>) -> PermitCache {
        PermitCache { client, incarnation: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Makes the incarnation of new file ids from a random number, and drops permits of the previous one.
    /// A named client's incarnation begins with a prefix of its name: it may delete, without the right to, only
    /// files whose ids have that prefix.
    pub(crate) fn set_incarnation(&self, random: u64) -> u64 {
        let incarnation = match &self.client {
            None => random,
            Some(client) => u64::from(incarnation_prefix(client)) << 32 | random >> 32,
        };
        self.incarnation.store(incarnation, Ordering::Relaxed);
        self.state.lock().volumes.clear();
        incarnation
    }

    /// Drops the writer lease with all permits that depend on it.
    pub(crate) fn end_lease(&self) {
        *self.state.lock() = PermitState::default();
    }

    /// Whether every call needs a permit.
    pub(crate) fn is_named_client(&self) -> bool {
        self.client.is_some()
    }

    /// Number and path of the writer lease.
    pub(crate) fn lease(&self) -> Option<(u64, String)> {
        let state = self.state.lock();
        state.lease.as_ref().map(|lease| (lease.number, lease.path.clone()))
    }

    /// The permit that proves the writer lease; empty: no lease is held.
    pub(crate) fn lease_permit(&self) -> Bytes {
        let state = self.state.lock();
        state.lease.as_ref().map_or_else(Bytes::new, |lease| lease.permit.clone())
    }

    /// The permit of a volume, if at least half of its life is left.
    pub(crate) fn volume_permit(&self, volume: u64) -> Option<Bytes> {
        let state = self.state.lock();
        let cached = state.volumes.get(&volume).filter(|cached| machine::now() < cached.until);
        cached.map(|cached| cached.permit.clone())
    }

    /// Inserts the permit of a volume, unless the writer lease is no longer the one that the request named.
    pub(crate) fn insert(&self, volume: u64, lease: Option<u64>, permit: &Bytes, lifetime: Duration) {
        let mut state = self.state.lock();
        if state.lease.as_ref().map(|lease| lease.number) != lease {
            return;
        }
        if state.volumes.len() >= MAX_PERMITS {
            state.volumes.clear();
        }
        let cached = CachedPermit { permit: permit.clone(), until: machine::now() + lifetime / 2 };
        state.volumes.insert(volume, cached);
    }

    /// Shows the permit of this writer lease from now on.
    pub(crate) fn set_lease(&self, number: u64, path: &str, permit: &Bytes) {
        let mut state = self.state.lock();
        if state.lease.as_ref().is_none_or(|lease| lease.number != number) {
            state.volumes.clear();
        }
        state.lease = Some(HeldLease { number, path: path.to_owned(), permit: permit.clone() });
    }

    /// The request for a permit.
    pub(crate) fn request(
        &self,
        path: &str,
        volume: u64,
        lease: Option<(u64, String)>,
    ) -> messages::PermitRequest {
        let (lease, lease_path) = lease.unwrap_or_default();
        messages::PermitRequest {
            client: self.client.clone().unwrap_or_default(),
            path: path.to_owned(),
            volume,
            lease,
            lease_path,
            incarnation: self.incarnation.load(Ordering::Relaxed),
        }
    }
}

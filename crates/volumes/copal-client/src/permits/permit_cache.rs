//! What a client shows data servers so that they let it do what it does: a permit that a master has signed.
//!
//! A client that may do everything shows one only while it holds the right to write, so that data servers
//! notice when the right has ended. A named client shows one of the volume with every call.
//!
//! Not here: asking for one (`permitted`).
//!
//! Invariant: a permit that stands on a right to write is never shown after that right was given back or
//! taken anew.

use crate::net::machine;
use bytes::Bytes;
use copal_proto::{incarnation_prefix, messages};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Permits that are kept.
const MOST: usize = 10_000;

/// The permits of one client.
pub(crate) struct Permits {
    client: Option<String>,
    /// With which the client draws ids of files.
    incarnation: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The right to write that permits are asked for with.
    lease: Option<Lease>,
    of_volumes: HashMap<u64, Kept>,
}

struct Lease {
    number: u64,
    path: String,
    /// Shown by a client that may do everything.
    permit: Bytes,
}

/// A permit, and until when it is shown without asking for another.
struct Kept {
    permit: Bytes,
    until: Instant,
}

impl Permits {
    pub(crate) fn new(client: Option<String>) -> Permits {
        Permits { client, incarnation: AtomicU64::new(0), held: Mutex::default() }
    }

    /// The incarnation with which ids are drawn from here on, made of a random number. What a named client
    /// buries is what clients of its name have made: their ids tell. Permits that name another incarnation
    /// are not shown any more.
    pub(crate) fn draw_from(&self, drawn: u64) -> u64 {
        let incarnation = match &self.client {
            None => drawn,
            Some(client) => u64::from(incarnation_prefix(client)) << 32 | drawn >> 32,
        };
        self.incarnation.store(incarnation, Ordering::Relaxed);
        self.held.lock().of_volumes.clear();
        incarnation
    }

    /// The right to write is over: nothing that stands on it is shown any more.
    pub(crate) fn end_lease(&self) {
        *self.held.lock() = Held::default();
    }

    /// Whether every call needs a permit.
    pub(crate) fn are_needed(&self) -> bool {
        self.client.is_some()
    }

    /// The right to write that is held: number and path.
    pub(crate) fn lease(&self) -> Option<(u64, String)> {
        let held = self.held.lock();
        held.lease.as_ref().map(|lease| (lease.number, lease.path.clone()))
    }

    /// What tells the right to write that is held; empty: none is.
    pub(crate) fn of_lease(&self) -> Bytes {
        let held = self.held.lock();
        held.lease.as_ref().map_or_else(Bytes::new, |lease| lease.permit.clone())
    }

    /// The permit for a volume, if there is one that is good for a while.
    pub(crate) fn of_volume(&self, volume: u64) -> Option<Bytes> {
        let held = self.held.lock();
        let kept = held.of_volumes.get(&volume).filter(|kept| machine::now() < kept.until);
        kept.map(|kept| kept.permit.clone())
    }

    /// Keeps the permit for a volume that was asked for under a right to write, if that is still the one.
    pub(crate) fn keep(&self, volume: u64, under: Option<u64>, permit: &Bytes, life: Duration) {
        let mut held = self.held.lock();
        if held.lease.as_ref().map(|lease| lease.number) != under {
            return;
        }
        if held.of_volumes.len() >= MOST {
            held.of_volumes.clear();
        }
        let kept = Kept { permit: permit.clone(), until: machine::now() + life / 2 };
        held.of_volumes.insert(volume, kept);
    }

    /// Shows a right to write from here on.
    pub(crate) fn hold_lease(&self, number: u64, path: &str, permit: &Bytes) {
        let mut held = self.held.lock();
        if held.lease.as_ref().is_none_or(|lease| lease.number != number) {
            held.of_volumes.clear();
        }
        held.lease = Some(Lease { number, path: path.to_owned(), permit: permit.clone() });
    }

    /// How a permit is asked for.
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

//! Open snapshots of a donor, by number. Each one expires when its reader is idle.

use crate::net::status::Status;
use copal_client::machine;
use copal_data::GroupSnapshot;
use copal_proto::messages::failure::Code;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Open snapshots at a time: each one retains rows deleted since.
const MAX_OPEN: usize = 64;
/// Idle time after which a snapshot expires.
const IDLE: Duration = Duration::from_secs(60);

/// Open snapshots by number.
#[derive(Default)]
pub(crate) struct DonorSnapshots {
    open: Mutex<(u64, BTreeMap<u64, OpenSnapshot>)>,
}

struct OpenSnapshot {
    snapshot: Arc<GroupSnapshot>,
    used: Instant,
}

impl DonorSnapshots {
    pub(crate) fn add(&self, snapshot: GroupSnapshot) -> Result<u64, Status> {
        let mut open = self.open.lock();
        open.1.retain(|_, shown| machine::since(shown.used) < IDLE);
        if open.1.len() >= MAX_OPEN {
            return Err(Status::new(
                Code::Busy,
                "this donor has as many open snapshots as it allows; try again later",
            ));
        }
        open.0 += 1;
        let number = open.0;
        let shown = OpenSnapshot { snapshot: Arc::new(snapshot), used: machine::now() };
        open.1.insert(number, shown);
        Ok(number)
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<GroupSnapshot>, Status> {
        let mut open = self.open.lock();
        let expired = || Status::new(Code::NotFound, "the snapshot has expired; open another");
        let shown = open.1.get_mut(&number).ok_or_else(expired)?;
        shown.used = machine::now();
        Ok(Arc::clone(&shown.snapshot))
    }

    pub(crate) fn remove(&self, number: u64) {
        self.open.lock().1.remove(&number);
    }
}

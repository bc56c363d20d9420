//! Snapshots of groups that this server shows to others, by number, each until its member has what it lacked.

use crate::status::Status;
use copal_client::machine;
use copal_data::GroupSnapshot;
use copal_proto::messages::failure::Code;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Snapshots at a time: each keeps what was deleted since.
const MOST: usize = 64;
/// A snapshot that nobody asked about for so long goes.
const IDLE: Duration = Duration::from_secs(60);

/// Snapshots by their number.
#[derive(Default)]
pub(crate) struct Snapshots {
    open: Mutex<(u64, BTreeMap<u64, Shown>)>,
}

struct Shown {
    snapshot: Arc<GroupSnapshot>,
    used: Instant,
}

impl Snapshots {
    pub(crate) fn add(&self, snapshot: GroupSnapshot) -> Result<u64, Status> {
        let mut open = self.open.lock();
        open.1.retain(|_, shown| machine::since(shown.used) < IDLE);
        if open.1.len() >= MOST {
            return Err(Status::new(Code::Busy, "this donor serves as many as it can"));
        }
        open.0 += 1;
        let number = open.0;
        let shown = Shown { snapshot: Arc::new(snapshot), used: machine::now() };
        open.1.insert(number, shown);
        Ok(number)
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<GroupSnapshot>, Status> {
        let mut open = self.open.lock();
        let gone = || Status::new(Code::NotFound, "the snapshot is gone; open another");
        let shown = open.1.get_mut(&number).ok_or_else(gone)?;
        shown.used = machine::now();
        Ok(Arc::clone(&shown.snapshot))
    }

    pub(crate) fn remove(&self, number: u64) {
        self.open.lock().1.remove(&number);
    }
}

//! The compare thread: compares one partition at a time, as they become due.

use super::Shared;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tracing::warn;

/// Longest delay before a partition that becomes due by time alone is noticed.
const TICK: Duration = Duration::from_millis(100);

/// Signals the compare thread that a partition may be due.
#[derive(Default)]
pub(super) struct CompareSignal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl CompareSignal {
    pub(super) fn wake(&self) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut woken = self.woken.lock();
        if !*woken {
            self.changed.wait_for(&mut woken, TICK);
        }
        *woken = false;
    }
}

pub(super) fn run(shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Acquire) {
        let Some(partition) = shared.detect.due(Instant::now()) else {
            shared.due.wait();
            continue;
        };
        let compared = shared.detect.compare(partition, &mut |host, answers| {
            shared.outbox.put(host, answers);
        });
        if let Err(error) = compared {
            warn!(partition, %error, "partition not compared, its questions stay unanswered");
        }
    }
}

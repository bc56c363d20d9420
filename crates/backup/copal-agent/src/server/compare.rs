//! The compare thread: one partition at a time, as they fall due.

use super::Shared;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tracing::warn;

/// How long nothing falls due unseen, if it is time alone that makes it due.
const TICK: Duration = Duration::from_millis(100);

/// Tells the compare thread that something may be due.
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
            warn!(partition, %error, "a partition could not be compared; its questions are not answered");
        }
    }
}

//! The background thread that adjusts filters while Gets run.
//!
//! Invariants
//! - It sleeps until enough probes were sampled or a table came or went; it never polls.
//! - It ends, and is joined, with the memory it serves.

use super::adjust::ElasticFilters;
use std::sync::Arc;

impl ElasticFilters {
    /// Starts the thread once, if the options ask for one.
    pub(super) fn start(self: &Arc<Self>) {
        if !self.options.background {
            return;
        }
        let mut thread = self.wake.thread.lock();
        if thread.is_some() || self.wake.stopping() {
            return;
        }
        let elastic = self.clone();
        let spawned = std::thread::Builder::new().name("copal-kv-filters".to_owned()).spawn(move || {
            while elastic.wake.wait() {
                elastic.adjust();
            }
        });
        match spawned {
            Ok(handle) => *thread = Some(handle),
            Err(error) => tracing::warn!(%error, "no filter thread started; filters are not adjusted"),
        }
    }

    /// Ends the thread. Waits for its current read.
    pub(crate) fn stop(&self) {
        let thread = self.wake.stop();
        // The thread itself may drop the last table, and with it the memory: then it is already about to end.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the thread that adjusts filters panicked");
        }
    }
}

//! Marks an idle store as cleanly ended, by a thread.
//!
//! Damage to its last writes between a kill and the next opening is then reported as damage, and not taken
//! for an effect of the kill.
//!
//! The object store itself has neither thread nor clock. The thread ends with its owner.
//!
//! Invariants
//! - A store with continuous writes is never marked: a mark costs a flush.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};

/// Time without a write before the store is marked; later writes have no mark yet.
const IDLE: Duration = Duration::from_millis(100);

/// The thread; the drop ends and joins it.
pub struct IdleMarker {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleMarker {
    /// Starts to watch `store`. If no thread can be started there are no marks, and later damage of the last
    /// writes goes unreported.
    pub fn start(store: copal_object::Store) -> IdleMarker {
        let (alive, ended) = mpsc::channel::<()>();
        let watch = move || {
            let mut before = store.activity();
            while matches!(ended.recv_timeout(IDLE), Err(RecvTimeoutError::Timeout)) {
                let now = store.activity();
                if now == before
                    && let Err(error) = store.write_clean_mark()
                {
                    // The store has failed: the next write gets the error, and marks are over.
                    tracing::debug!(%error, "the idle store is not marked");
                    return;
                }
                before = store.activity();
            }
        };
        let thread = std::thread::Builder::new().name("idle-marker".into()).spawn(watch);
        IdleMarker { alive: Some(alive), thread: thread.ok() }
    }
}

impl Drop for IdleMarker {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that marks the idle store ended by a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::MemoryDevice;
    use copal_object::{Ack, CreateOptions, MkfsOptions, ObjectId, OpenOptions, Store, Txn};

    #[test]
    fn a_store_that_stands_still_is_marked_once() {
        let device = MemoryDevice::new(64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let marker = IdleMarker::start(store.clone());
        let txn = Txn::new().create(ObjectId(1), CreateOptions::default());
        store.commit(txn, Ack::Durable).wait().unwrap();
        let before = store.activity();
        // The mark is a separate commit.
        while store.activity() == before {
            std::thread::yield_now();
        }
        drop(marker);
        assert!(!store.write_clean_mark().unwrap(), "it is marked already");
    }
}

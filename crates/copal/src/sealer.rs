//! Seals the store when it has been idle for a moment, so that damage which comes to its last writes between a kill and
//! the next command is reported, not taken for the kill.
//!
//! A thread of its own: the object store has neither thread nor clock. It ends with its owner.
//! Invariants
//! - A store that is written to without a pause is never sealed: a seal costs a flush.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};

/// How long a store stands still before it is sealed; what is acknowledged within it before a kill has no seal.
const IDLE: Duration = Duration::from_millis(100);

/// The thread; dropping it ends and joins it.
pub(crate) struct Sealer {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sealer {
    /// Watches `store`. Without a thread to be had there are no seals, which only costs the report of later damage.
    pub(crate) fn start(store: copal_object::Store) -> Sealer {
        let (alive, ended) = mpsc::channel::<()>();
        let watch = move || {
            let mut before = store.activity();
            while matches!(ended.recv_timeout(IDLE), Err(RecvTimeoutError::Timeout)) {
                let now = store.activity();
                if now == before
                    && let Err(error) = store.seal()
                {
                    // Whoever writes next is told; there is nothing to seal any more.
                    tracing::debug!(%error, "the idle store is not sealed");
                    return;
                }
                before = store.activity();
            }
        };
        let thread = std::thread::Builder::new().name("sealer".into()).spawn(watch);
        Sealer {
            alive: Some(alive),
            thread: thread.ok(),
        }
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that seals the idle store ended by a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::MemoryDevice;
    use copal_object::{Ack, CreateOptions, MkfsOptions, ObjectId, Op, OpenOptions, Store, Txn};

    #[test]
    fn a_store_that_stands_still_is_sealed_once() {
        let device = MemoryDevice::new(64 << 20);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let sealer = Sealer::start(store.clone());
        let ops = vec![Op::Create {
            id: ObjectId(1),
            opts: CreateOptions::default(),
        }];
        let txn = Txn {
            ops,
            after: Vec::new(),
        };
        store.commit(txn, Ack::Durable).wait().unwrap();
        let before = store.activity();
        // The seal is a commit of its own.
        while store.activity() == before {
            std::thread::yield_now();
        }
        drop(sealer);
        assert!(!store.seal().unwrap(), "it is sealed already");
    }
}

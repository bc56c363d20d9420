//! Commands that show snapshots to other programs until they are told to end: `copal nbd`, `copal mount`.

mod lending;
mod mount;
mod nbd;

pub(super) use mount::run as mount;
pub(super) use nbd::run as nbd;

use super::{Context, close};
use crate::{
    failure::{Failure, Outcome, exit},
    pins::Pin,
    place::Place,
    repository::Opened,
};
use copal_backup::{
    Repository,
    serve::{CACHE_BYTES, CatalogPin, Lender, ServeCache, Shown},
};
use copal_export::Closing;
use lending::Lending;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How often the logs are asked whether what is shown is still there, where others may delete it.
const STILL_THERE: Duration = Duration::from_secs(60);

/// How often the keeper looks after a door.
const LOOK: Duration = Duration::from_millis(100);

/// What every door has.
struct Door {
    shared: Arc<Shared>,
    cache: Arc<ServeCache>,
    keeper: Keeper,
}

/// What a door and its keeper have.
struct Shared {
    lending: Arc<Lending>,
    closing: Closing,
    pin: Option<Pin>,
    /// Of a repository in a cluster; none where this client may only read.
    catalog_pin: Mutex<Option<CatalogPin>>,
    shown: Shown,
    /// The door is asked to close, or what it shows is deleted.
    is_deleted: AtomicBool,
}

/// Why a door ends.
enum End {
    /// The user said so.
    Asked,
    /// What it shows is deleted.
    Deleted,
}

impl Door {
    /// Pins what is shown, while the repository is open: on one machine nothing is forgotten meanwhile. In a
    /// cluster nothing is locked, so the pin is set first, and then what is shown has to be there.
    fn open(context: &Context<'_>, opened: Opened, name: &str, shown: Shown) -> Outcome<Door> {
        let common = &context.arguments.common;
        let pin = Pin::set(&Place::find(common)?, name, &shown);
        let mut catalog_pin = None;
        if opened.store().is_none() {
            catalog_pin = pin_in_catalog(context, opened.repository(), shown);
            if !shown.is_there(opened.repository()) {
                if let Some(pin) = catalog_pin
                    && let Err(error) = pin.end(opened.repository())
                {
                    tracing::debug!(%error, "a pin stays for ten minutes");
                }
                return close(opened, Err(deleted("the snapshot")));
            }
        }
        let closing = Closing::default();
        let lending = Lending::new(opened, common, &context.cancel, &closing, pin.is_some());
        let shared = Arc::new(Shared {
            lending: Arc::new(lending),
            closing,
            pin,
            catalog_pin: Mutex::new(catalog_pin),
            shown,
            is_deleted: AtomicBool::new(false),
        });
        Ok(Door { keeper: Keeper::start(&shared)?, shared, cache: Arc::new(ServeCache::new(CACHE_BYTES)) })
    }

    fn lender(&self) -> Arc<dyn Lender> {
        Arc::clone(&self.shared.lending) as Arc<dyn Lender>
    }

    fn closing(&self) -> &Closing {
        &self.shared.closing
    }

    /// Looked at a few times a second: whether it is over. If so, all clients of the door get I/O errors from
    /// now on. Does not block: the keeper asks the store.
    fn end(&self, context: &Context<'_>) -> Option<End> {
        let end = if context.is_ended() {
            End::Asked
        } else if self.shared.is_deleted.load(Ordering::Acquire) {
            End::Deleted
        } else {
            return None;
        };
        self.shared.closing.close();
        Some(end)
    }

    /// Closes the store, then removes the pins.
    fn close(self, context: &Context<'_>) -> Outcome<()> {
        let Door { shared, cache: _, keeper } = self;
        shared.closing.close();
        keeper.end();
        let Some(shared) = Arc::into_inner(shared) else {
            return Ok(());
        };
        let Shared { lending, pin, catalog_pin, .. } = shared;
        if let Some(pin) = catalog_pin.into_inner()
            && let Ok(repository) = lending.lend()
            && let Err(error) = pin.end(&repository)
        {
            tracing::debug!(%error, "a pin stays for ten minutes");
        }
        let ended = match Arc::into_inner(lending) {
            Some(lending) => lending.end(),
            None => Ok(Vec::new()),
        };
        let lost = ended?;
        drop(pin);
        context.note_lost(&lost);
        Ok(())
    }
}

/// A thread that closes the store of a door that rests, keeps its pin in a cluster, and looks whether the
/// door is to end. These may wait for the store, and neither new clients nor signals wait for them.
struct Keeper {
    alive: Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    fn start(shared: &Arc<Shared>) -> Outcome<Keeper> {
        let (alive, ended) = mpsc::channel::<()>();
        let shared = Arc::clone(shared);
        let keep = move || {
            let mut looked = Instant::now();
            while matches!(ended.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
                shared.lending.rest();
                shared.keep_catalog_pin();
                if shared.pin.as_ref().is_some_and(Pin::is_to_close) {
                    shared.is_deleted.store(true, Ordering::Release);
                }
                // In a cluster others may delete what is shown. Where there is a pin they ask before.
                if shared.pin.is_none() && looked.elapsed() >= STILL_THERE {
                    looked = Instant::now();
                    if !shared.is_still_there() {
                        shared.is_deleted.store(true, Ordering::Release);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("door-keeper".to_owned());
        let thread = thread.spawn(keep).map_err(|error| {
            let sentence = format!(
                "the system starts no thread to look after the door: {error}; raise its limit of threads"
            );
            Failure::plain("threads", sentence)
        })?;
        Ok(Keeper { alive, thread })
    }

    fn end(self) {
        drop(self.alive);
        if self.thread.join().is_err() {
            tracing::error!("the thread that looks after the door ended by a panic");
        }
    }
}

impl Shared {
    fn is_still_there(&self) -> bool {
        match self.lending.lend() {
            Ok(repository) => self.shown.is_there(&repository),
            Err(_) => true,
        }
    }

    fn keep_catalog_pin(&self) {
        if let Some(pin) = &mut *self.catalog_pin.lock()
            && let Ok(repository) = self.lending.lend()
            && let Err(error) = pin.keep(&repository)
        {
            tracing::debug!(%error, "a pin was not set anew");
        }
    }
}

/// The pin of a door to a repository in a cluster; without one, others may delete what is shown.
fn pin_in_catalog(context: &Context<'_>, repository: &Repository, shown: Shown) -> Option<CatalogPin> {
    match repository.pin(shown) {
        Ok(pin) => Some(pin),
        Err(error) => {
            context.output.notice(&format!(
                "others are not kept from deleting what is shown, since no pin can be set: {error}"
            ));
            None
        }
    }
}

/// The end of a door whose snapshot was deleted.
fn deleted(what: &str) -> Failure {
    Failure::new(
        exit::FAILURE,
        "deleted",
        format!(
            "{what} was deleted with --force while it was in use; this door is closed, name another snapshot"
        ),
    )
}

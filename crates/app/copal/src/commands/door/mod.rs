//! Exports: commands that present snapshots to other programs until they are ended, `copal nbd` and `copal
//! mount`.

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

/// Interval at which an export without a pin checks that its snapshot still exists.
const STILL_THERE: Duration = Duration::from_secs(60);

/// Poll interval of the keeper.
const LOOK: Duration = Duration::from_millis(100);

/// An open export.
struct Door {
    shared: Arc<Shared>,
    cache: Arc<ServeCache>,
    keeper: Keeper,
}

/// State shared by an export and its keeper.
struct Shared {
    lending: Arc<Lending>,
    closing: Closing,
    pin: Option<Pin>,
    /// Pin of a repository in a cluster; `None` if this client may only read.
    catalog_pin: Mutex<Option<CatalogPin>>,
    shown: Shown,
    /// The export was asked to close, or its snapshot was deleted.
    is_deleted: AtomicBool,
}

/// Reason for the end of an export.
enum End {
    /// The user ended it.
    Asked,
    /// Its snapshot was deleted.
    Deleted,
}

impl Door {
    /// Pins the snapshot while the repository is open; on one machine nothing can be forgotten meanwhile. In
    /// a cluster nothing is locked, so the pin is set first, and then the snapshot must still exist.
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
                    tracing::debug!(%error, "pin not removed, it expires after ten minutes");
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

    /// Called a few times a second: returns the reason if the export is to end. From then on all clients get
    /// I/O errors. Does not block: the keeper queries the store.
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
            tracing::debug!(%error, "pin not removed, it expires after ten minutes");
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

/// A thread that closes an idle store, renews the pin in a cluster, and checks whether the export is to end.
/// It may block on the store, and neither new clients nor signals wait for it.
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
                // In a cluster others may delete the snapshot. With a pin they ask first.
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
            let sentence =
                format!("the system starts no thread for the export: {error}; raise its limit of threads");
            Failure::plain("threads", sentence)
        })?;
        Ok(Keeper { alive, thread })
    }

    fn end(self) {
        drop(self.alive);
        if self.thread.join().is_err() {
            tracing::error!("the keeper thread of the export panicked");
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
            tracing::debug!(%error, "pin not renewed");
        }
    }
}

/// Pins a snapshot in a cluster; without a pin, others may delete it.
fn pin_in_catalog(context: &Context<'_>, repository: &Repository, shown: Shown) -> Option<CatalogPin> {
    match repository.pin(shown) {
        Ok(pin) => Some(pin),
        Err(error) => {
            context.output.notice(&format!(
                "others can delete the exported snapshots, since no pin can be set: {error}"
            ));
            None
        }
    }
}

/// The error of an export whose snapshot was deleted.
fn deleted(what: &str) -> Failure {
    Failure::new(
        exit::FAILURE,
        "deleted",
        format!(
            "{what} was deleted with --force while it was in use; this export is closed, name another snapshot"
        ),
    )
}

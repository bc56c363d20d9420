//! Exports: commands that present snapshots to other programs until they are ended, `copal nbd` and `copal
//! mount`.

mod mount;
mod nbd;
mod store_lender;

pub(super) use mount::run as mount;
pub(super) use nbd::run as nbd;

use super::{CommandContext, close};
use crate::{
    failure::{Failure, Outcome, exit},
    pins::ExportPin,
    place::RepositoryPlace,
    repository::OpenRepository,
};
use copal_backup::{
    Repository,
    serve::{CACHE_BYTES, CatalogPin, Lender, ServeCache, Shown},
};
use copal_export::CloseFlag;
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
use store_lender::StoreLender;

/// Interval at which an export without a pin checks that its snapshot still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Poll interval of the keeper.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An open export.
struct OpenExport {
    shared: Arc<ExportState>,
    cache: Arc<ServeCache>,
    keeper: ExportKeeper,
}

/// State shared by an export and its keeper.
struct ExportState {
    store_lender: Arc<StoreLender>,
    close_flag: CloseFlag,
    pin: Option<ExportPin>,
    /// Pin of a repository in a cluster; `None` if this client may only read.
    catalog_pin: Mutex<Option<CatalogPin>>,
    shown: Shown,
    /// The export was asked to close, or its snapshot was deleted.
    is_deleted: AtomicBool,
}

/// Reason for the end of an export.
enum EndReason {
    /// The user ended it.
    Asked,
    /// Its snapshot was deleted.
    Deleted,
}

impl OpenExport {
    /// Pins the snapshot while the repository is open; on one machine nothing can be forgotten meanwhile. In
    /// a cluster nothing is locked, so the pin is set first, and then the snapshot must still exist.
    fn open(
        context: &CommandContext<'_>,
        opened: OpenRepository,
        name: &str,
        shown: Shown,
    ) -> Outcome<OpenExport> {
        let common = &context.arguments.common;
        let pin = ExportPin::set(&RepositoryPlace::find(common)?, name, &shown);
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
        let close_flag = CloseFlag::default();
        let store_lender = StoreLender::new(opened, common, &context.cancel, &close_flag, pin.is_some());
        let shared = Arc::new(ExportState {
            store_lender: Arc::new(store_lender),
            close_flag,
            pin,
            catalog_pin: Mutex::new(catalog_pin),
            shown,
            is_deleted: AtomicBool::new(false),
        });
        Ok(OpenExport {
            keeper: ExportKeeper::start(&shared)?,
            shared,
            cache: Arc::new(ServeCache::new(CACHE_BYTES)),
        })
    }

    fn lender(&self) -> Arc<dyn Lender> {
        Arc::clone(&self.shared.store_lender) as Arc<dyn Lender>
    }

    fn close_flag(&self) -> &CloseFlag {
        &self.shared.close_flag
    }

    /// Called a few times a second: returns the reason if the export is to end. From then on all clients get
    /// I/O errors. Does not block: the keeper queries the store.
    fn end(&self, context: &CommandContext<'_>) -> Option<EndReason> {
        let end = if context.is_ended() {
            EndReason::Asked
        } else if self.shared.is_deleted.load(Ordering::Acquire) {
            EndReason::Deleted
        } else {
            return None;
        };
        self.shared.close_flag.close();
        Some(end)
    }

    /// Closes the store, then removes the pins.
    fn close(self, context: &CommandContext<'_>) -> Outcome<()> {
        let OpenExport { shared, cache: _, keeper } = self;
        shared.close_flag.close();
        keeper.end();
        let Some(shared) = Arc::into_inner(shared) else {
            return Ok(());
        };
        let ExportState { store_lender, pin, catalog_pin, .. } = shared;
        if let Some(pin) = catalog_pin.into_inner()
            && let Ok(repository) = store_lender.lend()
            && let Err(error) = pin.end(&repository)
        {
            tracing::debug!(%error, "pin not removed, it expires after ten minutes");
        }
        let ended = match Arc::into_inner(store_lender) {
            Some(store_lender) => store_lender.end(),
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
struct ExportKeeper {
    alive: Sender<()>,
    thread: JoinHandle<()>,
}

impl ExportKeeper {
    fn start(shared: &Arc<ExportState>) -> Outcome<ExportKeeper> {
        let (alive, ended) = mpsc::channel::<()>();
        let shared = Arc::clone(shared);
        let keep = move || {
            let mut looked = Instant::now();
            while matches!(ended.recv_timeout(POLL_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                shared.store_lender.close_if_idle();
                shared.keep_catalog_pin();
                if shared.pin.as_ref().is_some_and(ExportPin::is_to_close) {
                    shared.is_deleted.store(true, Ordering::Release);
                }
                // In a cluster others may delete the snapshot. With a pin they ask first.
                if shared.pin.is_none() && looked.elapsed() >= CHECK_INTERVAL {
                    looked = Instant::now();
                    if !shared.still_exists() {
                        shared.is_deleted.store(true, Ordering::Release);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("export-keeper".to_owned());
        let thread = thread.spawn(keep).map_err(|error| {
            let sentence =
                format!("the system starts no thread for the export: {error}; raise its limit of threads");
            Failure::plain("threads", sentence)
        })?;
        Ok(ExportKeeper { alive, thread })
    }

    fn end(self) {
        drop(self.alive);
        if self.thread.join().is_err() {
            tracing::error!("the keeper thread of the export panicked");
        }
    }
}

impl ExportState {
    fn still_exists(&self) -> bool {
        match self.store_lender.lend() {
            Ok(repository) => self.shown.is_there(&repository),
            Err(_) => true,
        }
    }

    fn keep_catalog_pin(&self) {
        if let Some(pin) = &mut *self.catalog_pin.lock()
            && let Ok(repository) = self.store_lender.lend()
            && let Err(error) = pin.keep(&repository)
        {
            tracing::debug!(%error, "pin not renewed");
        }
    }
}

/// Pins a snapshot in a cluster; without a pin, others may delete it.
fn pin_in_catalog(context: &CommandContext<'_>, repository: &Repository, shown: Shown) -> Option<CatalogPin> {
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

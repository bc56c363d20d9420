//! Commands that show snapshots to other programs until they are told to end: `copal nbd`, `copal mount`.

mod lending;
mod mount;
mod nbd;

pub(super) use mount::run as mount;
pub(super) use nbd::run as nbd;

use super::Context;
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
use copal_doors::Closing;
use lending::Lending;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the logs are asked whether what is shown is still there, where others may delete it.
const STILL_THERE: Duration = Duration::from_secs(60);

/// What every door has.
struct Door {
    lending: Arc<Lending>,
    cache: Arc<ServeCache>,
    closing: Closing,
    pin: Option<Pin>,
    /// Of a repository in a cluster; none where this client may only read.
    catalog_pin: Mutex<Option<CatalogPin>>,
    looked: Mutex<Instant>,
}

/// Why a door ends.
enum End {
    /// The user said so.
    Asked,
    /// What it shows is deleted.
    Deleted,
}

impl Door {
    fn open(context: &Context<'_>, opened: Opened, name: &str, shown: Shown) -> Outcome<Door> {
        let common = &context.arguments.common;
        let pin = Pin::set(&Place::find(common)?, name, &shown);
        let catalog_pin = match opened.store() {
            Some(_) => None,
            None => pin_in_catalog(context, opened.repository(), shown),
        };
        let lending = Lending::new(opened, common, &context.cancel, pin.is_some());
        Ok(Door {
            lending: Arc::new(lending),
            cache: Arc::new(ServeCache::new(CACHE_BYTES)),
            closing: Closing::default(),
            pin,
            catalog_pin: Mutex::new(catalog_pin),
            looked: Mutex::new(Instant::now()),
        })
    }

    fn lender(&self) -> Arc<dyn Lender> {
        Arc::clone(&self.lending) as Arc<dyn Lender>
    }

    /// Looked at a few times a second: whether it is over, and if so everybody behind the door gets I/O errors from now on.
    fn end(&self, context: &Context<'_>, is_there: impl Fn(&Repository) -> bool) -> Option<End> {
        self.lending.rest();
        let end = if context.is_ended() {
            End::Asked
        } else if self.pin.as_ref().is_some_and(Pin::is_to_close) || !self.is_still_there(is_there) {
            End::Deleted
        } else {
            self.keep_catalog_pin();
            return None;
        };
        self.closing.close();
        Some(end)
    }

    /// In a cluster others may delete what is shown. Where there is a pin they ask before.
    fn is_still_there(&self, is_there: impl Fn(&Repository) -> bool) -> bool {
        let mut looked = self.looked.lock();
        if self.pin.is_some() || looked.elapsed() < STILL_THERE {
            return true;
        }
        *looked = Instant::now();
        match self.lending.lend() {
            Ok(repository) => is_there(&repository),
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

    /// Closes the store, then lets go of what was pinned.
    fn close(self, context: &Context<'_>) -> Outcome<()> {
        let Door {
            lending,
            pin,
            catalog_pin,
            ..
        } = self;
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

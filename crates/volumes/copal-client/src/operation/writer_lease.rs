//! Writer lease: the right of one client at a time to write below a path of a cluster (VOL-40).
//!
//! The master signs the lease with the time at which it ends, and every call shows that permit. So a process
//! that slept past the end of its lease changes nothing. The next holder announces the number of its lease to
//! all data servers before it writes. While a lease is held, a task renews it.

use crate::{
    net::{
        connection::{CallError, EncodedRequest},
        machine,
    },
    operation::run::OperationRunner,
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{
    Method,
    messages::{self, WriterLeaseReply, failure::Code, writer_lease::Action},
};
use copal_volume::group::DiskId;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Time between two renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Time after the last renewal at which the lease counts as ended here. The master ends it later.
const TRUSTED: Duration = Duration::from_secs(25);
/// How long the master may take to answer.
const MASTER_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the announcement of a new lease to the data servers may take.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a client did not get the writer lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another client holds it.
    #[error("{holder} is writing there; its writer lease ends in {seconds} s if it has died")]
    Held {
        /// The holder, as it named itself.
        holder: String,
        /// Seconds until it ends without a renewal.
        seconds: u64,
    },
    /// The master was not reached, or its answer cannot be read.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The writer lease below a path. A drop ends its renewal; [`WriterLease::release`] also gives it back.
pub struct WriterLease {
    operations: OperationRunner,
    path: String,
    holder: String,
    number: u64,
    renewed: Arc<Mutex<Instant>>,
    renewal: AbortHandle,
}

impl WriterLease {
    /// Takes the lease below `path`; `holder` is shown to others. Must run inside a runtime.
    /// # Errors
    /// All of them.
    pub(crate) async fn take(
        operations: &OperationRunner,
        path: &str,
        holder: &str,
    ) -> Result<WriterLease, LeaseError> {
        let router = operations.router();
        let asked = machine::now();
        let WriterLeaseReply { number, held_by, seconds, .. } =
            change_lease(router, Action::Take, path, holder, 0).await?;
        if !held_by.is_empty() {
            return Err(LeaseError::Held { holder: held_by, seconds });
        }
        if number == 0 {
            return Err(CallError::Malformed("a lease without a number".to_owned()).into());
        }
        let permit = router.permits().sign_lease(number, path).await?;
        announce(router, permit).await;
        operations.clear_unsettled();
        let renewed = Arc::new(Mutex::new(asked));
        let renewal = machine::spawn(renew(
            router.clone(),
            path.to_owned(),
            holder.to_owned(),
            number,
            Arc::clone(&renewed),
        ));
        Ok(WriterLease {
            operations: operations.clone(),
            path: path.to_owned(),
            holder: holder.to_owned(),
            number,
            renewed,
            renewal: renewal.abort_handle(),
        })
    }

    /// Whether the lease is certainly still held.
    pub fn is_held(&self) -> bool {
        machine::since(*self.renewed.lock()) < TRUSTED
    }

    /// Gives the lease back, so that the next writer starts at once. If the outcome of an operation is unknown,
    /// the lease is not given back but ends by itself: until then the operation may still take effect.
    pub async fn release(self) {
        let router = self.operations.router();
        router.permits().end_lease();
        if self.operations.is_unsettled() {
            return;
        }
        // If the master is not reached, the lease ends by itself.
        let _ = change_lease(router, Action::Release, &self.path, &self.holder, self.number).await;
    }
}

impl Drop for WriterLease {
    fn drop(&mut self) {
        self.renewal.abort();
        self.operations.router().permits().end_lease();
    }
}

/// Announces a new lease to all data servers that are up. A server that is not reached refuses the previous
/// lease all the same: its permit has ended.
async fn announce(router: &CallRouter, permit: Bytes) {
    let end = machine::now() + ANNOUNCE_TIMEOUT;
    let request = EncodedRequest { permit, ..EncodedRequest::default() };
    let announce_to = |disk| {
        let request = request.clone();
        async move {
            loop {
                let call = router.call_permitted::<messages::Ping>(disk, Method::Ping, request.clone(), end);
                let error = match call.await {
                    Ok(_) => return,
                    // The server knows a later lease.
                    Err(CallError::Failed(failure)) if failure.code() == Code::Denied => return,
                    Err(error) => error,
                };
                // The next try opens a new connection.
                if machine::now() + RETRY_PAUSE >= end || !disks_up(router).contains(&disk) {
                    tracing::debug!(%error, %disk, "a data server did not receive the new writer lease");
                    return;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    };
    join_all(disks_up(router).into_iter().map(announce_to)).await;
}

fn disks_up(router: &CallRouter) -> BTreeSet<DiskId> {
    let groups = router.map().groups();
    let views = groups.into_iter().filter_map(|group| router.map().view(group));
    views.flat_map(|view| view.up().collect::<Vec<_>>()).collect()
}

async fn change_lease(
    router: &CallRouter,
    action: Action,
    path: &str,
    holder: &str,
    number: u64,
) -> Result<WriterLeaseReply, CallError> {
    let request = messages::WriterLease {
        action: action.into(),
        path: path.to_owned(),
        holder: holder.to_owned(),
        number,
    };
    router.masters().call(Method::WriterLease, &request, MASTER_TIMEOUT).await
}

async fn renew(router: CallRouter, path: String, holder: String, number: u64, renewed: Arc<Mutex<Instant>>) {
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        let asked = machine::now();
        match change_lease(&router, Action::Renew, &path, &holder, number).await {
            Ok(reply) if reply.number == number => match router.permits().sign_lease(number, &path).await {
                Ok(_) => *renewed.lock() = asked,
                Err(error) => tracing::warn!(%error, "the master did not sign the renewed writer lease yet"),
            },
            Ok(_) => {
                tracing::error!(path, "the writer lease has ended: another client may write there");
                return;
            }
            Err(error) => tracing::warn!(%error, "the writer lease was not renewed yet"),
        }
    }
}

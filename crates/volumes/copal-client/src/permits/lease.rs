//! The right to write below a path of a cluster: one process at a time has it, and renews it while it lives
//! (VOL-40).
//!
//! The master signs it, with the moment at which it ends, and every call shows it: a process that slept
//! through that moment changes nothing any more. Whoever takes it next tells its number to all data servers
//! before it writes.

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::{CallError, EncodedRequest};
use crate::net::machine;
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
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Between two renewals.
const RENEW: Duration = Duration::from_secs(10);
/// A right that was not renewed for so long counts as ended here, before it ends at the master.
const TRUSTED: Duration = Duration::from_secs(25);
/// How long the master may take.
const ANSWER: Duration = Duration::from_secs(8);
/// How long data servers may take to hear of a new right.
const TO_TELL: Duration = Duration::from_secs(3);

/// Why there is no right to write.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else has it.
    #[error("{holder} is writing there; its right to ends in {seconds} s if it has died")]
    Held {
        /// Who.
        holder: String,
        /// Until it ends, if it is not renewed.
        seconds: u64,
    },
    /// The master was not reached, or its answer cannot be read.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The right to write below a path; given back when it is dropped.
pub struct WriterLease {
    cluster: Cluster,
    path: String,
    holder: String,
    number: u64,
    renewed: Arc<Mutex<Instant>>,
    renews: AbortHandle,
}

impl Cluster {
    /// Takes the right to write below `path`; `holder` is shown to others. To be called inside a runtime.
    /// # Errors
    /// All of them.
    pub async fn take_lease(&self, path: &str, holder: &str) -> Result<WriterLease, LeaseError> {
        let asked = machine::now();
        let WriterLeaseReply { number, held_by, seconds, .. } =
            change_lease(self, Action::Take, path, holder, 0).await?;
        if !held_by.is_empty() {
            return Err(LeaseError::Held { holder: held_by, seconds });
        }
        if number == 0 {
            return Err(CallError::Malformed("a lease without a number".to_owned()).into());
        }
        let permit = self.show_lease(number, path).await?;
        self.tell_lease(permit).await;
        self.inner.is_unsettled.store(false, Ordering::Relaxed);
        let renewed = Arc::new(Mutex::new(asked));
        let renews = machine::spawn(renew(
            self.clone(),
            path.to_owned(),
            holder.to_owned(),
            number,
            Arc::clone(&renewed),
        ));
        Ok(WriterLease {
            cluster: self.clone(),
            path: path.to_owned(),
            holder: holder.to_owned(),
            number,
            renewed,
            renews: renews.abort_handle(),
        })
    }

    /// Tells the number of a new right to all data servers that are up. One that is not reached refuses the
    /// earlier right all the same, by the moment at which it ended.
    async fn tell_lease(&self, permit: Bytes) {
        let end = machine::now() + TO_TELL;
        let request = EncodedRequest { permit, ..EncodedRequest::default() };
        let tell = |disk| {
            let request = request.clone();
            async move {
                loop {
                    let told =
                        self.call_permitted::<messages::Ping>(disk, Method::Ping, request.clone(), end);
                    let error = match told.await {
                        Ok(_) => return,
                        // It has heard of a later one.
                        Err(CallError::Failed(failure)) if failure.code() == Code::Denied => return,
                        Err(error) => error,
                    };
                    // A connection that broke just now is made anew.
                    if machine::now() + SOON >= end || !self.disks_up().contains(&disk) {
                        tracing::debug!(%error, %disk, "a data server did not hear of a new right to write");
                        return;
                    }
                    tokio::time::sleep(SOON).await;
                }
            }
        };
        join_all(self.disks_up().into_iter().map(tell)).await;
    }

    fn disks_up(&self) -> BTreeSet<DiskId> {
        let groups = self.map().groups();
        let views = groups.into_iter().filter_map(|group| self.map().view(group));
        views.flat_map(|view| view.up().collect::<Vec<_>>()).collect()
    }
}

impl WriterLease {
    /// Whether the right certainly lasts still.
    pub fn is_held(&self) -> bool {
        machine::since(*self.renewed.lock()) < TRUSTED
    }

    /// Gives it back: the next writer starts at once. Not where an operation has no known outcome: it may
    /// take effect as long as the right lasts.
    pub async fn release(self) {
        self.cluster.inner.permits.end_lease();
        if self.cluster.inner.is_unsettled.load(Ordering::Relaxed) {
            return;
        }
        // One that is not heard of ends by itself.
        let _ = change_lease(&self.cluster, Action::Release, &self.path, &self.holder, self.number).await;
    }
}

impl Drop for WriterLease {
    fn drop(&mut self) {
        self.renews.abort();
        self.cluster.inner.permits.end_lease();
    }
}

async fn change_lease(
    cluster: &Cluster,
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
    cluster.inner.masters.call(Method::WriterLease, &request, ANSWER).await
}

async fn renew(cluster: Cluster, path: String, holder: String, number: u64, renewed: Arc<Mutex<Instant>>) {
    loop {
        tokio::time::sleep(RENEW).await;
        let asked = machine::now();
        match change_lease(&cluster, Action::Renew, &path, &holder, number).await {
            Ok(reply) if reply.number == number => match cluster.show_lease(number, &path).await {
                Ok(_) => *renewed.lock() = asked,
                Err(error) => tracing::warn!(%error, "the right to write was not signed yet"),
            },
            Ok(_) => {
                tracing::error!(path, "the right to write has ended: somebody else may write there");
                return;
            }
            Err(error) => tracing::warn!(%error, "the right to write was not renewed yet"),
        }
    }
}

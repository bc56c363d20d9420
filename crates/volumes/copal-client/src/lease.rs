//! The right to write below a path of a cluster: one process at a time has it, and renews it while it lives.

use crate::{cluster::Cluster, connection::CallError, machine};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Between two renewals.
const RENEW: Duration = Duration::from_secs(10);
/// A right that was not renewed for so long counts as ended here, before it ends at the master.
const TRUSTED: Duration = Duration::from_secs(25);
/// How long the master may take.
const ANSWER: Duration = Duration::from_secs(8);

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
        let told = ask(self, "take", path, holder, 0).await?;
        if let Some(holder) = told["held_by"].as_str() {
            return Err(LeaseError::Held {
                holder: holder.to_owned(),
                seconds: told["seconds"].as_u64().unwrap_or(0),
            });
        }
        let malformed = || CallError::Malformed("a lease without a number".to_owned());
        let number = told["number"].as_u64().ok_or_else(malformed)?;
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
}

impl WriterLease {
    /// Whether the right certainly lasts still.
    pub fn is_held(&self) -> bool {
        machine::since(*self.renewed.lock()) < TRUSTED
    }

    /// Gives it back: the next writer starts at once.
    pub async fn release(self) {
        // One that is not heard of ends by itself.
        let _ = ask(&self.cluster, "release", &self.path, &self.holder, self.number).await;
    }
}

impl Drop for WriterLease {
    fn drop(&mut self) {
        self.renews.abort();
    }
}

async fn ask(
    cluster: &Cluster,
    verb: &str,
    path: &str,
    holder: &str,
    number: u64,
) -> Result<Value, CallError> {
    let wanted = json!({ "verb": verb, "path": path, "holder": holder, "number": number });
    let told = cluster.ask("lease", &wanted.to_string(), ANSWER).await?;
    serde_json::from_str(&told).map_err(|error| CallError::Malformed(error.to_string()))
}

async fn renew(cluster: Cluster, path: String, holder: String, number: u64, renewed: Arc<Mutex<Instant>>) {
    loop {
        tokio::time::sleep(RENEW).await;
        let asked = machine::now();
        match ask(&cluster, "renew", &path, &holder, number).await {
            Ok(told) if told["number"].as_u64() == Some(number) => *renewed.lock() = asked,
            Ok(_) => {
                tracing::error!(
                    path,
                    "the right to write has ended: somebody else may write there"
                );
                return;
            }
            Err(error) => tracing::warn!(%error, "the right to write was not renewed yet"),
        }
    }
}

//! One of several masters over one database: who has the lease leads and answers, the others say that they do
//! not.
//!
//! The lease ends by the database's clock. Whoever leads stops two seconds before that by a clock of its own,
//! read before it asked: so two masters never answer at once, and what a paused one would still write is
//! refused by the database (the fence of each change).
//!
//! Paper: beanfs §4.2 (two stand-by masters; here any number, over one database, without a shared disk or a
//! taken address)
//! Design: docs/design/cluster.md#rules VOL-23
//! Not here: how the lease is kept (`copal-master`), how clients find who leads (`copal-client`).

use crate::{
    answers::{blocking, encoded},
    authority::Authority,
    listener::{Handler, Peer},
    master_server::MasterServer,
    status::Status,
};
use bytes::Bytes;
use copal_client::{ConnectionPool, machine};
use copal_master::{
    LEASE_MS, LeaseHolder, Master, MasterError, MasterOptions, MetaError, MetaStore, OpenedMaster,
};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use parking_lot::RwLock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Between two renewals.
const RENEW: Duration = Duration::from_secs(3);
/// Between two looks at a lease that another has, and after the database failed.
const LOOK: Duration = Duration::from_secs(1);
/// So long before the lease ends its holder stops.
const EARLY: Duration = Duration::from_secs(2);

/// A reason why this master does not lead is logged once in so long.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How long a new reign waits for what data servers have heard of.
const SEEN: Duration = Duration::from_secs(1);
/// The same where that decides who has missed something.
const SEEN_AFTER_RESTORE: Duration = Duration::from_secs(5);

/// Opens the database; called again for each reign.
pub type OpenMeta = Box<dyn Fn() -> Result<Box<dyn MetaStore>, MetaError> + Send + Sync>;

struct Reigning {
    server: Arc<MasterServer>,
    /// The lease, as far as this master goes by it; none: it does not end.
    lease: Option<HeldLease>,
}

/// A lease by the clock of who holds it.
#[derive(Clone, Copy)]
struct HeldLease {
    /// When it was asked for last, and given.
    asked: Instant,
    /// No answer is given later than this.
    until: Instant,
}

impl HeldLease {
    fn of(asked: Instant) -> HeldLease {
        HeldLease { asked, until: asked + Duration::from_millis(LEASE_MS) - EARLY }
    }
}

/// See the module.
pub struct Candidate {
    open: OpenMeta,
    options: MasterOptions,
    authority: Authority,
    /// Where this master is reached.
    address: String,
    connections: ConnectionPool,
    holder: LeaseHolder,
    reigning: RwLock<Option<Reigning>>,
    /// The first reign begins above what was lost.
    is_after_restore: AtomicBool,
    /// Somebody was told that this master leads no more: it looks at its lease now.
    doubted: Notify,
    /// Whether the database has said who leads since the process was started.
    has_reached_database: AtomicBool,
}

impl Candidate {
    /// A master that is reached at `address` and does not lead yet.
    /// # Errors
    /// The operating system gives no randomness.
    pub fn new(
        open: OpenMeta,
        options: MasterOptions,
        authority: Authority,
        address: String,
        connections: ConnectionPool,
    ) -> Result<Arc<Candidate>, MasterError> {
        Ok(Arc::new(Candidate {
            open,
            options,
            authority,
            address,
            connections,
            holder: Master::draw_holder()?,
            reigning: RwLock::default(),
            is_after_restore: AtomicBool::new(options.after_restore),
            doubted: Notify::new(),
            has_reached_database: AtomicBool::new(false),
        }))
    }

    /// Asks for the lease once, and data servers whether they have heard of anything newer than the tables
    /// have (VOL-70); whether it leads from here on.
    /// # Errors
    /// The database failed, or holds no cluster, or is older than what data servers have heard of.
    pub async fn try_to_lead(self: &Arc<Self>) -> Result<bool, MasterError> {
        // Before it is asked for: it may end before the answer is here.
        let asked = machine::now();
        let after_restore = self.is_after_restore.load(Ordering::Acquire);
        let options = MasterOptions { after_restore, ..self.options };
        let this = Arc::clone(self);
        let opened = run_blocking(move || Master::open_as((this.open)()?, this.holder, options)).await?;
        let master = match opened {
            OpenedMaster::Leads(master) => *master,
            OpenedMaster::Follows { left_ms } => {
                self.has_reached_database.store(true, Ordering::Release);
                tracing::debug!(left_ms, "another master leads");
                return Ok(false);
            }
        };
        let server = self.serving(master);
        let server = match after_restore {
            true => self.rise(server).await?,
            false => {
                let (seen, clocks) = server.ask_what_was_seen(false, SEEN).await;
                let checked = Arc::clone(&server);
                run_blocking(move || {
                    checked.master.check_staleness(&seen)?;
                    checked.go_by_clocks(&clocks)
                })
                .await?;
                server
            }
        };
        let (reached, address) = (Arc::clone(&server), self.address.clone());
        run_blocking(move || reached.master.register_address(&address)).await?;
        self.is_after_restore.store(false, Ordering::Release);
        let has_lease = server.master.has_lease();
        self.has_reached_database.store(true, Ordering::Release);
        tracing::info!(term = server.master.term(), "this master leads");
        *self.reigning.write() = Some(Reigning { server, lease: has_lease.then(|| HeldLease::of(asked)) });
        Ok(true)
    }

    /// Begins above what was lost, by what data servers have heard of (VOL-71).
    async fn rise(&self, server: Arc<MasterServer>) -> Result<Arc<MasterServer>, MasterError> {
        let (seen, clocks) = server.ask_what_was_seen(true, SEEN_AFTER_RESTORE).await;
        // Nobody else has it yet.
        let master = Arc::into_inner(server)
            .map(|server| server.master)
            .ok_or_else(|| MetaError::Failed("the reign is in use already".to_owned()))?;
        let now_ms = machine::wall_ms();
        let risen = run_blocking(move || master.raise_counters(&seen, now_ms)).await?;
        let risen = self.serving(risen);
        let checked = Arc::clone(&risen);
        run_blocking(move || checked.go_by_clocks(&clocks)).await?;
        Ok(risen)
    }

    fn serving(&self, master: Master) -> Arc<MasterServer> {
        MasterServer::new(master, self.authority.clone(), self.address.clone(), self.connections.clone())
    }

    /// Leads whenever it can, until the task is dropped.
    pub async fn run(self: Arc<Self>) {
        let mut told: Option<(String, Instant)> = None;
        loop {
            if self.reigning.read().is_some() {
                Arc::clone(&self).reign().await;
            }
            match self.try_to_lead().await {
                Ok(true) => told = None,
                Ok(false) => tokio::time::sleep(LOOK).await,
                Err(error) => {
                    let reason = error.to_string();
                    let is_new = told
                        .as_ref()
                        .is_none_or(|(before, at)| *before != reason || machine::since(*at) >= TELL_EVERY);
                    if is_new {
                        tracing::warn!(%error, "this master does not lead");
                        told = Some((reason, machine::now()));
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }

    /// Lets time pass for the cluster, and renews the lease until it is lost.
    async fn reign(self: Arc<Self>) {
        let Some(server) = self.reigning.read().as_ref().map(|reigning| Arc::clone(&reigning.server)) else {
            return;
        };
        let time = machine::spawn(Arc::clone(&server).watch_time());
        loop {
            let _ = tokio::time::timeout(RENEW, self.doubted.notified()).await;
            if server.master.is_stale() {
                break;
            }
            let lease = self.reigning.read().as_ref().and_then(|reigning| reigning.lease);
            let Some(HeldLease { until, .. }) = lease else {
                continue;
            };
            let asked = machine::now();
            let renewing = Arc::clone(&server);
            let renewed = blocking(move || Ok(renewing.master.renew()?));
            match tokio::time::timeout_at(until.into(), renewed).await {
                Ok(Ok(true)) => {
                    if let Some(reigning) = self.reigning.write().as_mut() {
                        reigning.lease = Some(HeldLease::of(asked));
                    }
                }
                Ok(Err(error)) if machine::now() < until => {
                    tracing::warn!(text = error.text(), "the lease could not be renewed yet");
                    tokio::time::sleep(LOOK / 4).await;
                    self.doubted.notify_one();
                }
                _ => break,
            }
        }
        tracing::warn!("this master leads no more");
        *self.reigning.write() = None;
        time.abort();
        // Whoever waits for the map here is to ask another.
        server.wake_all();
    }

    /// Whether the database has said who leads since the process was started.
    pub fn has_reached_database(&self) -> bool {
        self.has_reached_database.load(Ordering::Acquire)
    }

    /// Who answers now.
    pub(crate) fn leading(&self) -> Option<Arc<MasterServer>> {
        let reigning = self.reigning.read();
        let reigning = reigning.as_ref()?;
        let is_over = reigning.lease.is_some_and(|lease| machine::now() >= lease.until);
        (!is_over).then(|| Arc::clone(&reigning.server))
    }

    /// Since the lease was renewed, and until this master stops unless it is again; `None`: it does not lead,
    /// or its lease does not end.
    pub(crate) fn lease(&self) -> Option<(Duration, Duration)> {
        let lease = self.reigning.read().as_ref()?.lease?;
        let left = lease.until.saturating_duration_since(machine::now());
        Some((machine::since(lease.asked), left))
    }
}

/// Runs what blocks.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MasterError> + Send + 'static,
) -> Result<T, MasterError> {
    let outcome = machine::run_blocking(work).await;
    outcome.map_err(|error| MetaError::Failed(format!("the work ended early: {error}")))?
}

fn not_leader() -> Status {
    Status::new(Code::NotLeader, "this master does not lead now; ask another")
}

impl Handler for Candidate {
    const OF_STRANGERS: &'static [Method] = MasterServer::OF_STRANGERS;

    fn clock_ms(&self) -> Option<u64> {
        self.leading().and_then(|server| server.clock_ms())
    }

    async fn call(self: Arc<Self>, peer: Peer, method: Method, message: Bytes) -> Result<Bytes, Status> {
        if method == Method::Ping {
            return Ok(encoded(&messages::Ping {}));
        }
        let server = self.leading().ok_or_else(|| match self.has_reached_database() {
            true => not_leader(),
            false => Status::new(
                Code::NotLeader,
                "this master waits for its database, which has not answered since the start; look at its log",
            ),
        })?;
        let answer = server.call(peer, method, message).await;
        match &answer {
            Err(refusal) if refusal.code() == Code::NotLeader => {
                self.doubted.notify_one();
                answer
            }
            // What was looked at may have been changed by another since.
            Ok(_) if self.leading().is_none() => Err(not_leader()),
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests;

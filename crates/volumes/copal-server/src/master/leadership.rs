//! Leadership among several masters over one database: the holder of the lease leads and answers; the others
//! refuse calls.
//!
//! The lease ends by the database's clock. The leader stops two seconds earlier by its own clock, read before
//! it requested the lease. So two masters never answer at once. The database refuses late writes of a paused
//! leader by the fence in each change.
//!
//! Unlike the paper's two stand-by masters, any number of masters share one database; there is no shared disk
//! and no moving address.
//!
//! Paper:  beanfs §4.2 (stand-by masters)
//! Design: docs/design/cluster.md#rules VOL-23
//! Not here: the storage of the lease (`copal-master`), how clients find the leader (`copal-client`).

use crate::master::server::MasterServer;
use crate::net::handler::CallHandler;
use crate::net::messages::{blocking, encoded};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::security::authority::CertificateAuthority;
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

/// Interval of renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Interval of attempts while another master leads, and after errors of the database.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time before the end of the lease at which its holder stops.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// Interval at which the same reason for not leading is logged again.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// How long a new leader waits for reports of data servers.
const REPORT_WAIT: Duration = Duration::from_secs(1);
/// The same after a restore, where the reports decide which members missed operations.
const REPORT_WAIT_AFTER_RESTORE: Duration = Duration::from_secs(5);

/// Opens the database; called for each term.
pub type OpenMeta = Box<dyn Fn() -> Result<Box<dyn MetaStore>, MetaError> + Send + Sync>;

struct LeaderTerm {
    server: Arc<MasterServer>,
    /// The lease by this master's clock; `None`: it does not end.
    lease: Option<HeldLease>,
}

/// A lease by the clock of its holder.
#[derive(Clone, Copy)]
struct HeldLease {
    /// Time of the last successful request.
    asked: Instant,
    /// The last moment for answers.
    until: Instant,
}

impl HeldLease {
    fn of(asked: Instant) -> HeldLease {
        HeldLease { asked, until: asked + Duration::from_millis(LEASE_MS) - STOP_MARGIN }
    }
}

/// A master that leads whenever it holds the lease. See the module.
pub struct MasterCandidate {
    open: OpenMeta,
    options: MasterOptions,
    authority: CertificateAuthority,
    /// The address of this master.
    address: String,
    connections: ConnectionPool,
    holder: LeaseHolder,
    current_term: RwLock<Option<LeaderTerm>>,
    /// The first term starts with raised counters, after a restore.
    is_after_restore: AtomicBool,
    /// Wakes the renewal: a call found that this master may not lead any more.
    lease_doubted: Notify,
    /// Whether the database has named a leader since the process started.
    has_reached_database: AtomicBool,
}

impl MasterCandidate {
    /// A master at `address` that does not lead yet.
    /// # Errors
    /// The operating system gives no randomness.
    pub fn new(
        open: OpenMeta,
        options: MasterOptions,
        authority: CertificateAuthority,
        address: String,
        connections: ConnectionPool,
    ) -> Result<Arc<MasterCandidate>, MasterError> {
        Ok(Arc::new(MasterCandidate {
            open,
            options,
            authority,
            address,
            connections,
            holder: Master::draw_holder()?,
            current_term: RwLock::default(),
            is_after_restore: AtomicBool::new(options.after_restore),
            lease_doubted: Notify::new(),
            has_reached_database: AtomicBool::new(false),
        }))
    }

    /// Requests the lease once. On success it asks data servers whether they have seen newer terms or maps
    /// than the tables hold (VOL-70). Returns whether this master leads now.
    /// # Errors
    /// The database failed, holds no cluster, or is older than the reports of data servers.
    pub async fn try_to_lead(self: &Arc<Self>) -> Result<bool, MasterError> {
        // Read before the request: the lease may end before the reply arrives.
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
        let server = self.new_server(master);
        let server = match after_restore {
            true => self.raise_counters(server).await?,
            false => {
                let (seen, clocks) = server.collect_reports(false, REPORT_WAIT).await;
                let checked = Arc::clone(&server);
                run_blocking(move || {
                    checked.master.check_staleness(&seen)?;
                    checked.apply_clocks(&clocks)
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
        *self.current_term.write() =
            Some(LeaderTerm { server, lease: has_lease.then(|| HeldLease::of(asked)) });
        Ok(true)
    }

    /// Starts with counters raised above the reports of data servers (VOL-71).
    async fn raise_counters(&self, server: Arc<MasterServer>) -> Result<Arc<MasterServer>, MasterError> {
        let (seen, clocks) = server.collect_reports(true, REPORT_WAIT_AFTER_RESTORE).await;
        // No other task holds it yet.
        let master = Arc::into_inner(server)
            .map(|server| server.master)
            .ok_or_else(|| MetaError::Failed("the term is already in use".to_owned()))?;
        let now_ms = machine::wall_ms();
        let raised = run_blocking(move || master.raise_counters(&seen, now_ms)).await?;
        let raised = self.new_server(raised);
        let checked = Arc::clone(&raised);
        run_blocking(move || checked.apply_clocks(&clocks)).await?;
        Ok(raised)
    }

    fn new_server(&self, master: Master) -> Arc<MasterServer> {
        MasterServer::new(master, self.authority.clone(), self.address.clone(), self.connections.clone())
    }

    /// Leads whenever possible, until the task is dropped.
    pub async fn run(self: Arc<Self>) {
        let mut last_warning: Option<(String, Instant)> = None;
        loop {
            if self.current_term.read().is_some() {
                Arc::clone(&self).hold_term().await;
            }
            match self.try_to_lead().await {
                Ok(true) => last_warning = None,
                Ok(false) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(error) => {
                    let reason = error.to_string();
                    let is_new = last_warning
                        .as_ref()
                        .is_none_or(|(before, at)| *before != reason || machine::since(*at) >= WARN_INTERVAL);
                    if is_new {
                        tracing::warn!(%error, "this master does not lead");
                        last_warning = Some((reason, machine::now()));
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Runs the timers of the cluster, and renews the lease until it is lost.
    async fn hold_term(self: Arc<Self>) {
        let Some(server) = self.current_term.read().as_ref().map(|term| Arc::clone(&term.server)) else {
            return;
        };
        let time = machine::spawn(Arc::clone(&server).run_ticks());
        loop {
            let _ = tokio::time::timeout(RENEW_INTERVAL, self.lease_doubted.notified()).await;
            if server.master.is_stale() {
                break;
            }
            let lease = self.current_term.read().as_ref().and_then(|term| term.lease);
            let Some(HeldLease { until, .. }) = lease else {
                continue;
            };
            let asked = machine::now();
            let renewing = Arc::clone(&server);
            let renewed = blocking(move || Ok(renewing.master.renew()?));
            match tokio::time::timeout_at(until.into(), renewed).await {
                Ok(Ok(true)) => {
                    if let Some(term) = self.current_term.write().as_mut() {
                        term.lease = Some(HeldLease::of(asked));
                    }
                }
                Ok(Err(error)) if machine::now() < until => {
                    tracing::warn!(text = error.text(), "the lease could not be renewed yet");
                    tokio::time::sleep(RETRY_INTERVAL / 4).await;
                    self.lease_doubted.notify_one();
                }
                _ => break,
            }
        }
        tracing::warn!("this master does not lead any more");
        *self.current_term.write() = None;
        time.abort();
        // Waiters for the map have to ask another master.
        server.wake_all();
    }

    /// Whether the database has named a leader since the process started.
    pub fn has_reached_database(&self) -> bool {
        self.has_reached_database.load(Ordering::Acquire)
    }

    /// The server that answers calls; `None`: this master does not lead.
    pub(crate) fn leader(&self) -> Option<Arc<MasterServer>> {
        let term = self.current_term.read();
        let term = term.as_ref()?;
        let is_over = term.lease.is_some_and(|lease| machine::now() >= lease.until);
        (!is_over).then(|| Arc::clone(&term.server))
    }

    /// Time since the last renewal of the lease, and time left until this master stops without another
    /// renewal. `None`: it does not lead, or its lease does not end.
    pub(crate) fn lease(&self) -> Option<(Duration, Duration)> {
        let lease = self.current_term.read().as_ref()?.lease?;
        let left = lease.until.saturating_duration_since(machine::now());
        Some((machine::since(lease.asked), left))
    }
}

/// Runs blocking work on a thread of its own.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MasterError> + Send + 'static,
) -> Result<T, MasterError> {
    let outcome = machine::run_blocking(work).await;
    outcome.map_err(|error| MetaError::Failed(format!("the work ended early: {error}")))?
}

fn not_leader() -> Status {
    Status::new(Code::NotLeader, "this master does not lead now; ask another")
}

impl CallHandler for MasterCandidate {
    const UNAUTHENTICATED_CALLS: &'static [Method] = MasterServer::UNAUTHENTICATED_CALLS;

    fn clock_ms(&self) -> Option<u64> {
        self.leader().and_then(|server| server.clock_ms())
    }

    async fn call(
        self: Arc<Self>,
        peer: PeerIdentity,
        method: Method,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        if method == Method::Ping {
            return Ok(encoded(&messages::Ping {}));
        }
        let server = self.leader().ok_or_else(|| match self.has_reached_database() {
            true => not_leader(),
            false => Status::new(
                Code::NotLeader,
                "this master waits for its database, which has not answered since the start; look at its log",
            ),
        })?;
        let answer = server.call(peer, method, message).await;
        match &answer {
            Err(refusal) if refusal.code() == Code::NotLeader => {
                self.lease_doubted.notify_one();
                answer
            }
            // The answer may be stale: another master may have changed the tables.
            Ok(_) if self.leader().is_none() => Err(not_leader()),
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests;

//! Processes of a master and a data server: runtime, listener and background tasks.

use crate::data::server::DataServer;
use crate::master::leadership::{MasterCandidate, OpenMeta};
use crate::monitoring;
use crate::monitoring::{DataMetrics, HttpEndpoint, MasterMetrics, MonitorPages};
use crate::net::listener::CallListener;
use crate::net::traffic::TrafficCounters;
use crate::process::home::ServerHome;
use crate::process::renewal::{HomeUpdater, MASTER_NAME, renew_own};
use crate::replica::heartbeat::ServerRefusal;
use crate::replica::host::{DataOptions, StoreSpace};
use crate::security::authority::CertificateAuthority;
use crate::security::join::{JoinError, JoinedMaster, JoiningServer, join, join_as_master};
use crate::security::token::JoinToken;
use copal_client::{CallError, CertificateClock, ConnectionPool, Masters, TlsCredentials, TlsIdentity};
use copal_data::{MemberIdentity, MemberStore};
use copal_master::{MasterError, MasterOptions, MetaError};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

/// Most threads that work on connections. A machine has a data server for each disk.
const MOST_THREADS: usize = 16;
/// Time limit for calls in progress when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No threads, or no sockets.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The listen address cannot be used.
    #[error(
        "cannot listen at {address}: {source}; give another address with --listen, or stop the process that has it"
    )]
    Listen {
        /// host:port.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The address for monitors cannot be used.
    #[error(
        "cannot answer monitors at {address}: {source}; give another address with --http, or `--http none`"
    )]
    Http {
        /// host:port.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The database cannot be used, or holds no cluster.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// Certificate or key cannot be used.
    #[error("{0}")]
    Identity(String),
}

fn runtime() -> Result<Runtime, StartError> {
    let threads = copal_client::connection_threads(MOST_THREADS);
    copal_client::probe_threads(threads)?;
    Ok(Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}

fn identity_error(error: impl std::fmt::Display) -> StartError {
    StartError::Identity(error.to_string())
}

async fn bind(
    address: &str,
    tls: Arc<tokio_rustls::rustls::ServerConfig>,
) -> Result<CallListener, StartError> {
    CallListener::bind(address, tls)
        .await
        .map_err(|source| StartError::Listen { address: address.to_owned(), source })
}

/// Serves monitors; `None`: the default port is in use, or monitoring is off.
fn answer_monitor(
    runtime: &Runtime,
    at: &HttpEndpoint,
    calls: &str,
    pages: impl MonitorPages,
) -> Result<Option<String>, StartError> {
    let calls = calls.parse().map_err(std::io::Error::other)?;
    let bound = runtime.block_on(monitoring::bind(at, calls));
    let Some(listener) = bound.map_err(|(address, source)| StartError::Http { address, source })? else {
        return Ok(None);
    };
    let address = listener.local_addr()?.to_string();
    runtime.spawn(monitoring::serve(listener, Arc::new(pages)));
    Ok(Some(address))
}

/// A running master.
pub struct MasterProcess {
    runtime: Runtime,
    address: String,
    candidate: Arc<MasterCandidate>,
    traffic: Arc<TrafficCounters>,
    /// Error of the database at the start, if the master waits for it.
    waits: Option<String>,
}

impl MasterProcess {
    /// Starts a master that listens at `listen` and is advertised as `advertise`. It leads if no other master
    /// does.
    /// # Errors
    /// All variants.
    pub fn start(
        open: OpenMeta,
        options: MasterOptions,
        authority: CertificateAuthority,
        listen: &str,
        advertise: &str,
    ) -> Result<MasterProcess, StartError> {
        let identity: TlsIdentity = authority.identity(MASTER_NAME).map_err(identity_error)?;
        let credentials = TlsCredentials::of_master(&identity).map_err(identity_error)?;
        let (inward, outward) = (
            credentials.master_tls().map_err(identity_error)?,
            credentials.client_tls().map_err(identity_error)?,
        );
        let runtime = runtime()?;
        let listener = runtime.block_on(bind(listen, inward))?;
        let address = listener.address()?.to_string();
        let connections = ConnectionPool::new(outward);
        runtime.spawn(renew_own(authority.clone(), credentials, identity.certificate));
        let candidate = MasterCandidate::new(open, options, authority, advertise.to_owned(), connections)?;
        // Tried before the start returns, so that the caller gets errors of the database. An unreachable
        // database may come back: a booting machine starts database and master in any order.
        let waits = match runtime.block_on(candidate.try_to_lead()) {
            Ok(_) => None,
            Err(MasterError::Meta(error @ MetaError::Away(_))) => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        runtime.spawn(Arc::clone(&candidate).run());
        let traffic = listener.traffic();
        runtime.spawn(listener.serve(Arc::clone(&candidate)));
        Ok(MasterProcess { runtime, address, candidate, traffic, waits })
    }

    /// Serves monitors; returns the address.
    /// # Errors
    /// The given address is in use, or is not an address of this machine.
    pub fn answer_monitor(&self, at: &HttpEndpoint) -> Result<Option<String>, StartError> {
        let pages =
            MasterMetrics { candidate: Arc::clone(&self.candidate), traffic: Arc::clone(&self.traffic) };
        answer_monitor(&self.runtime, at, &self.address, pages)
    }

    /// Joins the cluster of a token as a master at `advertise`.
    /// # Errors
    /// The token was refused, or no leader was reached.
    pub fn join(token: &JoinToken, advertise: &str, deadline: Duration) -> Result<JoinedMaster, JoinError> {
        let runtime = runtime().map_err(|_| JoinError::Malformed)?;
        runtime.block_on(join_as_master(token, advertise, deadline))
    }

    /// The address that it listens at.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.candidate.leader().is_some()
    }

    /// Error of the database that it still waits for; `None`: the database has named a leader.
    pub fn waits_for_database(&self) -> Option<&str> {
        let waits = self.waits.as_deref();
        waits.filter(|_| !self.candidate.has_reached_database())
    }

    /// Ends the process's tasks.
    pub fn stop(self) {
        self.runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// A running data server.
pub struct DataProcess {
    runtime: Runtime,
    ended: Receiver<ServerRefusal>,
    address: String,
    server: Arc<DataServer>,
    traffic: Arc<TrafficCounters>,
}

impl DataProcess {
    /// Starts a data server on a store that has booted as `identity`. Copies take at most
    /// `recovery_bytes_per_s`. `medium` is the kind of its disk: `hdd`, `ssd`; empty: not known.
    /// # Errors
    /// All variants.
    pub fn start(
        store: MemberStore,
        identity: MemberIdentity,
        home: &ServerHome,
        directory: &Path,
        room: Box<dyn StoreSpace>,
        recovery_bytes_per_s: u64,
        medium: &str,
    ) -> Result<DataProcess, StartError> {
        let own = home.identity();
        let credentials = TlsCredentials::new(&own).map_err(identity_error)?;
        let clock = CertificateClock::default();
        let (inward, outward) = (
            credentials.server_tls().map_err(identity_error)?,
            credentials.client_tls_with_clock(clock.clone()).map_err(identity_error)?,
        );
        let runtime = runtime()?;
        let listener = runtime.block_on(bind(&home.listen, inward))?;
        let address = listener.address()?.to_string();
        let connections = ConnectionPool::new(outward);
        let masters = Masters::new(&home.masters, connections.clone());
        let server = DataServer::new(
            store,
            identity,
            DataOptions {
                address: home.advertise.clone().unwrap_or_else(|| address.clone()),
                authority: own.authority.clone(),
                recovery_bytes_per_s,
                place: (home.zone.clone(), home.rack.clone()),
                medium: medium.to_owned(),
            },
            room,
            masters,
            connections,
        )
        .map_err(identity_error)?;
        clock.set_clock(Arc::clone(&server.host.map) as _);
        let (sender, ended) = channel();
        let traffic = listener.traffic();
        runtime.spawn(listener.serve(Arc::clone(&server)));
        let updater = HomeUpdater {
            host: Arc::clone(&server.host),
            home: home.clone(),
            directory: directory.to_owned(),
            credentials,
        };
        runtime.spawn(updater.run());
        let running = Arc::clone(&server);
        runtime.spawn(async move {
            if let Err(refused) = running.run().await {
                // Fails if the process is ending.
                let _ = sender.send(refused);
            }
        });
        Ok(DataProcess { runtime, ended, address, server, traffic })
    }

    /// Serves monitors; returns the address.
    /// # Errors
    /// The given address is in use, or is not an address of this machine.
    pub fn answer_monitor(&self, at: &HttpEndpoint) -> Result<Option<String>, StartError> {
        let pages = DataMetrics { host: Arc::clone(&self.server.host), traffic: Arc::clone(&self.traffic) };
        answer_monitor(&self.runtime, at, &self.address, pages)
    }

    /// The address that it listens at.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits up to `limit` for a refusal by the master; `None`: there was none.
    pub fn sent_away(&self, limit: Duration) -> Option<ServerRefusal> {
        self.ended.recv_timeout(limit).ok()
    }

    /// Ends the process's tasks. The caller closes the store afterwards.
    pub fn stop(self) {
        self.runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// Time limit for reporting a lost store.
const LOSS_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports to the master that the store of a server is lost, so that its groups get new copies at once.
/// Blocks for up to five seconds.
/// # Errors
/// The master was not reached, or certificate and key cannot be used.
pub fn report_lost_store(home: &ServerHome) -> Result<(), String> {
    let credentials = TlsCredentials::new(&home.identity()).map_err(|error| error.to_string())?;
    let tls = credentials.client_tls().map_err(|error| error.to_string())?;
    let masters = Masters::new(&home.masters, ConnectionPool::new(tls));
    // A heartbeat without a disk: the master refuses it, since another disk has joined.
    let beat = messages::Heartbeat {
        server_uuid: home.server_uuid().to_vec().into(),
        disk_uuid: vec![0; 16].into(),
        address: home.reached_at().to_owned(),
        ..messages::Heartbeat::default()
    };
    let runtime = runtime().map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(masters.call::<messages::HeartbeatReply>(
        Method::Heartbeat,
        &beat,
        LOSS_REPORT_TIMEOUT,
    ));
    match outcome {
        Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("the master took a heartbeat without a disk".to_owned()),
    }
}

impl ServerHome {
    /// Joins the cluster of a token and records the result; the caller writes the file.
    /// # Errors
    /// The token or the name was refused, or no master was reached.
    pub fn join(
        &mut self,
        token: &JoinToken,
        capacity_bytes: u64,
        deadline: Duration,
    ) -> Result<(), JoinError> {
        let joining = JoiningServer {
            name: self.name.clone(),
            address: self.reached_at().to_owned(),
            server_uuid: self.server_uuid(),
            disk_uuid: self.disk_uuid(),
            capacity_bytes,
            place: (self.zone.clone(), self.rack.clone()),
        };
        let runtime = runtime().map_err(|_| JoinError::Malformed)?;
        let (cluster, identity) = runtime.block_on(join(token, &joining, deadline))?;
        self.record_join(cluster, token.masters.clone(), &identity);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

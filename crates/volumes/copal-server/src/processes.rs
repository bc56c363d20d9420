//! A master or a data server as a process runs it: a runtime, a socket, and the tasks beside it.

use crate::{
    authority::Authority,
    data_server::{DataOptions, DataServer, Room},
    following::NotLetIn,
    homes::ServerHome,
    joining::{JoinError, JoinedMaster, Joining, SigningRequest, join, join_as_master},
    leading::{Candidate, OpenMeta},
    listener::Listener,
    monitoring::{self, HttpAt, OfData, OfMaster, Pages},
    token::JoinToken,
    traffic::Traffic,
    validity::Validity,
};
use copal_client::{
    CallError, CertificateClock, ConnectionPool, Masters, TlsCredentials, TlsIdentity, machine,
};
use copal_data::{MemberIdentity, MemberStore};
use copal_master::{MasterError, MasterOptions, MetaError};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_volume::ReferenceClock;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};

/// How long calls that are under way may take to end, once the process is told to.
const TO_END: Duration = Duration::from_secs(3);

/// Between two looks at certificates that may have to be renewed.
const LOOK: Duration = Duration::from_secs(60);
/// How long a master may take to sign one.
const TO_RENEW: Duration = Duration::from_secs(10);
/// Name in the certificate of a master.
const MASTER_NAME: &str = "master.copal";

/// Why a process does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No threads, or no sockets.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The address cannot be listened at.
    #[error(
        "cannot listen at {address}: {source}; give another address with --listen, or stop the process that has it"
    )]
    Listen {
        /// host:port.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The address for monitors cannot be listened at.
    #[error(
        "cannot answer monitors at {address}: {source}; give another address with --http, or `--http none`"
    )]
    Http {
        /// host:port.
        address: String,
        /// Why.
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
    const WORKERS: usize = 2;
    copal_client::probe_threads(WORKERS)?;
    Ok(Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?)
}

fn identity_error(error: impl std::fmt::Display) -> StartError {
    StartError::Identity(error.to_string())
}

async fn bind(address: &str, tls: Arc<tokio_rustls::rustls::ServerConfig>) -> Result<Listener, StartError> {
    Listener::bind(address, tls)
        .await
        .map_err(|source| StartError::Listen { address: address.to_owned(), source })
}

/// Answers a monitor; `None`: nobody asked for it, and the port is another's.
fn answer_monitor(
    runtime: &Runtime,
    at: &HttpAt,
    calls: &str,
    pages: impl Pages,
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

/// A master that runs.
pub struct MasterProcess {
    runtime: Runtime,
    address: String,
    candidate: Arc<Candidate>,
    traffic: Arc<Traffic>,
    /// Why it began to wait for its database.
    waits: Option<String>,
}

impl MasterProcess {
    /// Starts a master that listens at `listen` and is reached at `advertise`. It leads if no other does.
    /// # Errors
    /// All of them.
    pub fn start(
        open: OpenMeta,
        options: MasterOptions,
        authority: Authority,
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
        let candidate = Candidate::new(open, options, authority, advertise.to_owned(), connections)?;
        // Here, so that whoever starts it hears what is wrong with the database. One that is away may come
        // back: a machine that starts begins its database and its master in any order.
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

    /// Answers a monitor; returns where.
    /// # Errors
    /// The address that was given is taken, or none of this machine.
    pub fn answer_monitor(&self, at: &HttpAt) -> Result<Option<String>, StartError> {
        let pages = OfMaster { candidate: Arc::clone(&self.candidate), traffic: Arc::clone(&self.traffic) };
        answer_monitor(&self.runtime, at, &self.address, pages)
    }

    /// Joins the cluster of a token as a master that is reached at `advertise`.
    /// # Errors
    /// The token is refused, or no master that leads is reached.
    pub fn join(token: &JoinToken, advertise: &str, deadline: Duration) -> Result<JoinedMaster, JoinError> {
        let runtime = runtime().map_err(|_| JoinError::Malformed)?;
        runtime.block_on(join_as_master(token, advertise, deadline))
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.candidate.leading().is_some()
    }

    /// Why it has waited for its database since it was started; `None`: the database has said who leads.
    pub fn waits_for_database(&self) -> Option<&str> {
        let waits = self.waits.as_deref();
        waits.filter(|_| !self.candidate.has_reached_database())
    }

    /// Ends it.
    pub fn stop(self) {
        self.runtime.shutdown_timeout(TO_END);
    }
}

/// A data server that runs.
pub struct DataProcess {
    runtime: Runtime,
    ended: Receiver<NotLetIn>,
    address: String,
    server: Arc<DataServer>,
    traffic: Arc<Traffic>,
}

impl DataProcess {
    /// Starts a data server on a store that has booted as `identity`; copies take at most
    /// `recovery_bytes_per_s` of it; its disk is a `medium` (`hdd`, `ssd`; empty: not known).
    /// # Errors
    /// All of them.
    pub fn start(
        store: MemberStore,
        identity: MemberIdentity,
        home: &ServerHome,
        directory: &Path,
        room: Box<dyn Room>,
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
        clock.set_clock(Arc::clone(&server.map) as _);
        let (tell, ended) = channel();
        let traffic = listener.traffic();
        runtime.spawn(listener.serve(Arc::clone(&server)));
        let keeping = HomeKeeping {
            server: Arc::clone(&server),
            home: home.clone(),
            directory: directory.to_owned(),
            credentials,
        };
        runtime.spawn(keeping.run());
        let running = Arc::clone(&server);
        runtime.spawn(async move {
            if let Err(refused) = running.run().await {
                // Whoever started the process listens until it ends.
                let _ = tell.send(refused);
            }
        });
        Ok(DataProcess { runtime, ended, address, server, traffic })
    }

    /// Answers a monitor; returns where.
    /// # Errors
    /// The address that was given is taken, or none of this machine.
    pub fn answer_monitor(&self, at: &HttpAt) -> Result<Option<String>, StartError> {
        let pages = OfData { server: Arc::clone(&self.server), traffic: Arc::clone(&self.traffic) };
        answer_monitor(&self.runtime, at, &self.address, pages)
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits up to `limit` for the master to send this server away; `None`: it did not.
    pub fn sent_away(&self, limit: Duration) -> Option<NotLetIn> {
        self.ended.recv_timeout(limit).ok()
    }

    /// Ends it; the store is to be closed afterwards.
    pub fn stop(self) {
        self.runtime.shutdown_timeout(TO_END);
    }
}

/// What a data server writes down about itself while it runs: where masters are, and its certificate before
/// that ends.
struct HomeKeeping {
    server: Arc<DataServer>,
    home: ServerHome,
    directory: PathBuf,
    credentials: TlsCredentials,
}

impl HomeKeeping {
    async fn run(mut self) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut warning = DailyWarning::default();
        loop {
            let has_ended = tokio::select! {
                () = self.server.masters_changed.notified() => {
                    self.home.masters = self.server.masters.addresses();
                    self.write().await;
                    continue;
                }
                () = self.server.renew_now.notified() => true,
                _ = looks.tick() => false,
            };
            match self.renew(has_ended).await {
                Ok(()) => warning = DailyWarning::default(),
                Err(error) if warning.is_due(machine::now()) => {
                    tracing::warn!(error, "the certificate of this server could not be renewed yet");
                }
                Err(error) => tracing::debug!(error, "the certificate could not be renewed yet"),
            }
        }
    }

    async fn write(&self) -> bool {
        let (kept, to) = (self.home.clone(), self.directory.clone());
        match machine::run_blocking(move || kept.write(&to)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "what this server knows about itself could not be kept");
                false
            }
            Err(error) => {
                tracing::warn!(error, "what this server knows about itself could not be kept");
                false
            }
        }
    }

    /// Gets another certificate when half of the time of this one is over by the cluster's clock, or when a
    /// master said that it has ended: a server that was away for long learns that clock only behind it. The
    /// key is new, too. It is written down before it is shown.
    async fn renew(&mut self, has_ended: bool) -> Result<(), String> {
        let own = self.home.identity();
        let validity = Validity::of_pem(&own.certificate)?;
        let is_half_over = |now_ms| validity.is_half_over(now_ms) || validity.is_without_end();
        if !has_ended && !self.server.map.reference_ms().is_some_and(is_half_over) {
            return Ok(());
        }
        let drawn = SigningRequest::draw().map_err(|error| error.to_string())?;
        let request = messages::Renew { signing_request: drawn.request };
        let masters = &self.server.masters;
        let renewed: Result<messages::Renewed, _> = masters.call(Method::Renew, &request, TO_RENEW).await;
        let renewed = renewed.map_err(|error| error.to_string())?;
        let identity = TlsIdentity { certificate: renewed.certificate, key: drawn.key, ..own };
        let shown = TlsCredentials::new(&identity).map_err(|error| error.to_string())?;
        drop(shown);
        self.home.renewed(&identity);
        if self.write().await {
            self.credentials.replace(&identity).map_err(|error| error.to_string())?;
            tracing::info!("the certificate of this server was renewed");
            self.server.beat_now.notify_one();
        }
        Ok(())
    }
}

/// A warning about something that is tried each minute: once, and then once a day. A master of an older
/// release knows no renewal until it is replaced.
#[derive(Default)]
struct DailyWarning {
    last: Option<Instant>,
}

impl DailyWarning {
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Whether it is to be said at this moment; then it was.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= DailyWarning::DAY);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// Gives a master another certificate of its own authority before the one that it shows ends.
async fn renew_own(authority: Authority, credentials: TlsCredentials, mut certificate: String) {
    loop {
        tokio::time::sleep(LOOK).await;
        let is_due =
            Validity::of_pem(&certificate).is_ok_and(|validity| validity.is_half_over(machine::wall_ms()));
        if !is_due {
            continue;
        }
        let renewed = authority.identity(MASTER_NAME).map_err(|error| error.to_string());
        let shown = renewed.and_then(|identity| {
            credentials.replace(&identity).map_err(|error| error.to_string())?;
            Ok(identity.certificate)
        });
        match shown {
            Ok(renewed) => certificate = renewed,
            Err(error) => tracing::warn!(error, "the certificate of this master could not be renewed"),
        }
    }
}

/// How long a server without its store looks for a master to tell.
const TO_TELL_LOSS: Duration = Duration::from_secs(5);

/// Tells the master that the store of a server is gone: the groups of the server get other copies at once.
/// Blocks for five seconds at most.
/// # Errors
/// The master was not reached, or certificate and key cannot be used.
pub fn report_lost_store(home: &ServerHome) -> Result<(), String> {
    let credentials = TlsCredentials::new(&home.identity()).map_err(|error| error.to_string())?;
    let tls = credentials.client_tls().map_err(|error| error.to_string())?;
    let masters = Masters::new(&home.masters, ConnectionPool::new(tls));
    // No disk: the master compares it with the one that joined.
    let beat = messages::Heartbeat {
        server_uuid: home.server_uuid().to_vec().into(),
        disk_uuid: vec![0; 16].into(),
        address: home.reached_at().to_owned(),
        ..messages::Heartbeat::default()
    };
    let runtime = runtime().map_err(|error| error.to_string())?;
    let told =
        runtime.block_on(masters.call::<messages::HeartbeatReply>(Method::Heartbeat, &beat, TO_TELL_LOSS));
    match told {
        Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("the master took a heartbeat without a disk".to_owned()),
    }
}

impl ServerHome {
    /// Joins the cluster of a token, and remembers what came of it; to be written by who called.
    /// # Errors
    /// The token or the name is refused, or no master is reached.
    pub fn join(
        &mut self,
        token: &JoinToken,
        capacity_bytes: u64,
        deadline: Duration,
    ) -> Result<(), JoinError> {
        let joining = Joining {
            name: self.name.clone(),
            address: self.reached_at().to_owned(),
            server_uuid: self.server_uuid(),
            disk_uuid: self.disk_uuid(),
            capacity_bytes,
            place: (self.zone.clone(), self.rack.clone()),
        };
        let runtime = runtime().map_err(|_| JoinError::Malformed)?;
        let (cluster, identity) = runtime.block_on(join(token, &joining, deadline))?;
        self.joined(cluster, token.masters.clone(), &identity);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

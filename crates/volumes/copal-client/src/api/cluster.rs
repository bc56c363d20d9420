//! A client of a cluster: connects, and calls masters and data servers.
//!
//! Not here: volumes (`volumes`), files (`files`).

use crate::{
    net::{
        connection::CallError,
        connection_pool::ConnectionPool,
        machine,
        map_cache::MapCache,
        masters::Masters,
        profile::ClientProfile,
        tls::{TlsCredentials, TlsError, TlsIdentity},
        tls_time::CertificateClock,
    },
    operation::{
        run::OperationRunner,
        transfer::TransferMode,
        verify::{self, GroupComparison},
        writer_lease::{LeaseError, WriterLease},
    },
    permits::permit_source::PermitSource,
    read::available::ReplicaReader,
    routing::router::CallRouter,
};
use copal_proto::{
    Method,
    administration::{AdminRequest, reply_of},
    messages,
};
use copal_volume::{
    VolumeError,
    group::{DiskId, GroupId},
};
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Why a client could not connect to its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The profile's certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system starts no threads.
    #[error(transparent)]
    Threads(#[from] std::io::Error),
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness: {0}")]
    Random(String),
    /// No master answers.
    #[error("no master of the cluster answers: {0}")]
    Masters(#[source] CallError),
}

/// A client of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub(super) router: CallRouter,
    pub(super) reader: ReplicaReader,
    pub(super) operations: OperationRunner,
    credentials: TlsCredentials,
}

impl Cluster {
    /// Connects with a profile and fetches the map. Must run inside a runtime.
    /// # Errors
    /// `Tls`, `Random`; `Masters`: none answers until the deadline.
    pub async fn connect(profile: &ClientProfile, deadline: Duration) -> Result<Cluster, ConnectError> {
        let clock = CertificateClock::default();
        let credentials = TlsCredentials::new(&identity(profile))?;
        let tls = credentials.client_tls_with_clock(clock.clone())?;
        let connections = ConnectionPool::new(tls);
        let masters = Masters::new(&profile.masters, connections.clone());
        let map = Arc::new(MapCache::default());
        let first = messages::WatchMap { since: 0, wait_ms: 0 };
        let asked = machine::now();
        let first: messages::Map =
            masters.call(Method::WatchMap, &first, deadline).await.map_err(ConnectError::Masters)?;
        map.apply_answer(&first, asked);
        clock.set_clock(Arc::clone(&map) as _);
        masters.learn(&first.masters);
        let random = machine::draw().map_err(|error| ConnectError::Random(error.to_string()))?;
        let permits = PermitSource::new(profile.client.clone(), masters.clone(), Arc::clone(&map));
        let incarnation = permits.set_incarnation(random);
        let router = CallRouter::new(masters, connections, map, permits);
        let reader = ReplicaReader::new(router.clone());
        let operations = OperationRunner::new(router.clone(), reader.clone(), incarnation);
        Ok(Cluster { router, reader, operations, credentials })
    }

    /// Addresses of all masters that are known.
    pub fn masters(&self) -> Vec<String> {
        self.router.masters().addresses()
    }

    /// The map that this client follows.
    pub fn map(&self) -> &MapCache {
        self.router.map()
    }

    /// Requests another certificate with this client's name, for the key of a signing request, PEM.
    /// # Errors
    /// As the master refuses.
    pub async fn renew(&self, signing_request: &str, deadline: Duration) -> Result<String, CallError> {
        let request = messages::Renew { signing_request: signing_request.to_owned() };
        let renewed: messages::Renewed =
            self.router.masters().call(Method::Renew, &request, deadline).await?;
        Ok(renewed.certificate)
    }

    /// Shows the certificate of a renewed profile from now on.
    /// # Errors
    /// It cannot be used; the previous certificate stays in use.
    pub fn replace_certificate(&self, profile: &ClientProfile) -> Result<(), TlsError> {
        self.credentials.replace(&identity(profile))
    }

    /// Sends an operator's request to the master.
    /// # Errors
    /// As the master refuses; `OtherRelease`: it does not know the request, or its reply lacks a field.
    pub async fn administer<R: AdminRequest>(
        &self,
        request: &R,
        deadline: Duration,
    ) -> Result<R::Reply, CallError> {
        let reply: messages::AdministrationReply =
            self.router.masters().call(R::METHOD, request, deadline).await?;
        reply_of::<R>(&reply).map_err(|error| CallError::OtherRelease(error.to_string()))
    }

    /// Calls the server of a disk. While the server answers that it is busy, the call is repeated until `end`.
    /// # Errors
    /// All of them.
    pub async fn call<T: Message + Default>(
        &self,
        disk: DiskId,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Result<T, CallError> {
        self.router.call(disk, method, request, end).await
    }

    /// Compares the replicas of a group; reads every byte if `deep`.
    /// # Errors
    /// `NotFound`: there is no such group. `Incomplete`: no replica answered. `Denied`: this client may not.
    pub async fn verify(
        &self,
        group: GroupId,
        deep: bool,
        end: Instant,
    ) -> Result<GroupComparison, VolumeError> {
        verify::verify(&self.router, group, deep, end).await
    }

    /// Takes the writer lease below `path`; `holder` is shown to others. Must run inside a runtime.
    /// # Errors
    /// All of them.
    pub async fn take_lease(&self, path: &str, holder: &str) -> Result<WriterLease, LeaseError> {
        WriterLease::take(&self.operations, path, holder).await
    }

    /// Reads for which a second replica was called, because the first took longer than most.
    pub fn hedged_reads(&self) -> u64 {
        self.reader.hedged_reads()
    }

    /// Sets how the bytes of files are sent to the replicas from now on.
    pub fn set_transfer(&self, transfer: TransferMode) {
        self.operations.chains().set_transfer(transfer);
    }

    /// Bytes of frames that this client has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.router.connections().network_estimate().sent_bytes()
    }
}

fn identity(profile: &ClientProfile) -> TlsIdentity {
    TlsIdentity {
        authority: profile.authority.clone(),
        certificate: profile.certificate.clone(),
        key: profile.key.clone(),
    }
}

//! Connections between agents: the frames and TLS of a cluster, under an authority derived from a domain's
//! secret.
//!
//! Each holder of the secret derives the same authority and signs a certificate for itself, which does not
//! expire. So both sides of a connection hold the secret; names distinguish members and prove nothing.
//! Design: docs/design/backup.md#a-fleet
//!
//! Not here: the messages (`messages`), the accepting side (`server`).

use crate::fleet::messages::{NAME_BYTES, VERSION};
use copal_backup::Repository;
use copal_client::{AGENT_NAME, CallError, Connection, TlsCredentials, name_of_agent, probe_threads};
use copal_proto::{Method, messages};
use copal_server::CertificateAuthority;
use std::{
    fmt,
    future::Future,
    io,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinHandle};

/// Longest wait for a peer's hello.
const HELLO: Duration = Duration::from_secs(10);
/// Pauses between tries to connect, while each fails within [`SOON`].
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
const SOON: Duration = Duration::from_secs(1);
/// Most threads for connections: they decrypt and decode messages, and never block.
const MOST_WORKERS: usize = 4;
/// Most threads for blocking work, beside the workers.
const BLOCKING_THREADS: usize = 32;

/// Reason why an agent cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The agent does not answer, or refuses.
    #[error("{}", sentence(address, source))]
    Call {
        /// Its address.
        address: String,
        /// Error of the call.
        #[source]
        source: CallError,
    },
    /// Another member has this address.
    #[error("{address} is the agent {found:?}, not {wanted:?}: the addresses of the members are out of date")]
    OtherMember {
        /// The address.
        address: String,
        /// Its name.
        found: String,
        /// The expected name.
        wanted: String,
    },
    /// The peer has another version of the messages.
    #[error(
        "the agent at {address} is of another release (version {theirs} of its messages, here {VERSION}); run one release on all hosts of a fleet"
    )]
    Release {
        /// Its address.
        address: String,
        /// Its version.
        theirs: u32,
    },
    /// This process cannot create a certificate, or has no threads.
    #[error("no connections between agents: {0}")]
    Network(#[from] io::Error),
}

fn sentence(address: &str, error: &CallError) -> String {
    match error {
        // The error names the release.
        CallError::Unreachable { .. } | CallError::Broken { .. } => error.to_string(),
        CallError::Failed(failure) => format!("{address}: {}", failure.text),
        _ => format!("{address}: {error}"),
    }
}

/// Checks the hello of a peer.
/// # Errors
/// A sentence: the peer is of another release, or its name is invalid.
pub(crate) fn check_hello(hello: &messages::AgentHello) -> Result<(), String> {
    if hello.version != VERSION {
        return Err(format!(
            "this agent has version {VERSION} of the messages between agents, the caller version {}; run one release on all hosts of a fleet",
            hello.version
        ));
    }
    match hello.name.len() {
        0..=NAME_BYTES => Ok(()),
        bytes => Err(format!("the name of a member has {bytes} bytes, at most {NAME_BYTES} are taken")),
    }
}

struct NetworkState {
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    credentials: TlsCredentials,
}

impl Drop for NetworkState {
    fn drop(&mut self) {
        // A task of the runtime itself may drop the last one; it must not wait for the runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Certificate and threads of a process for connections to agents. Cheap to clone. Must not be waited on
/// inside a runtime.
#[derive(Clone)]
pub struct FleetNetwork(Arc<NetworkState>);

impl fmt::Debug for FleetNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never prints the keys.
        f.write_str("Network(..)")
    }
}

impl FleetNetwork {
    /// The network of a repository's agents.
    /// # Errors
    /// As [`FleetNetwork::new`].
    pub fn of(repository: &Repository) -> copal_backup::Result<FleetNetwork> {
        FleetNetwork::new(&repository.agents_secret()).map_err(|error| copal_backup::Error::Invalid {
            reason: format!("the agents cannot be reached from here: {error}"),
        })
    }

    /// The network of the holders of a domain's secret.
    /// # Errors
    /// The system provides no random numbers or no threads.
    pub fn new(secret: &[u8; 32]) -> io::Result<FleetNetwork> {
        let authority = CertificateAuthority::derived(secret, "Copal fleet").map_err(io::Error::other)?;
        let identity = authority.lasting_identity(AGENT_NAME).map_err(io::Error::other)?;
        let credentials = TlsCredentials::new(&identity).map_err(io::Error::other)?;
        Ok(FleetNetwork(Arc::new(NetworkState { runtime: Some(runtime("agent-network")?), credentials })))
    }

    pub(crate) fn credentials(&self) -> &TlsCredentials {
        &self.0.credentials
    }

    fn runtime(&self) -> &Runtime {
        self.0.runtime.as_ref().expect("it is there until the last owner is dropped")
    }

    /// Waits for work on the calling thread.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime().block_on(work)
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime().spawn(task)
    }

    /// Connects to the agent at `address` and sends our name; returns the connection and the name of the
    /// agent.
    /// # Errors
    /// It does not answer, belongs to another domain, or is of another release.
    pub async fn connect(&self, address: &str, name: &str) -> Result<(Connection, String), PeerError> {
        let began = Instant::now();
        let mut pauses = PAUSES.into_iter();
        let (connection, theirs) = loop {
            let error = match self.greet(address, name).await? {
                Ok(greeted) => break greeted,
                Err(error) => error,
            };
            match pauses.next() {
                // A server with many unauthenticated connections closes some, perhaps this one.
                Some(pause) if !matches!(error, CallError::Failed(_)) && began.elapsed() < SOON => {
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(PeerError::Call { address: address.to_owned(), source: error }),
            }
        };
        if theirs.version != VERSION {
            return Err(PeerError::Release { address: address.to_owned(), theirs: theirs.version });
        }
        Ok((connection, theirs.name))
    }

    async fn greet(
        &self,
        address: &str,
        name: &str,
    ) -> io::Result<Result<(Connection, messages::AgentHello), CallError>> {
        let tls = self.credentials().client_tls().map_err(io::Error::other)?;
        let connection = match Connection::open(address, name_of_agent(), tls).await {
            Ok(connection) => connection,
            Err(error) => return Ok(Err(error)),
        };
        let ours = messages::AgentHello { version: VERSION, name: name.to_owned() };
        let theirs = connection.call(Method::AgentHello, &ours, HELLO).await;
        Ok(theirs.map(|theirs| (connection, theirs)))
    }
}

/// A runtime with threads according to the machine.
/// # Errors
/// The system provides no threads.
pub(crate) fn runtime(name: &str) -> io::Result<Runtime> {
    let workers = available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
    probe_threads(workers)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name(name)
        .enable_all()
        .build()
}

//! A master and data servers on loopback, each on its own runtime, with disks in memory. A server can be
//! stopped and restarted with its data.

use copal_client::{
    ClientProfile, ClusterStore, ConnectionPool, Masters, TlsIdentity, client_tls, master_tls, server_tls,
};
use copal_data::{MemberIdentity, MemberStore};
use copal_device::{
    Device, Image,
    fault::{Fault, FaultDevice, FaultOptions, WriteFault},
};
use copal_master::{Master, MasterOptions, PoolConfig, SqliteStore};
use copal_proto::{
    administration::{AdminRequest, ClusterStatus},
    messages,
};
use copal_server::{
    CLIENT_NAME, CallListener, CertificateAuthority, DataOptions, DataServer, JoinRole, JoinToken,
    JoiningServer, MasterServer, SigningRequest, StoreSpace, join,
};
use copal_volume::{
    Clock, SystemClock,
    group::{Incarnation, Term},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Time limit of a wait; then the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The common clock of all data servers: the machine's, advanced.
#[derive(Default)]
pub(crate) struct MovedClock {
    ahead_ms: AtomicU64,
}

impl MovedClock {
    pub(crate) fn move_on(&self, by: Duration) {
        self.ahead_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for MovedClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms() + self.ahead_ms.load(Ordering::Relaxed)
    }
}

/// The clock of one data server: the common clock and an error.
pub(crate) struct ServersClock {
    of_all: Arc<MovedClock>,
    wrong_by_ms: AtomicI64,
}

impl ServersClock {
    pub(crate) fn be_wrong_by(&self, ms: i64) {
        self.wrong_by_ms.store(ms, Ordering::Relaxed);
    }
}

impl Clock for ServersClock {
    fn now_ms(&self) -> u64 {
        let wrong_by_ms = self.wrong_by_ms.load(Ordering::Relaxed);
        self.of_all.now_ms().saturating_add_signed(wrong_by_ms)
    }
}

/// Polls until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

pub(crate) struct Cluster {
    pub(crate) clock: Arc<MovedClock>,
    pub(crate) master_address: String,
    /// Identity of a master as a caller.
    pub(crate) master_identity: TlsIdentity,
    master: Option<Runtime>,
    pub(crate) servers: Vec<Server>,
    profile: ClientProfile,
}

pub(crate) struct Server {
    device: Arc<FaultDevice>,
    pub(crate) identity: TlsIdentity,
    of_cluster: [u8; 16],
    pub(crate) uuid: [u8; 16],
    address: String,
    pub(crate) clock: Arc<ServersClock>,
    running: Option<(Runtime, MemberStore)>,
}

struct Fixed;

impl StoreSpace for Fixed {
    fn bytes(&self) -> (u64, u64) {
        (0, 256 << 20)
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn disk() -> Arc<FaultDevice> {
    let options = FaultOptions { record: false, ..FaultOptions::default() };
    FaultDevice::with_options(Image::zeroed(256 << 20), options)
}

fn kv(device: &Arc<FaultDevice>) -> copal_kv::Store {
    let (objects, _) =
        copal_object::Store::open(Arc::clone(device) as _, &copal_object::OpenOptions::default()).unwrap();
    let options = copal_kv::Options { memory_bytes: 16 << 20, ..copal_kv::Options::default() };
    copal_kv::Store::open(objects, options).unwrap()
}

impl Cluster {
    pub(crate) fn start(servers: usize, groups: u32) -> Cluster {
        Cluster::with(servers, groups, MasterOptions::default())
    }

    pub(crate) fn with(servers: usize, groups: u32, options: MasterOptions) -> Cluster {
        let authority = CertificateAuthority::new("test").unwrap();
        let mut meta = SqliteStore::in_memory().unwrap();
        let pool = PoolConfig { replicas: 3, min_ack: 2, groups };
        Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
        let master = Master::open(Box::new(meta), options).unwrap();
        let runtime = runtime();
        let client = authority.identity(CLIENT_NAME).unwrap();
        let master_identity = authority.identity("master.copal").unwrap();
        let identity = master_identity.clone();
        let (address, token) = runtime.block_on(async {
            let listener = CallListener::bind("127.0.0.1:0", master_tls(&identity).unwrap()).await.unwrap();
            let address = listener.address().unwrap().to_string();
            let connections = ConnectionPool::new(client_tls(&identity).unwrap());
            let server = MasterServer::new(master, authority, address.clone(), connections);
            let token = {
                let server = Arc::clone(&server);
                move || server.draw_token(JoinRole::DataServer).unwrap()
            };
            tokio::spawn(Arc::clone(&server).run_ticks());
            tokio::spawn(listener.serve(server));
            (address, token)
        });
        let profile = ClientProfile::new(
            [7; 16],
            vec![address.clone()],
            client.authority.clone(),
            client.certificate.clone(),
            client.key.clone(),
        );
        let mut cluster = Cluster {
            clock: Arc::default(),
            master_address: address,
            master_identity,
            master: Some(runtime),
            servers: Vec::new(),
            profile,
        };
        for number in 1..=servers {
            let token = token().to_string().parse().unwrap();
            cluster.join(&format!("data{number}"), &token);
        }
        cluster
    }

    /// A token, from the master as an operator gets one.
    pub(crate) fn token(&self) -> JoinToken {
        self.administer(&messages::DrawToken { master: false }).token.parse().unwrap()
    }

    pub(crate) fn join(&mut self, name: &str, token: &JoinToken) {
        let device = disk();
        let formatted: Arc<dyn Device> = device.clone();
        copal_object::Store::mkfs(&formatted, &copal_object::MkfsOptions::default()).unwrap();
        let mut uuid = [0; 16];
        getrandom::fill(&mut uuid).unwrap();
        let address = free_address();
        let joining = JoiningServer {
            name: name.to_owned(),
            address: address.clone(),
            server_uuid: uuid,
            disk_uuid: uuid,
            capacity_bytes: 256 << 20,
            place: Default::default(),
        };
        let (of_cluster, identity) = runtime().block_on(join(token, &joining, PATIENCE)).unwrap();
        let clock =
            Arc::new(ServersClock { of_all: Arc::clone(&self.clock), wrong_by_ms: AtomicI64::new(0) });
        let store = MemberStore::open(kv(&device), Arc::clone(&clock) as _).unwrap();
        let whose = MemberIdentity {
            cluster: of_cluster,
            server: uuid,
            disk: uuid,
            incarnation: Incarnation(0),
            term: Term(0),
        };
        store.assign(&whose).unwrap();
        store.close().unwrap();
        self.servers.push(Server { device, identity, of_cluster, uuid, address, clock, running: None });
        let at = self.servers.len() - 1;
        self.run(at);
    }

    /// Starts a stopped server.
    pub(crate) fn run(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let store = MemberStore::open(kv(&server.device), Arc::clone(&server.clock) as _).unwrap();
        let identity = store.boot(getrandom::u64().unwrap()).unwrap();
        assert_eq!((identity.cluster, identity.server), (server.of_cluster, server.uuid));
        let runtime = runtime();
        runtime.block_on(async {
            let connections = ConnectionPool::new(client_tls(&server.identity).unwrap());
            let masters = Masters::new(std::slice::from_ref(&self.master_address), connections.clone());
            let listener = loop {
                match CallListener::bind(&server.address, server_tls(&server.identity).unwrap()).await {
                    Ok(listener) => break listener,
                    // The earlier listener has not released the address yet.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            let data = DataServer::new(
                store.clone(),
                identity,
                DataOptions {
                    address: server.address.clone(),
                    authority: server.identity.authority.clone(),
                    recovery_bytes_per_s: 1 << 30,
                    place: Default::default(),
                    medium: String::new(),
                },
                Box::new(Fixed),
                masters,
                connections,
            )
            .unwrap();
            tokio::spawn(listener.serve(Arc::clone(&data)));
            tokio::spawn(Arc::clone(&data).run_resync());
            tokio::spawn(Arc::clone(&data).run_gossip());
            tokio::spawn(data.run_heartbeat());
        });
        server.running = Some((runtime, store));
    }

    /// Opens the store of a stopped server.
    pub(crate) fn with_store_at_rest(&self, at: usize, look: impl FnOnce(&MemberStore)) {
        let server = &self.servers[at];
        let store = MemberStore::open(kv(&server.device), Arc::clone(&server.clock) as _).unwrap();
        look(&store);
        store.close().unwrap();
    }

    /// Stops a server: its sockets close, then its store.
    pub(crate) fn stop(&mut self, at: usize) {
        let (runtime, store) = self.servers[at].running.take().unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
        store.close().unwrap();
    }

    /// Fills the host of a server: its next write fails for lack of space, and its store stops.
    pub(crate) fn fill_host(&self, at: usize) {
        self.servers[at].device.inject(Fault::Write { skip: 0, fault: WriteFault::HostFull });
    }

    /// Gives the host of a server space again, and ends its process, whose store has stopped.
    pub(crate) fn free_host(&mut self, at: usize) {
        let (runtime, _) = self.servers[at].running.take().unwrap();
        runtime.shutdown_timeout(Duration::from_secs(5));
        self.servers[at].device = self.servers[at].device.reopen();
    }

    /// Freezes a server, as SIGSTOP does, until the returned sender is dropped.
    pub(crate) fn freeze(&mut self, at: usize) -> std::sync::mpsc::Sender<()> {
        let (go_on, stands) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let (runtime, _) = self.servers[at].running.as_ref().unwrap();
        // Its only thread for tasks.
        runtime.spawn(async move {
            tell.send(()).unwrap();
            let _ = stands.recv();
        });
        told.recv().unwrap();
        go_on
    }

    /// TLS of a client.
    pub(crate) fn client_tls(&self) -> Arc<tokio_rustls::rustls::ClientConfig> {
        client_tls(&TlsIdentity {
            authority: self.profile.authority.clone(),
            certificate: self.profile.certificate.clone(),
            key: self.profile.key.clone(),
        })
        .unwrap()
    }

    /// The store of a running server.
    pub(crate) fn store_of(&self, at: usize) -> &MemberStore {
        &self.servers[at].running.as_ref().unwrap().1
    }

    pub(crate) fn client(&self) -> ClusterStore {
        ClusterStore::connect(&self.profile, PATIENCE).unwrap()
    }

    /// A named client with rights below a path.
    pub(crate) fn named_client(&self, name: &str, path: &str, rights: &str) -> ClusterStore {
        ClusterStore::connect(&self.named_profile(name, path, rights), PATIENCE).unwrap()
    }

    /// The profile of a named client.
    pub(crate) fn named_profile(&self, name: &str, path: &str, rights: &str) -> ClientProfile {
        let drawn = SigningRequest::draw().unwrap();
        let certificate = self.administer(&messages::AddClient {
            name: name.to_owned(),
            path: path.to_owned(),
            rights: rights.to_owned(),
            signing_request: drawn.request,
        });
        let certificate = certificate.certificate;
        let masters = vec![self.master_address.clone()];
        let authority = self.profile.authority.clone();
        let mut profile = ClientProfile::new([7; 16], masters, authority, certificate, drawn.key);
        profile.client = Some(name.to_owned());
        profile
    }

    /// Sends an operator's request to the master.
    pub(crate) fn administer<R: AdminRequest>(&self, request: &R) -> R::Reply {
        let client = self.client();
        client.wait(client.cluster().administer(request, PATIENCE)).unwrap()
    }

    /// Declares a server lost.
    pub(crate) fn lose(&self, name: &str) {
        self.administer(&messages::LoseServer { name: name.to_owned() });
    }

    /// Kinds and texts of all events.
    pub(crate) fn events(&self) -> String {
        let events = self.administer(&messages::ListEvents { after: 0 }).events;
        events.iter().map(|event| format!("{}: {}\n", event.kind, event.text)).collect()
    }

    /// Waits until the cluster reports this health.
    pub(crate) fn wait_for(&self, health: &str) -> ClusterStatus {
        self.wait_until(health, |status| status.health == health)
    }

    /// Waits until a condition holds for the status of the cluster.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
        let client = self.client();
        let end = Instant::now() + PATIENCE;
        loop {
            let asked = client.cluster().administer(&messages::ShowStatus {}, PATIENCE);
            let status = client.wait(asked).unwrap();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < end, "never {what}: {status:#?}");
            client.wait(async { tokio::time::sleep(Duration::from_millis(50)).await });
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            if let Some((runtime, _)) = server.running.take() {
                runtime.shutdown_background();
            }
        }
        if let Some(runtime) = self.master.take() {
            runtime.shutdown_background();
        }
    }
}

/// A free address of this machine, which the server keeps over restarts.
fn free_address() -> String {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().to_string()
}

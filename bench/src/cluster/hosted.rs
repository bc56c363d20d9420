//! A cluster inside the suite's process, each server over its own throttled disk: real sockets, real TLS,
//! real stores. The throttle is a device below the product, which has no setting for it.
//!
//! Not here: clusters of processes (`running`).

use super::{
    running::free_address,
    throttled::{Speed, ThrottledDevice},
};
use anyhow::{Result, anyhow};
use copal_client::{
    ClientProfile, ClusterStore,
    administration::{AdminRequest, ClusterStatus, requests},
};
use copal_data::{MemberIdentity, MemberStore};
use copal_device::Device;
use copal_master::{Master, MasterOptions, PoolConfig, SqliteStore};
use copal_server::{
    CLIENT_NAME, CertificateAuthority, DataProcess, JoinToken, MasterProcess, ServerHome, StoreSpace,
};
use copal_volume::{
    SystemClock,
    group::{Incarnation, Term},
    random_incarnation,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const UUID: [u8; 16] = [0xb; 16];
const PATIENCE: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 1 << 30;
const ENGINE_BYTES: u64 = 64 << 20;
/// High enough that the disks limit the copies.
const RECOVERY_BYTES_PER_S: u64 = 200_000_000;

struct DiskRoom(copal_object::Store);

impl StoreSpace for DiskRoom {
    fn bytes(&self) -> (u64, u64) {
        let space = self.0.space();
        (space.live_bytes, 64 * DISK_BYTES)
    }
}

struct Started {
    process: DataProcess,
    store: MemberStore,
    objects: copal_object::Store,
}

struct Host {
    home: ServerHome,
    directory: PathBuf,
    device: Arc<ThrottledDevice>,
    started: Option<Started>,
}

/// Processes of the cluster.
pub(super) struct Hosted {
    master: Option<MasterProcess>,
    hosts: Vec<Host>,
    profile: ClientProfile,
    store: ClusterStore,
}

impl Drop for Hosted {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            // The suite has ended or failed.
            let _ = host.stop();
        }
        if let Some(master) = self.master.take() {
            master.stop();
        }
    }
}

impl Host {
    fn open(&self) -> Result<(copal_object::Store, MemberStore)> {
        let options = copal_object::OpenOptions::default();
        let device: Arc<dyn Device> = self.device.clone();
        let (objects, _) = copal_object::Store::open(device, &options)?;
        let options = copal_kv::Options { memory_bytes: ENGINE_BYTES, ..copal_kv::Options::default() };
        let kv = copal_kv::Store::open(objects.clone(), options)?;
        Ok((objects, MemberStore::open(kv, Arc::new(SystemClock))?))
    }

    fn start(&mut self) -> Result<()> {
        self.device.set_free(true);
        let (objects, store) = self.open()?;
        let identity = store.boot(random_incarnation().map_err(|error| anyhow!("{error}"))?)?;
        let room = Box::new(DiskRoom(objects.clone()));
        let process = DataProcess::start(
            store.clone(),
            identity,
            &self.home,
            &self.directory,
            room,
            RECOVERY_BYTES_PER_S,
            "",
        )?;
        self.device.set_free(false);
        self.started = Some(Started { process, store, objects });
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(started) = self.started.take() {
            started.process.stop();
            started.store.close()?;
            started.objects.close()?;
        }
        Ok(())
    }
}

impl Hosted {
    /// Starts a cluster, and waits until all its groups are in sync.
    pub(super) fn start(directory: &Path, servers: usize, pool: PoolConfig, speed: Speed) -> Result<Hosted> {
        std::fs::create_dir_all(directory)?;
        let authority = CertificateAuthority::new("bench")?;
        let database = directory.join("master.db");
        Master::create_cluster(&mut SqliteStore::open(&database)?, UUID, pool)?;
        let listen = free_address()?;
        let open: copal_server::OpenMeta = Box::new(move || Ok(Box::new(SqliteStore::open(&database)?) as _));
        let options = MasterOptions { first_servers: Some(servers), ..MasterOptions::default() };
        let master = MasterProcess::start(open, options, authority.clone(), &listen, &listen)?;
        let client = authority.identity(CLIENT_NAME)?;
        let profile =
            ClientProfile::new(UUID, vec![listen], client.authority, client.certificate, client.key);
        let mut hosted = Hosted {
            master: Some(master),
            hosts: Vec::new(),
            store: ClusterStore::connect(&profile, PATIENCE)?,
            profile,
        };
        for at in 0..servers {
            hosted.add(directory, at, speed)?;
        }
        hosted.wait_healthy()?;
        anyhow::ensure!(
            hosted.status()?.servers.iter().all(|server| server.groups > 0),
            "nothing to measure: some servers hold no group, since a new cluster places its groups on the servers that join first"
        );
        Ok(hosted)
    }

    fn add(&mut self, directory: &Path, at: usize, speed: Speed) -> Result<()> {
        let drawn = self.administer(&requests::DrawToken { master: false })?;
        let token: JoinToken = drawn.token.parse().map_err(|error| anyhow!("{error}"))?;
        let listen = free_address()?;
        let home = ServerHome::draw(&format!("data{at}"), &listen, None);
        let mut home = home.map_err(|error| anyhow!(error))?;
        home.join(&token, 64 * DISK_BYTES, PATIENCE)?;
        let directory = directory.join(&home.name);
        std::fs::create_dir_all(&directory)?;
        let device = ThrottledDevice::make(DISK_BYTES, speed);
        let whole: Arc<dyn Device> = device.clone();
        copal_object::Store::mkfs(&whole, &copal_object::MkfsOptions::default())?;
        let mut host = Host { home, directory, device, started: None };
        let (objects, store) = host.open()?;
        store.assign(&MemberIdentity {
            cluster: UUID,
            server: host.home.server_uuid(),
            disk: host.home.disk_uuid(),
            incarnation: Incarnation(0),
            term: Term(0),
        })?;
        store.close()?;
        objects.close()?;
        host.start()?;
        self.hosts.push(host);
        Ok(())
    }

    /// A client with its own connections.
    pub(super) fn client(&self) -> Result<ClusterStore> {
        Ok(ClusterStore::connect(&self.profile, PATIENCE)?)
    }

    pub(super) fn store(&self) -> &ClusterStore {
        &self.store
    }

    /// Ends a server; it refuses calls from then on.
    pub(super) fn stop(&mut self, at: usize) -> Result<()> {
        self.hosts[at].stop()
    }

    pub(super) fn start_again(&mut self, at: usize) -> Result<()> {
        self.hosts[at].start()
    }

    fn administer<R: AdminRequest>(&self, request: &R) -> Result<R::Reply> {
        Ok(self.store.wait(self.store.cluster().administer(request, PATIENCE))?)
    }

    fn status(&self) -> Result<ClusterStatus> {
        self.administer(&requests::ShowStatus {})
    }

    pub(super) fn wait_healthy(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            if status.health == "healthy" {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < PATIENCE, "not whole: {}", status.sentence);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

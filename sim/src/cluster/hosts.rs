//! Masters, data servers and clients on their own hosts, made of product code.

use super::{
    database::Database,
    network::Network,
    process::{Host, Process},
    world::World,
};
use anyhow::{Context, Result, anyhow};
use copal_client::{
    ClientProfile, Cluster, ConnectionPool, Masters, TlsIdentity, client_tls, name_of_master, name_of_server,
};
use copal_data::{MemberIdentity, MemberStore};
use copal_device::{
    Device, Image, crash,
    fault::{Fault, FaultDevice, FlushFault},
};
use copal_master::MasterOptions;
use copal_server::{
    CLIENT_NAME, CallListener, CertificateAuthority, DataOptions, DataServer, JoinToken, JoiningServer,
    MasterCandidate, StoreSpace, join,
};
use copal_volume::{
    Clock,
    group::{Epoch, GroupId, Incarnation, Role, Term},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, Ordering},
    },
    time::Duration,
};

pub(super) const CLUSTER: [u8; 16] = [7; 16];
const DISK_BYTES: u64 = 64 << 20;
const ENGINE_BYTES: u64 = 8 << 20;
/// Free space on a disk that the simulation has filled.
const LEFT_BYTES: u64 = 64 << 10;
/// Number of flushes that a lying disk acknowledges without doing them.
const LIES: usize = 100;
/// Time limit of joining and connecting.
const PATIENCE: Duration = Duration::from_secs(120);
/// Numbers of hosts: masters from 1, data servers from 11, clients from 101.
const FIRST_DATA: u32 = 11;
const FIRST_CLIENT: u32 = 101;

/// Identities of a simulated cluster.
pub(super) struct Names {
    pub(super) authority: CertificateAuthority,
    pub(super) client: TlsIdentity,
    pub(super) masters: Vec<String>,
}

impl Names {
    pub(super) fn new(masters: u32) -> Result<Names> {
        let authority = CertificateAuthority::new("simulated")?;
        let client = authority.identity(CLIENT_NAME)?;
        Ok(Names { authority, client, masters: (1..=masters).map(address).collect() })
    }

    fn profile(&self) -> ClientProfile {
        let TlsIdentity { authority, certificate, key } = self.client.clone();
        ClientProfile::new(CLUSTER, self.masters.clone(), authority, certificate, key)
    }
}

fn address(host: u32) -> String {
    format!("10.0.0.{host}:7000")
}

pub(super) fn certificate(identity: &TlsIdentity) -> Result<Arc<[u8]>> {
    let der = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
    Ok(Arc::from(der.map_err(|error| anyhow!("{error}"))?.as_ref()))
}

/// A master.
pub(super) struct MasterHost {
    pub(super) host: Host,
    pub(super) number: u32,
    database: Database,
    options: MasterOptions,
    identity: TlsIdentity,
    authority: CertificateAuthority,
    pub(super) process: Option<Arc<Process>>,
}

impl MasterHost {
    pub(super) fn new(
        names: &Names,
        number: u32,
        database: &Database,
        options: MasterOptions,
    ) -> Result<MasterHost> {
        Ok(MasterHost {
            host: Host::default(),
            number,
            database: database.clone(),
            options,
            identity: names.authority.identity("master.copal")?,
            authority: names.authority.clone(),
            process: None,
        })
    }

    /// Starts it, unless it is running.
    pub(super) async fn start(&mut self, network: &Arc<Network>) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let shown = certificate(&self.identity)?;
        let process = Process::start(network, self.number, &self.host, Some(shown));
        let address = address(self.number);
        let gate = network.listen(&process, &address, name_of_master());
        let database = self.database.clone();
        let connections = ConnectionPool::new(client_tls(&self.identity)?);
        let (options, authority) = (self.options, self.authority.clone());
        let begun = process.run(async move {
            let open = Box::new(move || Ok(Box::new(database.session()) as _));
            let socket = address.parse().context("an address")?;
            let candidate = MasterCandidate::new(open, options, authority, address, connections)?;
            copal_client::machine::spawn(Arc::clone(&candidate).run());
            copal_client::machine::spawn(CallListener::from_source(gate, socket).serve(candidate));
            Ok::<_, anyhow::Error>(())
        });
        begun.await.context("it lives")??;
        self.process = Some(process);
        Ok(())
    }

    /// Kills it.
    pub(super) fn kill(&mut self, network: &Network) {
        if let Some(process) = self.process.take() {
            process.kill();
            network.reset(&process);
        }
    }
}

/// Wall clock of a host.
struct HostClock {
    world: Arc<World>,
    skew_ms: Arc<AtomicI64>,
}

impl Clock for HostClock {
    fn now_ms(&self) -> u64 {
        let skew = self.skew_ms.load(Ordering::Relaxed);
        self.world.wall_ms().saturating_add_signed(skew)
    }
}

/// Space of a disk; another program may occupy a part of it.
struct DiskRoom {
    objects: copal_object::Store,
    taken_percent: Arc<AtomicU8>,
}

impl StoreSpace for DiskRoom {
    fn bytes(&self) -> (u64, u64) {
        let space = self.objects.space();
        let taken = space.size_bytes / 100 * u64::from(self.taken_percent.load(Ordering::Relaxed));
        (space.live_bytes.max(taken), space.size_bytes)
    }
}

/// A running data server.
pub(super) struct Running {
    pub(super) process: Arc<Process>,
    pub(super) store: MemberStore,
    objects: copal_object::Store,
    /// The part of its disk that the simulation has filled.
    taken: Option<copal_object::SpaceReservation>,
}

impl Running {
    /// Fills its disk up to the engine's reserve, or frees that space again.
    fn fill(&mut self, is_filled: bool) {
        self.taken = None;
        if is_filled {
            let mut left = self.objects.room().bytes;
            // Fragmented space may not be available in one reservation.
            while self.taken.is_none() && left > LEFT_BYTES {
                self.taken = self.objects.reserve(left - LEFT_BYTES).ok();
                left -= left / 8;
            }
        }
    }
}

/// Kind of an unplanned end of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed: all its writes are there.
    Kill,
    /// The power is cut: an unflushed write is there, missing or torn.
    PowerCut,
}

/// A data server and its disk.
pub(super) struct DataHost {
    pub(super) host: Host,
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) uuid: [u8; 16],
    pub(super) device: Arc<FaultDevice>,
    pub(super) taken_percent: Arc<AtomicU8>,
    /// Whether its disk is filled up to the engine's reserve; this survives restarts.
    is_filled: bool,
    identity: Option<TlsIdentity>,
    masters: Vec<String>,
    pub(super) running: Option<Running>,
    /// The ended process, whose connections stay silent until the host is back.
    silent: Option<Arc<Process>>,
    /// Its disk is lost for good.
    pub(super) is_lost: bool,
    /// The newest term, epochs and roles seen at it.
    seen: (Term, BTreeMap<GroupId, (Epoch, Role)>),
}

impl DataHost {
    pub(super) fn new(world: &World, names: &Names, at: u32) -> DataHost {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&world.draw().to_be_bytes());
        uuid[8..].copy_from_slice(&world.draw().to_be_bytes());
        DataHost {
            host: Host::default(),
            number: FIRST_DATA + at,
            name: format!("data{at}"),
            uuid,
            device: FaultDevice::from_image(Image::zeroed(DISK_BYTES), world.draw()),
            taken_percent: Arc::default(),
            is_filled: false,
            identity: None,
            masters: names.masters.clone(),
            running: None,
            silent: None,
            is_lost: false,
            seen: (Term(0), BTreeMap::new()),
        }
    }

    fn open(&self, world: &Arc<World>) -> Result<(copal_object::Store, MemberStore)> {
        let device: Arc<dyn Device> = self.device.clone();
        let (objects, _) = copal_object::Store::open(device, &copal_object::OpenOptions::default())?;
        let options =
            copal_kv::Options { memory_bytes: ENGINE_BYTES, threads: false, ..copal_kv::Options::default() };
        let kv = copal_kv::Store::open(objects.clone(), options)?;
        let clock = HostClock { world: Arc::clone(world), skew_ms: Arc::clone(&self.host.skew_ms) };
        Ok((objects, MemberStore::open(kv, Arc::new(clock))?))
    }

    /// Formats its disk and joins the cluster.
    pub(super) async fn join(&mut self, network: &Arc<Network>, token: JoinToken) -> Result<()> {
        let device: Arc<dyn Device> = self.device.clone();
        copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default())?;
        let joining = JoiningServer {
            name: self.name.clone(),
            address: address(self.number),
            server_uuid: self.uuid,
            disk_uuid: self.uuid,
            capacity_bytes: DISK_BYTES,
            place: Default::default(),
        };
        let joining_process = Process::start(network, self.number, &self.host, None);
        let joined = joining_process.run(async move { join(&token, &joining, PATIENCE).await });
        let (cluster, identity) = joined.await.context("it lives")??;
        joining_process.kill();
        let (objects, store) = self.open(&network.world)?;
        store.assign(&MemberIdentity {
            cluster,
            server: self.uuid,
            disk: self.uuid,
            incarnation: Incarnation(0),
            term: Term(0),
        })?;
        store.close()?;
        objects.close()?;
        self.identity = Some(identity);
        Ok(())
    }

    /// Starts it on its disk, unless it is running.
    pub(super) async fn start(&mut self, network: &Arc<Network>) -> Result<()> {
        if self.running.is_some() || self.is_lost {
            return Ok(());
        }
        if let Some(before) = self.silent.take() {
            network.reset(&before);
        }
        let world = &network.world;
        let identity = self.identity.as_ref().context("it has joined")?;
        let (objects, store) = self.open(world).with_context(|| self.name.clone())?;
        let mut running = Running {
            process: Process::start(network, self.number, &self.host, Some(certificate(identity)?)),
            store: store.clone(),
            objects: objects.clone(),
            taken: None,
        };
        running.fill(self.is_filled);
        let booted = store.boot(world.draw())?;
        let process = Arc::clone(&running.process);
        let address = address(self.number);
        let gate = network.listen(&process, &address, name_of_server(&self.uuid));
        let connections = ConnectionPool::new(client_tls(identity)?);
        let (masters, data) = (self.masters.clone(), store.clone());
        let room = Box::new(DiskRoom { objects, taken_percent: Arc::clone(&self.taken_percent) });
        let (tells, name, authority) = (Arc::clone(world), self.name.clone(), identity.authority.clone());
        let begun = process.run(async move {
            let masters = Masters::new(&masters, connections.clone());
            let socket = address.parse().context("an address")?;
            let options = DataOptions {
                address,
                authority,
                recovery_bytes_per_s: 64 << 20,
                place: Default::default(),
                medium: String::new(),
            };
            let server = DataServer::new(data, booted, options, room, masters, connections)?;
            copal_client::machine::spawn(CallListener::from_source(gate, socket).serve(Arc::clone(&server)));
            copal_client::machine::spawn(async move {
                if let Err(refused) = server.run().await {
                    tells.log(|| format!("{name} is sent away: {refused}"));
                }
            });
            Ok::<_, anyhow::Error>(())
        });
        begun.await.context("it lives")??;
        self.running = Some(running);
        Ok(())
    }

    /// Fills its disk up to the engine's reserve, or frees that space again; also for later starts.
    pub(super) fn fill(&mut self, is_filled: bool) {
        self.is_filled = is_filled;
        if let Some(running) = &mut self.running {
            running.fill(is_filled);
        }
    }

    /// Ends it.
    pub(super) async fn end(&mut self, network: &Arc<Network>, end: End) {
        let Some(running) = self.running.take() else {
            return;
        };
        let process = running.process;
        match end {
            End::Kill => network.reset(&process),
            End::PowerCut => {
                network.silence(&process);
                self.silent = Some(Arc::clone(&process));
            }
        }
        process.kill();
        // From here on no dropped object can write to the disk.
        let reopened = self.device.reopen();
        self.device = match end {
            End::Kill => reopened,
            End::PowerCut => {
                let history = reopened.history();
                let limits = crash::StateLimits {
                    samples: 16,
                    seed: network.world.draw(),
                    ..crash::StateLimits::default()
                };
                let states = crash::states(&history, history.len(), &limits);
                let left = states.get(network.world.below(states.count_all()));
                let image = left.map_or_else(|| reopened.image(), |state| state.image().clone());
                FaultDevice::from_image(image, network.world.draw())
            }
        };
        drop((running.taken, running.store, running.objects));
        // Tasks are dropped at their next poll.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    /// Makes its disk acknowledge the next flushes without doing them.
    pub(super) fn lie(&self) {
        for _ in 0..LIES {
            self.device.inject(Fault::Flush { skip: 0, fault: FlushFault::Lie });
        }
    }

    /// Whether its disk refuses writes until it is reopened.
    pub(super) fn is_broken(&self) -> bool {
        takes_no_writes(&self.device)
    }

    /// I5: checks that epochs and term never fall.
    pub(super) fn look_at_epochs(&mut self, world: &World) -> Result<()> {
        let Some(running) = self.running.as_ref().filter(|_| !self.is_broken()) else {
            return Ok(());
        };
        // A broken disk is not a witness.
        let (Ok(memberships), Ok(Some(identity))) = (running.store.memberships(), running.store.identity())
        else {
            return Ok(());
        };
        anyhow::ensure!(
            identity.term >= self.seen.0,
            "I5: {} went back from term {} to {}",
            self.name,
            self.seen.0.0,
            identity.term.0
        );
        self.seen.0 = identity.term;
        // A group that the server left may be joined again.
        let present: BTreeMap<GroupId, (Epoch, Role)> =
            memberships.iter().map(|own| (own.group, (own.epoch, own.role))).collect();
        for (group, (epoch, role)) in &present {
            let (before, was) = self.seen.1.get(group).copied().unzip();
            let before = before.unwrap_or_default();
            if was != Some(*role) {
                world.log(|| format!("{} is {role:?} in group {group}, epoch {epoch}", self.name));
            }
            anyhow::ensure!(
                *epoch >= before,
                "I5: {} went back from epoch {before} of group {group} to {epoch}",
                self.name
            );
        }
        self.seen.1 = present;
        Ok(())
    }
}

/// A client.
pub(super) struct ClientHost {
    pub(super) host: Host,
    pub(super) number: u32,
    profile: ClientProfile,
    identity: TlsIdentity,
}

impl ClientHost {
    pub(super) fn new(names: &Names, at: u32) -> ClientHost {
        ClientHost {
            host: Host::default(),
            number: FIRST_CLIENT + at,
            profile: names.profile(),
            identity: names.client.clone(),
        }
    }

    /// A connected client process; `None`: it could not connect in time.
    pub(super) async fn start(&self, network: &Arc<Network>) -> Result<Option<(Arc<Process>, Cluster)>> {
        let process = Process::start(network, self.number, &self.host, Some(certificate(&self.identity)?));
        let profile = self.profile.clone();
        let connected = process.run(async move { Cluster::connect(&profile, PATIENCE).await });
        match connected.await {
            Some(Ok(cluster)) => Ok(Some((process, cluster))),
            Some(Err(error)) => {
                network.world.log(|| format!("client {} does not connect: {error}", self.number));
                process.kill();
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

/// Whether a disk has failed since it was opened.
pub(super) fn takes_no_writes(device: &FaultDevice) -> bool {
    // Removing no bytes is a write without an effect.
    device.cut(device.geometry().size).is_err()
}

//! One run of one seed: a cluster starts, clients use it and faults hit it. Then all faults are repaired, and
//! all replicas must become equal.

use super::{
    checks,
    database::Database,
    faults::Mending,
    hosts::{CLUSTER, ClientHost, DataHost, End, MasterHost, Names},
    intruder::Intruder,
    network::Network,
    process::Process,
    workload::{self, Work},
    world::World,
};
use anyhow::{Context, Result, ensure};
use copal_client::{Cluster, administration::requests, machine};
use copal_master::{MasterOptions, PoolConfig};
use copal_volume::{
    VolumeId, VolumeOptions,
    group::{GroupId, View, invariants::KnownResult},
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Runtime;

const MASTERS: u32 = 2;
const SERVERS: u32 = 5;
const CLIENTS: u32 = 4;
const GROUPS: u32 = 4;
/// One more than groups, so that two share one.
const VOLUMES: usize = 5;
/// Silence after which a server has failed, and after which its replicas are replaced; ms.
const TIMES: MasterOptions = MasterOptions {
    failed_after_ms: 10_000,
    permanent_after_ms: 30 * 60_000,
    copies_at_once: None,
    first_servers: None,
    after_restore: false,
};
/// Time limit for the replicas to become equal after the last repair.
const TO_SETTLE: Duration = Duration::from_secs(45 * 60);

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) seed: u64,
    /// Virtual time with faults.
    pub(super) minutes: u64,
    pub(super) faults: Faults,
    /// Disks lose flushed data at power cuts: the run must lose data.
    pub(super) with_lying_disks: bool,
}

/// Kinds of faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    /// No faults.
    None,
    /// Power cuts: of one server, of all, and in the middle of a write.
    PowerCuts,
    /// Full disks; their servers are killed and lose power.
    FullDisks,
    /// All kinds.
    All,
}

/// Result of a run.
pub(super) struct Outcome {
    /// Hash of all events.
    pub(super) hash: u64,
    pub(super) violations: Vec<String>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) lines: Vec<String>,
    pub(super) operations: usize,
}

/// State of a run.
pub(super) struct Simulation {
    pub(super) world: Arc<World>,
    pub(super) network: Arc<Network>,
    pub(super) names: Names,
    pub(super) database: Database,
    pub(super) masters: Vec<MasterHost>,
    pub(super) data: Vec<DataHost>,
    pub(super) work: Arc<Work>,
    /// Host numbers of the clients.
    pub(super) clients: Vec<u32>,
    /// Offsets of their clocks, ms.
    pub(super) client_clocks: Vec<Arc<AtomicI64>>,
    /// The operator's process, on a host without faults.
    pub(super) operator: (Arc<Process>, Cluster),
    pub(super) mendings: Vec<Mending>,
    /// Number of servers that may still join.
    pub(super) spares: u32,
    pub(super) lost: Option<usize>,
    pub(super) drained: Option<usize>,
    /// Newest view seen of each group.
    pub(super) views: BTreeMap<GroupId, View>,
}

/// Runs one seed on its own runtime.
/// # Errors
/// The cluster could not be created: a fault of the simulator.
pub(super) fn run(trial: &Trial) -> Result<Outcome> {
    virtual_time()?.block_on(try_one(trial))
}

/// One thread; its clock advances when all tasks wait.
pub(super) fn virtual_time() -> Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    Ok(runtime.enable_time().start_paused(true).build()?)
}

async fn try_one(trial: &Trial) -> Result<Outcome> {
    let world = World::new(trial.seed);
    let _logs = world.write_down_logs();
    let mut simulation = Simulation::new(&world).await?;
    let mut violations = or_violation(simulation.use_and_hurt(trial).await);
    if violations.is_empty() {
        violations = or_violation(simulation.settle().await);
    }
    simulation.end().await;
    let history = simulation.work.history.lock();
    violations.extend(history.violations());
    let mut counts = BTreeMap::new();
    let held = |known: KnownResult| u64::from(known == KnownResult::Complete);
    let creates = history.creates.iter().map(|create| held(create.known)).sum();
    counts.insert("creates that were acknowledged", creates);
    let deletes = history.deletes.iter().map(|delete| held(delete.known)).sum();
    counts.insert("deletes that were acknowledged", deletes);
    for _ in 0..history.shown_without_promise() {
        world.sometimes("a strict read showed a file without an acknowledged create");
    }
    counts.extend(world.counts());
    Ok(Outcome {
        hash: world.hash(),
        violations,
        counts,
        lines: world.lines(),
        operations: history.creates.len() + history.deletes.len() + history.reads.len() + history.lists.len(),
    })
}

/// A failed reopening of a disk counts as a violation.
fn or_violation(found: Result<Vec<String>>) -> Vec<String> {
    found.unwrap_or_else(|error| vec![format!("it does not go on: {error:#}")])
}

impl Simulation {
    /// A cluster with all replicas in sync and a few volumes.
    pub(super) async fn new(world: &Arc<World>) -> Result<Simulation> {
        let network = Network::new(world);
        let names = Names::new(MASTERS)?;
        let pool = PoolConfig { replicas: 3, min_ack: 2, groups: GROUPS };
        let database = Database::new(world, CLUSTER, pool, &names.masters)?;
        let mut masters = Vec::new();
        for number in 1..=MASTERS {
            let mut master = MasterHost::new(&names, number, &database, TIMES)?;
            master.start(&network).await?;
            masters.push(master);
        }
        let operator = ClientHost::new(&names, 99).start(&network).await?.context("a master answers")?;
        let work = Work {
            network: Arc::clone(&network),
            volumes: Vec::new(),
            history: Mutex::default(),
            is_over: AtomicBool::new(false),
            kill_one: AtomicBool::new(false),
        };
        let mut simulation = Simulation {
            world: Arc::clone(world),
            network,
            names,
            database,
            masters,
            data: Vec::new(),
            work: Arc::new(work),
            clients: Vec::new(),
            client_clocks: Vec::new(),
            operator,
            mendings: Vec::new(),
            spares: 0,
            lost: None,
            drained: None,
            views: BTreeMap::new(),
        };
        simulation.spares = SERVERS;
        while simulation.spares > 0 {
            simulation.add_server().await?;
        }
        simulation.spares = 1;
        for _ in 0..1000 {
            if simulation.health().await.as_deref() == Some("healthy") {
                let volumes = simulation.make_volumes().await?;
                let work = Arc::get_mut(&mut simulation.work).context("no client works yet")?;
                work.volumes = volumes;
                return Ok(simulation);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let status = simulation.administer(requests::ShowStatus {}).await;
        anyhow::bail!("the replicas of a cluster without faults never became in sync: {status:?}")
    }

    /// Ends all data servers. A store that is only dropped would leave its operations in the queue of its
    /// disk, which nothing drives any more, and so keep store and disk in memory.
    pub(super) async fn end(&mut self) {
        for data in &mut self.data {
            data.end(&self.network, End::Kill).await;
        }
    }

    async fn make_volumes(&self) -> Result<Vec<VolumeId>> {
        let mut volumes = Vec::new();
        for number in 0..VOLUMES {
            let (cluster, name) = (self.operator.1.clone(), format!("volume{number}"));
            let end = machine::now() + Duration::from_secs(30);
            let made = self
                .operator
                .0
                .run(async move { cluster.create_volume("", &name, &VolumeOptions::default(), end).await });
            volumes.push(made.await.context("the operator lives")??);
        }
        Ok(volumes)
    }

    /// The master's report on the cluster's health.
    async fn health(&self) -> Option<String> {
        Some(self.administer(requests::ShowStatus {}).await?.health)
    }

    async fn use_and_hurt(&mut self, trial: &Trial) -> Result<Vec<String>> {
        let mut clients = Vec::new();
        for at in 0..CLIENTS {
            let client = ClientHost::new(&self.names, at);
            self.clients.push(client.number);
            self.client_clocks.push(Arc::clone(&client.host.skew_ms));
            clients.push(tokio::spawn(workload::drive(Arc::clone(&self.work), client)));
        }
        let intruder = match trial.faults {
            Faults::All => {
                let intruder = Intruder::new(&self.work, &self.names, &self.operator).await?;
                Some(tokio::spawn(intruder.drive()))
            }
            _ => None,
        };
        let end_ms = self.world.now_ms() + trial.minutes * 60_000;
        let mut violations = Vec::new();
        while self.world.now_ms() < end_ms && violations.is_empty() {
            tokio::time::sleep(self.world.between(100, 4_000)).await;
            if trial.with_lying_disks {
                self.data.iter().for_each(DataHost::lie);
            }
            self.fault(trial.faults).await?;
            self.end_doomed_servers().await;
            self.mend(false).await?;
            self.replace_lost().await?;
            violations = self.look().await;
        }
        self.world.log(|| "all is mended".to_owned());
        self.mend(true).await?;
        self.work.is_over.store(true, Ordering::Relaxed);
        for client in clients.into_iter().chain(intruder) {
            client.await??;
        }
        Ok(violations)
    }

    /// Checks the invariants that hold at any time.
    async fn look(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for data in &mut self.data {
            found.extend(data.look_at_epochs(&self.world).err().map(|error| error.to_string()));
        }
        let map = self.operator.1.map();
        for view in map.groups().into_iter().filter_map(|group| map.view(group)) {
            if self.views.get(&view.group) != Some(&view) {
                self.world.log(|| format!("{view:?}"));
                self.views.insert(view.group, view);
            }
        }
        let history = self.work.history.lock();
        found.extend(checks::always(self.operator.1.map(), &self.data, &history));
        found
    }

    /// Waits until all buckets are sealed and all replicas equal and in sync; then checks the contents.
    async fn settle(&mut self) -> Result<Vec<String>> {
        let began = tokio::time::Instant::now();
        // A power cut armed for a failing write may happen now.
        let mut open = vec!["not checked yet".to_owned()];
        let mut quiet = 0;
        while began.elapsed() < TO_SETTLE {
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.end_doomed_servers().await;
            self.mend(true).await?;
            self.replace_lost().await?;
            let health = self.health().await.unwrap_or_default();
            open = checks::differences(self.operator.1.map(), &self.data);
            if health != "healthy" {
                open.push(format!("the master says: {health}"));
            }
            let found = self.look().await;
            if !found.is_empty() {
                return Ok(found);
            }
            // All operations of clients are sealed by then.
            quiet = if open.is_empty() { quiet + 1 } else { 0 };
            if quiet > 3 && began.elapsed() > Duration::from_secs(150) {
                break;
            }
        }
        self.world.log(|| format!("settled after {} s: {open:?}", began.elapsed().as_secs()));
        let mut found = open;
        let history = self.work.history.lock();
        found.extend(checks::contents(self.operator.1.map(), &self.data, &history));
        Ok(found)
    }
}

/// Checks that each of the wanted events occurred in some run.
pub(super) fn check_met(counts: &BTreeMap<&'static str, u64>, wanted: &[&'static str]) -> Result<()> {
    let never: Vec<_> = wanted.iter().filter(|kind| !counts.contains_key(**kind)).collect();
    ensure!(never.is_empty(), "never met: {never:?}");
    Ok(())
}

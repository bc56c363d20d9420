//! One run of one seed: a cluster is made, used and hurt; then everything is mended, and all must come
//! together.

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
use copal_client::{Cluster, machine};
use copal_master::{MasterOptions, Pool};
use copal_volume::{
    VolumeId, VolumeOptions,
    group::{GroupId, View, invariants::Known},
};
use parking_lot::Mutex;
use serde_json::Value;
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
/// Silence after which a server has failed, and after which it is given up; ms.
const TIMES: MasterOptions = MasterOptions {
    failed_after_ms: 10_000,
    permanent_after_ms: 30 * 60_000,
    copies_at_once: None,
    first_servers: None,
    after_restore: false,
};
/// How long everything may take to come together once nothing is wrong any more.
const TO_SETTLE: Duration = Duration::from_secs(45 * 60);

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) seed: u64,
    /// Virtual time in which things go wrong.
    pub(super) minutes: u64,
    pub(super) faults: Faults,
    /// Disks forget at a power cut what they said was flushed: something must be lost.
    pub(super) with_lying_disks: bool,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    /// Nothing.
    None,
    /// Power is cut: of one server, of all, and in the middle of a write.
    PowerCuts,
    /// Disks are filled; servers are killed and lose their power meanwhile.
    FullDisks,
    /// Everything there is.
    All,
}

/// What came of it.
pub(super) struct Outcome {
    /// Of everything that happened.
    pub(super) hash: u64,
    pub(super) violations: Vec<String>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) lines: Vec<String>,
    pub(super) operations: usize,
}

/// Everything that is there in a run.
pub(super) struct Simulation {
    pub(super) world: Arc<World>,
    pub(super) network: Arc<Network>,
    pub(super) names: Names,
    pub(super) database: Database,
    pub(super) masters: Vec<MasterHost>,
    pub(super) data: Vec<DataHost>,
    pub(super) work: Arc<Work>,
    /// Numbers of the clients' hosts.
    pub(super) clients: Vec<u32>,
    /// By how much their clocks are ahead, ms.
    pub(super) client_clocks: Vec<Arc<AtomicI64>>,
    /// Whoever gives orders, on a host of its own that nothing happens to.
    pub(super) operator: (Arc<Process>, Cluster),
    pub(super) mendings: Vec<Mending>,
    /// Servers that may still join.
    pub(super) spares: u32,
    pub(super) lost: Option<usize>,
    pub(super) drained: Option<usize>,
    /// What was last known of each group.
    pub(super) views: BTreeMap<GroupId, View>,
}

/// Runs one seed on a runtime of its own.
/// # Errors
/// The cluster could not be made: a mistake of the simulator.
pub(super) fn run(trial: &Trial) -> Result<Outcome> {
    virtual_time()?.block_on(try_one(trial))
}

/// One thread, whose clock goes on when nobody has anything to do.
pub(super) fn virtual_time() -> Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    Ok(runtime.enable_time().start_paused(true).build()?)
}

async fn try_one(trial: &Trial) -> Result<Outcome> {
    let world = World::new(trial.seed);
    let _logs = world.write_down_logs();
    let mut simulation = Simulation::new(&world).await?;
    let mut violations = told(simulation.use_and_hurt(trial).await);
    if violations.is_empty() {
        violations = told(simulation.settle().await);
    }
    simulation.end().await;
    let history = simulation.work.history.lock();
    violations.extend(history.violations());
    let mut counts = BTreeMap::new();
    let held = |known: Known| u64::from(known == Known::Held);
    let creates = history.creates.iter().map(|create| held(create.known)).sum();
    counts.insert("creates that were acknowledged", creates);
    let deletes = history.deletes.iter().map(|delete| held(delete.known)).sum();
    counts.insert("deletes that were acknowledged", deletes);
    for _ in 0..history.shown_without_promise() {
        world.sometimes("a strict read showed what nobody was told to hold");
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

/// A disk that is not opened again is a violation like any.
fn told(found: Result<Vec<String>>) -> Vec<String> {
    found.unwrap_or_else(|error| vec![format!("it does not go on: {error:#}")])
}

impl Simulation {
    /// A cluster that is whole, with a few volumes.
    pub(super) async fn new(world: &Arc<World>) -> Result<Simulation> {
        let network = Network::new(world);
        let names = Names::new(MASTERS)?;
        let pool = Pool { replicas: 3, min_ack: 2, groups: GROUPS };
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
                let work = Arc::get_mut(&mut simulation.work).context("nobody works yet")?;
                work.volumes = volumes;
                return Ok(simulation);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("a cluster without faults never became whole: {:?}", simulation.ask("status", "").await)
    }

    /// Ends all data servers. What a store that is only dropped has under way stays in the queue of its disk,
    /// where nobody drives it any more, and keeps store and disk in memory.
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

    /// How the master says that the cluster is.
    async fn health(&self) -> Option<String> {
        let told: Value = serde_json::from_str(&self.ask("status", "").await?).ok()?;
        Some(told["health"].as_str()?.to_owned())
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
            self.bury_doomed().await;
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

    /// What must hold at any time.
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

    /// Waits until everything is closed, equal and whole; then looks at what is there.
    async fn settle(&mut self) -> Result<Vec<String>> {
        let began = tokio::time::Instant::now();
        // What was armed may strike now.
        let mut open = vec!["nobody has looked yet".to_owned()];
        let mut quiet = 0;
        while began.elapsed() < TO_SETTLE {
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.bury_doomed().await;
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
            // Everything that clients did is closed by then.
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

/// What chance has to have met in many runs.
pub(super) fn check_met(counts: &BTreeMap<&'static str, u64>, wanted: &[&'static str]) -> Result<()> {
    let never: Vec<_> = wanted.iter().filter(|kind| !counts.contains_key(**kind)).collect();
    ensure!(never.is_empty(), "never met: {never:?}");
    Ok(())
}

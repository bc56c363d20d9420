//! Time without a leader after the leader of three masters is killed, and its effect on clients with a map.
//!
//! Paper: beanfs §4.2 (two stand-by masters, automatic fail-over)
//! Three masters share a private MariaDB. The suite kills the leader again and again. Meanwhile clients
//! create, read and delete in volumes that they know, and one asks for a new volume until a leader makes it.

use super::running::{Process, begin, free_address};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_client::{
    ClientProfile, ClusterStore,
    administration::{AdminRequest, ClusterStatus, requests},
};
use copal_testkit::MariaDb;
use copal_volume::{PutOptions, ReadOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use xtask::copal;

const MASTERS: usize = 3;
const SERVERS: usize = 3;
/// V7 of the design, in seconds.
const LIMIT: f64 = 13.0;
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of one request for a new volume.
const TRY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Options {
    /// Number of times that the leader is killed
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// Clients that work during the kills
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Directory of all files [default: .cache/bench/failover]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// Masters over one database, and data servers; the drop ends all of them.
struct House {
    binary: PathBuf,
    directory: PathBuf,
    database: String,
    masters: Vec<(String, Option<Process>)>,
    servers: Vec<Process>,
    store: Option<ClusterStore>,
}

impl House {
    fn start(binary: &Path, directory: &Path, database: &MariaDb) -> Result<House> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("password"), "secret\n")?;
        let mut house = House {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            database: format!("mysql://copal@127.0.0.1:{}/copal", database.port()),
            masters: Vec::new(),
            servers: Vec::new(),
            store: None,
        };
        for at in 0..MASTERS {
            house.masters.push((free_address()?, None));
            house.start_master(at)?;
        }
        for at in 0..SERVERS {
            house.start_server(at)?;
        }
        let began = Instant::now();
        while house.status()?.health != "healthy" {
            ensure!(began.elapsed() < PATIENCE, "the groups of the cluster do not become in sync");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(house)
    }

    fn start_master(&mut self, at: usize) -> Result<()> {
        let own = self.directory.join(format!("master{at}"));
        let log = self.directory.join(format!("master{at}.log"));
        let password = self.directory.join("password");
        let is_new = !own.exists();
        let mut words = vec!["master".to_owned(), "--dir".to_owned(), own.display().to_string()];
        let mut token = None;
        if is_new {
            words.extend(["--listen".to_owned(), self.masters[at].0.clone()]);
            words.extend(["--http".to_owned(), "127.0.0.1:0".to_owned()]);
            words.extend(["--meta".to_owned(), self.database.clone()]);
            words.extend(["--meta-password-file".to_owned(), password.display().to_string()]);
            if at == 0 {
                words.extend(["--new", "--groups", "16"].map(str::to_owned));
            } else {
                words.extend(["--join", "-"].map(str::to_owned));
                token = Some(self.token(true)?);
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let process = begin(&self.binary, &log, &words, token.as_deref())?;
        self.masters[at].1 = Some(process);
        if self.store.is_none() {
            self.store = Some(self.client()?);
        }
        Ok(())
    }

    fn start_server(&mut self, at: usize) -> Result<()> {
        let own = self.directory.join(format!("data{at}")).display().to_string();
        let log = self.directory.join(format!("data{at}.log"));
        let (name, listen, token) = (format!("data{at}"), free_address()?, self.token(false)?);
        let mut words = vec!["data", "--dir", &own, "--name", &name, "--listen", &listen];
        words.extend(["--join", "-", "--http", "127.0.0.1:0"]);
        self.servers.push(begin(&self.binary, &log, &words, Some(&token))?);
        Ok(())
    }

    fn client(&self) -> Result<ClusterStore> {
        let profile = ClientProfile::read(&self.directory.join("master0/client.json"))?;
        Ok(ClusterStore::connect(&profile, PATIENCE)?)
    }

    fn administer<R: AdminRequest>(&self, request: &R) -> Result<R::Reply> {
        let store = self.store.as_ref().context("a client")?;
        Ok(store.wait(store.cluster().administer(request, PATIENCE))?)
    }

    fn token(&self, master: bool) -> Result<String> {
        Ok(self.administer(&requests::DrawToken { master })?.token)
    }

    fn status(&self) -> Result<ClusterStatus> {
        self.administer(&requests::ShowStatus {})
    }

    /// Number of the leader.
    fn leader(&self) -> Result<usize> {
        let address = self.status()?.master.address;
        let at = self.masters.iter().position(|(own, _)| *own == address);
        at.with_context(|| format!("no process listens at {address}"))
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let masters = self.masters.iter_mut().filter_map(|(_, process)| process.as_mut());
        masters.chain(&mut self.servers).for_each(Process::kill);
    }
}

/// Results of clients with a map.
#[derive(Default)]
struct ClientResults {
    is_over: AtomicBool,
    operations: AtomicU64,
    failed: Mutex<Vec<String>>,
    longest_us: AtomicU64,
}

impl ClientResults {
    fn note(&self, began: Instant, ended: Result<(), VolumeError>) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.longest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        if let Err(error) = ended {
            let mut failed = self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            failed.push(error.to_string());
        }
    }
}

/// Creates, reads and deletes files one after the other until the end of the run.
fn work(store: &ClusterStore, vid: VolumeId, client: usize, results: &ClientResults) {
    let body = Bytes::from(vec![7; 4096]);
    for number in 0_u64.. {
        if results.is_over.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("f{client}-{number}");
        let began = Instant::now();
        let made = store.put(vid, name.as_bytes(), body.clone(), &PutOptions::default());
        let fid = made.as_ref().ok().map(|info| info.fid);
        results.note(began, made.map(drop));
        let began = Instant::now();
        let read = store.get(vid, name.as_bytes(), 0..u64::MAX, &ReadOptions::default());
        results.note(began, read.map(drop));
        if let Some(fid) = fid {
            let began = Instant::now();
            results.note(began, store.delete(vid, name.as_bytes(), fid));
        }
    }
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/failover");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let place = directory.path().join("maria");
    fs::create_dir(&place)?;
    let database = MariaDb::start(&place, 64).map_err(anyhow::Error::msg)?;
    let mut house = House::start(&binary, &directory.path().join("cluster"), &database)?;
    let results = ClientResults::default();
    let asker = house.client()?.with_deadline(TRY);
    let mut workers = Vec::new();
    for number in 0..options.clients {
        let store = house.client()?;
        let vid = store.create_volume("", &format!("box{number}"), &VolumeOptions::default())?;
        workers.push((store, vid));
    }
    let missed = thread::scope(|scope| {
        for (number, (store, vid)) in workers.iter().enumerate() {
            let results = &results;
            scope.spawn(move || work(store, *vid, number, results));
        }
        let missed = (0..options.kills).map(|number| kill(&mut house, &asker, number)).collect();
        results.is_over.store(true, Ordering::Relaxed);
        missed
    });
    let missed: Vec<f64> = Result::from_iter::<Vec<Result<f64>>>(missed)?;
    let failed = results.failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    for error in failed.iter().take(5) {
        eprintln!("a client got an error: {error}");
    }
    let longest = missed.iter().copied().fold(0.0, f64::max);
    report.fact("leaders killed", missed.len() as f64, "");
    report.fact("without a leader, by new volumes: median", median(missed).context("a kill")?, "s");
    report.at_most("without a leader, by new volumes: longest", longest, "s", LIMIT);
    report.fact(
        "operations of clients with a map meanwhile",
        results.operations.load(Ordering::Relaxed) as f64,
        "",
    );
    report.exactly("those that failed", failed.len() as f64, "", 0.0);
    let longest = results.longest_us.load(Ordering::Relaxed) as f64 / 1e3;
    report.fact("the longest of them", longest, "ms");
    report.finish(root, "beanfs-failover")
}

/// Kills the leader and asks for a new volume until it exists; returns the seconds. Then restarts the killed
/// master as stand-by.
fn kill(house: &mut House, asker: &ClusterStore, number: usize) -> Result<f64> {
    let leader = house.leader()?;
    let process = house.masters[leader].1.as_mut().context("the leader runs")?;
    process.kill();
    let began = Instant::now();
    let seconds = loop {
        let made = asker.create_volume("", &format!("new{number}"), &VolumeOptions::default());
        match made {
            // A request that timed out may have made the volume.
            Ok(_) | Err(VolumeError::VolumeExists { .. }) => break began.elapsed().as_secs_f64(),
            Err(error) => ensure!(began.elapsed() < PATIENCE, "no master leads: {error}"),
        }
    };
    house.start_master(leader)?;
    // Kills come at random times within a lease.
    thread::sleep(Duration::from_millis(1_500 + 700 * (number as u64 % 5)));
    Ok(seconds)
}

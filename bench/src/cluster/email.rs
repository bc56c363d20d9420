//! A mail service: clients create, read and delete mails in the paper's proportion, all durable on three
//! replicas.
//!
//! Paper: beanfs §7.2 (create, read and delete as 4 : 2 : 3; 16 clients; about 1,400 operations a second)

use super::{
    mails::mail_bytes,
    running::{Running, Setup},
};
use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_client::ClusterStore;
use copal_testkit::Random;
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeId, VolumeOptions, VolumeStore};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use xtask::copal;

/// The paper's figures: operations a second, and least load of the master's processor.
const PAPER_OPS: f64 = 1_400.0;
const PAPER_MASTER_PERCENT: f64 = 40.0;
/// Size of the random bytes that bodies are taken from.
const POOL_BYTES: usize = 8 << 20;
/// Creates, then reads, of nine operations; the rest are deletes.
const CREATES: usize = 4;
const READS: usize = 2;

#[derive(Args)]
pub(crate) struct Options {
    /// Clients, each with its own connections
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Data servers
    #[arg(long, default_value_t = 4)]
    servers: usize,
    /// Volumes
    #[arg(long, default_value_t = 400)]
    volumes: usize,
    /// Groups of volumes
    #[arg(long, default_value_t = 64)]
    groups: u32,
    /// Mails that exist before the measurement
    #[arg(long, default_value_t = 60_000, env = "COPAL_BENCH_FILES")]
    files: usize,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Directory of the cluster [default: .cache/bench/email]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// An existing mail.
struct Mail {
    vid: VolumeId,
    name: Vec<u8>,
    fid: FileId,
    size: u64,
}

/// State of one client. It has its own mails, so that its reads and deletes hit existing ones.
struct Client {
    store: ClusterStore,
    random: Random,
    pool: Bytes,
    volumes: Vec<VolumeId>,
    mails: Vec<Mail>,
    number: usize,
    made: u64,
    /// Latencies of creates, reads and deletes, in milliseconds.
    took: [Vec<f64>; 3],
    bytes: u64,
}

impl Client {
    fn create(&mut self) -> Result<()> {
        let size = mail_bytes(&mut self.random) as usize;
        let at = self.random.index(self.pool.len() - size);
        let vid = self.volumes[self.random.index(self.volumes.len())];
        let name = format!("17640{:05}.M{}P{}.mail", self.made, self.random.below(1_000_000), self.number);
        self.made += 1;
        let body = self.pool.slice(at..at + size);
        let began = Instant::now();
        let info = self.store.put(vid, name.as_bytes(), body, &PutOptions::default())?;
        self.note(0, began);
        self.bytes += size as u64;
        self.mails.push(Mail { vid, name: name.into_bytes(), fid: info.fid, size: size as u64 });
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mail = &self.mails[self.random.index(self.mails.len())];
        let began = Instant::now();
        let body = self.store.get(mail.vid, &mail.name, 0..u64::MAX, &ReadOptions::default())?;
        anyhow::ensure!(body.len() as u64 == mail.size, "a mail of {} bytes has {}", mail.size, body.len());
        self.note(1, began);
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let at = self.random.index(self.mails.len());
        let mail = self.mails.swap_remove(at);
        let began = Instant::now();
        self.store.delete(mail.vid, &mail.name, mail.fid)?;
        self.note(2, began);
        Ok(())
    }

    fn note(&mut self, kind: usize, began: Instant) {
        self.took[kind].push(began.elapsed().as_secs_f64() * 1e3);
    }

    fn run(&mut self, end: Instant) -> Result<()> {
        while Instant::now() < end {
            match self.random.index(9) {
                draw if draw < CREATES || self.mails.is_empty() => self.create()?,
                draw if draw < CREATES + READS => self.read()?,
                _ => self.delete()?,
            }
        }
        Ok(())
    }
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/email");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let setup = Setup { groups: options.groups, ..Setup::of(options.servers) };
    let cluster = Running::start(&binary, &directory.path().join("cluster"), &setup)?;
    let mut clients = clients(&cluster, options)?;
    let began = Instant::now();
    let each = options.files.div_ceil(options.clients);
    on_all(&mut clients, |client| (0..each).try_for_each(|_| client.create()))?;
    let seconds = began.elapsed().as_secs_f64();
    report.fact("mails there before", (each * options.clients) as f64, "");
    report.fact("creates while they were made", (each * options.clients) as f64 / seconds, "/s");
    for client in &mut clients {
        client.took = Default::default();
        client.bytes = 0;
    }
    measure(&mut report, &cluster, &mut clients, options)?;
    count_objects(&mut report, &cluster, options.servers, &clients)?;
    report.finish(root, "beanfs-email")
}

fn clients(cluster: &Running, options: &Options) -> Result<Vec<Client>> {
    let volumes = (0..options.volumes).map(|number| {
        let made = cluster.store().create_volume("", &format!("box{number}"), &VolumeOptions::default());
        made.context("making a volume")
    });
    let volumes: Vec<VolumeId> = volumes.collect::<Result<_>>()?;
    let pool = Bytes::from(Random::new(1).bytes(POOL_BYTES));
    (0..options.clients)
        .map(|number| {
            Ok(Client {
                store: ClusterStore::connect(&cluster.profile()?, Duration::from_secs(20))?,
                random: Random::new(1000 + number as u64),
                pool: pool.clone(),
                volumes: volumes.clone(),
                mails: Vec::new(),
                number,
                made: 0,
                took: Default::default(),
                bytes: 0,
            })
        })
        .collect()
}

/// Runs each client on its own thread until all are done.
fn on_all(clients: &mut [Client], work: impl Fn(&mut Client) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a client panicked"))
        })
    })
}

fn measure(report: &mut Report, cluster: &Running, clients: &mut [Client], options: &Options) -> Result<()> {
    let master = cluster.master().processor_seconds()?;
    let servers = server_seconds(cluster, options.servers)?;
    let own = own_seconds()?;
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(options.seconds);
    on_all(clients, |client| client.run(end))?;
    let wall = began.elapsed().as_secs_f64();
    let master = cluster.master().processor_seconds()? - master;
    let servers = server_seconds(cluster, options.servers)? - servers;
    let own = own_seconds()? - own;
    let count = |kind: usize| clients.iter().map(|client| client.took[kind].len()).sum::<usize>() as f64;
    let operations = count(0) + count(1) + count(2);
    report.fact("the paper: operations, 97 machines", PAPER_OPS, "/s");
    report.at_least("operations, all of them durable", operations / wall, "/s", PAPER_OPS);
    report.fact("the paper: master's processor, 40 to 60", PAPER_MASTER_PERCENT, "%");
    report.at_most("master's processor", 100.0 * master / wall, "% of a core", 5.0);
    report.fact("processor time an operation: data servers", servers * 1e6 / operations, "us");
    report.fact("processor time an operation: clients", own * 1e6 / operations, "us");
    report.fact("processor time an operation: master", master * 1e6 / operations, "us");
    report.fact("cores that were busy with it", (master + servers + own) / wall, "");
    let bytes: u64 = clients.iter().map(|client| client.bytes).sum();
    report.fact("bytes of creates, each on three copies", bytes as f64 / wall / 1e6, "MB/s");
    for (kind, name) in ["create", "read", "delete"].into_iter().enumerate() {
        let mut took: Vec<f64> =
            clients.iter().flat_map(|client| client.took[kind].iter().copied()).collect();
        took.sort_by(f64::total_cmp);
        let Some(last) = took.len().checked_sub(1) else {
            continue;
        };
        for (part, of) in [("median", 0.5), ("99 of 100 within", 0.99)] {
            report.fact(format!("{name}: {part}"), took[(last as f64 * of) as usize], "ms");
        }
    }
    Ok(())
}

fn server_seconds(cluster: &Running, servers: usize) -> Result<f64> {
    (0..servers).map(|at| cluster.server(at)?.processor_seconds()).sum()
}

/// Processor time of this process, which runs the clients.
fn own_seconds() -> Result<f64> {
    super::running::processor_seconds_of(std::process::id())
}

/// Reports the value objects of the data servers, also per 1,000 files.
fn count_objects(report: &mut Report, cluster: &Running, servers: usize, clients: &[Client]) -> Result<()> {
    let files: usize = clients.iter().map(|client| client.mails.len()).sum();
    let mut objects = 0.0;
    for at in 0..servers {
        let metrics = cluster.server(at)?.metrics()?;
        objects += metrics.get("copal_kv_value_objects").context("a count of value objects")?;
    }
    report.fact("mails there at the end", files as f64, "");
    report.fact("value objects of all data servers", objects, "");
    let copies = 3.0 * files as f64;
    report.at_most("value objects for 1,000 files of a data server", 1e3 * objects / copies, "", 1.0);
    Ok(())
}

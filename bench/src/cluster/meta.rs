//! Space of fifty million volumes in the master's database, and speed of path look-ups.
//!
//! Paper: beanfs §3.4.1 (50 M volumes in 2.2 GB of MySQL, index included)
//! Rows are those of `mkdir`, below a thousand volumes, with names of 6 to 14 bytes in hash order. They are
//! inserted by the million, since one durable transaction each would take days. Look-ups and the durable
//! `mkdir` calls use the master's own calls.

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::Report;
use copal_master::{LeaseHolder, MetaStore, MysqlStore, PoolConfig, SqliteStore};
use copal_testkit::{MariaDb, Random, scattered};
use copal_volume::{VolumeId, group::GroupId};
use mysql::prelude::Queryable;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// BeanFS' figure for this many volumes.
const PAPER_BYTES: f64 = 2.2e9;
const PAPER_VOLUMES: f64 = 50e6;
const PARENTS: u64 = 1000;
const GROUPS: u64 = 1024;
/// Rows of one transaction.
const BATCH: u64 = 1_000_000;
/// Rows of one statement to MariaDB.
const STATEMENT: usize = 1000;

/// Numbers of later volumes begin after those of the inserted ones.
const NEXT_VOLUME: &str = "UPDATE vgroup SET next_volume = 1000000";

#[derive(Args)]
pub(crate) struct Options {
    /// Number of volumes in SQLite
    #[arg(long, default_value_t = 50_000_000, env = "COPAL_BENCH_VOLUMES")]
    volumes: u64,
    /// Number of volumes in MariaDB, if it is installed; 0: none
    #[arg(long, default_value_t = 2_000_000)]
    mariadb_volumes: u64,
    /// Number of paths to look up
    #[arg(long, default_value_t = 100_000)]
    lookups: u64,
    /// Directory of the databases [default: .cache/bench/meta]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

struct Volume {
    parent: u64,
    name: String,
    vid: u64,
}

/// Volume of a number, below one of the top volumes.
fn volume(number: u64) -> Volume {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = Random::new(scattered(number + 1));
    let len = 6 + random.index(9);
    let name = (0..len).map(|_| char::from(LETTERS[random.index(LETTERS.len())])).collect();
    let group = GroupId((number % GROUPS) as u32 + 1);
    Volume {
        parent: top(random.below(PARENTS)).vid,
        name,
        // Number after those of the top volumes; a group has one of them at most.
        vid: VolumeId::in_group(group, number / GROUPS + 2).0,
    }
}

fn top(number: u64) -> Volume {
    Volume {
        parent: VolumeId::ROOT.0,
        name: format!("top{number}"),
        vid: VolumeId::in_group(GroupId(number as u32 + 1), 1).0,
    }
}

/// Sorts a batch by its keys, so that SQLite loads it in minutes. InnoDB gets its rows unsorted: it takes
/// sorted runs for the end of the table and leaves its pages nearly empty, 182 bytes a row instead of 78.
fn sort(mut batch: Vec<Volume>) -> Vec<Volume> {
    batch.sort_unstable_by(|a, b| (a.parent, &a.name).cmp(&(b.parent, &b.name)));
    batch
}

/// The thousand top volumes, then the others by the million.
fn batches(volumes: u64) -> impl Iterator<Item = Vec<Volume>> {
    let rest = volumes.saturating_sub(PARENTS);
    std::iter::once((0..PARENTS).map(top).collect()).chain(
        (0..rest.div_ceil(BATCH))
            .map(move |batch| (batch * BATCH..rest.min((batch + 1) * BATCH)).map(volume).collect()),
    )
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/meta");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let mut report = Report::new(root, &scratch);
    sqlite(&mut report, directory.path(), options)?;
    if options.mariadb_volumes > 0 {
        match MariaDb::start(directory.path(), 512) {
            Ok(server) => mariadb(&mut report, &server, directory.path(), options)?,
            Err(reason) => eprintln!("without MariaDB: {reason}"),
        }
    }
    report.finish(root, "beanfs-meta")
}

fn found(store: &mut dyn MetaStore) -> Result<()> {
    let pool = PoolConfig { replicas: 3, min_ack: 2, groups: GROUPS as u32 };
    Ok(store.create_cluster([1; 16], pool)?)
}

fn sqlite(report: &mut Report, directory: &Path, options: &Options) -> Result<()> {
    let path = directory.join("master.db");
    found(&mut SqliteStore::open(&path)?)?;
    let mut connection = rusqlite::Connection::open(&path)?;
    connection.pragma_update(None, "journal_mode", "OFF")?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.pragma_update(None, "cache_size", -2_000_000)?;
    let started = Instant::now();
    let mut rows = 0;
    for batch in batches(options.volumes).map(sort) {
        let load = connection.transaction()?;
        let mut add = load.prepare("INSERT OR IGNORE INTO dir VALUES (?1, ?2, ?3, 0)")?;
        for volume in &batch {
            let values = rusqlite::params![volume.parent as i64, volume.name.as_bytes(), volume.vid as i64];
            rows += add.execute(values)?;
        }
        drop(add);
        load.commit()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    connection.execute(NEXT_VOLUME, [])?;
    drop(connection);
    let bytes = fs::metadata(&path)?.len() as f64;
    let each = bytes / rows as f64;
    report.fact("SQLite: volumes", rows as f64, "");
    report.fact("SQLite: bytes of the database", bytes, "B");
    report.at_most("SQLite: bytes a volume", each, "B", PAPER_BYTES / PAPER_VOLUMES);
    report.at_most(
        format!(
            "SQLite: 50 M volumes{}",
            if rows as f64 >= 0.999 * PAPER_VOLUMES { "" } else { ", by the bytes of one" }
        ),
        each * PAPER_VOLUMES,
        "B",
        PAPER_BYTES,
    );
    report.fact("SQLite: volumes put in by the million", rows as f64 / seconds, "/s");
    let mut store = SqliteStore::open(&path)?;
    measure_calls(report, "SQLite", &mut store, options.volumes, options.lookups)
}

fn mariadb(report: &mut Report, server: &MariaDb, directory: &Path, options: &Options) -> Result<()> {
    let mut connection = mysql::Conn::new(server.url("mysql").as_str())?;
    connection.query_drop("CREATE DATABASE copal")?;
    let mut store = MysqlStore::open(&server.url("copal"))?;
    found(&mut store)?;
    connection.query_drop("USE copal")?;
    connection.query_drop("SET GLOBAL innodb_flush_log_at_trx_commit = 0")?;
    let started = Instant::now();
    for batch in batches(options.mariadb_volumes) {
        for some in batch.chunks(STATEMENT) {
            // Names consist of letters and digits, so they need no escaping.
            let rows: Vec<String> = some
                .iter()
                .map(|volume| format!("({},'{}',{},0)", volume.parent, volume.name, volume.vid))
                .collect();
            connection.query_drop(format!("INSERT IGNORE INTO dir VALUES {}", rows.join(",")))?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    connection.query_drop("SET GLOBAL innodb_flush_log_at_trx_commit = 1")?;
    connection.query_drop(NEXT_VOLUME)?;
    let rows: u64 = connection.query_first("SELECT COUNT(*) FROM dir")?.context("a count")?;
    let bytes = fs::metadata(directory.join("data/copal/dir.ibd"))?.len() as f64;
    let each = bytes / rows as f64;
    report.fact("MariaDB: volumes", rows as f64, "");
    report.fact("MariaDB: bytes of the table", bytes, "B");
    report.fact("MariaDB: bytes a volume", each, "B");
    report.fact("MariaDB: 50 M volumes, by the bytes of one", each * PAPER_VOLUMES, "B");
    report.fact("MariaDB: volumes put in by the million", rows as f64 / seconds, "/s");
    measure_calls(report, "MariaDB", &mut store, options.mariadb_volumes, options.lookups / 10)
}

/// Look-ups of paths of two names, and durable `mkdir`, one after another from one thread.
fn measure_calls(
    report: &mut Report,
    what: &str,
    store: &mut dyn MetaStore,
    volumes: u64,
    lookups: u64,
) -> Result<()> {
    let mut random = Random::new(7);
    let tops: std::collections::HashMap<u64, String> =
        (0..PARENTS).map(top).map(|top| (top.vid, top.name)).collect();
    let wanted: Vec<Volume> =
        (0..lookups).map(|_| volume(random.below(volumes.saturating_sub(PARENTS).max(1)))).collect();
    let started = Instant::now();
    for volume in &wanted {
        let found = store.resolve(&[&tops[&volume.parent], &volume.name])?;
        anyhow::ensure!(found.len() == 2, "{} was inserted and is not found", volume.name);
    }
    let seconds = started.elapsed().as_secs_f64();
    report.fact(format!("{what}: paths of two names looked up"), lookups as f64 / seconds, "/s");
    store.lead(LeaseHolder([1; 24]))?;
    let made = 500;
    let started = Instant::now();
    for number in 0..made {
        let made = store.mkdir(VolumeId::ROOT, &format!("new{number}"), GroupId(1024), None)?;
        made.context("making a volume")?;
    }
    let seconds = started.elapsed().as_secs_f64();
    report.fact(format!("{what}: durable mkdir"), f64::from(made) / seconds, "/s");
    Ok(())
}

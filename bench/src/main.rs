//! Suites of measurements, one module each. `cargo xtask bench NAME` builds and runs this.
//!
//! Not here: metering of programs and storage of rows (`xtask::metered`, `copal_bench_harness`).

mod cluster;
mod dedup;
mod disk_server;
mod draconis;
mod exports;
mod filters;
mod memory;
mod objects;
mod peers;
mod remote;
mod scale;
mod scale_cores;
mod values;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measurements, each with its targets")]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Repository size, processor time, memory and restore beside restic, rustic and borg
    BackupPeers(peers::Options),
    /// Requests, bytes and time over an object store, beside restic
    #[command(name = "remote-s3")]
    RemoteS3(remote::Options),
    /// Peak memory of each command, also on a 100 GB sparse image
    BackupMemory(memory::Options),
    /// A small backup among many VMs and among many snapshots, beside one among few
    BackupScale(scale::Options),
    /// Backups, the engine and data servers on 1 to 16 cores, beside restic and RocksDB
    ScaleCores(scale_cores::Options),
    /// Clients of a cluster on cores of their own, for `scale-cores`
    #[command(hide = true)]
    ScaleCoresClients(scale_cores::cluster_clients::Options),
    /// Filters alone: time to build and to probe, bits per key, false positives
    KvFilters(filters::Options),
    /// Large values straight into their object, or through the log
    KvValues(values::Options),
    /// Sizes of mails as drawn, beside the paper's
    #[command(name = "beanfs-fig2")]
    BeanfsFig2(cluster::figure2::Options),
    /// Bytes and look-ups of fifty million volumes in the master's database
    BeanfsMeta(cluster::meta::Options),
    /// Lost volumes, simulated, beside the paper's formula
    #[command(name = "beanfs-fig7")]
    BeanfsFig7(cluster::figure7::Options),
    /// Time until a returned server is in sync, by the data it missed
    #[command(name = "beanfs-fig9")]
    BeanfsFig9(cluster::figure9::Options),
    /// Re-replication of a lost server, beside the speed of the disks
    BeanfsRereplicate(cluster::rereplicate::Options),
    /// Re-replication by number of parallel copies
    #[command(name = "beanfs-fig11")]
    BeanfsFig11(cluster::figure11::Options),
    /// Order of copies after the loss of two servers: last replicas first
    BeanfsPriority(cluster::priority::Options),
    /// Creates by servers and by clients, with throttled disks
    #[command(name = "beanfs-fig8bc")]
    BeanfsFig8bc(cluster::figure8bc::Options),
    /// Creates while two servers fail for a while
    #[command(name = "beanfs-fig10")]
    BeanfsFig10(cluster::figure10::Options),
    /// Creates, reads and deletes of mails, everything durable on three copies
    #[command(name = "beanfs-email")]
    BeanfsEmail(cluster::email::Options),
    /// Writes and reads by file size, beside HDFS and Garage
    #[command(name = "beanfs-fig8a")]
    BeanfsFig8a(cluster::figure8a::Options),
    /// Time without a leader after the leader of three masters is killed
    #[command(name = "beanfs-failover")]
    BeanfsFailover(cluster::failover::Options),
    /// A list of a volume with a million files
    VolumeList(cluster::listing::Options),
    /// Resident memory of a data server for each file
    VolumeMemory(cluster::large::Options),
    /// Restart time of a data server with millions of files after a kill
    VolumeRestart(cluster::large::Options),
    /// Acknowledged files that simulated clusters lose under power cuts
    VolumePowercut(cluster::powercut::Options),
    /// Processor time of a small put over frames and over tonic
    RpcGate(cluster::gate::Options),
    /// Memory, local I/O, storage and network of a day's backup, simulated, by scheme
    DedupTable1(dedup::table1::Options),
    /// Job span and time of a VM, simulated, by scheme
    DedupTable2(dedup::table2::Options),
    /// Job span and time of a VM by the number of rounds, simulated
    DedupFigure4(dedup::figure4::Options),
    /// Delay that slow hosts cause to the others, simulated
    DedupStragglers(dedup::stragglers::Options),
    /// Time and memory of deletion, simulated, by method
    DedupTable3(dedup::table3::Options),
    /// 100,000 VMs on 4,000 hosts, simulated
    #[command(name = "dedup-100k")]
    Dedup100k(dedup::large::Options),
    /// Storage that leaks when snapshots are deleted by summary vectors
    DedupTable4(dedup::table4::Options),
    /// Savings of agents on three hosts, as a share of an exact index's savings
    DedupFleet(dedup::fleet::Options),
    /// Reads of a snapshot that `copal nbd` serves, beside a restore
    NbdServe(exports::Options),
    /// Device commands of each operation of the object store
    ObjectCommands(objects::commands::Options),
    /// Processor time of one operation of the object store, by its number of streams and objects
    ObjectCommit(objects::commit::Options),
    /// Reads of an opening of the object store, with their time on the model of a hard disk
    ObjectOpen(objects::open::Options),
    /// Acknowledged backups that power cuts of a recorded run lose
    ObjectPowercut(objects::powercut::Options),
    /// A model of a disk behind an NBD socket, at its own speed, for any program
    Emulate(objects::emulate::Options),
    /// `dd` on models of disks at their own speed, as block devices
    ObjectForeign(objects::foreign::Options),
    /// Block traces of programs, replayed on a model of a disk
    DiskReplay(objects::disk_replay::Options),
    /// Disk commands of restore, backup, check and prune, beside restic
    ObjectReads(objects::reads::Options),
    /// Durable operations on a full, overwritten disk that turns: `log` beside `cow`
    ObjectAgeing(objects::aged::ageing::Options),
    /// Where `log` begins to win over `cow`: by the cost of a seek and by how full the store is
    ObjectCrossover(objects::aged::crossover::Options),
    /// Times of operations beside a scrub of the same store
    ObjectScrub(objects::scrub::Options),
    /// Writes by their size: the paper's figure 1
    #[command(name = "draconis-fig1")]
    DraconisFig1(draconis::StudyOptions),
    /// Random writes, rewrites and appends: the paper's figure 2
    #[command(name = "draconis-fig2")]
    DraconisFig2(draconis::StudyOptions),
    /// Writes by the number on their way: the paper's figure 3
    #[command(name = "draconis-fig3")]
    DraconisFig3(draconis::StudyOptions),
    /// Durable append: file system against stream, and update in place: the paper's figure 9
    #[command(name = "draconis-fig9")]
    DraconisFig9(draconis::figure9::Options),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("bench lies in the repository")?;
    match Arguments::parse().suite {
        Suite::BackupPeers(options) => peers::run(root, &options),
        Suite::RemoteS3(options) => remote::run(root, &options),
        Suite::BackupMemory(options) => memory::run(root, &options),
        Suite::BackupScale(options) => scale::run(root, &options),
        Suite::ScaleCores(options) => scale_cores::run(root, &options),
        Suite::ScaleCoresClients(options) => scale_cores::cluster_clients::run(&options),
        Suite::KvFilters(options) => filters::run(root, &options),
        Suite::KvValues(options) => values::run(root, &options),
        Suite::BeanfsFig2(options) => cluster::figure2::run(root, &options),
        Suite::BeanfsMeta(options) => cluster::meta::run(root, &options),
        Suite::BeanfsFig7(options) => cluster::figure7::run(root, &options),
        Suite::BeanfsFig9(options) => cluster::figure9::run(root, &options),
        Suite::BeanfsRereplicate(options) => cluster::rereplicate::run(root, &options),
        Suite::BeanfsFig11(options) => cluster::figure11::run(root, &options),
        Suite::BeanfsPriority(options) => cluster::priority::run(root, &options),
        Suite::BeanfsFig8bc(options) => cluster::figure8bc::run(root, &options),
        Suite::BeanfsFig10(options) => cluster::figure10::run(root, &options),
        Suite::BeanfsEmail(options) => cluster::email::run(root, &options),
        Suite::BeanfsFig8a(options) => cluster::figure8a::run(root, &options),
        Suite::BeanfsFailover(options) => cluster::failover::run(root, &options),
        Suite::VolumeList(options) => cluster::listing::run(root, &options),
        Suite::VolumeMemory(options) => cluster::large::memory(root, &options),
        Suite::VolumeRestart(options) => cluster::large::restart(root, &options),
        Suite::VolumePowercut(options) => cluster::powercut::run(root, &options),
        Suite::RpcGate(options) => cluster::gate::run(root, &options),
        Suite::DedupTable1(options) => dedup::table1::run(root, &options),
        Suite::DedupTable2(options) => dedup::table2::run(root, &options),
        Suite::DedupFigure4(options) => dedup::figure4::run(root, &options),
        Suite::DedupStragglers(options) => dedup::stragglers::run(root, &options),
        Suite::DedupTable3(options) => dedup::table3::run(root, &options),
        Suite::Dedup100k(options) => dedup::large::run(root, &options),
        Suite::DedupTable4(options) => dedup::table4::run(root, &options),
        Suite::DedupFleet(options) => dedup::fleet::run(root, &options),
        Suite::NbdServe(options) => exports::run(root, &options),
        Suite::ObjectCommands(options) => objects::commands::run(root, &options),
        Suite::ObjectCommit(options) => objects::commit::run(root, &options),
        Suite::ObjectOpen(options) => objects::open::run(root, &options),
        Suite::ObjectPowercut(options) => objects::powercut::run(root, &options),
        Suite::Emulate(options) => objects::emulate::run(root, &options),
        Suite::ObjectForeign(options) => objects::foreign::run(root, &options),
        Suite::DiskReplay(options) => objects::disk_replay::run(root, &options),
        Suite::ObjectReads(options) => objects::reads::run(root, &options),
        Suite::ObjectAgeing(options) => objects::aged::ageing::run(root, &options),
        Suite::ObjectCrossover(options) => objects::aged::crossover::run(root, &options),
        Suite::ObjectScrub(options) => objects::scrub::run(root, &options),
        Suite::DraconisFig1(options) => draconis::figure1::run(root, &options),
        Suite::DraconisFig2(options) => draconis::figure2::run(root, &options),
        Suite::DraconisFig3(options) => draconis::figure3::run(root, &options),
        Suite::DraconisFig9(options) => draconis::figure9::run(root, &options),
    }
}

/// Directory of data set, peers or scratch, unless an argument names one.
fn default_below_cache(root: &Path, given: Option<&PathBuf>, name: &str) -> PathBuf {
    given.cloned().unwrap_or_else(|| root.join(".cache").join(name))
}

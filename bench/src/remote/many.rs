//! Measurements of large repositories: lists of many snapshots, and a new host with many packs.

use super::{
    MIB,
    link::Shape,
    programs::{Kind, PASSWORD, Program},
    scenes::{Bench, write_image},
    server::{KEY_ID, SECRET},
};
use anyhow::{Context, Result};
use copal_backup::{BackupRequest, CancelFlag, DiskSource, IndexHome, Repository, Silent, Unlock};
use copal_bench_harness::report::Report;
use copal_disk::source::file::FileSource;
use copal_remote::{ObjectCache, RemoteOptions, RemoteStore, RemoteUrl};
use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc};
use xtask::dataset::random::Random;

/// Bytes of a disk in a list of snapshots.
const DISK_BYTES: usize = 64 << 10;
/// Limit of the cache of the host that makes the snapshots.
const CACHE_BYTES: u64 = 256 << 20;

impl Bench<'_> {
    /// Lists of many snapshots, before and after a prune.
    pub(super) fn lists(&self, report: &mut Report) -> Result<()> {
        let program = self.program(Kind::Copal, "lists")?;
        let keys = self.scratch.join("keys");
        write_keys(&keys)?;
        self.make_snapshots(&program, &keys)?;
        let name = format!("snapshots, {} VMs x {}", self.options.vms, self.options.snapshots);
        let cold = |report: &mut Report, when: &str| -> Result<()> {
            program.lose_cache()?;
            let counts = program.run(&["snapshots"])?.counts;
            let (requests, received) = (counts.requests() as f64, counts.received as f64 / MIB);
            let name = format!("{name}, cold, {when} a prune");
            match when {
                "after" => {
                    report.at_most(format!("{name}: requests"), requests, "", 250.0);
                    report.at_most(format!("{name}: received"), received, "MiB", 10.0);
                }
                _ => {
                    report.fact(format!("{name}: requests"), requests, "");
                    report.fact(format!("{name}: received"), received, "MiB");
                }
            }
            Ok(())
        };
        cold(report, "before")?;
        let warm = program.run(&["snapshots"])?.counts;
        report.at_most(format!("{name}, warm: requests"), warm.requests() as f64, "", 40.0);
        let prune = program.run(&["prune", "--keep-last", &self.options.snapshots.to_string()])?;
        report.fact(format!("{name}: prune that keeps all"), prune.run.wall.as_secs_f64(), "s");
        report.fact(format!("{name}: prune that keeps all, requests"), prune.counts.requests() as f64, "");
        cold(report, "after")
    }

    /// Backs up all VMs in turns, within this process: a command for each would take an hour.
    fn make_snapshots(&self, program: &Program<'_>, keys: &Path) -> Result<()> {
        let url = RemoteUrl::parse(&program.address()).context("it is an address of an object store")??;
        let options = RemoteOptions { credentials: Some(keys.to_owned()), ..RemoteOptions::default() };
        let store = RemoteStore::new(&url, &options)?;
        store.use_cache(ObjectCache::open(&self.scratch.join("maker-cache"), CACHE_BYTES)?);
        let unlock = Unlock::Password(PASSWORD.to_owned().into());
        let repository = Repository::open(Arc::new(store), IndexHome::Memory, &unlock)?;
        let (mut random, disk) = (Random::new(&[36]), self.scratch.join("small.raw"));
        for _ in 0..self.options.snapshots {
            for vm in 0..self.options.vms {
                let mut bytes = vec![0; DISK_BYTES];
                random.fill(&mut bytes);
                fs::write(&disk, bytes)?;
                let source = DiskSource::new("sda", Box::new(FileSource::open(&disk)?));
                let request = BackupRequest::new(&format!("vm{vm}"), vec![source]);
                repository.backup(request, &Silent, &CancelFlag::new())?;
            }
        }
        Ok(())
    }

    /// A host without a cache backs up a large VM of another host.
    pub(super) fn new_host(&self, report: &mut Report) -> Result<()> {
        let program = self.program(Kind::Copal, "packs")?;
        let image = self.scratch.join("large.raw");
        write_image(&image, self.options.packs_mib, 0)?;
        let packs = program.backup(&image)?.counts.puts as f64;
        program.lose_cache()?;
        self.link.set(self.options.far());
        let again = program.backup(&image)?;
        self.link.set(Shape::NEAR);
        fs::remove_file(image)?;
        let name = format!("new host, {packs} objects of packs");
        report.at_most(format!("{name}: GET for each"), again.counts.gets as f64 / packs, "", 2.2);
        report.fact(format!("{name}, distant: backup"), again.run.wall.as_secs_f64(), "s");
        report.fact(format!("{name}, distant: received"), again.counts.received as f64 / MIB, "MiB");
        Ok(())
    }
}

/// A file of credentials that only its owner reads.
fn write_keys(path: &Path) -> Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(write!(file, "[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")?)
}

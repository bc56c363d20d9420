//! Loaded stores, made once and used by several suites.
//!
//! A store's name contains all that shapes its files: engine, kind of filter, bits, keys, sizes, for copal
//! the commit. The file `<name>.json` beside it has the cost of the load. A half-loaded store has no such
//! file and is made anew.

use super::{Role, SuiteRunner};
use crate::{
    peer::Peer,
    protocol::{Filters, Kind, Request, Safety, Spec},
};
use anyhow::{Context, Result};
use copal_bench_harness::{machine, report::median};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, process::Command};

/// Cost of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadFacts {
    pub(crate) user_bytes: u64,
    /// Seconds until the last write returned.
    pub(crate) load_seconds: f64,
    /// Further seconds until no merge was due.
    #[serde(alias = "settle_seconds")]
    pub(crate) merge_seconds: f64,
    pub(crate) write_bytes: u64,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: u64,
    /// Latencies of puts, in microseconds.
    pub(crate) put_p99: f64,
    pub(crate) put_max: f64,
    /// Seconds during the load for which the engine held its writers back, by its own count.
    #[serde(default)]
    pub(crate) held_back_seconds: f64,
}

impl LoadFacts {
    /// Summary of several equal loads: the median of each figure, and the longest put of all.
    pub(crate) fn median(loads: &[LoadFacts]) -> LoadFacts {
        let of = |figure: fn(&LoadFacts) -> f64| median(loads.iter().map(figure).collect()).unwrap_or(0.0);
        LoadFacts {
            user_bytes: of(|facts| facts.user_bytes as f64) as u64,
            load_seconds: of(|facts| facts.load_seconds),
            merge_seconds: of(|facts| facts.merge_seconds),
            write_bytes: of(|facts| facts.write_bytes as f64) as u64,
            cpu_seconds: of(|facts| facts.cpu_seconds),
            peak_bytes: of(|facts| facts.peak_bytes as f64) as u64,
            put_p99: of(|facts| facts.put_p99),
            held_back_seconds: of(|facts| facts.held_back_seconds),
            put_max: loads.iter().map(|facts| facts.put_max).fold(0.0, f64::max),
        }
    }

    /// Bytes written to storage for each user byte.
    pub(crate) fn amplification(&self) -> f64 {
        self.write_bytes as f64 / (self.user_bytes as f64).max(1.0)
    }

    pub(crate) fn megabytes_per_second(&self) -> f64 {
        self.user_bytes as f64 / 1e6 / self.load_seconds.max(1e-9)
    }

    /// Including the merges due at the end.
    pub(crate) fn megabytes_per_second_merged(&self) -> f64 {
        self.user_bytes as f64 / 1e6 / (self.load_seconds + self.merge_seconds).max(1e-9)
    }
}

/// Memory cap of a load: enough that no engine waits for memory.
const LOAD_CAP: u64 = 512 << 20;

impl SuiteRunner<'_> {
    /// Role of a load, with the large set's tree in proportion; the store is closed afterwards.
    pub(crate) fn loading_role(&self, bits: f64) -> Role {
        let buffer = self.scaled_buffer();
        Role {
            bits,
            memory_bytes: buffer * 8,
            copal_extra_bytes: 0,
            write_buffer_bytes: buffer,
            table_bytes: self.scaled_table(),
            cache_data: true,
            cache_blocks: false,
            cap_bytes: Some(LOAD_CAP),
            store: String::new(),
        }
    }

    /// Loads the base set for the engine unless an earlier suite has; returns the name of its store.
    pub(crate) fn loaded(&self, name: &str, bits: f64, cache_data: bool) -> Result<String> {
        let role = Role { cache_data, ..self.loading_role(bits) };
        self.loaded_for(name, &role)
    }

    /// Like `loaded`, in a role derived from `loading_role`.
    pub(crate) fn loaded_for(&self, name: &str, role: &Role) -> Result<String> {
        let spec = self.spec(name, role)?;
        let store = self.store_name(&spec);
        let (directory, stamp) = self.places(&store);
        if stamp.exists() && !self.scale.fresh {
            return Ok(store);
        }
        remove(&directory, &stamp)?;
        self.remove_of_other_code(&store)?;
        let spec = Spec { directory, ..spec };
        eprintln!("loading {name}: {} keys", self.scale.keys());
        let facts = if spec.kind == Kind::Copal && !spec.merge_for_reads {
            self.load_to_shape(&spec, LOAD_CAP)?
        } else {
            self.load(&spec, LOAD_CAP, Safety::Bulk)?
        };
        fs::write(&stamp, serde_json::to_string_pretty(&facts)?)?;
        Ok(store)
    }

    /// A copy of another engine's store with equal files, so that both can be open at once.
    pub(crate) fn copied(&self, store: &str, suffix: &str) -> Result<String> {
        let copy = format!("{store}-{suffix}");
        let (source, stamp) = self.places(store);
        let (target, copied) = self.places(&copy);
        let newer = |of: &Path| fs::metadata(of).and_then(|meta| meta.modified()).ok();
        if copied.exists() && newer(&copied) >= newer(&stamp) {
            return Ok(copy);
        }
        remove(&target, &copied)?;
        let status = Command::new("cp")
            .args(["-r", "--reflink=auto", "--sparse=always"])
            .args([&source, &target])
            .status()
            .context("running cp")?;
        anyhow::ensure!(status.success(), "copying {} failed", source.display());
        fs::copy(&stamp, &copied)?;
        Ok(copy)
    }

    /// Loads the base set with single puts into an empty store and closes it.
    pub(crate) fn load(&self, spec: &Spec, cap: u64, safety: Safety) -> Result<LoadFacts> {
        let mut peer = Peer::open(spec, Some(cap))?;
        let mut facts = LoadFacts { user_bytes: self.scale.data_bytes(), ..LoadFacts::default() };
        self.load_part(&mut peer, &mut facts, (0, self.scale.keys()), safety, true)?;
        peer.close()?;
        Ok(facts)
    }

    /// Like `load`, with a tree that does not depend on the kind of units or on the progress of merges. The
    /// bottom run has ten parts in eleven; above it lie six runs of 1, 1, 4, 4, 16 and 16 flushes of equal
    /// size.
    fn load_to_shape(&self, spec: &Spec, cap: u64) -> Result<LoadFacts> {
        let spec = Spec {
            // No memtable may be full before its explicit flush.
            memory_bytes: spec.memory_bytes * 2,
            ..spec.clone()
        };
        let mut peer = Peer::open(&spec, Some(cap))?;
        let keys = self.scale.keys();
        let mut facts = LoadFacts { user_bytes: self.scale.data_bytes(), ..LoadFacts::default() };
        let bottom = keys * 10 / 11;
        self.load_part(&mut peer, &mut facts, (0, bottom), Safety::Bulk, true)?;
        peer.ask(&Request::Compact)?;
        const STEPS: u64 = 42;
        for step in 0..STEPS {
            let first = bottom + (keys - bottom) * step / STEPS;
            let count = bottom + (keys - bottom) * (step + 1) / STEPS - first;
            // A tier is full after each fourth flush, and is merged before the next one.
            self.load_part(&mut peer, &mut facts, (first, count), Safety::Bulk, step % 4 == 3)?;
        }
        peer.ask(&Request::AwaitMerges)?;
        peer.close()?;
        Ok(facts)
    }

    fn load_part(
        &self,
        peer: &mut Peer,
        facts: &mut LoadFacts,
        (first, count): (u64, u64),
        safety: Safety,
        awaits_merges: bool,
    ) -> Result<()> {
        let loaded =
            peer.ask(&Request::Load { first, count, value_bytes: self.scale.value, batch: 1, safety })?;
        let flushed = peer.ask(&Request::Flush)?;
        let merged = peer.ask(if awaits_merges { &Request::AwaitMerges } else { &Request::Facts })?;
        facts.load_seconds += loaded.answer.seconds;
        facts.merge_seconds += flushed.answer.seconds + merged.answer.seconds;
        facts.put_p99 = facts.put_p99.max(loaded.answer.latency.p99);
        facts.put_max = facts.put_max.max(loaded.answer.latency.max);
        let counter = |name| loaded.answer.counter(name) / 1e9;
        facts.held_back_seconds += counter("paced_nanos") + counter("stalled_nanos");
        for part in [&loaded, &flushed, &merged] {
            facts.write_bytes += part.traffic.write_bytes;
            facts.cpu_seconds += part.answer.cpu_seconds;
            facts.peak_bytes = facts.peak_bytes.max(part.peak_bytes);
        }
        Ok(())
    }

    fn store_name(&self, spec: &Spec) -> String {
        let (family, bits) = match (spec.kind, spec.filters) {
            (Kind::Copal, filters) => {
                // The store has all units on disk; an option of the opening limits those in memory.
                let unit = match filters {
                    Filters::BloomFixed
                    | Filters::BloomPaper
                    | Filters::BloomPerRun
                    | Filters::BloomClasses => "bloom",
                    _ => "ribbon",
                };
                // The cache mode of look-ups is an option of the keyspace, fixed at its creation.
                let cached = match (spec.cache_data, spec.cache_blocks) {
                    (_, true) => "-blocks",
                    (true, false) => "",
                    (false, false) => "-uncached",
                };
                // Merges for readers change this tree.
                let served = if spec.merge_for_reads { "-served" } else { "" };
                let commit = machine::commit(self.root);
                (format!("copal-{unit}{cached}{served}-{commit}"), String::new())
            }
            _ => (spec.name.clone(), format!("-{}b", spec.bits)),
        };
        format!("{family}{bits}-{}x{}", self.scale.keys(), self.scale.value)
    }

    /// Removes stores that differ from this one only in the commit, and copies of such stores.
    fn remove_of_other_code(&self, store: &str) -> Result<()> {
        let commit = machine::commit(self.root);
        let Some((before, after)) = store.split_once(&commit).filter(|_| !commit.is_empty()) else {
            return Ok(());
        };
        for entry in fs::read_dir(&self.scratch)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let other = name.strip_prefix(before).is_some_and(|rest| {
                let hash = rest.split('-').next().unwrap_or_default();
                hash != commit && hash.len() >= 12 && rest[hash.len()..].starts_with(after)
            });
            if other && entry.file_type()?.is_dir() {
                remove(&entry.path(), &self.scratch.join(format!("{name}.json")))?;
            }
        }
        Ok(())
    }

    /// Directory of a store, and the file that marks it as complete.
    fn places(&self, store: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        (self.scratch.join(store), self.scratch.join(format!("{store}.json")))
    }
}

fn remove(directory: &Path, stamp: &Path) -> Result<()> {
    if stamp.exists() {
        fs::remove_file(stamp)?;
    }
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

//! Loaded stores, made once and used by several suites.
//!
//! A store is named by what shapes its files (engine, kind of filter, bits, keys, sizes, the code for copal);
//! beside it lies `<name>.json` with what the load cost. A half-loaded store has no such file and is made anew.

use super::{Lab, Role};
use crate::{
    peer::Peer,
    protocol::{Filters, Kind, Request, Safety, Spec},
};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, process::Command};
use xtask::machine;

/// What a load cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadFacts {
    pub(crate) user_bytes: u64,
    /// Until the last write returned.
    pub(crate) load_seconds: f64,
    /// Until nothing was left to merge.
    pub(crate) settle_seconds: f64,
    pub(crate) write_bytes: u64,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: u64,
    /// Microseconds.
    pub(crate) put_p99: f64,
    pub(crate) put_max: f64,
}

impl LoadFacts {
    /// Bytes written to storage for each byte of the user's.
    pub(crate) fn amplification(&self) -> f64 {
        self.write_bytes as f64 / (self.user_bytes as f64).max(1.0)
    }

    pub(crate) fn megabytes_per_second(&self) -> f64 {
        self.user_bytes as f64 / 1e6 / self.load_seconds.max(1e-9)
    }

    /// Including the merges that were still due.
    pub(crate) fn megabytes_per_second_settled(&self) -> f64 {
        self.user_bytes as f64 / 1e6 / (self.load_seconds + self.settle_seconds).max(1e-9)
    }
}

/// What a load may use: enough that no engine waits for memory.
const LOAD_CAP: u64 = 512 << 20;

impl Lab<'_> {
    /// Role of a load with the tree of the large set in proportion; closed again when it returns.
    pub(crate) fn loading_role(&self, bits: f64) -> Role {
        let buffer = self.scaled_buffer();
        Role {
            bits,
            memory_bytes: buffer * 8,
            write_buffer_bytes: buffer,
            table_bytes: self.scaled_table(),
            cache_data: true,
            cap_bytes: Some(LOAD_CAP),
            store: String::new(),
        }
    }

    /// Loads the base set for the engine unless an earlier suite has; the name of its store.
    pub(crate) fn loaded(&self, name: &str, bits: f64) -> Result<String> {
        let role = self.loading_role(bits);
        let spec = self.spec(name, &role)?;
        let store = self.store_name(&spec);
        let (directory, stamp) = self.places(&store);
        if stamp.exists() && !self.scale.fresh {
            return Ok(store);
        }
        remove(&directory, &stamp)?;
        let spec = Spec { directory, ..spec };
        eprintln!("loading {name}: {} keys", self.scale.keys());
        let facts = self.load(&spec, LOAD_CAP, Safety::Bulk, 1)?;
        fs::write(&stamp, serde_json::to_string_pretty(&facts)?)?;
        Ok(store)
    }

    /// The store of another engine of the same files, copied, so that both can be open at once.
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
    pub(crate) fn load(&self, spec: &Spec, cap: u64, safety: Safety, batch: usize) -> Result<LoadFacts> {
        let mut peer = Peer::open(spec, Some(cap))?;
        let loaded = peer.ask(&Request::Load {
            first: 0,
            count: self.scale.keys(),
            value_bytes: self.scale.value,
            batch,
            safety,
        })?;
        let flushed = peer.ask(&Request::Flush)?;
        let settled = peer.ask(&Request::Settle)?;
        peer.close()?;
        let parts = [&loaded, &flushed, &settled];
        Ok(LoadFacts {
            user_bytes: self.scale.data_bytes(),
            load_seconds: loaded.answer.seconds,
            settle_seconds: flushed.answer.seconds + settled.answer.seconds,
            write_bytes: parts.iter().map(|part| part.traffic.write_bytes).sum(),
            cpu_seconds: parts.iter().map(|part| part.answer.cpu_seconds).sum(),
            peak_bytes: parts.iter().map(|part| part.peak_bytes).max().unwrap_or(0),
            put_p99: loaded.answer.latency.p99,
            put_max: loaded.answer.latency.max,
        })
    }

    fn store_name(&self, spec: &Spec) -> String {
        let (family, bits) = match (spec.kind, spec.filters) {
            // All units are on disk; how many are in memory is a matter of the opening.
            (Kind::Copal, Filters::BloomFixed | Filters::BloomPaper | Filters::BloomPerRun) => (
                format!("copal-bloom-{}", machine::commit(self.root)),
                String::new(),
            ),
            (Kind::Copal, _) => (
                format!("copal-ribbon-{}", machine::commit(self.root)),
                String::new(),
            ),
            _ => (spec.name.clone(), format!("-{}b", spec.bits)),
        };
        format!("{family}{bits}-{}x{}", self.scale.keys(), self.scale.value)
    }

    /// Directory of a store and the file that says it is whole.
    fn places(&self, store: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        (
            self.scratch.join(store),
            self.scratch.join(format!("{store}.json")),
        )
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

//! Owners of partitions: the real detector of each host on a scratch directory, with the real partitions and
//! the real rule of ownership.
//!
//! Not here: threads and connections. A host compares one partition at a time, as its agent does.

use super::super::inputs::copal;
use super::log::Log;
use anyhow::{Context, Result};
use copal_agent::detect::{BatchHeader, Compared, DetectLimits, Detector, MAX_BATCH_IDS};
use copal_agent::fleet::partition::{IdPartitions, answerers};
use copal_backup::peers::{Answer, ShortId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The detector of a scaled trace sorts few ids at once.
const MEMORY_BYTES: u64 = 2 << 20;

/// Answers to one batch.
pub(super) struct Reply {
    pub(super) batch: u64,
    pub(super) answers: Vec<Answer>,
}

/// The owners of all hosts.
pub(super) struct Owners {
    partitions: IdPartitions,
    /// Index of the owning host, by partition.
    owner: Vec<usize>,
    hosts: Vec<Owner>,
    /// Zero of the detectors' clock.
    began: Instant,
    _scratch: TempDir,
}

#[derive(Default)]
struct Owner {
    /// `None`: the host owns no partition.
    detector: Option<Detector>,
    /// Partitions with requests, by round that is not yet due.
    asked: BTreeMap<usize, BTreeSet<u32>>,
    due: BTreeSet<u32>,
    is_comparing: bool,
}

/// A batch of ids.
pub(super) struct Batch<'a> {
    pub(super) job: u32,
    pub(super) round: usize,
    pub(super) host: usize,
    pub(super) vm: usize,
    /// Number that the requesting host gave it.
    pub(super) number: u64,
    pub(super) ids: &'a [ShortId],
}

impl Owners {
    /// Opens `fewer` times fewer partitions than a fleet has; a batch of a scaled trace would otherwise have
    /// less than one id.
    pub(super) fn open(names: &[String], popular_ids: u64, fewer: u32, scratch: &Path) -> Result<Owners> {
        let hosts = (names.len() as u32).div_ceil(fewer);
        let partitions = IdPartitions::for_fleet(popular_ids, hosts);
        let place = |name: &str| names.iter().position(|other| other == name);
        let owner = (0..partitions.count()).map(|partition| {
            let who = answerers(names.iter().map(String::as_str), partition)?;
            place(who.owner)
        });
        let owner: Option<Vec<usize>> = owner.collect();
        let owner = owner.context("a fleet has a host")?;
        let scratch = tempfile::tempdir_in(scratch).context("making a scratch directory")?;
        let limits = DetectLimits { memory_bytes: MEMORY_BYTES, ..DetectLimits::default() };
        let popular_millionths = (super::super::inputs::chunks::POPULAR * 1e6) as u32;
        let owning: BTreeSet<usize> = owner.iter().copied().collect();
        let mut hosts: Vec<Owner> = names.iter().map(|_| Owner::default()).collect();
        for host in owning {
            let directory = scratch.path().join(&names[host]);
            let bits = partitions.bits();
            hosts[host].detector =
                Some(Detector::open_limited(&directory, bits, popular_millionths, limits)?);
        }
        Ok(Owners { partitions, owner, hosts, began: Instant::now(), _scratch: scratch })
    }

    /// Splits sorted ids into batches of one partition each; yields the index of the first id and the ids.
    pub(super) fn batches<'a>(&self, ids: &'a [ShortId]) -> impl Iterator<Item = (usize, &'a [ShortId])> {
        let partitions = self.partitions;
        let mut first = 0;
        ids.chunk_by(move |a, b| partitions.of(a) == partitions.of(b))
            .flat_map(|of_one| of_one.chunks(MAX_BATCH_IDS))
            .map(move |batch| {
                let at = first;
                first += batch.len();
                (at, batch)
            })
    }

    /// Gives a batch to the owner of its partition.
    pub(super) fn take(&mut self, batch: &Batch<'_>) -> Result<()> {
        let Some(first) = batch.ids.first() else {
            return Ok(());
        };
        let partition = self.partitions.of(first);
        let owner = &mut self.hosts[self.owner[partition as usize]];
        let detector = owner.detector.as_ref().context("the owner of a partition has a detector")?;
        let mut host = [0; 16];
        host[..8].copy_from_slice(&(batch.host as u64).to_le_bytes());
        let header = BatchHeader {
            job: u128::from(batch.job).to_le_bytes(),
            round: batch.round as u32,
            host,
            vm: batch.vm as u32,
            batch: batch.number,
            partition,
        };
        detector.take(&header, batch.ids)?;
        owner.asked.entry(batch.round).or_default().insert(partition);
        Ok(())
    }

    /// Makes the requests of a round due at all owners.
    pub(super) fn close(&mut self, round: usize) {
        for owner in &mut self.hosts {
            let places = owner.asked.remove(&round);
            owner.due.extend(places.into_iter().flatten());
        }
    }

    /// Compares the next due partition of a host, unless a comparison is running there. Returns its
    /// statistics, and its answers, which are valid from [`Owners::end`] on.
    pub(super) fn begin(
        &mut self,
        host: usize,
        log: &Log,
        now: Duration,
    ) -> Result<Option<(Compared, Vec<Reply>)>> {
        let owner = &mut self.hosts[host];
        if owner.is_comparing {
            return Ok(None);
        }
        let (Some(detector), Some(partition)) = (&owner.detector, owner.due.pop_first()) else {
            return Ok(None);
        };
        owner.is_comparing = true;
        let mut replies = Vec::new();
        let mut reply = |header: &BatchHeader, answers: &[Answer]| {
            replies.push(Reply { batch: header.batch, answers: answers.to_vec() });
        };
        let compared = detector.compare(partition, self.began + now, log, &mut reply)?;
        Ok(Some((compared, replies)))
    }

    pub(super) fn end(&mut self, host: usize) {
        self.hosts[host].is_comparing = false;
    }

    pub(super) fn count(&self) -> usize {
        self.hosts.len()
    }

    /// Number of hosts per partition, at least 1.
    pub(super) fn hosts_per_partition(&self) -> f64 {
        (self.hosts.len() as f64 / f64::from(self.partitions.count())).max(1.0)
    }
}

/// Disk I/O of a comparison: writing and reading the spool, reading the index, reading and rewriting the
/// candidates.
pub(super) fn io_bytes(compared: &Compared, chunks_per_id: f64) -> f64 {
    let spooled = 2.0 * compared.requests as f64 * copal::SPOOLED_ID_BYTES;
    let rows = (compared.popular + 2 * compared.candidates) as f64 * copal::ROW_BYTES;
    (spooled + rows) * chunks_per_id
}

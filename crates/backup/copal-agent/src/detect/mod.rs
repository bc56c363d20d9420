//! Duplicate detector: the owner of partitions answers the requests of all hosts.
//!
//! Paper: low-profile-dedup §3
//! Format: docs/formats/agent-detector.md
//!
//! Requests of a partition wait in its spool. A comparison reads them slice by slice, sorts the slice, and
//! merges it with two sorted runs on disk. One holds the popular ids, built from the log of popular packs.
//! The other holds the candidates: ids without a match so far, and the VMs that asked for them. An id that
//! enough VMs ask for is granted to one of them to store as popular.
//!
//! Invariants
//! - One partition is compared at a time. A comparison uses at most [`DetectLimits::memory_bytes`] bytes,
//!   regardless of the length of spools, runs and log.
//! - All files may be deleted at any time. Lost requests are asked again, a lost index run is rebuilt. Lost
//!   candidates and grants delay promotion or store an id twice; both copies are valid.
//! - Damaged data is deleted and logged, and never used for answers.
//!
//! Not here: the network, and the time at which a partition is due (`deadline`).

mod batch;
mod compare;
mod error;
mod file_name;
pub(crate) mod format;
mod generation;
mod grants;
mod index;
mod limits;
mod popular;
mod promotion;
mod run_file;
mod slice;
mod spool;
mod spool_reader;
#[cfg(test)]
mod tests;

pub use batch::{BatchHeader, MAX_BATCH_IDS};
pub use error::{BatchRefusal, DetectError};
pub use limits::DetectLimits;
pub use popular::{PopularPack, PopularPacks};

use crate::fleet::partition::IdPartitions;
use copal_backup::peers::{Answer, ShortId};
use error::Result;
use file_name::{COMPARED, FileName, SPOOL};
use format::{FilePartition, RunKind};
use grants::GrantTable;
use index::{CompleteTo, MOST_TRIES, PartitionIndex};
use parking_lot::Mutex;
use promotion::{IdTally, TallyTable};
use slice::RequestSlice;
use spool::SpoolFiles;
use spool_reader::SpoolReader;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing::warn;

/// Counts of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Batches that were answered.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Requests answered with an ordinal.
    pub hits: u64,
    /// Requests answered with "store as popular".
    pub stores_popular: u64,
    /// Requests answered with "ask again".
    pub carried: u64,
    /// Requests answered with "store as the VM's own".
    pub new: u64,
    /// The same although several VMs asked: the fraction of popular chunks is used up.
    pub refused: u64,
    /// Number of slices.
    pub slices: u64,
    /// Popular ids of the partition that are stored.
    pub popular: u64,
    /// Distinct requested ids that are not stored as popular.
    pub candidates: u64,
    /// Most bytes at once for requests or new rows of the index.
    pub peak_bytes: u64,
}

/// The owner's side of duplicate detection, with its files.
pub struct Detector {
    dir: PathBuf,
    partitions: IdPartitions,
    popular_millionths: u32,
    limits: DetectLimits,
    spools: Mutex<SpoolFiles>,
    /// Locked while a partition is compared.
    comparing: Mutex<Comparing>,
    refused: AtomicU64,
}

/// State that comparisons share.
struct Comparing {
    grants: GrantTable,
    complete_to: CompleteTo,
    /// Tallies of partitions that were compared since the detector was opened.
    tallies: TallyTable,
}

impl Detector {
    /// Opens the detector of a directory, which is created if missing, for 2^`bits` partitions. Of their ids
    /// the share `popular_millionths` may become popular. One process at a time.
    /// # Errors
    /// Too many bits; the directory cannot be created or read.
    pub fn open(dir: &Path, bits: u8, popular_millionths: u32) -> std::result::Result<Detector, DetectError> {
        Detector::open_limited(dir, bits, popular_millionths, DetectLimits::default())
    }

    /// Like [`Detector::open`], with other bounds.
    /// # Errors
    /// Errors of [`Detector::open`].
    pub fn open_limited(
        dir: &Path,
        bits: u8,
        popular_millionths: u32,
        limits: DetectLimits,
    ) -> std::result::Result<Detector, DetectError> {
        let partitions = IdPartitions::new(bits).ok_or(DetectError::TooManyBits { bits })?;
        let mut directories = std::fs::DirBuilder::new();
        let made = directories.recursive(true).mode(0o700).create(dir);
        made.map_err(|source| DetectError::io("create", dir, source))?;
        let mut spools = SpoolFiles::new(dir, bits, limits.spool_bytes);
        let list_failed = |source| DetectError::io("list", dir, source);
        for entry in std::fs::read_dir(dir).map_err(list_failed)? {
            let entry = entry.map_err(list_failed)?;
            let name = entry.file_name();
            let Some(found) = name.to_str().and_then(FileName::parse) else {
                continue;
            };
            if found.is_unfinished || found.bits != bits || found.partition >= partitions.count() {
                file_name::remove(&entry.path())?;
            } else if found.prefix == SPOOL || found.prefix == COMPARED {
                let len = entry.metadata().map_err(list_failed)?.len();
                spools.found(found.partition, found.prefix == COMPARED, len);
            }
        }
        let comparing = Comparing {
            grants: GrantTable::with_room_for(grants::most_grants(limits.grants_bytes())),
            complete_to: CompleteTo::new(),
            tallies: TallyTable::default(),
        };
        Ok(Detector {
            dir: dir.to_owned(),
            partitions,
            popular_millionths,
            limits,
            spools: Mutex::new(spools),
            comparing: Mutex::new(comparing),
            refused: AtomicU64::new(0),
        })
    }

    /// The partitions of the ids.
    pub fn partitions(&self) -> IdPartitions {
        self.partitions
    }

    /// Appends a batch to the spool of its partition. Blocks on the disk, and while another batch is
    /// appended.
    /// # Errors
    /// The reason of the refusal, which is counted too.
    pub fn take(&self, header: &BatchHeader, ids: &[ShortId]) -> std::result::Result<(), BatchRefusal> {
        let partition = header.partition;
        let taken = if partition >= self.partitions.count() {
            Err(BatchRefusal::NoSuchPartition(partition))
        } else if ids.is_empty() || ids.len() > MAX_BATCH_IDS {
            Err(BatchRefusal::Len(ids.len()))
        } else if ids.iter().any(|id| self.partitions.of(id) != partition) {
            Err(BatchRefusal::OutsidePartition(partition))
        } else {
            self.spools.lock().append(header, ids)
        };
        taken.inspect_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Batches that were refused since the detector was opened.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Partitions that have requests, ascending.
    pub fn waiting(&self) -> Vec<u32> {
        self.spools.lock().partitions()
    }

    /// Answers all waiting requests of a partition, batch by batch, in order of arrival. Blocks on the disk
    /// and while another partition is compared; batches are accepted meanwhile.
    /// # Errors
    /// Unanswered requests are kept for the next comparison, which may answer some again.
    pub fn compare(
        &self,
        partition: u32,
        now: Instant,
        popular: &dyn PopularPacks,
        reply: &mut dyn FnMut(&BatchHeader, &[Answer]),
    ) -> std::result::Result<Compared, DetectError> {
        let partitions = self.partitions.count();
        if partition >= partitions {
            return Err(DetectError::NoSuchPartition { partition, partitions });
        }
        let mut comparing = self.comparing.lock();
        if generation::begin(&self.dir, popular.generation())? {
            comparing.complete_to.clear();
        }
        let mut compared = Compared::default();
        loop {
            let Some(mut apart) = self.spools.lock().set_apart(partition)? else {
                return Ok(compared);
            };
            comparing.grants.lapse(now);
            let others = comparing.tallies.others(partition);
            let mut tally = None;
            let mut index = comparing.index(self, partition);
            compared.took(index.update(popular)?);
            let place = (self.partitions, partition);
            index.grants.lapse_ended(place, now, |vm| popular.is_backing_up(vm));
            while let Some((slice, now_known)) =
                self.compare_slice(&mut index, (now, others), popular, &mut apart.reader, &mut compared)?
            {
                tally = Some(now_known);
                slice.reply(reply);
            }
            if let Some(tally) = tally {
                comparing.tallies.set(partition, tally);
            }
            self.spools.lock().forget_compared(partition)?;
            if !apart.more_follows {
                return Ok(compared);
            }
        }
    }

    /// Compares the next slice; `None` at the end.
    fn compare_slice(
        &self,
        index: &mut PartitionIndex<'_>,
        (now, others): (Instant, IdTally),
        popular: &dyn PopularPacks,
        spool: &mut SpoolReader,
        compared: &mut Compared,
    ) -> Result<Option<(RequestSlice, IdTally)>> {
        let Some(mut slice) = RequestSlice::read(spool, self.limits.slice_bytes() as usize) else {
            return Ok(None);
        };
        let belongs = FilePartition { bits: self.partitions.bits(), partition: index.partition };
        let place = (self.partitions, index.partition);
        slice.declined = index.grants.lapse_declined(place, &slice.questions());
        let mut last = String::new();
        for _ in 0..MOST_TRIES {
            let merged = match index.open()? {
                Ok(run) => compare::merge(&self.dir, belongs, run, index.grants, &mut slice)?,
                Err(damaged) => Err(damaged),
            };
            match merged {
                Ok(merged) => {
                    let fraction = self.popular_millionths;
                    let granted = index.grants.of_partition(self.partitions, belongs.partition);
                    let share = (fraction, others);
                    let tally = merged.promote(granted, share, index.grants, now, &mut slice);
                    compared.count(&slice, merged.popular, merged.candidates);
                    merged.remember_candidates();
                    return Ok(Some((slice, tally)));
                }
                Err(damaged) => {
                    slice.clear();
                    match damaged.kind {
                        RunKind::Popular => {
                            index.discard(&damaged.what)?;
                            compared.took(slice.bytes() + index.update(popular)?);
                        }
                        RunKind::Candidates => self.discard_candidates(belongs, &damaged.what)?,
                    }
                    last = damaged.what;
                }
            }
        }
        Err(DetectError::KeepsBreaking { partition: belongs.partition, tries: MOST_TRIES, what: last })
    }

    fn discard_candidates(&self, belongs: FilePartition, what: &str) -> Result<()> {
        let path = file_name::path(&self.dir, RunKind::Candidates.file_prefix(), belongs);
        warn!(path = %path.display(), what, "damaged candidate run deleted, some chunks become popular later");
        file_name::remove(&path)
    }
}

impl Comparing {
    fn index<'a>(&'a mut self, detector: &'a Detector, partition: u32) -> PartitionIndex<'a> {
        PartitionIndex {
            dir: &detector.dir,
            partitions: detector.partitions,
            partition,
            most_rows: index::most_rows(detector.limits.new_rows_bytes()),
            complete_to: &mut self.complete_to,
            grants: &mut self.grants,
        }
    }
}

impl Compared {
    fn count(&mut self, slice: &RequestSlice, popular: u64, candidates: u64) {
        self.slices += 1;
        self.batches += slice.batches() as u64;
        self.requests += slice.answers.len() as u64;
        for answer in &slice.answers {
            match *answer {
                Answer::STORE_POPULAR => self.stores_popular += 1,
                Answer::CARRY => self.carried += 1,
                Answer::NEW => self.new += 1,
                Answer::FRACTION_USED => self.refused += 1,
                _ => self.hits += 1,
            }
        }
        (self.popular, self.candidates) = (popular, candidates);
        self.took(slice.bytes());
    }

    fn took(&mut self, bytes: usize) {
        self.peak_bytes = self.peak_bytes.max(bytes as u64);
    }
}

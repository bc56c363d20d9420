//! The plan of a host for a job: its plan file, read again for each job, and the division of its VMs into
//! rounds.

use crate::limits::budget::DEFAULT_MEMORY_BYTES;
use crate::limits::throttle::ByteThrottle;
use crate::plan::plan_file::{BackupPlan, PlanError, PlannedOptions, PlannedSource};
use crate::rounds;
use crate::rounds::{ANSWERS_BYTES, CHUNK_BYTES, PAGE_BYTES, RoundCount, RoundLimits, VmChanges};
use copal_backup::{DiskSource, Error, Repository, parts_of_disk};
use copal_disk::source::{
    ContentEvidence, Extent, Source, SourceError,
    open::{self, BitmapNames, ImageFormat},
};
use copal_live::{FleeceOptions, FreezeMethod, LiveDisk, LiveError, LiveVm, PointInTime};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use super::turns::PlanPart;

/// A host reads for at least two minutes per round: at 60 MB/s.
const LEAST_ROUND_BYTES: u64 = 7_200_000_000;
/// More rounds shorten backups only little.
const MOST_ROUNDS_FOR_TIME: u64 = 12;
/// VMs of one round at the default memory limit. Each has a thread, pack buffers and footers until it ends:
/// 1.7 MB were measured.
const USUAL_VMS: u64 = 12;
const VM_BYTES: u64 = 2 << 20;

/// Reason why the disks of a VM cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskOpenError {
    #[error(transparent)]
    Backup(#[from] Error),
    #[error(transparent)]
    Live(#[from] LiveError),
}

impl DiskOpenError {
    /// Short, stable code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            DiskOpenError::Backup(error) => error.code(),
            DiskOpenError::Live(_) => "source",
        }
    }
}

/// A VM to be backed up.
#[derive(Clone, Debug)]
pub(crate) struct PlannedBackup {
    pub(crate) vm: String,
    source: PlannedSource,
    pub(crate) options: PlannedOptions,
    /// Bytes to read, as far as the file system knows; unknown for a running QEMU.
    pub(crate) bytes: u64,
    /// Size of each disk; `None`: only its server knows the sizes.
    sizes: Option<Vec<u64>>,
}

/// VMs of a host in a job, divided into rounds.
#[derive(Clone, Debug)]
pub(crate) struct PlannedRounds {
    pub(crate) vms: Vec<PlannedBackup>,
    pub(crate) rounds: Vec<Vec<PlanPart>>,
    pub(crate) part_bytes: u64,
}

impl PlannedRounds {
    /// Reads the plan file and divides its VMs into rounds; of these only the VMs in `only`, if there are
    /// any. Memory may require more rounds than `count`.
    pub(crate) fn read(
        file: &Path,
        count: RoundCount,
        memory_bytes: u64,
        only: &[String],
    ) -> Result<PlannedRounds, PlanError> {
        let plan = BackupPlan::read(file)?;
        let mut vms = Vec::with_capacity(plan.vms.len());
        for vm in plan.vms {
            if !only.is_empty() && !only.contains(&vm.vm) {
                continue;
            }
            let (sizes, bytes) = match &vm.source {
                PlannedSource::Files(disks) => (
                    disks.iter().map(|(_, path)| size_of(path, vm.options)).collect(),
                    disks.iter().map(|(_, path)| bytes_of(path, vm.options)).sum(),
                ),
                PlannedSource::Qmp { .. } => (None, 0),
            };
            vms.push(PlannedBackup { vm: vm.vm, source: vm.source, options: vm.options, bytes, sizes });
        }
        Ok(PlannedRounds::of(vms, count, memory_bytes))
    }

    /// One round for each VM, which has all of its parts.
    pub(crate) fn one_at_a_time(self) -> PlannedRounds {
        let items = self.rounds.concat();
        let of_vm = |vm: usize| items.iter().copied().filter(|(of, _)| *of == vm).collect();
        PlannedRounds { rounds: (0..self.vms.len()).map(of_vm).collect(), ..self }
    }

    fn of(vms: Vec<PlannedBackup>, count: RoundCount, memory_bytes: u64) -> PlannedRounds {
        let total: u64 = vms.iter().map(|vm| vm.bytes).sum();
        let average = total.div_ceil(vms.len().max(1) as u64);
        let part_bytes = average.max(PAGE_BYTES);
        // Parts are those of the backup: pages of one disk each.
        let changes: Vec<VmChanges> = vms
            .iter()
            .map(|vm| {
                let parts = vm.parts(part_bytes);
                VmChanges { pages: vec![vm.bytes / parts as u64; parts], missed_windows: 0 }
            })
            .collect();
        let for_time = total.div_ceil(LEAST_ROUND_BYTES).clamp(1, MOST_ROUNDS_FOR_TIME);
        let for_memory = (vms.len() as u64).div_ceil(most_vms(memory_bytes));
        let wanted = match count {
            RoundCount::Auto => for_time,
            RoundCount::Exactly(rounds) => u64::from(rounds),
        };
        let limits = RoundLimits {
            rounds: RoundCount::Exactly(wanted.max(for_memory) as u32),
            answers_bytes: ANSWERS_BYTES,
            chunk_bytes: CHUNK_BYTES,
        };
        let rounds = rounds::plan(&changes, &limits);
        let items = rounds.iter().map(|round| {
            let parts = round.iter();
            parts.flat_map(|part| {
                let first = part.first_page as u32;
                (first..first + part.pages as u32).map(|page| (part.vm, page))
            })
        });
        PlannedRounds { rounds: items.flat_map(one_part_of_each).collect(), vms, part_bytes }
    }
}

/// Splits a round in which a VM has several parts. A part is answered when all parts of its round were asked,
/// and read when the previous one is stored: two parts of a VM in one round would wait for each other.
fn one_part_of_each(round: impl Iterator<Item = PlanPart>) -> Vec<Vec<PlanPart>> {
    let mut rounds: Vec<Vec<PlanPart>> = Vec::new();
    for item in round {
        let has_it = |round: &Vec<PlanPart>| round.iter().any(|(vm, _)| *vm == item.0);
        match rounds.iter_mut().find(|round| !has_it(round)) {
            Some(round) => round.push(item),
            None => rounds.push(vec![item]),
        }
    }
    rounds
}

/// Most VMs of a round at a memory limit.
fn most_vms(memory_bytes: u64) -> u64 {
    let more = memory_bytes.saturating_sub(DEFAULT_MEMORY_BYTES) / VM_BYTES;
    let fewer = DEFAULT_MEMORY_BYTES.saturating_sub(memory_bytes) / VM_BYTES;
    (USUAL_VMS + more).saturating_sub(fewer).max(1)
}

/// Bytes that a file uses on its disk; for a device its size. A path that cannot be examined fails when it is
/// opened.
fn bytes_of(path: &Path, options: PlannedOptions) -> u64 {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => (found.blocks() * 512).min(found.len()),
        _ => size_of(path, options).unwrap_or(0),
    }
}

/// Size of the data to read.
fn size_of(path: &Path, options: PlannedOptions) -> Option<u64> {
    open::size_bytes(path, format_of(options)).ok().flatten()
}

fn format_of(options: PlannedOptions) -> ImageFormat {
    match options.is_raw {
        true => ImageFormat::Raw,
        false => ImageFormat::Auto,
    }
}

impl PlannedBackup {
    /// Number of parts of its backup; a VM of unknown size has one part.
    fn parts(&self, part_bytes: u64) -> usize {
        let disks = match &self.source {
            PlannedSource::Files(disks) => disks.len(),
            PlannedSource::Qmp { nodes, .. } => nodes.len(),
        };
        let parts = |sizes: &Vec<u64>| sizes.iter().map(|size| parts_of_disk(*size, part_bytes)).sum();
        self.sizes.as_ref().map_or(disks, parts).max(1)
    }

    /// Bytes of one of its parts, where other VMs' parts have `part_bytes`.
    pub(crate) fn part_bytes(&self, part_bytes: u64) -> u64 {
        self.sizes.as_ref().map_or(u64::MAX, |_| part_bytes)
    }

    /// Opens the disks with a read limit; for a running QEMU at a point in time, which must be ended after
    /// the backup.
    pub(crate) fn open(
        &self,
        repository: &Repository,
        limit: &Arc<ByteThrottle>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Option<PointInTime>, Vec<DiskSource>), DiskOpenError> {
        let (point, disks) = match &self.source {
            PlannedSource::Files(files) => {
                let open = |file| open_file(file, self.options);
                let opened = files.iter().map(open).collect::<Result<_, Error>>();
                (None, opened?)
            }
            PlannedSource::Qmp { socket, nodes, nbd, freeze } => {
                let mut vm = self.running(socket, nodes, nbd.as_ref(), freeze.as_ref());
                vm.look_up_bitmaps(repository)?;
                let (point, mut disks) = PointInTime::take(&vm, repository.info().domain)?;
                if self.options.is_raw {
                    let guessed = disks.iter_mut().filter(|disk| disk.content == ContentEvidence::Guessed);
                    guessed.for_each(|disk| disk.content = ContentEvidence::Stated);
                }
                (Some(point), disks)
            }
        };
        let limited = disks.into_iter().map(|disk| DiskSource {
            source: Box::new(ThrottledSource {
                source: disk.source,
                limit: Arc::clone(limit),
                stop: Arc::clone(stop),
            }),
            ..disk
        });
        Ok((point, limited.collect()))
    }

    fn running(
        &self,
        socket: &Path,
        nodes: &[(String, String)],
        nbd: Option<&PathBuf>,
        freeze: Option<&FreezeMethod>,
    ) -> LiveVm {
        let disks = nodes.iter().map(|(name, node)| LiveDisk {
            name: name.clone(),
            node: node.clone(),
            serial: String::new(),
            began_with_base: None,
            sentinel: None,
        });
        LiveVm {
            name: self.vm.clone(),
            qmp: socket.to_owned(),
            disks: disks.collect(),
            nbd_socket: nbd.cloned(),
            fleece: FleeceOptions::default(),
            freeze: freeze.cloned(),
        }
    }
}

fn open_file((name, path): &(String, PathBuf), options: PlannedOptions) -> Result<DiskSource, Error> {
    let opened = open::open(path, format_of(options), BitmapNames::default())
        .map_err(|error| Error::Source { disk: name.clone(), error })?;
    Ok(DiskSource {
        identity: opened.identity,
        content: opened.content,
        warnings: opened.warnings,
        doubts: opened.doubts,
        no_changes: opened.no_changes,
        ..DiskSource::new(name, opened.source)
    })
}

/// A source whose reads are throttled.
struct ThrottledSource {
    source: Box<dyn Source>,
    limit: Arc<ByteThrottle>,
    stop: Arc<AtomicBool>,
}

impl Source for ThrottledSource {
    fn size_bytes(&self) -> Option<u64> {
        self.source.size_bytes()
    }

    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError> {
        self.source.extent_at(offset)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        // After a cancellation the backup ends at its next safe point.
        let _ = self.limit.take(buf.len() as u64, &self.stop);
        self.source.read_at(offset, buf)
    }

    fn head(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.source.head(buf)
    }

    fn tail(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.source.tail(buf)
    }

    fn confirm(&self) -> Result<Option<String>, SourceError> {
        self.source.confirm()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn vms(count: usize) -> Vec<PlannedBackup> {
        let vm = |number| PlannedBackup {
            vm: format!("vm{number}"),
            source: PlannedSource::Files(vec![("sda".into(), "disk".into())]),
            options: PlannedOptions::default(),
            bytes: 1 << 20,
            sizes: Some(vec![1 << 20]),
        };
        (0..count).map(vm).collect()
    }

    #[test]
    fn no_round_has_two_parts_of_a_vm_and_parts_stay_in_order() {
        const GIB: u64 = 1 << 30;
        let mut vms = vms(5);
        // A sparse disk: little to read, but 40 parts by its size; another VM has two disks.
        vms[1].sizes = Some(vec![40 * GIB]);
        vms[3].sizes = Some(vec![GIB, GIB]);
        for count in [RoundCount::Auto, RoundCount::Exactly(1), RoundCount::Exactly(7)] {
            let planned = PlannedRounds::of(vms.clone(), count, DEFAULT_MEMORY_BYTES);
            let parts_of = |vm| {
                let items = planned.rounds.iter().flatten().filter(move |item| item.0 == vm);
                items.map(|item| item.1).collect::<Vec<_>>()
            };
            for (vm, parts) in [(0, 1), (1, 40), (2, 1), (3, 2), (4, 1)] {
                assert_eq!(parts_of(vm), (0..parts).collect::<Vec<_>>(), "{planned:?}");
            }
            for round in &planned.rounds {
                let vms: BTreeSet<usize> = round.iter().map(|item| item.0).collect();
                assert_eq!(vms.len(), round.len(), "{planned:?}");
            }
            // As many rounds as the disk has parts, and the requested ones.
            assert!((40..40 + 7).contains(&planned.rounds.len()), "{planned:?}");
        }
    }

    #[test]
    fn no_round_has_more_vms_than_the_memory_holds() {
        for (count, memory_bytes, most) in [
            (36, DEFAULT_MEMORY_BYTES, 12),
            (5, DEFAULT_MEMORY_BYTES, 12),
            (36, 200_000_000, 61),
            (36, 80_000_000, 5),
        ] {
            for rounds in [RoundCount::Auto, RoundCount::Exactly(1)] {
                let planned = PlannedRounds::of(vms(count), rounds, memory_bytes);
                assert!(planned.rounds.iter().all(|round| round.len() <= most), "{planned:?}");
                assert_eq!(planned.rounds.iter().map(Vec::len).sum::<usize>(), count);
                assert_eq!(planned.rounds.len(), count.div_ceil(most));
            }
        }
        assert_eq!(most_vms(0), 1);
    }
}

//! Checks packs in the order in which they were written: headers and footers, and every byte of the chosen ones.
//!
//! The calling thread reads, and takes the findings in the order of the packs; workers compute them. So the report does
//! not depend on the number of workers.
//!
//! Memory: at most [`MOST_BYTES`] of blocks, and a frame for each worker.

use crate::catalog::fields::SessionId;
use crate::check::affected::DamagedPlaces;
use crate::check::scan::{self, ScanFinding, ScanWorker, ScannedRun};
use crate::index::reindex::{PackScope, StoredPack, for_each_pack};
use crate::packs::ordered_pool::{OrderedQueue, PoolSize, PoolWorker, run_in_order};
use crate::packs::pack::format::PackHeader;
use crate::packs::pack::reader::{self, PackFooter};
use crate::packs::pack_store::{FOOTERS_AHEAD, PackStore};
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{CheckReport, ReadData};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of blocks that were read and not yet checked.
const MOST_BYTES: usize = 24 << 20;
/// Runs for each worker: one at work and one that waits.
const RUNS_OF_A_WORKER: usize = 2;

/// All packs, in the order in which they were written, which is about that of their places.
pub(super) struct ChosenPacks {
    packs: Vec<Arc<StoredPack>>,
    read_data: ReadData,
}

impl ChosenPacks {
    /// Lists the packs of a repository.
    /// # Errors
    /// Errors of the store.
    pub(super) fn list(pack_store: &PackStore, read_data: ReadData) -> Result<ChosenPacks> {
        let mut packs = Vec::new();
        for_each_pack(pack_store, PackScope::All, |pack| {
            packs.push(Arc::new(pack));
            Ok(())
        })?;
        packs.sort_unstable_by_key(|pack| pack.info.fid);
        Ok(ChosenPacks { packs, read_data })
    }

    /// Whether every byte of the pack is read.
    fn is_chosen(&self, pack: &StoredPack) -> bool {
        match self.read_data {
            ReadData::No => false,
            ReadData::All => true,
            ReadData::Slice { index, of } => {
                pack.number.0 % u64::from(of.max(1)) == u64::from(index.saturating_sub(1))
            }
        }
    }

    fn chosen_bytes(&self) -> u64 {
        self.packs.iter().filter(|pack| self.is_chosen(pack)).map(|pack| pack.info.size).sum()
    }
}

/// Checks packs, and notes damage in `report`.
/// # Errors
/// `Cancelled`; errors of the store that are not damage.
pub(super) fn check_packs(
    pack_store: &PackStore,
    packs: &ChosenPacks,
    unfinished: &HashSet<SessionId>,
    report: &mut CheckReport,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<DamagedPlaces> {
    progress.stage(Stage::ReadData, "packs", packs.chosen_bytes());
    // More of them would wait for memory.
    let workers = pack_store.workers().min(MOST_BYTES / scan::RUN_BYTES);
    let budget_bytes = (workers * RUNS_OF_A_WORKER * scan::RUN_BYTES).min(MOST_BYTES);
    let mut findings = FoundDamage {
        pack_store,
        unfinished,
        report,
        places: DamagedPlaces::default(),
        progress,
        pack: None,
    };
    let make = || ScanWorker::new(pack_store);
    let mut take = |step| findings.take(step);
    run_in_order(
        PoolSize { workers, budget_bytes },
        || Ok(StepWorker(make()?)),
        &mut take,
        |queue| PackReader { pack_store, cancel, queue }.read_all(packs),
    )?;
    Ok(findings.places)
}

/// A step of a check, in the order of the packs.
enum PackStep {
    /// A pack begins.
    Begin(Arc<StoredPack>),
    /// Its header, if its blocks are not read.
    Header(Result<PackHeader>),
    /// It has a damage that hides its frames.
    Damage(Error),
    /// Its frames are scanned.
    Scan(Arc<PackFooter>),
    Scanned(ScannedRun),
    /// All of its bytes were scanned.
    End,
}

struct StepWorker<'a>(ScanWorker<'a>);

impl PoolWorker for StepWorker<'_> {
    type Job = scan::BlockRun;
    type Done = PackStep;

    fn run(&mut self, run: scan::BlockRun) -> PackStep {
        PackStep::Scanned(self.0.scan(run))
    }
}

/// Reads packs.
struct PackReader<'a, 'q, 'w> {
    pack_store: &'a PackStore,
    cancel: &'a CancelFlag,
    queue: &'a mut OrderedQueue<'q, StepWorker<'w>>,
}

impl PackReader<'_, '_, '_> {
    fn read_all(mut self, packs: &ChosenPacks) -> Result<()> {
        let place = |pack: &Arc<StoredPack>| (pack.home, pack.volume, pack.number);
        for (at, pack) in packs.packs.iter().enumerate() {
            if at.is_multiple_of(FOOTERS_AHEAD) {
                self.pack_store.load_footers(packs.packs[at..].iter().map(place))?;
            }
            self.check_cancel()?;
            self.queue.ready(PackStep::Begin(Arc::clone(pack)))?;
            self.read(pack, packs.is_chosen(pack))?;
        }
        Ok(())
    }

    fn read(&mut self, pack: &StoredPack, is_chosen: bool) -> Result<()> {
        let footer = match self.pack_store.footer(pack.home, pack.volume, pack.number) {
            Ok(Some((footer, _))) => Ok(footer),
            Ok(None) => Err(reader::damaged(pack.number, "it is missing")),
            Err(error) => Err(error),
        };
        let footer = match footer {
            Ok(footer) if is_chosen => footer,
            footer => {
                let header = reader::header(&*self.pack_store.volumes.store, pack.vid, pack.number);
                self.queue.ready(PackStep::Header(header))?;
                return footer.err().map_or(Ok(()), |error| self.queue.ready(PackStep::Damage(error)));
            }
        };
        self.queue.ready(PackStep::Scan(Arc::clone(&footer)))?;
        let pack_store = self.pack_store;
        scan::read_runs(pack_store, pack.vid, &footer, &mut |run| {
            self.check_cancel()?;
            self.queue.compute(run, scan::RUN_BYTES)
        })?;
        self.queue.ready(PackStep::End)
    }

    fn check_cancel(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled { kept_bytes: None }) } else { Ok(()) }
    }
}

/// Notes the damage of packs in a report.
struct FoundDamage<'a> {
    pack_store: &'a PackStore,
    unfinished: &'a HashSet<SessionId>,
    report: &'a mut CheckReport,
    places: DamagedPlaces,
    progress: &'a dyn Progress,
    pack: Option<CheckedPack>,
}

/// The pack whose steps are taken.
struct CheckedPack {
    stored: Arc<StoredPack>,
    /// Present if its frames are scanned.
    footer: Option<Arc<PackFooter>>,
    is_clean: bool,
    /// Damaged blocks, with their number in the report.
    bad_blocks: Vec<(Range<u64>, usize)>,
    /// Lost frames.
    lost: Vec<u32>,
}

impl FoundDamage<'_> {
    fn take(&mut self, step: PackStep) -> Result<()> {
        if let PackStep::Begin(stored) = step {
            self.report.packs += 1;
            let (bad_blocks, lost) = (Vec::new(), Vec::new());
            self.pack = Some(CheckedPack { stored, footer: None, is_clean: true, bad_blocks, lost });
            return Ok(());
        }
        let Some(mut pack) = self.pack.take() else { return Ok(()) };
        match step {
            PackStep::Begin(_) => {}
            PackStep::Header(header) => self.header(&pack, header)?,
            PackStep::Damage(error) => self.report.note(error, None)?,
            PackStep::Scan(footer) => pack.footer = Some(footer),
            PackStep::Scanned(run) => self.scanned(&mut pack, run)?,
            PackStep::End => self.end(&pack),
        }
        self.pack = Some(pack);
        Ok(())
    }

    fn header(&mut self, pack: &CheckedPack, header: Result<PackHeader>) -> Result<()> {
        let header = match header {
            Ok(header) => header,
            Err(error) => return self.report.note(error, None),
        };
        self.report.unfinished_packs += u64::from(self.unfinished.contains(&header.session));
        let domain = self.pack_store.volumes.domain.as_bytes();
        if header.domain == *domain && header.kind == pack.stored.home.kind() {
            return Ok(());
        }
        let number = pack.stored.number;
        self.report.note(reader::damaged(number, "its header does not match its location"), None)
    }

    fn scanned(&mut self, pack: &mut CheckedPack, run: ScannedRun) -> Result<()> {
        self.report.decoded_frames += run.frames;
        self.report.decoded_bytes += run.frame_bytes;
        for finding in run.findings {
            match finding {
                ScanFinding::Head(head) => {
                    self.header(pack, reader::header_of(pack.stored.number, &head))?;
                }
                ScanFinding::BadBlock(range, error) => {
                    pack.is_clean = false;
                    let noted = self.report.note_at(error)?;
                    pack.bad_blocks.extend(noted.map(|noted| (range, noted)));
                }
                ScanFinding::LostFrame(slot, error) => {
                    pack.is_clean = false;
                    pack.lost.push(slot);
                    if let Some(footer) = &pack.footer {
                        self.pack_store.note_damaged(footer, slot);
                    }
                    self.places.add(pack.stored.number, slot, self.report.note_at(error)?);
                }
            }
        }
        Ok(())
    }

    /// A lost frame in a damaged block is also counted for that block.
    fn end(&mut self, pack: &CheckedPack) {
        let Some(footer) = &pack.footer else { return };
        for (block, noted) in &pack.bad_blocks {
            let overlaps = |slot: &u32| {
                let row = &footer.rows[*slot as usize];
                u64::from(row.offset) < block.end && row.end() > block.start
            };
            for slot in pack.lost.iter().copied().filter(overlaps) {
                self.places.add(footer.number, slot, Some(*noted));
            }
        }
        if pack.is_clean {
            self.report.verified_packs.insert(pack.stored.info.fid);
        }
        self.progress.advance(pack.stored.info.size);
    }
}

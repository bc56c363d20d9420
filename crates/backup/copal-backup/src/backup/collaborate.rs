//! A backup in two passes: between them the backup asks other hosts for popular chunks.
//!
//! A disk is divided into parts of whole pages. The first pass over a part names the chunks that the VM does
//! not have, and spools the names. When the answers have come, the second pass first stores the popular
//! chunks that were assigned to this host, then the rest. A host that waits for a popular chunk thus waits
//! only for that first step. No host stores the rest of a part before the chunks that others wait for, so
//! hosts cannot wait for each other in a circle.
//!
//! A stream, which can be read only once and in order, is backed up without the other hosts.

use super::BackupContext;
use super::decide::{ChunkDecider, DecidedPart, StepSink};
use super::packer::TreePacker;
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::plan::PlannedDisk;
use super::popular::PopularPacker;
use super::reader::{DiskReader, pages_of};
use super::second_pass::PartAnswers;
use super::spool::{ChunkSpool, SpoolWriter};
use crate::catalog::fields::SessionId;
use crate::request::BackupCounts;
use crate::request::error::{Error, Result};
use crate::request::peers::Writer;
use crate::request::peers::{Answer, Peers, Turn};
use crate::snapshot::recipe::PAGE_BYTES;
use std::ops::Range;
use std::path::PathBuf;
use uuid::Uuid;

/// The means by which a backup shares popular chunks with other hosts.
pub struct Collaboration<'a> {
    /// The other hosts.
    pub peers: &'a dyn Peers,
    /// Directory on this host for spools: 36 bytes for each chunk that the VM does not have.
    pub spool_directory: PathBuf,
    /// Name of this host, recorded in the popular packs that it writes; a host with another name checks them.
    pub writer: Writer,
    /// Bytes of a disk in one part, rounded up to whole GiB. A part never spans two disks.
    pub part_bytes: u64,
}

/// One part of a disk.
struct DiskPart {
    number: u32,
    pages: Range<u64>,
    is_first: bool,
    is_last: bool,
}

impl Collaboration<'_> {
    /// Reads and stores all disks.
    pub(super) fn read(
        &self,
        reading: &BackupContext<'_>,
        session: SessionId,
        planned: &[PlannedDisk],
        packer: &mut TreePacker<'_>,
    ) -> Result<PipelineResult<BackupCounts>> {
        let mut popular = PopularPacker::new(reading.parts, session, self.writer)?;
        let mut counts = BackupCounts::default();
        let mut number = 0;
        for (disk, (source, plan)) in reading.request.disks.iter().zip(planned).enumerate() {
            let Some(size) = source.source.size_bytes() else {
                match reading.on_line(packer, |reader| reader.disk(disk, &plan.plan))? {
                    Ok(counted) => counts.add(&counted),
                    Err(stop) => return Ok(Err(stop)),
                }
                continue;
            };
            let mut data = plan.plan.data_at_first();
            for pages in parts_of(size, self.part_bytes) {
                let part = DiskPart {
                    number,
                    is_first: pages.start == 0,
                    is_last: pages.end >= pages_of(size),
                    pages,
                };
                number += 1;
                match self.part(reading, (disk, plan, size), &part, &mut data, packer, &mut popular)? {
                    Ok(counted) => counts.add(&counted),
                    Err(stop) => return Ok(Err(stop)),
                }
            }
        }
        counts.stored_bytes = popular.stored_bytes();
        Ok(Ok(counts))
    }

    fn part(
        &self,
        reading: &BackupContext<'_>,
        (disk, plan, size): (usize, &PlannedDisk, u64),
        part: &DiskPart,
        data: &mut u64,
        packer: &mut TreePacker<'_>,
        popular: &mut PopularPacker<'_>,
    ) -> Result<PipelineResult<BackupCounts>> {
        let mut asked = match self.first_pass(reading, (disk, plan, size), part, data) {
            Ok(asked) => asked,
            Err(stop) => return Ok(Err(stop)),
        };
        let mut counts = std::mem::take(&mut asked.counts);
        let storing = Turn::Store(part.number);
        let stored = {
            let _turn = self.turn(reading.vm, storing)?;
            reading.on_line(packer, |reader| {
                reader.store_popular(disk, &asked.spool, &asked.answers, popular)?;
                if popular.finish()? {
                    self.peers.stored();
                }
                Ok(())
            })?
        };
        match stored {
            Ok(counted) => counts.add(&counted),
            Err(stop) => return Ok(Err(stop)),
        }
        if let Err(stop) = self.carried(reading, &mut asked) {
            return Ok(Err(stop));
        }
        let _turn = self.turn(reading.vm, storing)?;
        let state = reading.parts.catalog().popular()?;
        let rest = reading.on_line(packer, |reader| {
            let said = PartAnswers { answers: &asked.answers, popular: &state };
            reader.store_rest(disk, &asked.spool, &said, popular)
        })?;
        Ok(rest.map(|counted| {
            counts.add(&counted);
            counts
        }))
    }

    /// Names the chunks of a part, asks for those that the VM does not have, and waits for the answers.
    fn first_pass(
        &self,
        reading: &BackupContext<'_>,
        (disk, plan, size): (usize, &PlannedDisk, u64),
        part: &DiskPart,
        data: &mut u64,
    ) -> PipelineResult<AnsweredPart> {
        let turn = self.turn(reading.vm, Turn::Read(part.number))?;
        let scope = reading.scope()?;
        let sink = StepSink::Spool(SpoolWriter::new(&self.spool_directory)?);
        let decider = ChunkDecider::new(reading.in_flight, sink);
        let mut reader = DiskReader::new(&scope, &decider, None)?;
        let source = reader.choose_disk(disk);
        if part.is_first {
            reader.begin_disk(source, &plan.plan)?;
        }
        reader.pages(source, &plan.plan, size, part.pages.clone())?;
        *data = decider.data_after(*data);
        if part.is_last {
            reader.end_disk(size, *data)?;
        }
        let mut counts = reader.counts;
        drop(reader);
        let DecidedPart { sink: StepSink::Spool(spool), counts: decided, .. } = decider.into_part() else {
            return Err(PipelineEnd::Disconnected);
        };
        counts.add(&decided);
        let spool = spool.finish(reading.vm)?;
        counts.asked_chunks = spool.asked;
        let mut answers = Vec::new();
        if spool.asked > 0 {
            let mut ids = spool.ids(|_| true).map_err(|error| failed(&error))?;
            let sent = self.peers.send(reading.vm, &mut ids).map_err(|error| failed(&error))?;
            drop(turn);
            answers = self.peers.receive(sent);
        }
        answers.resize(spool.asked as usize, Answer::UNANSWERED);
        Ok(AnsweredPart { spool, answers, counts })
    }

    /// Asks again for chunks that other hosts are storing, until all are found or the deadline passes.
    fn carried(&self, reading: &BackupContext<'_>, asked: &mut AnsweredPart) -> PipelineResult<()> {
        let AnsweredPart { spool, answers, .. } = asked;
        while answers.contains(&Answer::CARRY) {
            if reading.watched.cancel.is_cancelled() {
                return Err(PipelineEnd::Cancelled);
            }
            let is_carried = |number: u64| answers.get(number as usize) == Some(&Answer::CARRY);
            let mut ids = spool.ids(is_carried).map_err(|error| failed(&error))?;
            let again = self.peers.ask_again(reading.vm, &mut ids);
            drop(ids);
            let Some(again) = again.map_err(|error| failed(&error))? else {
                return Ok(());
            };
            let carried = answers.iter_mut().filter(|answer| **answer == Answer::CARRY);
            for (answer, new) in carried.zip(again) {
                // No popular chunk is stored in this phase, so such an answer does not replace the old one.
                if new != Answer::STORE_POPULAR && new != Answer::UNANSWERED {
                    *answer = new;
                }
            }
        }
        Ok(())
    }

    /// Waits for a turn. The turn ends when the guard is dropped.
    pub(crate) fn turn(&self, vm: Uuid, turn: Turn) -> Result<TurnGuard<'_>> {
        let peers = self.peers;
        peers.begin(vm, turn).map_err(|reason| Error::Ended { reason })?;
        Ok(TurnGuard { peers, vm, turn })
    }
}

/// Number of parts of a disk of that size.
pub fn parts_of_disk(size_bytes: u64, part_bytes: u64) -> usize {
    parts_of(size_bytes, part_bytes).len()
}

/// The pages of each part of a disk of that size; at least one part.
fn parts_of(size: u64, part_bytes: u64) -> Vec<Range<u64>> {
    let each = part_bytes.div_ceil(PAGE_BYTES).max(1);
    let pages = pages_of(size);
    let starts = (0..pages.max(1)).step_by(usize::try_from(each).unwrap_or(usize::MAX));
    starts.map(|start| start..start.saturating_add(each).min(pages)).collect()
}

/// A part, with the answers for its chunks.
struct AnsweredPart {
    spool: ChunkSpool,
    /// In the order of the questions.
    answers: Vec<Answer>,
    counts: BackupCounts,
}

/// Ends a turn when dropped.
pub(crate) struct TurnGuard<'a> {
    peers: &'a dyn Peers,
    vm: Uuid,
    turn: Turn,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.peers.end(self.vm, self.turn);
    }
}

/// Error of a spool that cannot be read or written.
pub(crate) fn failed(error: &std::io::Error) -> Error {
    Error::Spool { detail: error.to_string() }
}

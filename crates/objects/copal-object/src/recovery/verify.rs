//! Verification of data that no flush is known to cover (OBJ-1).

use super::{RecoverySource, WalkedRecord};
use crate::{
    ReadCheck,
    format::{
        frame, hash128,
        ops::{ObjectTraits, RecordOp},
        run::PageRun,
        sum_rule::SumRule,
    },
    tables::{trailer_pages, unit_pages},
};
use bytes::Bytes;
use copal_device::DeviceError;
use std::ops::Range;

/// Whether all data that `ops` of `record` wrote in epochs after `flushed_epoch` is on the device.
pub(crate) fn data_is_there(
    source: &RecoverySource<'_>,
    record: &WalkedRecord,
    ops: &[RecordOp],
    flushed_epoch: u64,
) -> Result<bool, DeviceError> {
    let inside =
        |run: PageRun| record.data.is_some_and(|(data, _)| data.at <= run.at && run.end() <= data.end());
    if let Some((data, sum)) = record.data
        && run_sum(source, data)? != sum
    {
        return Ok(false);
    }
    let inline = inline_of(ops);
    for op in ops {
        let there = match op {
            RecordOp::Map { run, rule, sums, .. } if inline.iter().any(|(part, _)| part.overlaps(*run)) => {
                inline_fits(
                    &inline,
                    *run,
                    sums,
                    (*rule, unit_of(*run, sums, source.page_bytes)),
                    source.page_bytes,
                )
            }
            RecordOp::Map { run, .. } | RecordOp::StreamFrame { run, .. } if inside(*run) => true,
            RecordOp::StreamFrame { run, frame, .. } => frame_is_there(source, *run, *frame)?,
            RecordOp::Map { run, epoch, rule, sums, .. } => {
                let epoch = if *epoch == 0 { record.header.epoch } else { *epoch };
                epoch <= flushed_epoch
                    || map_is_there(source, *run, sums, (*rule, unit_of(*run, sums, source.page_bytes)))?
            }
            RecordOp::Publish { what, len, runs, trailer, epoch, .. } => {
                *epoch <= flushed_epoch || published_is_there(source, runs, *len, *trailer, what)?
            }
            RecordOp::Move { to, sum, epoch, .. } => *epoch <= flushed_epoch || run_sum(source, *to)? == *sum,
            // The new length is durable with the flush of its epoch, or not yet.
            RecordOp::Grow { pages } => {
                let bytes = pages.saturating_mul(source.page_bytes as u64);
                source.device.geometry().size >= bytes
            }
            _ => true,
        };
        if !there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The inline data of a record.
pub(super) fn inline_of(ops: &[RecordOp]) -> Vec<(PageRun, &Bytes)> {
    let data = ops.iter().filter_map(|op| match op {
        RecordOp::Inline { run, bytes } => Some((*run, bytes)),
        _ => None,
    });
    data.collect()
}

/// Whether the inline data is complete for `run`, and has its sums.
fn inline_fits(
    inline: &[(PageRun, &Bytes)],
    run: PageRun,
    sums: &[u32],
    (rule, unit): (SumRule, u32),
    page_bytes: usize,
) -> bool {
    let mut all = Vec::with_capacity(run.pages as usize * page_bytes);
    for (part, bytes) in inline.iter().filter(|(part, _)| part.overlaps(run)) {
        if part.at == run.at + (all.len() / page_bytes) as u64 {
            all.extend_from_slice(bytes);
        }
    }
    all.len() == run.pages as usize * page_bytes && rule.unit_sums(&all, unit, page_bytes) == sums
}

/// Sum of the pages of a run.
fn run_sum(source: &RecoverySource<'_>, run: PageRun) -> Result<u32, DeviceError> {
    crate::state::pieces(run, CHUNK_PAGES)
        .try_fold(0, |sum, piece| Ok(SumRule::Hashes.sum(sum, &source.read(piece)?, source.page_bytes)))
}

/// Whether `run` holds frame number `number`.
fn frame_is_there(source: &RecoverySource<'_>, run: PageRun, number: u64) -> Result<bool, DeviceError> {
    if run.pages as usize > frame::FRAME_BYTES_MAX / source.page_bytes {
        return Ok(false);
    }
    let bytes = source.read(run)?;
    Ok(frame::decode(&bytes).is_ok_and(|(header, _)| header.frame == number))
}

/// Pages under each of `sums`. Derived from the record, not from the object: the record may have given the id
/// to another object since.
fn unit_of(run: PageRun, sums: &[u32], page_bytes: usize) -> u32 {
    let check = if sums.len() as u64 == u64::from(run.pages) { ReadCheck::Pages } else { ReadCheck::Caller };
    unit_pages(check, page_bytes)
}

fn map_is_there(
    source: &RecoverySource<'_>,
    run: PageRun,
    sums: &[u32],
    (rule, unit): (SumRule, u32),
) -> Result<bool, DeviceError> {
    for (chunk, sums) in chunks(run, sums, unit) {
        if !damaged_units(source, chunk, sums, (rule, unit))?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Pages read at once while verifying.
const CHUNK_PAGES: u32 = 256;

/// Cuts a run and the sums of its units into chunks of whole units.
pub(crate) fn chunks(run: PageRun, sums: &[u32], unit: u32) -> impl Iterator<Item = (PageRun, &[u32])> {
    let units = (CHUNK_PAGES / unit).max(1);
    crate::state::pieces(run, units * unit).zip(sums.chunks(units as usize))
}

/// Units of a chunk whose bytes do not fit their sums.
pub(crate) fn damaged_units(
    source: &RecoverySource<'_>,
    chunk: PageRun,
    sums: &[u32],
    (rule, unit): (SumRule, u32),
) -> Result<Vec<PageRun>, DeviceError> {
    let bytes = source.read(chunk)?;
    let units = crate::state::pieces(chunk, unit).zip(bytes.chunks(unit as usize * source.page_bytes));
    let damaged = units.zip(sums).filter(|((_, bytes), sum)| rule.sum(0, bytes, source.page_bytes) != **sum);
    Ok(damaged.map(|((run, _), _)| run).collect())
}

/// Compares data and trailer of a published object with the trailer's hash. Stops at the first wrong byte.
fn published_is_there(
    source: &RecoverySource<'_>,
    runs: &[PageRun],
    len: u64,
    trailer: u128,
    what: &ObjectTraits,
) -> Result<bool, DeviceError> {
    let Some(published) = PublishedSums::read(source, runs, len, trailer, what)? else {
        return Ok(false);
    };
    for units in published.chunks() {
        if !published.damaged_units(source, units)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Damaged units of a published object, by pages inside it; the whole object if its sums are damaged. Units
/// that the medium cannot read count as damaged. `summed` receives every run that was compared with a sum,
/// and whether it is data.
/// # Errors
/// A read failed with a passing error.
pub(crate) fn unit_damage(
    source: &RecoverySource<'_>,
    runs: &[PageRun],
    len: u64,
    trailer: u128,
    what: &ObjectTraits,
    summed: &mut dyn FnMut(PageRun, bool),
) -> Result<Vec<Range<u64>>, DeviceError> {
    let data = len.div_ceil(source.page_bytes as u64);
    let published = match PublishedSums::read(source, runs, len, trailer, what) {
        Ok(Some(published)) => published,
        Err(error) if error.is_passing() => return Err(error),
        Ok(None) | Err(_) => return Ok(std::iter::once(0..data).collect()),
    };
    let all: Vec<u64> = runs.iter().flat_map(|run| run.at..run.end()).collect();
    joined(&all[data as usize..]).into_iter().for_each(|run| summed(run, false));
    let mut damaged = Vec::new();
    for units in published.chunks() {
        damaged.extend(match published.damaged_units(source, units.clone()) {
            Ok(damaged) => damaged,
            Err(error) if error.is_passing() => return Err(error),
            // A sector is unreadable: the units are read one by one.
            Err(_) => published.damaged_one_by_one(source, units.clone())?,
        });
        for index in units {
            let pages = published.unit_pages(index..index + 1);
            joined(&published.pages[pages.start as usize..pages.end as usize])
                .into_iter()
                .for_each(|run| summed(run, true));
        }
    }
    Ok(damaged.into_iter().map(|index| published.unit_pages(index..index + 1)).collect())
}

/// A published object with its sums in memory.
struct PublishedSums {
    pages: Vec<u64>,
    sums: Vec<u8>,
    rule: SumRule,
    unit: usize,
}

impl PublishedSums {
    /// `None` if the sums are not those that its record names.
    fn read(
        source: &RecoverySource<'_>,
        runs: &[PageRun],
        len: u64,
        trailer: u128,
        what: &ObjectTraits,
    ) -> Result<Option<PublishedSums>, DeviceError> {
        let data = len.div_ceil(source.page_bytes as u64);
        let unit = unit_pages(what.check, source.page_bytes);
        let mut pages: Vec<u64> = runs.iter().flat_map(|run| run.at..run.end()).collect();
        if pages.len() as u64 != data + trailer_pages(data, unit, source.page_bytes) {
            return Ok(None);
        }
        let mut sums = Vec::new();
        for run in joined(&pages[data as usize..]) {
            sums.extend(source.read(run)?);
        }
        pages.truncate(data as usize);
        let right = hash128(&sums) == trailer;
        Ok(right.then_some(PublishedSums { pages, sums, rule: what.sums, unit: unit as usize }))
    }

    /// All units, in ranges that are read at once.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let units = self.pages.len().div_ceil(self.unit);
        let step = (CHUNK_PAGES as usize / self.unit).max(1);
        (0..units).step_by(step).map(move |first| first..(first + step).min(units))
    }

    /// Pages of the object that `units` take.
    fn unit_pages(&self, units: Range<usize>) -> Range<u64> {
        let end = (units.end * self.unit).min(self.pages.len());
        (units.start * self.unit) as u64..end as u64
    }

    /// Those of `units` whose bytes do not fit their sums.
    fn damaged_units(
        &self,
        source: &RecoverySource<'_>,
        units: Range<usize>,
    ) -> Result<Vec<usize>, DeviceError> {
        let pages = self.unit_pages(units.clone());
        let mut bytes = Vec::new();
        for run in joined(&self.pages[pages.start as usize..pages.end as usize]) {
            bytes.append(&mut source.read(run)?);
        }
        let parts = bytes.chunks(self.unit * source.page_bytes);
        let damaged = units.zip(parts).filter(|(index, part)| {
            let stored = self.sums.get(index * 4..index * 4 + 4);
            stored != Some(&self.rule.sum(0, part, source.page_bytes).to_le_bytes())
        });
        Ok(damaged.map(|(index, _)| index).collect())
    }

    /// As [`PublishedSums::damaged_units`]; a unit that the medium cannot read counts as damaged too.
    fn damaged_one_by_one(
        &self,
        source: &RecoverySource<'_>,
        units: Range<usize>,
    ) -> Result<Vec<usize>, DeviceError> {
        let mut damaged = Vec::new();
        for index in units {
            match self.damaged_units(source, index..index + 1) {
                Ok(found) => damaged.extend(found),
                Err(error) if error.is_passing() => return Err(error),
                Err(_) => damaged.push(index),
            }
        }
        Ok(damaged)
    }
}

/// Runs of consecutive pages.
fn joined(pages: &[u64]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end() == page => run.pages += 1,
            _ => runs.push(PageRun::new(page, 1)),
        }
    }
    runs
}

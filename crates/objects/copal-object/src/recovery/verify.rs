//! Verification of data that no flush is known to cover (OBJ-1).

use super::{RecoverySource, WalkedRecord};
use crate::{
    ReadCheck,
    format::{hash128, ops::RecordOp, run::PageRun},
    tables::{trailer_pages, unit_pages},
};
use copal_device::DeviceError;
use std::ops::Range;

/// Whether all data that `ops` of `record` wrote in epochs after `flushed_epoch` is on the device.
pub(crate) fn data_is_there(
    source: &RecoverySource<'_>,
    record: &WalkedRecord,
    ops: &[RecordOp],
    flushed_epoch: u64,
) -> Result<bool, DeviceError> {
    for op in ops {
        let there = match op {
            RecordOp::Map { run, epoch, sums, .. } => {
                let epoch = if *epoch == 0 { record.header.epoch } else { *epoch };
                epoch <= flushed_epoch
                    || map_is_there(source, *run, sums, unit_of(*run, sums, source.page_bytes))?
            }
            RecordOp::Publish { what, len, runs, trailer, epoch, .. } => {
                let unit = unit_pages(what.check, source.page_bytes);
                *epoch <= flushed_epoch || published_is_there(source, runs, *len, *trailer, unit)?
            }
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
    unit: u32,
) -> Result<bool, DeviceError> {
    for (chunk, sums) in chunks(run, sums, unit) {
        if !damaged_units(source, chunk, sums, unit)?.is_empty() {
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
    unit: u32,
) -> Result<Vec<PageRun>, DeviceError> {
    let bytes = source.read(chunk)?;
    let units = crate::state::pieces(chunk, unit).zip(bytes.chunks(unit as usize * source.page_bytes));
    let damaged = units.zip(sums).filter(|((_, bytes), sum)| copal_codec::crc32c(0, bytes) != **sum);
    Ok(damaged.map(|((run, _), _)| run).collect())
}

/// Compares data and trailer of a published object with the trailer's hash. Stops at the first wrong byte.
fn published_is_there(
    source: &RecoverySource<'_>,
    runs: &[PageRun],
    len: u64,
    trailer: u128,
    unit: u32,
) -> Result<bool, DeviceError> {
    let Some(published) = PublishedSums::read(source, runs, len, trailer, unit)? else {
        return Ok(false);
    };
    for index in 0..published.units() {
        if !published.unit_is_there(source, index)? {
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
    unit: u32,
    summed: &mut dyn FnMut(PageRun, bool),
) -> Result<Vec<Range<u64>>, DeviceError> {
    let data = len.div_ceil(source.page_bytes as u64);
    let published = match PublishedSums::read(source, runs, len, trailer, unit) {
        Ok(Some(published)) => published,
        Err(error) if error.is_passing() => return Err(error),
        Ok(None) | Err(_) => return Ok(std::iter::once(0..data).collect()),
    };
    let all: Vec<u64> = runs.iter().flat_map(|run| run.at..run.end()).collect();
    joined(&all[data as usize..]).into_iter().for_each(|run| summed(run, false));
    let mut damaged = Vec::new();
    for index in 0..published.units() {
        let is_there = match published.unit_is_there(source, index) {
            Ok(is_there) => is_there,
            Err(error) if error.is_passing() => return Err(error),
            Err(_) => false,
        };
        let pages = published.unit_pages(index);
        joined(&published.pages[pages.start as usize..pages.end as usize])
            .into_iter()
            .for_each(|run| summed(run, true));
        if !is_there {
            damaged.push(pages);
        }
    }
    Ok(damaged)
}

/// A published object with its sums in memory.
struct PublishedSums {
    pages: Vec<u64>,
    sums: Vec<u8>,
    unit: usize,
}

impl PublishedSums {
    /// `None` if the sums are not those that its record names.
    fn read(
        source: &RecoverySource<'_>,
        runs: &[PageRun],
        len: u64,
        trailer: u128,
        unit: u32,
    ) -> Result<Option<PublishedSums>, DeviceError> {
        let data = len.div_ceil(source.page_bytes as u64);
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
        Ok(right.then_some(PublishedSums { pages, sums, unit: unit as usize }))
    }

    fn units(&self) -> usize {
        self.pages.len().div_ceil(self.unit)
    }

    fn unit_pages(&self, index: usize) -> Range<u64> {
        let from = index * self.unit;
        from as u64..(from + self.unit).min(self.pages.len()) as u64
    }

    fn unit_is_there(&self, source: &RecoverySource<'_>, index: usize) -> Result<bool, DeviceError> {
        let pages = self.unit_pages(index);
        let mut sum = 0;
        for run in joined(&self.pages[pages.start as usize..pages.end as usize]) {
            sum = copal_codec::crc32c(sum, &source.read(run)?);
        }
        let stored = self.sums.get(index * 4..index * 4 + 4);
        Ok(stored == Some(&sum.to_le_bytes()))
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

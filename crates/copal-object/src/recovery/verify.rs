//! Verifying data that no flush is known to cover (R1).

use super::{Source, WalkedRecord};
use crate::{
    format::{hash128, ops::RecordOp},
    run::Run,
    tables::{Entry, Tables, trailer_pages, unit_pages},
};
use copal_device::DeviceError;

/// Whether all data that `record` brought in epochs after `flushed_epoch` is on the device. `tables` are those after the
/// record was applied.
pub(crate) fn data_is_there(
    source: &Source<'_>,
    record: &WalkedRecord,
    tables: &Tables,
    flushed_epoch: u64,
) -> Result<bool, DeviceError> {
    for op in &record.ops {
        let there = match op {
            RecordOp::Map {
                id, run, epoch, sums, ..
            } => {
                let epoch = if *epoch == 0 { record.header.epoch } else { *epoch };
                // The unit follows from the number of sums only together with the object's kind of check.
                epoch <= flushed_epoch || map_is_there(source, *run, sums, unit_of(tables, *id, *run, sums))?
            }
            RecordOp::Publish {
                what,
                len,
                runs,
                trailer,
                epoch,
                ..
            } => {
                let unit = unit_pages(what.check, source.page_bytes);
                *epoch <= flushed_epoch || published_is_there(source, runs, *len, *trailer, unit)?
            }
            _ => true,
        };
        if !there {
            return Ok(false);
        }
    }
    Ok(true)
}

fn unit_of(tables: &Tables, id: u64, run: Run, sums: &[u32]) -> u32 {
    match tables.entries.get(&id) {
        Some(Entry::Object(object)) => object.unit(tables.page_bytes),
        // Deleted by the same record: the number of sums tells the unit.
        _ if sums.len() as u32 == run.pages => 1,
        _ => unit_pages(crate::Check::Caller, tables.page_bytes),
    }
}

fn map_is_there(source: &Source<'_>, run: Run, sums: &[u32], unit: u32) -> Result<bool, DeviceError> {
    for (piece, &sum) in crate::state::pieces(run, unit).zip(sums) {
        if copal_codec::crc32c(0, &source.read(piece)?) != sum {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Data and trailer of a published object against the trailer's hash.
pub(crate) fn published_is_there(
    source: &Source<'_>,
    runs: &[Run],
    len: u64,
    trailer: u128,
    unit: u32,
) -> Result<bool, DeviceError> {
    Ok(published_damage(source, runs, len, trailer, unit)?.is_none())
}

/// First damaged data unit of a published object, by page inside it; the whole object when its trailer is damaged.
pub(crate) fn published_damage(
    source: &Source<'_>,
    runs: &[Run],
    len: u64,
    trailer: u128,
    unit: u32,
) -> Result<Option<std::ops::Range<u64>>, DeviceError> {
    let data = len.div_ceil(source.page_bytes as u64);
    let pages: Vec<u64> = runs.iter().flat_map(|run| run.at..run.end()).collect();
    let sums_len = trailer_pages(data, unit, source.page_bytes);
    let Some((data_pages, sum_pages)) = pages.split_at_checked(data as usize) else {
        return Ok(Some(0..data));
    };
    let mut sums = Vec::new();
    for run in joined(&sum_pages[..(sums_len as usize).min(sum_pages.len())]) {
        sums.extend(source.read(run)?);
    }
    if hash128(&sums) != trailer {
        return Ok(Some(0..data));
    }
    for (index, unit_pages) in data_pages.chunks(unit as usize).enumerate() {
        let mut sum = 0;
        for run in joined(unit_pages) {
            sum = copal_codec::crc32c(sum, &source.read(run)?);
        }
        let stored = sums
            .get(index * 4..index * 4 + 4)
            .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
        if stored != Some(sum) {
            let from = index as u64 * u64::from(unit);
            return Ok(Some(from..from + unit_pages.len() as u64));
        }
    }
    Ok(None)
}

/// Runs of consecutive pages.
fn joined(pages: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end() == page => run.pages += 1,
            _ => runs.push(Run::new(page, 1)),
        }
    }
    runs
}

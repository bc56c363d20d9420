//! Report of filter units: by run, by class, and over the key space.
//!
//! Not here: drawing (`copal kv filters`).

use crate::{
    format::entry::KeyRange,
    memory::elastic::{ElasticFilters, PartitionLook, SeenProbes},
    table::Table,
    tree::{
        manifest::format::TreeLevel,
        version::{SortedRun, TreeVersion},
    },
};
use bytes::Bytes;
use copal_filter::rules::RuleKind;
use std::{collections::BTreeMap, sync::Arc};

/// Most cells of a heat map.
const CELLS: usize = 64;

/// State of the filters of one store, and of the memory that it may share with others.
///
/// Only sampled probes count; a dropped ring is missing from all probe counts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Filters {
    /// The rule that adjusts the units.
    pub rule: RuleKind,
    /// Limit of all units of the memory, bytes.
    pub budget_bytes: u64,
    /// Loaded units, bytes, including those of other stores.
    pub loaded_bytes: u64,
    /// Gets so far, of all stores that share the memory.
    pub gets: u64,
    /// Units read from pages: by promotions, and by probes that found none.
    pub loads: u64,
    /// Probes that found no units and loaded some.
    pub cold_starts: u64,
    /// Units that flush and merge took from memory as they wrote the pages.
    pub predicted: u64,
    /// Units dropped to make room for others.
    pub drops: u64,
    /// Units that were freed with their partitions, when these were merged or dropped.
    pub retired: u64,
    /// Promotions that did not fit the memory.
    pub refused: u64,
    /// Partitions whose page could not be read; they keep their present units.
    pub failed: u64,
    /// Reads of filter pages by this store.
    pub page_reads: u64,
    /// Sampled probes lost because they were not drained in time.
    pub dropped_probes: u64,
    /// First internal key (keyspace id, big-endian, then the user's key) of every cell of the heat maps
    /// except the first. Cells hold about equally many keys of the largest run.
    pub cell_starts: Vec<Bytes>,
    /// Runs, newest first.
    pub runs: Vec<RunFilters>,
}

/// Filters of one run.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RunFilters {
    /// Tier; flushes write to tier 0.
    pub level: u8,
    /// Whether it is the last run; its `level` is 255 then.
    pub bottom: bool,
    /// Number of the run within its level.
    pub run: u64,
    /// Tables that the run contains completely or partly.
    pub tables: u64,
    /// Partitions that the run contains completely or partly.
    pub partitions: u64,
    /// Keys in these partitions.
    pub keys: u64,
    /// Number of partitions that hold `i` units, for each `i` from 0 to 15.
    pub units: [u64; 16],
    /// Bytes of loaded units.
    pub bytes: u64,
    /// Probes.
    pub probes: u64,
    /// Probes that the units answered with no.
    pub negatives: u64,
    /// Probes that caused a useless read.
    pub false_positives: u64,
    /// Probes that found the key.
    pub hits: u64,
    /// Classes, lowest first.
    pub classes: Vec<FilterClass>,
    /// One for each cell of the key space: `Filters::cell_starts.len() + 1`.
    pub cells: Vec<HeatCell>,
}

/// Partitions of one class: the logarithm of the savings per byte of one more unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterClass {
    /// floor(log2(heat / unit bytes)) - units; `i32::MIN`: no heat.
    pub class: i32,
    /// Number of partitions.
    pub partitions: u64,
    /// Number of their units.
    pub units: u64,
}

/// Part of a run within one cell of the key space. A partition that overlaps several cells counts in each by
/// its share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeatCell {
    /// Keys.
    pub keys: f64,
    /// Heat as the rule measures it: recent negative probes.
    pub heat: f64,
    /// Bytes of loaded units.
    pub bytes: f64,
    /// Sampled probes that caused a useless read.
    pub false_positives: f64,
}

/// Reports the filters of the tables of `version`. Takes the adjuster's lock once for each table.
pub(crate) fn report(elastic: &ElasticFilters, version: &TreeVersion, page_reads: u64) -> Filters {
    let cell_starts = cell_starts(&version.runs);
    let run = |run: &Arc<SortedRun>| run_filters(elastic, run, &cell_starts);
    let runs = version.runs.iter().map(run).collect();
    let totals = elastic.totals();
    Filters {
        rule: totals.rule,
        budget_bytes: totals.budget_bytes,
        loaded_bytes: totals.loaded_bytes,
        gets: totals.gets,
        loads: totals.loads,
        cold_starts: totals.cold_starts,
        predicted: totals.predicted,
        drops: totals.drops,
        retired: totals.retired,
        refused: totals.refused,
        failed: totals.failed,
        page_reads,
        dropped_probes: totals.dropped_probes,
        cell_starts,
        runs,
    }
}

/// Keys that divide the largest run into cells of about equally many partitions.
fn cell_starts(runs: &[Arc<SortedRun>]) -> Vec<Bytes> {
    let keys = |run: &&Arc<SortedRun>| -> u64 {
        let tables = run.slices.iter().map(|slice| slice.table.table.meta().keys);
        tables.sum()
    };
    let Some(largest) = runs.iter().max_by_key(keys) else {
        return Vec::new();
    };
    let mut starts: Vec<Bytes> = Vec::new();
    for (table, index) in partitions(largest) {
        starts.push(Bytes::copy_from_slice(table.partition_range(index).0));
    }
    let cells = starts.len().min(CELLS);
    (1..cells).map(|cell| starts[cell * starts.len() / cells].clone()).collect()
}

/// The partitions of a run, each once for each slice that overlaps it.
fn partitions(run: &SortedRun) -> impl Iterator<Item = (&Arc<Table>, u32)> {
    run.slices.iter().flat_map(|slice| {
        let table = &slice.table.table;
        let KeyRange { start, end } = &slice.range;
        let inside = table
            .partitions_between(start, end)
            .filter(move |index| table.partition_range(*index).0 < &end[..]);
        inside.map(move |index| (table, index))
    })
}

fn run_filters(elastic: &ElasticFilters, run: &SortedRun, cell_starts: &[Bytes]) -> RunFilters {
    let mut filters = RunFilters {
        level: run.level.0,
        bottom: run.level == TreeLevel::BOTTOM,
        run: run.id,
        tables: run.slices.len() as u64,
        cells: vec![HeatCell::default(); cell_starts.len() + 1],
        ..RunFilters::default()
    };
    let mut classes: BTreeMap<i32, FilterClass> = BTreeMap::new();
    for (table, index) in partitions(run) {
        let keys = f64::from(table.partition_keys(index));
        filters.partitions += 1;
        filters.keys += keys as u64;
        let part = elastic.look(&**table, index).unwrap_or_default();
        let (units, bytes) = (u64::from(part.units), u64::from(part.units) * u64::from(part.unit_bytes));
        filters.units[usize::from(part.units).min(15)] += 1;
        filters.bytes += bytes;
        let SeenProbes { negatives, false_positives, hits } = part.seen;
        filters.negatives += u64::from(negatives);
        filters.false_positives += u64::from(false_positives);
        filters.hits += u64::from(hits);
        filters.probes += u64::from(negatives) + u64::from(false_positives) + u64::from(hits);
        if part.unit_bytes > 0 {
            let number = class(&part);
            let class =
                classes.entry(number).or_insert(FilterClass { class: number, ..FilterClass::default() });
            class.partitions += 1;
            class.units += units;
        }
        let (start, end) = table.partition_range(index);
        let first = cell_starts.partition_point(|cell| cell[..] <= *start);
        let last = cell_starts.partition_point(|cell| cell[..] <= *end).max(first);
        let part_of = 1.0 / (last - first + 1) as f64;
        for cell in &mut filters.cells[first..=last] {
            cell.keys += keys * part_of;
            cell.heat += part.heat * part_of;
            cell.bytes += bytes as f64 * part_of;
            cell.false_positives += f64::from(false_positives) * part_of;
        }
    }
    filters.classes = classes.into_values().collect();
    filters
}

fn class(part: &PartitionLook) -> i32 {
    let per_byte = part.heat / f64::from(part.unit_bytes);
    if per_byte > 0.0 { per_byte.log2().floor() as i32 - i32::from(part.units) } else { i32::MIN }
}

//! `copal kv stats`.

use super::{close, engine};
use crate::{arguments::kv::EnginePlace, commands::CommandContext, failure::Outcome, human};
use copal_kv::{Filters, LevelStats, MemoryBytes, Stats};
use copal_node::Access;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn run(context: &CommandContext<'_>, place: &EnginePlace<'_>) -> Outcome<()> {
    let (path, store) = engine(place, Access::Read)?;
    let (stats, filters) = (store.stats(), store.filters());
    close(&store, Access::Read)?;
    let mut fields = as_json(&stats, &filters);
    fields["command"] = json!("kv stats");
    fields["store"] = json!(path.display().to_string());
    context.output.answer(fields, || as_text(&stats, &filters));
    Ok(())
}

fn level_name(level: &LevelStats) -> String {
    if level.level == LevelStats::BOTTOM { "bottom".to_owned() } else { level.level.to_string() }
}

/// Memory by class; the names are part of the stable JSON lines.
fn memory(bytes: &MemoryBytes) -> [(&'static str, u64); 14] {
    [
        ("memtables", bytes.memtables),
        ("log", bytes.log),
        ("merges", bytes.merges),
        ("reads", bytes.reads),
        ("scans", bytes.scans),
        ("filters", bytes.filters),
        ("index_pages", bytes.index_pages),
        ("blocks", bytes.blocks),
        ("rows", bytes.rows),
        ("slots", bytes.slots),
        ("tables", bytes.tables),
        ("range_tombstones", bytes.range_tombstones),
        ("manifest", bytes.manifest),
        ("versions", bytes.versions),
    ]
}

/// Units by class over all runs, the class with the highest gain first; `None`: no heat.
fn units_by_class(filters: &Filters) -> Vec<(Option<i32>, u64, u64)> {
    let mut classes: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
    for class in filters.runs.iter().flat_map(|run| &run.classes) {
        let sum = classes.entry(class.class).or_default();
        sum.0 += class.partitions;
        sum.1 += class.units;
    }
    let named = |class: i32| (class != i32::MIN).then_some(class);
    classes.into_iter().rev().map(|(class, (partitions, units))| (named(class), partitions, units)).collect()
}

fn as_json(stats: &Stats, filters: &Filters) -> Value {
    let memory: serde_json::Map<String, Value> =
        memory(&stats.memory).into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect();
    json!({
        "levels": levels_as_json(stats),
        "value_objects": stats.value_objects,
        "value_bytes": stats.value_bytes,
        "dead_value_bytes": stats.dead_value_bytes,
        "frozen_memtables": stats.frozen_memtables,
        "debt_bytes": stats.debt_bytes,
        "damaged_ranges": stats.damaged_ranges,
        "gets": stats.gets,
        "row_hits": stats.row_hits,
        "filter_probes": stats.filter_probes,
        "filter_negatives": stats.filter_negatives,
        "false_positives": stats.false_positives,
        "data_block_reads": stats.data_block_reads,
        "index_page_reads": stats.index_page_reads,
        "filter_page_reads": stats.filter_page_reads,
        "reads_per_get": stats.reads_per_get(),
        "false_positives_per_get": stats.false_positives_per_get(),
        "flushes": stats.flushes,
        "merges": stats.merges,
        "write_bytes": stats.write_bytes,
        "user_bytes": stats.user_bytes,
        "write_amplification": stats.write_amplification(),
        "flush_nanos": stats.flush_nanos,
        "merge_nanos": stats.merge_nanos,
        "paced_nanos": stats.paced_nanos,
        "stalled_nanos": stats.stalled_nanos,
        "space_shortages": stats.space_shortages,
        "groups": stats.groups,
        "writes": stats.writes,
        "flushes_per_commit": stats.flushes_per_commit(),
        "device": {
            "reads": stats.device_reads,
            "read_bytes": stats.device_read_bytes,
            "writes": stats.device_writes,
            "write_bytes": stats.device_write_bytes,
            "flushes": stats.device_flushes,
        },
        "memory_bytes": stats.memory_bytes,
        "memory": memory,
        "filters": filters_as_json(filters),
    })
}

fn levels_as_json(stats: &Stats) -> Vec<Value> {
    stats
        .levels
        .iter()
        .map(|level| {
            json!({
                "level": level_name(level),
                "runs": level.runs,
                "tables": level.tables,
                "bytes": level.bytes,
                "entries": level.entries,
                "droppable": level.droppable,
            })
        })
        .collect()
}

fn filters_as_json(filters: &Filters) -> Value {
    let classes: Vec<Value> = units_by_class(filters)
        .into_iter()
        .map(|(class, partitions, units)| json!({ "class": class, "partitions": partitions, "units": units }))
        .collect();
    json!({
        "rule": format!("{:?}", filters.rule),
        "budget_bytes": filters.budget_bytes,
        "loaded_bytes": filters.loaded_bytes,
        "loads": filters.loads,
        "drops": filters.drops,
        "predicted": filters.predicted,
        "units_by_class": classes,
    })
}

fn as_text(stats: &Stats, filters: &Filters) -> String {
    let mut text = String::from("level    runs  tables       bytes     entries   droppable\n");
    for level in &stats.levels {
        text.push_str(&format!(
            "{:<7} {:>5} {:>7} {:>11} {:>11} {:>11}\n",
            level_name(level),
            level.runs,
            level.tables,
            human::bytes(level.bytes),
            level.entries,
            level.droppable
        ));
    }
    text.push('\n');
    for (name, value) in rows(stats) {
        text.push_str(&format!("{name:<24} {value}\n"));
    }
    for (name, bytes) in memory(&stats.memory).into_iter().filter(|(_, bytes)| *bytes > 0) {
        text.push_str(&format!("  {:<22} {}\n", name.replace('_', " "), human::bytes(bytes)));
    }
    text.push_str(&format!(
        "{:<24} {} of {}, {} units loaded, {} dropped\n",
        "Filters",
        human::bytes(filters.loaded_bytes),
        human::bytes(filters.budget_bytes),
        filters.loads,
        filters.drops
    ));
    for (class, partitions, units) in units_by_class(filters) {
        let class = class.map_or("cold".to_owned(), |class| class.to_string());
        text.push_str(&format!("  class {class:<16} {partitions} partitions, {units} units\n"));
    }
    text
}

/// Figures of the store as a whole, one per line.
fn rows(stats: &Stats) -> Vec<(&'static str, String)> {
    vec![
        (
            "Separated values",
            format!(
                "{} objects, {} ({} dead)",
                stats.value_objects,
                human::bytes(stats.value_bytes),
                human::bytes(stats.dead_value_bytes)
            ),
        ),
        ("Merges still to write", human::bytes(stats.debt_bytes)),
        ("Damaged ranges", stats.damaged_ranges.to_string()),
        ("Look-ups", stats.gets.to_string()),
        ("  reads per look-up", format!("{:.3}", stats.reads_per_get())),
        ("  false positives", format!("{:.4} per look-up", stats.false_positives_per_get())),
        ("Batches, log groups", format!("{}, {}", stats.writes, stats.groups)),
        ("  write amplification", format!("{:.2}", stats.write_amplification())),
        ("  flushes per batch", format!("{:.3}", stats.flushes_per_commit())),
        (
            "Device",
            format!(
                "{} read in {} commands, {} written in {}",
                human::bytes(stats.device_read_bytes),
                stats.device_reads,
                human::bytes(stats.device_write_bytes),
                stats.device_writes
            ),
        ),
        ("Memory", human::bytes(stats.memory_bytes)),
    ]
}

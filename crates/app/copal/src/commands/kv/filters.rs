//! `copal kv filters`: units by level and class, and a heat map of the key space.
//!
//! Not here: the picture as SVG (`heat_svg`).

use super::{close, engine, failed, heat_svg};
use crate::{
    arguments::kv::{EnginePlace, FiltersArgs as Words},
    commands::CommandContext,
    failure::{Failure, Outcome, exit},
    human,
    repository::create_private,
};
use copal_kv::{Filters, HeatCell, RunFilters, Store};
use copal_node::Access;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Write},
    path::Path,
};

/// Cells of heat from none to the highest.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Look-ups between two runs of the adjusting rule.
const ADJUST_EVERY: u64 = 4096;
/// Columns left of the heat map.
const MARGIN: usize = 16;

pub(super) fn run(context: &CommandContext<'_>, place: &EnginePlace<'_>, words: &Words) -> Outcome<()> {
    let (_, store) = engine(place, Access::Read)?;
    let looked_up = match (&words.keys, &words.keyspace) {
        (Some(file), Some(name)) => look_up(context, &store, file, name),
        _ => Ok(0),
    };
    let filters = store.filters();
    close(&store, Access::Read)?;
    let looked_up = looked_up?;
    if let Some(path) = &words.svg {
        let drawn = create_private(path).and_then(|mut to| to.write_all(heat_svg::draw(&filters).as_bytes()));
        drawn.map_err(|error| target_failure(path, &error))?;
    }
    let width = words.width.map_or_else(terminal_width, usize::from);
    let mut fields = as_json(&filters);
    fields["command"] = json!("kv filters");
    fields["looked_up"] = json!(looked_up);
    context.output.answer(fields, || as_text(&filters, width));
    Ok(())
}

/// The failure of writing the picture: existing files are not replaced.
fn target_failure(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(
            exit::DENIED,
            "exists",
            format!("{path} exists; name a new file, nothing was changed"),
        ),
        _ => Failure::plain("target", format!("cannot write {path}: {error}")),
    }
}

/// Looks up the keys of a file, to create heat.
fn look_up(context: &CommandContext<'_>, store: &Store, file: &Path, keyspace: &str) -> Outcome<u64> {
    let space = store.open_keyspace(keyspace).map_err(failed)?;
    let space = space.ok_or_else(|| {
        Failure::usage(format!("there is no keyspace {keyspace}; `copal kv dump` lists them"))
    })?;
    let unreadable =
        |error: std::io::Error| Failure::plain("source", format!("cannot read {}: {error}", file.display()));
    let lines = BufReader::new(File::open(file).map_err(unreadable)?);
    let mut count = 0;
    for line in lines.split(b'\n') {
        if context.cancel.is_cancelled() {
            break;
        }
        let key = unescape(&line.map_err(unreadable)?);
        space.contains(&key).map_err(failed)?;
        count += 1;
        if count % ADJUST_EVERY == 0 {
            store.adjust_filters();
        }
    }
    store.adjust_filters();
    Ok(count)
}

/// Converts `\xNN` and `\\` of the dump's form back into bytes.
fn unescape(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let code = rest
            .strip_prefix(b"\\x")
            .and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (code, rest) {
            (Some(byte), _) => {
                out.push(byte);
                at += 4;
            }
            (None, [b'\\', b'\\', ..]) => {
                out.push(b'\\');
                at += 2;
            }
            (None, _) => {
                out.push(rest[0]);
                at += 1;
            }
        }
    }
    out
}

fn terminal_width() -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    asked.or_else(terminal).unwrap_or(80).max(40)
}

/// Name of a run.
pub(super) fn run_name(run: &RunFilters) -> String {
    if run.bottom { "bottom".to_owned() } else { format!("level {} run {}", run.level, run.run) }
}

/// Bits of loaded filter per key.
fn bits(bytes: f64, keys: f64) -> f64 {
    if keys > 0.0 { 8.0 * bytes / keys } else { 0.0 }
}

fn as_json(filters: &Filters) -> Value {
    let cell = |cell: &HeatCell| {
        json!({
            "keys": cell.keys,
            "heat": cell.heat,
            "bytes": cell.bytes,
            "false_positives": cell.false_positives,
        })
    };
    let run = |run: &RunFilters| {
        let classes: Vec<Value> = run
            .classes
            .iter()
            .map(|class| {
                json!({
                    "class": (class.class != i32::MIN).then_some(class.class),
                    "partitions": class.partitions,
                    "units": class.units,
                })
            })
            .collect();
        json!({
            "level": if run.bottom { "bottom".to_owned() } else { run.level.to_string() },
            "run": run.run,
            "tables": run.tables,
            "partitions": run.partitions,
            "keys": run.keys,
            "partitions_by_units": run.units,
            "bytes": run.bytes,
            "bits_per_key": bits(run.bytes as f64, run.keys as f64),
            "probes": run.probes,
            "negatives": run.negatives,
            "false_positives": run.false_positives,
            "hits": run.hits,
            "classes": classes,
            "cells": run.cells.iter().map(cell).collect::<Vec<_>>(),
        })
    };
    json!({
        "rule": format!("{:?}", filters.rule),
        "budget_bytes": filters.budget_bytes,
        "loaded_bytes": filters.loaded_bytes,
        "gets": filters.gets,
        "loads": filters.loads,
        "cold_starts": filters.cold_starts,
        "predicted": filters.predicted,
        "drops": filters.drops,
        "refused": filters.refused,
        "page_reads": filters.page_reads,
        "cell_starts": filters.cell_starts.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>(),
        "runs": filters.runs.iter().map(run).collect::<Vec<_>>(),
    })
}

fn as_text(filters: &Filters, width: usize) -> String {
    let mut text = format!(
        "rule {:?}: {} of {} loaded, {} look-ups, {} units loaded, {} dropped\n\n",
        filters.rule,
        human::bytes(filters.loaded_bytes),
        human::bytes(filters.budget_bytes),
        filters.gets,
        filters.loads,
        filters.drops
    );
    text.push_str(
        "run              partitions        keys  bits/key      probes  false pos.  units: partitions\n",
    );
    for run in &filters.runs {
        let units: Vec<String> = run
            .units
            .iter()
            .enumerate()
            .filter(|(_, partitions)| **partitions > 0)
            .map(|(units, partitions)| format!("{units}: {partitions}"))
            .collect();
        text.push_str(&format!(
            "{:<16} {:>10} {:>11} {:>9.2} {:>11} {:>11}  {}\n",
            run_name(run),
            run.partitions,
            run.keys,
            bits(run.bytes as f64, run.keys as f64),
            run.probes,
            run.false_positives,
            units.join(", ")
        ));
    }
    text.push_str(&classes_as_text(filters));
    text.push_str("\nheat per key, and bits of filter per key, over the key space\n");
    let columns = width.saturating_sub(MARGIN + 2);
    let hottest = hottest(filters);
    for run in &filters.runs {
        let heat: String = resample(&run.cells, columns).map(|cell| block(heat_of(cell), hottest)).collect();
        let units: String =
            resample(&run.cells, columns).map(|cell| digit(bits(cell.bytes, cell.keys))).collect();
        text.push_str(&format!("{:<MARGIN$}▕{heat}▏\n", run_name(run)));
        text.push_str(&format!("{:<MARGIN$}▕{units}▏\n", ""));
    }
    text
}

/// Partitions and units of each class of heat, the hottest first; empty under rules without classes.
fn classes_as_text(filters: &Filters) -> String {
    let mut text = String::new();
    for run in &filters.runs {
        let hot = run.classes.iter().rev();
        let classes: Vec<String> = hot
            .map(|class| {
                let name =
                    if class.class == i32::MIN { "no heat".to_owned() } else { class.class.to_string() };
                let units = class.units as f64 / class.partitions.max(1) as f64;
                format!("{name}: {} x {units:.1}", class.partitions)
            })
            .collect();
        if !classes.is_empty() {
            text.push_str(&format!("{:<16} {}\n", run_name(run), classes.join(", ")));
        }
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\npartitions by class (log2 of heat per byte, less units), and units that each has on average\n{text}"
    )
}

/// Heat per key of a cell.
pub(super) fn heat_of(cell: &HeatCell) -> f64 {
    if cell.keys > 0.0 { cell.heat / cell.keys } else { 0.0 }
}

/// The highest heat of any cell.
pub(super) fn hottest(filters: &Filters) -> f64 {
    let cells = filters.runs.iter().flat_map(|run| &run.cells);
    cells.map(heat_of).fold(0.0, f64::max)
}

/// A level from 0 for cold to 1 for the hottest; each eighth is half as hot as the one above it.
pub(super) fn level_of(heat: f64, hottest: f64) -> f64 {
    if heat <= 0.0 || hottest <= 0.0 {
        return 0.0;
    }
    (1.0 + (heat / hottest).log2() / 8.0).clamp(0.125, 1.0)
}

fn block(heat: f64, hottest: f64) -> char {
    BLOCKS[(level_of(heat, hottest) * 8.0).round() as usize]
}

/// Bits per key as one character.
fn digit(bits: f64) -> char {
    match bits.round() as u32 {
        0 => '·',
        bits => char::from_digit(bits.min(15), 16).unwrap_or('f'),
    }
}

/// The cells, stretched or thinned to this number of columns.
fn resample(cells: &[HeatCell], columns: usize) -> impl Iterator<Item = &HeatCell> {
    let columns = if cells.is_empty() { 0 } else { columns };
    (0..columns).map(move |column| &cells[column * cells.len() / columns])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(keys: f64, heat: f64) -> HeatCell {
        HeatCell { keys, heat, ..HeatCell::default() }
    }

    #[test]
    fn heat_is_shown_on_a_scale_of_halves() {
        assert_eq!(block(0.0, 8.0), ' ');
        assert_eq!(block(8.0, 8.0), '█');
        assert_eq!(block(4.0, 8.0), '▇');
        assert_eq!(block(1e-9, 8.0), '▁');
        assert_eq!(block(0.0, 0.0), ' ');
        assert_eq!((heat_of(&cell(0.0, 3.0)), heat_of(&cell(2.0, 3.0))), (0.0, 1.5));
    }

    #[test]
    fn bits_are_one_character_and_the_picture_is_as_wide_as_asked() {
        assert_eq!([0.2, 4.4, 12.0, 40.0].map(digit), ['·', '4', 'c', 'f']);
        let cells = [cell(1.0, 1.0), cell(1.0, 2.0)];
        let shown: Vec<f64> = resample(&cells, 5).map(|cell| cell.heat).collect();
        assert_eq!(shown, [1.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(resample(&[], 5).count(), 0);
    }

    #[test]
    fn keys_come_back_as_the_dump_shows_them() {
        assert_eq!(unescape(b"ab\\x00\\xffc"), b"ab\0\xffc");
        assert_eq!(unescape(b"a\\\\x00 \\q\\x0"), b"a\\x00 \\q\\x0");
        let bytes: Vec<u8> = (0..=255).filter(|byte| !b"\t\n\r\"'".contains(byte)).collect();
        let escaped = bytes.escape_ascii().to_string();
        assert_eq!(unescape(escaped.as_bytes()), bytes);
    }
}

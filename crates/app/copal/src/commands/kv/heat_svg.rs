//! The heat map of `copal kv filters` as an SVG file: a row per run, a column per cell of the key space.
//!
//! Colour is heat per key, the white bar in a cell is bits of filter per key, full at 15. No text needs
//! escaping: names of runs are numbers.

use super::filters::{heat_of, hottest, level_of, run_name};
use copal_kv::{Filters, HeatCell};
use std::fmt::Write;

const CELL_WIDTH: f64 = 12.0;
const ROW_HEIGHT: f64 = 34.0;
const LEFT: f64 = 110.0;
const TOP: f64 = 44.0;
const MOST_BITS: f64 = 15.0;

/// The complete file.
pub(super) fn draw(filters: &Filters) -> String {
    let columns = filters.runs.iter().map(|run| run.cells.len()).max().unwrap_or(0);
    let width = LEFT + columns as f64 * CELL_WIDTH + 20.0;
    let height = TOP + filters.runs.len() as f64 * ROW_HEIGHT + 20.0;
    let mut svg = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = svg.write_fmt(text);
        svg.push('\n');
    };
    line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">"
    ));
    line(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
    line(format_args!(
        "<text x=\"10\" y=\"18\" font-size=\"13\">Filter units: {} of {} bytes, {} look-ups</text>",
        filters.loaded_bytes, filters.budget_bytes, filters.gets
    ));
    line(format_args!(
        "<text x=\"10\" y=\"34\" fill=\"#555555\">colour: heat per key; bar: bits of filter per key, full at \
         {MOST_BITS}</text>"
    ));
    let hottest = hottest(filters);
    for (row, run) in filters.runs.iter().enumerate() {
        let y = TOP + row as f64 * ROW_HEIGHT;
        line(format_args!("<text x=\"10\" y=\"{}\">{}</text>", y + ROW_HEIGHT / 2.0, run_name(run)));
        for (column, cell) in run.cells.iter().enumerate() {
            let x = LEFT + column as f64 * CELL_WIDTH;
            line(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>",
                CELL_WIDTH - 1.0,
                ROW_HEIGHT - 4.0,
                colour(level_of(heat_of(cell), hottest)),
                title(cell)
            ));
            let full = (bits(cell) / MOST_BITS).min(1.0) * (ROW_HEIGHT - 8.0);
            if full > 0.0 {
                line(format_args!(
                    "<rect x=\"{}\" y=\"{:.1}\" width=\"3\" height=\"{full:.1}\" fill=\"#ffffff\"/>",
                    x + 4.0,
                    y + ROW_HEIGHT - 6.0 - full
                ));
            }
        }
    }
    line(format_args!("</svg>"));
    svg
}

fn bits(cell: &HeatCell) -> f64 {
    if cell.keys > 0.0 { 8.0 * cell.bytes / cell.keys } else { 0.0 }
}

fn title(cell: &HeatCell) -> String {
    format!(
        "{:.0} keys, heat {:.2}, {:.1} bits per key, {:.0} false positives",
        cell.keys,
        cell.heat,
        bits(cell),
        cell.false_positives
    )
}

/// From grey-blue to red.
fn colour(level: f64) -> String {
    let mix = |cold: f64, hot: f64| (cold + (hot - cold) * level).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(208.0, 190.0), mix(218.0, 30.0), mix(230.0, 20.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_from_cold_to_hot() {
        assert_eq!((colour(0.0).as_str(), colour(1.0).as_str()), ("#d0dae6", "#be1e14"));
    }
}

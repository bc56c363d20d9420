//! Charts of a suite as SVG in `docs/measurements`: lines over a number, or bars with names.
//!
//! Not here: the rows behind a chart (`report`).

use anyhow::{Context, Result, anyhow};
use plotters::{
    coord::{Shift, ranged1d::ValueFormatter},
    prelude::*,
};
use std::{fs, ops::Range, path::Path};

const SIZE: (u32, u32) = (960, 480);
const FONT: (&str, i32) = ("sans-serif", 13);
/// Width of the names of lines.
const NAMES_WIDTH: u32 = 270;
const COLOURS: [RGBColor; 12] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(90, 90, 90),
    RGBColor(188, 189, 34),
    RGBColor(227, 119, 194),
    RGBColor(0, 0, 100),
    RGBColor(160, 200, 240),
];

/// Lines over a number; both axes are logarithmic.
pub struct LineChart {
    title: String,
    x_axis: String,
    y_axis: String,
    series: Vec<(String, Vec<(f64, f64)>)>,
}

impl LineChart {
    /// A chart without lines.
    pub fn new(title: &str, x_axis: &str, y_axis: &str) -> LineChart {
        let [title, x_axis, y_axis] = [title, x_axis, y_axis].map(str::to_owned);
        LineChart { title, x_axis, y_axis, series: Vec::new() }
    }

    /// Adds a line. Points that are not positive have no place on a logarithmic axis and are left out.
    pub fn series(&mut self, name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) {
        let points: Vec<_> = points.into_iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
        if !points.is_empty() {
            self.series.push((name.into(), points));
        }
    }

    /// Writes `docs/measurements/NAME.svg` below `root`. A chart without a line writes nothing.
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, root: &Path, name: &str) -> Result<()> {
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let (Some(x), Some(y)) = (span(points().map(|point| point.0)), span(points().map(|point| point.1)))
        else {
            return Ok(());
        };
        let path = path_of(root, name);
        let area = SVGBackend::new(&path, SIZE).into_drawing_area();
        self.draw(&area, x, y).map_err(|error| anyhow!("drawing {name}: {error}"))?;
        area.present().with_context(|| format!("writing {}", path.display()))
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: Range<f64>,
        y: Range<f64>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let (left, names) = area.split_horizontally(SIZE.0 - NAMES_WIDTH);
        let mut chart = ChartBuilder::on(&left)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(6)
            .x_desc(&self.x_axis)
            .y_desc(&self.y_axis)
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .label_style(FONT)
            .draw()?;
        for (index, (name, points)) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            let y = 50 + 22 * i32::try_from(index).unwrap_or(0);
            names.draw(&Rectangle::new([(4, y + 3), (18, y + 8)], colour.filled()))?;
            names.draw(&Text::new(name.as_str(), (26, y), FONT))?;
        }
        Ok(())
    }
}

/// Bars with names, one below the other; the axis of the values is logarithmic.
pub struct BarChart {
    title: String,
    axis: String,
    bars: Vec<(String, f64)>,
}

impl BarChart {
    /// A chart without bars.
    pub fn new(title: &str, axis: &str) -> BarChart {
        BarChart { title: title.to_owned(), axis: axis.to_owned(), bars: Vec::new() }
    }

    /// Adds a bar. A value that is not positive has no bar.
    pub fn bar(&mut self, name: impl Into<String>, value: f64) {
        if value > 0.0 {
            self.bars.push((name.into(), value));
        }
    }

    /// Writes `docs/measurements/NAME.svg` below `root`. A chart without a bar writes nothing.
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, root: &Path, name: &str) -> Result<()> {
        let Some(values) = span(self.bars.iter().map(|(_, value)| *value)) else {
            return Ok(());
        };
        let path = path_of(root, name);
        let height = 90 + 24 * u32::try_from(self.bars.len()).unwrap_or(100);
        let area = SVGBackend::new(&path, (SIZE.0, height)).into_drawing_area();
        self.draw(&area, values).map_err(|error| anyhow!("drawing {name}: {error}"))?;
        area.present().with_context(|| format!("writing {}", path.display()))
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        values: Range<f64>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let begin = values.start;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(430)
            .build_cartesian_2d(
                values.log_scale(),
                RowCoordinates(self.bars.iter().map(|bar| &*bar.0).collect()),
            )?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.axis)
            .x_label_formatter(&|value| short(*value))
            .y_labels(self.bars.len())
            .label_style(FONT)
            .draw()?;
        chart.draw_series(self.bars.iter().enumerate().map(|(index, (_, value))| {
            let middle = row_middle(index);
            Rectangle::new([(begin, middle - 0.35), (*value, middle + 0.35)], COLOURS[0].filled())
        }))?;
        let label = |(index, (_, value)): (usize, &(String, f64))| {
            Text::new(short(*value), (*value * 1.03, row_middle(index) + 0.28), FONT)
        };
        chart.draw_series(self.bars.iter().enumerate().map(label))?;
        Ok(())
    }
}

/// Middle of a row on the axis of the names; the first row is at the top.
fn row_middle(index: usize) -> f64 {
    -(index as f64) - 0.5
}

/// The axis of the names: one row for each.
#[derive(Clone)]
struct RowCoordinates<'a>(Vec<&'a str>);

impl Ranged for RowCoordinates<'_> {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value + self.0.len() as f64) / self.0.len() as f64;
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: plotters::coord::ranged1d::KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.0.len()).map(row_middle).collect()
    }

    fn range(&self) -> Range<f64> {
        -(self.0.len() as f64)..0.0
    }
}

impl ValueFormatter<f64> for RowCoordinates<'_> {
    fn format_ext(&self, value: &f64) -> String {
        let index = (-value - 0.5).round() as usize;
        self.0.get(index).copied().unwrap_or_default().to_owned()
    }
}

/// Range that holds the values, with room at both ends.
fn span(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    (least <= most).then_some(least * 0.6..most * 1.6)
}

/// A number of at most three digits with its thousands as a letter.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", digits(value / 1e6)),
        size if size >= 1e3 => format!("{} k", digits(value / 1e3)),
        _ => digits(value),
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn path_of(root: &Path, name: &str) -> std::path::PathBuf {
    let directory = root.join("docs/measurements");
    // A missing directory shows when the file is written.
    let _ = fs::create_dir_all(&directory);
    directory.join(format!("{name}.svg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_files_with_each_name() {
        let root = tempfile::tempdir().unwrap();
        let mut lines = LineChart::new("writes", "bytes", "a second");
        lines.series("a disk", [(512.0, 10_200.0), (4096.0, 43_500.0)]);
        lines.series("nothing", [(512.0, 0.0)]);
        lines.store(root.path(), "lines").unwrap();
        let mut bars = BarChart::new("ways", "a second");
        bars.bar("append", 120.0);
        bars.bar("update", 35_700.0);
        bars.store(root.path(), "bars").unwrap();
        let text = |name: &str| fs::read_to_string(root.path().join("docs/measurements").join(name)).unwrap();
        assert!(text("lines.svg").contains("a disk") && !text("lines.svg").contains("nothing"));
        assert!(text("bars.svg").contains("append") && text("bars.svg").contains("35.7 k"));
    }
}

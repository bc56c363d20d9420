//! Measures of the code's structure, names and prose, each with a frozen bound that may only fall.
//!
//! `xtask/house.txt` holds one bound a line: measure, area, number. A measure that rises above its bound
//! fails `cargo xtask tidy`; `--fix` lowers the bounds that are met with room to spare.
//! Not here: rules that hold without exception (`tidy`), circles of modules (`layers --modules`).

mod names;
mod prose;
mod size;
mod structure;
#[cfg(test)]
mod tests;

use crate::tidy::Tree;
use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const BOUNDS: &str = "xtask/house.txt";

/// Measure and area to a number.
type Measures = BTreeMap<(&'static str, String), usize>;

/// Compares every measure with its bound; with `fix`, first lowers the bounds.
pub(crate) fn check(root: &Path, tree: &Tree, fix: bool) -> Result<()> {
    let measures = measure(root, tree)?;
    let path = root.join(BOUNDS);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {BOUNDS}"))?;
    let mut bounds = parse(&text)?;
    if fix {
        lower(&mut bounds, &measures);
        fs::write(&path, render(&bounds)).with_context(|| format!("writing {BOUNDS}"))?;
    }
    let mut risen = 0;
    for ((name, area), &measured) in &measures {
        let bound = bounds.get(&((*name).to_owned(), area.clone())).copied().unwrap_or(0);
        if measured > bound {
            println!("{area}: {name}: {measured}, allowed {bound}; `cargo xtask tidy --report` shows where");
            risen += 1;
        }
    }
    if risen > 0 {
        bail!("tidy: {risen} measures rose above {BOUNDS}");
    }
    Ok(())
}

/// Prints the table of measures and the places that lie farthest from the targets; with `area`, every
/// sentence and name there that counts.
pub(crate) fn report(root: &Path, tree: &Tree, area: Option<&str>) -> Result<()> {
    if let Some(area) = area {
        for line in prose::places(tree, area).into_iter().chain(names::places(tree, area)) {
            println!("{line}");
        }
        return Ok(());
    }
    println!("{}", structure::report(root)?);
    println!("{}", size::report(tree));
    println!("{}", names::report(tree));
    println!("{}", prose::report(tree));
    Ok(())
}

fn measure(root: &Path, tree: &Tree) -> Result<Measures> {
    let mut measures = prose::measure(tree);
    measures.extend(names::measure(tree));
    measures.extend(structure::measure(root)?);
    Ok(measures)
}

fn parse(text: &str) -> Result<BTreeMap<(String, String), usize>> {
    let mut bounds = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, area, number] = words[..] else { bail!("{BOUNDS}: `{line}` is no bound") };
        let number = number.parse().with_context(|| format!("{BOUNDS}: `{line}`"))?;
        bounds.insert((name.to_owned(), area.to_owned()), number);
    }
    Ok(bounds)
}

/// Lowers each bound to its measure; a bound of an area that no longer exists is removed.
fn lower(bounds: &mut BTreeMap<(String, String), usize>, measures: &Measures) {
    bounds.retain(|(name, area), bound| {
        let measured = measures.iter().find(|((n, a), _)| n == name && a == area).map_or(0, |(_, m)| *m);
        *bound = measured.min(*bound);
        *bound > 0
    });
}

fn render(bounds: &BTreeMap<(String, String), usize>) -> String {
    let mut text = String::from(
        "# Bounds of `cargo xtask tidy`: measure, area, number. They only fall: `cargo xtask tidy --fix` lowers\n\
         # them. An area without a line has the bound 0.\n",
    );
    for ((name, area), bound) in bounds {
        let _ = writeln!(text, "{name} {area} {bound}");
    }
    text
}

/// The area that a file belongs to: its crate, or its kind of page.
fn area(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["crates", layer, name, ..] => format!("crates/{layer}/{name}"),
        ["docs", folder @ ("design" | "decisions" | "formats" | "protocols"), ..] => format!("docs/{folder}"),
        ["docs", ..] => "docs".into(),
        [first, _, ..] => first.into(),
        _ => path.into(),
    }
}

/// Whether a source belongs to tests only, by its path.
fn is_test(path: &str) -> bool {
    const FOLDERS: [&str; 5] = ["tests", "conformance", "benches", "examples", "fuzz_targets"];
    path.split('/').any(|part| {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        FOLDERS.contains(&stem) || stem.ends_with("_tests") || stem.starts_with("tests_")
    })
}

/// The sources of product code, by path.
fn product(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.sources().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/") && !is_test(path))
}

/// Folders of all crates below `crates/`.
fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for layer in fs::read_dir(root.join("crates")).context("reading crates")? {
        for entry in fs::read_dir(layer?.path()).context("reading a layer")? {
            let path = entry?.path();
            if path.join("src").is_dir() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Percentage of `part` in `all`, with one decimal.
fn percent(part: usize, all: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "counts of lines and words")]
    let share = 100.0 * part as f64 / all.max(1) as f64;
    format!("{share:.1} %")
}

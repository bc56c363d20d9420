//! Structure of each crate: entries of its source folder, imports between them, and files with `impl` blocks
//! of one type.
//!
//! A room is a file or folder directly under `src`; an arrow is one room that imports another. An arrow goes
//! up when it points against the best order of the rooms that a greedy search finds.

use super::{Measures, area, crates, is_test};
use crate::modules::{Crate, words};
use anyhow::Result;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

/// A type with `impl` blocks in more files counts as spread.
const FILES: usize = 3;

/// Numbers of one crate.
struct Shape {
    area: String,
    rooms: usize,
    arrows: usize,
    up: usize,
    /// Types with `impl` blocks in more files than that, with their number of files.
    spread: Vec<(String, usize)>,
}

pub(super) fn measure(root: &Path) -> Result<Measures> {
    let mut measures = Measures::new();
    for shape in shapes(root)? {
        measures.insert(("rooms", shape.area.clone()), shape.rooms);
        measures.insert(("arrows-up", shape.area.clone()), shape.up);
        let files = shape.spread.iter().map(|(_, files)| files - FILES).sum();
        measures.insert(("impl-files-over-three", shape.area), files);
    }
    Ok(measures)
}

pub(super) fn report(root: &Path) -> Result<String> {
    let mut text =
        String::from("structure: rooms, arrows, arrows up; types with impl blocks in more than 3 files\n");
    for shape in shapes(root)? {
        let spread: Vec<String> =
            shape.spread.iter().map(|(name, files)| format!("{name} {files}")).collect();
        let Shape { area, rooms, arrows, up, .. } = &shape;
        let _ = writeln!(text, "  {area:30} {rooms:4} {arrows:4} {up:4}  {}", spread.join(", "));
    }
    Ok(text)
}

fn shapes(root: &Path) -> Result<Vec<Shape>> {
    let shape = |path: &Path| {
        let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let sources = path.join("src");
        let modules = Crate::read(&sources)?;
        let needs = rooms(&modules);
        let arrows = needs.values().map(BTreeSet::len).sum();
        Ok(Shape {
            area: area(&format!("{relative}/")),
            rooms: needs.len(),
            arrows,
            up: arrows_up(&needs),
            spread: spread(&sources)?,
        })
    };
    crates(root)?.iter().map(|path| shape(path)).collect()
}

/// Each room of a crate and its imports.
fn rooms(modules: &Crate) -> BTreeMap<String, BTreeSet<String>> {
    let room = |at: usize| modules.name(at).split("::").next().unwrap_or_default().to_owned();
    let is_room = |name: &String| name != "(root)" && !is_test(name);
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (at, needed) in modules.needs().iter().enumerate() {
        let from = room(at);
        if !is_room(&from) {
            continue;
        }
        let to = needed.iter().map(|&at| room(at)).filter(|to| *to != from && is_room(to));
        found.entry(from.clone()).or_default().extend(to);
    }
    found
}

/// Arrows against an order of the rooms: sinks last, sources first, then the room with the largest surplus of
/// outgoing arrows (Eades, Lin and Smyth, 1993).
fn arrows_up(needs: &BTreeMap<String, BTreeSet<String>>) -> usize {
    let mut left: BTreeSet<&String> = needs.keys().collect();
    let (mut first, mut last) = (Vec::new(), Vec::new());
    while !left.is_empty() {
        let out = |room: &String| needs[room].iter().filter(|to| left.contains(to)).count();
        let into = |room: &String| left.iter().filter(|from| needs[**from].contains(room)).count();
        let sink = left.iter().copied().find(|room| out(room) == 0);
        let next = sink.or_else(|| left.iter().copied().find(|room| into(room) == 0));
        let surplus = |room: &&String| out(room).cast_signed() - into(room).cast_signed();
        let Some(next) = next.or_else(|| left.iter().copied().max_by_key(surplus)) else { break };
        left.remove(next);
        match sink.is_some() {
            true => last.push(next),
            false => first.push(next),
        }
    }
    first.extend(last.into_iter().rev());
    let place: BTreeMap<&String, usize> = first.iter().enumerate().map(|(at, room)| (*room, at)).collect();
    let is_up = |from: &String, to: &String| place.get(to) < place.get(from);
    needs.iter().map(|(from, all)| all.iter().filter(|to| is_up(from, to)).count()).sum()
}

/// Types of a crate whose `impl` blocks stand in more than three files, most files first.
fn spread(sources: &Path) -> Result<Vec<(String, usize)>> {
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut folders = vec![sources.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if is_test(&path.strip_prefix(sources).unwrap_or(&path).to_string_lossy()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                for name in implemented(&fs::read_to_string(&path)?) {
                    *files.entry(name).or_default() += 1;
                }
            }
        }
    }
    let mut found: Vec<_> = files.into_iter().filter(|(_, files)| *files > FILES).collect();
    found.sort_by_key(|(name, files)| (std::cmp::Reverse(*files), name.clone()));
    Ok(found)
}

/// Types with an inherent `impl` block in a source.
fn implemented(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for line in source.lines().filter(|line| line.starts_with("impl")) {
        let all = words(line);
        let mut depth = 0;
        let mut name = None;
        for word in &all[1..] {
            match *word {
                "<" => depth += 1,
                ">" => depth -= 1,
                "for" if depth == 0 => name = None,
                "{" | "where" if depth == 0 => break,
                word if depth == 0 && word.starts_with(char::is_uppercase) => name = Some(word.to_owned()),
                _ => {}
            }
        }
        if !all.contains(&"for") {
            found.extend(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_traits_are_not_counted() {
        let source = "impl Engine {\n}\nimpl<D: Device> crate::Store<D> {\n}\nimpl Drop for Engine {\n}\n";
        assert_eq!(implemented(source).into_iter().collect::<Vec<_>>(), ["Engine", "Store"]);
    }

    #[test]
    fn only_a_circle_has_an_arrow_up() {
        let of = |pairs: &[(&str, &[&str])]| {
            let set = |to: &[&str]| to.iter().map(|to| (*to).to_owned()).collect();
            arrows_up(&pairs.iter().map(|(from, to)| ((*from).to_owned(), set(to))).collect())
        };
        assert_eq!(of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]), 0);
        assert_eq!(of(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]), 1);
    }
}

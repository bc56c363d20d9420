//! Checks the references between `docs/design` and the code, in both directions.
//!
//! From the code to the pages: a `Design:` line names a heading of a page, and every rule that a source cites
//! (`OBJ-3`, `KV-7`) is defined in a page. From the pages to the code: every rule is defined once, and a
//! source cites it. The index of the decisions lists all of them.

use super::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};

const FOLDER: &str = "docs/design/";
const DECISIONS: &str = "docs/decisions/";
/// Prefixes of rules, by layer.
const LAYERS: [&str; 4] = ["OBJ", "KV", "VOL", "BAK"];
/// Old citations of documents outside of the repository.
const ELSEWHERE: [&str; 5] =
    ["object.md §", "kv.md §", "kv.md section", "backup layer, section", "backup.md §"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut headings: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut rules: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    let pages = tree.files().filter(|(path, _)| path.starts_with(FOLDER));
    for (path, page) in pages {
        let anchors = page.lines().filter(|line| line.starts_with('#')).map(anchor);
        headings.insert(path, anchors.collect());
        for (index, line) in page.lines().enumerate() {
            for rule in rules_in(line).filter(|rule| defines(line, rule)) {
                if rules.insert(rule, (path, index + 1)).is_some() {
                    findings.push(Finding::error(path, index + 1, format!("{rule} is defined twice")));
                }
            }
        }
    }
    let mut named = BTreeSet::new();
    for (path, source) in tree.sources().filter(|(path, _)| !path.starts_with("xtask/src/tidy/")) {
        for (index, line) in source.lines().enumerate() {
            let mut error = |what: String| findings.push(Finding::error(path, index + 1, what));
            for rule in rules_in(line) {
                named.insert(rule);
                if !rules.contains_key(rule) {
                    error(format!("{rule} is defined nowhere in {FOLDER}"));
                }
            }
            if ELSEWHERE.iter().any(|elsewhere| line.contains(elsewhere)) {
                error(format!("cites a design document outside of {FOLDER}"));
            }
            let Some(cited) = design_line(line) else { continue };
            match cited.split_whitespace().next().unwrap_or_default().split_once('#') {
                Some((page, anchor)) if headings.get(page).is_some_and(|there| there.contains(anchor)) => {}
                _ => error(format!(
                    "write `Design: {FOLDER}PAGE.md#heading`, then rules; this target does not exist"
                )),
            }
        }
    }
    for (rule, (path, line)) in rules {
        if !named.contains(rule) {
            findings.push(Finding::error(path, line, format!("no source cites {rule}")));
        }
    }
    findings.extend(unlisted_decisions(tree));
    findings
}

fn unlisted_decisions(tree: &Tree) -> impl Iterator<Item = Finding> {
    let index = format!("{DECISIONS}README.md");
    let listed = tree.get(&index).unwrap_or_default();
    let decisions = tree.files().filter_map(|(path, _)| path.strip_prefix(DECISIONS));
    decisions
        .filter(|name| {
            name.ends_with(".md") && *name != "README.md" && !listed.contains(&format!("({name})"))
        })
        .map(move |name| Finding::error(&index, 0, format!("{name} is not in it")))
}

/// The target and the rules that a comment cites behind `Design:`.
fn design_line(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    comment.trim_start_matches(['/', '!', ' ']).strip_prefix("Design:")
}

/// The rules that a line cites.
fn rules_in(line: &str) -> impl Iterator<Item = &str> {
    LAYERS.iter().flat_map(move |layer| {
        line.match_indices(layer).filter_map(move |(at, _)| {
            let is_inside = line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '-');
            let number = line[at + layer.len()..].strip_prefix('-')?;
            let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            (digits > 0 && !is_inside).then(|| &line[at..at + layer.len() + 1 + digits])
        })
    })
}

/// Whether a line of a page defines a rule: `**OBJ-3**`, or `**OBJ-3 Name.**`.
fn defines(line: &str, rule: &str) -> bool {
    line.match_indices(&format!("**{rule}")).any(|(at, mark)| {
        let name = line[at + mark.len()..].split_once("**").map(|(name, _)| name);
        name.is_some_and(|name| name.is_empty() || name.starts_with(' ') && name.ends_with('.'))
    })
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

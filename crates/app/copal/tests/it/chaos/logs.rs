//! Warnings that processes may log under faults, with reasons; any other warning fails the run.

use std::path::Path;

/// Parts of expected lines, with reasons.
const EXPECTED: [(&str, &str); 3] = [
    ("this master does not lead", "its database is cut off, or it lost the lease to another master"),
    ("the lease could not be renewed yet", "its database is cut off, and the lease has not ended"),
    ("the master cannot write its database", "its database is cut off"),
];

/// Unexpected lines of a log.
pub(super) fn unlisted(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_alarm = |line: &&str| [" WARN ", " ERROR ", "panicked at"].iter().any(|word| line.contains(word));
    let is_listed = |line: &&str| EXPECTED.iter().any(|(words, _)| line.contains(words));
    text.lines().filter(is_alarm).filter(|line| !is_listed(line)).map(str::to_owned).collect()
}

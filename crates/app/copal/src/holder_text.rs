//! Processes that hold a store's lock, as text and as JSON.

use crate::human;
use copal_node::LockHolder;
use serde::Serialize;

/// All holders as text; empty if none is known.
pub(crate) fn as_text(holders: &[LockHolder]) -> String {
    let words: Vec<String> = holders.iter().map(in_words).collect();
    words.join(" and ")
}

/// One holder as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct HolderFields {
    pid: u32,
    command: String,
    age_seconds: Option<u64>,
}

impl From<&LockHolder> for HolderFields {
    fn from(holder: &LockHolder) -> HolderFields {
        let command = human::visible(&holder.command).into_owned();
        HolderFields { pid: holder.pid, command, age_seconds: holder.age_seconds }
    }
}

/// `"copal prune" (process 4711, started 3m07s ago)`.
fn in_words(holder: &LockHolder) -> String {
    let pid = holder.pid;
    if holder.command.is_empty() {
        return format!("process {pid}, which has ended or is hidden from this user");
    }
    let age = holder.age_seconds.map(|seconds| format!(", started {} ago", human::age(seconds)));
    let command = human::visible(&holder.command);
    format!("\"{command}\" (process {pid}{})", age.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_anybody_may_have_chosen_is_shown_escaped() {
        let holder = LockHolder { pid: 7, command: "a\nb\u{1b}[2J".to_owned(), age_seconds: None };
        assert_eq!(as_text(std::slice::from_ref(&holder)), "\"a\\nb\\u{1b}[2J\" (process 7)");
        assert_eq!(HolderFields::from(&holder).command, "a\\nb\\u{1b}[2J");
    }
}

//! What a command says: JSON lines for machines, text for people.
//!
//! A JSON line is `{"v":1,"message_type":T, ...}` with T one of `status`, `verbose`, `item`, `summary`,
//! `error`, `exit_error`; version 1 gains fields and never loses one.

use crate::{
    failure::Failure,
    human::{visible, visible_lines},
    stdout,
};
use copal_backup::is_deceptive;
use serde::Serialize;
use serde_json::json;
use std::io::{self, IsTerminal, Write};

/// Version of the JSON lines.
pub(crate) const JSON_VERSION: u32 = 1;

/// Standard output and standard error of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandOutput {
    json: bool,
    quiet: bool,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressStyle {
    /// Not at all.
    None,
    /// A bar that moves, on standard error.
    Bar,
    /// A line now and then, on standard error.
    Lines,
    /// `status` messages on standard output.
    Json,
}

impl CommandOutput {
    pub(crate) fn new(json: bool, quiet: bool) -> CommandOutput {
        CommandOutput { json, quiet }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    pub(crate) fn progress_style(self) -> ProgressStyle {
        match (self.quiet, self.json, io::stderr().is_terminal()) {
            (true, _, _) => ProgressStyle::None,
            (_, true, _) => ProgressStyle::Json,
            (_, _, true) => ProgressStyle::Bar,
            (_, _, false) => ProgressStyle::Lines,
        }
    }

    /// One JSON line; `fields` is an object, whose fields are printed in the order of the alphabet.
    pub(crate) fn message(self, message_type: &str, fields: impl Serialize) {
        if !self.json {
            return;
        }
        let fields = match serde_json::to_value(fields) {
            Ok(fields) => escape_json(&fields.to_string()),
            Err(error) => return stdout::note(&error.into()),
        };
        // Version and type first, so that a line can be told by its beginning.
        let fields = fields.trim_start_matches('{');
        let comma = if fields == "}" { "" } else { "," };
        write_out(&format!("{{\"v\":{JSON_VERSION},\"message_type\":\"{message_type}\"{comma}{fields}\n"));
    }

    /// What became of the work: its JSON line, or its text, which is not wanted by who wants quiet.
    pub(crate) fn summary(self, fields: impl Serialize, text: impl FnOnce() -> String) {
        if self.json || !self.quiet {
            self.answer(fields, text);
        }
    }

    /// What was asked for: its JSON line, or its text.
    pub(crate) fn answer(self, fields: impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            self.message("summary", fields);
        } else {
            write_out(&visible_lines(&text()));
        }
    }

    /// A line of what goes on, for people who look.
    pub(crate) fn line(self, sentence: &str) {
        if !self.json && !self.quiet {
            write_out(&format!("{}\n", visible(sentence)));
        }
    }

    /// Something worth knowing that is not the result.
    pub(crate) fn notice(self, sentence: &str) {
        self.message("verbose", json!({ "message": sentence }));
        if !self.json && !self.quiet {
            write_err(&format!("{}\n", visible(sentence)));
        }
    }

    /// Something wrong that does not end the command.
    pub(crate) fn error(self, fields: impl Serialize, sentence: &str) {
        self.message("error", fields);
        if !self.json {
            write_err(&format!("copal: {}\n", visible(sentence)));
        }
    }

    /// The end of a command that failed.
    pub(crate) fn failure(self, failure: &Failure) {
        self.exit_error(failure);
        write_err(&format!("copal: {}\n", visible(&failure.sentence)));
    }

    /// The JSON line of a failure.
    pub(crate) fn exit_error(self, failure: &Failure) {
        self.message("exit_error", failure);
    }

    /// A warning about something that does not end the command.
    pub(crate) fn warning(self, warning: &str) {
        let fields = json!({ "code": "warning", "message": warning });
        self.error(fields, &format!("warning: {warning}"));
    }
}

/// What a terminal would obey stands in strings only, where JSON has an escape for it.
fn escape_json(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match is_deceptive(c) {
            // All of them lie below 2^16.
            true => out.push_str(&format!("\\u{:04x}", c as u32)),
            false => out.push(c),
        }
    }
    out
}

/// To standard output; one that takes no more makes the command fail at its end.
pub(crate) fn write_out(text: &str) {
    stdout::write(text);
}

/// Standard error has nobody to complain to.
pub(crate) fn write_err(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

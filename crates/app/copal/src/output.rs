//! Output of a command: JSON lines for programs, text for people.
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
    /// No progress.
    None,
    /// An animated bar on standard error.
    Bar,
    /// A line every few seconds on standard error.
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

    pub(crate) fn is_quiet(self) -> bool {
        self.quiet
    }

    pub(crate) fn progress_style(self) -> ProgressStyle {
        match (self.quiet, self.json, io::stderr().is_terminal()) {
            (true, _, _) => ProgressStyle::None,
            (_, true, _) => ProgressStyle::Json,
            (_, _, true) => ProgressStyle::Bar,
            (_, _, false) => ProgressStyle::Lines,
        }
    }

    /// Prints a JSON line; `fields` is an object, whose fields are printed in alphabetical order.
    pub(crate) fn message(self, message_type: &str, fields: impl Serialize) {
        if !self.json {
            return;
        }
        let fields = match serde_json::to_value(fields) {
            Ok(fields) => escape_json(&fields.to_string()),
            Err(error) => return stdout::note(&error.into()),
        };
        // Version and type come first, so that the beginning of a line identifies it.
        let fields = fields.trim_start_matches('{');
        let comma = if fields == "}" { "" } else { "," };
        write_out(&format!("{{\"v\":{JSON_VERSION},\"message_type\":\"{message_type}\"{comma}{fields}\n"));
    }

    /// Prints the result of an operation: its JSON line, or its text unless `--quiet` was given.
    pub(crate) fn summary(self, fields: impl Serialize, text: impl FnOnce() -> String) {
        if self.json || !self.quiet {
            self.answer(fields, text);
        }
    }

    /// Prints requested data: its JSON line, or its text.
    pub(crate) fn answer(self, fields: impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            self.message("summary", fields);
        } else {
            write_out(&visible_lines(&text()));
        }
    }

    /// Prints a line about the work in progress, as text only.
    pub(crate) fn line(self, sentence: &str) {
        if !self.json && !self.quiet {
            write_out(&format!("{}\n", visible(sentence)));
        }
    }

    /// Prints information beside the result.
    pub(crate) fn notice(self, sentence: &str) {
        self.message("verbose", json!({ "message": sentence }));
        if !self.json && !self.quiet {
            write_err(&format!("{}\n", visible(sentence)));
        }
    }

    /// Prints an error that does not end the command.
    pub(crate) fn error(self, fields: impl Serialize, sentence: &str) {
        self.message("error", fields);
        if !self.json {
            write_err(&format!("copal: {}\n", visible(sentence)));
        }
    }

    /// Prints the failure that ends the command.
    pub(crate) fn failure(self, failure: &Failure) {
        self.exit_error(failure);
        write_err(&format!("copal: {}\n", visible(&failure.sentence)));
    }

    /// The JSON line of a failure.
    pub(crate) fn exit_error(self, failure: &Failure) {
        self.message("exit_error", failure);
    }

    /// Prints a warning.
    pub(crate) fn warning(self, warning: &str) {
        let fields = json!({ "code": "warning", "message": warning });
        self.error(fields, &format!("warning: {warning}"));
    }
}

/// Escapes characters that control a terminal. They occur inside JSON strings only, where JSON has an escape
/// for them.
fn escape_json(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match is_deceptive(c) {
            // All of them are below 2^16.
            true => out.push_str(&format!("\\u{:04x}", c as u32)),
            false => out.push(c),
        }
    }
    out
}

/// Writes to standard output; after a failed write the command fails at its end.
pub(crate) fn write_out(text: &str) {
    stdout::write(text);
}

/// Writes to standard error; failures are ignored, since they cannot be reported.
pub(crate) fn write_err(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

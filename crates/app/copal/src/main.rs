//! The `copal` command: parses the arguments, runs one operation, and prints a result or a failure with an
//! exit code.
//!
//! Invariants
//! - Every failure is one sentence with the remedy, and has one of the exit codes of `--help`.
//! - Standard output carries results (with `--json` only JSON lines), standard error the rest.
//!
//! Not here: any backup logic (`copal-backup`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod allocator;
mod arguments;
mod asker;
mod cache;
mod cluster;
mod commands;
mod coverage;
mod failure;
mod holder_text;
mod human;
mod meter;
mod output;
mod password;
mod pins;
mod place;
mod repository;
mod signals;
mod stdin;
mod stdout;
mod store_failure;

use arguments::CopalCommand;
use failure::Failure;
use output::CommandOutput;
use std::process::ExitCode;

fn main() -> ExitCode {
    allocator::give_back_large_blocks();
    signals::outlive_file_limits();
    start_logging();
    let arguments = match arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse_words(&error),
    };
    if matches!(arguments.command, CopalCommand::Data(_) | CopalCommand::Fs(_)) {
        allocator::keep_blocks_of_files();
    }
    let output = CommandOutput::new(arguments.common.json, arguments.common.quiet);
    match commands::run(&arguments, &output) {
        Ok(()) => end_well(),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Success, unless standard output did not take the result.
fn end_well() -> ExitCode {
    match stdout::failure() {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            output::write_err(&format!("copal: {}\n", failure.sentence));
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Prints help, version, or an error of the arguments (exit code 2, also as JSON if requested).
fn refuse_words(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help and version are results.
        match (stdout::is_closed(), error.print()) {
            (true, _) => stdout::note(&std::io::Error::other("it is closed")),
            (false, Err(failed)) => stdout::note(&failed),
            (false, Ok(())) => {}
        }
        return end_well();
    }
    // A failed write to the terminal cannot be reported.
    let _ = error.print();
    if std::env::args_os().any(|word| word == "--json") {
        CommandOutput::new(true, true).exit_error(&Failure::usage(complaint(&error.to_string())));
    }
    ExitCode::from(2)
}

/// The error of the arguments as one sentence: all text before the usage.
fn complaint(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    let sentence = text.trim_start_matches("error: ");
    format!("{sentence}; `copal --help` and the command's own --help show the valid arguments")
}

/// A store that cannot grow ends the command with its own sentence, so its log line is suppressed.
const DEFAULT_LOG: &str = "warn,copal_object::resize::grow=error";

/// Libraries whose lines could show parts of requests to an object store, such as a session token.
const SILENT: [&str; 5] = ["h2=off", "hdfs_native=off", "hyper=off", "hyper_util=off", "rustls=off"];

/// Logs warnings and errors of the libraries to standard error; `COPAL_LOG` sets another filter.
fn start_logging() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("COPAL_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let filter = SILENT.iter().filter_map(|words| words.parse().ok()).fold(filter, EnvFilter::add_directive);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

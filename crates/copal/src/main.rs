//! The `copal` command: words in, one operation on a repository, words and an exit code out.
//!
//! Invariants
//! - Every failure is one sentence that says what to do, and one of the exit codes of `--help`.
//! - Standard output carries results (with `--json` nothing but JSON lines), standard error the rest.
//!
//! Not here: any backup logic (`copal-backup`).

mod allocator;
mod arguments;
mod commands;
mod coverage;
mod failure;
mod human;
mod kv_arguments;
mod making;
mod meter;
mod output;
mod password;
mod place;
mod repository;
mod sealer;
mod signals;
mod stdin;

use arguments::Arguments;
use clap::Parser;
use failure::Failure;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    allocator::give_back_large_blocks();
    start_logging();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse_words(&error),
    };
    let output = Output::new(arguments.common.json, arguments.common.quiet);
    match commands::run(&arguments, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Help, version, and words that make no sense (exit code 2, as JSON too when that was asked for).
fn refuse_words(error: &clap::Error) -> ExitCode {
    // Nothing can be done about a terminal that went away.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    if std::env::args_os().any(|word| word == "--json") {
        let text = error.to_string();
        let sentence = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        Output::new(true, true).exit_error(&Failure::usage(sentence));
    }
    ExitCode::from(2)
}

/// A store that cannot grow ends the command with a sentence of its own.
const DEFAULT_LOG: &str = "warn,copal_object::room=error";

/// Warnings and errors of the libraries on standard error; `COPAL_LOG` shows more.
fn start_logging() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("COPAL_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

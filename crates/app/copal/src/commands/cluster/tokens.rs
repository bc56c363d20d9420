//! Parses join tokens of the command line.

use crate::failure::{Failure, Outcome};
use copal_server::{JoinToken, TokenError};
use std::io::Read;

/// Longest token that is read.
const MOST_BYTES: u64 = 4096;

/// The token of an argument; `-` reads standard input.
pub(super) fn read(typed: &str) -> Outcome<JoinToken> {
    let mut text = typed.to_owned();
    if typed == "-" {
        text.clear();
        let read = std::io::stdin().take(MOST_BYTES).read_to_string(&mut text);
        read.map_err(|error| Failure::usage(format!("no token on standard input: {error}")))?;
    }
    text.parse().map_err(|error: TokenError| Failure::usage(error.to_string()))
}

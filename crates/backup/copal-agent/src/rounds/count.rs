//! Number of rounds of a job: at least twelve, and as many as memory requires.

use std::fmt;
use std::str::FromStr;

/// Bytes in memory per chunk that waits for its answer: the answer and its notes.
pub const ANSWER_BYTES: u64 = 5;
/// Memory that a host has for the answers of a round.
pub const ANSWERS_BYTES: u64 = 6 << 20;
/// Mean length of a chunk.
pub const CHUNK_BYTES: u64 = 16 << 10;
/// Rounds of a job with enough parts: more rounds end a VM's backup, and its snapshot, earlier.
const LEAST_ROUNDS: u64 = 12;

/// Highest number that may be requested: each round costs messages between all hosts, even if nothing is left
/// to ask.
const MOST_ROUNDS: u32 = 100_000;

/// Number of rounds of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundCount {
    /// At least 12, and as many as memory requires.
    #[default]
    Auto,
    /// This number, and more only if memory requires it.
    Exactly(u32),
}

/// Neither `auto` nor a number of rounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--rounds {0:?} is not a number of rounds; give \"auto\" or a number from 1 to {most}", most = MOST_ROUNDS)]
pub struct NotARoundCount(pub String);

impl FromStr for RoundCount {
    type Err = NotARoundCount;

    fn from_str(text: &str) -> Result<RoundCount, NotARoundCount> {
        match (text, text.parse()) {
            ("auto", _) => Ok(RoundCount::Auto),
            (_, Ok(rounds @ 1..=MOST_ROUNDS)) => Ok(RoundCount::Exactly(rounds)),
            _ => Err(NotARoundCount(text.to_owned())),
        }
    }
}

impl fmt::Display for RoundCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoundCount::Auto => f.write_str("auto"),
            RoundCount::Exactly(rounds) => rounds.fmt(f),
        }
    }
}

/// Limits of a host for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundLimits {
    /// Number of rounds.
    pub rounds: RoundCount,
    /// Memory for waiting answers.
    pub answers_bytes: u64,
    /// Mean length of a chunk.
    pub chunk_bytes: u64,
}

impl RoundLimits {
    /// Memory for the answers to this number of changed bytes.
    pub fn answers_for(&self, changed_bytes: u64) -> u64 {
        changed_bytes.div_ceil(self.chunk_bytes.max(1)).saturating_mul(ANSWER_BYTES)
    }

    /// Changed bytes whose answers fit.
    pub(super) fn most_bytes(&self) -> u64 {
        (self.answers_bytes / ANSWER_BYTES).saturating_mul(self.chunk_bytes.max(1)).max(1)
    }
}

/// Target number of rounds for this number of parts.
pub fn round_count(changed_bytes: u64, parts: usize, limits: &RoundLimits) -> u64 {
    let for_memory = limits.answers_for(changed_bytes).div_ceil(limits.answers_bytes.max(1));
    let wanted = match limits.rounds {
        RoundCount::Auto => LEAST_ROUNDS,
        RoundCount::Exactly(rounds) => rounds.into(),
    };
    wanted.max(for_memory).min(parts as u64).max(1)
}

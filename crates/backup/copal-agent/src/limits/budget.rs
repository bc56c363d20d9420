//! Memory budget: lends bytes to backups and detectors, and counts them.
//!
//! Design: docs/design/backup.md#a-fleet
//! Invariants
//! - No share lends more than it has. A request that must wait blocks; one that can never be served fails.
//! - The shares of a process together are its memory limit minus the memory of code, stacks and allocator.
//!
//! Not here: measuring the real memory use.

use parking_lot::{Condvar, Mutex};
use std::fmt;

/// Memory limit for which the shares below are defined.
pub const DEFAULT_MEMORY_BYTES: u64 = 96_000_000;
/// Below this limit, a segment and its pack do not fit.
pub const LEAST_MEMORY_BYTES: u64 = 48_000_000;
const MIB: u64 = 1 << 20;
/// Lent bytes at the default limit.
const DEFAULT_LENT_BYTES: u64 = 76 * MIB;
/// For code, stacks and memory that the allocator retains.
const NOT_LENT_BYTES: u64 = DEFAULT_MEMORY_BYTES - DEFAULT_LENT_BYTES;

/// Purpose of lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryShare {
    /// Segments that are read and chunked.
    SegmentReads,
    /// Requests in transit to owners.
    RequestBuffers,
    /// Messages that a detector receives and sends.
    DetectorBuffers,
    /// The partition in comparison.
    Detection,
    /// Answers of the current round.
    Answers,
    /// The cache of the host.
    Cache,
    /// Packs that are written or read.
    PackWindows,
    /// Pages and recipes of the base.
    BaseRecipes,
    /// A block of a summary vector.
    VectorBlock,
    /// Compression, encryption and control.
    Codecs,
    /// All other purposes.
    Reserve,
}

impl MemoryShare {
    /// All shares.
    pub const ALL: [MemoryShare; 11] = [
        MemoryShare::SegmentReads,
        MemoryShare::RequestBuffers,
        MemoryShare::DetectorBuffers,
        MemoryShare::Detection,
        MemoryShare::Answers,
        MemoryShare::Cache,
        MemoryShare::PackWindows,
        MemoryShare::BaseRecipes,
        MemoryShare::VectorBlock,
        MemoryShare::Codecs,
        MemoryShare::Reserve,
    ];

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            MemoryShare::SegmentReads => "segment reads",
            MemoryShare::RequestBuffers => "request buffers",
            MemoryShare::DetectorBuffers => "detector buffers",
            MemoryShare::Detection => "duplicate detection",
            MemoryShare::Answers => "answers",
            MemoryShare::Cache => "cache",
            MemoryShare::PackWindows => "pack windows",
            MemoryShare::BaseRecipes => "base recipes",
            MemoryShare::VectorBlock => "summary vectors",
            MemoryShare::Codecs => "codecs",
            MemoryShare::Reserve => "reserve",
        }
    }

    /// Its part of [`DEFAULT_LENT_BYTES`].
    fn default_bytes(self) -> u64 {
        match self {
            MemoryShare::SegmentReads => 8 * MIB,
            MemoryShare::RequestBuffers | MemoryShare::DetectorBuffers => 25 * MIB / 4,
            MemoryShare::Detection => 12 * MIB,
            MemoryShare::Answers => 6 * MIB,
            MemoryShare::Cache => 12 * MIB,
            MemoryShare::PackWindows => 8 * MIB,
            MemoryShare::BaseRecipes => 4 * MIB,
            MemoryShare::VectorBlock => 8 * MIB,
            MemoryShare::Codecs => 3 * MIB,
            MemoryShare::Reserve => 5 * MIB / 2,
        }
    }
}

impl fmt::Display for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why memory is not lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The limit of the process is too low.
    #[error("--memory {memory_bytes} bytes are too few for a backup; give at least 48M")]
    TooLittleMemory {
        /// The limit that was given.
        memory_bytes: u64,
    },
    /// The share never has that much.
    #[error(
        "{wanted_bytes} bytes for {share} can never be lent: the memory limit leaves it {share_bytes}; raise --memory"
    )]
    NeverFits {
        /// The share.
        share: MemoryShare,
        /// Requested bytes.
        wanted_bytes: u64,
        /// Total of the share.
        share_bytes: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct ShareAccount {
    limit_bytes: u64,
    lent_bytes: u64,
}

#[derive(Debug, Default)]
struct ShareAccounts {
    shares: [ShareAccount; MemoryShare::ALL.len()],
    lent_bytes: u64,
    peak_bytes: u64,
}

/// The memory of a process, in shares.
#[derive(Debug)]
pub struct MemoryBudget {
    accounts: Mutex<ShareAccounts>,
    returned: Condvar,
}

impl MemoryBudget {
    /// Divides the memory limit of the process.
    /// # Errors
    /// `TooLittleMemory`.
    pub fn of_process(memory_bytes: u64) -> Result<MemoryBudget, BudgetError> {
        if memory_bytes < LEAST_MEMORY_BYTES {
            return Err(BudgetError::TooLittleMemory { memory_bytes });
        }
        let lent = u128::from(memory_bytes - NOT_LENT_BYTES);
        let mut accounts = ShareAccounts::default();
        for share in MemoryShare::ALL {
            let part = lent * u128::from(share.default_bytes()) / u128::from(DEFAULT_LENT_BYTES);
            accounts.shares[share as usize].limit_bytes = u64::try_from(part).unwrap_or(u64::MAX);
        }
        Ok(MemoryBudget { accounts: Mutex::new(accounts), returned: Condvar::new() })
    }

    /// Total of a share.
    pub fn share_bytes(&self, share: MemoryShare) -> u64 {
        self.accounts.lock().shares[share as usize].limit_bytes
    }

    /// Lends bytes; blocks until the share has them. Not in order: small requests may overtake a large one.
    /// # Errors
    /// `NeverFits`.
    pub fn lend(&self, share: MemoryShare, bytes: u64) -> Result<MemoryLoan<'_>, BudgetError> {
        let mut accounts = self.accounts.lock();
        let share_bytes = accounts.shares[share as usize].limit_bytes;
        if bytes > share_bytes {
            let wanted_bytes = bytes;
            return Err(BudgetError::NeverFits { share, wanted_bytes, share_bytes });
        }
        while accounts.shares[share as usize].lent_bytes > share_bytes - bytes {
            self.returned.wait(&mut accounts);
        }
        accounts.shares[share as usize].lent_bytes += bytes;
        accounts.lent_bytes += bytes;
        accounts.peak_bytes = accounts.peak_bytes.max(accounts.lent_bytes);
        Ok(MemoryLoan { budget: self, share, bytes })
    }

    /// Bytes that are lent now.
    pub fn lent_bytes(&self) -> u64 {
        self.accounts.lock().lent_bytes
    }

    /// Most bytes that were lent at once.
    pub fn peak_bytes(&self) -> u64 {
        self.accounts.lock().peak_bytes
    }
}

/// Bytes that are lent; dropping returns them.
#[derive(Debug)]
pub struct MemoryLoan<'a> {
    budget: &'a MemoryBudget,
    share: MemoryShare,
    bytes: u64,
}

impl MemoryLoan<'_> {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryLoan<'_> {
    fn drop(&mut self) {
        let mut accounts = self.budget.accounts.lock();
        accounts.shares[self.share as usize].lent_bytes -= self.bytes;
        accounts.lent_bytes -= self.bytes;
        drop(accounts);
        self.budget.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn total(budget: &MemoryBudget) -> u64 {
        MemoryShare::ALL.iter().map(|&share| budget.share_bytes(share)).sum()
    }

    #[test]
    fn the_default_lends_76_mib_and_the_shares_are_all_of_it() {
        let budget = MemoryBudget::of_process(DEFAULT_MEMORY_BYTES).unwrap();
        assert_eq!(total(&budget), 76 * MIB);
        assert_eq!(budget.share_bytes(MemoryShare::Answers), 6 * MIB);
        assert_eq!(budget.share_bytes(MemoryShare::RequestBuffers), 6 * MIB + MIB / 4);
    }

    #[test]
    fn too_little_is_refused_and_little_is_divided_alike() {
        let refused = MemoryBudget::of_process(47_999_999).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--memory 47999999 bytes are too few for a backup; give at least 48M"
        );
        let budget = MemoryBudget::of_process(LEAST_MEMORY_BYTES).unwrap();
        let all = total(&budget);
        assert!(all <= LEAST_MEMORY_BYTES - NOT_LENT_BYTES && all > LEAST_MEMORY_BYTES - NOT_LENT_BYTES - 11);
        assert!(budget.share_bytes(MemoryShare::SegmentReads) >= 2 * MIB, "a segment fits");
        assert!(total(&MemoryBudget::of_process(u64::MAX).unwrap()) > u64::MAX - NOT_LENT_BYTES - 11);
    }

    #[test]
    fn an_oversized_loan_is_refused_and_a_dropped_one_returns_its_bytes() {
        let budget = MemoryBudget::of_process(DEFAULT_MEMORY_BYTES).unwrap();
        let refused = budget.lend(MemoryShare::Answers, 6 * MIB + 1).unwrap_err();
        assert!(matches!(refused, BudgetError::NeverFits { share_bytes: 6_291_456, .. }));
        let loan = budget.lend(MemoryShare::Answers, 6 * MIB).unwrap();
        let other = budget.lend(MemoryShare::Cache, 1).unwrap();
        assert_eq!((loan.bytes(), budget.lent_bytes()), (6 * MIB, 6 * MIB + 1));
        drop((loan, other));
        assert_eq!((budget.lent_bytes(), budget.peak_bytes()), (0, 6 * MIB + 1));
    }

    #[test]
    fn threads_wait_for_each_other_and_never_have_more_than_the_share() {
        let budget = MemoryBudget::of_process(DEFAULT_MEMORY_BYTES).unwrap();
        let limit = budget.share_bytes(MemoryShare::Answers);
        let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (budget, held, most) = (&budget, &held, &most);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let bytes = limit * ((thread + turn) % 4 + 1) / 5;
                        let loan = budget.lend(MemoryShare::Answers, bytes).unwrap();
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most.fetch_max(now, Ordering::SeqCst);
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        drop(loan);
                    }
                });
            }
        });
        assert!(most.into_inner() <= limit);
        assert_eq!(budget.lent_bytes(), 0);
        assert!(budget.peak_bytes() <= limit);
    }
}

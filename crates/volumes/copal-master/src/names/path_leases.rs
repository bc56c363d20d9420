//! Writer leases below paths: one client at a time may write below a path, for as long as it renews.
//!
//! Leases lie in memory only. A new term gives none until those of earlier terms have ended. A lease that was
//! not given back is given to another client only after its end plus the largest difference of clocks
//! (VOL-40).
//! Invariant: of two paths, one of which lies below the other, at most one has a lease.

use std::collections::BTreeMap;

/// How long a lease lasts when it is not renewed, ms.
pub const WRITER_LEASE_MS: u64 = 30_000;
/// By how much clocks of data servers may differ from the master's, ms.
const SKEW_MS: u64 = 10_000;

/// The right of one client to write below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLease {
    /// Number of the lease, greater than those of all earlier leases.
    pub number: u64,
    /// Description of the client, for operators.
    pub holder: String,
    /// End of the lease, ms of the master's clock.
    pub ends_ms: u64,
}

/// Leases by path.
#[derive(Debug, Default)]
pub(crate) struct PathLeases {
    held: BTreeMap<String, PathLease>,
    last: u64,
    began_ms: Option<u64>,
}

/// A lease that is not given or not renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// Another client has it.
    Held {
        /// Description of that client.
        holder: String,
        /// Seconds until it ends if it is not renewed.
        seconds: u64,
    },
    /// It ended, or another client had it since.
    Ended,
}

fn overlap(a: &str, b: &str) -> bool {
    let below =
        |above: &str, path: &str| above.is_empty() || path == above || path.starts_with(&format!("{above}/"));
    below(a, b) || below(b, a)
}

impl PathLeases {
    /// Gives a lease on a path to a holder.
    pub(crate) fn take(
        &mut self,
        term: u64,
        path: &str,
        holder: &str,
        now_ms: u64,
    ) -> Result<PathLease, LeaseRefusal> {
        // A lease of the previous term may be valid still.
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        let free_ms = began_ms + WRITER_LEASE_MS + SKEW_MS;
        if term > 1 && now_ms < free_ms {
            return Err(LeaseRefusal::Held {
                holder: "the client that held it when the master was restarted".to_owned(),
                seconds: (free_ms - now_ms).div_ceil(1000),
            });
        }
        self.held.retain(|_, lease| lease.ends_ms + SKEW_MS > now_ms);
        let other = self.held.iter().find(|(of, _)| overlap(of, path));
        if let Some((_, lease)) = other {
            return Err(LeaseRefusal::Held {
                holder: lease.holder.clone(),
                seconds: (lease.ends_ms + SKEW_MS - now_ms).div_ceil(1000),
            });
        }
        self.last += 1;
        let lease = PathLease {
            number: (term << 32) | self.last,
            holder: holder.to_owned(),
            ends_ms: now_ms + WRITER_LEASE_MS,
        };
        self.held.insert(path.to_owned(), lease.clone());
        Ok(lease)
    }

    /// Renews a lease that has not ended. A lease of an earlier term is renewed as long as no other client
    /// can have got one.
    pub(crate) fn renew(
        &mut self,
        path: &str,
        lease: &PathLease,
        now_ms: u64,
    ) -> Result<PathLease, LeaseRefusal> {
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        self.held.retain(|_, lease| lease.ends_ms + SKEW_MS > now_ms);
        let other = self.held.iter().find(|(of, _)| overlap(of, path));
        let is_valid = match other {
            Some((_, held)) => held.number == lease.number && held.ends_ms > now_ms,
            None => now_ms < began_ms + WRITER_LEASE_MS,
        };
        if !is_valid {
            return Err(LeaseRefusal::Ended);
        }
        let renewed = PathLease { ends_ms: now_ms + WRITER_LEASE_MS, ..lease.clone() };
        self.held.insert(path.to_owned(), renewed.clone());
        Ok(renewed)
    }

    /// End of a lease; `None`: it has ended, or another lease is on the path.
    pub(crate) fn ends(&self, path: &str, number: u64, now_ms: u64) -> Option<u64> {
        let held = self.held.get(path).filter(|lease| lease.number == number)?;
        Some(held.ends_ms).filter(|&ends_ms| ends_ms > now_ms)
    }

    /// Moves all times by a step of the reference, so that each lease lasts as long as before.
    pub(crate) fn move_times(&mut self, step_ms: i64) {
        let moved = |at_ms: u64| at_ms.saturating_add_signed(step_ms);
        self.began_ms = self.began_ms.map(moved);
        for lease in self.held.values_mut() {
            lease.ends_ms = moved(lease.ends_ms);
        }
    }

    /// Gives a lease back.
    pub(crate) fn release(&mut self, path: &str, number: u64) {
        if self.held.get(path).is_some_and(|lease| lease.number == number) {
            self.held.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_at_a_time_below_a_path_and_above_it() {
        let mut leases = PathLeases::default();
        let first = leases.take(1, "vms", "first", 1000).unwrap();
        for path in ["vms", "vms/a", ""] {
            let held = leases.take(1, path, "second", 1000);
            assert!(
                matches!(held, Err(LeaseRefusal::Held { ref holder, seconds: 40 }) if holder == "first"),
                "{path}"
            );
        }
        leases.take(1, "vmsx", "third", 1000).unwrap();
        let renewed = leases.renew("vms", &first, 20_000).unwrap();
        assert_eq!(renewed.ends_ms, 50_000);
        assert_eq!(leases.ends("vms", first.number, 49_999), Some(50_000));
        assert_eq!(leases.ends("vms", first.number, 50_000), None);
        assert_eq!(leases.ends("vms", first.number + 1, 1000), None);
        // It has ended, but a data server with a slow clock still accepts it.
        assert_eq!(leases.renew("vms", &renewed, 50_000), Err(LeaseRefusal::Ended));
        assert!(leases.take(1, "vms", "second", 59_999).is_err());
        let second = leases.take(1, "vms", "second", 60_000).unwrap();
        assert!(second.number > first.number);
        assert_eq!(leases.renew("vms", &renewed, 60_001), Err(LeaseRefusal::Ended));
        leases.release("vms", second.number);
        leases.take(1, "vms", "third", 60_002).unwrap();
    }

    #[test]
    fn a_new_term_renews_old_leases_and_gives_none_at_first() {
        let mut before = PathLeases::default();
        let held = before.take(1, "vms", "first", 1000).unwrap();
        let mut after = PathLeases::default();
        assert!(after.take(2, "vms", "second", 5000).is_err());
        let held = after.renew("vms", &held, 6000).unwrap();
        assert!(after.take(2, "vms", "second", 44_999).is_err());
        after.release("vms", held.number);
        after.take(2, "vms", "second", 45_000).unwrap();
    }
}

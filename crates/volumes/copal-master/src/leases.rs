//! Who writes to a tree of volumes: one client at a time, for as long as it renews its right.
//!
//! Kept in memory: a reign begins with nobody holding anything, and waits until what an earlier one may have given has ended.
//! Invariant: two leases on paths of which one lies below the other are never held at a time.

use std::collections::BTreeMap;

/// How long a lease lasts when it is not renewed, ms.
pub const WRITER_LEASE_MS: u64 = 30_000;

/// A right to write below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Number of the lease, greater than all before.
    pub number: u64,
    /// Who has it, for people.
    pub holder: String,
    /// When it ends, ms of the master's clock.
    pub ends_ms: u64,
}

/// Leases by path.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: BTreeMap<String, Lease>,
    last: u64,
    began_ms: Option<u64>,
}

/// Why a lease is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// Somebody has it.
    Held {
        /// Who.
        holder: String,
        /// Until it ends, if it is not renewed.
        seconds: u64,
    },
    /// It ended, or was somebody else's meanwhile.
    Ended,
}

fn overlap(a: &str, b: &str) -> bool {
    let below =
        |above: &str, path: &str| above.is_empty() || path == above || path.starts_with(&format!("{above}/"));
    below(a, b) || below(b, a)
}

impl Leases {
    /// Gives a lease on a path to a holder.
    pub(crate) fn take(
        &mut self,
        term: u64,
        path: &str,
        holder: &str,
        now_ms: u64,
    ) -> Result<Lease, NoLease> {
        // What the reign before this one gave may still be held.
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        if term > 1 && now_ms < began_ms + WRITER_LEASE_MS {
            return Err(NoLease::Held {
                holder: "whoever held it when the master was started again".to_owned(),
                seconds: (began_ms + WRITER_LEASE_MS - now_ms).div_ceil(1000),
            });
        }
        self.held.retain(|_, lease| lease.ends_ms > now_ms);
        let other = self.held.iter().find(|(of, _)| overlap(of, path));
        if let Some((_, lease)) = other {
            return Err(NoLease::Held {
                holder: lease.holder.clone(),
                seconds: (lease.ends_ms - now_ms).div_ceil(1000),
            });
        }
        self.last += 1;
        let lease = Lease {
            number: (term << 32) | self.last,
            holder: holder.to_owned(),
            ends_ms: now_ms + WRITER_LEASE_MS,
        };
        self.held.insert(path.to_owned(), lease.clone());
        Ok(lease)
    }

    /// Renews a lease that has not ended. One that an earlier reign gave goes on, as long as nobody else could have got it.
    pub(crate) fn renew(&mut self, path: &str, lease: &Lease, now_ms: u64) -> Result<Lease, NoLease> {
        let began_ms = *self.began_ms.get_or_insert(now_ms);
        self.held.retain(|_, lease| lease.ends_ms > now_ms);
        let other = self.held.iter().find(|(of, _)| overlap(of, path));
        let goes_on = match other {
            Some((_, held)) => held.number == lease.number,
            None => now_ms < began_ms + WRITER_LEASE_MS,
        };
        if !goes_on {
            return Err(NoLease::Ended);
        }
        let renewed = Lease {
            ends_ms: now_ms + WRITER_LEASE_MS,
            ..lease.clone()
        };
        self.held.insert(path.to_owned(), renewed.clone());
        Ok(renewed)
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
        let mut leases = Leases::default();
        let first = leases.take(1, "vms", "first", 1000).unwrap();
        for path in ["vms", "vms/a", ""] {
            let held = leases.take(1, path, "second", 1000);
            assert!(
                matches!(held, Err(NoLease::Held { ref holder, seconds: 30 }) if holder == "first"),
                "{path}"
            );
        }
        leases.take(1, "vmsx", "third", 1000).unwrap();
        let renewed = leases.renew("vms", &first, 20_000).unwrap();
        assert_eq!(renewed.ends_ms, 50_000);
        assert!(leases.take(1, "vms", "second", 40_000).is_err());
        let second = leases.take(1, "vms", "second", 50_000).unwrap();
        assert!(second.number > first.number);
        assert_eq!(leases.renew("vms", &renewed, 50_001), Err(NoLease::Ended));
        leases.release("vms", second.number);
        leases.take(1, "vms", "third", 50_002).unwrap();
    }

    #[test]
    fn a_new_reign_lets_what_was_held_go_on_and_gives_nothing_at_first() {
        let mut before = Leases::default();
        let held = before.take(1, "vms", "first", 1000).unwrap();
        let mut after = Leases::default();
        assert!(after.take(2, "vms", "second", 5000).is_err());
        let held = after.renew("vms", &held, 6000).unwrap();
        assert!(after.take(2, "vms", "second", 35_500).is_err());
        after.release("vms", held.number);
        after.take(2, "vms", "second", 35_500).unwrap();
    }
}

//! Sealing of time buckets: ten seconds each, sealed by each member, compared by digest, stable once all are
//! equal.
//!
//! A sealed bucket accepts no operations from clients; members copy missing operations of it from each other
//! only. So its operations only grow toward the union of all members, and equal digests on all of them mean
//! that none lacks anything (VOL-17, VOL-18). Clocks decide when a bucket is sealed, and never whether it is
//! equal.
//!
//! Design: docs/design/cluster.md#rules
//! Invariants
//! - Buckets are sealed in their order: all buckets before a sealed one are sealed.
//! - Digests count the set of operations, not the files. A create whose file is deleted, and a second delete
//!   of one file, are in the journal of every member like all others.
//!
//! Not here: rows of journal and digests (`copal-data`), gossip (`copal-server`).

use super::{role::Role, view::Epoch};
use crate::ids::{FileId, OpId, VolumeId};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Operations of one group whose ids lie in the same interval of this many ms form one bucket.
pub const BUCKET_MS: u64 = 10_000;
/// A bucket is sealed this long after its end by the member's clock, ms: by then no acceptable operation is
/// as old.
pub const SEAL_LAG_MS: u64 = super::MAX_OP_AGE_MS;

/// Number of a bucket, counted from 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u64);

impl Bucket {
    /// The bucket of an operation.
    pub fn of(op: OpId) -> Bucket {
        Bucket(op.ms() / BUCKET_MS)
    }

    /// The first bucket that is not due to be sealed at `now_ms`.
    pub fn first_open(now_ms: u64) -> Bucket {
        Bucket(now_ms.saturating_sub(SEAL_LAG_MS) / BUCKET_MS)
    }
}

/// Sealed buckets of a member. They are on the device before any digest is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BucketSeal {
    /// All buckets below this one are sealed.
    pub below: Bucket,
}

impl BucketSeal {
    /// Whether the bucket of an operation is sealed.
    pub fn is_sealed(self, op: OpId) -> bool {
        Bucket::of(op) < self.below
    }

    /// The seal after all due buckets at `now_ms` are sealed; a clock that went back unseals nothing.
    #[must_use]
    pub fn at(self, now_ms: u64) -> BucketSeal {
        self.joined(BucketSeal { below: Bucket::first_open(now_ms) })
    }

    /// The seal of a member after a resync: it includes the donor's. Otherwise the member would accept, from
    /// a client, an operation that was refused or settled before it came (VOL-17).
    #[must_use]
    pub fn joined(self, donor: BucketSeal) -> BucketSeal {
        BucketSeal { below: self.below.max(donor.below) }
    }
}

/// One operation as a digest counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationRecord {
    /// Whether it is a create; else a delete.
    pub is_create: bool,
    /// The operation.
    pub op: OpId,
    /// Volume of its file.
    pub vid: VolumeId,
    /// Its file.
    pub fid: FileId,
}

/// A set of operations as their number and a sum of hashes. A sum, since similar neighbouring ids would
/// cancel under exclusive or.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OperationDigest {
    /// Number of operations.
    pub count: u64,
    /// Sum of their hashes, modulo 2^128.
    pub sum: u128,
}

impl OperationDigest {
    /// Counts an operation that was not counted before. `seed` is the cluster's.
    pub fn add(&mut self, seed: u64, record: &OperationRecord) {
        let mut bytes = [0; 41];
        bytes[0] = u8::from(record.is_create);
        bytes[1..17].copy_from_slice(&record.op.0.to_be_bytes());
        bytes[17..25].copy_from_slice(&record.vid.0.to_be_bytes());
        bytes[25..].copy_from_slice(&record.fid.0.to_be_bytes());
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(xxh3_128_with_seed(&bytes, seed));
    }

    /// Digest of the union of two disjoint sets.
    #[must_use]
    pub fn plus(self, other: OperationDigest) -> OperationDigest {
        OperationDigest { count: self.count.wrapping_add(other.count), sum: self.sum.wrapping_add(other.sum) }
    }
}

/// Gossip of a member about its sealed buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealReport {
    /// Its seal.
    pub seal: BucketSeal,
    /// Digests of its sealed buckets that have operations.
    pub digests: BTreeMap<Bucket, OperationDigest>,
}

/// State of a member in a group, as sent to others after it sealed buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Epoch of its view: the message counts in that view only.
    pub epoch: Epoch,
    /// Its role.
    pub role: Role,
    /// Its seal.
    pub seal: BucketSeal,
    /// Its stable point.
    pub stable_point: Bucket,
    /// Whether it has everything below its stable point. Without that its digests mean nothing.
    pub is_covered: bool,
    /// Digests of its sealed buckets, from its stable point on, that have operations.
    pub digests: BTreeMap<Bucket, OperationDigest>,
}

/// The stable point: all buckets below it are sealed and equal on all members, those that are down included
/// (VOL-18). Below it no journal and no tombstone is needed any more. `from`: the previous stable point. A
/// bucket without operations on any member is equal.
pub fn stable_point(from: Bucket, members: &[SealReport]) -> Bucket {
    let closed = members.iter().map(|report| report.seal.below).min();
    let Some(closed) = closed.filter(|&closed| closed > from) else {
        return from;
    };
    let report = members.iter().flat_map(|report| report.digests.range(from..closed));
    let unequal = report.map(|(&bucket, _)| bucket).filter(|bucket| {
        let digest = |report: &SealReport| report.digests.get(bucket).copied().unwrap_or_default();
        members.windows(2).any(|two| digest(&two[0]) != digest(&two[1]))
    });
    unequal.min().unwrap_or(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ms: u64, number: u64, is_create: bool) -> OperationRecord {
        OperationRecord {
            is_create,
            op: OpId(FileId::new(ms, 1, number).0),
            vid: VolumeId(9),
            fid: FileId::new(ms, 0, number),
        }
    }

    fn report(below: u64, records: &[OperationRecord]) -> SealReport {
        let mut report = SealReport { seal: BucketSeal { below: Bucket(below) }, digests: BTreeMap::new() };
        for record in records {
            let digest = report.digests.entry(Bucket::of(record.op)).or_default();
            digest.add(7, record);
        }
        report
    }

    #[test]
    fn a_bucket_is_sealed_a_minute_after_its_end_and_never_opens_again() {
        let op = record(29_999, 1, true).op;
        let open = BucketSeal::default().at(89_999);
        assert!(!open.is_sealed(op));
        let closed = open.at(90_000);
        assert!(closed.is_sealed(op));
        assert!(closed.at(0).is_sealed(op), "the clock went back");
        assert!(!closed.is_sealed(record(30_000, 1, true).op));
        assert!(open.joined(closed).is_sealed(op));
    }

    #[test]
    fn an_operation_is_too_old_before_its_bucket_is_due() {
        for ms in [20_000, 25_000, 29_999] {
            let op = record(ms, 1, true).op;
            let due = (0..200_000).find(|&now| BucketSeal::default().at(now).is_sealed(op));
            assert!(due.unwrap() > ms + super::super::MAX_OP_AGE_MS);
        }
    }

    #[test]
    fn equal_sets_have_equal_digests_in_any_order_and_others_have_not() {
        let records = [record(1, 1, true), record(1, 2, true), record(1, 1, false), record(2, 3, true)];
        let digest = |order: &[usize]| {
            let mut digest = OperationDigest::default();
            for &at in order {
                digest.add(7, &records[at]);
            }
            digest
        };
        let whole = digest(&[0, 1, 2, 3]);
        assert_eq!(digest(&[3, 1, 0, 2]), whole);
        assert_eq!(digest(&[0, 3]).plus(digest(&[1, 2])), whole);
        assert_ne!(digest(&[0, 1, 3]), digest(&[2, 1, 3]), "a create is no delete");
        let mut other_cluster = OperationDigest::default();
        other_cluster.add(8, &records[0]);
        assert_ne!(other_cluster, digest(&[0]));
    }

    #[test]
    fn the_stable_point_rises_to_the_first_open_or_unequal_bucket() {
        let (early, late) = (record(15_000, 1, true), record(35_000, 2, true));
        let all = [early, late];
        let whole = || report(9, &all);
        assert_eq!(stable_point(Bucket(0), &[whole(), whole(), whole()]), Bucket(9));
        // One lacks the later operation, one has sealed less.
        let lacking = [whole(), report(9, &[early]), whole()];
        assert_eq!(stable_point(Bucket(0), &lacking), Bucket(3));
        assert_eq!(stable_point(Bucket(0), &[whole(), report(2, &[early])]), Bucket(2));
        // A member that has sent nothing stops the stable point, and a stable point never falls.
        assert_eq!(stable_point(Bucket(0), &[whole(), SealReport::default()]), Bucket(0));
        assert_eq!(stable_point(Bucket(4), &[whole(), report(2, &[early])]), Bucket(4));
        assert_eq!(stable_point(Bucket(4), &[]), Bucket(4));
    }
}

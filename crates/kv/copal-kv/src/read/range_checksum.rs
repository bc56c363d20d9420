//! Range checksums: what two replicas compare to find where they differ.
//!
//! Design: docs/design/kv.md#ranges
//! The digest of a range is the sum mod 2^128, over its keys, of XXH3-128(user key, value length u64, CRC32C
//! of the value u32), little-endian. A sum: it does not depend on order, and the checksums of two halves add
//! up to that of the whole, so that replicas bisect to the difference.
//! Invariants
//! - Equal content gives equal checksums, however it came there and wherever its values stand: the sum of a
//!   separated value follows from those of its pieces, which its pointer holds.
//! - Without `verify` no separated value is read.
//!
//! Not here: a defence against forged data. The hash has no key, and sums can be made to meet.

use crate::{
    Error, Iter,
    engine::Engine,
    read::iter::Found,
    table::{entry::EntryKind, key::user_key},
    tree::value::{self, Pointer},
};
use bytes::Bytes;
use copal_codec::{Put, crc32c};
use copal_device::Class;
use std::{
    iter::Sum,
    ops::{Add, AddAssign},
};
use xxhash_rust::xxh3::xxh3_128;

/// Keys, bytes and digest of a range; checksums of disjoint ranges add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RangeChecksum {
    /// Keys in the range.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Sum mod 2^128 of the hashes of key, value length and value CRC32C.
    pub digest: u128,
}

impl Add for RangeChecksum {
    type Output = RangeChecksum;

    fn add(self, other: RangeChecksum) -> RangeChecksum {
        RangeChecksum {
            keys: self.keys + other.keys,
            bytes: self.bytes + other.bytes,
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

impl AddAssign for RangeChecksum {
    fn add_assign(&mut self, other: RangeChecksum) {
        *self = *self + other;
    }
}

impl Sum for RangeChecksum {
    fn sum<I: Iterator<Item = RangeChecksum>>(all: I) -> RangeChecksum {
        all.fold(RangeChecksum::default(), Add::add)
    }
}

impl RangeChecksum {
    /// The checksum of one key whose value has this length and CRC32C.
    fn of(key: &[u8], value_len: u64, value_sum: u32, scratch: &mut Vec<u8>) -> RangeChecksum {
        scratch.clear();
        scratch.put_bytes(key);
        scratch.put_u64(value_len);
        scratch.put_u32(value_sum);
        RangeChecksum { keys: 1, bytes: key.len() as u64 + value_len, digest: xxh3_128(scratch) }
    }
}

impl Engine {
    /// The checksum of what `iter` walks over.
    pub(crate) fn range_checksum(&self, mut iter: Iter, verify: bool) -> Result<RangeChecksum, Error> {
        let mut sum = RangeChecksum::default();
        let mut scratch = Vec::new();
        while let Some(found) = iter.next_entry() {
            let Found { key, kind, value } = found?;
            let (len, crc) = if kind == EntryKind::Pointer {
                self.separated(&value, verify)?
            } else {
                (value.len() as u64, crc32c(0, &value))
            };
            sum += RangeChecksum::of(&user_key(&key), len, crc, &mut scratch);
        }
        Ok(sum)
    }

    /// Length and sum of a separated value; `verify` reads it, and damage is an error.
    fn separated(&self, pointer: &Bytes, verify: bool) -> Result<(u64, u32), Error> {
        let decoded = Pointer::decode(pointer)?;
        let len = u64::from(decoded.len);
        if !verify {
            return Ok((len, decoded.value_sum()));
        }
        let value = value::read(&self.objects, pointer, &(0..len), Class::Background)?;
        Ok((len, crc32c(0, &value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest is a promise between replicas of different builds.
    #[test]
    fn golden_digest() {
        let of = |key: &[u8], value: &[u8]| {
            RangeChecksum::of(key, value.len() as u64, crc32c(0, value), &mut Vec::new())
        };
        let one = of(b"key", b"123456789");
        // CRC32C of 123456789 is 0xe3069283, so these are the bytes that are hashed.
        let hashed = b"key\x09\0\0\0\0\0\0\0\x83\x92\x06\xe3";
        assert_eq!((one.keys, one.bytes, one.digest), (1, 12, xxh3_128(hashed)));
        assert_eq!(one.digest, GOLDEN);
        let other = of(b"", b"");
        assert_eq!(one + other, other + one);
        assert_eq!([one, other, one].into_iter().sum::<RangeChecksum>().keys, 3);
        // A byte that moves from key to value changes it.
        assert_ne!(of(b"ab", b"c").digest, of(b"a", b"bc").digest);
    }

    const GOLDEN: u128 = 0x7708_e5cb_3d0e_5638_0cdb_eb47_e022_39f2;
}

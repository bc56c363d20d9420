//! Receives the bytes of a chain: verifies each part as it arrives, and all bytes at the end.
//!
//! Rule: VOL-32, docs/design/cluster.md
//! Invariants
//! - No more bytes are accepted than the head of the chain announces, and no more than one piece.
//! - Every part but the last has the fixed length of a part, so that the number of parts is bounded.

use crate::{
    Method,
    messages::{ChainCommit, ChainData, PutChain},
};
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_volume::group::DiskId;
use prost::Message;

/// Bytes of a part; the last may be shorter.
pub const CHAIN_PART_BYTES: usize = 60 << 10;
/// Most bytes of a chain: one piece of a body.
pub const CHAIN_BYTES: usize = 4 << 20;
/// Most hops of a chain.
const MAX_HOPS: usize = 15;

/// Why a chain is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// More bytes than a chain may have, or than its head announces.
    #[error("a chain has more bytes than it may have")]
    TooLong,
    /// A part with another number than the next one.
    #[error("a part of a chain arrived out of order")]
    OutOfTurn,
    /// The bytes differ from those that were sent.
    #[error("bytes of a chain do not match their checksum")]
    Checksum,
    /// Fewer bytes than its head announces.
    #[error("a chain ended before all its bytes had arrived")]
    Short,
    /// Too many hops, the same hop twice, this replica itself, or hops that are not replicas of the group.
    #[error("a chain names hops that are not other replicas of the group")]
    Hops,
}

impl PutChain {
    /// The calls that the chain carries, without bytes. A valid chain carries exactly one.
    pub fn calls(&self) -> Vec<(Method, Bytes)> {
        let calls = [
            self.put.as_ref().map(|put| (Method::Put, put.encode_to_vec())),
            self.piece.as_ref().map(|piece| (Method::PutPiece, piece.encode_to_vec())),
            self.confirm.as_ref().map(|confirm| (Method::Confirm, confirm.encode_to_vec())),
            self.delete.as_ref().map(|delete| (Method::Delete, delete.encode_to_vec())),
        ];
        let calls = calls.into_iter().flatten();
        calls.map(|(method, bytes)| (method, bytes.into())).collect()
    }

    /// The volume of the chain's call.
    pub fn volume(&self) -> Option<u64> {
        let put = self.put.as_ref().map(|put| put.volume);
        let piece = self.piece.as_ref().map(|piece| piece.volume);
        let confirm = self.confirm.as_ref().map(|confirm| confirm.volume);
        let delete = self.delete.as_ref().map(|delete| delete.volume);
        put.or(piece).or(confirm).or(delete)
    }
}

/// The received bytes of a chain.
pub struct ChainBody {
    len: usize,
    bytes: BytesMut,
    next: u32,
}

impl ChainBody {
    /// Starts a chain that announces `len` bytes.
    /// # Errors
    /// `TooLong`.
    pub fn new(len: u64) -> Result<ChainBody, ChainError> {
        let len = usize::try_from(len).map_err(|_| ChainError::TooLong)?;
        if len > CHAIN_BYTES {
            return Err(ChainError::TooLong);
        }
        let bytes = BytesMut::with_capacity(len);
        Ok(ChainBody { len, bytes, next: 0 })
    }

    /// Adds the next part.
    /// # Errors
    /// `OutOfTurn`, `TooLong`, `Short`, `Checksum`.
    pub fn add(&mut self, part: &ChainData) -> Result<(), ChainError> {
        if part.seq != self.next {
            return Err(ChainError::OutOfTurn);
        }
        let left = self.len - self.bytes.len();
        match part.bytes.len() {
            0 => return Err(ChainError::Short),
            len if len > left => return Err(ChainError::TooLong),
            len if len != CHAIN_PART_BYTES.min(left) => return Err(ChainError::Short),
            _ => {}
        }
        if crc32c(0, &part.bytes) != part.crc32c {
            return Err(ChainError::Checksum);
        }
        self.bytes.extend_from_slice(&part.bytes);
        self.next += 1;
        Ok(())
    }

    /// All bytes, after the last part.
    /// # Errors
    /// `Short`, `Checksum`.
    pub fn finish(self, commit: &ChainCommit) -> Result<Bytes, ChainError> {
        if self.bytes.len() != self.len || commit.len != self.len as u64 || commit.drop {
            return Err(ChainError::Short);
        }
        match crc32c(0, &self.bytes) == commit.crc32c {
            true => Ok(self.bytes.freeze()),
            false => Err(ChainError::Checksum),
        }
    }

    /// The parts of `bytes`, in order.
    pub fn parts(bytes: &Bytes) -> impl Iterator<Item = ChainData> + '_ {
        let starts = (0..bytes.len()).step_by(CHAIN_PART_BYTES);
        starts.zip(0..).map(|(start, seq)| {
            let part = bytes.slice(start..bytes.len().min(start + CHAIN_PART_BYTES));
            ChainData { seq, crc32c: crc32c(0, &part), bytes: part }
        })
    }
}

/// The hops after `own`, verified: other replicas of the group, each once.
/// # Errors
/// `Hops`.
pub fn checked_hops(hops: &[u32], own: DiskId, members: &[DiskId]) -> Result<Vec<DiskId>, ChainError> {
    if hops.len() > MAX_HOPS {
        return Err(ChainError::Hops);
    }
    let mut checked = Vec::with_capacity(hops.len());
    for hop in hops {
        let disk = DiskId(*hop);
        if disk == own || !members.contains(&disk) || checked.contains(&disk) {
            return Err(ChainError::Hops);
        }
        checked.push(disk);
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(len: usize) -> Bytes {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    fn commit(bytes: &Bytes) -> ChainCommit {
        ChainCommit { len: bytes.len() as u64, crc32c: crc32c(0, bytes), drop: false }
    }

    #[test]
    fn parts_join_to_the_original_bytes() {
        for len in [0, 1, CHAIN_PART_BYTES, CHAIN_PART_BYTES + 1, 200_000, CHAIN_BYTES] {
            let bytes = body(len);
            let mut taken = ChainBody::new(len as u64).unwrap();
            for part in ChainBody::parts(&bytes) {
                taken.add(&part).unwrap();
            }
            assert_eq!(taken.finish(&commit(&bytes)), Ok(bytes));
        }
    }

    #[test]
    fn wrong_parts_are_refused() {
        let bytes = body(200_000);
        let parts: Vec<ChainData> = ChainBody::parts(&bytes).collect();
        let start = || ChainBody::new(200_000).unwrap();
        assert_eq!(start().add(&parts[1]), Err(ChainError::OutOfTurn));
        let mut twice = start();
        twice.add(&parts[0]).unwrap();
        assert_eq!(twice.add(&parts[0]), Err(ChainError::OutOfTurn));
        let mut corrupt = parts[0].clone();
        corrupt.crc32c ^= 1;
        assert_eq!(start().add(&corrupt), Err(ChainError::Checksum));
        for (len, error) in [(0, ChainError::Short), (1, ChainError::Short), (200_001, ChainError::TooLong)] {
            let bytes = body(len);
            let part = ChainData { seq: 0, crc32c: crc32c(0, &bytes), bytes };
            assert_eq!(start().add(&part), Err(error), "{len}");
        }
        assert_eq!(twice.finish(&commit(&bytes)), Err(ChainError::Short));
        assert!(ChainBody::new(CHAIN_BYTES as u64 + 1).is_err());
        assert!(ChainBody::new(u64::MAX).is_err());
        let mut taken = start();
        parts.iter().for_each(|part| taken.add(part).unwrap());
        let mut other = commit(&bytes);
        other.crc32c ^= 1;
        assert_eq!(taken.finish(&other), Err(ChainError::Checksum));
    }

    #[test]
    fn hops_are_a_few_other_replicas_each_once() {
        let members: Vec<DiskId> = (1..=20).map(DiskId).collect();
        let own = DiskId(1);
        assert_eq!(checked_hops(&[3, 2], own, &members), Ok(vec![DiskId(3), DiskId(2)]));
        let many: Vec<u32> = (2..=18).collect();
        let thousand = vec![2; 1000];
        for hops in [&[1][..], &[2, 2], &[21], &[0], &many, &thousand] {
            assert_eq!(checked_hops(hops, own, &members), Err(ChainError::Hops));
        }
    }
}

//! The bytes of a chain as they come: checked one part after the other, and as a whole at the end.
//!
//! Rule: VOL-32, docs/design/cluster.md
//! Invariants
//! - No more bytes are taken than the head of the chain said, and no more than a piece has.
//! - Every part but the last is as long as parts are, so that their number is bounded by their length.

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
/// Bytes of a chain: a piece of a body.
pub const CHAIN_BYTES: usize = 4 << 20;
/// Hops of a chain.
const MOST_HOPS: usize = 15;

/// Why a chain is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// More bytes than a chain may have, or than its head said.
    #[error("a chain of more bytes than it may have")]
    TooLong,
    /// Another part than the next.
    #[error("a part of a chain came out of turn")]
    OutOfTurn,
    /// Not the bytes that were sent.
    #[error("bytes of a chain are not those whose checksum came with them")]
    Checksum,
    /// Fewer bytes than its head said.
    #[error("a chain ended before all its bytes had come")]
    Short,
    /// Hops that are no members of the group, or this one, or the same one twice, or too many.
    #[error("a chain names hops that are not other members of the group")]
    Hops,
}

impl PutChain {
    /// What the chain brings as calls of its own, without bytes: one, or the chain is none.
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

    /// The volume that the chain is about.
    pub fn volume(&self) -> Option<u64> {
        let put = self.put.as_ref().map(|put| put.volume);
        let piece = self.piece.as_ref().map(|piece| piece.volume);
        let confirm = self.confirm.as_ref().map(|confirm| confirm.volume);
        let delete = self.delete.as_ref().map(|delete| delete.volume);
        put.or(piece).or(confirm).or(delete)
    }
}

/// Bytes of a chain that have come.
pub struct ChainBody {
    len: usize,
    bytes: BytesMut,
    next: u32,
}

impl ChainBody {
    /// None yet, of so many.
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

    /// Takes the next part.
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

    /// All bytes, once they have come.
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

/// The hops that a chain names behind `own`: other members of the group, each once.
/// # Errors
/// `Hops`.
pub fn checked_hops(hops: &[u32], own: DiskId, members: &[DiskId]) -> Result<Vec<DiskId>, ChainError> {
    if hops.len() > MOST_HOPS {
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
    fn bytes_come_out_as_they_were_cut() {
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
        let mut turned = parts[0].clone();
        turned.crc32c ^= 1;
        assert_eq!(start().add(&turned), Err(ChainError::Checksum));
        for (len, error) in [(0, ChainError::Short), (1, ChainError::Short), (200_001, ChainError::TooLong)] {
            let bytes = body(len);
            let part = ChainData { seq: 0, crc32c: crc32c(0, &bytes), bytes };
            assert_eq!(start().add(&part), Err(error), "{len}");
        }
        assert_eq!(twice.finish(&commit(&bytes)), Err(ChainError::Short));
        assert!(ChainBody::new(CHAIN_BYTES as u64 + 1).is_err());
        assert!(ChainBody::new(u64::MAX).is_err());
        let mut whole = start();
        parts.iter().for_each(|part| whole.add(part).unwrap());
        let mut other = commit(&bytes);
        other.crc32c ^= 1;
        assert_eq!(whole.finish(&other), Err(ChainError::Checksum));
    }

    #[test]
    fn hops_are_other_members_each_once_and_few() {
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

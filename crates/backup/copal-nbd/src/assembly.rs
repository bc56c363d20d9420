//! Assembly of one read from the chunks of its reply.
//!
//! Pure. Chunks may arrive in any order; the reply counts only if each byte was covered exactly once.

use crate::{NbdError, wire::limits};
use std::ops::Range;

/// A read in progress: its buffer, and the ranges that have arrived.
#[derive(Debug)]
pub(crate) struct ReadAssembly {
    offset: u64,
    data: Vec<u8>,
    /// Ranges that have arrived: ascending, disjoint, adjacent ones merged.
    covered: Vec<Range<u32>>,
    /// Ranges that the server reported as holes, in order of arrival.
    holes: Vec<Range<u32>>,
    chunks: u32,
}

impl ReadAssembly {
    pub(crate) fn new(offset: u64, len: u32) -> ReadAssembly {
        ReadAssembly {
            offset,
            data: vec![0; len as usize],
            covered: Vec::new(),
            holes: Vec::new(),
            chunks: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.data.len() as u32
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The space for a data chunk of `len` bytes at `offset` of the export.
    pub(crate) fn data_chunk(&mut self, offset: u64, len: u32) -> Result<&mut [u8], NbdError> {
        let range = self.claim(offset, len)?;
        Ok(&mut self.data[range.start as usize..range.end as usize])
    }

    /// Records a hole of `len` bytes at `offset` of the export; its bytes are zero.
    pub(crate) fn hole_chunk(&mut self, offset: u64, len: u32) -> Result<(), NbdError> {
        let range = self.claim(offset, len)?;
        self.holes.push(range);
        Ok(())
    }

    /// The whole buffer, for a simple reply.
    pub(crate) fn whole(&mut self) -> Result<&mut [u8], NbdError> {
        self.data_chunk(self.offset, self.len())
    }

    /// The bytes and holes of a complete read.
    pub(crate) fn finish(mut self) -> Result<(Vec<u8>, Vec<Range<u32>>), NbdError> {
        let all = 0..self.len();
        if self.covered.as_slice() != std::slice::from_ref(&all) && !all.is_empty() {
            return Err(NbdError::protocol("the reply to a read does not cover all of it"));
        }
        self.holes.sort_by_key(|hole| hole.start);
        Ok((self.data, self.holes))
    }

    fn claim(&mut self, offset: u64, len: u32) -> Result<Range<u32>, NbdError> {
        self.chunks += 1;
        if self.chunks > limits::CHUNKS {
            return Err(NbdError::protocol("the reply to a read has too many chunks"));
        }
        let outside = || NbdError::protocol("a chunk is outside the read that it answers");
        let start = offset.checked_sub(self.offset).ok_or_else(outside)?;
        let end = start.checked_add(u64::from(len)).ok_or_else(outside)?;
        if len == 0 || end > u64::from(self.len()) {
            return Err(outside());
        }
        // `end` is at most the length, which is a u32.
        let range = start as u32..end as u32;
        let at = self.covered.partition_point(|part| part.start < range.start);
        let overlaps_before = at > 0 && self.covered[at - 1].end > range.start;
        let overlaps_after = self.covered.get(at).is_some_and(|part| part.start < range.end);
        if overlaps_before || overlaps_after {
            return Err(NbdError::protocol("two chunks of a read overlap"));
        }
        self.insert(at, range.clone());
        Ok(range)
    }

    fn insert(&mut self, at: usize, range: Range<u32>) {
        let joins_before = at > 0 && self.covered[at - 1].end == range.start;
        let joins_after = self.covered.get(at).is_some_and(|part| part.start == range.end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.covered[at - 1].end = self.covered[at].end;
                self.covered.remove(at);
            }
            (true, false) => self.covered[at - 1].end = range.end,
            (false, true) => self.covered[at].start = range.start,
            (false, false) => self.covered.insert(at, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_in_any_order_make_the_read() {
        let mut read = ReadAssembly::new(100, 10);
        read.data_chunk(106, 4).unwrap().copy_from_slice(b"6789");
        read.hole_chunk(103, 3).unwrap();
        read.data_chunk(100, 3).unwrap().copy_from_slice(b"012");
        let (data, holes) = read.finish().unwrap();
        assert_eq!(data, b"012\0\0\x006789");
        assert_eq!(holes, vec![3..6]);
    }

    #[test]
    fn gaps_overlaps_and_strays_are_refused() {
        let mut gap = ReadAssembly::new(0, 10);
        gap.data_chunk(0, 4).unwrap();
        gap.data_chunk(5, 5).unwrap();
        assert!(gap.finish().is_err());

        let mut read = ReadAssembly::new(100, 10);
        read.data_chunk(102, 4).unwrap();
        for (offset, len) in
            [(102, 1), (101, 2), (105, 1), (100, 10), (99, 2), (109, 2), (108, 0), (u64::MAX, 1)]
        {
            assert!(read.data_chunk(offset, len).is_err(), "{offset}+{len}");
        }
        read.hole_chunk(100, 2).unwrap();
        read.hole_chunk(106, 4).unwrap();
        assert_eq!(read.finish().unwrap().1, vec![0..2, 6..10]);
    }

    #[test]
    fn endless_chunks_are_refused() {
        let mut read = ReadAssembly::new(0, limits::READ_BYTES);
        let refused = (0..limits::READ_BYTES).find(|at| read.hole_chunk(u64::from(*at), 1).is_err());
        assert_eq!(refused, Some(limits::CHUNKS));
    }
}

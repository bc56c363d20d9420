//! Bodies and ranges of files, verified block by block.
//!
//! A body is read under the tag of its head, so it belongs to the same object.

use super::{
    corrupt,
    objects::{KnownObject, ObjectReader},
    of_service, parallel,
};
use crate::{
    format::{BLOCK_BYTES, blocks_around, sums_agree, sums_bytes},
    service::ServiceError,
};
use bytes::Bytes;
use copal_volume::{RangeSink, ReadOptions, VolumeError};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Gap up to which two ranges become one request.
const JOINED_BYTES: u64 = 256 << 10;
/// Most bytes of one request.
const REQUEST_BYTES: u64 = 4 << 20;
/// Most bytes of requests of a store at the same time. Each reader may have one request beyond this, so that none waits
/// for another.
const FLIGHT_BYTES: u64 = 24 << 20;

/// Bytes of requests whose answers are not handed on yet.
#[derive(Debug, Default)]
pub(super) struct ReadFlight(AtomicU64);

/// Share of a reader in these bytes, until it is dropped.
struct FlightShare<'a> {
    flight: &'a ReadFlight,
    bytes: u64,
}

impl ReadFlight {
    /// Takes the share of the first reads, as many as fit; the first one always does.
    fn take(&self, reads: &[JoinedRead], connections: usize) -> (usize, FlightShare<'_>) {
        let (mut count, mut share) = (0, FlightShare { flight: self, bytes: 0 });
        for read in reads.iter().take(connections) {
            let bytes = read.blocks.end - read.blocks.start;
            let fits = |held: u64| (count == 0 || held + bytes <= FLIGHT_BYTES).then_some(held + bytes);
            if self.0.fetch_update(Relaxed, Relaxed, fits).is_err() {
                break;
            }
            share.bytes += bytes;
            count += 1;
        }
        (count, share)
    }
}

impl Drop for FlightShare<'_> {
    fn drop(&mut self) {
        self.flight.0.fetch_sub(self.bytes, Relaxed);
    }
}
/// Tries to read a file that other hosts replace meanwhile.
const REPLACED_TRIES: usize = 8;

/// Ranges that one request reads: the blocks, and the indexes of the ranges.
#[derive(Debug, PartialEq, Eq)]
struct JoinedRead {
    blocks: Range<u64>,
    parts: Vec<usize>,
}

/// The part of a range inside a file.
fn inside(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = range.end.min(size);
    range.start.min(end)..end
}

impl ObjectReader {
    /// See [`copal_volume::VolumeStore::get`].
    pub(super) fn get(
        &self,
        key: &str,
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        let wanted = if range.start == 0 { range.end } else { 0 };
        for _ in 0..REPLACED_TRIES {
            let object = self.look_up(key, options, wanted)?;
            let part = inside(&range, object.info.size);
            match self.body_of(key, &object, part) {
                // It was deleted or replaced since its head was read.
                Err(VolumeError::NotFound) => self.forget(key),
                answer => return answer,
            }
        }
        Err(VolumeError::NotFound)
    }

    /// A range of a body, which lies inside it.
    /// # Errors
    /// `NotFound`: the object is another by now; `Corrupt`.
    pub(super) fn body_of(
        &self,
        key: &str,
        object: &Arc<KnownObject>,
        range: Range<u64>,
    ) -> Result<Bytes, VolumeError> {
        let blocks = blocks_around(&range, object.info.size);
        let read = self.blocks(key, object, &blocks)?;
        let start = (range.start - blocks.start) as usize;
        Ok(read.slice(start..start + (range.end - range.start) as usize))
    }

    /// Whole blocks of a body, verified.
    fn blocks(&self, key: &str, object: &KnownObject, blocks: &Range<u64>) -> Result<Bytes, VolumeError> {
        if blocks.is_empty() {
            return Ok(Bytes::new());
        }
        let places = object.head.places();
        let body = places.body + blocks.start..places.body + blocks.end;
        let first_sum = places.sums + sums_bytes(blocks.start);
        let sums = first_sum..first_sum + sums_bytes(blocks.end - blocks.start);
        let sums = self.part(key, object, sums)?;
        let read = self.part(key, object, body)?;
        match sums_agree(&read, &sums) {
            true => Ok(read),
            false => Err(corrupt(
                key,
                format!("bytes {} to {} differ from their checksums", blocks.start, blocks.end),
            )),
        }
    }

    /// Bytes of an object: those at hand, or read under its tag.
    fn part(&self, key: &str, object: &KnownObject, range: Range<u64>) -> Result<Bytes, VolumeError> {
        if range.end <= object.front.len() as u64 {
            return Ok(object.front.slice(range.start as usize..range.end as usize));
        }
        let read =
            self.requests.rules.repeat(|| self.requests.service.read_tagged(key, range.clone(), &object.tag));
        read.map_err(|error| match error {
            ServiceError::Taken => VolumeError::NotFound,
            error => of_service(&error),
        })
    }

    /// See [`copal_volume::VolumeStore::read_ranges`].
    pub(super) fn read_ranges(
        &self,
        key: &str,
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        let object = self.look_up(key, options, 0)?;
        let parts: Vec<Range<u64>> = ranges.iter().map(|range| inside(range, object.info.size)).collect();
        let reads = join(&parts, object.info.size);
        let mut left = reads.as_slice();
        while !left.is_empty() {
            let (now, _share) = self.requests.flight.take(left, self.requests.connections);
            let answers = parallel::map(&left[..now], now, |read| self.blocks(key, &object, &read.blocks));
            for (read, answer) in left[..now].iter().zip(answers) {
                let answer = match answer {
                    Err(error) if !error.is_corruption() => {
                        // The next read asks for the head again.
                        self.forget(key);
                        return Err(error);
                    }
                    answer => answer,
                };
                for &index in &read.parts {
                    let of_part = match &answer {
                        Ok(bytes) => {
                            let start = (parts[index].start - read.blocks.start) as usize;
                            let len = (parts[index].end - parts[index].start) as usize;
                            Ok(bytes.slice(start..start + len))
                        }
                        // The damage may lie in another part of the request.
                        Err(_) => self.body_of(key, &object, parts[index].clone()),
                    };
                    let of_part = match of_part {
                        Err(error) if !error.is_corruption() => return Err(error),
                        of_part => of_part,
                    };
                    if sink(index, of_part).is_break() {
                        return Ok(());
                    }
                }
            }
            left = &left[now..];
        }
        Ok(())
    }
}

/// Joins parts of a body into requests: over small gaps, up to [`REQUEST_BYTES`] unless one part alone is longer.
fn join(parts: &[Range<u64>], size: u64) -> Vec<JoinedRead> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&index| (parts[index].start, parts[index].end));
    let mut joined: Vec<JoinedRead> = Vec::new();
    for index in order {
        let blocks = blocks_around(&parts[index], size);
        match joined.last_mut() {
            Some(last)
                if blocks.start <= last.blocks.end + JOINED_BYTES
                    && blocks.end.max(last.blocks.end) - last.blocks.start <= REQUEST_BYTES =>
            {
                // The start of an empty part need not be that of a block.
                last.blocks.end = last.blocks.end.max(blocks.end.next_multiple_of(BLOCK_BYTES).min(size));
                last.parts.push(index);
            }
            _ => joined.push(JoinedRead {
                blocks: blocks.start / BLOCK_BYTES * BLOCK_BYTES..blocks.end,
                parts: vec![index],
            }),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together_and_distant_parts_are_not() {
        let size = 64 << 20;
        let kib = |start: u64, end: u64| start << 10..end << 10;
        let parts = [kib(0, 4), kib(100, 101), kib(5000, 5001), kib(200, 200), kib(0, 1)];
        let reads = join(&parts, size);
        assert_eq!(reads.len(), 2);
        assert_eq!((reads[0].blocks.clone(), &reads[0].parts[..]), (kib(0, 256), &[4, 0, 1, 3][..]));
        assert_eq!(reads[1].blocks, kib(4992, 5056));
        let many: Vec<_> = (0..1024).map(|n| kib(n * 64, n * 64 + 64)).collect();
        let reads = join(&many, size);
        assert_eq!(reads.len(), 16, "4 MiB each");
        let flight = ReadFlight::default();
        let (count, first) = flight.take(&reads, 8);
        assert_eq!(count, 6);
        assert_eq!(flight.take(&reads, 8).0, 1, "a reader never waits");
        drop(first);
        assert_eq!(flight.take(&reads, 2).0, 2);
        let one = [kib(0, 40 << 10)];
        assert_eq!(join(&one, size).len(), 1, "a part stays whole");
        assert_eq!(flight.take(&join(&one, size), 8).0, 1);
        assert_eq!(flight.0.into_inner(), 0);
    }
}

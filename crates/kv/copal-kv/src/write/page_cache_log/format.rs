//! Bytes of the page-cache log: a header, and two halves of records of kill-safe operations.
//!
//! Format: docs/formats/kv-page-cache-log.md v1
//! Invariants
//! - A record's checksum is seeded with its place, and the record names the session that wrote it. So records
//!   of another session or store, or at another place, do not count.
//! - A record that does not verify is an end, never an error: a power loss may leave anything here.
//! - No length is used before it is checked against the half.
//!
//! Not here: when records are written (the module above), their replay at an opening (`open`).

use crate::{
    Error,
    format::entry::MAX_SEQ,
    write::log::{LogOp, decode_ops},
};
use bytes::Bytes;
use copal_codec::{Put, Reader, crc32c};

/// Bytes before the halves; they begin with the header.
pub(crate) const FRONT_BYTES: u64 = 4096;
pub(crate) const HEADER_LEN: usize = 24;
/// Bytes of a record before its operations.
pub(crate) const RECORD_LEN: usize = 32;
pub(crate) const HALVES: usize = 2;
const MAGIC: u32 = 0x5257_564b; // "KVWR"
const RECORD_MAGIC: u32 = 0x4957_564b; // "KVWI"
const VERSION: u8 = 1;
const BAY_MAX: u32 = 1 << 20;

/// The session whose records count, and the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLogHeader {
    /// Random; different for each opening that may write.
    pub(crate) session: u64,
    pub(crate) half_bytes: u32,
}

impl CacheLogHeader {
    /// Header for a page-cache log of `len` bytes.
    pub(crate) fn new(session: u64, len: u64) -> CacheLogHeader {
        let half = len.saturating_sub(FRONT_BYTES) / HALVES as u64;
        CacheLogHeader { session, half_bytes: half.min(BAY_MAX.into()) as u32 & !4095 }
    }

    /// Offset of a half.
    pub(crate) fn half(&self, index: usize) -> u64 {
        FRONT_BYTES + index as u64 * u64::from(self.half_bytes)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.put_u32(MAGIC);
        out.put_u8(VERSION);
        out.put_bytes(&[0; 3]);
        out.put_u64(self.session);
        out.put_u32(self.half_bytes);
        let sum = crc32c(0, &out);
        out.put_u32(sum);
        out
    }

    /// Decodes the header of a page-cache log of `len` bytes; `None`: no session has begun here.
    /// # Errors
    /// `Corrupt`: a later build wrote it; its records may count.
    pub(crate) fn decode(bytes: &[u8], len: u64) -> Result<Option<CacheLogHeader>, Error> {
        let mut input = Reader::new(bytes);
        let mut read = || {
            let (magic, version) = (input.u32().ok()?, input.u8().ok()?);
            let zeros = input.bytes(3).ok()?;
            let header = CacheLogHeader { session: input.u64().ok()?, half_bytes: input.u32().ok()? };
            let sum = input.u32().ok()?;
            let whole = magic == MAGIC && sum == crc32c(0, &bytes[..HEADER_LEN - 4]);
            whole.then_some((version, zeros == [0; 3], header))
        };
        let Some((version, zeros, header)) = read() else {
            return Ok(None);
        };
        let half = header.half_bytes;
        let inside = FRONT_BYTES + HALVES as u64 * u64::from(half) <= len;
        if version != VERSION || !zeros || !inside || half > BAY_MAX {
            let why =
                format!("it has version {version} and halves of {half} bytes, this build reads {VERSION}");
            return Err(Error::corrupt("page-cache log", why));
        }
        Ok(Some(header))
    }
}

/// The fields of a record before its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) first_seq: u64,
    pub(crate) count: u32,
    pub(crate) len: u32,
    sum: u32,
}

/// Encoded fields before `ops` at `offset` of the page-cache log.
pub(crate) fn head(session: u64, offset: u64, first_seq: u64, count: u32, ops: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_LEN);
    out.put_u32(RECORD_MAGIC);
    out.put_u32(count);
    out.put_u64(session);
    out.put_u64(first_seq);
    out.put_u32(ops.len() as u32);
    let sum = sum(offset, &out, ops);
    out.put_u32(sum);
    out
}

fn sum(offset: u64, head: &[u8], ops: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &offset.to_le_bytes()), head), ops)
}

impl RecordHead {
    /// Decodes a record of `session` that fits into the `left` bytes from its beginning to the end of its
    /// half.
    fn decode(bytes: &[u8; RECORD_LEN], session: u64, left: u64) -> Option<RecordHead> {
        let mut input = Reader::new(bytes);
        let (magic, count) = (input.u32().ok()?, input.u32().ok()?);
        let (of, first_seq) = (input.u64().ok()?, input.u64().ok()?);
        let (len, sum) = (input.u32().ok()?, input.u32().ok()?);
        let fits = RECORD_LEN as u64 + u64::from(len) <= left;
        let counts = count > 0 && first_seq > 0 && first_seq <= MAX_SEQ - u64::from(count);
        (magic == RECORD_MAGIC && of == session && fits && counts).then_some(RecordHead {
            first_seq,
            count,
            len,
            sum,
        })
    }

    fn last_seq(&self) -> u64 {
        self.first_seq + u64::from(self.count) - 1
    }
}

/// Verified operations of one record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundRecord {
    pub(crate) first_seq: u64,
    /// The operations as stored, to be logged.
    pub(crate) encoded: Bytes,
    pub(crate) ops: Vec<LogOp>,
}

/// Reads the records of a page-cache log in the order of their sequences.
pub(crate) struct RecordReader<R> {
    /// Reads into a buffer, from an offset of the page-cache log on.
    read: R,
    session: u64,
    /// Offset of the next record of each half, and the end of the half.
    halves: [(u64, u64); HALVES],
}

impl<R: FnMut(u64, &mut [u8]) -> Result<(), Error>> RecordReader<R> {
    pub(crate) fn new(header: CacheLogHeader, read: R) -> RecordReader<R> {
        let half = |index| (header.half(index), header.half(index + 1));
        RecordReader { read, session: header.session, halves: [half(0), half(1)] }
    }

    /// The record that continues after `last_seq`; `None`: there is none. Skips records that end earlier.
    /// `held` is called with its memory before that is allocated.
    /// # Errors
    /// The device failed.
    pub(crate) fn next(
        &mut self,
        last_seq: u64,
        held: &mut dyn FnMut(u64),
    ) -> Result<Option<FoundRecord>, Error> {
        for half in 0..HALVES {
            if let Some(found) = self.next_of(half, last_seq, held)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn next_of(
        &mut self,
        half: usize,
        last_seq: u64,
        held: &mut dyn FnMut(u64),
    ) -> Result<Option<FoundRecord>, Error> {
        // Besides the stored operations: their list, which is longest for the shortest operations.
        const COPIES: u64 = 4;
        loop {
            let (at, end) = self.halves[half];
            let left = end.saturating_sub(at);
            if left < RECORD_LEN as u64 {
                return Ok(None);
            }
            let mut bytes = [0; RECORD_LEN];
            (self.read)(at, &mut bytes)?;
            let Some(head) = RecordHead::decode(&bytes, self.session, left) else {
                return Ok(None);
            };
            let behind = at + RECORD_LEN as u64 + u64::from(head.len);
            if head.last_seq() <= last_seq {
                self.halves[half].0 = behind;
                continue;
            }
            if head.first_seq != last_seq + 1 {
                return Ok(None);
            }
            let list = u64::from(head.count.min(head.len)) * size_of::<LogOp>() as u64;
            held(COPIES * u64::from(head.len) + list);
            let mut ops = vec![0; head.len as usize];
            (self.read)(at + RECORD_LEN as u64, &mut ops)?;
            if sum(at, &bytes[..RECORD_LEN - 4], &ops) != head.sum {
                return Ok(None);
            }
            self.halves[half].0 = behind;
            let encoded = Bytes::from(ops);
            let Ok(ops) = decode_ops(encoded.clone(), head.count) else {
                return Ok(None);
            };
            // Their values may be lost, so no writer puts them here.
            if ops.iter().any(|op| matches!(op, LogOp::Pointer { .. })) {
                return Ok(None);
            }
            return Ok(Some(FoundRecord { first_seq: head.first_seq, encoded, ops }));
        }
    }
}

/// A page-cache log with valid checksums around any bytes: half, first sequence, count and length, then the
/// operations, repeatedly.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(session: u64, bytes: &[u8]) -> Vec<u8> {
    let header = CacheLogHeader::new(session, FRONT_BYTES + 2 * 4096);
    let mut copy = vec![0; (FRONT_BYTES + 2 * 4096) as usize];
    copy[..HEADER_LEN].copy_from_slice(&header.encode());
    let mut ends = [header.half(0), header.half(1)];
    let mut input = Reader::new(bytes);
    while let Ok([half, first_seq, count, len]) = input.array::<4>() {
        let half = usize::from(half) % HALVES;
        let ops = input.bytes(usize::from(len).min(input.remaining())).unwrap_or_default();
        let at = ends[half];
        let end = at + (RECORD_LEN + ops.len()) as u64;
        if end > header.half(half + 1) {
            break;
        }
        let first_seq = first_seq.cast_signed() as u64;
        let record = [&head(session, at, first_seq, count.into(), ops), ops].concat();
        copy[at as usize..end as usize].copy_from_slice(&record);
        ends[half] = end;
    }
    copy
}

/// Every record of a page-cache log's bytes that continues after `last_seq`.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn read_all(copy: &[u8], mut last_seq: u64) -> Vec<FoundRecord> {
    let Ok(Some(header)) = CacheLogHeader::decode(copy, copy.len() as u64) else {
        return Vec::new();
    };
    let mut records = RecordReader::new(header, |at, out: &mut [u8]| {
        out.copy_from_slice(&copy[at as usize..][..out.len()]);
        Ok(())
    });
    let mut all = Vec::new();
    while let Ok(Some(found)) = records.next(last_seq, &mut |_| ()) {
        last_seq += found.ops.len() as u64;
        all.push(found);
    }
    all
}

#[cfg(test)]
mod tests;

//! Bytes of a detector's files: sorted runs of popular and of candidate ids, and spools of requests.
//!
//! Format: docs/formats/agent-detector.md v1
//! Invariants
//! - Every file may be lost at any time: damaged ones are deleted, never repaired.
//! - A count from a file is checked against its bound or the length of the file before memory is allocated by
//!   it.
//!
//! Not here: the files (`run_file`, `spool`) and their meaning (`index`, `compare`).

use super::batch::{BatchHeader, MAX_BATCH_IDS};
use copal_backup::peers::ShortId;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, EnvelopeError, Format, Put, Reader};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of the head of a run.
pub(crate) const RUN_HEAD_LEN: usize = ENVELOPE_LEN + 32;
/// Bytes of one row of a run.
pub(crate) const ROW_LEN: usize = 20;
/// Bytes of the head of a spool.
pub(crate) const SPOOL_HEAD_LEN: usize = ENVELOPE_LEN + 8;
/// Bytes of a batch before its ids.
pub(crate) const BATCH_HEAD_LEN: usize = 60;
const ID_LEN: usize = size_of::<ShortId>();

const fn format(magic: [u8; 8], name: &'static str) -> Format {
    Format { magic, name, oldest: 1, version: 1, known_flags: 0 }
}

/// Content of a run's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// Popular ids; the value is the answer: an ordinal, or "carry" until a second agent has checked the
    /// pack.
    Popular,
    /// Requests without a match; the value is the asking VM.
    Candidates,
}

const POPULAR: Format = format(*b"COPALPIR", "run of popular ids");
const CANDIDATES: Format = format(*b"COPALCIR", "run of candidate ids");
const SPOOL: Format = format(*b"COPALRQS", "spool of requests");

impl RunKind {
    fn format(self) -> &'static Format {
        match self {
            RunKind::Popular => &POPULAR,
            RunKind::Candidates => &CANDIDATES,
        }
    }

    /// First part of the names of its files.
    pub(crate) fn file_prefix(self) -> &'static str {
        match self {
            RunKind::Popular => "popular",
            RunKind::Candidates => "candidates",
        }
    }
}

/// The partition of a file, and the number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePartition {
    pub(crate) bits: u8,
    pub(crate) partition: u32,
}

impl FilePartition {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u8(self.bits);
        out.put_zeros(3);
        out.put_u32(self.partition);
    }

    fn read(input: &mut Reader<'_>) -> Result<FilePartition, DecodeError> {
        let bits = input.u8()?;
        input.zeros(3)?;
        let partition = input.u32()?;
        Ok(FilePartition { bits, partition })
    }
}

/// Head of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunHead {
    pub(crate) belongs: FilePartition,
    pub(crate) rows: u64,
    /// Number of the last log entry in the run; 0 for candidates.
    pub(crate) complete_to: u64,
    /// XXH3-64 of all rows.
    pub(crate) rows_sum: u64,
}

/// Reason why bytes are invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("a batch of {0} requests is not within 1 to {MAX_BATCH_IDS}")]
    BatchLen(u32),
}

impl RunHead {
    pub(crate) fn encode(&self, kind: RunKind) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        self.belongs.put(&mut bytes);
        bytes.put_u64(self.rows);
        bytes.put_u64(self.complete_to);
        bytes.put_u64(self.rows_sum);
        Envelope::seal(kind.format(), 0, 0, &mut bytes);
        bytes
    }

    pub(crate) fn decode(kind: RunKind, bytes: &[u8]) -> Result<RunHead, FormatError> {
        let (_, body) = Envelope::open(kind.format(), bytes)?;
        let mut input = Reader::new(body);
        let head = RunHead {
            belongs: FilePartition::read(&mut input)?,
            rows: input.u64()?,
            complete_to: input.u64()?,
            rows_sum: input.u64()?,
        };
        input.finish()?;
        Ok(head)
    }

    /// Bytes of the whole file; `None` for more rows than a file can have.
    pub(crate) fn file_len(&self) -> Option<u64> {
        let rows = self.rows.checked_mul(ROW_LEN as u64)?;
        rows.checked_add(RUN_HEAD_LEN as u64)
    }
}

/// One row of a run. Runs ascend strictly, by id and then by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunRow {
    pub(crate) id: ShortId,
    pub(crate) value: u32,
}

impl RunRow {
    pub(crate) fn encode(&self) -> [u8; ROW_LEN] {
        let mut bytes = [0; ROW_LEN];
        bytes[..ID_LEN].copy_from_slice(&self.id);
        bytes[ID_LEN..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ROW_LEN]) -> RunRow {
        let (mut id, mut value) = ([0; ID_LEN], [0; 4]);
        id.copy_from_slice(&bytes[..ID_LEN]);
        value.copy_from_slice(&bytes[ID_LEN..]);
        RunRow { id, value: u32::from_le_bytes(value) }
    }
}

pub(crate) fn encode_spool_head(belongs: FilePartition) -> Vec<u8> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    belongs.put(&mut bytes);
    Envelope::seal(&SPOOL, 0, 0, &mut bytes);
    bytes
}

pub(crate) fn decode_spool_head(bytes: &[u8]) -> Result<FilePartition, FormatError> {
    let (_, body) = Envelope::open(&SPOOL, bytes)?;
    let mut input = Reader::new(body);
    let belongs = FilePartition::read(&mut input)?;
    input.finish()?;
    Ok(belongs)
}

/// Head of one batch of a spool: its header, the number of ids, and the sum of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHead {
    pub(crate) header: BatchHeader,
    pub(crate) ids: u32,
    pub(crate) sum: u64,
}

/// Appends a batch to `out`.
pub(crate) fn put_batch(out: &mut Vec<u8>, header: &BatchHeader, ids: &[ShortId]) {
    let start = out.len();
    out.put_bytes(&header.job);
    out.put_u32(header.round);
    out.put_bytes(&header.host);
    out.put_u32(header.vm);
    out.put_u64(header.batch);
    out.put_u32(ids.len() as u32);
    let mut sum = Xxh3::new();
    sum.update(&out[start..]);
    ids.iter().for_each(|id| sum.update(id));
    out.put_u64(sum.digest());
    ids.iter().for_each(|id| out.put_bytes(id));
}

impl BatchHead {
    /// Reads the form of [`put_batch`] before the ids; the partition is that of the spool.
    pub(crate) fn decode(partition: u32, bytes: &[u8; BATCH_HEAD_LEN]) -> Result<BatchHead, FormatError> {
        let mut input = Reader::new(bytes);
        let header = BatchHeader {
            job: input.array()?,
            round: input.u32()?,
            host: input.array()?,
            vm: input.u32()?,
            batch: input.u64()?,
            partition,
        };
        let ids = input.u32()?;
        let sum = input.u64()?;
        if ids == 0 || ids as usize > MAX_BATCH_IDS {
            return Err(FormatError::BatchLen(ids));
        }
        Ok(BatchHead { header, ids, sum })
    }

    /// Begins the sum with the bytes before the ids.
    pub(crate) fn start_sum(bytes: &[u8; BATCH_HEAD_LEN]) -> Xxh3 {
        let mut sum = Xxh3::new();
        sum.update(&bytes[..BATCH_HEAD_LEN - size_of::<u64>()]);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELONGS: FilePartition = FilePartition { bits: 9, partition: 0x102 };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Version 1 in its original form; other bytes need a new version.
    #[test]
    fn version_1_has_these_bytes() {
        let head = RunHead { belongs: BELONGS, rows: 3, complete_to: 77, rows_sum: 0x0102_0304_0506_0708 };
        let popular = head.encode(RunKind::Popular);
        assert_eq!(hex(&popular), POPULAR_HEX);
        assert_eq!(RunHead::decode(RunKind::Popular, &popular).unwrap(), head);
        assert!(RunHead::decode(RunKind::Candidates, &popular).is_err());
        let spool = encode_spool_head(BELONGS);
        assert_eq!(hex(&spool), SPOOL_HEX);
        assert_eq!(decode_spool_head(&spool).unwrap(), BELONGS);
        let row = RunRow { id: [0xab; 16], value: 0x0102_0304 };
        assert_eq!(hex(&row.encode()), format!("{}04030201", "ab".repeat(16)));
        assert_eq!(RunRow::decode(&row.encode()), row);
    }

    #[test]
    fn a_batch_has_these_bytes_and_comes_back() {
        let header = BatchHeader { job: [1; 16], round: 2, host: [3; 16], vm: 4, batch: 5, partition: 0x102 };
        let mut bytes = Vec::new();
        put_batch(&mut bytes, &header, &[[7; 16]]);
        assert_eq!(hex(&bytes), BATCH_HEX);
        let head = BatchHead::decode(0x102, bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((head.header, head.ids), (header, 1));
        let mut sum = BatchHead::start_sum(bytes.first_chunk().unwrap());
        sum.update(&[7; 16]);
        assert_eq!(sum.digest(), head.sum);
        for ids in [0, MAX_BATCH_IDS as u32 + 1] {
            bytes[48..52].copy_from_slice(&ids.to_le_bytes());
            let refused = BatchHead::decode(0x102, bytes.first_chunk().unwrap());
            assert!(matches!(refused, Err(FormatError::BatchLen(found)) if found == ids));
        }
    }

    const POPULAR_HEX: &str = "434f50414c504952010000000000000000000000200000009ec3e64200000000\
                               090000000201000003000000000000004d000000000000000807060504030201";
    const SPOOL_HEX: &str =
        "434f50414c5251530100000000000000000000000800000066545ee9000000000900000002010000";
    const BATCH_HEX: &str = "01010101010101010101010101010101020000000303030303030303030303030303030304000000\
                             050000000000000001000000eef523302d94e40b07070707070707070707070707070707";
}

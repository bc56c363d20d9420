//! Rows that describe the store: identity, next volume id, clock marks, the one group.
//!
//! Format: docs/formats/data-rows.md v1

use super::frame::{RowError, RowKind, open, set_checksum, start, verify};
use bytes::Bytes;
use copal_codec::{ENVELOPE_LEN, Envelope, EnvelopeError, Format, Put, Reader};
use copal_volume::{
    LAST_ID_MS,
    group::{Incarnation, Term},
};

/// Key of the identity.
pub(crate) const IDENTITY_KEY: &[u8] = b"identity";
/// Key of the next volume id.
pub(crate) const NEXT_VID_KEY: &[u8] = b"next-vid";
/// Prefix of the keys of clock marks.
pub(crate) const MARK_PREFIX: &[u8] = b"mark/";
/// Length of a group's key, a big-endian number.
pub(crate) const GROUP_KEY_LEN: usize = 4;

const IDENTITY: Format =
    Format { magic: *b"COPALDAT", name: "volume store", oldest: 1, version: 1, known_flags: 0 };

/// Identity of a data server's disk. Its rows belong to groups with replicas on other disks; an embedded
/// store refuses them by this version.
const MEMBER_IDENTITY: Format =
    Format { magic: *b"COPALDAT", name: "data server's store", oldest: 2, version: 2, known_flags: 0 };

/// Cluster and server of a disk, and the number of the server's boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberIdentity {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The server, as named in its certificate.
    pub server: [u8; 16],
    /// Random identity of the disk: a replaced disk has another one.
    pub disk: [u8; 16],
    /// The current boot of the server.
    pub incarnation: Incarnation,
    /// The highest term of a leader that the server has accepted.
    pub term: Term,
}

impl MemberIdentity {
    /// Encodes the row under [`IDENTITY_KEY`].
    pub(crate) fn row(&self) -> Bytes {
        let mut row = vec![0; ENVELOPE_LEN];
        for id in [&self.cluster, &self.server, &self.disk] {
            row.put_bytes(id);
        }
        row.put_u64(self.incarnation.0);
        row.put_u64(self.term.0);
        Envelope::seal(&MEMBER_IDENTITY, 0, 0, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under [`IDENTITY_KEY`].
    pub(crate) fn parse(row: &[u8]) -> Result<MemberIdentity, EnvelopeError> {
        let (_, body) = Envelope::open(&MEMBER_IDENTITY, row)?;
        let fields = |mut input: Reader<'_>| -> Result<MemberIdentity, copal_codec::DecodeError> {
            Ok(MemberIdentity {
                cluster: input.array()?,
                server: input.array()?,
                disk: input.array()?,
                incarnation: Incarnation(input.u64()?),
                term: Term(input.u64()?),
            })
        };
        fields(Reader::new(body)).map_err(|_| EnvelopeError::Truncated {
            name: MEMBER_IDENTITY.name,
            wanted: (ENVELOPE_LEN + 64) as u64,
            found: row.len() as u64,
        })
    }
}

/// Identity of an embedded store, with the version of all its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreIdentity {
    pub(crate) uuid: [u8; 16],
    pub(crate) created_ms: u64,
}

impl StoreIdentity {
    /// Encodes the row under [`IDENTITY_KEY`].
    pub(crate) fn row(&self) -> Bytes {
        let mut row = vec![0; ENVELOPE_LEN];
        row.put_bytes(&self.uuid);
        row.put_u64(self.created_ms);
        Envelope::seal(&IDENTITY, 0, 0, &mut row);
        Bytes::from(row)
    }
}

/// Decodes the row under [`IDENTITY_KEY`].
pub(crate) fn parse_identity(row: &[u8]) -> Result<StoreIdentity, EnvelopeError> {
    let (_, body) = Envelope::open(&IDENTITY, row)?;
    let cut = || EnvelopeError::Truncated {
        name: IDENTITY.name,
        wanted: (ENVELOPE_LEN + 24) as u64,
        found: row.len() as u64,
    };
    let mut input = Reader::new(body);
    let uuid = input.array().map_err(|_| cut())?;
    let created_ms = input.u64().map_err(|_| cut())?;
    Ok(StoreIdentity { uuid, created_ms })
}

/// Encodes a number under its own key.
pub(crate) fn number_row(key: &[u8], number: u64) -> Bytes {
    let mut row = start(RowKind::Number, 0, 8);
    row.put_u64(number);
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes a number.
pub(crate) fn parse_number_row(key: &[u8], row: &[u8]) -> Result<u64, RowError> {
    let mut input = Reader::new(row);
    let frame = open(RowKind::Number, 0, &mut input)?;
    verify(&frame, key, row)?;
    let number = input.u64()?;
    input.finish()?;
    Ok(number)
}

/// Key of a clock mark: no acknowledged operation is later than the highest mark.
pub(crate) fn mark_key(mark_ms: u64) -> [u8; 13] {
    let mut key = [0; 13];
    key[..5].copy_from_slice(MARK_PREFIX);
    key[5..].copy_from_slice(&mark_ms.to_be_bytes());
    key
}

/// Encodes the row of a clock mark; its time is in the key.
pub(crate) fn mark_row(key: &[u8]) -> Bytes {
    let mut row = start(RowKind::Mark, 0, 0);
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes the time of a clock mark.
pub(crate) fn parse_mark(key: &[u8], row: &[u8]) -> Result<u64, RowError> {
    let mut input = Reader::new(row);
    let frame = open(RowKind::Mark, 0, &mut input)?;
    input.finish()?;
    verify(&frame, key, row)?;
    let mut time = Reader::new(key.get(MARK_PREFIX.len()..).unwrap_or(&[]));
    let mark_ms = u64::from_be_bytes(time.array()?);
    time.finish()?;
    // Above this time no id is left.
    if mark_ms > LAST_ID_MS {
        return Err(RowError::Value { field: "time", value: mark_ms });
    }
    Ok(mark_ms)
}

/// Encodes the row of a group with one member in role N.
pub(crate) fn group_row(key: &[u8], epoch: u64) -> Bytes {
    let mut row = start(RowKind::Group, 0, 16);
    row.put_u64(epoch);
    row.put_u8(b'N');
    row.put_zeros(7);
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes the epoch of a group whose only member is in role N.
pub(crate) fn parse_group_row(key: &[u8], row: &[u8]) -> Result<u64, RowError> {
    let mut input = Reader::new(row);
    let frame = open(RowKind::Group, 0, &mut input)?;
    verify(&frame, key, row)?;
    let epoch = input.u64()?;
    let role = input.u8()?;
    input.zeros(7)?;
    input.finish()?;
    if role != b'N' {
        return Err(RowError::Value { field: "role", value: u64::from(role) });
    }
    Ok(epoch)
}

/// Any bytes as the body of an identity, with a valid checksum.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted_identity(body: &[u8]) -> Vec<u8> {
    let mut row = vec![0; ENVELOPE_LEN];
    row.put_bytes(body);
    Envelope::seal(&IDENTITY, 0, 0, &mut row);
    row
}

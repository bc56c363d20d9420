//! Rows of a member of a replicated group: its state, its journal, its tombstones.
//!
//! Format: docs/formats/data-rows.md v1

use super::frame::{RowError, RowKind, open, set_checksum, start, verify};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_volume::{
    FileId, MAX_FILE_NAME_BYTES, VolumeId,
    group::{Bucket, BucketSeal, Epoch, Role},
};

/// Persistent state of a member in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRow {
    /// The newest view that it has entered.
    pub(crate) epoch: Epoch,
    pub(crate) role: Role,
    /// The newest epoch in which it was in sync, or was about to report that; 0: never.
    pub(crate) last_in_sync: Epoch,
    /// Its sealed buckets.
    pub(crate) seal: BucketSeal,
    /// The stable point: earlier operations are on every member and are not journalled any more.
    pub(crate) stable_point: Bucket,
    /// Whether everything below the stable point is present. It is false on a new member and on a damaged
    /// one, until the member has compared all of its files with a donor's.
    pub(crate) is_covered: bool,
}

impl MemberRow {
    /// Whether the member has everything of the group: it is in sync, or has persisted in this epoch that it
    /// is about to be. Then no name has a second file, and none is accepted (VOL-14).
    pub(crate) fn has_everything(&self) -> bool {
        let is_about_to_be = self.is_covered && self.last_in_sync == self.epoch && self.epoch > Epoch(0);
        self.role.is_in_sync() || is_about_to_be
    }

    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(RowKind::Member, 0, 40);
        row.put_u64(self.epoch.0);
        row.put_u64(self.last_in_sync.0);
        row.put_u64(self.seal.below.0);
        row.put_u64(self.stable_point.0);
        row.put_u8(self.role.letter() as u8);
        row.put_u8(u8::from(self.is_covered));
        row.put_zeros(6);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &[u8]) -> Result<MemberRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Member, 0, &mut input)?;
        verify(&frame, key, row)?;
        let epoch = Epoch(input.u64()?);
        let last_in_sync = Epoch(input.u64()?);
        let below = Bucket(input.u64()?);
        let stable_point = Bucket(input.u64()?);
        let letter = input.u8()?;
        let covered = input.u8()?;
        input.zeros(6)?;
        input.finish()?;
        // A member that is down writes no rows.
        let role = Role::of_letter(char::from(letter))
            .filter(|role| role.is_up())
            .ok_or(RowError::Value { field: "role", value: u64::from(letter) })?;
        if covered > 1 {
            return Err(value("covered", covered.into()));
        }
        Ok(MemberRow {
            epoch,
            role,
            last_in_sync,
            seal: BucketSeal { below },
            stable_point,
            is_covered: covered == 1,
        })
    }
}

/// Kind of a journalled operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum JournalAction {
    Create = 1,
    Delete = 2,
}

/// One accepted operation, kept until all members have it. Its id and time are in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalRow {
    pub(crate) did: JournalAction,
    pub(crate) vid: VolumeId,
    pub(crate) fid: FileId,
    pub(crate) name: Bytes,
}

impl JournalRow {
    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(RowKind::Journal, 0, 32 + self.name.len());
        row.put_u64(self.vid.0);
        row.put_u128(self.fid.0);
        row.put_u8(self.did as u8);
        row.put_zeros(7);
        row.put_bytes(&self.name);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<JournalRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Journal, 0, &mut input)?;
        verify(&frame, key, row)?;
        let vid = VolumeId(input.u64()?);
        let fid = FileId(input.u128()?);
        let did = match input.u8()? {
            1 => JournalAction::Create,
            2 => JournalAction::Delete,
            other => return Err(value("kind", other.into())),
        };
        input.zeros(7)?;
        let name = name(row, input.position())?;
        Ok(JournalRow { did, vid, fid, name })
    }
}

/// A tombstone, kept until no member can bring the file back. The file's id is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TombstoneRow {
    pub(crate) vid: VolumeId,
    /// The delete.
    pub(crate) op: u128,
    pub(crate) name: Bytes,
}

impl TombstoneRow {
    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(RowKind::Tomb, 0, 24 + self.name.len());
        row.put_u64(self.vid.0);
        row.put_u128(self.op);
        row.put_bytes(&self.name);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<TombstoneRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Tomb, 0, &mut input)?;
        verify(&frame, key, row)?;
        let vid = VolumeId(input.u64()?);
        let op = input.u128()?;
        let name = name(row, input.position())?;
        Ok(TombstoneRow { vid, op, name })
    }
}

/// Decodes the name at the end of a row.
fn name(row: &Bytes, at: usize) -> Result<Bytes, RowError> {
    let name = row.slice(at..);
    if name.len() > MAX_FILE_NAME_BYTES {
        return Err(value("name length", name.len() as u64));
    }
    Ok(name)
}

fn value(field: &'static str, value: u64) -> RowError {
    RowError::Value { field, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_rows_of_other_keys_do_not() {
        let member = MemberRow {
            epoch: Epoch(9),
            role: Role::Recovering,
            last_in_sync: Epoch(7),
            seal: BucketSeal { below: Bucket(11) },
            stable_point: Bucket(10),
            is_covered: true,
        };
        assert_eq!(MemberRow::parse(b"k", &member.row(b"k")), Ok(member));
        let journal = JournalRow {
            did: JournalAction::Delete,
            vid: VolumeId(3),
            fid: FileId(4),
            name: Bytes::from_static(b"name"),
        };
        assert_eq!(JournalRow::parse(b"k", &journal.row(b"k")), Ok(journal.clone()));
        let tombstone = TombstoneRow { vid: VolumeId(3), op: 5, name: Bytes::from_static(b"name") };
        assert_eq!(TombstoneRow::parse(b"k", &tombstone.row(b"k")), Ok(tombstone.clone()));
        assert!(MemberRow::parse(b"l", &member.row(b"k")).is_err());
        assert!(JournalRow::parse(b"l", &journal.row(b"k")).is_err());
        assert!(TombstoneRow::parse(b"k", &journal.row(b"k")).is_err());
    }

    #[test]
    fn a_row_with_role_f_is_refused() {
        let mut row = start(RowKind::Member, 0, 40);
        row.put_zeros(32);
        row.put_u8(b'F');
        row.put_zeros(7);
        set_checksum(b"k", &mut row);
        let refused = Err(value("role", b'F'.into()));
        assert_eq!(MemberRow::parse(b"k", &row), refused);
    }
}

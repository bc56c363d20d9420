//! Rows of a member of a replicated group: its state, its journal, its deleted files.
//!
//! Format: docs/formats/data-rows.md v1

use super::frame::{Kind, RowError, open, set_checksum, start, verify};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_volume::{
    FileId, MAX_FILE_NAME_BYTES, VolumeId,
    group::{Bucket, Closing, Epoch, Role},
};

/// What a member knows about itself in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRow {
    /// The newest view it has taken part in.
    pub(crate) epoch: Epoch,
    pub(crate) role: Role,
    /// The newest epoch in which it was whole; 0: never.
    pub(crate) last_normal: Epoch,
    /// What it takes no more operations of.
    pub(crate) closing: Closing,
    /// Operations of earlier buckets are on every member: none of them is journalled any more.
    pub(crate) horizon: Bucket,
    /// Whether everything from before the horizon is here: not on a new member, and not on one that was
    /// damaged, until it has compared all of its files with a donor's.
    pub(crate) is_covered: bool,
}

impl MemberRow {
    /// Whether the member has everything of the group: it is whole, or has written down in this epoch that it
    /// is about to be. Then it has no second file of a name, and takes none (VOL-14).
    pub(crate) fn has_everything(&self) -> bool {
        let is_about_to_be = self.is_covered && self.last_normal == self.epoch && self.epoch > Epoch(0);
        self.role.is_in_sync() || is_about_to_be
    }

    /// The row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(Kind::Member, 0, 40);
        row.put_u64(self.epoch.0);
        row.put_u64(self.last_normal.0);
        row.put_u64(self.closing.below.0);
        row.put_u64(self.horizon.0);
        row.put_u8(self.role.letter() as u8);
        row.put_u8(u8::from(self.is_covered));
        row.put_zeros(6);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Reads the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &[u8]) -> Result<MemberRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(Kind::Member, 0, &mut input)?;
        verify(&frame, key, row)?;
        let epoch = Epoch(input.u64()?);
        let last_normal = Epoch(input.u64()?);
        let below = Bucket(input.u64()?);
        let horizon = Bucket(input.u64()?);
        let letter = input.u8()?;
        let covered = input.u8()?;
        input.zeros(6)?;
        input.finish()?;
        // Whoever is away writes no rows.
        let role = Role::of_letter(char::from(letter))
            .filter(|role| role.is_up())
            .ok_or(RowError::Value { field: "role", value: u64::from(letter) })?;
        if covered > 1 {
            return Err(value("covered", covered.into()));
        }
        Ok(MemberRow {
            epoch,
            role,
            last_normal,
            closing: Closing { below },
            horizon,
            is_covered: covered == 1,
        })
    }
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Did {
    Create = 1,
    Delete = 2,
}

/// One accepted operation, until all members have it; its id and time are in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalRow {
    pub(crate) did: Did,
    pub(crate) vid: VolumeId,
    pub(crate) fid: FileId,
    pub(crate) name: Bytes,
}

impl JournalRow {
    /// The row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(Kind::Journal, 0, 32 + self.name.len());
        row.put_u64(self.vid.0);
        row.put_u128(self.fid.0);
        row.put_u8(self.did as u8);
        row.put_zeros(7);
        row.put_bytes(&self.name);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Reads the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<JournalRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(Kind::Journal, 0, &mut input)?;
        verify(&frame, key, row)?;
        let vid = VolumeId(input.u64()?);
        let fid = FileId(input.u128()?);
        let did = match input.u8()? {
            1 => Did::Create,
            2 => Did::Delete,
            other => return Err(value("kind", other.into())),
        };
        input.zeros(7)?;
        let name = name(row, input.position())?;
        Ok(JournalRow { did, vid, fid, name })
    }
}

/// A deleted file, until no member can bring it back; its id is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TombRow {
    pub(crate) vid: VolumeId,
    /// The delete.
    pub(crate) op: u128,
    pub(crate) name: Bytes,
}

impl TombRow {
    /// The row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(Kind::Tomb, 0, 24 + self.name.len());
        row.put_u64(self.vid.0);
        row.put_u128(self.op);
        row.put_bytes(&self.name);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Reads the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<TombRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(Kind::Tomb, 0, &mut input)?;
        verify(&frame, key, row)?;
        let vid = VolumeId(input.u64()?);
        let op = input.u128()?;
        let name = name(row, input.position())?;
        Ok(TombRow { vid, op, name })
    }
}

/// The name that stands last in a row.
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
            last_normal: Epoch(7),
            closing: Closing { below: Bucket(11) },
            horizon: Bucket(10),
            is_covered: true,
        };
        assert_eq!(MemberRow::parse(b"k", &member.row(b"k")), Ok(member));
        let journal = JournalRow {
            did: Did::Delete,
            vid: VolumeId(3),
            fid: FileId(4),
            name: Bytes::from_static(b"name"),
        };
        assert_eq!(JournalRow::parse(b"k", &journal.row(b"k")), Ok(journal.clone()));
        let tomb = TombRow { vid: VolumeId(3), op: 5, name: Bytes::from_static(b"name") };
        assert_eq!(TombRow::parse(b"k", &tomb.row(b"k")), Ok(tomb.clone()));
        assert!(MemberRow::parse(b"l", &member.row(b"k")).is_err());
        assert!(JournalRow::parse(b"l", &journal.row(b"k")).is_err());
        assert!(TombRow::parse(b"k", &journal.row(b"k")).is_err());
    }

    #[test]
    fn nobody_who_is_away_has_a_row_that_says_so() {
        let mut row = start(Kind::Member, 0, 40);
        row.put_zeros(32);
        row.put_u8(b'F');
        row.put_zeros(7);
        set_checksum(b"k", &mut row);
        let refused = Err(value("role", b'F'.into()));
        assert_eq!(MemberRow::parse(b"k", &row), refused);
    }
}

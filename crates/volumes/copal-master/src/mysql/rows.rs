//! Rows as columns, and as what they mean.

use super::statement::{Trouble, first};
use crate::meta::{DirRow, MemberKind, Missed, ServerRow, ServerState};
use copal_volume::{VolumeId, group::Incarnation};
use mysql::{Transaction, prelude::Queryable};

/// name, vid, removing
pub(super) type DirColumns = (String, u64, bool);
/// All columns of a server, in their order, and where it stands: zone, a zero byte, rack. A row has twelve
/// columns at most.
pub(super) type ServerColumns =
    (u32, String, String, Vec<u8>, Vec<u8>, String, u64, u64, bool, u64, u64, Vec<u8>);

/// Takes the map's next version.
pub(super) fn next_version(on: &mut Transaction<'_>) -> Result<u64, Trouble> {
    on.query_drop("UPDATE cluster SET map_version = map_version + 1 WHERE id = 1")?;
    let row: Option<(u64,)> = first(on, "SELECT map_version FROM cluster WHERE id = 1", ())?;
    row.map(|(version,)| version).ok_or_else(|| Trouble::Row("it holds no cluster".to_owned()))
}

/// Keeps since when operations can hold without members. One that is joining takes part from this version on,
/// so of it the version before is kept.
pub(super) fn keep_missed(on: &mut Transaction<'_>, missed: &[Missed], version: u64) -> Result<(), Trouble> {
    for (group, disk) in missed {
        on.exec_drop(
            "REPLACE INTO missed SELECT gid, disk, CASE kind WHEN 'joining' THEN ? ELSE ? END FROM member
             WHERE gid = ? AND disk = ?",
            (version - 1, version, group.0, disk),
        )?;
    }
    Ok(())
}

/// Keeps where a server stands.
pub(super) fn keep_place(on: &mut Transaction<'_>, disk: u32, server: &ServerRow) -> Result<(), Trouble> {
    let keep = "REPLACE INTO place VALUES (?, ?, ?)";
    Ok(on.exec_drop(keep, (disk, server.zone.as_bytes(), server.rack.as_bytes()))?)
}

/// The volume of a name.
pub(super) fn dir_at(
    on: &mut impl Queryable,
    parent: VolumeId,
    name: &str,
) -> Result<Option<DirRow>, Trouble> {
    let select = "SELECT name, vid, removing FROM dir WHERE parent = ? AND name = ?";
    Ok(first(on, select, (parent.0, name.as_bytes()))?.map(dir))
}

pub(super) fn dir((name, vid, is_removing): DirColumns) -> DirRow {
    DirRow { vid: VolumeId(vid), name, is_removing }
}

pub(super) fn server(columns: ServerColumns) -> Result<ServerRow, Trouble> {
    let (
        disk,
        name,
        address,
        server_uuid,
        disk_uuid,
        state,
        version,
        incarnation,
        is_draining,
        since,
        capacity,
        place,
    ) = columns;
    let place =
        String::from_utf8(place).map_err(|_| Trouble::Row("the place of a server is no text".to_owned()))?;
    let (zone, rack) = place.split_once('\0').unwrap_or_default();
    let unknown = || Trouble::Row(format!("a server of it has the unknown state {state:?}"));
    Ok(ServerRow {
        disk,
        name,
        address,
        server_uuid: fixed(server_uuid)?,
        disk_uuid: fixed(disk_uuid)?,
        state: ServerState::of_letter(&state).ok_or_else(unknown)?,
        version,
        incarnation: Incarnation(incarnation),
        is_draining,
        failed_since_ms: since,
        capacity_bytes: capacity,
        zone: zone.to_owned(),
        rack: rack.to_owned(),
    })
}

pub(super) fn kind(word: &str) -> Result<MemberKind, Trouble> {
    MemberKind::of_word(word)
        .ok_or_else(|| Trouble::Row(format!("a member of a group is {word:?}, which is unknown")))
}

/// Bytes of a fixed width.
pub(super) fn fixed<const N: usize>(bytes: Vec<u8>) -> Result<[u8; N], Trouble> {
    let len = bytes.len();
    bytes.try_into().map_err(|_| Trouble::Row(format!("an id of it has {len} bytes, not {N}")))
}

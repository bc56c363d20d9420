//! Conversion between rows and values.

use super::sql::{SqlResult, SqlRow, SqlSession, SqlValue};
use crate::tables::meta_store::{
    ClusterRow, DirRow, MemberKind, MissedMember, PoolConfig, ServerRow, ServerState,
};
use SqlValue::{Bytes, Number, Text};
use copal_volume::{
    VolumeId,
    group::{GroupId, Incarnation},
};

/// A number of at most 32 bits.
pub(super) fn small(number: u32) -> SqlValue<'static> {
    Number(u64::from(number))
}

/// Takes the next version of the map.
pub(super) fn next_version(on: &mut dyn SqlSession) -> SqlResult<u64> {
    on.execute("UPDATE cluster SET map_version = map_version + 1 WHERE id = 1", &[])?;
    let version = on.first("SELECT map_version FROM cluster WHERE id = 1", &[], |row| row.number(0))?;
    version.ok_or_else(|| on.missing("it holds no cluster".to_owned()))
}

/// Records the version from which on operations can complete without members. A joining member takes part from
/// this version on, so the version before is recorded for it.
pub(super) fn keep_missed(on: &mut dyn SqlSession, missed: &[MissedMember], version: u64) -> SqlResult<()> {
    for (group, disk) in missed {
        on.execute(
            "REPLACE INTO missed SELECT gid, disk, CASE kind WHEN 'joining' THEN ? ELSE ? END FROM member
             WHERE gid = ? AND disk = ?",
            &[Number(version - 1), Number(version), small(group.0), small(*disk)],
        )?;
    }
    Ok(())
}

/// Stores the zone and the rack of a server.
pub(super) fn keep_place(on: &mut dyn SqlSession, disk: u32, server: &ServerRow) -> SqlResult<()> {
    let keep = "REPLACE INTO place VALUES (?, ?, ?)";
    on.execute(keep, &[small(disk), Text(&server.zone), Text(&server.rack)])?;
    Ok(())
}

/// The volume with a name.
pub(super) fn dir_at(on: &mut dyn SqlSession, parent: VolumeId, name: &str) -> SqlResult<Option<DirRow>> {
    let select = "SELECT name, vid, removing FROM dir WHERE parent = ? AND name = ?";
    on.first(select, &[Number(parent.0), Bytes(name.as_bytes())], dir)
}

/// Columns: name, vid, removing.
pub(super) fn dir(row: &SqlRow<'_>) -> SqlResult<DirRow> {
    Ok(DirRow { name: row.name(0)?, vid: VolumeId(row.number(1)?), is_removing: row.get(2)? })
}

/// Columns: uuid, version of the map, term, replicas, acknowledgements, groups.
pub(super) fn cluster(row: &SqlRow<'_>) -> SqlResult<ClusterRow> {
    Ok(ClusterRow {
        uuid: fixed(row, 0)?,
        map_version: row.number(1)?,
        term: row.number(2)?,
        pool: PoolConfig { replicas: row.get(3)?, min_ack: row.get(4)?, groups: row.get(5)? },
    })
}

/// Columns: all of a server in their order, then its zone and rack.
pub(super) fn server(row: &SqlRow<'_>) -> SqlResult<ServerRow> {
    let letter: String = row.get(5)?;
    let unknown = || row.unknown(5, 0, format!("a server of it has the unknown state {letter:?}"));
    Ok(ServerRow {
        disk: row.get(0)?,
        name: row.get(1)?,
        address: row.get(2)?,
        server_uuid: fixed(row, 3)?,
        disk_uuid: fixed(row, 4)?,
        state: ServerState::of_letter(&letter).ok_or_else(unknown)?,
        version: row.number(6)?,
        incarnation: Incarnation(row.number(7)?),
        is_draining: row.get(8)?,
        failed_since_ms: row.number(9)?,
        capacity_bytes: row.number(10)?,
        zone: row.get(11)?,
        rack: row.get(12)?,
    })
}

/// Inserts a server; the key of [`columns`] is its uuid.
pub(super) const INSERT_SERVER: &str =
    "INSERT INTO server (name, address, disk_uuid, state, version, incarnation,
    draining, failed_since, capacity, server_uuid) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
/// Updates a server; the key of [`columns`] is its disk.
pub(super) const UPDATE_SERVER: &str =
    "UPDATE server SET name = ?, address = ?, disk_uuid = ?, state = ?, version = ?,
    incarnation = ?, draining = ?, failed_since = ?, capacity = ? WHERE disk = ?";

/// Columns of a server that may change, and its `key`.
pub(super) fn columns<'a>(server: &'a ServerRow, version: u64, key: SqlValue<'a>) -> [SqlValue<'a>; 10] {
    let ServerRow { name, address, disk_uuid, state, .. } = server;
    let (draining, failed_since) = (Number(server.is_draining.into()), Number(server.failed_since_ms));
    let (incarnation, capacity) = (Number(server.incarnation.0), Number(server.capacity_bytes));
    let (name, address, state) = (Text(name), Text(address), Text(state.letter()));
    let (disk_uuid, version) = (Bytes(disk_uuid), Number(version));
    [name, address, disk_uuid, state, version, incarnation, draining, failed_since, capacity, key]
}

/// Columns: group, version of its members, disk, kind.
pub(super) fn member(row: &SqlRow<'_>) -> SqlResult<(GroupId, u64, (u32, MemberKind))> {
    let word: String = row.get(3)?;
    let unknown = || row.unknown(3, 0, format!("a member of a group is {word:?}, which is unknown"));
    let kind = MemberKind::of_word(&word).ok_or_else(unknown)?;
    Ok((GroupId(row.get(0)?), row.number(1)?, (row.get(2)?, kind)))
}

/// Bytes of a fixed width.
fn fixed<const N: usize>(row: &SqlRow<'_>, at: usize) -> SqlResult<[u8; N]> {
    let bytes: Vec<u8> = row.get(at)?;
    let len = bytes.len();
    let unknown = |_| row.unknown(at, N as i64, format!("an id of it has {len} bytes, not {N}"));
    bytes.try_into().map_err(unknown)
}

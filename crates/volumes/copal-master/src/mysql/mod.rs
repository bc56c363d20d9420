//! The master's tables in MySQL or MariaDB: several masters share them, and one leads.
//!
//! Paper: beanfs §3.4.1, §4.2 (stand-by masters; here they share the database instead of following one
//! another) Format: docs/formats/master-mysql.md v1
//! Invariants
//! - Leases end by the database's clock alone.
//! - Whoever leads fences each change (`connection`), so a master that was paused beyond its lease changes
//!   nothing.
//!
//! Not here: when to renew and when to stop (whoever runs the master).

mod connection;
mod rows;
mod schema;
mod statement;
#[cfg(test)]
mod tests;

use crate::meta::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, Holder, LEASE_MS, Lead, Members, Meta, MetaError,
    MetaStore, Missed, Place, Pool, QuotaRow, RAISED_VERSIONS, RAISED_VOLUMES, ServerRow, TaskKind, TaskRow,
    listed, setting,
};
use connection::Connection;
use copal_volume::{VolumeError, VolumeId, group::GroupId};
use mysql::prelude::Queryable;
use rows::{DirColumns, ServerColumns, dir_at, keep_missed, keep_place, next_version};
use statement::{Trouble, all, first};
use std::collections::BTreeMap;

/// The master's database on a server.
pub struct MysqlStore {
    connection: Connection,
    reign: Option<(Holder, u64)>,
}

impl MysqlStore {
    /// Opens the database at `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, and makes the tables where there are
    /// none. With `?require_ssl=true`, and the other words of the client library for TLS, the connection is
    /// encrypted. Blocks, 5 s at most for the connection and 15 s for an answer; so does every call.
    /// # Errors
    /// It cannot be reached, or another release wrote it.
    pub fn open(url: &str) -> Result<MysqlStore, MetaError> {
        Ok(MysqlStore { connection: Connection::open(url)?, reign: None })
    }

    fn change<T>(
        &mut self,
        run: impl Fn(&mut mysql::Transaction<'_>) -> Result<Result<T, VolumeError>, Trouble>,
    ) -> Meta<T> {
        let reign = self.reign.ok_or(MetaError::Deposed)?;
        let outcome = self.connection.change(reign, run);
        // After a commit that may hold or not, what is in memory may differ from what is in the tables.
        if matches!(outcome, Err(MetaError::Deposed | MetaError::Unclear(_))) {
            self.reign = None;
        }
        outcome
    }

    /// A change that no user can make fail.
    fn change_always<T>(
        &mut self,
        run: impl Fn(&mut mysql::Transaction<'_>) -> Result<T, Trouble>,
    ) -> Result<T, MetaError> {
        let outcome = self.change(|transaction| Ok(Ok(run(transaction)?)))?;
        outcome.map_err(|error| MetaError::Failed(error.to_string()))
    }
}

impl MetaStore for MysqlStore {
    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError> {
        let select =
            "SELECT cluster.uuid, cluster.map_version, leader.term, cluster.replicas, cluster.min_ack,
            cluster.group_count FROM cluster JOIN leader ON leader.id = cluster.id";
        let row: Option<(Vec<u8>, u64, u64, u8, u8, u32)> =
            self.connection.read(|on| first(on, select, ()))?;
        let Some((uuid, map_version, term, replicas, min_ack, groups)) = row else {
            return Ok(None);
        };
        Ok(Some(ClusterRow {
            uuid: rows::fixed(uuid)?,
            map_version,
            term,
            pool: Pool { replicas, min_ack, groups },
        }))
    }

    fn found(&mut self, uuid: [u8; 16], pool: Pool) -> Result<(), MetaError> {
        self.connection.change_unfenced(|on| {
            on.exec_drop(
                "INSERT INTO cluster VALUES (1, ?, 1, ?, ?, ?)",
                (uuid.to_vec(), pool.replicas, pool.min_ack, pool.groups),
            )?;
            on.exec_drop("INSERT INTO leader VALUES (1, 0, ?, '2000-01-01 00:00:00', 0)", (vec![0_u8; 24],))?;
            let groups: Vec<u32> = (1..=pool.groups).collect();
            for some in groups.chunks(1000) {
                let rows: Vec<String> = some.iter().map(|group| format!("({group}, 0, 1)")).collect();
                on.query_drop(format!("INSERT INTO vgroup VALUES {}", rows.join(", ")))?;
            }
            Ok(())
        })
    }

    fn lead(&mut self, holder: Holder) -> Result<Lead, MetaError> {
        let take = format!(
            "UPDATE leader SET term = term + 1, holder = ?, expires = NOW(6) + INTERVAL {LEASE_MS} * 1000 MICROSECOND
             WHERE id = 1 AND (holder = ? OR expires < NOW(6))"
        );
        let look =
            "SELECT term, holder = ?, TIMESTAMPDIFF(MICROSECOND, NOW(6), expires) FROM leader WHERE id = 1";
        let me = || holder.0.to_vec();
        let row: Option<(u64, bool, i64)> = self.connection.read(|on| {
            on.exec_drop(&take, (me(), me()))?;
            first(on, look, (me(),))
        })?;
        match row {
            Some((term, true, _)) => {
                self.reign = Some((holder, term));
                Ok(Lead::Mine { term })
            }
            Some((_, false, left_us)) => {
                self.reign = None;
                let left_ms = u64::try_from(left_us / 1000).unwrap_or(0);
                Ok(Lead::Theirs { left_ms })
            }
            None => Err(MetaError::Failed("it holds no cluster; make one first".to_owned())),
        }
    }

    fn renew(&mut self) -> Result<bool, MetaError> {
        let Some((holder, term)) = self.reign else {
            return Ok(false);
        };
        let renew = format!(
            "UPDATE leader SET expires = NOW(6) + INTERVAL {LEASE_MS} * 1000 MICROSECOND
             WHERE id = 1 AND holder = ? AND term = ?"
        );
        let is_renewed = self.connection.read(|on| {
            on.exec_drop(&renew, (holder.0.to_vec(), term))?;
            Ok(on.affected_rows() == 1)
        })?;
        if !is_renewed {
            self.reign = None;
        }
        Ok(is_renewed)
    }

    fn has_lease(&self) -> bool {
        true
    }

    fn raise(&mut self, version: u64, term: u64) -> Result<u64, MetaError> {
        let reign @ (holder, _) = self.reign.ok_or(MetaError::Deposed)?;
        let outcome = self.connection.change(reign, |on| {
            let raise = "UPDATE cluster SET map_version = GREATEST(map_version, ?) + ? WHERE id = 1";
            on.exec_drop(raise, (version, RAISED_VERSIONS))?;
            // The fence of this transaction was the last look at the term of before.
            let raise = "UPDATE leader SET term = GREATEST(term, ?) + ? WHERE id = 1";
            on.exec_drop(raise, (term, RAISED_VERSIONS))?;
            let raise = "UPDATE vgroup SET next_volume = next_volume + ?";
            on.exec_drop(raise, (RAISED_VOLUMES,))?;
            on.query_drop("DELETE FROM token")?;
            on.exec_drop("DELETE FROM setting WHERE name = ?", (setting::OLDER,))?;
            let row: Option<(u64,)> = first(on, "SELECT term FROM leader WHERE id = 1", ())?;
            let none = || Trouble::Row("it holds no cluster".to_owned());
            Ok(Ok(row.ok_or_else(none)?.0))
        });
        // Whatever came of it, what holds is in the tables.
        self.reign = None;
        let raised = outcome?.map_err(|error| MetaError::Failed(error.to_string()))?;
        self.reign = Some((holder, raised));
        Ok(raised)
    }

    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError> {
        let select = "SELECT name, value FROM setting";
        let rows: Vec<(String, String)> = self.connection.read(|on| all(on, select, ()))?;
        Ok(rows.into_iter().collect())
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError> {
        self.change_always(|on| {
            match value {
                Some(value) => on.exec_drop("REPLACE INTO setting VALUES (?, ?)", (name, value))?,
                None => on.exec_drop("DELETE FROM setting WHERE name = ?", (name,))?,
            }
            Ok(())
        })
    }

    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError> {
        let select = "SELECT kind, gid, a, b FROM task ORDER BY kind, gid";
        let rows: Vec<(String, u32, u32, u32)> = self.connection.read(|on| all(on, select, ()))?;
        let task = |(kind, group, a, b): (String, u32, u32, u32)| {
            let unknown = || MetaError::Failed(format!("a task of it is {kind:?}, which is unknown"));
            TaskRow::of_columns(&kind, group, a, b).ok_or_else(unknown)
        };
        rows.into_iter().map(task).collect()
    }

    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError> {
        self.change_always(|on| {
            for (kind, group) in forget {
                on.exec_drop("DELETE FROM task WHERE kind = ? AND gid = ?", (kind.word(), group.0))?;
            }
            for task in keep {
                on.exec_drop("REPLACE INTO task VALUES (?, ?, ?, ?)", task.columns())?;
            }
            Ok(())
        })
    }

    fn masters(&mut self) -> Result<Vec<String>, MetaError> {
        let rows: Vec<(Vec<u8>,)> =
            self.connection.read(|on| all(on, "SELECT address FROM master ORDER BY number", ()))?;
        let text = |(address,): (Vec<u8>,)| {
            let text = String::from_utf8(address);
            text.map_err(|_| MetaError::Failed("the address of a master is no text".to_owned()))
        };
        rows.into_iter().map(text).collect()
    }

    fn add_master(&mut self, address: &str) -> Result<(), MetaError> {
        let add = "INSERT IGNORE INTO master (address) VALUES (?)";
        self.change_always(|on| Ok(on.exec_drop(add, (address.as_bytes(),))?))
    }

    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError> {
        let select =
            "SELECT server.*, CONCAT(COALESCE(place.zone, ''), CHAR(0), COALESCE(place.rack, '')) FROM server
            LEFT JOIN place ON place.disk = server.disk ORDER BY server.disk";
        let rows: Vec<ServerColumns> = self.connection.read(|on| all(on, select, ()))?;
        Ok(rows.into_iter().map(rows::server).collect::<Result<_, _>>()?)
    }

    fn add_server(&mut self, new: &ServerRow) -> Result<(u32, u64), MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            on.exec_drop(
                "INSERT INTO server VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    new.name.as_bytes(),
                    new.address.as_bytes(),
                    new.server_uuid.to_vec(),
                    new.disk_uuid.to_vec(),
                    new.state.letter(),
                    version,
                    new.incarnation.0,
                    new.is_draining,
                    new.failed_since_ms,
                    new.capacity_bytes,
                ),
            )?;
            let disk = on
                .last_insert_id()
                .and_then(|disk| u32::try_from(disk).ok())
                .ok_or_else(|| Trouble::Row("it gave the server no number".to_owned()))?;
            keep_place(on, disk, new)?;
            Ok((disk, version))
        })
    }

    fn change_server(&mut self, changed: &ServerRow, missed: &[Missed]) -> Result<u64, MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            on.exec_drop(
                "UPDATE server SET name = ?, address = ?, disk_uuid = ?, state = ?, version = ?, incarnation = ?,
                 draining = ?, failed_since = ?, capacity = ? WHERE disk = ?",
                (
                    changed.name.as_bytes(),
                    changed.address.as_bytes(),
                    changed.disk_uuid.to_vec(),
                    changed.state.letter(),
                    version,
                    changed.incarnation.0,
                    changed.is_draining,
                    changed.failed_since_ms,
                    changed.capacity_bytes,
                    changed.disk,
                ),
            )?;
            keep_place(on, changed.disk, changed)?;
            keep_missed(on, missed, version)?;
            Ok(version)
        })
    }

    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError> {
        self.change_always(|on| {
            on.exec_drop("DELETE FROM place WHERE disk = ?", (disk,))?;
            Ok(on.exec_drop("DELETE FROM server WHERE disk = ?", (disk,))?)
        })
    }

    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError> {
        let select = "SELECT vgroup.gid, vgroup.version, member.disk, member.kind FROM vgroup
            JOIN member ON member.gid = vgroup.gid ORDER BY vgroup.gid, member.disk";
        let rows: Vec<(u32, u64, u32, String)> = self.connection.read(|on| all(on, select, ()))?;
        let mut groups: Vec<GroupRow> = Vec::new();
        for (group, version, disk, word) in rows {
            let (group, member) = (GroupId(group), (disk, rows::kind(&word)?));
            match groups.last_mut().filter(|last| last.group == group) {
                Some(last) => last.members.push(member),
                None => groups.push(GroupRow { group, version, members: vec![member] }),
            }
        }
        Ok(groups)
    }

    fn change_groups(&mut self, groups: &[(GroupId, Members)], missed: &[Missed]) -> Result<u64, MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            for (group, members) in groups {
                on.exec_drop("UPDATE vgroup SET version = ? WHERE gid = ?", (version, group.0))?;
                on.exec_drop("DELETE FROM member WHERE gid = ?", (group.0,))?;
                for (disk, kind) in members {
                    on.exec_drop(
                        "INSERT INTO member VALUES (?, ?, ?)",
                        (group.0, disk, kind.word()),
                    )?;
                }
                on.exec_drop(
                    "DELETE FROM missed WHERE gid = ? AND disk NOT IN (SELECT disk FROM member WHERE gid = ?)",
                    (group.0, group.0),
                )?;
            }
            keep_missed(on, missed, version)?;
            Ok(version)
        })
    }

    fn forget_missed(&mut self, disk: u32, groups: &[GroupId]) -> Result<(), MetaError> {
        if groups.is_empty() {
            return Ok(());
        }
        let groups = listed(groups);
        let forget = format!("DELETE FROM missed WHERE disk = {disk} AND gid IN ({groups})");
        self.change_always(|on| Ok(on.query_drop(&forget)?))
    }

    fn missed(&mut self) -> Result<Vec<(Missed, u64)>, MetaError> {
        let select = "SELECT gid, disk, version FROM missed ORDER BY gid, disk";
        let rows: Vec<(u32, u32, u64)> = self.connection.read(|on| all(on, select, ()))?;
        let row = |(group, disk, version)| ((GroupId(group), disk), version);
        Ok(rows.into_iter().map(row).collect())
    }

    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError> {
        self.connection.read(|on| {
            let mut found = Vec::with_capacity(path.len());
            let mut parent = VolumeId::ROOT;
            for name in path {
                let Some(row) = dir_at(on, parent, name)?.filter(|row| !row.is_removing) else {
                    break;
                };
                parent = row.vid;
                found.push(row);
            }
            Ok(found)
        })
    }

    fn mkdir(&mut self, parent: VolumeId, name: &str, group: GroupId, quota: Option<u64>) -> Meta<VolumeId> {
        self.change(|on| {
            if let Some(taken) = dir_at(on, parent, name)? {
                return Ok(Err(VolumeError::VolumeExists { vid: taken.vid }));
            }
            let select = "SELECT next_volume FROM vgroup WHERE gid = ? FOR UPDATE";
            let next: Option<(u64,)> = first(on, select, (group.0,))?;
            let (next,) = next.ok_or_else(|| Trouble::Row(format!("it knows no group {}", group.0)))?;
            on.exec_drop("UPDATE vgroup SET next_volume = next_volume + 1 WHERE gid = ?", (group.0,))?;
            let vid = VolumeId::in_group(group, next);
            on.exec_drop("INSERT INTO dir VALUES (?, ?, ?, 0)", (parent.0, name.as_bytes(), vid.0))?;
            if let Some(quota) = quota {
                let version = next_version(on)?;
                on.exec_drop("INSERT INTO quota VALUES (?, ?, ?)", (vid.0, quota, version))?;
            }
            Ok(Ok(vid))
        })
    }

    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError> {
        let select = "SELECT vid, bytes, version FROM quota WHERE version > ? ORDER BY version";
        let rows: Vec<(u64, u64, u64)> = self.connection.read(|on| all(on, select, (since,)))?;
        let row = |(vid, bytes, version)| QuotaRow { vid: VolumeId(vid), bytes, version };
        Ok(rows.into_iter().map(row).collect())
    }

    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError> {
        let select = "SELECT parent, name FROM dir WHERE vid = ?";
        let row: Option<(u64, String)> = self.connection.read(|on| first(on, select, (vid.0,)))?;
        Ok(row.map(|(parent, name)| (VolumeId(parent), name)))
    }

    fn list(
        &mut self,
        parent: VolumeId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DirRow>, MetaError> {
        // Names are never empty.
        let select = "SELECT name, vid, removing FROM dir WHERE parent = ? AND name > ? AND removing = 0
            ORDER BY name LIMIT ?";
        let after = after.unwrap_or_default().as_bytes();
        let rows: Vec<DirColumns> =
            self.connection.read(|on| all(on, select, (parent.0, after, limit as u64)))?;
        Ok(rows.into_iter().map(rows::dir).collect())
    }

    fn mark_removing(&mut self, at: Place<'_>, is_removing: bool) -> Meta<()> {
        self.change(|on| {
            let below: Option<(u64,)> =
                first(on, "SELECT vid FROM dir WHERE parent = ? LIMIT 1", (at.vid.0,))?;
            if is_removing && below.is_some() {
                return Ok(Err(VolumeError::NotEmpty));
            }
            on.exec_drop(
                "UPDATE dir SET removing = ? WHERE parent = ? AND name = ? AND vid = ?",
                (is_removing, at.parent.0, at.name.as_bytes(), at.vid.0),
            )?;
            if on.affected_rows() == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            let mark = match is_removing {
                true => "INSERT IGNORE INTO removing VALUES (?, ?)",
                false => "DELETE FROM removing WHERE parent = ? AND name = ?",
            };
            on.exec_drop(mark, (at.parent.0, at.name.as_bytes()))?;
            Ok(Ok(()))
        })
    }

    fn unmark_all(&mut self) -> Result<u64, MetaError> {
        self.change_always(|on| {
            on.query_drop(
                "UPDATE dir JOIN removing ON dir.parent = removing.parent AND dir.name = removing.name
                 SET dir.removing = 0",
            )?;
            let marked = on.affected_rows();
            on.query_drop("DELETE FROM removing")?;
            Ok(marked)
        })
    }

    fn remove(&mut self, at: Place<'_>) -> Meta<u64> {
        self.change(|on| {
            on.exec_drop(
                "DELETE FROM dir WHERE parent = ? AND name = ? AND vid = ?",
                (at.parent.0, at.name.as_bytes(), at.vid.0),
            )?;
            if on.affected_rows() == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            let version = next_version(on)?;
            let unmark = "DELETE FROM removing WHERE parent = ? AND name = ?";
            on.exec_drop(unmark, (at.parent.0, at.name.as_bytes()))?;
            on.exec_drop("DELETE FROM quota WHERE vid = ?", (at.vid.0,))?;
            on.exec_drop("INSERT INTO gone_vol VALUES (?, ?)", (at.vid.0, version))?;
            Ok(Ok(version))
        })
    }

    fn gone(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError> {
        let select = "SELECT vid, version FROM gone_vol WHERE version > ? ORDER BY version";
        let rows: Vec<(u64, u64)> = self.connection.read(|on| all(on, select, (since,)))?;
        Ok(rows.into_iter().map(|(vid, version)| (VolumeId(vid), version)).collect())
    }

    fn forget_gone(&mut self, vid: VolumeId) -> Result<(), MetaError> {
        self.change_always(|on| Ok(on.exec_drop("DELETE FROM gone_vol WHERE vid = ?", (vid.0,))?))
    }

    fn rename(&mut self, from: Place<'_>, parent: VolumeId, name: &str) -> Meta<()> {
        self.change(|on| {
            let is_there = |row: &DirRow| row.vid == from.vid && !row.is_removing;
            if !dir_at(on, from.parent, from.name)?.is_some_and(|row| is_there(&row)) {
                return Ok(Err(VolumeError::NotFound));
            }
            match dir_at(on, parent, name)? {
                Some(taken) if taken.vid == from.vid => return Ok(Ok(())),
                Some(taken) => return Ok(Err(VolumeError::VolumeExists { vid: taken.vid })),
                None => {}
            }
            on.exec_drop(
                "UPDATE dir SET parent = ?, name = ? WHERE parent = ? AND name = ?",
                (parent.0, name.as_bytes(), from.parent.0, from.name.as_bytes()),
            )?;
            Ok(Ok(()))
        })
    }

    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError> {
        let select = "SELECT gid, next_volume - 1 FROM vgroup ORDER BY gid";
        let rows: Vec<(u32, u64)> = self.connection.read(|on| all(on, select, ()))?;
        Ok(rows.into_iter().map(|(group, count)| (GroupId(group), count)).collect())
    }

    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError> {
        self.change_always(
            |on| Ok(on.exec_drop("INSERT INTO token VALUES (?, ?)", (hash.to_vec(), ends_ms))?),
        )
    }

    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError> {
        self.change_always(|on| {
            on.exec_drop("DELETE FROM token WHERE ends < ?", (now_ms,))?;
            on.exec_drop("DELETE FROM token WHERE hash = ?", (hash.to_vec(),))?;
            Ok(on.affected_rows() == 1)
        })
    }

    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError> {
        let select = "SELECT name, path, rights, made FROM client ORDER BY name";
        let rows: Vec<(Vec<u8>, Vec<u8>, u32, u64)> = self.connection.read(|on| all(on, select, ()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let row =
            |(name, path, rights, made_ms)| ClientRow { name: text(name), path: text(path), rights, made_ms };
        Ok(rows.into_iter().map(row).collect())
    }

    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError> {
        let add = "INSERT IGNORE INTO client VALUES (?, ?, ?, ?)";
        let ClientRow { name, path, rights, made_ms } = client;
        self.change_always(|on| {
            on.exec_drop(add, (name.as_bytes(), path.as_bytes(), rights, made_ms))?;
            Ok(on.affected_rows() == 1)
        })
    }

    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError> {
        self.change_always(|on| {
            on.exec_drop("DELETE FROM client WHERE name = ?", (name.as_bytes(),))?;
            Ok(on.affected_rows() == 1)
        })
    }

    fn note(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError> {
        let add = "INSERT INTO event (at, kind, text) VALUES (?, ?, ?)";
        self.change_always(|on| Ok(on.exec_drop(add, (now_ms, kind.as_bytes(), text.as_bytes()))?))
    }

    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError> {
        let select = "SELECT number, at, kind, text FROM event WHERE number > ? ORDER BY number DESC LIMIT ?";
        let rows: Vec<(u64, u64, String, String)> =
            self.connection.read(|on| all(on, select, (after, limit as u64)))?;
        let row = |(number, at_ms, kind, text)| EventRow { number, at_ms, kind, text };
        Ok(rows.into_iter().rev().map(row).collect())
    }
}

//! All statements of the master's tables, for both databases.
//!
//! Invariants
//! - A change is one transaction, which the database fences by the term of the leader.
//!
//! Not here: opening a database and its lease (`sqlite`, `mysql`); the times of renewal (the master's server).

use super::{
    rows::{
        INSERT_SERVER, UPDATE_SERVER, cluster, columns, dir, dir_at, keep_missed, keep_place, member,
        next_version, server, small,
    },
    sql::{LeaderFence, SqlDatabase, SqlOutcome, SqlResult, SqlRow, SqlSession, SqlValue},
};
use crate::tables::meta_store::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, LeaseHolder, LeaseOutcome, MemberList, MetaError,
    MetaOutcome, MetaStore, MissedMember, PoolConfig, QuotaRow, RAISED_VERSIONS, RAISED_VOLUMES, ServerRow,
    TaskKind, TaskRow, VolumePlace, listed, setting,
};
use SqlValue::{Bytes, Limit, Number, Text};
use copal_volume::{VolumeError, VolumeId, group::GroupId};
use std::collections::BTreeMap;

/// The master's tables in a database.
pub struct TableStore<D> {
    database: D,
    fence: Option<LeaderFence>,
}

impl<D: SqlDatabase> TableStore<D> {
    pub(super) fn of(database: D) -> TableStore<D> {
        TableStore { database, fence: None }
    }

    fn change<T>(&mut self, run: impl Fn(&mut dyn SqlSession) -> SqlOutcome<T>) -> MetaOutcome<T> {
        let fence = self.fence.ok_or(MetaError::Deposed)?;
        let outcome = self.database.transaction(Some(fence), run);
        // After a commit with an unknown outcome, the memory may differ from the tables.
        if matches!(outcome, Err(MetaError::Deposed | MetaError::Unclear(_))) {
            self.fence = None;
        }
        outcome
    }

    /// All rows of a select.
    fn all<T>(
        &mut self,
        select: &str,
        values: &[SqlValue<'_>],
        row: impl Fn(&SqlRow<'_>) -> SqlResult<T>,
    ) -> Result<Vec<T>, MetaError> {
        self.database.read(|on| on.all(select, values, &row))
    }

    /// A change without errors of the user.
    fn change_always<T>(
        &mut self,
        run: impl Fn(&mut dyn SqlSession) -> SqlResult<T>,
    ) -> Result<T, MetaError> {
        always(self.change(|on| Ok(Ok(run(on)?))))
    }

    /// A change of one statement; the number of rows that it changed.
    fn change_rows(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<u64, MetaError> {
        self.change_always(|on| on.execute(sql, values))
    }
}

fn always<T>(outcome: MetaOutcome<T>) -> Result<T, MetaError> {
    outcome?.map_err(|error| MetaError::Failed(error.to_string()))
}

impl<D: SqlDatabase> MetaStore for TableStore<D> {
    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError> {
        self.database.read(|on| on.first(D::DIALECT.select_cluster, &[], cluster))
    }

    fn create_cluster(&mut self, uuid: [u8; 16], pool: PoolConfig) -> Result<(), MetaError> {
        always(self.database.transaction(None, |on| {
            let (replicas, min_ack) = (small(pool.replicas.into()), small(pool.min_ack.into()));
            on.execute(D::DIALECT.insert_cluster, &[Bytes(&uuid), replicas, min_ack, small(pool.groups)])?;
            if let Some(insert) = D::DIALECT.insert_leader {
                on.execute(insert, &[])?;
            }
            let groups: Vec<u32> = (1..=pool.groups).collect();
            for some in groups.chunks(1000) {
                let rows: Vec<String> = some.iter().map(|group| format!("({group}, 0, 1)")).collect();
                on.execute(&format!("INSERT INTO vgroup VALUES {}", rows.join(", ")), &[])?;
            }
            Ok(Ok(()))
        }))
    }

    fn lead(&mut self, holder: LeaseHolder) -> Result<LeaseOutcome, MetaError> {
        let lead = self.database.lead(holder)?;
        self.fence = match lead {
            LeaseOutcome::Mine { term } => Some((holder, term)),
            LeaseOutcome::Theirs { .. } => None,
        };
        Ok(lead)
    }

    fn renew(&mut self) -> Result<bool, MetaError> {
        let Some(fence) = self.fence else { return Ok(false) };
        let is_renewed = self.database.renew(fence)?;
        self.fence = is_renewed.then_some(fence);
        Ok(is_renewed)
    }

    fn has_lease(&self) -> bool {
        D::IS_SHARED
    }

    fn raise_counters(&mut self, version: u64, term: u64) -> Result<u64, MetaError> {
        let fence @ (holder, _) = self.fence.ok_or(MetaError::Deposed)?;
        let (greatest, term_table) = (D::DIALECT.greatest, D::DIALECT.term_table);
        let raise_version =
            format!("UPDATE cluster SET map_version = {greatest}(map_version, ?) + ? WHERE id = 1");
        let raise_term = format!("UPDATE {term_table} SET term = {greatest}(term, ?) + ? WHERE id = 1");
        let select_term = format!("SELECT term FROM {term_table} WHERE id = 1");
        let outcome = self.database.transaction(Some(fence), |on| {
            on.execute(&raise_version, &[Number(version), Number(RAISED_VERSIONS)])?;
            // The fence of this transaction has checked the old term; later ones check the new term.
            on.execute(&raise_term, &[Number(term), Number(RAISED_VERSIONS)])?;
            on.execute("UPDATE vgroup SET next_volume = next_volume + ?", &[Number(RAISED_VOLUMES)])?;
            on.execute("DELETE FROM token", &[])?;
            on.execute("DELETE FROM setting WHERE name = ?", &[Text(setting::STALE_TABLES)])?;
            let raised = on.first(&select_term, &[], |row| row.number(0))?;
            Ok(Ok(raised.ok_or_else(|| on.missing("it holds no cluster".to_owned()))?))
        });
        // A failed commit over a network may be durable; then only the tables have the new term.
        if D::IS_SHARED {
            self.fence = None;
        }
        let raised = always(outcome)?;
        self.fence = Some((holder, raised));
        Ok(raised)
    }

    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError> {
        let select = "SELECT name, value FROM setting";
        let rows = self.all(select, &[], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.into_iter().collect())
    }

    fn set_setting(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError> {
        match value {
            Some(value) => self.change_rows("REPLACE INTO setting VALUES (?, ?)", &[Text(name), Text(value)]),
            None => self.change_rows("DELETE FROM setting WHERE name = ?", &[Text(name)]),
        }
        .map(drop)
    }

    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError> {
        let select = "SELECT kind, gid, a, b FROM task ORDER BY kind, gid";
        self.all(select, &[], |row| {
            let kind: String = row.get(0)?;
            let unknown = || row.unknown(0, 0, format!("a task of it is {kind:?}, which is unknown"));
            TaskRow::of_columns(&kind, row.get(1)?, row.get(2)?, row.get(3)?).ok_or_else(unknown)
        })
    }

    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError> {
        self.change_always(|on| {
            for (kind, group) in forget {
                let forget = "DELETE FROM task WHERE kind = ? AND gid = ?";
                on.execute(forget, &[Text(kind.word()), small(group.0)])?;
            }
            for task in keep {
                let (kind, group, a, b) = task.columns();
                let keep = "REPLACE INTO task VALUES (?, ?, ?, ?)";
                on.execute(keep, &[Text(kind), small(group), small(a), small(b)])?;
            }
            Ok(())
        })
    }

    fn masters(&mut self) -> Result<Vec<String>, MetaError> {
        self.all("SELECT address FROM master ORDER BY number", &[], |row| row.get(0))
    }

    fn add_master(&mut self, address: &str) -> Result<(), MetaError> {
        let add = format!("{} INTO master (address) VALUES (?)", D::DIALECT.insert_new);
        self.change_rows(&add, &[Text(address)]).map(drop)
    }

    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError> {
        let select = "SELECT server.*, COALESCE(place.zone, ''), COALESCE(place.rack, '') FROM server
            LEFT JOIN place ON place.disk = server.disk ORDER BY server.disk";
        self.all(select, &[], server)
    }

    fn add_server(&mut self, new: &ServerRow) -> Result<(u32, u64), MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            on.execute(INSERT_SERVER, &columns(new, version, Bytes(&new.server_uuid)))?;
            let select = "SELECT disk FROM server WHERE server_uuid = ?";
            let disk = on.first(select, &[Bytes(&new.server_uuid)], |row| row.get(0))?;
            let disk = disk.ok_or_else(|| on.missing("it gave the server no number".to_owned()))?;
            keep_place(on, disk, new)?;
            Ok((disk, version))
        })
    }

    fn change_server(&mut self, changed: &ServerRow, missed: &[MissedMember]) -> Result<u64, MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            on.execute(UPDATE_SERVER, &columns(changed, version, small(changed.disk)))?;
            keep_place(on, changed.disk, changed)?;
            keep_missed(on, missed, version)?;
            Ok(version)
        })
    }

    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError> {
        self.change_always(|on| {
            on.execute("DELETE FROM place WHERE disk = ?", &[small(disk)])?;
            on.execute("DELETE FROM server WHERE disk = ?", &[small(disk)])?;
            Ok(())
        })
    }

    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError> {
        let select = "SELECT vgroup.gid, vgroup.version, member.disk, member.kind FROM vgroup
            JOIN member ON member.gid = vgroup.gid ORDER BY vgroup.gid, member.disk";
        let mut groups: Vec<GroupRow> = Vec::new();
        for (group, version, member) in self.all(select, &[], member)? {
            match groups.last_mut().filter(|last| last.group == group) {
                Some(last) => last.members.push(member),
                None => groups.push(GroupRow { group, version, members: vec![member] }),
            }
        }
        Ok(groups)
    }

    fn change_groups(
        &mut self,
        groups: &[(GroupId, MemberList)],
        missed: &[MissedMember],
    ) -> Result<u64, MetaError> {
        self.change_always(|on| {
            let version = next_version(on)?;
            for (group, members) in groups {
                let gid = small(group.0);
                on.execute("UPDATE vgroup SET version = ? WHERE gid = ?", &[Number(version), gid])?;
                on.execute("DELETE FROM member WHERE gid = ?", &[gid])?;
                for (disk, kind) in members {
                    let add = "INSERT INTO member VALUES (?, ?, ?)";
                    on.execute(add, &[gid, small(*disk), Text(kind.word())])?;
                }
                let forget = "DELETE FROM missed WHERE gid = ? AND disk NOT IN (SELECT disk FROM member WHERE gid = ?)";
                on.execute(forget, &[gid, gid])?;
            }
            keep_missed(on, missed, version)?;
            Ok(version)
        })
    }

    fn forget_missed(
        &mut self,
        disk: u32,
        groups: &[GroupId],
        missed: &[MissedMember],
        version: u64,
    ) -> Result<(), MetaError> {
        // MySQL has no empty list.
        if groups.is_empty() {
            return Ok(());
        }
        let forget = format!("DELETE FROM missed WHERE disk = {disk} AND gid IN ({})", listed(groups));
        self.change_always(|on| {
            on.execute(&forget, &[])?;
            keep_missed(on, missed, version)
        })
    }

    fn missed_members(&mut self) -> Result<Vec<(MissedMember, u64)>, MetaError> {
        let select = "SELECT gid, disk, version FROM missed ORDER BY gid, disk";
        self.all(select, &[], |row| Ok(((GroupId(row.get(0)?), row.get(1)?), row.number(2)?)))
    }

    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError> {
        self.database.read(|on| {
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

    fn mkdir(
        &mut self,
        parent: VolumeId,
        name: &str,
        group: GroupId,
        quota: Option<u64>,
    ) -> MetaOutcome<VolumeId> {
        let select = format!("SELECT next_volume FROM vgroup WHERE gid = ?{}", D::DIALECT.for_update);
        self.change(|on| {
            if let Some(taken) = dir_at(on, parent, name)? {
                return Ok(Err(VolumeError::VolumeExists { vid: taken.vid }));
            }
            let next = on.first(&select, &[small(group.0)], |row| row.number(0))?;
            let next = next.ok_or_else(|| on.missing(format!("it knows no group {}", group.0)))?;
            on.execute("UPDATE vgroup SET next_volume = next_volume + 1 WHERE gid = ?", &[small(group.0)])?;
            let vid = VolumeId::in_group(group, next);
            let add = "INSERT INTO dir VALUES (?, ?, ?, 0)";
            on.execute(add, &[Number(parent.0), Bytes(name.as_bytes()), Number(vid.0)])?;
            if let Some(quota) = quota {
                let version = next_version(on)?;
                let add = "INSERT INTO quota VALUES (?, ?, ?)";
                on.execute(add, &[Number(vid.0), Limit(quota), Number(version)])?;
            }
            Ok(Ok(vid))
        })
    }

    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError> {
        let select = "SELECT vid, bytes, version FROM quota WHERE version > ? ORDER BY version";
        self.all(select, &[Number(since)], |row| {
            Ok(QuotaRow { vid: VolumeId(row.number(0)?), bytes: row.number(1)?, version: row.number(2)? })
        })
    }

    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError> {
        let select = "SELECT name, parent FROM dir WHERE vid = ?";
        let place = |row: &SqlRow<'_>| Ok((VolumeId(row.number(1)?), row.name(0)?));
        self.database.read(|on| on.first(select, &[Number(vid.0)], place))
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
        let after = Bytes(after.unwrap_or_default().as_bytes());
        self.all(select, &[Number(parent.0), after, Limit(limit as u64)], dir)
    }

    fn mark_removing(&mut self, at: VolumePlace<'_>, is_removing: bool) -> MetaOutcome<()> {
        let (parent, name, vid) = place(at);
        let mark = match is_removing {
            true => format!("{} INTO removing VALUES (?, ?)", D::DIALECT.insert_new),
            false => "DELETE FROM removing WHERE parent = ? AND name = ?".to_owned(),
        };
        self.change(|on| {
            let below = on.first("SELECT vid FROM dir WHERE parent = ? LIMIT 1", &[vid], |_| Ok(()))?;
            if is_removing && below.is_some() {
                return Ok(Err(VolumeError::NotEmpty));
            }
            let update = "UPDATE dir SET removing = ? WHERE parent = ? AND name = ? AND vid = ?";
            if on.execute(update, &[Number(is_removing.into()), parent, name, vid])? == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            on.execute(&mark, &[parent, name])?;
            Ok(Ok(()))
        })
    }

    fn unmark_all(&mut self) -> Result<u64, MetaError> {
        self.change_always(|on| {
            let marked = on.execute(D::DIALECT.unmark_dir, &[])?;
            on.execute("DELETE FROM removing", &[])?;
            Ok(marked)
        })
    }

    fn remove(&mut self, at: VolumePlace<'_>) -> MetaOutcome<u64> {
        let (parent, name, vid) = place(at);
        self.change(|on| {
            let remove = "DELETE FROM dir WHERE parent = ? AND name = ? AND vid = ?";
            if on.execute(remove, &[parent, name, vid])? == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            let version = next_version(on)?;
            on.execute("DELETE FROM removing WHERE parent = ? AND name = ?", &[parent, name])?;
            on.execute("DELETE FROM quota WHERE vid = ?", &[vid])?;
            on.execute("INSERT INTO gone_vol VALUES (?, ?)", &[vid, Number(version)])?;
            Ok(Ok(version))
        })
    }

    fn removed_volumes(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError> {
        let select = "SELECT vid, version FROM gone_vol WHERE version > ? ORDER BY version";
        self.all(select, &[Number(since)], |row| Ok((VolumeId(row.number(0)?), row.number(1)?)))
    }

    fn forget_removed_volume(&mut self, vid: VolumeId) -> Result<(), MetaError> {
        self.change_rows("DELETE FROM gone_vol WHERE vid = ?", &[Number(vid.0)]).map(drop)
    }

    fn rename(&mut self, from: VolumePlace<'_>, parent: VolumeId, name: &str) -> MetaOutcome<()> {
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
            let (old_parent, old_name, _) = place(from);
            let update = "UPDATE dir SET parent = ?, name = ? WHERE parent = ? AND name = ?";
            on.execute(update, &[Number(parent.0), Bytes(name.as_bytes()), old_parent, old_name])?;
            Ok(Ok(()))
        })
    }

    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError> {
        let select = "SELECT gid, next_volume - 1 FROM vgroup ORDER BY gid";
        self.all(select, &[], |row| Ok((GroupId(row.get(0)?), row.number(1)?)))
    }

    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError> {
        self.change_rows("INSERT INTO token VALUES (?, ?)", &[Bytes(&hash), Number(ends_ms)]).map(drop)
    }

    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError> {
        self.change_always(|on| {
            on.execute("DELETE FROM token WHERE ends < ?", &[Number(now_ms)])?;
            Ok(on.execute("DELETE FROM token WHERE hash = ?", &[Bytes(&hash)])? == 1)
        })
    }

    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError> {
        let select = "SELECT name, path, rights, made FROM client ORDER BY name";
        self.all(select, &[], |row| {
            let (name, path) = (row.get(0)?, row.get(1)?);
            Ok(ClientRow { name, path, rights: row.get(2)?, made_ms: row.number(3)? })
        })
    }

    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError> {
        let ClientRow { name, path, rights, made_ms } = client;
        let add = format!("{} INTO client VALUES (?, ?, ?, ?)", D::DIALECT.insert_new);
        Ok(self.change_rows(&add, &[Text(name), Text(path), small(*rights), Number(*made_ms)])? == 1)
    }

    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError> {
        Ok(self.change_rows("DELETE FROM client WHERE name = ?", &[Text(name)])? == 1)
    }

    fn add_event(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError> {
        let add = "INSERT INTO event (at, kind, text) VALUES (?, ?, ?)";
        self.change_rows(add, &[Number(now_ms), Text(kind), Text(text)]).map(drop)
    }

    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError> {
        let select = "SELECT number, at, kind, text FROM event WHERE number > ? ORDER BY number DESC LIMIT ?";
        let mut events = self.all(select, &[Number(after), Limit(limit as u64)], |row| {
            let (number, at_ms) = (row.number(0)?, row.number(1)?);
            Ok(EventRow { number, at_ms, kind: row.get(2)?, text: row.get(3)? })
        })?;
        events.reverse();
        Ok(events)
    }
}

/// Columns of a place: parent, name, vid.
fn place(at: VolumePlace<'_>) -> (SqlValue<'static>, SqlValue<'_>, SqlValue<'static>) {
    (Number(at.parent.0), Bytes(at.name.as_bytes()), Number(at.vid.0))
}

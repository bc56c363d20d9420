//! Entries of other members' journals and lists of files: search for those that this member lacks, and their
//! translation from and to messages and operations.
//!
//! Design: docs/design/cluster.md#rules VOL-13
//! Not here: the copies (`group_resync`, `roll_forward`), the serving of snapshots (`donor`), the bytes of
//! files (`fetch`).

use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use copal_data::{GroupOperation, JournalEntry, SnapshotEntry};
use copal_proto::{id, messages, of_id};
use copal_volume::{FileId, OpId, VolumeId, group::GroupId};

/// The operations of another member that this member's journal lacks. If this member is covered, operations
/// below its stable point do not count: it has them.
pub(super) async fn missing_operations(
    host: &ReplicaHost,
    group: GroupId,
    entries: Vec<JournalEntry>,
) -> Result<Vec<JournalEntry>, Status> {
    let store = host.store.clone();
    blocking(move || {
        let mut missing = Vec::new();
        for entry in entries {
            if store.lacks_operation(group, &entry)? {
                missing.push(entry);
            }
        }
        Ok(missing)
    })
    .await
}

/// The files of a page of a snapshot that this member has neither live nor deleted.
pub(super) async fn missing_files(
    host: &ReplicaHost,
    entries: Vec<messages::SyncEntry>,
) -> Result<Vec<SnapshotEntry>, Status> {
    let store = host.store.clone();
    blocking(move || {
        let mut missing = Vec::new();
        for entry in entries {
            let entry = SnapshotEntry {
                key: entry.key,
                vid: VolumeId(entry.volume),
                name: entry.name,
                fid: FileId(id(entry.fid)),
                op: OpId(id(entry.op)),
            };
            if store.lacks_file(&entry)? {
                missing.push(entry);
            }
        }
        Ok(missing)
    })
    .await
}

/// A delete of `fid`: copied from another member, or made by this one to settle a name with two files.
pub(super) fn copied_delete(entry: &JournalEntry, fid: FileId, op: OpId) -> GroupOperation {
    GroupOperation::CopyDelete { vid: entry.vid, name: entry.name.clone(), fid, op }
}

/// A create whose file is deleted: it is journalled without the file, so that the journals of all members are
/// equal.
pub(super) fn create_without_file(entry: &JournalEntry) -> GroupOperation {
    GroupOperation::RecordCreate { vid: entry.vid, name: entry.name.clone(), fid: entry.fid, op: entry.op }
}

/// A page of a journal, read with `limit`. A full page says that more may follow.
pub(super) fn journal_message(entries: Vec<JournalEntry>, limit: usize) -> messages::JournalRecords {
    let more = entries.len() == limit;
    let record = |entry: JournalEntry| messages::JournalRecord {
        key: entry.key,
        op: Some(of_id(entry.op.0)),
        create: entry.is_create,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
    };
    messages::JournalRecords { records: entries.into_iter().map(record).collect(), more }
}

/// The journal entry of a message.
pub(super) fn entry_of(record: messages::JournalRecord) -> JournalEntry {
    JournalEntry {
        key: record.key,
        op: OpId(id(record.op)),
        is_create: record.create,
        vid: VolumeId(record.volume),
        name: record.name,
        fid: FileId(id(record.fid)),
    }
}

//! Opening of a store: identity, clock marks, and freeing the remains of a crash.

use super::tree;
use super::{LocalCore, LocalStore};
use crate::error::{WriteFence, corrupt, of_engine, read_only};
use crate::format::{
    GROUP_KEY_LEN, IDENTITY_KEY, MARK_PREFIX, NEXT_VID_KEY, StoreIdentity, VolumeRow, VolumeState, group_row,
    number_row, parse_group_row, parse_identity, parse_mark,
};
use crate::keys::{self, GROUP};
use crate::keyspaces::DataKeyspaces;
use crate::name_locks::NameLocks;
use crate::operation_clock::OperationClock;
use crate::second_copies;
use copal_kv::{Durability, Store};
use copal_volume::{Clock, FileId, SystemClock, VolumeError, VolumeId, random_incarnation};
use parking_lot::Mutex;
use std::sync::Arc;

/// Keys deleted in one batch while freeing a dead upload.
const SWEEP_BATCH: usize = 1000;
/// Epoch of the only view of an embedded group.
pub(crate) const EPOCH: u64 = 1;

/// External inputs of a store; the default is the machine's clock and randomness.
#[derive(Clone, Default)]
pub struct LocalOptions {
    /// Wall clock; `None`: the machine's.
    pub clock: Option<Arc<dyn Clock>>,
    /// Incarnation in file ids; `None`: random. It must never repeat for one store.
    pub incarnation: Option<u64>,
}

impl std::fmt::Debug for LocalOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalOptions").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl LocalStore {
    /// As [`LocalStore::open`], with clock and incarnation from the caller.
    /// # Errors
    /// As [`LocalStore::open`].
    pub fn open_with(kv: Store, options: LocalOptions) -> Result<LocalStore, VolumeError> {
        let clock = options.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let incarnation = match options.incarnation {
            Some(incarnation) => incarnation,
            None => random_incarnation().map_err(no_randomness)?,
        };
        let spaces = DataKeyspaces::open(&kv)?;
        check_identity(&kv, &spaces, &*clock)?;
        let marks = marks(&spaces)?;
        let inner = LocalCore {
            times: OperationClock::new(clock, incarnation, marks),
            name_locks: NameLocks::default(),
            tree: Mutex::new(()),
            copied_volumes: Mutex::default(),
            fence: WriteFence::default(),
            kv,
            spaces,
        };
        match second_copies::fill(&inner.kv, &inner.spaces) {
            Err(error) if error != read_only() => {
                tracing::warn!(%error, "rows that describe the store have no second copy for now");
            }
            _ => {}
        }
        match sweep(&inner) {
            Err(error) if error == read_only() => {}
            // Files are readable nevertheless; `check` reports the damage.
            Err(error) if error.is_corruption() => {
                tracing::warn!(%error, "the remains of an interrupted run were not freed");
            }
            swept => swept?,
        }
        Ok(LocalStore { inner: Arc::new(inner) })
    }
}

fn no_randomness(error: impl std::fmt::Display) -> VolumeError {
    VolumeError::Failed { reason: format!("the operating system gives no randomness: {error}") }
}

/// The identity of the store.
pub(super) fn identity(spaces: &DataKeyspaces) -> Result<[u8; 16], VolumeError> {
    let row = spaces
        .node
        .get(IDENTITY_KEY)
        .map_err(|e| of_engine(&e))?
        .ok_or_else(|| corrupt("the identity of the store is missing"))?;
    match parse_identity(&row) {
        Ok(identity) => Ok(identity.uuid),
        Err(error) if error.is_damage() => Err(corrupt(format!("the identity of the store: {error}"))),
        Err(error) => Err(VolumeError::Failed { reason: error.to_string() }),
    }
}

/// Checks the identity of the store; writes it for a new store.
fn check_identity(kv: &Store, spaces: &DataKeyspaces, clock: &dyn Clock) -> Result<(), VolumeError> {
    let group_key: [u8; GROUP_KEY_LEN] = GROUP.to_be_bytes();
    let known = spaces.node.get(IDENTITY_KEY).map_err(|e| of_engine(&e))?;
    if known.is_some() {
        identity(spaces)?;
        let group = spaces
            .groups
            .get(&group_key)
            .map_err(|e| of_engine(&e))?
            .ok_or_else(|| corrupt("the row of the group is missing"))?;
        let epoch = parse_group_row(&group_key, &group)
            .map_err(|error| corrupt(format!("the row of the group: {error}")))?;
        if epoch != EPOCH {
            return Err(VolumeError::Failed {
                reason: format!("the store is at epoch {epoch}: it belongs to a cluster"),
            });
        }
        return Ok(());
    }
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&random_incarnation().map_err(no_randomness)?.to_le_bytes());
    uuid[8..].copy_from_slice(&random_incarnation().map_err(no_randomness)?.to_le_bytes());
    let created_ms = clock.now_ms();
    let identity = StoreIdentity { uuid, created_ms };
    let mut batch = kv.batch();
    batch.put(&spaces.node, IDENTITY_KEY, identity.row());
    // A rescued store has volumes, but may have no identity.
    let next = spaces.node.get(NEXT_VID_KEY).map_err(|e| of_engine(&e))?;
    if next.is_none() {
        batch.put(&spaces.node, NEXT_VID_KEY, number_row(NEXT_VID_KEY, 1));
    }
    batch.put(&spaces.groups, &group_key, group_row(&group_key, EPOCH));
    batch.commit(Durability::Device).map_err(|e| of_engine(&e))
}

/// Times of all clock marks. A damaged mark is ignored: the other marks and the clock remain.
fn marks(spaces: &DataKeyspaces) -> Result<Vec<u64>, VolumeError> {
    let mut marks = Vec::new();
    for row in spaces.node.prefix(MARK_PREFIX) {
        let (key, row) = row.map_err(|e| of_engine(&e))?;
        match parse_mark(&key, &row) {
            Ok(mark_ms) => marks.push(mark_ms),
            Err(error) => tracing::warn!(%error, "a clock mark is damaged and was ignored"),
        }
    }
    Ok(marks)
}

/// Frees dead uploads and finishes removals. Damaged rows stay; `check` reports them.
fn sweep(core: &LocalCore) -> Result<(), VolumeError> {
    let mut uploads = Vec::new();
    for row in core.spaces.uploads.prefix(&[]).keys_only() {
        let (key, _) = row.map_err(|e| of_engine(&e))?;
        let Some((vid, rest)) = keys::split(&key) else {
            continue;
        };
        if let Some(fid) = keys::split_upload(rest) {
            uploads.push((vid, fid));
        }
    }
    for &(vid, fid) in &uploads {
        free_upload(core, vid, fid)?;
    }
    let mut removing = Vec::new();
    for row in core.spaces.volumes.prefix(&[]) {
        let (key, row) = row.map_err(|e| of_engine(&e))?;
        let (Some((vid, [])), Ok(row)) = (keys::split(&key), VolumeRow::parse(&key, &row)) else {
            continue;
        };
        if row.state == VolumeState::Removing {
            removing.push(vid);
        }
        if row.spare_copies {
            core.copied_volumes.lock().insert(vid);
        }
    }
    for &vid in &removing {
        tree::purge(core, vid)?;
    }
    if !uploads.is_empty() || !removing.is_empty() {
        tracing::info!(
            uploads = uploads.len(),
            volumes = removing.len(),
            "freed the remains of an interrupted run"
        );
    }
    Ok(())
}

/// Deletes the pieces of a dead upload, then its row.
fn free_upload(core: &LocalCore, vid: VolumeId, fid: FileId) -> Result<(), VolumeError> {
    let prefix = keys::upload(vid, fid);
    for space in [&core.spaces.extents, &core.spaces.sums] {
        let mut batch = core.kv.batch();
        let mut pending = 0;
        for row in space.prefix(&prefix).keys_only() {
            let (key, _) = row.map_err(|e| of_engine(&e))?;
            batch.delete(space, &key);
            pending += 1;
            if pending == SWEEP_BATCH {
                core.commit_deferred(std::mem::replace(&mut batch, core.kv.batch()))?;
                pending = 0;
            }
        }
        if pending > 0 {
            core.commit_deferred(batch)?;
        }
    }
    let mut batch = core.kv.batch();
    batch.delete(&core.spaces.uploads, &prefix);
    core.commit_deferred(batch)
}

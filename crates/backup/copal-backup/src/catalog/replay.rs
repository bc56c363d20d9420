//! Replays logs from the newest checkpoint, and caches the result.
//!
//! A log has a checkpoint every few dozen records, so opening it reads the checkpoint and a short tail. A
//! handle that has replayed a log reads only newer records.
//!
//! Invariants
//! - A checkpoint is durable before anything older is removed. Only records behind the previous checkpoint
//!   are removed, which was read back before: of any two checkpoints one may be damaged (BAK-14).
//! - Record 0 of the domain's log stays: it marks the repository as complete.
//! - A reader that finds a checkpoint newer than those at its start begins anew, since records may have been
//!   removed while it read.
//! - A writer whose record has a number below such a checkpoint also begins anew. The earlier record of that
//!   number may have been removed, and the new one has no effect.
//!
//! Not here: encoding of checkpoints (`checkpoint`), records and their files (`log`).

use super::checkpoint::{self, MAX_CHECKPOINT_BYTES};
use super::files::{CatalogFiles, PAGE};
use super::fold::{LogEntry, LogState};
use super::log::{LogName, damaged_record, number_of, read_each, tail};
use super::record::Record;
use crate::keys::SignatureState;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileInfo, FilePage, ReadOptions, VolumeError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

/// Least records between two checkpoints of a log. A checkpoint with many items waits for a sixteenth of
/// their number.
const INTERVAL: u64 = 32;
/// Items (VMs, snapshots, sessions) in cached states; beyond this the cache is cleared.
const KEPT_ITEMS: usize = 1 << 16;

/// A log, replayed to its end.
#[derive(Clone, Default)]
pub(crate) struct ReplayedLog<S> {
    state: S,
    /// Number of the checkpoint that it began with, or that was written since; 0: none.
    base: u64,
    /// Number of the newest checkpoint, readable or not; 0: none.
    newest: u64,
}

impl<S> Deref for ReplayedLog<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S: LogState> ReplayedLog<S> {
    /// Whether a readable checkpoint of that number exists.
    pub(super) fn has_checkpoint_at(&self, number: u64) -> bool {
        self.base == number && number > 0
    }

    fn is_due(&self) -> bool {
        self.state.next_number() - self.base >= INTERVAL.max(self.state.items() as u64 / 16)
    }
}

/// Cached replays of a handle. Memory is bounded by the items of their states.
pub(crate) struct ReplayCache<S>(Mutex<HashMap<LogName, Arc<ReplayedLog<S>>>>);

impl<S> Default for ReplayCache<S> {
    fn default() -> ReplayCache<S> {
        ReplayCache(Mutex::default())
    }
}

impl<S: LogState> ReplayCache<S> {
    pub(super) fn of(&self, log: LogName) -> Option<Arc<ReplayedLog<S>>> {
        self.0.lock().get(&log).cloned()
    }

    fn keep(&self, log: LogName, replayed: &Arc<ReplayedLog<S>>) {
        let mut kept = self.0.lock();
        // An empty state takes memory too.
        let items = |replayed: &Arc<ReplayedLog<S>>| 8 + replayed.items();
        if !kept.contains_key(&log) && kept.values().map(items).sum::<usize>() > KEPT_ITEMS {
            kept.clear();
        }
        kept.insert(log, Arc::clone(replayed));
    }

    fn forget(&self, log: LogName) {
        self.0.lock().remove(&log);
    }

    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }
}

/// Replays a log to its end, beginning with the cached state.
/// # Errors
/// `Damaged` if a record is damaged or missing, and no checkpoint covers it.
pub(super) fn replay<S: LogState>(
    files: &CatalogFiles,
    replays: &ReplayCache<S>,
    log: LogName,
) -> Result<Arc<ReplayedLog<S>>> {
    let mut known = replays.of(log);
    loop {
        let (start, damage) = match known.take() {
            Some(known) => (known, None),
            None => newest_checkpoint(files, log)?,
        };
        let tail = tail(files, log, start.next_number());
        if has_checkpoint_behind(files, log, start.newest)? {
            continue;
        }
        // If records are missing behind an older checkpoint, the cause is the newer one that cannot be
        // read.
        let tail = tail.map_err(|error| match damage {
            Some(damage) if error.is_corruption() => damage,
            _ => error,
        })?;
        let mut replayed = start;
        if !tail.is_empty() {
            let state = &mut Arc::make_mut(&mut replayed).state;
            tail.iter().for_each(|entry| state.apply(entry));
        }
        replays.keep(log, &replayed);
        return Ok(replayed);
    }
}

/// The newest readable checkpoint, and the damage of a newer one.
fn newest_checkpoint<S: LogState>(
    files: &CatalogFiles,
    log: LogName,
) -> Result<(Arc<ReplayedLog<S>>, Option<Error>)> {
    let mut damage = None;
    let mut replayed = ReplayedLog::<S>::default();
    for (number, info) in checkpoints(files, log)?.into_iter().rev() {
        replayed.newest = replayed.newest.max(number);
        match checkpoint(files, log, number, &info) {
            Ok(Some(state)) => {
                replayed.state = state;
                replayed.base = number;
                break;
            }
            Ok(None) => {}
            Err(error) if error.is_corruption() => {
                tracing::warn!(%error, "damaged checkpoint; replaying from an older one");
                damage = damage.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((Arc::new(replayed), damage))
}

/// Numbers of the checkpoints of a log, ascending.
fn checkpoints(files: &CatalogFiles, log: LogName) -> Result<Vec<(u64, FileInfo)>> {
    let prefix = log.checkpoint_prefix();
    let mut found = Vec::new();
    // A replay from an older checkpoint could miss removed records; the listing is strict.
    files.for_each(&prefix, |name, info| {
        found.push((number_of(&prefix, name)?, info.clone()));
        Ok(())
    })?;
    Ok(found)
}

/// The checkpoint of that number, unless it was removed.
fn checkpoint<S: LogState>(
    files: &CatalogFiles,
    log: LogName,
    number: u64,
    info: &FileInfo,
) -> Result<Option<S>> {
    let place = log.checkpoint_place(number);
    let damaged = |detail: String| damaged_checkpoint(&place, detail);
    if info.size > MAX_CHECKPOINT_BYTES {
        return Err(damaged(format!("it has {} bytes", info.size)));
    }
    match files.get(place.as_bytes(), info.size) {
        Ok(bytes) => checkpoint::decode(&bytes, &place, number, files.keys()).map(Some).map_err(damaged),
        Err(VolumeError::NotFound) => Ok(None),
        Err(VolumeError::Corrupt { what }) => Err(damaged(what)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a log has a checkpoint of a higher number. Where checkpoints are signed, an unsigned one is
/// ignored: otherwise anyone able to write a file could make all records count as covered.
pub(crate) fn has_checkpoint_behind(files: &CatalogFiles, log: LogName, number: u64) -> Result<bool> {
    let prefix = log.checkpoint_prefix();
    let mut after = Bytes::from(log.checkpoint_place(number));
    loop {
        // An absent checkpoint means that no record behind the read ones was removed, so the listing is
        // strict.
        let FilePage { files: found, is_last } = files.strict_page(&prefix, Some(&after))?;
        let Some((last, _)) = found.last() else {
            return Ok(false);
        };
        if files.keys().signatures() != SignatureState::Needed {
            return Ok(true);
        }
        after = last.clone();
        for (name, info) in &found {
            if is_checkpoint(files, name, info.size)? {
                return Ok(true);
            }
        }
        if is_last {
            return Ok(false);
        }
    }
}

/// Whether the file of that name is a valid checkpoint. A missing file was removed in favour of a newer
/// checkpoint.
pub(super) fn is_checkpoint(files: &CatalogFiles, name: &Bytes, size: u64) -> Result<bool> {
    if size > MAX_CHECKPOINT_BYTES {
        return Ok(false);
    }
    let place = String::from_utf8_lossy(name);
    match files.get(name, size) {
        Ok(bytes) => Ok(checkpoint::counts(&bytes, &place, files.keys())),
        Err(VolumeError::NotFound) => Ok(true),
        Err(VolumeError::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Adds this process's own record to the cached state, and writes a checkpoint if one is due by it. Without a state up to
/// the record, the log is read.
pub(super) fn note_append<S: LogState>(
    files: &CatalogFiles,
    replays: &ReplayCache<S>,
    log: LogName,
    entry: Option<LogEntry>,
) {
    let known = replays.of(log).zip(entry).filter(|(known, entry)| known.next_number() == entry.number);
    if let Some((mut known, entry)) = known {
        Arc::make_mut(&mut known).state.apply(&entry);
        replays.keep(log, &known);
        if !known.is_due() {
            return;
        }
    }
    write_due_checkpoint(files, replays, log);
}

/// Writes a checkpoint if one is due. A failure changes nothing for the caller: the next reader reads
/// more, and the next append tries again.
pub(super) fn write_due_checkpoint<S: LogState>(
    files: &CatalogFiles,
    replays: &ReplayCache<S>,
    log: LogName,
) {
    if !files.keys().can_sign() {
        return;
    }
    let outcome = replay(files, replays, log).and_then(|replayed| {
        if replayed.is_due() {
            write_checkpoint(files, replays, log, &replayed)?;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        replays.forget(log);
        tracing::warn!(%error, "no checkpoint of a log could be written");
    }
}

/// Writes a checkpoint; `false`: none was written, or a file of that name exists.
pub(super) fn write_checkpoint<S: LogState>(
    files: &CatalogFiles,
    replays: &ReplayCache<S>,
    log: LogName,
    replayed: &ReplayedLog<S>,
) -> Result<bool> {
    let number = replayed.next_number();
    let place = log.checkpoint_place(number);
    let body = checkpoint::encode(&replayed.state, &place, files.keys());
    if body.len() as u64 > MAX_CHECKPOINT_BYTES {
        return Ok(false);
    }
    match files.put(place.as_bytes(), Bytes::from(body)) {
        Ok(_) => {}
        // Another process wrote it, or it exists and cannot be read: the next record leads to another
        // one.
        Err(VolumeError::Exists { .. }) => return Ok(false),
        Err(VolumeError::Unknown { fid }) => {
            if !files.settled(fid)? {
                return Ok(false);
            }
        }
        Err(error) => return Err(error.into()),
    }
    let written =
        ReplayedLog { state: replayed.state.clone(), base: number, newest: number.max(replayed.newest) };
    replays.keep(log, &Arc::new(written));
    drop_covered::<S>(files, log, number)?;
    Ok(true)
}

/// Deletes all files behind the newest readable checkpoint below `number`.
fn drop_covered<S: LogState>(files: &CatalogFiles, log: LogName, number: u64) -> Result<()> {
    let mut checkpoints = checkpoints(files, log)?;
    checkpoints.retain(|(older, _)| *older < number);
    let mut kept = None;
    for (older, info) in checkpoints.iter().rev() {
        match checkpoint::<S>(files, log, *older, info) {
            Ok(Some(_)) => {
                kept = Some(*older);
                break;
            }
            Ok(None) => {}
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
    }
    let Some(kept) = kept else {
        return Ok(());
    };
    checkpoints.retain(|(older, _)| *older < kept);
    // Checkpoints first: one whose records are missing would be useless.
    let named = |(older, info): (u64, FileInfo)| (Bytes::from(log.checkpoint_place(older)), info.fid);
    files.delete_unneeded(&checkpoints.into_iter().map(named).collect::<Vec<_>>())?;
    let prefix = log.prefix();
    let mut after = log.first_removable().map(Bytes::from);
    loop {
        // Files that are not listed stay until the next checkpoint.
        let page = files.store().list(
            files.vid(),
            prefix.as_bytes(),
            after.as_deref(),
            PAGE,
            &ReadOptions::default(),
        )?;
        let listed = page.len();
        let mut covered = Vec::new();
        for (name, info) in page {
            if number_of(&prefix, &name)? < kept {
                covered.push((name, info.fid));
            }
        }
        files.delete_unneeded(&covered)?;
        match covered.pop() {
            Some((last, _)) if covered.len() + 1 == listed => after = Some(last),
            _ => return Ok(()),
        }
    }
}

/// Reads the whole log, calls `note` for each damage, and returns the state of the readable records.
/// # Errors
/// Errors of the store that are not damage, and errors of `note`.
pub(super) fn examine<S: LogState>(
    files: &CatalogFiles,
    log: LogName,
    mut note: impl FnMut(Error) -> Result<()>,
) -> Result<S> {
    loop {
        let listed = checkpoints(files, log)?;
        let newest = listed.last().map_or(0, |(number, _)| *number);
        let (state, damages) = examine_from(files, log, &listed)?;
        // Records were removed while the log was read.
        if has_checkpoint_behind(files, log, newest)? {
            continue;
        }
        damages.into_iter().try_for_each(&mut note)?;
        return Ok(state);
    }
}

fn examine_from<S: LogState>(
    files: &CatalogFiles,
    log: LogName,
    listed: &[(u64, FileInfo)],
) -> Result<(S, Vec<Error>)> {
    let mut damages = Vec::new();
    let mut checkpoints: Vec<(u64, S)> = Vec::new();
    for (number, info) in listed {
        match checkpoint(files, log, *number, info) {
            Ok(state) => checkpoints.extend(state.map(|state| (*number, state))),
            Err(error) if error.is_corruption() => damages.push(error),
            Err(error) => return Err(error),
        }
    }
    let mut checkpoints = checkpoints.into_iter().peekable();
    let mut state = checkpoints.next().map_or_else(S::default, |(_, state)| state);
    // Whether all records since the oldest checkpoint could be read.
    let mut is_whole = true;
    let mut meet = |state: &mut S, is_whole: &mut bool, next: u64, damages: &mut Vec<Error>| {
        while let Some((number, said)) = checkpoints.next_if(|(number, _)| *number <= next) {
            if *is_whole && *state != said {
                let place = log.checkpoint_place(number);
                damages.push(damaged_checkpoint(&place, "it differs from the state of its records"));
            }
            (*state, *is_whole) = (said, true);
        }
    };
    // Records below the oldest checkpoint may be missing, and are not needed.
    let needed = listed.first().map_or(0, |(number, _)| *number);
    read_each(files, log, needed, |number, outcome| {
        meet(&mut state, &mut is_whole, number, &mut damages);
        match outcome {
            Ok(entry) if entry.number < state.next_number() => {}
            Ok(entry) if matches!(entry.record, Record::Void { .. }) => {
                let place = log.place(number);
                damages.push(damaged_record(
                    &place,
                    "it lacks the signature of the delete role, so it is ignored",
                ));
                state.apply(&entry);
            }
            Ok(entry) if is_whole => state.apply(&entry),
            Ok(entry) => state.apply_behind_loss(&entry),
            Err(error) => {
                is_whole = false;
                damages.push(error);
            }
        }
        Ok(())
    })?;
    meet(&mut state, &mut is_whole, u64::MAX, &mut damages);
    Ok((state, damages))
}

fn damaged_checkpoint(place: &str, detail: impl Into<String>) -> Error {
    Error::Damaged { what: format!("catalog checkpoint {place}"), detail: detail.into() }
}

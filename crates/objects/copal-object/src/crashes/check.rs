//! Comparison of a recovered store with the model.

use super::{
    model::{LineFrame, ModelEntry, PromisedCommit, StoreModel},
    stores::{BALLAST, FILLER},
};
use crate::{FramePos, ObjectId, Store};
use copal_device::IoClass;
use std::collections::BTreeMap;

/// State after a recovery.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecoveryOutcome {
    pub(super) lsn: u64,
    pub(super) ends: BTreeMap<u64, u64>,
}

pub(super) fn outcome(store: &Store) -> RecoveryOutcome {
    let state = store.inner.state.lock();
    let ends = state.streams.tails().map(|(id, tail)| (id, tail.next)).collect();
    RecoveryOutcome { lsn: state.commit.last_lsn(), ends }
}

/// Checks a store that was opened after `step` events. `durable_only`: power was lost, so only durable
/// promises hold.
pub(super) fn check(
    store: &Store,
    outcome: &RecoveryOutcome,
    model: &StoreModel,
    step: usize,
    durable_only: bool,
) -> Result<(), String> {
    let snapshot = model.at(outcome.lsn);
    for promise in &model.promises {
        if promise.step > step || (durable_only && !promise.durable) {
            continue;
        }
        match promise.what {
            PromisedCommit::Commit { lsn } if lsn > outcome.lsn => {
                return Err(format!(
                    "OBJ-21: commit {lsn} was acknowledged, {} is the last one",
                    outcome.lsn
                ));
            }
            PromisedCommit::Frame(promised) => {
                let LineFrame { stream, frame, .. } = promised;
                let end = outcome.ends.get(&stream).copied().unwrap_or(0);
                let Some(&ModelEntry::Stream { line, .. }) = snapshot.get(&stream) else { continue };
                match model.is_kept(promised, line) {
                    Some(true) if frame >= end => {
                        return Err(format!(
                            "OBJ-21: frame {frame} of {stream} was acknowledged, it ends at {end}"
                        ));
                    }
                    None => {
                        return Err(format!(
                            "OBJ-21: frame {frame} of {stream} was acknowledged, the cut before it is gone"
                        ));
                    }
                    _ => {}
                }
            }
            PromisedCommit::Commit { .. } => {}
        }
    }
    let ids: Vec<u64> = store
        .list(ObjectId(0), usize::MAX)
        .iter()
        .map(|stat| stat.id.0)
        .filter(|id| *id != FILLER && !BALLAST.contains(id))
        .collect();
    if !ids.iter().eq(snapshot.keys()) {
        return Err(format!("OBJ-22: objects {ids:?} instead of {:?} at {}", snapshot.keys(), outcome.lsn));
    }
    for (&id, thing) in snapshot.iter() {
        match thing {
            ModelEntry::Object { bytes, sealed } => {
                let read = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait();
                let found = read.map_err(|error| format!("OBJ-28: object {id}: {error}"))?;
                if found != bytes[..] {
                    return Err(format!("OBJ-22: object {id} differs at {}", outcome.lsn));
                }
                if store.stat(ObjectId(id)).map(|stat| stat.sealed) != Some(*sealed) {
                    return Err(format!("OBJ-22: object {id} is not sealed as it should be"));
                }
            }
            ModelEntry::Stream { trimmed, line } => {
                check_stream(store, outcome, model, id, *trimmed, *line)?;
            }
        }
    }
    for commit in model.commits.iter().filter(|commit| commit.lsn <= outcome.lsn) {
        for dep in &commit.deps {
            let LineFrame { stream, frame, .. } = dep;
            let Some(&ModelEntry::Stream { line, .. }) = snapshot.get(stream) else { continue };
            let is_kept = model.is_kept(*dep, line) == Some(true);
            if is_kept && outcome.ends.get(stream).is_some_and(|end| frame >= end) {
                return Err(format!(
                    "OBJ-23: commit {} is there, frame {frame} of {stream} is not",
                    commit.lsn
                ));
            }
        }
    }
    Ok(())
}

fn check_stream(
    store: &Store,
    outcome: &RecoveryOutcome,
    model: &StoreModel,
    id: u64,
    trimmed: u64,
    line: usize,
) -> Result<(), String> {
    let end = outcome.ends.get(&id).copied().unwrap_or(0);
    let frames = &model.lines[&id][line].frames;
    let issued = frames.len() as u64;
    if end > issued {
        return Err(format!("OBJ-21: stream {id} has {end} frames, {issued} were appended"));
    }
    if end < trimmed {
        return Err(format!("OBJ-21: stream {id} goes on at {end}, it is read from {trimmed} on"));
    }
    let mut reader = store.frames(ObjectId(id), FramePos(0)).map_err(|error| error.to_string())?;
    for index in trimmed..end {
        let frame = &frames[index as usize];
        match reader.next_frame() {
            Ok(Some((pos, payload))) if pos.0 == index && payload == frame.payload[..] => {}
            other => {
                return Err(format!(
                    "OBJ-28: frame {index} of {id} reads as {:?}",
                    other.map(|f| f.map(|f| f.0))
                ));
            }
        }
        if frame.after > outcome.lsn {
            return Err(format!("OBJ-23: frame {index} of {id} is there, commit {} is not", frame.after));
        }
    }
    match reader.next_frame() {
        Ok(None) => Ok(()),
        other => Err(format!("OBJ-21: stream {id} goes on behind its end: {other:?}")),
    }
}

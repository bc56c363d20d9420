//! The records of a backup session: Open at its beginning, Publish or Fence at its end.
//!
//! A session publishes only if it has read the VM's log to the end and is not fenced. Check and publication
//! are one compare-and-swap on the log (BAK-5).

use super::base::BaseSnapshot;
use crate::catalog::fields::SessionId;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::Record;
use crate::catalog::vm::VmState;
use crate::delete::summary::store as summaries;
use crate::keys::random;
use crate::keys::role::Role;
use crate::packs::volumes::settled;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress};
use crate::retention::misdated;
use crate::sessions::lease::{SessionHolder, fence::fence_dead_here, sessions as leases};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::{self, Manifest};
use crate::steps::session::{OpenStep, PublishStep, ending, opening, publishing};
use bytes::Bytes;
use copal_volume::{PutOptions, VolumeError};
use uuid::Uuid;

/// An open session.
pub(crate) struct BackupSession {
    pub(crate) vm: Uuid,
    pub(crate) id: SessionId,
    sequence: u64,
}

/// Result of a publication.
pub(crate) struct PublishedAs {
    pub(crate) created_ms: u64,
    /// Bytes that the backup added to the store, as the manifest counts them.
    pub(crate) stored_bytes: u64,
    /// Snapshots of the VM with an impossible time, by the clock that stamped this one.
    pub(crate) misdated: u64,
}

impl BackupSession {
    /// Opens a session on the newest readable snapshot; in a store with one writer it first ends earlier
    /// sessions.
    /// # Errors
    /// `SessionOpen`: in a fleet on several servers, another session of the VM is open, and may be alive
    /// (BAK-21). Errors of the store.
    pub(crate) fn open(
        parts: &RepositoryParts,
        named: &Vm,
        holder: &mut SessionHolder<'_>,
    ) -> Result<(BackupSession, Option<BaseSnapshot>)> {
        let vm = named.uuid;
        let is_alone = !parts.is_written_by_several();
        let id: SessionId = random()?;
        let log = LogName::Vm(vm);
        let mut lost: Option<Option<BaseSnapshot>> = None;
        loop {
            let state = parts.vm_state(vm)?;
            match opening(&state, &id, is_alone) {
                OpenStep::Opened => {
                    let sequence = state.next_sequence;
                    return Ok((BackupSession { vm, id, sequence }, lost.flatten()));
                }
                OpenStep::Retired => {
                    return Err(Error::Denied {
                        reason: format!(
                            "VM {} is being removed; `copal vm rm` ends that, and then its name is free",
                            named.name
                        ),
                    });
                }
                // The holder was a process of this host and has died, so no lease is waited for.
                OpenStep::Held if fence_dead_here(parts, named)? > 0 => continue,
                OpenStep::Held => match leases::open_sessions(parts, vm)?.into_iter().next() {
                    Some(open) => {
                        return Err(Error::SessionOpen { vm: named.name.clone(), open: Box::new(open) });
                    }
                    // It ended meanwhile.
                    None => continue,
                },
                OpenStep::Stale(session) => {
                    // This process is the only writer, so the session's process is dead.
                    let record = Record::Fence { session };
                    parts.catalog().append(log, state.next_number, &record)?;
                    continue;
                }
                OpenStep::Append => {}
            }
            let base = newest_readable(parts, vm, &state);
            let session = id;
            let snapshot = base.as_ref().map(|base| base.manifest.snapshot);
            let record = match holder.begin(parts)? {
                Some(holder) => Record::OpenHeld { session, base: snapshot, holder },
                None => Record::Open { session, base: snapshot },
            };
            match parts.catalog().append(log, state.next_number, &record)? {
                AppendOutcome::Lost => lost = Some(base),
                AppendOutcome::Done => {
                    return Ok((BackupSession { vm, id, sequence: state.next_sequence }, base));
                }
            }
        }
    }

    /// The sequence its snapshot will have.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The error of a failed backup: `Fenced` if others have ended its session. Chunks that it had stored may
    /// be removed by then, which looks like damage.
    pub(crate) fn reason(&self, parts: &RepositoryParts, error: Error) -> Error {
        if matches!(error, Error::Cancelled { .. } | Error::Fenced | Error::Source { .. }) {
            return error;
        }
        let is_ended = parts.vm_state(self.vm).is_ok_and(|state| !state.open.contains(&self.id));
        if !is_ended {
            return error;
        }
        tracing::warn!(%error, "error of a backup after another process had fenced its session");
        Error::Fenced
    }

    /// In a fleet, finishes removals of the VM that were interrupted, and brings the index of the VM up to date.
    ///
    /// This must follow the Open record: a prune has listed its packs before the record, or sees the session.
    /// # Errors
    /// `Cancelled`; as [`RepositoryParts::index_vm`].
    pub(super) fn index_packs(
        &self,
        parts: &RepositoryParts,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<()> {
        if parts.pack_store().layout.is_fleet() {
            parts.finish_removals_of(self.vm, &*parts.catalog().known_vm(self.vm)?)?;
            parts.index_vm(self.vm, progress, cancel)?;
        }
        Ok(())
    }

    /// Ends the session: it can no longer publish.
    pub(crate) fn fence(&self, parts: &RepositoryParts) -> Result<()> {
        loop {
            let state = parts.vm_state(self.vm)?;
            let Some(record) = ending(&state, &self.id) else {
                return Ok(());
            };
            let log = LogName::Vm(self.vm);
            if let AppendOutcome::Done = parts.catalog().append(log, state.next_number, &record)? {
                return Ok(());
            }
        }
    }

    /// Writes the manifest, then publishes the snapshot. Both count as stored bytes, in the manifest too.
    pub(crate) fn publish(&self, parts: &RepositoryParts, mut manifest: Manifest) -> Result<PublishedAs> {
        let volumes = &parts.pack_store().volumes;
        let vid = volumes
            .meta(self.vm, true)?
            .ok_or_else(|| Error::Invalid { reason: "the volume of manifests cannot be made".into() })?;
        if parts.pack_store().layout.is_fleet() {
            let base = match manifest.base {
                Some(base) => summaries::find(parts, self.vm, base)?,
                None => None,
            };
            let vector = summaries::write(parts, &manifest, base.map(|base| base.header.geometry))?;
            manifest.vector = Some(vector.digest);
            manifest.counts.stored_bytes += vector.header.file_bytes();
        }
        let keys = &parts.pack_store().keys;
        let dating = PublishTime::of(parts, &manifest);
        // Counters have a fixed width, so these lengths do not depend on the values.
        let lengths = manifest.encode(keys).len()
            + self.publish_record(&manifest, [0; 32], 0, dating).encode("", keys).len();
        manifest.counts.stored_bytes += lengths as u64;
        let file = manifest.encode(keys);
        let hash = manifest::hash(&file);
        let name = manifest::file_name(manifest.snapshot);
        match volumes.store.put(vid, name.as_bytes(), Bytes::from(file), &PutOptions::default()) {
            Ok(_) => {}
            Err(VolumeError::Unknown { fid }) if settled(&*volumes.store, vid, fid)? => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            let state = parts.vm_state(self.vm)?;
            let mut times: Vec<u64> = state.published.iter().map(|one| one.created_ms).collect();
            match publishing(&state, &self.id, manifest.snapshot) {
                PublishStep::Published(published) => {
                    return Ok(published_as(&manifest, &times, published.created_ms));
                }
                PublishStep::Fenced => return Err(Error::Fenced),
                PublishStep::Append => {}
            }
            let now_ms = volumes.store.now_ms();
            let created_ms = dating.time(&times, now_ms);
            let record = self.publish_record(&manifest, hash, created_ms, dating);
            let log = LogName::Vm(self.vm);
            if let AppendOutcome::Done = parts.catalog().append(log, state.next_number, &record)? {
                times.push(created_ms);
                return Ok(PublishedAs { created_ms, ..published_as(&manifest, &times, now_ms) });
            }
        }
    }

    fn publish_record(
        &self,
        manifest: &Manifest,
        hash: [u8; 32],
        clock_ms: u64,
        dating: PublishTime,
    ) -> Record {
        Record::Publish {
            session: self.id,
            snapshot: manifest.snapshot,
            sequence: self.sequence,
            manifest: hash,
            clock_ms: Some(clock_ms),
            is_dated: dating.is_signed,
        }
    }
}

/// How the time of a new snapshot is chosen.
#[derive(Clone, Copy)]
struct PublishTime {
    /// Time of the origin of a copy, if this handle may delete.
    origin_ms: Option<u64>,
    /// Whether the time counts only with the signature of the delete role.
    is_signed: bool,
}

impl PublishTime {
    fn of(parts: &RepositoryParts, manifest: &Manifest) -> PublishTime {
        let roles = parts.roles();
        let origin_ms = manifest.origin.map(|origin| origin.created_ms).filter(|_| roles.has(Role::Delete));
        PublishTime { origin_ms, is_signed: origin_ms.is_some() && roles.are_split }
    }

    /// The time of a snapshot that follows those of `times`: that of its origin, if it is plausible (BAK-13).
    fn time(self, times: &[u64], now_ms: u64) -> u64 {
        let is_plausible = |ms: &u64| *ms <= now_ms && times.iter().all(|earlier| earlier <= ms);
        self.origin_ms.filter(is_plausible).unwrap_or(now_ms)
    }
}

/// `times`: those of all snapshots of the VM, this one's last.
fn published_as(manifest: &Manifest, times: &[u64], now_ms: u64) -> PublishedAs {
    PublishedAs {
        created_ms: now_ms,
        stored_bytes: manifest.counts.stored_bytes,
        misdated: misdated(times, now_ms).into_iter().flatten().count() as u64,
    }
}

fn newest_readable(parts: &RepositoryParts, vm: Uuid, state: &VmState) -> Option<BaseSnapshot> {
    let mut newest_first = state.published.iter().rev();
    let mut readable = newest_first.by_ref().filter_map(|published| match parts.manifest(vm, published) {
        Ok(manifest) => Some((manifest, published.is_accepted)),
        Err(error) => {
            tracing::warn!(snapshot = %published.snapshot, %error, "not used as a base");
            None
        }
    });
    let (manifest, is_accepted) = readable.next()?;
    let find_good = || {
        let mut good = readable.filter(|(manifest, is_accepted)| *is_accepted || manifest.doubts.is_empty());
        good.next().map(|(manifest, _)| manifest)
    };
    Some(BaseSnapshot::new(manifest, is_accepted, find_good))
}

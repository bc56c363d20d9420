//! State of the log of one VM: a pure fold over its records.
//!
//! Format: docs/formats/backup-checkpoint.md v3

use super::fields::{DeadList, MAX_SEQUENCE, MovedList, SessionId, dead, moved, put_dead, put_moved};
use super::fold::{LogEntry, LogState};
use super::record::{PackPlace, Record, packs, put_packs};
use crate::request::SnapshotId;
use crate::request::open_session::HolderId;
use crate::rules::broken::{self, Flaw};
use copal_codec::{DecodeError, Put, Reader};

/// Fenced sessions that are remembered. Only `check` uses them, to count the packs that they left. The bound
/// keeps the checkpoint small for a VM whose backups fail every hour.
const FENCED_KEPT: usize = 64;

/// Bytes of a snapshot in a checkpoint.
const PUBLISHED_BYTES: usize = 81;

/// A visible snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PublishedSnapshot {
    pub(crate) snapshot: SnapshotId,
    pub(crate) sequence: u64,
    /// Time of the store's clock at publication, or of the origin of a copy; may go back.
    pub(crate) created_ms: u64,
    /// Position in the store's order of events; ascends strictly within a VM.
    pub(crate) stored_ms: u64,
    pub(crate) manifest: [u8; 32],
    /// Every chunk of it was decoded once and had its id.
    pub(crate) is_verified: bool,
    /// A person accepted it despite the warnings in its manifest.
    pub(crate) is_accepted: bool,
    /// It may not be forgotten before this time; 0: it is not held.
    pub(crate) held_until_ms: u64,
}

/// State of one VM's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct VmState {
    /// Number of the next record.
    pub(crate) next_number: u64,
    /// Sequence of the next snapshot.
    pub(crate) next_sequence: u64,
    /// Visible snapshots, oldest first.
    pub(crate) published: Vec<PublishedSnapshot>,
    /// Forgotten snapshots whose space is not freed yet. Those from a checkpoint of version 1 have only an
    /// id.
    pub(crate) forgotten: Vec<PublishedSnapshot>,
    /// In a fleet: forgotten snapshots whose frames are in the list of dead frames, but whose manifests may
    /// still exist.
    pub(crate) freed: Vec<SnapshotId>,
    /// In a fleet: the list of dead frames.
    pub(crate) dead: Option<DeadList>,
    /// In a fleet: the VM is being removed with all its data.
    pub(crate) is_retired: bool,
    /// Sessions that neither published nor were fenced.
    pub(crate) open: Vec<SessionId>,
    /// Holders of open sessions, for sessions whose holders write heartbeats.
    pub(crate) held: Vec<(SessionId, HolderId)>,
    /// The newest sessions that were fenced, oldest first.
    pub(crate) fenced: Vec<SessionId>,
    /// Position of the newest snapshot in the store's order of events.
    pub(crate) newest_ms: u64,
    /// In a fleet: condemned packs that may still be on some servers. No process adds a reference to them.
    pub(crate) removing: Vec<PackPlace>,
    /// In a fleet: lists by which chunks that the VM once stored itself resolve to popular frames.
    pub(crate) moved: Vec<MovedList>,
    /// Snapshots below this sequence have no chunk without an answer: a clean-up got all answers.
    pub(crate) resolved_below: u64,
}

impl VmState {
    fn trim_fenced(&mut self) {
        let older = self.fenced.len().saturating_sub(FENCED_KEPT);
        self.fenced.drain(..older);
    }

    fn begin(&mut self, session: SessionId, holder: Option<HolderId>) {
        self.open.push(session);
        self.held.extend(holder.map(|holder| (session, holder)));
    }

    fn end(&mut self, session: &SessionId) {
        self.open.retain(|open| open != session);
        self.held.retain(|(held, _)| held != session);
    }

    /// Whether a Publish record of this session behind all that was read is valid (BAK-5).
    pub(crate) fn may_publish(&self, session: &SessionId) -> bool {
        self.open.contains(session) || broken::by(Flaw::FencedPublishes)
    }

    /// The holder of an open session; `None`: it is not open, or has no heartbeats.
    pub(crate) fn holder_of(&self, session: &SessionId) -> Option<HolderId> {
        let mut held = self.held.iter();
        held.find(|(held, _)| held == session).map(|(_, holder)| *holder)
    }

    /// Whether a snapshot of this id was published and is not deleted yet.
    fn knows(&self, snapshot: SnapshotId) -> bool {
        let mut listed = self.published.iter().chain(&self.forgotten);
        listed.any(|one| one.snapshot == snapshot) || self.freed.contains(&snapshot)
    }

    fn named<'a>(
        &'a mut self,
        snapshots: &'a [SnapshotId],
    ) -> impl Iterator<Item = &'a mut PublishedSnapshot> {
        self.published.iter_mut().filter(|published| snapshots.contains(&published.snapshot))
    }
}

impl LogState for VmState {
    const KIND: u8 = 2;

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn set_next_number(&mut self, number: u64) {
        self.next_number = number;
    }

    fn apply(&mut self, entry: &LogEntry) {
        self.next_number = entry.number + 1;
        match &entry.record {
            Record::Open { session, .. } => self.begin(*session, None),
            Record::OpenHeld { session, holder, .. } => self.begin(*session, Some(*holder)),
            Record::Fence { session } => {
                self.end(session);
                self.fenced.push(*session);
                self.trim_fenced();
            }
            Record::Publish { session, snapshot, sequence, manifest, clock_ms, is_dated: _ } => {
                // A fenced session cannot publish. This program never writes such a record; a record behind
                // the fence is ignored.
                if !self.may_publish(session) {
                    return;
                }
                self.end(session);
                if self.knows(*snapshot) {
                    // A second snapshot with this id would be forgotten together with the first, so it is
                    // ignored.
                    return;
                }
                self.newest_ms = match broken::by(Flaw::TrustsStamps) {
                    true => entry.created_ms,
                    false => entry.created_ms.max(self.newest_ms + 1),
                };
                self.next_sequence = sequence + 1;
                self.published.push(PublishedSnapshot {
                    snapshot: *snapshot,
                    sequence: *sequence,
                    created_ms: clock_ms.unwrap_or(self.newest_ms),
                    stored_ms: self.newest_ms,
                    manifest: *manifest,
                    is_verified: false,
                    is_accepted: false,
                    held_until_ms: 0,
                });
            }
            Record::Forget { snapshots } => {
                let is_named = |published: &mut PublishedSnapshot| snapshots.contains(&published.snapshot);
                self.forgotten.extend(self.published.extract_if(.., is_named));
            }
            Record::Deleted { snapshots } => {
                self.forgotten.retain(|one| !snapshots.contains(&one.snapshot));
                self.freed.retain(|one| !snapshots.contains(one));
            }
            Record::Freed { snapshots, dead } => {
                let is_named = |one: &mut PublishedSnapshot| snapshots.contains(&one.snapshot);
                let freed = self.forgotten.extract_if(.., is_named);
                self.freed.extend(freed.map(|one| one.snapshot));
                self.dead = *dead;
            }
            Record::Moved { moved, dead, resolved_below } => {
                self.moved.clone_from(moved);
                self.dead = *dead;
                self.resolved_below = *resolved_below;
            }
            Record::Verified { snapshots } => {
                self.named(snapshots).for_each(|published| published.is_verified = true);
            }
            Record::Accepted { snapshots } => {
                self.named(snapshots).for_each(|published| published.is_accepted = true);
            }
            Record::Hold { snapshots, until_ms } => {
                self.named(snapshots).for_each(|published| published.held_until_ms = *until_ms);
            }
            Record::Removing { packs } => self.removing.extend_from_slice(packs),
            Record::Removed { packs } => self.removing.retain(|going| !packs.contains(going)),
            Record::Retired => self.is_retired = true,
            Record::Init { .. }
            | Record::InitFleet { .. }
            | Record::VmAdded { .. }
            | Record::Popular { .. }
            | Record::Checked { .. }
            | Record::Spoiled { .. }
            | Record::HostEntered { .. }
            | Record::HostRemoved { .. }
            | Record::Condemned { .. }
            | Record::Spared { .. }
            | Record::Gone { .. }
            | Record::Counted
            | Record::Beat { .. }
            | Record::AgentListed { .. }
            | Record::AgentRetired { .. }
            | Record::VmRemoved { .. }
            | Record::Roles
            | Record::Void { .. } => {}
        }
    }

    /// The lost record may be the one that opened the session. A fenced session stays fenced.
    fn apply_behind_loss(&mut self, entry: &LogEntry) {
        if let Record::Publish { session, .. } = &entry.record
            && !self.open.contains(session)
            && !self.fenced.contains(session)
        {
            self.open.push(*session);
        }
        self.apply(entry);
    }

    fn items(&self) -> usize {
        self.published.len()
            + self.forgotten.len()
            + self.freed.len()
            + self.open.len()
            + self.fenced.len()
            + self.removing.len()
            + self.moved.len()
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.next_sequence);
        bytes.put_u64(self.newest_ms);
        put_published(bytes, &self.published);
        put_published(bytes, &self.forgotten);
        for sessions in [&self.open, &self.fenced] {
            bytes.put_varint(sessions.len() as u64);
            sessions.iter().for_each(|session| bytes.put_bytes(session));
        }
        put_packs(bytes, &self.removing);
        bytes.put_varint(self.freed.len() as u64);
        self.freed.iter().for_each(|one| bytes.put_bytes(&one.0));
        put_dead(bytes, self.dead.as_ref());
        bytes.put_u8(u8::from(self.is_retired));
        // This part is left out while there are no holders and no moved chunks: the bytes of older states
        // stay the same.
        let was_cleaned = !self.moved.is_empty() || self.resolved_below > 0;
        if !self.held.is_empty() || was_cleaned {
            bytes.put_varint(self.held.len() as u64);
            for (session, holder) in &self.held {
                bytes.put_bytes(session);
                bytes.put_bytes(&holder.0);
            }
        }
        if was_cleaned {
            bytes.put_u64(self.resolved_below);
            put_moved(bytes, &self.moved);
        }
    }

    fn parse(next_number: u64, input: &mut Reader<'_>, version: u16) -> Result<VmState, String> {
        let mut state = parse(next_number, input, version).map_err(|error| error.to_string())?;
        state.trim_fenced();
        if state.next_sequence > MAX_SEQUENCE {
            return Err(format!("the sequence {} is above any snapshot's", state.next_sequence));
        }
        Ok(state)
    }
}

fn parse(next_number: u64, input: &mut Reader<'_>, version: u16) -> Result<VmState, DecodeError> {
    let next_sequence = input.u64()?;
    let newest_ms = input.u64()?;
    let published = read_published(input)?;
    let forgotten = match version {
        1 => ids(input)?.into_iter().map(only_id).collect(),
        _ => read_published(input)?,
    };
    let mut state = VmState {
        next_number,
        next_sequence,
        published,
        forgotten,
        open: ids(input)?,
        fenced: ids(input)?,
        newest_ms,
        ..VmState::default()
    };
    if version > 1 {
        state.removing = packs(input)?;
        state.freed = ids(input)?.into_iter().map(SnapshotId).collect();
        state.dead = dead(input)?;
        state.is_retired = input.bounded(1)? == 1;
        if input.remaining() > 0 {
            let count = input.bounded(input.remaining() / 32)?;
            for _ in 0..count {
                state.held.push((input.array()?, HolderId(input.array()?)));
            }
        }
        if input.remaining() > 0 {
            state.resolved_below = input.u64()?;
            state.moved = moved(input)?;
        }
    }
    Ok(state)
}

fn put_published(bytes: &mut Vec<u8>, snapshots: &[PublishedSnapshot]) {
    bytes.put_varint(snapshots.len() as u64);
    for published in snapshots {
        bytes.put_bytes(&published.snapshot.0);
        bytes.put_u64(published.sequence);
        bytes.put_u64(published.created_ms);
        bytes.put_u64(published.stored_ms);
        bytes.put_bytes(&published.manifest);
        bytes.put_u8(u8::from(published.is_verified) | u8::from(published.is_accepted) << 1);
        bytes.put_u64(published.held_until_ms);
    }
}

fn read_published(input: &mut Reader<'_>) -> Result<Vec<PublishedSnapshot>, DecodeError> {
    let count = input.bounded(input.remaining() / PUBLISHED_BYTES)?;
    let mut published = Vec::with_capacity(count);
    for _ in 0..count {
        let (snapshot, sequence) = (SnapshotId(input.array()?), input.u64()?);
        let (created_ms, stored_ms) = (input.u64()?, input.u64()?);
        let (manifest, marks) = (input.array()?, input.bounded(3)?);
        published.push(PublishedSnapshot {
            snapshot,
            sequence,
            created_ms,
            stored_ms,
            manifest,
            is_verified: marks & 1 != 0,
            is_accepted: marks & 2 != 0,
            held_until_ms: input.u64()?,
        });
    }
    Ok(published)
}

/// A forgotten snapshot with a known id only: no manifest has its hash.
fn only_id(id: [u8; 16]) -> PublishedSnapshot {
    PublishedSnapshot {
        snapshot: SnapshotId(id),
        sequence: 0,
        created_ms: 0,
        stored_ms: 0,
        manifest: [0; 32],
        is_verified: false,
        is_accepted: false,
        held_until_ms: 0,
    }
}

fn ids(input: &mut Reader<'_>) -> Result<Vec<[u8; 16]>, DecodeError> {
    let count = input.bounded(input.remaining() / 16)?;
    (0..count).map(|_| input.array()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a checkpoint of a log could hold the next sequence 2^64 - 1, and the one after it overflowed.
    /// Cause: the number was not checked. Fix: a sequence above `MAX_SEQUENCE` is damage.
    #[test]
    fn a_checkpoint_with_an_impossible_sequence_is_damaged() {
        for (next_sequence, is_good) in
            [(0, true), (MAX_SEQUENCE, true), (MAX_SEQUENCE + 1, false), (u64::MAX, false)]
        {
            let state = VmState { next_sequence, ..VmState::default() };
            let mut bytes = Vec::new();
            state.put(&mut bytes);
            let read = VmState::parse(0, &mut Reader::new(&bytes), 2);
            assert_eq!(read.is_ok(), is_good, "{next_sequence}: {read:?}");
        }
    }

    /// Symptom: each failed backup lengthened every later checkpoint of its VM by 16 bytes, for ever. Cause:
    /// all fenced sessions stayed in the state. Fix: the newest 64 do, wherever a replay begins.
    #[test]
    fn failed_backups_do_not_lengthen_checkpoints_for_ever() {
        let session = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        let fail = |state: &mut VmState, number: u64| {
            let (session, base) = (session(number), None);
            for record in [Record::Open { session, base }, Record::Fence { session }] {
                state.apply(&LogEntry { number: state.next_number, created_ms: 1, record });
            }
        };
        let mut state = VmState::default();
        let mut longest = 0;
        for number in 0..1000 {
            fail(&mut state, number);
            let mut bytes = Vec::new();
            state.put(&mut bytes);
            longest = longest.max(bytes.len());
            // A replay from this checkpoint leads to the same state.
            let mut again = VmState::parse(state.next_number, &mut Reader::new(&bytes), 2).unwrap();
            assert_eq!(again, state);
            let mut next = state.clone();
            fail(&mut next, number + 1);
            fail(&mut again, number + 1);
            assert_eq!(again, next);
        }
        assert!(longest < 2000, "{longest} bytes");
        assert_eq!(state.fenced.last(), Some(&session(999)));
    }
}

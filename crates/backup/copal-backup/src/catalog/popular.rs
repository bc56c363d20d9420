//! What the log of popular packs amounts to: a pure fold over its records.
//!
//! Format: docs/formats/backup-checkpoint.md v2
//!
//! A pack of popular chunks is entered once it is durable. That gives its frames their ordinals: the numbers
//! by which agents speak of them. It counts for other VMs than its writer's once another agent has opened all
//! of it (BAK-20).
//!
//! From the first HostEntered on, only entered hosts say anything that others rely on: a Checked without the
//! signature of an entered host, or with that of the host that wrote the pack, is void. A Spoiled of an
//! entered host outlives any Checked. A host whose key was removed says nothing from its HostRemoved on; what
//! it said before stands, since snapshots may refer to that.

use super::fold::{Entry, Fold};
use super::record::Record;
use crate::keys::role::KeyId;
use crate::packs::pack::PackNumber;
use crate::request::peers::{Answer, HostKey, Writer};
use crate::rules::broken::{self, Flaw};
use copal_codec::{DecodeError, Put, Reader};

/// What a checkpoint says of a pack, at least: number, volume, ordinal, frames, writer, two record numbers.
const LEAST_PACK_BYTES: usize = 27;

/// A pack of popular chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PopularPack {
    pub(crate) pack: PackNumber,
    pub(crate) volume: u32,
    /// Ordinal of its first frame; those of the others follow.
    pub(crate) first_ordinal: u32,
    pub(crate) frames: u32,
    pub(crate) writer: Writer,
    /// Number of the record that entered it.
    pub(crate) entered_at: u64,
    /// Number of the record that says that another agent has opened it.
    pub(crate) checked_at: Option<u64>,
    /// Number of the record that says that it does not hold what it should.
    pub(crate) spoiled_at: Option<u64>,
    /// The entered host that has signed its entry.
    pub(crate) host: Option<HostKey>,
    pub(crate) fate: Fate,
}

/// A host whose signatures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EnteredHost {
    pub(crate) host: HostKey,
    /// The role key that it has.
    pub(crate) key: KeyId,
    /// Number of the record that entered it.
    pub(crate) entered_at: u64,
    /// Number of the record that says that its key was removed.
    pub(crate) removed_at: Option<u64>,
}

impl EnteredHost {
    /// Whether what it signs now counts.
    pub(crate) fn counts(&self) -> bool {
        self.removed_at.is_none() || broken::by(Flaw::RemovedKeyCounts)
    }
}

/// What is to become of a pack that was entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    #[default]
    Stays,
    /// Nobody refers to it anew since the record of this number.
    Condemned(u64),
    /// Nobody needs it.
    Gone,
}

impl PopularPack {
    pub(crate) fn end_ordinal(&self) -> u32 {
        self.first_ordinal + self.frames
    }

    /// Nobody refers to it, and it is removed: it was entered without frames, since its writer is gone
    /// (BAK-24), or nobody needs it (BAK-27).
    pub(crate) fn is_going(&self) -> bool {
        self.frames == 0 || self.fate == Fate::Gone
    }
}

/// State of the log of popular packs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PopularState {
    /// Number the next record gets.
    pub(crate) next_number: u64,
    /// In the order of their ordinals.
    pub(crate) packs: Vec<PopularPack>,
    /// One more than the number of the newest record by which packs were condemned, spared or gone; 0: there
    /// was none.
    pub(crate) generation: u64,
    /// In the order in which they were entered; none: nobody signs.
    pub(crate) hosts: Vec<EnteredHost>,
}

impl PopularState {
    /// Whether a host is entered, and its key was not removed.
    pub(crate) fn is_entered(&self, host: &HostKey) -> bool {
        self.hosts.iter().any(|entered| entered.host == *host && entered.counts())
    }

    /// The host that has signed a record, if its signatures count.
    fn entered(&self, host: Option<HostKey>) -> Option<HostKey> {
        host.filter(|host| self.is_entered(host))
    }

    /// Whether what is said now has to be signed by an entered host.
    pub(crate) fn needs_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether a host may say of a pack that it holds what it should.
    pub(crate) fn may_check(&self, pack: &PopularPack, host: Option<HostKey>) -> bool {
        let Some(first) = self.hosts.first() else {
            return true;
        };
        let Some(host) = self.entered(host) else {
            return false;
        };
        // What was entered before anybody signed was written by nobody knows whom, as it always was.
        let is_of_before = pack.entered_at < first.entered_at;
        let is_of_another = pack.host.is_some_and(|writer| writer != host) || broken::by(Flaw::ChecksOwn);
        is_of_before || is_of_another
    }

    /// Whether a host may say of a pack that it is spoiled.
    pub(crate) fn may_spoil(&self, host: Option<HostKey>) -> bool {
        !self.needs_hosts() || self.entered(host).is_some()
    }

    /// Ordinal the next frame gets.
    pub(crate) fn next_ordinal(&self) -> u32 {
        self.packs.last().map_or(0, PopularPack::end_ordinal)
    }

    /// The pack of an ordinal, and the frame's place in it.
    pub(crate) fn of_ordinal(&self, ordinal: u32) -> Option<(&PopularPack, u32)> {
        let behind = self.packs.partition_point(|pack| pack.first_ordinal <= ordinal);
        let pack = self.packs.get(behind.checked_sub(1)?)?;
        (ordinal < pack.end_ordinal()).then(|| (pack, ordinal - pack.first_ordinal))
    }

    /// What is known of a pack.
    pub(crate) fn pack(&self, pack: PackNumber) -> Option<&PopularPack> {
        // Those asked for came lately.
        self.packs.iter().rev().find(|known| known.pack == pack)
    }

    fn pack_mut(&mut self, pack: PackNumber) -> Option<&mut PopularPack> {
        self.packs.iter_mut().rev().find(|known| known.pack == pack)
    }

    /// Packs of which it is not known whether somebody needs them, and since when.
    pub(crate) fn condemned(&self) -> impl Iterator<Item = (PackNumber, u64)> {
        self.packs.iter().filter_map(|pack| match pack.fate {
            Fate::Condemned(at) => Some((pack.pack, at)),
            Fate::Stays | Fate::Gone => None,
        })
    }

    /// Changes what is to become of packs, where that is possible.
    fn decide(&mut self, number: u64, packs: &[PackNumber], decide: impl Fn(Fate) -> Fate) {
        self.generation = number + 1;
        for known in self.packs.iter_mut().filter(|known| packs.contains(&known.pack)) {
            known.fate = decide(known.fate);
        }
    }

    /// Whether frames may have the ordinals from `first` on.
    pub(crate) fn has_room(&self, first: u32, frames: u32) -> bool {
        let end = first.checked_add(frames);
        first >= self.next_ordinal() && end.is_some_and(|end| end <= Answer::FIRST_CODE)
    }
}

impl Fold for PopularState {
    const KIND: u8 = 3;

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn go_on_at(&mut self, number: u64) {
        self.next_number = number;
    }

    fn apply(&mut self, entry: &Entry) {
        self.next_number = entry.number + 1;
        match &entry.record {
            Record::Popular { volume, pack, first_ordinal, frames, writer, host } => {
                // A pack that was entered before keeps its ordinals.
                if self.pack(*pack).is_some() || !self.has_room(*first_ordinal, *frames) {
                    return;
                }
                self.packs.push(PopularPack {
                    pack: *pack,
                    volume: *volume,
                    first_ordinal: *first_ordinal,
                    frames: *frames,
                    writer: *writer,
                    entered_at: entry.number,
                    checked_at: None,
                    spoiled_at: None,
                    host: self.entered(*host),
                    fate: Fate::Stays,
                });
            }
            Record::Checked { pack, host } => {
                let may = self.pack(*pack).is_some_and(|known| self.may_check(known, *host));
                if let Some(known) = self.pack_mut(*pack).filter(|_| may) {
                    known.checked_at.get_or_insert(entry.number);
                }
            }
            Record::Spoiled { pack, host } => {
                let may = self.may_spoil(*host);
                if let Some(known) = self.pack_mut(*pack).filter(|known| may && known.spoiled_at.is_none()) {
                    known.spoiled_at = Some(entry.number);
                    // Whoever indexes packs begins anew.
                    self.generation = entry.number + 1;
                }
            }
            Record::HostEntered { host, key } if !self.is_entered(host) => {
                self.hosts.push(EnteredHost {
                    host: *host,
                    key: *key,
                    entered_at: entry.number,
                    removed_at: None,
                });
            }
            Record::HostRemoved { host } => {
                for entered in self.hosts.iter_mut().filter(|entered| entered.host == *host) {
                    entered.removed_at.get_or_insert(entry.number);
                }
            }
            Record::Condemned { packs } => {
                let number = entry.number;
                self.decide(number, packs, |fate| match fate {
                    Fate::Stays => Fate::Condemned(number),
                    Fate::Condemned(_) | Fate::Gone => fate,
                });
            }
            Record::Spared { packs } => self.decide(entry.number, packs, |fate| match fate {
                Fate::Stays | Fate::Condemned(_) => Fate::Stays,
                Fate::Gone => Fate::Gone,
            }),
            // Whoever wrote it knew that they were condemned, though that record may be lost.
            Record::Gone { packs } => self.decide(entry.number, packs, |_| Fate::Gone),
            _ => {}
        }
    }

    fn items(&self) -> usize {
        self.packs.len()
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_varint(self.packs.len() as u64);
        for pack in &self.packs {
            bytes.put_u64(pack.pack.0);
            bytes.put_u32(pack.volume);
            bytes.put_u32(pack.first_ordinal);
            bytes.put_varint(u64::from(pack.frames));
            bytes.put_u64(pack.writer.0);
            bytes.put_varint(pack.entered_at);
            bytes.put_varint(pack.checked_at.map_or(0, |at| at + 1));
        }
        let is_signed = self.needs_hosts() || self.packs.iter().any(|pack| pack.spoiled_at.is_some());
        // A state in which nothing was ever condemned has the bytes that it had before that could be.
        if self.generation == 0 && !is_signed {
            return;
        }
        bytes.put_varint(self.generation);
        let decided = self.packs.iter().zip(0..);
        let decided: Vec<(u64, u64)> = decided
            .filter_map(|(pack, index)| match pack.fate {
                Fate::Stays => None,
                Fate::Gone => Some((index, 0)),
                Fate::Condemned(at) => Some((index, at + 1)),
            })
            .collect();
        bytes.put_varint(decided.len() as u64);
        for (index, fate) in decided {
            bytes.put_varint(index);
            bytes.put_varint(fate);
        }
        // Nor does a state in which no host was entered and no pack is spoiled say anything of that.
        if is_signed {
            self.put_hosts(bytes);
        }
    }

    fn parse(next_number: u64, input: &mut Reader<'_>, _version: u16) -> Result<PopularState, String> {
        let text = |error: DecodeError| error.to_string();
        let count = input.bounded(input.remaining() / LEAST_PACK_BYTES).map_err(text)?;
        let mut state =
            PopularState { next_number, packs: Vec::with_capacity(count), generation: 0, hosts: Vec::new() };
        for _ in 0..count {
            let pack = PackNumber(input.u64().map_err(text)?);
            let volume = input.u32().map_err(text)?;
            let first_ordinal = input.u32().map_err(text)?;
            let frames = u32::try_from(input.varint().map_err(text)?).unwrap_or(u32::MAX);
            if !state.has_room(first_ordinal, frames) {
                return Err("the ordinals of its packs do not ascend, or go beyond the last there is".into());
            }
            state.packs.push(PopularPack {
                pack,
                volume,
                first_ordinal,
                frames,
                writer: Writer(input.u64().map_err(text)?),
                entered_at: input.varint().map_err(text)?,
                checked_at: input.varint().map_err(text)?.checked_sub(1),
                spoiled_at: None,
                host: None,
                fate: Fate::Stays,
            });
        }
        if input.remaining() == 0 {
            return Ok(state);
        }
        state.generation = input.varint().map_err(text)?;
        let count = input.bounded(state.packs.len()).map_err(text)?;
        for _ in 0..count {
            let index = input.varint().map_err(text)?;
            let fate = input.varint().map_err(text)?;
            let pack = usize::try_from(index)
                .ok()
                .and_then(|index| state.packs.get_mut(index))
                .ok_or("it condemns a pack that it does not list")?;
            pack.fate = match fate.checked_sub(1) {
                None => Fate::Gone,
                Some(at) => Fate::Condemned(at),
            };
        }
        if input.remaining() > 0 {
            state.parse_hosts(input)?;
        }
        Ok(state)
    }
}

/// Bytes of a host in a checkpoint, at least.
const LEAST_HOST_BYTES: usize = 32 + 8 + 1;

impl PopularState {
    /// Hosts; then of each pack that a host has signed, or that is spoiled, its place in the list, the host
    /// and the record. Then, if there are any, those whose key was removed, by their places, with the
    /// records.
    fn put_hosts(&self, bytes: &mut Vec<u8>) {
        bytes.put_varint(self.hosts.len() as u64);
        for entered in &self.hosts {
            bytes.put_bytes(&entered.host.0);
            bytes.put_bytes(&entered.key.0);
            bytes.put_varint(entered.entered_at);
        }
        let place = |host: HostKey| self.hosts.iter().position(|entered| entered.host == host);
        let noted: Vec<(u64, u64, u64)> = (0..)
            .zip(&self.packs)
            .map(|(index, pack)| {
                let host = pack.host.and_then(place).map_or(0, |place| place as u64 + 1);
                (index, host, pack.spoiled_at.map_or(0, |at| at + 1))
            })
            .filter(|(_, host, spoiled)| *host > 0 || *spoiled > 0)
            .collect();
        bytes.put_varint(noted.len() as u64);
        for (index, host, spoiled) in noted {
            bytes.put_varint(index);
            bytes.put_varint(host);
            bytes.put_varint(spoiled);
        }
        let removed = (0..).zip(&self.hosts);
        let removed: Vec<(u64, u64)> =
            removed.filter_map(|(place, host)| Some((place, host.removed_at?))).collect();
        if removed.is_empty() {
            return;
        }
        bytes.put_varint(removed.len() as u64);
        for (place, number) in removed {
            bytes.put_varint(place);
            bytes.put_varint(number);
        }
    }

    fn parse_hosts(&mut self, input: &mut Reader<'_>) -> Result<(), String> {
        let text = |error: DecodeError| error.to_string();
        let count = input.bounded(input.remaining() / LEAST_HOST_BYTES).map_err(text)?;
        for _ in 0..count {
            self.hosts.push(EnteredHost {
                host: HostKey(input.array().map_err(text)?),
                key: KeyId(input.array().map_err(text)?),
                entered_at: input.varint().map_err(text)?,
                removed_at: None,
            });
        }
        let count = input.bounded(self.packs.len()).map_err(text)?;
        for _ in 0..count {
            let index = usize::try_from(input.varint().map_err(text)?).unwrap_or(usize::MAX);
            let host = usize::try_from(input.varint().map_err(text)?).unwrap_or(usize::MAX);
            let spoiled = input.varint().map_err(text)?;
            let host = match host.checked_sub(1) {
                None => None,
                Some(place) => {
                    let entered = self.hosts.get(place);
                    Some(entered.ok_or("a pack is of a host that it does not list")?.host)
                }
            };
            let pack = self.packs.get_mut(index).ok_or("it names a pack that it does not list")?;
            (pack.host, pack.spoiled_at) = (host, spoiled.checked_sub(1));
        }
        if input.remaining() == 0 {
            return Ok(());
        }
        let count = input.bounded(self.hosts.len()).map_err(text)?;
        for _ in 0..count {
            let place = usize::try_from(input.varint().map_err(text)?).unwrap_or(usize::MAX);
            let host = self.hosts.get_mut(place).ok_or("it removes a host that it does not list")?;
            host.removed_at = Some(input.varint().map_err(text)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::popular::{OwnHost, needs_check, needs_verdict};

    fn state_of(records: impl IntoIterator<Item = Record>) -> PopularState {
        let mut state = PopularState::default();
        for (record, number) in records.into_iter().zip(0..) {
            state.apply(&Entry { number, created_ms: 0, record });
        }
        state
    }

    fn popular(pack: u64, first_ordinal: u32, frames: u32) -> Record {
        Record::Popular {
            volume: 1,
            pack: PackNumber(pack),
            first_ordinal,
            frames,
            writer: Writer(9),
            host: None,
        }
    }

    #[test]
    fn ordinals_ascend_and_lead_back_to_frames_even_behind_a_lost_record() {
        let checked = Record::Checked { pack: PackNumber(7), host: None };
        let state =
            state_of([popular(9, 0, 3), popular(7, 4, 2), popular(9, 6, 3), checked.clone(), checked]);
        assert_eq!(state.next_ordinal(), 6);
        let found = |ordinal| state.of_ordinal(ordinal).map(|(pack, slot)| (pack.pack.0, slot));
        assert_eq!(
            [0, 2, 3, 4, 5, 6].map(found),
            [Some((9, 0)), Some((9, 2)), None, Some((7, 0)), Some((7, 1)), None]
        );
        assert_eq!(state.pack(PackNumber(7)).and_then(|pack| pack.checked_at), Some(3));
        assert_eq!(state.pack(PackNumber(9)).and_then(|pack| pack.checked_at), None);
        let mut bytes = Vec::new();
        state.put(&mut bytes);
        assert_eq!(PopularState::parse(5, &mut Reader::new(&bytes), 2), Ok(state));
    }

    #[test]
    fn what_is_condemned_is_spared_or_goes_and_a_checkpoint_says_so() {
        let packs = |numbers: &[u64]| numbers.iter().map(|number| PackNumber(*number)).collect();
        let state = state_of([
            popular(1, 0, 3),
            popular(2, 3, 3),
            popular(3, 6, 3),
            popular(4, 9, 3),
            Record::Spared { packs: packs(&[4]) },
            Record::Condemned { packs: packs(&[1, 2, 3, 9]) },
            Record::Spared { packs: packs(&[2, 4]) },
            Record::Gone { packs: packs(&[3]) },
        ]);
        let fates: Vec<Fate> = state.packs.iter().map(|pack| pack.fate).collect();
        assert_eq!(fates, [Fate::Condemned(5), Fate::Stays, Fate::Gone, Fate::Stays]);
        assert_eq!(state.generation, 8);
        // Its ordinals are nobody else's.
        assert_eq!(state.next_ordinal(), 12);
        let mut bytes = Vec::new();
        state.put(&mut bytes);
        assert_eq!(PopularState::parse(8, &mut Reader::new(&bytes), 2), Ok(state));
        for len in 0..bytes.len() {
            let _ = PopularState::parse(8, &mut Reader::new(&bytes[..len]), 2);
        }
    }

    fn host(number: u8) -> HostKey {
        HostKey([number; 32])
    }

    fn entered(number: u8) -> Record {
        Record::HostEntered { host: host(number), key: KeyId([number; 8]) }
    }

    fn signed(pack: u64, first_ordinal: u32, by: u8) -> Record {
        let Record::Popular { volume, pack, first_ordinal, frames, writer, .. } =
            popular(pack, first_ordinal, 1)
        else {
            unreachable!("it was made above")
        };
        Record::Popular { volume, pack, first_ordinal, frames, writer, host: Some(host(by)) }
    }

    fn checked(pack: u64, by: Option<u8>) -> Record {
        Record::Checked { pack: PackNumber(pack), host: by.map(host) }
    }

    fn spoiled(pack: u64, by: Option<u8>) -> Record {
        Record::Spoiled { pack: PackNumber(pack), host: by.map(host) }
    }

    /// Symptom: a host that stored other bytes under popular ids, and entered Checked itself, damaged
    /// snapshots of all others.
    /// Cause: anybody's Checked counted, and nothing said that a pack is bad.
    /// Fix: hosts sign; a Checked of the writer or of nobody is void, and Spoiled stays.
    #[test]
    fn a_pack_is_checked_by_another_host_and_stays_spoiled() {
        let records = vec![
            // From before anybody signed.
            popular(1, 0, 1),
            popular(2, 1, 1),
            checked(2, None),
            entered(1),
            entered(2),
            entered(2),
            signed(3, 2, 1),
            checked(3, Some(1)),
            checked(3, None),
            checked(3, Some(9)),
            signed(4, 3, 1),
            checked(4, Some(2)),
            // Not signed, or by a host that is not entered: nobody may check it, since its writer may be
            // anybody.
            popular(5, 4, 1),
            checked(5, Some(2)),
            signed(6, 5, 9),
            checked(6, Some(1)),
            checked(1, Some(1)),
            signed(7, 6, 2),
            spoiled(7, Some(9)),
            spoiled(7, None),
            checked(7, Some(1)),
            spoiled(4, Some(2)),
            checked(4, Some(2)),
        ];
        let state = state_of(records);
        let known = |number| *state.pack(PackNumber(number)).unwrap();
        let is_checked = [1, 2, 3, 4, 5, 6, 7].map(|pack| known(pack).checked_at.is_some());
        assert_eq!(is_checked, [true, true, false, true, false, false, true]);
        let is_spoiled = [1, 2, 3, 4, 5, 6, 7].map(|pack| known(pack).spoiled_at.is_some());
        assert_eq!(is_spoiled, [false, false, false, true, false, false, false]);
        assert_eq!(state.generation, 22, "whoever indexes packs begins anew");
        assert_eq!(state.hosts.len(), 2);
        assert_eq!((known(3).host, known(5).host, known(6).host), (Some(host(1)), None, None));
        let mut bytes = Vec::new();
        state.put(&mut bytes);
        let number = state.next_number;
        assert_eq!(PopularState::parse(number, &mut Reader::new(&bytes), 2), Ok(state));
        for len in 0..bytes.len() {
            let _ = PopularState::parse(number, &mut Reader::new(&bytes[..len]), 2);
        }
    }

    /// Symptom: no test noticed when a second verdict, or a second removal, took the place of the first: what
    /// a snapshot may refer to depends on which came first.
    #[test]
    fn the_first_verdict_and_the_first_removal_count() {
        let removed = || Record::HostRemoved { host: host(1) };
        let state = state_of([
            entered(1),
            entered(2),
            signed(1, 0, 1),
            spoiled(1, Some(2)),
            spoiled(1, Some(2)),
            removed(),
            removed(),
        ]);
        assert_eq!(state.pack(PackNumber(1)).unwrap().spoiled_at, Some(3));
        assert_eq!(state.generation, 4);
        assert_eq!(state.hosts[0].removed_at, Some(5));
    }

    #[test]
    fn a_pack_that_is_gone_needs_no_verdict_and_a_host_without_a_key_has_written_nothing() {
        let gone = Record::Gone { packs: vec![PackNumber(1)] };
        let state = state_of([entered(1), popular(1, 0, 1), popular(2, 1, 1), gone]);
        let needs = |pack| [needs_check, needs_verdict].map(|needs| needs(&state, PackNumber(pack)));
        assert_eq!((needs(1), needs(2)), ([false; 2], [true; 2]));
        // Of its name, and nobody has signed it.
        let known = state.pack(PackNumber(2)).unwrap();
        let own = OwnHost { writer: known.writer, key: None };
        assert!(!own.has_written(&state, known));
        let unsigned = state_of([popular(2, 0, 1)]);
        assert!(own.has_written(&unsigned, unsigned.pack(PackNumber(2)).unwrap()));
    }

    #[test]
    fn without_hosts_anybody_checks_and_spoils() {
        let state = state_of([popular(1, 0, 1), checked(1, None), spoiled(1, None)]);
        let known = state.pack(PackNumber(1)).unwrap();
        assert_eq!((known.checked_at, known.spoiled_at), (Some(1), Some(2)));
        let mut bytes = Vec::new();
        state.put(&mut bytes);
        assert_eq!(PopularState::parse(3, &mut Reader::new(&bytes), 2), Ok(state));
    }

    #[test]
    fn a_pack_beyond_the_last_ordinal_is_not_entered() {
        let last = Answer::FIRST_CODE - 1;
        let state =
            state_of([popular(1, 0, last), popular(2, last, 2), popular(4, 3, 1), popular(3, last, 1)]);
        let packs: Vec<u64> = state.packs.iter().map(|pack| pack.pack.0).collect();
        assert_eq!(packs, [1, 3]);
        assert!(!state.has_room(state.next_ordinal(), 1));
    }
}

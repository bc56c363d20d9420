//! State of the log of popular packs: a pure fold over its records.
//!
//! Format: docs/formats/backup-checkpoint.md v2
//!
//! A pack of popular chunks is entered once it is durable. Its record gives its frames their ordinals, by
//! which agents name them. VMs of other hosts may use the pack only after another agent has opened all of it
//! (BAK-20).
//!
//! From the first HostEntered on, only signatures of entered hosts count:
//! - A Checked without the signature of an entered host, or signed by the host that wrote the pack, is
//!   ignored.
//! - A Spoiled of an entered host stays in force despite any later Checked.
//! - Records of a host whose key was removed are ignored from its HostRemoved on. Earlier ones stay in force,
//!   since snapshots may refer to those packs.

use super::fold::{LogEntry, LogState};
use super::record::Record;
use crate::keys::role::KeyId;
use crate::packs::pack::PackNumber;
use crate::request::peers::{Answer, HostKey, Writer};
use crate::rules::broken::{self, Flaw};
use copal_codec::{DecodeError, Put, Reader};

/// Least bytes of a pack in a checkpoint: number, volume, ordinal, frames, writer, two record numbers.
const LEAST_PACK_BYTES: usize = 27;

/// A pack of popular chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PopularPack {
    pub(crate) pack: PackNumber,
    pub(crate) volume: u32,
    /// Ordinal of its first frame; the other frames follow.
    pub(crate) first_ordinal: u32,
    pub(crate) frames: u32,
    pub(crate) writer: Writer,
    /// Number of its Popular record.
    pub(crate) entered_at: u64,
    /// Number of the first valid Checked record.
    pub(crate) checked_at: Option<u64>,
    /// Number of the first valid Spoiled record.
    pub(crate) spoiled_at: Option<u64>,
    /// The entered host that signed its Popular record.
    pub(crate) host: Option<HostKey>,
    pub(crate) fate: PopularFate,
}

/// A host whose signatures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EnteredHost {
    pub(crate) host: HostKey,
    /// Its role key.
    pub(crate) key: KeyId,
    /// Number of its HostEntered record.
    pub(crate) entered_at: u64,
    /// Number of its HostRemoved record.
    pub(crate) removed_at: Option<u64>,
}

impl EnteredHost {
    /// Whether its signatures count in new records.
    pub(crate) fn counts(&self) -> bool {
        self.removed_at.is_none() || broken::by(Flaw::RemovedKeyCounts)
    }
}

/// State of an entered pack in the removal protocol (BAK-27).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum PopularFate {
    #[default]
    Stays,
    /// Takes no new references since the record of this number.
    Condemned(u64),
    /// Not needed by any snapshot; it is being removed, or was.
    Removed,
}

impl PopularPack {
    pub(crate) fn end_ordinal(&self) -> u32 {
        self.first_ordinal + self.frames
    }

    /// Whether the pack is to be removed and takes no references: an entry without frames marks the pack of a
    /// dead writer (BAK-24), or no snapshot needs it (BAK-27).
    pub(crate) fn is_removed(&self) -> bool {
        self.frames == 0 || self.fate == PopularFate::Removed
    }
}

/// State of the log of popular packs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PopularState {
    /// Number of the next record.
    pub(crate) next_number: u64,
    /// In the order of their ordinals.
    pub(crate) packs: Vec<PopularPack>,
    /// One more than the number of the newest record by which packs were condemned, spared, removed or
    /// spoiled; 0: there was none.
    pub(crate) generation: u64,
    /// In the order in which they were entered; empty: hosts do not sign.
    pub(crate) hosts: Vec<EnteredHost>,
}

impl PopularState {
    /// Whether a host is entered and its key was not removed.
    pub(crate) fn is_entered(&self, host: &HostKey) -> bool {
        self.hosts.iter().any(|entered| entered.host == *host && entered.counts())
    }

    /// The signer of a record, if its signatures count.
    fn entered(&self, host: Option<HostKey>) -> Option<HostKey> {
        host.filter(|host| self.is_entered(host))
    }

    /// Whether a new record must be signed by an entered host.
    pub(crate) fn needs_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether a Checked record of this pack by `host` is valid.
    pub(crate) fn may_check(&self, pack: &PopularPack, host: Option<HostKey>) -> bool {
        let Some(first) = self.hosts.first() else {
            return true;
        };
        let Some(host) = self.entered(host) else {
            return false;
        };
        // The writer of a pack from before the first host is unknown, so any entered host may check it.
        let is_of_before = pack.entered_at < first.entered_at;
        let is_of_another = pack.host.is_some_and(|writer| writer != host) || broken::by(Flaw::ChecksOwn);
        is_of_before || is_of_another
    }

    /// Whether a Spoiled record by `host` is valid.
    pub(crate) fn may_spoil(&self, host: Option<HostKey>) -> bool {
        !self.needs_hosts() || self.entered(host).is_some()
    }

    /// Ordinal of the next frame.
    pub(crate) fn next_ordinal(&self) -> u32 {
        self.packs.last().map_or(0, PopularPack::end_ordinal)
    }

    /// The pack of an ordinal, and the slot of the frame in it.
    pub(crate) fn of_ordinal(&self, ordinal: u32) -> Option<(&PopularPack, u32)> {
        let behind = self.packs.partition_point(|pack| pack.first_ordinal <= ordinal);
        let pack = self.packs.get(behind.checked_sub(1)?)?;
        (ordinal < pack.end_ordinal()).then(|| (pack, ordinal - pack.first_ordinal))
    }

    /// The entry of a pack.
    pub(crate) fn pack(&self, pack: PackNumber) -> Option<&PopularPack> {
        // Look-ups mostly ask for recent packs.
        self.packs.iter().rev().find(|known| known.pack == pack)
    }

    fn pack_mut(&mut self, pack: PackNumber) -> Option<&mut PopularPack> {
        self.packs.iter_mut().rev().find(|known| known.pack == pack)
    }

    /// Condemned packs, with the number of the record that condemned them.
    pub(crate) fn condemned(&self) -> impl Iterator<Item = (PackNumber, u64)> {
        self.packs.iter().filter_map(|pack| match pack.fate {
            PopularFate::Condemned(at) => Some((pack.pack, at)),
            PopularFate::Stays | PopularFate::Removed => None,
        })
    }

    /// Changes the state of packs, if `decide` allows it.
    fn decide(&mut self, number: u64, packs: &[PackNumber], decide: impl Fn(PopularFate) -> PopularFate) {
        self.generation = number + 1;
        for known in self.packs.iter_mut().filter(|known| packs.contains(&known.pack)) {
            known.fate = decide(known.fate);
        }
    }

    /// Whether the ordinals from `first` on are free.
    pub(crate) fn has_room(&self, first: u32, frames: u32) -> bool {
        let end = first.checked_add(frames);
        first >= self.next_ordinal() && end.is_some_and(|end| end <= Answer::FIRST_CODE)
    }
}

impl LogState for PopularState {
    const KIND: u8 = 3;

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn set_next_number(&mut self, number: u64) {
        self.next_number = number;
    }

    fn apply(&mut self, entry: &LogEntry) {
        self.next_number = entry.number + 1;
        match &entry.record {
            Record::Popular { volume, pack, first_ordinal, frames, writer, host } => {
                // The first entry of a pack determines its ordinals.
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
                    fate: PopularFate::Stays,
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
                    // Owners of partitions discard their runs and make them anew.
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
                    PopularFate::Stays => PopularFate::Condemned(number),
                    PopularFate::Condemned(_) | PopularFate::Removed => fate,
                });
            }
            Record::Spared { packs } => self.decide(entry.number, packs, |fate| match fate {
                PopularFate::Stays | PopularFate::Condemned(_) => PopularFate::Stays,
                PopularFate::Removed => PopularFate::Removed,
            }),
            // Its writer knew that they were condemned, though the Condemned record may be lost.
            Record::Gone { packs } => self.decide(entry.number, packs, |_| PopularFate::Removed),
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
        // The part about condemned packs is left out while there are none: the bytes of older states stay the
        // same.
        if self.generation == 0 && !is_signed {
            return;
        }
        bytes.put_varint(self.generation);
        let decided = self.packs.iter().zip(0..);
        let decided: Vec<(u64, u64)> = decided
            .filter_map(|(pack, index)| match pack.fate {
                PopularFate::Stays => None,
                PopularFate::Removed => Some((index, 0)),
                PopularFate::Condemned(at) => Some((index, at + 1)),
            })
            .collect();
        bytes.put_varint(decided.len() as u64);
        for (index, fate) in decided {
            bytes.put_varint(index);
            bytes.put_varint(fate);
        }
        // The part about hosts is left out while no host was entered and no pack is spoiled.
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
                fate: PopularFate::Stays,
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
                None => PopularFate::Removed,
                Some(at) => PopularFate::Condemned(at),
            };
        }
        if input.remaining() > 0 {
            state.parse_hosts(input)?;
        }
        Ok(state)
    }
}

/// Least bytes of a host in a checkpoint.
const LEAST_HOST_BYTES: usize = 32 + 8 + 1;

impl PopularState {
    /// Encodes the hosts. Then for each pack that a host signed, or that is spoiled: its index, the host and
    /// the record. Then, if there are any, the hosts whose key was removed: their indexes and the records.
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
mod tests;

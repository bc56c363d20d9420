//! What the log of popular packs amounts to: a pure fold over its records.
//!
//! Format: docs/formats/backup-checkpoint.md v2
//!
//! A pack of popular chunks is entered once it is durable. That gives its frames their ordinals: the numbers by which agents
//! speak of them. It counts for other VMs than its writer's once another agent has opened all of it (BAK-20).

use super::fold::{Entry, Fold};
use super::record::Record;
use crate::pack::PackNumber;
use crate::peers::Answer;
use crate::peers::Writer;
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
    pub(crate) fate: Fate,
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

    /// Nobody refers to it, and it is removed: it was entered without frames, since its writer is gone (BAK-24), or nobody needs
    /// it (BAK-27).
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
    /// One more than the number of the newest record by which packs were condemned, spared or gone; 0: there was none.
    pub(crate) generation: u64,
}

impl PopularState {
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
            Record::Popular {
                volume,
                pack,
                first_ordinal,
                frames,
                writer,
            } => {
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
                    fate: Fate::Stays,
                });
            }
            Record::Checked { pack } => {
                if let Some(known) = self.packs.iter_mut().rev().find(|known| known.pack == *pack) {
                    known.checked_at.get_or_insert(entry.number);
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
        // A state in which nothing was ever condemned has the bytes that it had before that could be.
        if self.generation == 0 {
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
    }

    fn parse(next_number: u64, input: &mut Reader<'_>, _version: u16) -> Result<PopularState, String> {
        let text = |error: DecodeError| error.to_string();
        let count = input
            .bounded(input.remaining() / LEAST_PACK_BYTES)
            .map_err(text)?;
        let mut state = PopularState {
            next_number,
            packs: Vec::with_capacity(count),
            generation: 0,
        };
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
                .and_then(|index| state.packs.get_mut(index));
            let pack = pack.ok_or("it condemns a pack that it does not list")?;
            pack.fate = match fate.checked_sub(1) {
                None => Fate::Gone,
                Some(at) => Fate::Condemned(at),
            };
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(records: impl IntoIterator<Item = Record>) -> PopularState {
        let mut state = PopularState::default();
        for (record, number) in records.into_iter().zip(0..) {
            state.apply(&Entry {
                number,
                created_ms: 0,
                record,
            });
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
        }
    }

    #[test]
    fn ordinals_ascend_and_lead_back_to_frames_even_behind_a_lost_record() {
        let checked = Record::Checked { pack: PackNumber(7) };
        let state = state_of([
            popular(9, 0, 3),
            popular(7, 4, 2),
            popular(9, 6, 3),
            checked.clone(),
            checked,
        ]);
        assert_eq!(state.next_ordinal(), 6);
        let found = |ordinal| state.of_ordinal(ordinal).map(|(pack, slot)| (pack.pack.0, slot));
        assert_eq!(
            [0, 2, 3, 4, 5, 6].map(found),
            [Some((9, 0)), Some((9, 2)), None, Some((7, 0)), Some((7, 1)), None]
        );
        assert_eq!(
            state.pack(PackNumber(7)).and_then(|pack| pack.checked_at),
            Some(3)
        );
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
            Record::Condemned {
                packs: packs(&[1, 2, 3, 9]),
            },
            Record::Spared {
                packs: packs(&[2, 4]),
            },
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

    #[test]
    fn a_pack_beyond_the_last_ordinal_is_not_entered() {
        let last = Answer::FIRST_CODE - 1;
        let state = state_of([
            popular(1, 0, last),
            popular(2, last, 2),
            popular(4, 3, 1),
            popular(3, last, 1),
        ]);
        let packs: Vec<u64> = state.packs.iter().map(|pack| pack.pack.0).collect();
        assert_eq!(packs, [1, 3]);
        assert!(!state.has_room(state.next_ordinal(), 1));
    }
}

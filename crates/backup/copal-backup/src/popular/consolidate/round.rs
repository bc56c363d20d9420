//! One round of a clean-up: asks about some of the VM's own frames and finds their popular frames.
//!
//! Invariants
//! - A frame that is stored as a popular one was decrypted and has its id.
//! - A popular frame is accepted only if its pack was checked and the frame decrypts here, since the VM's own
//!   frame is given up for it (BAK-22).

use super::clean_up::CleanUp;
use super::own_packs::OwnPack;
use crate::backup::{PopularPacker, spool_failed};
use crate::catalog::popular::PopularState;
use crate::index::dead_frames::DeadFrames;
use crate::index::moved_frames::MovedFrame;
use crate::packs::frame_reader::FrameReader;
use crate::packs::home::PackHome;
use crate::packs::pack::FrameLocation;
use crate::packs::pack_store::LocatedFrame;
use crate::request::Vm;
use crate::request::error::Result;
use crate::request::peers::{Answer, ShortId, Turn};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::RepositoryParts;
use crate::steps::frames::is_in_use;
use crate::steps::popular::counts;

/// A frame that other hosts are asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnFrame {
    pub(super) id: ShortId,
    /// Index of its pack in the round.
    pack: u32,
    slot: u32,
    /// Bytes as stored, and of the chunk.
    pub(super) stored: u32,
    pub(super) raw: u32,
}

/// A frame of the VM by its number in the round, and the popular frame of the same chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct PopularMatch {
    pub(super) own: usize,
    pub(super) popular: MovedFrame,
}

/// One round; see the module.
pub(super) struct CleanUpRound<'a> {
    parts: &'a RepositoryParts,
    vm: &'a Vm,
    number: u32,
    packs: Vec<OwnPack>,
    frames: Vec<OwnFrame>,
}

impl<'a> CleanUpRound<'a> {
    pub(super) fn new(parts: &'a RepositoryParts, vm: &'a Vm, number: u32) -> CleanUpRound<'a> {
        CleanUpRound { parts, vm, number, packs: Vec::new(), frames: Vec::new() }
    }

    /// Number of its frames.
    pub(super) fn len(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Adds the frames of a pack, except dead ones and those noted as damaged. A missing or unreadable pack
    /// adds none.
    pub(super) fn add(&mut self, mut pack: OwnPack, dead: &DeadFrames) -> Result<()> {
        let pack_store = self.parts.pack_store();
        let home = PackHome::Private(self.vm.uuid);
        let footer = match pack_store.footer(home, pack.volume, pack.number) {
            Err(error) if error.is_corruption() => None,
            found => found?,
        };
        let Some((footer, _)) = footer else {
            return Ok(());
        };
        let damaged = pack_store.index.damaged_slots(pack.number)?;
        let number = self.packs.len() as u32;
        let rows = footer.rows.iter().zip(0..);
        let alive = rows.filter(|(_, slot)| is_in_use(dead, pack.number, *slot) && !damaged.contains(slot));
        self.frames.extend(alive.map(|(row, slot)| OwnFrame {
            id: row.id,
            pack: number,
            slot,
            stored: row.stored,
            raw: row.raw,
        }));
        pack.frames = footer.rows.len() as u32;
        self.packs.push(pack);
        Ok(())
    }

    pub(super) fn frame(&self, number: usize) -> &OwnFrame {
        &self.frames[number]
    }

    /// Location of a frame, and the number of frames in its pack.
    pub(super) fn place(&self, number: usize) -> (FrameLocation, u32) {
        let frame = &self.frames[number];
        let pack = &self.packs[frame.pack as usize];
        let location = FrameLocation {
            home: PackHome::Private(self.vm.uuid),
            volume: pack.volume,
            pack: pack.number,
            slot: frame.slot,
        };
        (location, pack.frames)
    }

    /// Asks, stores the popular chunks that were assigned to this host, and waits until others have checked
    /// them. Returns the frames with a popular frame.
    pub(super) fn run(
        &self,
        cleanup: &mut CleanUp<'_>,
        popular: &mut PopularPacker<'_>,
    ) -> Result<Vec<PopularMatch>> {
        let mut answers = self.ask(cleanup)?;
        let mut found = self.store(cleanup, &answers, popular)?;
        self.ask_again(cleanup, &mut answers, &found)?;
        let state = self.parts.catalog().popular()?;
        for (own, answer) in answers.iter().enumerate() {
            found.extend(hit(&state, *answer).map(|location| self.found(own, location)));
        }
        found.retain(|found| counts(&state, found.popular.pack));
        let found = self.opened(cleanup, found)?;
        let stays = answers.iter().filter(|answer| answer.leaves_it_to_the_vm()).count();
        cleanup.summary.unanswered += (answers.len() - stays).saturating_sub(found.len()) as u64;
        self.count_refused(cleanup, &answers);
        Ok(found)
    }

    /// Asks, and counts the frames that a clean-up would give up.
    pub(super) fn count(&self, cleanup: &mut CleanUp<'_>) -> Result<()> {
        let answers = self.ask(cleanup)?;
        let state = self.parts.catalog().popular()?;
        for (answer, frame) in answers.iter().zip(&self.frames) {
            let is_shared = match hit(&state, *answer) {
                Some(location) => counts(&state, location.pack),
                None => [Answer::STORE_POPULAR, Answer::CARRY].contains(answer),
            };
            if is_shared {
                cleanup.summary.moved += 1;
                cleanup.summary.moved_bytes += u64::from(frame.raw);
                cleanup.summary.freed_bytes += u64::from(frame.stored);
            }
        }
        let unanswered = answers.iter().filter(|answer| **answer == Answer::UNANSWERED);
        cleanup.summary.unanswered += unanswered.count() as u64;
        self.count_refused(cleanup, &answers);
        Ok(())
    }

    fn count_refused(&self, cleanup: &mut CleanUp<'_>, answers: &[Answer]) {
        let refused = answers.iter().zip(&self.frames);
        for (_, frame) in refused.filter(|(answer, _)| **answer == Answer::FRACTION_USED) {
            cleanup.summary.refused += 1;
            cleanup.summary.refused_bytes += u64::from(frame.raw);
        }
    }

    fn found(&self, own: usize, location: FrameLocation) -> PopularMatch {
        let popular = MovedFrame {
            id: self.frames[own].id,
            volume: location.volume,
            pack: location.pack,
            slot: location.slot,
        };
        PopularMatch { own, popular }
    }

    fn ask(&self, cleanup: &CleanUp<'_>) -> Result<Vec<Answer>> {
        let (others, vm) = (cleanup.others, self.vm.uuid);
        let turn = others.turn(vm, Turn::Read(self.number))?;
        let mut ids = self.frames.iter().map(|frame| Ok(frame.id));
        let sent = others.peers.send(vm, &mut ids).map_err(|error| spool_failed(&error))?;
        drop(turn);
        let mut answers = others.peers.receive(sent);
        answers.resize(self.frames.len(), Answer::UNANSWERED);
        Ok(answers)
    }

    /// Stores the popular chunks that were assigned to this host. Returns their locations, and those of
    /// existing ones.
    fn store(
        &self,
        cleanup: &mut CleanUp<'_>,
        answers: &[Answer],
        popular: &mut PopularPacker<'_>,
    ) -> Result<Vec<PopularMatch>> {
        let others = cleanup.others;
        let _turn = others.turn(self.vm.uuid, Turn::Store(self.number))?;
        let pack_store = self.parts.pack_store();
        let mut reader = FrameReader::new(pack_store)?;
        let is_wanted = |answer: &Answer| *answer == Answer::STORE_POPULAR;
        let wanted = answers.iter().enumerate().filter(|(_, answer)| is_wanted(answer));
        let wanted: Vec<usize> = wanted.map(|(number, _)| number).collect();
        let mut ahead = 0;
        for (at, &number) in wanted.iter().enumerate() {
            cleanup.check_cancel()?;
            let id = self.frames[number].id;
            if at == ahead {
                let next = wanted[at..].iter().map(|&number| (self.place(number).0, self.frames[number].id));
                ahead += reader.read_ahead(next)?;
            }
            if popular.has(&id)? {
                continue;
            }
            let located = pack_store.at(self.place(number).0, &id);
            match located.and_then(|located| located.map(|at| reader.raw(&at)).transpose()) {
                Ok(Some(raw)) if pack_store.keys.id.id(raw).short() == id => {
                    popular.store(&id, raw)?;
                    cleanup.summary.stored_popular += 1;
                }
                // The own frame is damaged, so it does not become popular.
                Ok(_) => {}
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        if popular.finish()? {
            others.peers.stored();
        }
        let mut found = Vec::new();
        for number in wanted {
            let location = popular.find(&self.frames[number].id)?;
            found.extend(location.map(|location| self.found(number, location)));
        }
        Ok(found)
    }

    /// Asks again for chunks that other hosts are storing, and for those stored here until another host has
    /// checked them, or the deadline passes.
    fn ask_again(
        &self,
        cleanup: &CleanUp<'_>,
        answers: &mut [Answer],
        stored: &[PopularMatch],
    ) -> Result<()> {
        loop {
            cleanup.check_cancel()?;
            let state = self.parts.catalog().popular()?;
            let unchecked = stored.iter().filter(|found| !counts(&state, found.popular.pack));
            let carried = answers.iter().enumerate().filter(|(_, answer)| **answer == Answer::CARRY);
            let mut waiting: Vec<usize> = carried.map(|(number, _)| number).collect();
            waiting.extend(unchecked.map(|found| found.own));
            if waiting.is_empty() {
                return Ok(());
            }
            waiting.sort_unstable();
            let mut ids = waiting.iter().map(|number| Ok(self.frames[*number].id));
            let again = cleanup.others.peers.ask_again(self.vm.uuid, &mut ids);
            let Some(again) = again.map_err(|error| spool_failed(&error))? else {
                return Ok(());
            };
            for (number, answer) in waiting.into_iter().zip(again) {
                // No popular chunk is stored in this phase, so such an answer does not replace the old one.
                let is_own = answers[number] == Answer::STORE_POPULAR;
                let says_more = answer != Answer::STORE_POPULAR && answer != Answer::UNANSWERED;
                if answer.ordinal().is_some() || (!is_own && says_more) {
                    answers[number] = answer;
                }
            }
        }
    }

    /// The frames whose popular frame decrypts to the chunk.
    fn opened(&self, cleanup: &CleanUp<'_>, mut found: Vec<PopularMatch>) -> Result<Vec<PopularMatch>> {
        let pack_store = self.parts.pack_store();
        let mut reader = FrameReader::new(pack_store)?;
        found.sort_unstable_by_key(|found| (found.popular.location(), found.own));
        found.dedup_by_key(|found| (found.popular.location(), found.own));
        let mut good = Vec::with_capacity(found.len());
        let mut last: Option<FrameLocation> = None;
        let mut ahead = 0;
        for (at, one) in found.iter().enumerate() {
            cleanup.check_cancel()?;
            let location = one.popular.location();
            if at == ahead {
                let next = found[at..].iter().map(|next| (next.popular.location(), next.popular.id));
                ahead += reader.read_ahead(next)?;
            }
            if last != Some(location) && !self.opens(&mut reader, one)? && !broken::by(Flaw::MovesUnopened) {
                continue;
            }
            last = Some(location);
            good.push(*one);
        }
        // A chunk with two popular frames is given up for one of them.
        good.sort_by_key(|found| found.own);
        good.dedup_by_key(|found| found.own);
        Ok(good)
    }

    fn opens(&self, reader: &mut FrameReader<'_>, found: &PopularMatch) -> Result<bool> {
        let pack_store = self.parts.pack_store();
        let MovedFrame { id, .. } = found.popular;
        let opened = pack_store.at(found.popular.location(), &id).and_then(|located| {
            let raw = located
                .map(|located: LocatedFrame| reader.raw(&located).map(|raw| pack_store.keys.id.id(raw)));
            raw.transpose()
        });
        match opened {
            Ok(raw) => Ok(raw.is_some_and(|opened| opened.short() == id)),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The location that an answer names.
fn hit(state: &PopularState, answer: Answer) -> Option<FrameLocation> {
    let (pack, slot) = state.of_ordinal(answer.ordinal()?)?;
    Some(FrameLocation { home: PackHome::Shared, volume: pack.volume, pack: pack.pack, slot })
}

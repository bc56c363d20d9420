//! Which answers count: those to a batch that is open, from a member that was asked, shaped as the ask was.

use super::{
    AskerOptions, Patience,
    batch::{BatchId, Pending, Standing},
};
use crate::messages::Answers;
use copal_backup::peers::Answer;
use std::time::Instant;
use tracing::warn;

/// Why answers do not count.
enum Reason {
    Late,
    Repeated,
    Foreign,
    Miscounted,
    UnknownCode,
    Stale,
}

impl Pending {
    /// Takes answers from a member, or drops and counts them. Whether they counted.
    pub(super) fn answer(
        &mut self,
        member: usize,
        answers: &Answers,
        options: &AskerOptions,
        patience: &dyn Patience,
    ) -> bool {
        let id = BatchId::of_number(answers.batch);
        let checked = self.check(member, id, answers, options);
        match checked.map(|codes| self.place(id, &codes)) {
            Ok(()) => {
                if let Some(since) = self.part(id.ticket).and_then(|part| part.since) {
                    patience.answered(member, Instant::now().saturating_duration_since(since));
                }
                self.finish(id);
                true
            }
            Err(reason) => {
                let count = match reason {
                    Reason::Late => &mut self.dropped.late,
                    Reason::Repeated => &mut self.dropped.repeated,
                    Reason::Foreign => &mut self.dropped.foreign,
                    Reason::Miscounted => &mut self.dropped.miscounted,
                    Reason::UnknownCode => &mut self.dropped.unknown_code,
                    Reason::Stale => &mut self.dropped.stale,
                };
                *count += 1;
                false
            }
        }
    }

    fn check(
        &mut self,
        member: usize,
        id: BatchId,
        answers: &Answers,
        options: &AskerOptions,
    ) -> Result<Vec<Answer>, Reason> {
        if answers.job != options.job || id.ticket >= self.next {
            return Err(Reason::Foreign);
        }
        let part = self.parts.get(&id.ticket).ok_or(Reason::Late)?;
        let batch = part.batches.get(id.index).ok_or(Reason::Foreign)?;
        if answers.round != part.round || answers.partition != batch.partition {
            return Err(Reason::Foreign);
        }
        let target = batch
            .targets
            .iter()
            .find(|target| usize::from(target.member) == member)
            .filter(|target| target.standing != Standing::Unasked);
        if target.is_none() {
            return Err(Reason::Foreign);
        }
        if batch.done {
            let both = batch.targets.iter().all(|target| matches!(target.standing, Standing::Asked(_)));
            return Err(if both { Reason::Late } else { Reason::Repeated });
        }
        if answers.codes.len() != usize::from(batch.count) {
            return Err(Reason::Miscounted);
        }
        if answers.generation < options.oldest_generation {
            return Err(Reason::Stale);
        }
        let codes = answers.codes.iter().copied().map(Answer::from_code);
        codes.collect::<Option<Vec<Answer>>>().ok_or(Reason::UnknownCode)
    }

    /// Puts checked answers where their ids stood.
    fn place(&mut self, id: BatchId, answers: &[Answer]) {
        let Some(part) = self.parts.get_mut(&id.ticket) else {
            return;
        };
        let at = part.batches[id.index].at;
        let positions = match part.spool.positions(at, answers.len()) {
            Ok(positions) => positions,
            Err(error) => {
                warn!(%error, "the spool cannot be read: a batch counts as not answered");
                return;
            }
        };
        for (position, &answer) in positions.into_iter().zip(answers) {
            // The file is ours, and still no reason to stop a backup.
            if let Some(slot) = part.answers.get_mut(position as usize) {
                *slot = answer;
            }
        }
    }
}

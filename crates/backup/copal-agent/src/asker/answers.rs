//! Validation of answers: they count if the batch is open, the sender was asked, and the shape matches the
//! question.

use super::{
    AnswerPatience, AskerOptions,
    batch::{BatchId, PendingParts, TargetState},
};
use crate::fleet::messages::AnswerMessage;
use copal_backup::peers::Answer;
use std::time::Instant;
use tracing::warn;

/// Reason why an answer is dropped.
enum DropReason {
    Late,
    Repeated,
    Foreign,
    Miscounted,
    UnknownCode,
    Stale,
}

impl PendingParts {
    /// Accepts answers from a member, or drops and counts them. Returns whether they were accepted.
    pub(super) fn answer(
        &mut self,
        member: usize,
        answers: &AnswerMessage,
        options: &AskerOptions,
        patience: &dyn AnswerPatience,
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
                    DropReason::Late => &mut self.dropped.late,
                    DropReason::Repeated => &mut self.dropped.repeated,
                    DropReason::Foreign => &mut self.dropped.foreign,
                    DropReason::Miscounted => &mut self.dropped.miscounted,
                    DropReason::UnknownCode => &mut self.dropped.unknown_code,
                    DropReason::Stale => &mut self.dropped.stale,
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
        answers: &AnswerMessage,
        options: &AskerOptions,
    ) -> Result<Vec<Answer>, DropReason> {
        if answers.job != options.job || id.ticket >= self.next {
            return Err(DropReason::Foreign);
        }
        let part = self.parts.get(&id.ticket).ok_or(DropReason::Late)?;
        let batch = part.batches.get(id.index).ok_or(DropReason::Foreign)?;
        if answers.round != part.round || answers.partition != batch.partition {
            return Err(DropReason::Foreign);
        }
        let target = batch
            .targets
            .iter()
            .find(|target| usize::from(target.member) == member)
            .filter(|target| target.standing != TargetState::Unasked);
        if target.is_none() {
            return Err(DropReason::Foreign);
        }
        if batch.done {
            let both = batch.targets.iter().all(|target| matches!(target.standing, TargetState::Asked(_)));
            return Err(if both { DropReason::Late } else { DropReason::Repeated });
        }
        if answers.codes.len() != usize::from(batch.count) {
            return Err(DropReason::Miscounted);
        }
        if answers.generation < options.oldest_generation {
            return Err(DropReason::Stale);
        }
        let codes = answers.codes.iter().copied().map(Answer::from_code);
        codes.collect::<Option<Vec<Answer>>>().ok_or(DropReason::UnknownCode)
    }

    /// Stores checked answers at the positions of their ids.
    fn place(&mut self, id: BatchId, answers: &[Answer]) {
        let Some(part) = self.parts.get_mut(&id.ticket) else {
            return;
        };
        let at = part.batches[id.index].at;
        let positions = match part.spool.positions(at, answers.len()) {
            Ok(positions) => positions,
            Err(error) => {
                warn!(%error, "spool not readable, batch counts as unanswered");
                return;
            }
        };
        for (position, &answer) in positions.into_iter().zip(answers) {
            // The file belongs to this process; even so, the error must not stop a backup.
            if let Some(slot) = part.answers.get_mut(position as usize) {
                *slot = answer;
            }
        }
    }
}

//! When a round is compared: the rule of `copal_agent::agent::owner`, as a step function for all owners at once.
//!
//! Every part of a VM asks every owner and a marker reaches all of them at one time, so all see the same. The real one waits in
//! threads; the patience is the real one (`copal_agent::deadline`).

use super::super::engine::Nanos;
use copal_agent::deadline::patience_after;
use std::collections::BTreeSet;
use std::time::Duration;

/// What happens to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// All have asked, or somebody who was not waited for: it is due.
    Due,
    /// Others are waited for until then.
    Until(Nanos),
    /// Others are waited for, as was said before.
    Waits,
}

/// One round of a job.
#[derive(Debug, Default)]
pub(super) struct Markers {
    hosts: BTreeSet<usize>,
    began: Option<Nanos>,
    is_closed: bool,
    /// Late ones wait for others that are late.
    gathers: bool,
}

impl Markers {
    /// Somebody asks.
    pub(super) fn ask(&mut self, now: Nanos) {
        self.began.get_or_insert(now);
    }

    /// A host has asked all it will. One that is late waits so long for others that are; the product does not wait.
    pub(super) fn mark(
        &mut self,
        host: usize,
        participants: usize,
        now: Nanos,
        gather_late: Nanos,
    ) -> Marked {
        let is_first = self.hosts.is_empty();
        self.hosts.insert(host);
        let took = now - *self.began.get_or_insert(now);
        if self.hosts.len() >= participants || self.is_closed && gather_late == 0 {
            self.is_closed = true;
            Marked::Due
        } else if self.is_closed {
            match std::mem::replace(&mut self.gathers, true) {
                true => Marked::Waits,
                false => Marked::Until(now + gather_late),
            }
        } else if is_first {
            let patience = patience_after(Duration::from_nanos(took));
            Marked::Until(now + patience.as_nanos() as Nanos)
        } else {
            Marked::Waits
        }
    }

    /// Patience has ended. Whether that makes it due.
    pub(super) fn close(&mut self) -> bool {
        let gathered = std::mem::take(&mut self.gathers);
        !std::mem::replace(&mut self.is_closed, true) || gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_round_is_due_when_all_have_asked_or_half_as_long_again_after_the_first() {
        let mut round = Markers::default();
        round.ask(0);
        assert_eq!(round.mark(1, 3, 100 * SECOND, 0), Marked::Until(150 * SECOND));
        assert_eq!(round.mark(2, 3, 110 * SECOND, 0), Marked::Waits);
        assert_eq!(round.mark(0, 3, 120 * SECOND, 0), Marked::Due);
        assert!(!round.close());
    }

    #[test]
    fn who_comes_late_is_compared_at_once() {
        let mut round = Markers::default();
        assert_eq!(round.mark(1, 3, 5 * SECOND, 0), Marked::Until(15 * SECOND));
        assert!(round.close());
        assert_eq!(round.mark(2, 3, 400 * SECOND, 0), Marked::Due);
    }

    #[test]
    fn late_ones_can_be_gathered() {
        let mut round = Markers::default();
        let _ = round.mark(1, 4, 5 * SECOND, 10 * SECOND);
        assert!(round.close());
        let late = round.mark(2, 4, 400 * SECOND, 10 * SECOND);
        assert_eq!(late, Marked::Until(410 * SECOND));
        assert_eq!(round.mark(3, 4, 405 * SECOND, 10 * SECOND), Marked::Waits);
        assert!(round.close());
        assert_eq!(round.mark(0, 4, 420 * SECOND, 10 * SECOND), Marked::Due);
    }
}

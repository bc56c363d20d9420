//! Measurement of a data server's clock against the ruler of the leading master.
//!
//! Each heartbeat measures it: the master reads the ruler between request and reply. The duration of the
//! heartbeat bounds the error.
//!
//! Design: docs/design/cluster.md#rules VOL-42
//! Not here: the median of all clocks, and which servers are shut out of writes (`copal-master`).

use copal_client::machine;
use copal_proto::messages;
use std::time::{Duration, Instant};

/// Longest heartbeat that measures the clock.
const MAX_ROUND_TRIP: Duration = Duration::from_secs(2);

/// State of the own clock. See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnClock {
    /// Term of the ruler that it was measured against last; 0: none.
    pub(crate) term: u64,
    /// Lead over that ruler, ms.
    pub(crate) ahead_ms: i64,
    /// Difference to the reference, ms, as the master reports it.
    pub(crate) off_ms: i64,
    /// The difference is too large.
    pub(crate) is_wrong: bool,
    /// This server takes no part in writes until its clock is right.
    pub(crate) is_shut_out: bool,
}

/// Readings of both clocks when a heartbeat is sent.
pub(crate) struct SendTime {
    own_ms: u64,
    at: Instant,
}

impl SendTime {
    pub(crate) fn now(own_ms: u64) -> SendTime {
        SendTime { own_ms, at: machine::now() }
    }

    pub(crate) fn instant(&self) -> Instant {
        self.at
    }
}

impl OwnClock {
    /// Evaluates the reply to a heartbeat; `own_ms` is the own clock at its arrival.
    pub(crate) fn update(&mut self, reply: &messages::HeartbeatReply, sent: &SendTime, own_ms: u64) {
        if reply.clock_ms == 0 {
            return;
        }
        let took = machine::since(sent.at);
        let passed_ms = own_ms as i64 - sent.own_ms as i64;
        // The own clock did not jump meanwhile.
        let is_steady = passed_ms.abs_diff(took.as_millis() as i64) < MAX_ROUND_TRIP.as_millis() as u64 / 2;
        if took <= MAX_ROUND_TRIP && is_steady {
            self.ahead_ms = (sent.own_ms as i64 + passed_ms / 2).saturating_sub_unsigned(reply.clock_ms);
            self.term = reply.term;
        } else if self.term != reply.term {
            self.term = 0;
        }
        if reply.clock_wrong != self.is_wrong {
            let off_ms = reply.clock_off_ms;
            match reply.clock_wrong {
                true => tracing::warn!(
                    off_ms,
                    "the clock of this machine is not the cluster's; let it follow a time server"
                ),
                false => tracing::info!(off_ms, "the clock of this machine is right again"),
            }
        }
        if reply.shut_out && !self.is_shut_out {
            tracing::warn!("this server takes no part in writes until its clock is right");
        }
        self.off_ms = reply.clock_off_ms;
        (self.is_wrong, self.is_shut_out) = (reply.clock_wrong, reply.shut_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(clock_ms: u64, term: u64) -> messages::HeartbeatReply {
        messages::HeartbeatReply { clock_ms, term, ..messages::HeartbeatReply::default() }
    }

    #[test]
    fn a_prompt_answer_measures_the_clock_and_a_late_one_does_not() {
        let mut clock = OwnClock::default();
        clock.update(&reply(1_000_000, 3), &SendTime::now(1_090_000), 1_090_002);
        assert_eq!((clock.term, clock.ahead_ms), (3, 90_001));
        let late =
            SendTime { own_ms: 1_090_000, at: machine::now().checked_sub(Duration::from_secs(20)).unwrap() };
        clock.update(&reply(1_000_000, 3), &late, 1_110_000);
        assert_eq!(clock.ahead_ms, 90_001, "it may have been read at any time of these");
        // The clock is set while the answer is on its way.
        clock.update(&reply(1_001_000, 3), &SendTime::now(1_091_000), 1_001_000);
        assert_eq!(clock.ahead_ms, 90_001);
        clock.update(&reply(1_000_000, 4), &late, 1_110_000);
        assert_eq!(clock.term, 0, "of another ruler nothing is known");
    }
}

//! Clocks of the leader and of the data servers: the reference that all go by, and servers whose clock is
//! wrong.
//!
//! Clocks are measured against a ruler, a clock of the leader's process that never jumps. The reference is
//! the ruler moved by the median of what they show (VOL-42). All times of this crate are of the reference;
//! where it moves, times that are kept in memory move with it, so that nothing ends early or late.
//!
//! Design: docs/design/cluster.md#rules VOL-42, VOL-43, VOL-44
//! Invariant: a server is shut out for its clock only while its groups can do without it.
//!
//! Not here: the rules for clocks (`copal_volume::group`), measuring them (`copal-server`).

use crate::leader::server_activity::Watch;
use crate::master::{Master, Mastered, Reign};
use crate::tables::meta_store::ServerRow;
use copal_volume::group::{CLOCK_STEP_MS, DiskId, is_clock_wrong, reference_of};
use std::sync::atomic::Ordering;

/// A clock that was not measured for so long says nothing any more, ms.
const MEASURED_FOR_MS: u64 = 10_000;
/// No clock is believed to be further away than this, ms: some thousand years.
const MOST_AHEAD_MS: i64 = 1 << 47;
/// A clock has to be wrong for so long before its server is shut out, ms: those of a whole site are set one
/// after the other.
const WRONG_FOR_MS: u64 = 3_000;

/// A wrong clock that is wrong by so much more or less than before is told anew, ms.
const TOLD_ANEW_MS: u64 = 30_000;

/// What the master says of a server's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockVerdict {
    /// How far it is from the reference, ms.
    pub off_ms: i64,
    /// That is too far.
    pub is_wrong: bool,
    /// The server takes no part in writes before its clock is right.
    pub is_shut_out: bool,
}

impl Master {
    /// How far the reference is ahead of the ruler, ms.
    pub fn reference_ahead_ms(&self) -> i64 {
        self.reference_ahead_ms.load(Ordering::Acquire)
    }

    /// Whether the reference is that of more than the leader's own clock, which alone ends no certificate.
    pub fn has_heard_clock(&self) -> bool {
        self.has_heard_clock.load(Ordering::Acquire)
    }

    /// Looks at all clocks anew; `leader_ahead_ms`: the leader's own, ahead of the ruler. Whether the
    /// reference has moved.
    /// # Errors
    /// `Meta`.
    pub fn judge_clocks(&self, leader_ahead_ms: i64, now_ms: u64) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        reign.clocks.leader_ahead_ms = Some(believable(leader_ahead_ms));
        self.set_reference(&mut reign, now_ms)
    }

    /// Takes clocks that were measured before the reign answers anybody: disk, and how far its server's clock
    /// is ahead of the ruler.
    /// # Errors
    /// `Meta`.
    pub fn note_clocks(&self, clocks: &[(u32, i64)], leader_ahead_ms: i64, now_ms: u64) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        reign.clocks.leader_ahead_ms = Some(believable(leader_ahead_ms));
        for &(disk, ahead_ms) in clocks {
            if reign.map.servers.contains_key(&disk) {
                let watch = reign.watches.entry(disk).or_default();
                watch.clock = Some((believable(ahead_ms), now_ms));
            }
        }
        self.set_reference(&mut reign, now_ms)
    }

    /// What is said of a server's clock.
    pub fn clock_verdict(&self, disk: u32) -> ClockVerdict {
        let reign = self.reign.lock();
        let watch = reign.watches.get(&disk);
        watch.map_or(ClockVerdict::default(), |watch| ClockVerdict {
            off_ms: reign.clock_off_ms(watch).unwrap_or_default(),
            is_wrong: watch.clock_wrong_since_ms.is_some(),
            is_shut_out: watch.is_shut_out,
        })
    }

    /// Takes what a heartbeat says of its server's clock, and judges all clocks by it. Returns the time by
    /// the reference now.
    pub(crate) fn hear_clock(
        &self,
        reign: &mut Reign,
        disk: u32,
        ahead_ms: Option<i64>,
        now_ms: u64,
    ) -> Mastered<u64> {
        let Some(ahead_ms) = ahead_ms.map(believable) else {
            return Ok(now_ms);
        };
        reign.watches.entry(disk).or_default().clock = Some((ahead_ms, now_ms));
        let before = reign.clocks.reference_ms;
        self.set_reference(reign, now_ms)?;
        Ok(now_ms.saturating_add_signed(reign.clocks.reference_ms - before))
    }

    fn set_reference(&self, reign: &mut Reign, now_ms: u64) -> Mastered<bool> {
        reign.clocks.began_ms.get_or_insert(now_ms);
        let servers = reign
            .watches
            .values()
            .filter_map(|watch| watch.clock)
            .filter(|(_, at_ms)| at_ms.abs_diff(now_ms) < MEASURED_FOR_MS);
        let servers: Vec<i64> = servers.map(|(ahead_ms, _)| ahead_ms).collect();
        let had_heard = reign.clocks.has_heard;
        if had_heard && servers.is_empty() {
            // By its own clock alone the leader would go back to what the servers may have overruled.
            return Ok(false);
        }
        reign.clocks.has_heard |= !servers.is_empty();
        let all: Vec<i64> = servers.into_iter().chain(reign.clocks.leader_ahead_ms).collect();
        let present = Some(reign.clocks.reference_ms).filter(|_| had_heard);
        let median_ms = reference_of(&all, present).unwrap_or_default();
        let step_ms = median_ms.saturating_sub(reign.clocks.reference_ms);
        let is_moved = step_ms.unsigned_abs() > CLOCK_STEP_MS;
        if is_moved {
            // What the tables have from before the first clock was heard is an earlier reign's, by a
            // reference of its own.
            let since_ms = reign.clocks.began_ms.filter(|_| had_heard);
            reign.move_times(step_ms, since_ms, now_ms)?;
            self.leases.lock().move_times(step_ms);
            reign.clocks.reference_ms = median_ms;
            self.reference_ahead_ms.store(median_ms, Ordering::Release);
            if had_heard {
                let text = format!("the clock of the cluster moves by {}", seconds(step_ms));
                reign.note(now_ms.saturating_add_signed(step_ms), "clock", &text)?;
            }
            self.changed.notify_all();
        }
        // Behind the reference that follows from it.
        self.has_heard_clock.store(reign.clocks.has_heard, Ordering::Release);
        let now_ms = now_ms.saturating_add_signed(if is_moved { step_ms } else { 0 });
        reign.tell_wrong_clocks(now_ms)?;
        Ok(is_moved)
    }
}

impl Reign {
    fn clock_off_ms(&self, watch: &Watch) -> Option<i64> {
        watch.clock.map(|(ahead_ms, _)| ahead_ms - self.clocks.reference_ms)
    }

    /// How far the leader's own clock is from the reference, ms, and whether that is too far.
    pub(crate) fn leader_clock(&self) -> (i64, bool) {
        let ahead_ms = self.clocks.leader_ahead_ms.unwrap_or_default();
        (ahead_ms - self.clocks.reference_ms, self.clocks.is_leader_wrong)
    }

    /// How far a server's clock is from the reference, ms; `None`: it was not measured.
    pub(crate) fn server_clock(&self, disk: u32) -> Option<i64> {
        self.clock_off_ms(self.watches.get(&disk)?)
    }

    /// Moves times that are kept in memory by the step of the reference, and those that this reign has
    /// written since `since_ms`.
    fn move_times(&mut self, step_ms: i64, since_ms: Option<u64>, now_ms: u64) -> Mastered<()> {
        let moved = |at_ms: u64| at_ms.saturating_add_signed(step_ms);
        for watch in self.watches.values_mut() {
            if watch.heard_ms > 0 {
                watch.heard_ms = moved(watch.heard_ms).max(1);
            }
            watch.clock = watch.clock.map(|(ahead_ms, at_ms)| (ahead_ms, moved(at_ms)));
            watch.clock_wrong_since_ms = watch.clock_wrong_since_ms.map(moved);
        }
        self.clocks.began_ms = self.clocks.began_ms.map(moved);
        self.forgot_ms = 0;
        self.recovery.move_times(step_ms);
        let Some(since_ms) = since_ms else {
            return Ok(());
        };
        let is_ours = |server: &&ServerRow| server.failed_since_ms >= since_ms;
        let ours: Vec<ServerRow> = self.map.servers.values().filter(is_ours).cloned().collect();
        for mut server in ours {
            server.failed_since_ms = moved(server.failed_since_ms);
            self.change(server)?;
        }
        tracing::warn!(step_ms, now_ms, "the clock of the cluster moves");
        Ok(())
    }

    /// Writes down whose clock has become wrong, and whose is right again.
    fn tell_wrong_clocks(&mut self, now_ms: u64) -> Mastered<()> {
        let mut told = Vec::new();
        for (disk, watch) in &mut self.watches {
            let Some((ahead_ms, _)) = watch.clock else {
                continue;
            };
            let off_ms = ahead_ms - self.clocks.reference_ms;
            let is_wrong = is_clock_wrong(off_ms, watch.clock_wrong_since_ms.is_some());
            let is_other = is_wrong && off_ms.abs_diff(watch.told_off_ms) > TOLD_ANEW_MS;
            if is_wrong != watch.clock_wrong_since_ms.is_some() {
                watch.clock_wrong_since_ms = is_wrong.then_some(now_ms);
                told.push((*disk, off_ms, is_wrong));
            } else if is_other {
                told.push((*disk, off_ms, is_wrong));
            }
            if is_other || !is_wrong {
                watch.told_off_ms = if is_wrong { off_ms } else { 0 };
            }
        }
        for (disk, off_ms, is_wrong) in told {
            let Some(name) = self.map.servers.get(&disk).map(|server| server.name.clone()) else {
                continue;
            };
            let text = match is_wrong {
                true => format!(
                    "the clock of {name} is {} from the cluster's; let it follow a time server",
                    seconds(off_ms)
                ),
                false => format!("the clock of {name} is right again"),
            };
            self.note(now_ms, "clock", &text)?;
        }
        let (off_ms, was_wrong) = self.leader_clock();
        let is_wrong = is_clock_wrong(off_ms, was_wrong);
        if is_wrong != was_wrong {
            self.clocks.is_leader_wrong = is_wrong;
            let text = match is_wrong {
                true => format!(
                    "the clock of the master that leads is {} from those of the data servers: it goes by theirs; let it follow \
                     a time server",
                    seconds(off_ms)
                ),
                false => "the clock of the master that leads is right again".to_owned(),
            };
            self.note(now_ms, "clock", &text)?;
        }
        Ok(())
    }

    /// Whether a server is to take no part in writes for its clock (VOL-44). One that is away comes back with
    /// a right clock only.
    pub(crate) fn is_to_be_shut_out(&self, server: &ServerRow, now_ms: u64) -> bool {
        let watch = self.watches.get(&server.disk);
        let Some(since_ms) = watch.and_then(|watch| watch.clock_wrong_since_ms) else {
            return false;
        };
        let is_lasting = server.state.is_down() || now_ms.saturating_sub(since_ms) >= WRONG_FOR_MS;
        is_lasting && self.can_do_without(server.disk)
    }

    /// Whether a disk has groups, and in each of them operations hold without it.
    pub(crate) fn can_do_without(&self, disk: u32) -> bool {
        let mut groups = self.map.groups_of(disk).peekable();
        groups.peek().is_some()
            && groups.all(|row| {
                let view = self.map.view(row);
                let others: Vec<DiskId> = view.up().filter(|other| other.0 != disk).collect();
                let is_whole = |other: &DiskId| {
                    let role = view.role(*other);
                    role.is_some_and(|role| self.role(&view, other.0, role).is_in_sync())
                };
                others.len() >= view.needed() && others.iter().any(is_whole)
            })
    }

    /// What is said of clocks behind the sentence on the cluster's health.
    pub(crate) fn clock_sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        let (off_ms, is_wrong) = self.leader_clock();
        if is_wrong {
            sentences.push(format!(
                "the clock of this master is {} from the cluster's, and it goes by the cluster's",
                seconds(off_ms)
            ));
        }
        for (disk, watch) in &self.watches {
            let (Some(off_ms), Some(server)) = (self.clock_off_ms(watch), self.map.servers.get(disk)) else {
                continue;
            };
            if watch.clock_wrong_since_ms.is_none() {
                continue;
            }
            let then = match watch.is_shut_out {
                true => "it takes no part in writes until it is right",
                false => "it goes by the cluster's, since too few others are left",
            };
            let name = &server.name;
            sentences.push(format!("the clock of {name} is {} from the cluster's: {then}", seconds(off_ms)));
        }
        sentences
    }
}

fn believable(ahead_ms: i64) -> i64 {
    ahead_ms.clamp(-MOST_AHEAD_MS, MOST_AHEAD_MS)
}

/// Milliseconds as people read them.
pub(crate) fn seconds(ms: i64) -> String {
    format!("{:+.1} s", ms as f64 / 1000.0)
}

#[cfg(test)]
mod tests;

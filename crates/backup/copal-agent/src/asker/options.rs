//! Options and counts of an asker.

use crate::fleet::network::FleetNetwork;
use copal_backup::peers::ShortId;
use std::{path::PathBuf, time::Duration};

/// A member of the domain: an agent that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    /// Its name; an agent of another name at the address is not asked.
    pub name: String,
    /// Its address, host:port.
    pub address: String,
}

/// Assignment of ids to members, which are indexes into [`AskerOptions::members`].
pub trait OwnerMap: Send + Sync {
    /// Bits of an id that choose its partition.
    fn partition_bits(&self) -> u8;

    /// Partition of `id`.
    fn partition(&self, id: &ShortId) -> u32;

    /// The member that answers for `partition`.
    fn owner(&self, partition: u32) -> usize;

    /// The member that answers if the owner does not; never the owner.
    fn stand_in(&self, partition: u32) -> Option<usize>;
}

/// Waiting times, counted from the end of the round.
pub trait AnswerPatience: Send + Sync {
    /// Time that owners wait for other hosts before they compare; the times for answers are longer.
    fn for_others(&self) -> Duration;

    /// Time without an answer after which a batch also goes to the stand-in.
    fn hedge_after(&self) -> Duration;

    /// Time after which missing answers are given up.
    fn deadline(&self) -> Duration;

    /// A member answered a batch `after` the end of the round. Called under a lock, so it must only record.
    fn answered(&self, member: usize, after: Duration) {
        let _ = (member, after);
    }
}

/// Constant times.
#[derive(Clone, Copy, Debug)]
pub struct FixedPatience {
    /// See [`AnswerPatience::for_others`].
    pub for_others: Duration,
    /// See [`AnswerPatience::hedge_after`].
    pub hedge_after: Duration,
    /// See [`AnswerPatience::deadline`].
    pub deadline: Duration,
}

impl AnswerPatience for FixedPatience {
    fn for_others(&self) -> Duration {
        self.for_others
    }

    fn hedge_after(&self) -> Duration {
        self.hedge_after
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }
}

/// A job, its members, and bounds.
#[derive(Clone, Debug)]
pub struct AskerOptions {
    /// The job.
    pub job: [u8; 16],
    /// Our own name among the members.
    pub name: String,
    /// The members that may be asked, including this agent: it asks itself like others.
    pub members: Vec<FleetMember>,
    /// Number of hosts that send markers in each round.
    pub participants: u32,
    /// Reaches the members.
    pub network: FleetNetwork,
    /// Answers of older generations of the index are dropped.
    pub oldest_generation: u64,
    /// Directory of the spool files, which have no names.
    pub spool: PathBuf,
    /// Memory for sorting ids into batches, per part.
    pub sort_bytes: usize,
    /// Time after which an unreachable member is tried again.
    pub retry_after: Duration,
}

impl AskerOptions {
    /// The default bounds; every member takes part.
    #[must_use]
    pub fn new(
        job: [u8; 16],
        name: &str,
        members: Vec<FleetMember>,
        network: FleetNetwork,
        spool: PathBuf,
    ) -> AskerOptions {
        AskerOptions {
            job,
            name: name.to_owned(),
            participants: members.len() as u32,
            members,
            network,
            oldest_generation: 0,
            spool,
            sort_bytes: 4 << 20,
            retry_after: Duration::from_secs(60),
        }
    }
}

/// Answers and messages that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedAnswers {
    /// After the part was given up, or after another member had answered.
    pub late: u64,
    /// Twice from the same member.
    pub repeated: u64,
    /// Not a question to this sender: job, round, batch or partition differ.
    pub foreign: u64,
    /// With another number of answers than ids.
    pub miscounted: u64,
    /// With an unknown code.
    pub unknown_code: u64,
    /// From too old a generation of the index.
    pub stale: u64,
    /// Messages that are invalid in this release; their connections were closed.
    pub violations: u64,
}

/// Number of a sent part.
pub type Ticket = u64;

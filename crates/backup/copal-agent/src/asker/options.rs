//! Options of an asker: its members, its times, its bounds; and its counts.

use crate::network::FleetNetwork;
use copal_backup::peers::ShortId;
use std::{path::PathBuf, time::Duration};

/// A member of the domain: an agent that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    /// Its name; an agent of another name at the address is not asked.
    pub name: String,
    /// Where it listens, host:port.
    pub address: String,
}

/// Which members answer for which ids. Members are meant by their index in [`AskerOptions::members`].
pub trait OwnerMap: Send + Sync {
    /// Bits of an id that choose its partition.
    fn partition_bits(&self) -> u8;

    /// Partition of `id`.
    fn partition(&self, id: &ShortId) -> u32;

    /// Who answers for `partition`.
    fn owner(&self, partition: u32) -> usize;

    /// Who answers when the owner does not; another than the owner.
    fn stand_in(&self, partition: u32) -> Option<usize>;
}

/// How long to wait, counted from the end of the round.
pub trait AnswerPatience: Send + Sync {
    /// So long owners wait for other hosts before they compare; the times for answers are longer.
    fn for_others(&self) -> Duration;

    /// After so long without an answer, a batch goes to the stand-in, too.
    fn hedge_after(&self) -> Duration;

    /// After so long, what has no answer stays without.
    fn deadline(&self) -> Duration;

    /// A member answered a batch `after` the end of the round. Called under a lock: only notes it.
    fn answered(&self, member: usize, after: Duration) {
        let _ = (member, after);
    }
}

/// The same times always.
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
    /// Who may be asked, ourselves included: an agent asks itself as it asks others.
    pub members: Vec<FleetMember>,
    /// Hosts that send markers in each round.
    pub participants: u32,
    /// Reaches the members.
    pub network: FleetNetwork,
    /// Answers of older generations of the index are not believed.
    pub oldest_generation: u64,
    /// Where spool files are made; they have no names.
    pub spool: PathBuf,
    /// Memory for ids that are sorted into batches, per part that is sent.
    pub sort_bytes: usize,
    /// How long a member that could not be reached is not tried again.
    pub retry_after: Duration,
}

impl AskerOptions {
    /// The usual bounds; every member takes part.
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

/// Answers and messages that were not believed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedAnswers {
    /// After the part was given up, or after another had answered.
    pub late: u64,
    /// Twice from the same member.
    pub repeated: u64,
    /// To nothing that its sender was asked: job, round, batch or partition are others.
    pub foreign: u64,
    /// With more or fewer answers than ids.
    pub miscounted: u64,
    /// With a code that says nothing.
    pub unknown_code: u64,
    /// From a generation of the index that is too old.
    pub stale: u64,
    /// Messages that are none of this release; their connections were ended.
    pub violations: u64,
}

/// Number of a part that was sent.
pub type Ticket = u64;

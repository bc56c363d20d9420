//! Batch of requests: the unit that a detector accepts.

/// Most ids of one batch.
pub const MAX_BATCH_IDS: usize = 4096;

/// Origin and number of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The job it belongs to.
    pub job: [u8; 16],
    /// The round of that job.
    pub round: u32,
    /// The instance of the asking agent.
    pub host: [u8; 16],
    /// The asking VM: the same in all its backups, unique among VMs.
    pub vm: u32,
    /// Number of the batch at that agent.
    pub batch: u64,
    /// The partition of its ids.
    pub partition: u32,
}

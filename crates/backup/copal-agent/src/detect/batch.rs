//! Batch of requests: what a detector takes at a time.

/// Most ids of one batch.
pub const MAX_BATCH_IDS: usize = 4096;

/// Which requests a batch has, and whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The job it belongs to.
    pub job: [u8; 16],
    /// The round of that job.
    pub round: u32,
    /// The instance of the agent that asks.
    pub host: [u8; 16],
    /// The VM that asks: the same in all its backups, another one for each VM.
    pub vm: u32,
    /// Number of the batch at that agent.
    pub batch: u64,
    /// The partition of its ids.
    pub partition: u32,
}

//! `DiskModel`: the trait of a disk as a function of commands and time.

use std::time::Duration;

/// Kind of a command to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// Reads from the medium.
    Read,
    /// A write that a volatile cache may take.
    Write,
    /// A write that is durable when it ends (FUA).
    WriteThrough,
    /// Empties a volatile cache.
    Flush,
    /// Says that the bytes are not needed any more.
    Discard,
}

/// A command without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCommand {
    /// Kind of the command.
    pub kind: CommandKind,
    /// First byte; 0 for a flush.
    pub at: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl ModelCommand {
    /// First byte behind the command; the largest address if the sum is larger.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// Work of a disk since its model was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Time with at least one command in the drive.
    pub busy: Duration,
    /// Commands that ended.
    pub commands: u64,
    /// Moves of the head to another track. Always 0 for flash.
    pub seeks: u64,
    /// Time of seeks and of waits for the platter. Always 0 for flash.
    pub positioning: Duration,
    /// Reads of the medium: accesses of a hard disk, mapping units of flash.
    pub media_reads: u64,
    /// Writes of the medium: accesses of a hard disk, mapping units of flash. Collection is included.
    pub media_writes: u64,
    /// Mapping units that were read because a write covered them only partly.
    pub partial_units: u64,
    /// Mapping units that the translation layer moved while it collected garbage.
    pub collected_units: u64,
}

/// A disk as a function of commands and time. It is made for one size and knows no bytes.
pub trait DiskModel: Send {
    /// Name of the model, for display.
    fn name(&self) -> &'static str;

    /// Number of commands that the drive takes at a time. Further ones wait at the host.
    fn depth(&self) -> usize;

    /// Hands a command to the drive at the time `arrival`: [`DiskModel::now`] in virtual time, the present on
    /// the wall clock. `id` comes back from [`DiskModel::serve`] once; no other command in the drive has it.
    /// Takes any number of commands, also beyond the depth. Addresses beyond the size are served at the end of
    /// the disk.
    fn accept(&mut self, id: u64, command: ModelCommand, arrival: Duration);

    /// End of the command that [`DiskModel::serve`] would serve now. A disk with one head begins that command
    /// with this call and keeps to it; of a disk that serves many at a time, a later command may end first.
    /// `None`: the drive has no command.
    fn next_end(&mut self) -> Option<Duration>;

    /// Serves the next command in the order of the drive, moves the clock to its end and returns its id.
    /// `None`: the drive has no command.
    fn serve(&mut self) -> Option<u64>;

    /// The virtual clock: 0 when the model was made, then the end of the command that was served last.
    fn now(&self) -> Duration;

    /// Work so far.
    fn counters(&self) -> ModelCounters;
}

/// Nanoseconds of a duration. 584 years of virtual time are enough.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

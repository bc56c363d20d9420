//! Ids of volumes, files and operations, and the state machine that draws them (VOL-1).
//!
//! A file id and an operation id both have 128 bits: 48 bits of milliseconds since 1970, a 16-bit counter,
//! and the 64-bit random incarnation of their generator.
//!
//! Paper: beanfs §3.4.4 (at most once; here by ids instead of a cache of responses)
//! Invariants
//! - One [`FileIds`] never draws an id twice, and never a smaller id after a larger one, even if the clock goes
//!   back: milliseconds never go back within an incarnation.
//! - Two generators differ in their incarnation, drawn at random at start and after a fork.
//!
//! Not here: the clock (`clock`), persistence of the floor over a restart (a task of the store).

use std::fmt;

/// Largest value of the 48-bit millisecond field: the year 10889.
pub const MAX_MS: u64 = (1 << 48) - 1;

/// Later clocks count as this one: 69 years before the end of the field. Ids that have to run ahead of the
/// clock therefore never reach the end.
pub const LAST_CLOCK_MS: u64 = MAX_MS - (1 << 41);

/// No drawn id is later: half-way from [`LAST_CLOCK_MS`] to the end.
pub const LAST_ID_MS: u64 = MAX_MS - (1 << 40);

/// A directory of immutable files; ids are never reused. 0 is the root and holds no files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u64);

impl VolumeId {
    /// Parent of the volumes at the top; holds no files.
    pub const ROOT: VolumeId = VolumeId(0);
}

/// Permanent identity of one file: 48-bit ms, 16-bit counter, 64-bit client incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u128);

/// Identity of one operation, of the same form as a [`FileId`]. Its time is the creation time of the file
/// that the operation made visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u128);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

fn compose(ms: u64, counter: u16, incarnation: u64) -> u128 {
    (u128::from(ms & MAX_MS) << 80) | (u128::from(counter) << 64) | u128::from(incarnation)
}

impl FileId {
    /// Composes an id; `ms` is cut to 48 bits.
    pub fn new(ms: u64, counter: u16, incarnation: u64) -> FileId {
        FileId(compose(ms, counter, incarnation))
    }
    /// Milliseconds since 1970 at which the id was drawn.
    pub fn ms(self) -> u64 {
        (self.0 >> 80) as u64
    }
    /// Number of the id within its millisecond.
    pub fn counter(self) -> u16 {
        (self.0 >> 64) as u16
    }
    /// Incarnation of the generator that drew it.
    pub fn incarnation(self) -> u64 {
        self.0 as u64
    }
}

impl OpId {
    /// Milliseconds since 1970 at which the operation was first committed.
    pub fn ms(self) -> u64 {
        FileId(self.0).ms()
    }
}

/// Draws file and operation ids. Pure state: each call passes the time.
#[derive(Clone, Debug)]
pub struct FileIds {
    incarnation: u64,
    /// Lower bound of the next id's milliseconds.
    ms: u64,
    /// Number of ids already drawn in `ms`.
    drawn: u32,
}

impl FileIds {
    /// A generator that starts at `floor_ms` or later: pass 0, or a time above every id that an earlier
    /// incarnation of the same store may have drawn.
    pub fn new(incarnation: u64, floor_ms: u64) -> FileIds {
        FileIds { incarnation, ms: floor_ms.min(LAST_ID_MS), drawn: 0 }
    }

    /// Draws the next file id at `now_ms`, strictly above all earlier draws of this generator.
    pub fn draw_file(&mut self, now_ms: u64) -> FileId {
        FileId(self.draw(now_ms))
    }

    /// Draws the next operation id at `now_ms`, from the same sequence as the file ids.
    pub fn draw_op(&mut self, now_ms: u64) -> OpId {
        OpId(self.draw(now_ms))
    }

    /// Draws an operation id above `other`, even if a faster clock drew `other`: a delete is always later
    /// than the create it deletes.
    pub fn draw_op_above(&mut self, now_ms: u64, other: OpId) -> OpId {
        let op = self.draw_op(now_ms);
        if op > other {
            return op;
        }
        let above_ms = other.ms().saturating_add(1).min(LAST_ID_MS);
        if above_ms > self.ms {
            self.ms = above_ms;
            self.drawn = 0;
        }
        self.draw_op(now_ms)
    }

    /// The highest millisecond drawn or promised so far.
    pub fn high_ms(&self) -> u64 {
        self.ms
    }

    fn draw(&mut self, now_ms: u64) -> u128 {
        let now_ms = now_ms.min(LAST_CLOCK_MS);
        if now_ms > self.ms {
            self.ms = now_ms;
            self.drawn = 0;
        }
        if self.drawn > u32::from(u16::MAX) {
            // 65,536 ids in one millisecond: run ahead of the clock rather than repeat an id.
            assert!(self.ms < MAX_MS, "the 48-bit clock of file ids is used up");
            self.ms += 1;
            self.drawn = 0;
        }
        let id = compose(self.ms, self.drawn as u16, self.incarnation);
        self.drawn += 1;
        id
    }
}

/// 64 random bits from the operating system, drawn once per start of a process.
/// # Errors
/// The operating system provides no random bits.
pub fn random_incarnation() -> Result<u64, getrandom::Error> {
    getrandom::u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_out() {
        let id = FileId::new(0x0000_1234_5678_9ABC & MAX_MS, 0xBEEF, 0x0102_0304_0506_0708);
        assert_eq!(id.ms(), 0x1234_5678_9ABC);
        assert_eq!(id.counter(), 0xBEEF);
        assert_eq!(id.incarnation(), 0x0102_0304_0506_0708);
        assert_eq!(id.to_string(), "123456789abcbeef0102030405060708");
    }

    #[test]
    fn ids_ascend_when_the_clock_goes_back() {
        let mut ids = FileIds::new(7, 0);
        let clock = [1_000, 1_000, 999, 5, 0, 2_000, 1_999, u64::MAX, 3];
        let drawn: Vec<FileId> = clock.iter().map(|&now| ids.draw_file(now)).collect();
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]), "{drawn:?}");
        assert_eq!(drawn[4].ms(), 1_000);
        assert_eq!(drawn[4].counter(), 4);
        assert_eq!(drawn[5].counter(), 0);
        assert_eq!(drawn[7].ms(), LAST_CLOCK_MS);
    }

    #[test]
    fn a_full_millisecond_runs_ahead_instead_of_repeating() {
        let mut ids = FileIds::new(1, 50);
        let mut last = ids.draw_file(50);
        for _ in 0..70_000 {
            let next = ids.draw_file(50);
            assert!(next > last);
            last = next;
        }
        assert_eq!(last.ms(), 51);
        assert_eq!(ids.high_ms(), 51);
    }

    #[test]
    fn a_floor_at_the_end_of_time_leaves_ids_to_draw() {
        let mut ids = FileIds::new(1, u64::MAX);
        let mut last = ids.draw_file(u64::MAX);
        for _ in 0..200_000 {
            let next = ids.draw_file(u64::MAX);
            assert!(next > last);
            last = next;
        }
        assert!(last.ms() < MAX_MS);
    }

    #[test]
    fn a_restart_above_the_floor_never_repeats_a_time() {
        let mut before = FileIds::new(1, 0);
        let last = before.draw_op(9_000);
        let mut after = FileIds::new(2, before.high_ms() + 1);
        assert!(after.draw_op(100) > last, "the wall clock went back over the restart");
    }

    #[test]
    fn an_operation_above_a_faster_clock() {
        let mut fast = FileIds::new(9, 0);
        let create = fast.draw_op(10_000);
        let mut slow = FileIds::new(1, 0);
        let delete = slow.draw_op_above(4_000, create);
        assert!(delete > create);
        assert!(slow.draw_op(4_000) > delete, "the generator stays above what it drew");
        let mut ahead = FileIds::new(1, 0);
        assert_eq!(ahead.draw_op_above(20_000, create).ms(), 20_000);
    }

    #[test]
    fn files_and_operations_share_one_sequence() {
        let mut ids = FileIds::new(3, 0);
        let file = ids.draw_file(10);
        let op = ids.draw_op(10);
        assert!(op.0 > file.0);
    }
}

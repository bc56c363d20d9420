//! Names that left a pool lately: fingerprints of 8 bytes in sets of four, without links.
//!
//! An entry has 32 bits of the name's hash, the queue that the name left, and the number of bytes that had
//! left that queue
//! before it. So its age is the number of bytes that left the queue since. A full set loses its oldest entry.
//!
//! Invariants
//! - [`GhostTable::age`] of a name that left is exact until its entry was replaced. Another name has the same
//!   fingerprint
//!   with a probability of 2^-30 for each name in its set.
//! - Bytes are those of the table, and change only in [`GhostTable::record`].

use super::QueueKind;

/// Bytes of one step of a clock; ages up to 2^31 of them are distinguished.
const STEP: u64 = 64;
const WAYS: usize = 4;
/// Least and most number of sets.
const SETS: std::ops::RangeInclusive<usize> = 16..=1 << 20;

#[derive(Clone, Copy, Default)]
struct GhostEntry {
    /// Low half of the hash; its low bits select the set.
    print: u32,
    /// Twice the clock of the queue when the name left, and the queue; 0: a free place.
    left: u32,
}

impl GhostEntry {
    fn new(print: u32, turn: QueueKind, clock: u64) -> GhostEntry {
        GhostEntry { print, left: steps(clock) << 1 | turn as u32 }
    }

    fn turn(self) -> QueueKind {
        if self.left & 1 == QueueKind::Long as u32 { QueueKind::Long } else { QueueKind::Short }
    }
}

/// See the module.
pub(super) struct GhostTable {
    sets: Vec<[GhostEntry; WAYS]>,
    /// Bytes that left each queue so far.
    clocks: [u64; 2],
    /// Names that left since the size was last checked.
    names: u64,
    /// Bytes of them.
    bytes_of_names: u64,
}

impl GhostTable {
    pub(super) fn new() -> GhostTable {
        GhostTable {
            sets: vec![Default::default(); *SETS.start()],
            clocks: [STEP; 2],
            names: 0,
            bytes_of_names: 0,
        }
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> u64 {
        (self.sets.len() * size_of::<[GhostEntry; WAYS]>()) as u64
    }

    /// Records a name that leaves a queue; ages up to `window` bytes are of interest.
    pub(super) fn record(&mut self, hash: u64, turn: QueueKind, bytes: u64, window: u64) {
        let print = hash as u32;
        let (clock, at) = (self.clocks[turn as usize], self.set(print));
        let same = self.sets[at].iter().position(|entry| entry.print == print && entry.left != 0);
        let way = same.unwrap_or_else(|| self.oldest(at));
        self.sets[at][way] = GhostEntry::new(print, turn, clock);
        self.clocks[turn as usize] += bytes.max(1);
        self.names += 1;
        self.bytes_of_names += bytes;
        if self.names >= 2 * self.sets.len() as u64 {
            self.fit(window);
        }
    }

    /// The queue that this name left, and the bytes that left it since; `None` if it did not leave lately.
    pub(super) fn age(&self, hash: u64) -> Option<(QueueKind, u64)> {
        let print = hash as u32;
        let entry =
            self.sets[self.set(print)].iter().find(|entry| entry.print == print && entry.left != 0)?;
        Some((entry.turn(), u64::from(self.steps_since(*entry)) * STEP))
    }

    /// Forgets a name.
    pub(super) fn forget(&mut self, hash: u64) {
        let print = hash as u32;
        let at = self.set(print);
        for entry in self.sets[at].iter_mut().filter(|entry| entry.print == print) {
            *entry = GhostEntry::default();
        }
    }

    fn set(&self, print: u32) -> usize {
        print as usize & (self.sets.len() - 1)
    }

    fn steps_since(&self, entry: GhostEntry) -> u32 {
        let now = steps(self.clocks[entry.turn() as usize]) << 1;
        now.wrapping_sub(entry.left & !1) >> 1
    }

    /// A free place of a set, or the place of its oldest entry.
    fn oldest(&self, at: usize) -> usize {
        let age = |way: &usize| match self.sets[at][*way] {
            GhostEntry { left: 0, .. } => u32::MAX,
            entry => self.steps_since(entry),
        };
        (0..WAYS).max_by_key(age).unwrap_or(0)
    }

    /// Changes the size to that of a window, at the present bytes of a name.
    fn fit(&mut self, window: u64) {
        let bytes_of_name = (self.bytes_of_names / self.names).max(1);
        (self.names, self.bytes_of_names) = (0, 0);
        let wanted = (window / bytes_of_name) as usize / WAYS;
        let sets = wanted.next_power_of_two().clamp(*SETS.start(), *SETS.end());
        if sets <= self.sets.len() && sets * 4 >= self.sets.len() {
            return;
        }
        let old = std::mem::replace(&mut self.sets, vec![Default::default(); sets]);
        let mut entries: Vec<_> = old.into_iter().flatten().filter(|entry| entry.left != 0).collect();
        // The youngest last: it stays.
        entries.sort_by_key(|entry| std::cmp::Reverse(self.steps_since(*entry)));
        for entry in entries {
            let at = self.set(entry.print);
            let way = self.oldest(at);
            self.sets[at][way] = entry;
        }
    }
}

/// A clock in steps of 31 bits; never 0, which marks a free place.
fn steps(clock: u64) -> u32 {
    ((clock / STEP) as u32 & (u32::MAX >> 1)).max(1)
}

//! A FIFO queue of slots: links are indices into the slots, so a slot leaves from any place at once.
//!
//! Each slot has the number of bytes that had entered the queue when it entered. The difference to that of
//! the oldest slot is
//! its distance from the end, where slots leave.

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Bytes of one step of a stamp; distances up to 2^32 of them are distinguished.
const STEP: u64 = 64;

/// Place of a slot in its queue.
#[derive(Clone, Copy)]
pub(super) struct QueueLinks {
    /// Towards the end where slots leave.
    older: u32,
    newer: u32,
    /// Bytes that had entered before, in steps.
    stamp: u32,
}

/// In no queue.
pub(super) const APART: QueueLinks = QueueLinks { older: NONE, newer: NONE, stamp: 0 };

/// Access to the links of slots.
pub(super) trait LinkedSlots {
    fn links(&self, slot: u32) -> QueueLinks;
    fn links_mut(&mut self, slot: u32) -> &mut QueueLinks;
}

/// See the module.
pub(super) struct FifoQueue {
    oldest: u32,
    newest: u32,
    /// Bytes in the queue.
    bytes: u64,
    /// Bytes that entered so far.
    entered: u64,
}

impl FifoQueue {
    pub(super) fn new() -> FifoQueue {
        FifoQueue { oldest: NONE, newest: NONE, bytes: 0, entered: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot that leaves next.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Puts a slot that is in no queue at the end where slots enter.
    pub(super) fn push(&mut self, slots: &mut impl LinkedSlots, slot: u32, bytes: u64) {
        let stamp = (self.entered / STEP) as u32;
        *slots.links_mut(slot) = QueueLinks { older: self.newest, newer: NONE, stamp };
        match self.newest {
            NONE => self.oldest = slot,
            newest => slots.links_mut(newest).newer = slot,
        }
        self.newest = slot;
        self.bytes += bytes;
        self.entered += bytes;
    }

    /// Removes a slot of this queue.
    pub(super) fn remove(&mut self, slots: &mut impl LinkedSlots, slot: u32, bytes: u64) {
        let links = std::mem::replace(slots.links_mut(slot), APART);
        match links.older {
            NONE => self.oldest = links.newer,
            older => slots.links_mut(older).newer = links.newer,
        }
        match links.newer {
            NONE => self.newest = links.older,
            newer => slots.links_mut(newer).older = links.older,
        }
        self.bytes -= bytes;
    }

    /// Whether a slot is among the next that leave: fewer than `window` bytes entered between the oldest and
    /// it.
    pub(super) fn is_near_end(&self, slots: &impl LinkedSlots, slot: u32, window: u64) -> bool {
        let Some(oldest) = self.oldest() else {
            return false;
        };
        let distance = slots.links(slot).stamp.wrapping_sub(slots.links(oldest).stamp);
        u64::from(distance) * STEP < window
    }
}

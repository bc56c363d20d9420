//! Ring of LRU lists for 128 adjacent classes that moves up with the age.
//!
//! The lowest list also takes every class below the ring, the highest every class above. When the ring moves
//! up by one class, the lowest list joins the next at its LRU end: O(1), no node is visited.

use crate::rules::lists::{self, LruLists};

/// Classes in the ring.
const WIDTH: i64 = 128;
/// Classes of the ring below that of one weighted probe per byte.
const BELOW: i64 = 64;

/// No class: far below all others.
const NOWHERE: i64 = i64::MIN;

/// Bytes for each node.
pub(super) const NODE_BYTES: usize = lists::NODE_BYTES + size_of::<i64>();

/// One ring; see the module.
pub(super) struct ClassRing {
    lists: LruLists,
    /// Bit `i`: list `i` has a node.
    used: u128,
    /// Lowest class.
    base: i64,
    /// Class of each node when it was inserted, or [`NOWHERE`]; it may have sunk below the base since.
    classes: Vec<i64>,
}

impl ClassRing {
    pub(super) fn new() -> ClassRing {
        ClassRing { lists: LruLists::new(WIDTH as usize), used: 0, base: -BELOW, classes: Vec::new() }
    }

    fn list(&self, class: i64) -> usize {
        class.max(self.base).rem_euclid(WIDTH) as usize
    }

    fn note(&mut self, list: usize) {
        let bit = 1u128 << list;
        match self.lists.lru(list) {
            Some(_) => self.used |= bit,
            None => self.used &= !bit,
        }
    }

    /// Moves the node to an end of its class, or out of the ring.
    pub(super) fn hang(&mut self, node: u32, class: Option<i64>, mru: bool) {
        let at = node as usize;
        if at >= self.classes.len() {
            self.classes.resize(at + 1, NOWHERE);
        }
        let class = class.map(|class| class.clamp(self.base, self.base + WIDTH - 1));
        let left = std::mem::replace(&mut self.classes[at], class.unwrap_or(NOWHERE));
        if left != NOWHERE {
            let list = self.list(left);
            self.lists.remove(list, node);
            self.note(list);
        }
        if let Some(class) = class {
            let list = self.list(class);
            if mru {
                self.lists.push_mru(list, node);
            } else {
                self.lists.push_lru(list, node);
            }
            self.used |= 1u128 << list;
        }
    }

    /// Moves the ring up to this age in half-lives.
    pub(super) fn follow(&mut self, half_lives: i64) {
        while self.base < half_lives - BELOW {
            let (from, to) = (self.list(self.base), self.list(self.base + 1));
            self.lists.join_below(from, to);
            self.base += 1;
            self.note(from);
            self.note(to);
        }
    }

    /// Lists in use from the lowest class up.
    fn upwards(&self) -> impl Iterator<Item = usize> {
        let lowest = self.base.rem_euclid(WIDTH) as u32;
        let mut used = self.used.rotate_right(lowest);
        std::iter::from_fn(move || {
            let next = used.trailing_zeros();
            used &= used.wrapping_sub(1);
            (next < 128).then(|| ((next + lowest) % 128) as usize)
        })
    }

    /// Node at the LRU end of the lowest class.
    pub(super) fn bottom(&self) -> Option<u32> {
        self.nodes_upwards().next()
    }

    /// All nodes from the LRU end of the lowest class up.
    pub(super) fn nodes_upwards(&self) -> impl Iterator<Item = u32> {
        self.upwards().flat_map(|list| self.lists.iter(list))
    }

    /// Node at the MRU end of the highest class.
    pub(super) fn top(&self) -> Option<u32> {
        let lowest = self.base.rem_euclid(WIDTH) as u32;
        let used = self.used.rotate_right(lowest);
        let highest = 127u32.checked_sub(used.leading_zeros())?;
        self.lists.mru(((highest + lowest) % 128) as usize)
    }
}

#[cfg(test)]
mod tests;

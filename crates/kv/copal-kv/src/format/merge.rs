//! Merges sorted cursors into one, in both directions.
//!
//! Invariants
//! - Children are ordered by age, newest first. Entries equal in (key, sequence) come in that order, so the
//!   merged order is total and both directions give the same sequence.
//! - Forward, every child is at or after the current entry; backward, at or before it.
//!
//! Not here: dropping older versions, range tombstones (compaction, iterators).

use crate::{
    Error,
    format::{
        entry::{Entry, compare},
        entry_cursor::Cursor,
    },
};
use bytes::Bytes;
use std::cmp::Ordering;

/// Cursor over the union of its children.
pub struct MergingCursor<C> {
    children: Vec<C>,
    /// Valid children as a binary heap, with the next one in the direction of travel on top.
    heap: Vec<usize>,
    direction: WalkDirection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkDirection {
    Forward,
    Backward,
}

impl<C: Cursor> MergingCursor<C> {
    /// Merges `children`, newest first; not valid until it is moved.
    pub fn new(children: Vec<C>) -> MergingCursor<C> {
        let heap = Vec::with_capacity(children.len());
        MergingCursor { children, heap, direction: WalkDirection::Forward }
    }

    /// Number of the child with the current entry, in the order given to [`MergingCursor::new`].
    pub fn child(&self) -> Option<usize> {
        self.heap.first().copied()
    }

    /// Moves every child, then orders them for `direction`.
    fn place(
        &mut self,
        direction: WalkDirection,
        mut to: impl FnMut(&mut C) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.heap.clear();
        for child in &mut self.children {
            to(child)?;
        }
        self.rebuild(direction);
        Ok(())
    }

    fn rebuild(&mut self, direction: WalkDirection) {
        self.direction = direction;
        self.heap.clear();
        self.heap.extend((0..self.children.len()).filter(|&i| self.children[i].valid()));
        for i in (0..self.heap.len() / 2).rev() {
            self.sink(i);
        }
    }

    /// Moves the top child by `step` and restores the heap.
    fn advance(&mut self, step: impl FnOnce(&mut C) -> Result<(), Error>) -> Result<(), Error> {
        let Some(&top) = self.heap.first() else {
            return Ok(());
        };
        if let Err(error) = step(&mut self.children[top]) {
            self.heap.clear();
            return Err(error);
        }
        if !self.children[top].valid() {
            self.heap.swap_remove(0);
        }
        self.sink(0);
        Ok(())
    }

    fn sink(&mut self, mut parent: usize) {
        loop {
            let mut first = parent;
            for child in [2 * parent + 1, 2 * parent + 2] {
                if child < self.heap.len() && self.comes_first(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == parent {
                return;
            }
            self.heap.swap(first, parent);
            parent = first;
        }
    }

    /// Whether child `a` comes before child `b` in the direction of travel; both are valid.
    fn comes_first(&self, a: usize, b: usize) -> bool {
        let (Some(x), Some(y)) = (self.children[a].entry(), self.children[b].entry()) else {
            return false;
        };
        let order = compare(x.position(), y.position()).then(a.cmp(&b));
        match self.direction {
            WalkDirection::Forward => order == Ordering::Less,
            WalkDirection::Backward => order == Ordering::Greater,
        }
    }

    /// Changes direction at the current entry: moves every other child to the right side of it.
    fn turn(&mut self, direction: WalkDirection) -> Result<(), Error> {
        let Some(&top) = self.heap.first() else {
            return Ok(());
        };
        let Some(entry) = self.children[top].entry() else {
            return Ok(());
        };
        let (key, seq) = (entry.key.to_vec(), entry.seq);
        let turned = self
            .children
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| *i != top)
            .try_for_each(|(i, child)| beside(child, direction, &key, seq, i < top));
        if let Err(error) = turned {
            self.heap.clear();
            return Err(error);
        }
        self.rebuild(direction);
        // The others are strictly beyond the current entry, so it is on top again.
        Ok(())
    }
}

/// Moves a child strictly beyond `(key, seq)` in `direction`. An equal entry counts as before it if the child
/// is `newer` than the child with the current entry, and as after it if not.
fn beside<C: Cursor>(
    child: &mut C,
    direction: WalkDirection,
    key: &[u8],
    seq: u64,
    newer: bool,
) -> Result<(), Error> {
    let equal = |child: &C| child.entry().is_some_and(|entry| entry.position() == (key, seq));
    match direction {
        WalkDirection::Forward => {
            child.seek(key, seq)?;
            if newer && equal(child) {
                child.next()?;
            }
        }
        WalkDirection::Backward => {
            child.seek_for_prev(key, seq)?;
            if !newer && equal(child) {
                child.prev()?;
            }
        }
    }
    Ok(())
}

impl<C: Cursor> Cursor for MergingCursor<C> {
    fn first(&mut self) -> Result<(), Error> {
        self.place(WalkDirection::Forward, C::first)
    }

    fn last(&mut self) -> Result<(), Error> {
        self.place(WalkDirection::Backward, C::last)
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        self.place(WalkDirection::Forward, |child| child.seek(key, seq))
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        self.place(WalkDirection::Backward, |child| child.seek_for_prev(key, seq))
    }

    fn next(&mut self) -> Result<(), Error> {
        if self.direction == WalkDirection::Backward {
            self.turn(WalkDirection::Forward)?;
        }
        self.advance(C::next)
    }

    fn prev(&mut self) -> Result<(), Error> {
        if self.direction == WalkDirection::Forward {
            self.turn(WalkDirection::Backward)?;
        }
        self.advance(C::prev)
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.children[*self.heap.first()?].entry()
    }

    fn value(&self) -> Bytes {
        self.heap.first().map_or_else(Bytes::new, |&top| self.children[top].value())
    }
}

#[cfg(test)]
mod tests;

//! Order of commands by their class, in front of a device that runs a limited number at a time.
//!
//! Invariants
//! - Commit goes first, then Foreground. Background gets at most a quarter of the depth while other classes
//!   wait, and never more than three quarters, so that an arriving commit finds a free place. While
//!   Background waits, a quarter is kept for it.
//! - Every command taken is returned by [`ClassQueue::finished`].

use crate::IoClass;
use std::collections::VecDeque;

/// Waiting commands of three classes, and the number of running ones.
pub(crate) struct ClassQueue<T> {
    classes: [VecDeque<T>; 3],
    running: [usize; 3],
    depth: usize,
}

const COMMIT: usize = 0;
const FOREGROUND: usize = 1;
const BACKGROUND: usize = 2;

fn index_of(class: IoClass) -> usize {
    match class {
        IoClass::Commit => COMMIT,
        IoClass::Foreground => FOREGROUND,
        IoClass::Background => BACKGROUND,
    }
}

impl<T> ClassQueue<T> {
    /// A queue in front of a device that runs `depth` commands at a time.
    pub(crate) fn new(depth: usize) -> ClassQueue<T> {
        ClassQueue { classes: Default::default(), running: [0; 3], depth }
    }

    pub(crate) fn push(&mut self, class: IoClass, command: T) {
        self.classes[index_of(class)].push_back(command);
    }

    /// The command to start next. `None`: none waits, or none may start now.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let class = self.choose()?;
        let command = self.classes[class].pop_front()?;
        self.running[class] += 1;
        Some(command)
    }

    /// A command of `class` has ended and frees its place.
    pub(crate) fn finished(&mut self, class: IoClass) {
        self.running[index_of(class)] -= 1;
    }

    /// Number of waiting commands.
    pub(crate) fn queued(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    /// Number of running commands.
    pub(crate) fn running(&self) -> usize {
        self.running.iter().sum()
    }

    /// Whether all places are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.running() >= self.depth
    }

    /// The class to serve next.
    fn choose(&self) -> Option<usize> {
        let waits = |class: usize| !self.classes[class].is_empty();
        if self.is_full() {
            return None;
        }
        if waits(COMMIT) {
            return Some(COMMIT);
        }
        let running = self.running();
        let quarter = (self.depth / 4).max(1);
        let alone = !waits(FOREGROUND) && running == self.running[BACKGROUND];
        let share = if alone { self.depth - quarter } else { quarter };
        let background = waits(BACKGROUND) && self.running[BACKGROUND] < share.max(1);
        let others = running - self.running[BACKGROUND];
        if waits(FOREGROUND) && !(background && others >= self.depth - quarter) {
            return Some(FOREGROUND);
        }
        background.then_some(BACKGROUND)
    }
}

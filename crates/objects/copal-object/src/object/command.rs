//! Read commands: parts of ranges, sorted by address and joined.
//!
//! Design: docs/design/object.md#reads
//! Invariants
//! - A command begins and ends with wanted bytes and is at most one I/O of the device.
//! - Parts that overlap are read once, but for less than a page where a command ends inside one.
//! - A gap that holds a raw extent is not read through: its pages are used through the page cache only.
//!
//! Not here: which parts a range has (`plan`), their bytes (`answer`).

use crate::{format::run::PageRun, state::StoreCore};
use std::ops::Range;

/// Consecutive bytes of the device that a range needs.
#[derive(Clone, Debug)]
pub(super) struct ReadPart {
    /// Number of the range among those that are read together.
    pub(super) range: u32,
    /// First byte on the device, and bytes; whole blocks, or whole pages if they are verified.
    pub(super) at: u64,
    pub(super) len: usize,
    /// Wanted bytes inside the part.
    pub(super) wanted: Range<usize>,
    /// Offset of the wanted bytes in the answer.
    pub(super) target: usize,
    /// Sums of the pages, in order; empty if not verified here.
    pub(super) sums: Vec<u32>,
    /// Byte offset inside the object, for errors.
    pub(super) object_at: u64,
}

impl ReadPart {
    pub(super) fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    /// Its pages on the device.
    pub(super) fn pages(&self, page_bytes: usize) -> PageRun {
        let page = page_bytes as u64;
        let first = self.at / page;
        PageRun::new(first, (self.end().div_ceil(page) - first) as u32)
    }

    /// Cuts the part after `len` bytes, which are whole pages if it is verified.
    pub(super) fn split(mut self, len: usize, page_bytes: usize) -> (ReadPart, ReadPart) {
        let pages = if self.sums.is_empty() { 0 } else { len / page_bytes };
        let wanted = self.wanted.start.min(len)..self.wanted.end.min(len);
        let rest = ReadPart {
            range: self.range,
            at: self.at + len as u64,
            len: self.len - len,
            wanted: self.wanted.start.max(len) - len..self.wanted.end.max(len) - len,
            target: self.target + wanted.len(),
            sums: self.sums.split_off(pages),
            object_at: self.object_at + len as u64,
        };
        (self.len, self.wanted) = (len, wanted);
        (self, rest)
    }
}

/// One command and the parts that it serves.
#[derive(Debug)]
pub(super) struct ReadCommand {
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) parts: Vec<ReadPart>,
}

impl ReadCommand {
    fn of(part: ReadPart) -> ReadCommand {
        ReadCommand { at: part.at, len: part.len, parts: vec![part] }
    }

    fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    /// Whether it reads anything besides one part: an error may then concern other bytes.
    pub(super) fn is_joined(&self) -> bool {
        self.parts.len() > 1
    }

    /// Each part as a command of its own.
    pub(super) fn into_single(self) -> impl Iterator<Item = ReadCommand> {
        self.parts.into_iter().map(ReadCommand::of)
    }
}

/// Limits of commands on one device.
#[derive(Clone, Debug)]
pub(super) struct JoinLimits {
    /// Largest distance between two parts of a command.
    pub(super) gap_bytes: u64,
    /// Longest command.
    pub(super) io_bytes: usize,
    pub(super) page_bytes: usize,
    /// Ranges of the device that no gap may touch.
    pub(super) walls: Vec<Range<u64>>,
}

impl JoinLimits {
    /// The limits of an open store; `raw`: pages in use as raw extents.
    pub(super) fn of(store: &StoreCore, raw: impl Iterator<Item = PageRun>) -> JoinLimits {
        let shape = &store.shape;
        JoinLimits {
            gap_bytes: shape.gap_bytes,
            io_bytes: shape.io_pages() as usize * shape.page_bytes,
            page_bytes: shape.page_bytes,
            walls: raw.map(|run| shape.byte(run.at)..shape.byte(run.end())).collect(),
        }
    }

    /// Whether a command that ends at `end` may go on to a part that begins at `next`.
    fn may_join(&self, end: u64, next: u64) -> bool {
        next <= end
            || next - end <= self.gap_bytes
                && !self.walls.iter().any(|wall| wall.start < next && end < wall.end)
    }

    /// The commands that read `parts`, in the order of their addresses.
    pub(super) fn join(&self, mut parts: Vec<ReadPart>) -> Vec<ReadCommand> {
        parts.sort_by_key(|part| part.at);
        let mut commands: Vec<ReadCommand> = Vec::new();
        for part in parts {
            let mut rest = Some(part);
            while let Some(part) = rest.take() {
                rest = self.place(&mut commands, part);
            }
        }
        commands
    }

    /// Adds as much of the part as one command takes; returns the rest.
    fn place(&self, commands: &mut Vec<ReadCommand>, part: ReadPart) -> Option<ReadPart> {
        // A part that was cut may have opened commands behind the beginning of the next one.
        let before = commands.iter().rposition(|command| command.at <= part.at);
        let is_last = before.is_some_and(|index| index + 1 == commands.len());
        if let Some(open) = before.map(|index| &mut commands[index]) {
            let end = part.end().max(open.end());
            let fits = end - open.at <= self.io_bytes as u64 && (is_last || end == open.end());
            if fits && self.may_join(open.end(), part.at) {
                open.len = (end - open.at) as usize;
                open.parts.push(part);
                return None;
            }
            let unit = if part.sums.is_empty() { 1 } else { self.page_bytes as u64 };
            let shared = open.end().saturating_sub(part.at) / unit * unit;
            if shared > 0 {
                let (head, tail) = part.split(shared as usize, self.page_bytes);
                open.parts.push(head);
                return Some(tail);
            }
        }
        if part.len <= self.io_bytes {
            commands.push(ReadCommand::of(part));
            return None;
        }
        let (head, tail) = part.split(self.io_bytes, self.page_bytes);
        commands.push(ReadCommand::of(head));
        Some(tail)
    }
}

#[cfg(test)]
mod tests;

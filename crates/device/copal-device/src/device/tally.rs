//! Counters of commands that reach a device. Every device counts here, so the numbers mean the same
//! everywhere.

use crate::{DeviceCounters, IoKind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct IoTally {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    fua_writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    discard_bytes: AtomicU64,
    zeroes: AtomicU64,
    zero_bytes: AtomicU64,
}

impl IoTally {
    /// Counts one command.
    pub(crate) fn count(&self, kind: &IoKind) {
        match kind {
            IoKind::Read(buf) => self.read(buf.len()),
            IoKind::Write { buf, fua } => self.write(buf.len(), *fua),
            IoKind::Flush => self.flush(),
            IoKind::Discard(len) => {
                self.discards.fetch_add(1, Relaxed);
                self.discard_bytes.fetch_add(*len, Relaxed);
            }
            IoKind::WriteZeroes(len) => {
                self.zeroes.fetch_add(1, Relaxed);
                self.zero_bytes.fetch_add(*len, Relaxed);
            }
        }
    }

    pub(crate) fn read(&self, len: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(len as u64, Relaxed);
    }

    pub(crate) fn write(&self, len: usize, fua: bool) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(len as u64, Relaxed);
        self.fua_writes.fetch_add(u64::from(fua), Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub(crate) fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            fua_writes: self.fua_writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            discard_bytes: self.discard_bytes.load(Relaxed),
            zeroes: self.zeroes.load(Relaxed),
            zero_bytes: self.zero_bytes.load(Relaxed),
        }
    }
}

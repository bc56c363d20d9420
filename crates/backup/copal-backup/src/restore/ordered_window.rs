//! A part of a disk for a target that takes bytes in order: its chunks are collected in memory, then written.

use super::restore_job::RestoreJob;
use crate::request::error::Result;
use crate::snapshot::fetch::{ChunkTaker, WantedChunk};
use parking_lot::Mutex;

/// A part of a disk.
pub(super) struct OrderedWindow {
    /// Its data, without the holes between.
    bytes: Mutex<Vec<u8>>,
    /// Its data and holes in order.
    runs: Vec<DiskRun>,
}

struct DiskRun {
    at: u64,
    length: u64,
    is_hole: bool,
}

impl OrderedWindow {
    /// An empty window for this many bytes of data.
    pub(super) fn new(bytes: usize) -> OrderedWindow {
        OrderedWindow { bytes: Mutex::new(Vec::with_capacity(bytes)), runs: Vec::new() }
    }

    /// Adds the next bytes of the disk. Returns the place of data in the window.
    pub(super) fn add(&mut self, at: u64, length: u64, is_hole: bool) -> u64 {
        let place = self.bytes.get_mut().len();
        match self.runs.last_mut().filter(|last| last.is_hole == is_hole) {
            Some(last) => last.length += length,
            None => self.runs.push(DiskRun { at, length, is_hole }),
        }
        if !is_hole {
            self.bytes.get_mut().resize(place + length as usize, 0);
        }
        place as u64
    }

    /// Bytes of data in the window.
    pub(super) fn data_bytes(&mut self) -> u64 {
        self.bytes.get_mut().len() as u64
    }

    /// Writes the window, and empties it.
    pub(super) fn write(&mut self, job: &RestoreJob<'_>) -> Result<()> {
        let bytes = self.bytes.get_mut();
        let mut rest = &bytes[..];
        for run in self.runs.drain(..) {
            if run.is_hole {
                job.target.hole(run.at, run.length)?;
                continue;
            }
            let (data, later) = rest.split_at(run.length as usize);
            rest = later;
            job.target.write_at(run.at, data)?;
            job.wrote(run.length);
        }
        bytes.clear();
        Ok(())
    }
}

/// Copies chunks to their places in a window.
pub(super) struct WindowTaker<'w>(pub(super) &'w OrderedWindow);

impl ChunkTaker for WindowTaker<'_> {
    fn take(&mut self, wanted: &WantedChunk, raw: &[u8]) -> Result<()> {
        let place = wanted.place as usize;
        self.0.bytes.lock()[place..place + raw.len()].copy_from_slice(raw);
        Ok(())
    }
}

//! Writes decoded chunks to their places in a target that takes them in any order: neighbours in one write,
//! and whole blocks only ([`BlockEdges`]).

use super::RestoreJob;
use super::block_edges::BLOCK_BYTES;
use crate::request::error::Result;
use crate::snapshot::fetch::{ChunkTaker, WantedChunk};

/// Most bytes of one write, unless a chunk is longer.
const RUN_BYTES: usize = 1 << 20;

/// Writes the chunks of one thread.
pub(super) struct RunWriter<'j> {
    job: &'j RestoreJob<'j>,
    /// A block of room, then neighbours.
    run: Vec<u8>,
    /// Place of the first byte behind the room.
    at: u64,
}

impl<'j> RunWriter<'j> {
    pub(super) fn new(job: &'j RestoreJob<'j>) -> RunWriter<'j> {
        RunWriter { job, run: vec![0; BLOCK_BYTES], at: 0 }
    }
}

impl ChunkTaker for RunWriter<'_> {
    fn take(&mut self, wanted: &WantedChunk, raw: &[u8]) -> Result<()> {
        let length = self.run.len() - BLOCK_BYTES;
        if wanted.place != self.at + length as u64 || length + raw.len() > RUN_BYTES {
            self.pause()?;
            self.at = wanted.place;
        }
        self.run.extend_from_slice(raw);
        Ok(())
    }

    /// Writes the run. Its first and last block go to the edges if the run does not fill them, and come back
    /// with the rest of the block if they are complete by now.
    fn pause(&mut self) -> Result<()> {
        let (job, block) = (self.job, BLOCK_BYTES as u64);
        let length = self.run.len() - BLOCK_BYTES;
        let (mut from, mut at) = (BLOCK_BYTES, self.at);
        let head = (at % block) as usize;
        if head > 0 && length > 0 {
            let part = length.min(BLOCK_BYTES - head);
            match job.edges.join(at / block, head, &self.run[from..from + part]) {
                Some(whole) => {
                    from -= head;
                    at -= head as u64;
                    self.run[from..BLOCK_BYTES].copy_from_slice(&whole[..head]);
                    self.run.extend_from_slice(&whole[head + part..]);
                }
                None => {
                    from += part;
                    at += part as u64;
                }
            }
        }
        let end = at + (self.run.len() - from) as u64;
        let tail = (end % block) as usize;
        let mut to = self.run.len();
        if tail > 0 && end < job.size_bytes && from < to {
            match job.edges.join(end / block, 0, &self.run[to - tail..]) {
                Some(whole) => {
                    self.run.extend_from_slice(&whole[tail..]);
                    to = self.run.len();
                }
                None => to -= tail,
            }
        }
        if from < to {
            job.target.write_at(at, &self.run[from..to])?;
        }
        self.run.truncate(BLOCK_BYTES);
        if length > 0 {
            job.wrote(length as u64);
        }
        Ok(())
    }
}

//! Writes decoded chunks to their places in a target that takes them in any order: neighbours in one write,
//! and whole blocks only ([`BlockEdges`]).

use super::block_edges::BLOCK_BYTES;
use super::restore_job::RestoreJob;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::packs::home::PackHome;
    use crate::packs::pack::{FrameLocation, PackNumber};
    use crate::restore::block_edges::BlockEdges;
    use crate::snapshot::recipe::FrameRef;
    use crate::world::Random;
    use copal_chunk::ChunkId;
    use copal_disk::target::{Target, TargetError};
    use parking_lot::Mutex;
    use std::sync::atomic::AtomicU64;

    /// A disk in memory that takes whole blocks only, each byte once.
    struct BlockTarget(Mutex<Vec<Option<u8>>>);

    impl Target for BlockTarget {
        fn begin(&self, _: u64) -> std::result::Result<(), TargetError> {
            Ok(())
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> std::result::Result<(), TargetError> {
            let mut disk = self.0.lock();
            let (start, end) = (offset as usize, offset as usize + data.len());
            assert!(start.is_multiple_of(BLOCK_BYTES), "{start}");
            assert!(end.is_multiple_of(BLOCK_BYTES) || end == disk.len(), "{end}");
            for (cell, byte) in disk[start..end].iter_mut().zip(data) {
                assert_eq!(cell.replace(*byte), None, "a byte is written twice");
            }
            Ok(())
        }
        fn hole(&self, _: u64, _: u64) -> std::result::Result<(), TargetError> {
            Ok(())
        }
        fn finish(&self) -> std::result::Result<(), TargetError> {
            Ok(())
        }
    }

    fn chunk(place: usize, length: usize) -> WantedChunk {
        let location = FrameLocation { home: PackHome::Shared, volume: 0, pack: PackNumber(0), slot: 0 };
        let chunk = FrameRef { id: ChunkId([0; 32]), location };
        WantedChunk { chunk, length: length as u32, place: place as u64 }
    }

    /// Chunks of any length, runs of them in any order, by two writers in turn.
    #[test]
    fn chunks_in_any_order_are_written_as_whole_blocks() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut disk = vec![0; 50_000 + random.index(200_000)];
            random.fill(&mut disk);
            let longest = [300, 5000, 20_000][random.index(3)];
            let mut runs: Vec<Vec<WantedChunk>> = vec![Vec::new()];
            let mut at = 0;
            while at < disk.len() {
                let length = (1 + random.index(longest)).min(disk.len() - at);
                if random.below(3) == 0 {
                    runs.push(Vec::new());
                }
                runs.last_mut().unwrap().push(chunk(at, length));
                at += length;
            }
            for at in (1..runs.len()).rev() {
                runs.swap(at, random.index(at + 1));
            }
            let target = BlockTarget(Mutex::new(vec![None; disk.len()]));
            let size_bytes = disk.len() as u64;
            let edges = BlockEdges::new(size_bytes);
            let written_bytes = AtomicU64::new(0);
            let job = RestoreJob { size_bytes, target: &target, progress: &Silent, edges, written_bytes };
            let mut writers = [RunWriter::new(&job), RunWriter::new(&job)];
            for run in runs {
                let writer = &mut writers[random.index(2)];
                for chunk in run {
                    let place = chunk.place as usize;
                    writer.take(&chunk, &disk[place..place + chunk.length as usize]).unwrap();
                }
            }
            writers.iter_mut().for_each(|writer| writer.pause().unwrap());
            assert!(job.edges.take_rest().is_empty());
            assert_eq!(job.written_bytes.into_inner(), size_bytes);
            let written: Vec<u8> = target.0.lock().iter().map(|byte| byte.unwrap()).collect();
            assert!(written == disk, "seed {seed}");
        }
    }
}

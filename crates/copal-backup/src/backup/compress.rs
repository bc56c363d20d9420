//! Second thread of a backup: compresses new chunks.

use super::job::{Job, Numbered, Step, What};
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender};

/// zstd level of chunks and recipes.
const LEVEL: i32 = 3;

/// Compresses small buffers, one after another. One per thread.
pub(crate) struct Squeezer {
    zstd: zstd::bulk::Compressor<'static>,
    out: Vec<u8>,
}

impl Squeezer {
    pub(crate) fn new() -> Result<Squeezer> {
        let failed = |error| Error::Invalid {
            reason: format!("zstd cannot start: {error}"),
        };
        let mut zstd = zstd::bulk::Compressor::new(LEVEL).map_err(failed)?;
        // Seals and ids say more than zstd's own checksum would.
        zstd.include_checksum(false).map_err(failed)?;
        Ok(Squeezer {
            zstd,
            out: Vec::new(),
        })
    }

    /// The compressed bytes, unless they save less than 3 %.
    pub(crate) fn squeeze(&mut self, raw: &[u8]) -> Option<&[u8]> {
        let worth = raw.len() - raw.len() * 3 / 100;
        self.out.clear();
        self.out.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        let packed = self.zstd.compress_to_buffer(raw, &mut self.out).ok()?;
        (packed < worth).then_some(&self.out[..packed])
    }
}

/// Compresses jobs until there are no more.
pub(crate) fn run(jobs: &Receiver<Numbered>, done: &Sender<Numbered>) -> Result<()> {
    let mut squeezer = Squeezer::new()?;
    for mut numbered in jobs {
        if let Step::Write(job) = &mut numbered.step {
            compress(job, &mut squeezer);
        }
        if done.send(numbered).is_err() {
            return Ok(()); // the packer has failed and says why
        }
    }
    Ok(())
}

fn compress(job: &mut Job, squeezer: &mut Squeezer) {
    job.packed.clear();
    for entry in &mut job.entries {
        let What::New(chunk) = &mut entry.what else {
            continue;
        };
        if let Some(packed) = squeezer.squeeze(&job.segment[chunk.raw.clone()]) {
            let start = job.packed.len();
            job.packed.extend_from_slice(packed);
            chunk.packed = Some(start..job.packed.len());
        }
    }
}

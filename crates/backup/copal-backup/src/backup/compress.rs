//! Compresses chunks.

use crate::request::error::{Error, Result};
use zstd::zstd_safe::{CParameter, Strategy};

/// Parameters of compression: one hash table that fits the first cache, and matches from five bytes on.
///
/// They lie between zstd's levels, which are not tuned for chunks of 16 KiB. Level 3 fills two tables and
/// takes 20 to 25 % longer to save 0.8 %. Level 1 finds only matches of six or seven bytes and saves 1 %
/// less. Decision 2026-11-22, cheaper frames.
const LEVEL: i32 = 1;
const SEARCH: [CParameter; 4] = [
    CParameter::Strategy(Strategy::ZSTD_fast),
    CParameter::MinMatch(5),
    CParameter::HashLog(13),
    CParameter::TargetLength(0),
];

/// Compresses small buffers, one after another. One per thread.
pub(crate) struct ChunkCompressor {
    zstd: zstd::bulk::Compressor<'static>,
    out: Vec<u8>,
}

impl ChunkCompressor {
    pub(crate) fn new() -> Result<ChunkCompressor> {
        let failed = |error| Error::Invalid { reason: format!("zstd cannot start: {error}") };
        let mut zstd = zstd::bulk::Compressor::new(LEVEL).map_err(failed)?;
        // Authentication tags and ids detect more than zstd's checksum would.
        zstd.include_checksum(false).map_err(failed)?;
        for parameter in SEARCH {
            zstd.set_parameter(parameter).map_err(failed)?;
        }
        Ok(ChunkCompressor { zstd, out: Vec::new() })
    }

    /// The compressed bytes, unless they save less than 3 %.
    pub(crate) fn compress(&mut self, raw: &[u8]) -> Option<&[u8]> {
        let worth = raw.len() - raw.len() * 3 / 100;
        self.out.clear();
        self.out.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        let packed = self.zstd.compress_to_buffer(raw, &mut self.out).ok()?;
        (packed < worth).then_some(&self.out[..packed])
    }
}

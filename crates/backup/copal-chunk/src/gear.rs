//! Cut rule: the end of the chunk that begins at a given position.
//!
//! Content-defined cuts use a gear hash, `h = 2h + table[byte]`, in the manner of FastCDC (2020). The first
//! `min` bytes are skipped. Up to the average size a hard threshold applies, after it an easy one. `max` cuts
//! in any case. A cut is placed after the byte at which the hash falls below the threshold, so its
//! probability is 2^-bits. The compared high bits depend on the last 48 bytes or more.
//!
//! The table is derived from a key: without the key, chunk lengths reveal nothing about the content.
//!
//! Invariant: a cut depends on the bytes from the chunk's start to the cut, on the end of the run, and (fixed
//! profiles) on the position in the segment. Bytes before the chunk have no influence.

use crate::profile::{ChunkProfile, CutRule};

/// Cuts runs of data bytes into chunks. It has 2 KiB and can be shared.
pub struct Chunker {
    table: Box<[u64; 256]>,
    profile: ChunkProfile,
    rule: CutRule,
    hard: u64,
    easy: u64,
}

/// Distance in bits of the two thresholds from that of the average.
const NORMALISATION_BITS: u32 = 2;

impl Chunker {
    /// Creates a chunker for `profile`, with the table derived from `key`.
    pub fn new(profile: ChunkProfile, key: &[u8; 32]) -> Chunker {
        let mut bytes = [0; 256 * 8];
        let mut output = blake3::Hasher::new_keyed(key);
        output.update(b"copal gear table v1");
        output.finalize_xof().fill(&mut bytes);
        let mut table = Box::new([0; 256]);
        for (entry, eight) in table.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *entry = u64::from_le_bytes(*eight);
        }
        let rule = profile.rule();
        let bits = match rule {
            CutRule::Content { average, .. } => average.ilog2(),
            CutRule::Fixed { .. } => NORMALISATION_BITS,
        };
        let threshold = |bits: u32| 1u64 << (64 - bits);
        Chunker {
            table,
            profile,
            rule,
            hard: threshold(bits + NORMALISATION_BITS),
            easy: threshold((bits - NORMALISATION_BITS).max(1)),
        }
    }

    /// The profile of the chunker.
    pub fn profile(&self) -> ChunkProfile {
        self.profile
    }

    /// Length of the chunk that begins at `position` of its segment; `run` are the bytes from there.
    ///
    /// With `ends = true`, `run` reaches the end of its run, and the result is final. With `ends = false`
    /// more bytes follow; `None` then means that the cut is after the given bytes.
    pub fn cut(&self, position: usize, run: &[u8], ends: bool) -> Option<usize> {
        let (found, max) = match self.rule {
            CutRule::Fixed { size } => (None, size - position % size),
            CutRule::Content { min, average, max } => (self.content_cut(run, min, average, max), max),
        };
        match found {
            Some(cut) => Some(cut),
            None if run.len() >= max => Some(max),
            None if ends => Some(run.len()),
            None => None,
        }
    }

    fn content_cut(&self, run: &[u8], min: usize, average: usize, max: usize) -> Option<usize> {
        let hard_end = run.len().min(average);
        let end = run.len().min(max);
        let mut hash = 0;
        if let Some(zone) = run.get(min..hard_end)
            && let Some(at) = self.scan(zone, self.hard, &mut hash)
        {
            return Some(min + at);
        }
        let zone = run.get(average..end)?;
        self.scan(zone, self.easy, &mut hash).map(|at| average + at)
    }

    /// Rolls the hash over `zone`; returns the length up to and including the first byte at which the hash
    /// falls below `threshold`.
    #[inline]
    fn scan(&self, zone: &[u8], threshold: u64, hash: &mut u64) -> Option<usize> {
        let table = &*self.table;
        let mut h = *hash;
        let (groups, rest) = zone.as_chunks::<8>();
        for (index, group) in groups.iter().enumerate() {
            // Eight steps and one branch; only a group with a cut is scanned byte by byte.
            let before = h;
            let mut least = u64::MAX;
            for &byte in group {
                h = (h << 1).wrapping_add(table[usize::from(byte)]);
                least = least.min(h);
            }
            if least < threshold {
                h = before;
                let within = self.scan_bytes(group, threshold, &mut h)?;
                return Some(index * 8 + within);
            }
        }
        *hash = h;
        let within = self.scan_bytes(rest, threshold, hash)?;
        Some(groups.len() * 8 + within)
    }

    fn scan_bytes(&self, zone: &[u8], threshold: u64, hash: &mut u64) -> Option<usize> {
        for (index, &byte) in zone.iter().enumerate() {
            *hash = (*hash << 1).wrapping_add(self.table[usize::from(byte)]);
            if *hash < threshold {
                return Some(index + 1);
            }
        }
        None
    }

    /// Reference implementation from the definition, one byte at a time, for tests of [`Chunker::cut`].
    #[cfg(test)]
    pub(crate) fn cut_plainly(&self, position: usize, run: &[u8]) -> usize {
        match self.rule {
            CutRule::Fixed { size } => run.len().min(size - position % size),
            CutRule::Content { min, average, max } => {
                let mut hash: u64 = 0;
                for (index, &byte) in run.iter().enumerate().take(max).skip(min) {
                    hash = hash.wrapping_mul(2).wrapping_add(self.table[usize::from(byte)]);
                    let threshold = if index < average { self.hard } else { self.easy };
                    if hash < threshold {
                        return index + 1;
                    }
                }
                run.len().min(max)
            }
        }
    }
}

#[cfg(test)]
mod tests;

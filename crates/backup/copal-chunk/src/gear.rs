//! The cutter: where does the chunk that begins here end?
//!
//! Content-defined cuts use a gear hash, `h = 2h + table[byte]`, in the manner of FastCDC (2020): the
//! first `min` bytes are skipped, a hard threshold holds up to the average size and an easy one after
//! it, and `max` cuts in any case. A cut lies after the byte at which the hash falls below the
//! threshold, so its probability is 2^-bits; the compared high bits depend on the last 48 bytes or more.
//!
//! The table is derived from a key: without it, chunk lengths tell nothing about content.
//!
//! Invariant: a cut depends on the bytes from the chunk's start to the cut, on the end of the run, and
//! (fixed profiles) on the position in the segment. Nothing before the chunk matters.

use crate::profile::{Profile, Rule};

/// Cuts runs of data bytes into chunks. Cheap to share, 2 KiB.
pub struct Chunker {
    table: Box<[u64; 256]>,
    profile: Profile,
    rule: Rule,
    hard: u64,
    easy: u64,
}

/// How many bits harder and easier than the average the two thresholds are.
const NORMALISATION_BITS: u32 = 2;

impl Chunker {
    /// A cutter for `profile` with the table derived from `key`.
    pub fn new(profile: Profile, key: &[u8; 32]) -> Chunker {
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
            Rule::Content { average, .. } => average.ilog2(),
            Rule::Fixed { .. } => NORMALISATION_BITS,
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

    /// The profile it cuts by.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Length of the chunk that begins at `position` of its segment; `run` are the bytes from there.
    ///
    /// When `run` is the whole rest of the run, the answer is final. When more bytes follow that are not
    /// in `run`, pass `ends = false`: `None` then means that the cut lies beyond what was given.
    pub fn cut(&self, position: usize, run: &[u8], ends: bool) -> Option<usize> {
        let (found, max) = match self.rule {
            Rule::Fixed { size } => (None, size - position % size),
            Rule::Content { min, average, max } => (self.content_cut(run, min, average, max), max),
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

    /// Rolls over `zone`; the number of bytes up to and with the first that falls below `threshold`.
    #[inline]
    fn scan(&self, zone: &[u8], threshold: u64, hash: &mut u64) -> Option<usize> {
        let table = &*self.table;
        let mut h = *hash;
        let (groups, rest) = zone.as_chunks::<8>();
        for (index, group) in groups.iter().enumerate() {
            // Eight steps, one branch: the exact place is looked for only in the group that has it.
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

    /// One byte at a time, straight from the definition: the twin that [`Chunker::cut`] is tested against.
    #[cfg(test)]
    pub(crate) fn cut_plainly(&self, position: usize, run: &[u8]) -> usize {
        match self.rule {
            Rule::Fixed { size } => run.len().min(size - position % size),
            Rule::Content { min, average, max } => {
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

//! Distinguishes sequential reads from random ones.

use parking_lot::Mutex;

/// Streams that are followed at once.
const STREAMS: usize = 8;
/// Largest distance of a read from the end of its stream: many reads are in flight, in any order.
const NEAR_BYTES: u64 = 4 << 20;

/// The ends of the latest streams of one disk, the newest last.
#[derive(Default)]
pub(super) struct ReadStreams {
    ends: Mutex<Vec<u64>>,
}

impl ReadStreams {
    /// Notes a read; returns whether it continues a stream.
    pub(super) fn note(&self, offset: u64, len: u64) -> bool {
        let mut ends = self.ends.lock();
        let end = offset + len;
        let near = ends.iter().position(|known| known.abs_diff(offset) <= NEAR_BYTES);
        match near {
            Some(at) => {
                let known = ends.remove(at);
                ends.push(known.max(end));
            }
            None => {
                if ends.len() == STREAMS {
                    ends.remove(0);
                }
                ends.push(end);
            }
        }
        near.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_streams_are_distinguished_from_random_reads() {
        let streams = ReadStreams::default();
        const GIB: u64 = 1 << 30;
        for step in 0..100 {
            for stream in 0..4 {
                // Neighbours are swapped.
                let step = step ^ 1;
                let follows = streams.note(stream * GIB + step * (256 << 10), 256 << 10);
                assert_eq!(follows, step != 1, "stream {stream}, step {step}");
            }
        }
        assert!(!streams.note(50 * GIB, 4096));
        assert!(!streams.note(60 * GIB, 4096));
    }
}

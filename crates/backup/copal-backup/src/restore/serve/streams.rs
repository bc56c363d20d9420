//! Tells reads that follow each other from reads at random places.

use parking_lot::Mutex;

/// Streams that are followed at once.
const STREAMS: usize = 8;
/// So far before or behind the end of a stream a read belongs to it: many are on their way at once, in any
/// order.
const NEAR_BYTES: u64 = 4 << 20;

/// The ends of the last streams of one disk, the newest last.
#[derive(Default)]
pub(super) struct Streams {
    ends: Mutex<Vec<u64>>,
}

impl Streams {
    /// Notes a read; whether it goes on where others were.
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
    fn several_streams_at_once_are_told_from_random_places() {
        let streams = Streams::default();
        const GIB: u64 = 1 << 30;
        for step in 0..100 {
            for stream in 0..4 {
                // Neighbours change places.
                let step = step ^ 1;
                let follows = streams.note(stream * GIB + step * (256 << 10), 256 << 10);
                assert_eq!(follows, step != 1, "stream {stream}, step {step}");
            }
        }
        assert!(!streams.note(50 * GIB, 4096));
        assert!(!streams.note(60 * GIB, 4096));
    }
}

//! Distinguishes sequential reads from random ones.

use parking_lot::Mutex;

/// Streams that are followed at once.
const STREAMS: usize = 8;
/// Largest distance of a read from the end of its stream: many reads are in flight, in any order.
const NEAR_BYTES: u64 = 4 << 20;

/// The latest streams of one disk, the newest last.
#[derive(Default)]
pub(super) struct ReadStreams {
    streams: Mutex<Vec<ReadStream>>,
}

struct ReadStream {
    end: u64,
    /// Bytes that were read one after another.
    bytes: u64,
}

impl ReadStreams {
    /// Notes a read. Returns the bytes of the stream before it; `None`: it continues no stream.
    pub(super) fn note(&self, offset: u64, len: u64) -> Option<u64> {
        let mut streams = self.streams.lock();
        let end = offset + len;
        let near = streams.iter().position(|stream| stream.end.abs_diff(offset) <= NEAR_BYTES);
        let Some(at) = near else {
            if streams.len() == STREAMS {
                streams.remove(0);
            }
            streams.push(ReadStream { end, bytes: len });
            return None;
        };
        let stream = streams.remove(at);
        streams.push(ReadStream { end: stream.end.max(end), bytes: stream.bytes.saturating_add(len) });
        Some(stream.bytes)
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
                let before = streams.note(stream * GIB + step * (256 << 10), 256 << 10);
                assert_eq!(before.is_some(), step != 1, "stream {stream}, step {step}");
            }
        }
        assert_eq!(streams.note(50 * GIB, 4096), None);
        assert_eq!(streams.note(60 * GIB, 4096), None);
        assert_eq!(streams.note(60 * GIB + 4096, 4096), Some(4096));
    }
}

//! Throughput of one core at splitting and hashing chunks: `cargo bench -p copal-chunk`.
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
#![expect(clippy::print_stdout, reason = "a measurement prints its result")]

use copal_chunk::{ChunkProfile, Chunker, IdKey, SEGMENT_BYTES, chunks_of, split};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let mut data = vec![0; 64 << 20];
    copal_testkit::Random::new(1).fill(&mut data);
    let key = IdKey::new([2; 32]);
    for profile in ChunkProfile::ALL {
        let chunker = Chunker::new(profile, &[1; 32]);
        let start = Instant::now();
        let mut chunks = 0;
        for segment in data.chunks(SEGMENT_BYTES) {
            chunks += chunks_of(black_box(&split(&chunker, segment))).count();
        }
        let split_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for segment in data.chunks(SEGMENT_BYTES) {
            for piece in chunks_of(&split(&chunker, segment)) {
                black_box(key.id(&segment[piece.range()]));
            }
        }
        let both_seconds = start.elapsed().as_secs_f64();
        let rate = |seconds: f64| data.len() as f64 / seconds / 1e9;
        println!(
            "{:10} split {:5.2} GB/s, split and id {:5.2} GB/s, mean chunk {} bytes",
            profile.name(),
            rate(split_seconds),
            rate(both_seconds),
            data.len() / chunks
        );
    }
}

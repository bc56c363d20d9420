//! Many tiny files in one volume, put through a client like any other's: batches, several at a time.

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_client::ClusterStore;
use copal_testkit::scattered;
use copal_volume::{PutOptions, VolumeId, VolumeStore};
use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

/// Files of a batch, and number of batches in flight.
const BATCH: u64 = 1_000;
const AT_A_TIME: usize = 4;

/// Name of a file by its number, of 20 bytes: in random order, like hashes.
pub(crate) fn name(number: u64) -> Bytes {
    Bytes::from(format!("{:016x}.txt", scattered(number)))
}

/// Puts the files of these numbers, each of `bytes`; returns files a second.
pub(crate) fn put(store: &ClusterStore, vid: VolumeId, numbers: Range<u64>, bytes: usize) -> Result<f64> {
    let next = AtomicU64::new(numbers.start);
    let (began, end) = (Instant::now(), numbers.end);
    let load = || -> Result<()> {
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= end {
                return Ok(());
            }
            let files = (first..end.min(first + BATCH)).map(|number| {
                let body = Bytes::from(vec![number as u8; bytes]);
                (name(number), body, PutOptions::default())
            });
            for answer in store.put_batch(vid, files.collect())? {
                answer.context("a file of a batch")?;
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(load)).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a client panicked"))
        })
    })?;
    Ok((numbers.end - numbers.start) as f64 / began.elapsed().as_secs_f64())
}

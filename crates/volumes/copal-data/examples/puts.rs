//! Measures durable creates per second, and their cost on the device.
//!
//!     cargo run --release -p copal-data --example puts -- [FILE] [SECONDS]
//!
//! Without FILE the store is a scratch file in the current directory.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_data::LocalStore;
use copal_device::{Device, FileOptions, open_file};
use copal_volume::{PutOptions, VolumeOptions, VolumeStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map_or_else(|| PathBuf::from("puts.copal"), PathBuf::from);
    let seconds = match arguments.next() {
        Some(seconds) => seconds.parse().context("SECONDS is a number")?,
        None => 3,
    };
    let options = FileOptions { create_size: Some(2 << 30), allow_cow: true, ..FileOptions::default() };
    let device = open_file(&path, &options)?;
    let run = run(&device, Duration::from_secs(seconds));
    drop(device);
    std::fs::remove_file(&path)?;
    run
}

fn run(device: &Arc<dyn Device>, time: Duration) -> Result<()> {
    copal_object::Store::mkfs(device, &copal_object::MkfsOptions::default())?;
    let options = copal_object::OpenOptions::default();
    let (objects, _) = copal_object::Store::open(Arc::clone(device), &options)?;
    let store = LocalStore::open(copal_kv::Store::open(objects, copal_kv::Options::default())?)?;
    for (threads, size) in [(1_u64, 4096), (4, 4096), (16, 4096), (1, 65_536), (16, 65_536), (1, 16 << 20)] {
        let name = format!("{threads}-{size}");
        let vid = store.create_volume("", &name, &VolumeOptions::default())?;
        let before = device.counters();
        let puts = AtomicU64::new(0);
        let began = Instant::now();
        std::thread::scope(|scope| {
            let work = |thread: u64| {
                let (store, puts) = (&store, &puts);
                move || -> Result<()> {
                    let body = Bytes::from(vec![thread as u8 + 1; size]);
                    let mut n = 0_u64;
                    while began.elapsed() < time && puts.load(Ordering::Relaxed) * (size as u64) < 256 << 20 {
                        let name = [thread.to_be_bytes(), n.to_be_bytes()].concat();
                        store.put(vid, &name, body.clone(), &PutOptions::default())?;
                        n += 1;
                        puts.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                }
            };
            let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let after = device.counters();
        let puts = puts.into_inner() as f64;
        println!(
            "{threads:>2} threads, {size:>8} B: {:>8.0} puts/s, {:>7.1} MB/s, {:.2} flushes, {:.2} fua writes, {:.2} writes and {:.0} B written per put",
            puts / seconds,
            puts * size as f64 / 1e6 / seconds,
            (after.flushes - before.flushes) as f64 / puts,
            (after.fua_writes - before.fua_writes) as f64 / puts,
            (after.writes - before.writes) as f64 / puts,
            (after.write_bytes - before.write_bytes) as f64 / puts,
        );
    }
    Ok(())
}

//! Measures a large store: many small files, a list of them, a restart, one large stream.
//!
//!     cargo run --release -p copal-data --example scale -- [FILE] [FILES] [STREAM_MIB]
//!
//! Prints time and resident memory after each step.

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use anyhow::{Context, Result};
use bytes::Bytes;
use copal_data::{CheckOptions, LocalStore};
use copal_device::{Device, FileOptions, open_file};
use copal_volume::{PutOptions, ReadOptions, VolumeOptions, VolumeStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().map_or_else(|| PathBuf::from("scale.copal"), PathBuf::from);
    let number = |argument: Option<String>, default: u64| match argument {
        Some(text) => text.parse().context("a number"),
        None => Ok(default),
    };
    let files = number(arguments.next(), 1_000_000)?;
    let stream_mib = number(arguments.next(), 1024)?;
    let options = FileOptions { create_size: Some(1 << 30), allow_cow: true, ..FileOptions::default() };
    let device = open_file(&path, &options)?;
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default())?;
    let done = small_files(&device, files).and_then(|()| stream(&device, stream_mib));
    drop(device);
    std::fs::remove_file(&path)?;
    done
}

fn open(device: &Arc<dyn Device>) -> Result<LocalStore> {
    let options = copal_object::OpenOptions::default();
    let (objects, _) = copal_object::Store::open(Arc::clone(device), &options)?;
    let kv = copal_kv::Store::open(objects, copal_kv::Options::default())?;
    Ok(LocalStore::open(kv)?)
}

/// Prints a line with the time since `began` and the memory of the process.
fn report(what: &str, began: Instant) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    println!(
        "{what:<40} {:>8.2} s, {:>4} MiB resident, {:>4} MiB at most",
        began.elapsed().as_secs_f64(),
        field("VmRSS:"),
        field("VmHWM:")
    );
    Ok(())
}

fn small_files(device: &Arc<dyn Device>, files: u64) -> Result<()> {
    const BATCH: u64 = 1000;
    let store = open(device)?;
    let vid = store.create_volume("", "many", &VolumeOptions::default())?;
    let began = Instant::now();
    for first in (0..files).step_by(BATCH as usize) {
        let batch = (first..files.min(first + BATCH)).map(|n| {
            // Names in random order, like hashes.
            let name = copal_testkit::scattered(n).to_be_bytes();
            (Bytes::copy_from_slice(&name), Bytes::from(vec![n as u8; 200]), PutOptions::default())
        });
        for answer in store.put_batch(vid, batch.collect())? {
            answer?;
        }
    }
    report(&format!("{files} files of 200 B in batches"), began)?;
    store.close()?;
    drop(store);
    let began = Instant::now();
    let store = open(device)?;
    report("restart", began)?;
    let began = Instant::now();
    let mut last: Option<Bytes> = None;
    let mut listed = 0;
    loop {
        let page = store.list(vid, b"", last.as_deref(), 1000, &ReadOptions::default())?;
        let Some((name, _)) = page.last() else { break };
        last = Some(name.clone());
        listed += page.len();
    }
    report(&format!("list of {listed} in pages of 1000"), began)?;
    let began = Instant::now();
    let checked =
        store.check(&CheckOptions { read_data: true, engine: true, verified: None }, &mut |_| {})?;
    report(&format!("check, {} findings", checked.damage.len()), began)?;
    store.close()?;
    Ok(())
}

fn stream(device: &Arc<dyn Device>, mib: u64) -> Result<()> {
    let store = open(device)?;
    let vid = store.create_volume("", "large", &VolumeOptions::default())?;
    let began = Instant::now();
    let mut writer = store.writer(vid, b"stream", &PutOptions::default())?;
    for n in 0..mib {
        writer.append(Bytes::from(vec![n as u8; 1 << 20]))?;
    }
    writer.commit()?;
    report(&format!("stream of {mib} MiB"), began)?;
    let began = Instant::now();
    for n in 0..mib {
        let range = n << 20..(n + 1) << 20;
        let part = store.get(vid, b"stream", range, &ReadOptions::default())?;
        anyhow::ensure!(part[0] == n as u8 && part.len() == 1 << 20, "wrong bytes");
    }
    report("read back by the MiB", began)?;
    let began = Instant::now();
    let info = store.stat(vid, b"stream", &ReadOptions::default())?;
    store.delete(vid, b"stream", info.fid)?;
    store.reclaim(vid)?;
    report("delete and reclaim", began)?;
    store.close()?;
    Ok(())
}

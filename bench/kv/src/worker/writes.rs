//! Loads and overwrites.

use super::{Done, Limit, on_threads};
use crate::{
    engine::Engine,
    keys::{Random, Ranks, fill_value, key, scattered},
    protocol::{Request, Safety},
};
use anyhow::{Result, bail};
use std::time::Instant;

pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    match *request {
        Request::Load { first, count, value_bytes, batch, safety } => {
            load(engine, first, count, value_bytes, batch, safety)
        }
        Request::Writes { .. } => overwrite(engine, request),
        Request::LoadPrefix { prefix, count, value_bytes } => load_prefix(engine, prefix, count, value_bytes),
        _ => bail!("not a write: {request:?}"),
    }
}

fn overwrite(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Writes { keys, skew, value_bytes, safety, ops, seconds, threads, seed } = *request else {
        bail!("no overwriting: {request:?}")
    };
    let ranks = Ranks::new(skew, keys);
    on_threads(threads, |thread| {
        let mut random = Random::new(seed.wrapping_mul(0x1000).wrapping_add(thread));
        let mut value = vec![0; value_bytes];
        let limit = Limit::new(seconds, ops.div_ceil(threads as u64));
        let mut done = Done::new();
        let mut now = Instant::now();
        while !limit.reached(done.ops, now) {
            let id = scattered(ranks.draw(&mut random), keys);
            fill_value(random.next(), &mut value);
            engine.put(&key(id), &value, safety)?;
            done.ops += 1;
            let end = Instant::now();
            done.latencies.add(end - now);
            now = end;
        }
        Ok(done)
    })
}

fn load_prefix(engine: &dyn Engine, prefix: u8, count: u64, value_bytes: usize) -> Result<Done> {
    let mut value = vec![0; value_bytes];
    let mut done = Done::new();
    let mut entries = Vec::with_capacity(100);
    for id in 0..count {
        let mut key = key(id);
        key[0] = prefix;
        fill_value(id, &mut value);
        entries.push((key, value.clone()));
        if entries.len() == 100 || id + 1 == count {
            engine.batch(&entries, Safety::Bulk)?;
            entries.clear();
        }
        done.ops += 1;
    }
    Ok(done)
}

fn load(
    engine: &dyn Engine,
    first: u64,
    count: u64,
    value_bytes: usize,
    batch: usize,
    safety: Safety,
) -> Result<Done> {
    let mut done = Done::new();
    let mut value = vec![0; value_bytes];
    let mut entries = Vec::with_capacity(batch);
    let mut now = Instant::now();
    for id in first..first + count {
        fill_value(id, &mut value);
        if batch > 1 {
            entries.push((key(id), value.clone()));
            if entries.len() < batch && id + 1 < first + count {
                continue;
            }
            engine.batch(&entries, safety)?;
            done.ops += entries.len() as u64;
            entries.clear();
        } else {
            engine.put(&key(id), &value, safety)?;
            done.ops += 1;
        }
        let end = Instant::now();
        done.latencies.add(end - now);
        now = end;
    }
    Ok(done)
}

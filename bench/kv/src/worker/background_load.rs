//! Look-ups during writes of another thread without a pause: the cost of merges to readers.

use super::{Done, Limit, on_threads, reads::Draw};
use crate::{
    engine::Engine,
    keys::{Random, Ranks, Skew, fill_value, key},
    protocol::Request,
};
use anyhow::{Result, bail};
use std::time::Instant;

/// Share of look-ups of ids that were never loaded.
const MISSING: f64 = 0.5;

pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::ReadsBesideWrites { keys, value_bytes, safety, seconds, seed } = *request else {
        bail!("not reads beside writes: {request:?}");
    };
    let ranks = Ranks::new(Skew::Uniform, keys);
    on_threads(2, |thread| {
        let (mut done, limit) = (Done::new(), Limit::new(seconds, 0));
        let mut draw = Draw::new(&ranks, keys, MISSING, seed, thread);
        let mut random = Random::new(seed);
        let mut value = vec![0; value_bytes];
        let (mut now, mut writes) = (Instant::now(), 0);
        while !limit.reached(done.ops.max(writes), now) {
            if thread == 0 {
                fill_value(random.next(), &mut value);
                engine.put(&key(random.below(keys)), &value, safety)?;
                writes += 1;
            } else {
                done.found += u64::from(draw.look_up(engine)?);
                done.ops += 1;
            }
            let end = Instant::now();
            let times = if thread == 0 { &mut done.write_latencies } else { &mut done.latencies };
            times.add(end - now);
            now = end;
        }
        Ok(done)
    })
}

//! A queue: puts at its end, looks and deletes at its head.
//!
//! The reader does not remember the head and scans for the first key, over the deleted entries before it.

use super::{Done, Limit, reads};
use crate::{
    engine::Engine,
    keys::{KEY_BYTES, Key, fill_value},
    protocol::Request,
};
use anyhow::{Result, bail};
use std::time::Instant;

/// First key of the queue: between loaded keys, which are hashes.
const PREFIX: &[u8] = b"\x80queue\0\0";

fn queue_key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(PREFIX);
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// An operation is a turn: a put, a look at the head and its deletion. Latencies are those of the looks.
pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Queue { waiting, turns, value_bytes, safety } = *request else {
        bail!("not a queue: {request:?}");
    };
    let mut value = vec![0; value_bytes];
    let mut put = |number| {
        fill_value(number, &mut value);
        engine.put(&queue_key(number), &value, safety)
    };
    for number in 0..waiting {
        put(number)?;
    }
    let limit = Limit::new(0.0, turns);
    let mut done = Done::new();
    while !limit.reached(done.ops, Instant::now()) {
        put(waiting + done.ops)?;
        let (began, cpu) = (Instant::now(), reads::thread_cpu());
        done.found += engine.scan(PREFIX, 1)? as u64;
        done.cpu.add(reads::thread_cpu().saturating_sub(cpu));
        done.latencies.add(began.elapsed());
        let head = queue_key(done.ops);
        if engine.get(&head)?.is_none() {
            bail!("entry {} of the queue was lost", done.ops);
        }
        engine.delete(&head, safety)?;
        done.ops += 1;
    }
    Ok(done)
}

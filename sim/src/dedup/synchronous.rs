//! The synchronous scheme: in each stage every host has one VM, and a stage begins when all hosts have ended
//! the previous one.
//!
//! Paper: low-profile-dedup §1, §5. The paper does not describe the scheme, so this is inferred from its
//! figures. A stage reads its VM, compares, reads it again, and sends the rest; nothing runs in parallel. All
//! VMs end with the job.

use super::engine::{Engine, LinkId};
use super::hosts::Hosts;
use super::inputs::paper;
use super::outcome::{Bytes, Chunks, Outcome, VmTime};
use super::trace::Trace;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Read(usize),
    Sent(usize),
}

/// `stored`: number of ids that each VM stores. `largest_each_stage`: the first host has a VM of the largest
/// size in every stage.
pub(super) fn run(
    hosts: &Hosts<'_>,
    trace: &Trace,
    (stored, chunks): (&[u64], Chunks),
    largest_each_stage: bool,
) -> Outcome {
    let mut engine = Engine::new();
    let mut links = |bytes_per_s: &dyn Fn(usize) -> f64| -> Vec<LinkId> {
        (0..hosts.count()).map(|host| engine.link(bytes_per_s(host))).collect()
    };
    let disks = links(&|host| hosts.disk_bytes_per_s(host));
    let back_ends = links(&|host| hosts.back_end_bytes_per_s(host));
    let stages = hosts.fleet.hosts.iter().map(Vec::len).max().unwrap_or(0);
    let largest = hosts.fleet.vms.iter().map(|vm| vm.dirty_bytes).fold(0.0, f64::max);
    let (mut bytes, mut memory_bytes) = (Bytes::default(), 0.0_f64);
    for stage in 0..stages {
        let mut left = vec![0.0; hosts.count()];
        for host in 0..hosts.count() {
            let Some(&vm) = hosts.fleet.hosts[host].get(stage) else {
                continue;
            };
            let mut dirty = hosts.fleet.vms[vm].dirty_bytes;
            let mut kept = stored[vm] as f64 * trace.id_bytes;
            if largest_each_stage && host == 0 {
                (dirty, kept) = (largest, kept * largest / dirty);
            }
            let rows = dirty / paper::CHUNK_BYTES;
            let messages = rows * paper::MESSAGE_BYTES;
            memory_bytes += rows * paper::ROW_BYTES / (stages * hosts.count()) as f64;
            bytes.local_io += 2.0 * dirty + 2.0 * messages;
            bytes.messages += messages;
            bytes.stored += kept;
            left[host] = kept + messages;
            engine.send(disks[host], 2.0 * dirty + 2.0 * messages, Tag::Read(host));
        }
        while let Some(tag) = engine.next() {
            if let Tag::Read(host) = tag {
                engine.send(back_ends[host], left[host], Tag::Sent(host));
            }
        }
    }
    let ended = engine.now();
    let of_host = |(host, vms): (usize, &Vec<usize>)| {
        let began = 0;
        vec![VmTime { host, began, ended }; vms.len()]
    };
    Outcome {
        scheme: match largest_each_stage {
            true => "synchronous, a VM of the largest size in every stage",
            false => "synchronous",
        },
        memory_bytes: Some(memory_bytes),
        bytes,
        chunks,
        vms: hosts.fleet.hosts.iter().enumerate().flat_map(of_host).collect(),
        hosts: hosts.count(),
        slow: hosts.slow,
    }
}

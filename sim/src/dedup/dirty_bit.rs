//! Dirty bits alone: every dirty segment is read once and sent, one VM of a host after another.
//!
//! Paper: low-profile-dedup §5. A step function without code of Copal.

use super::engine::{Engine, LinkId, Nanos};
use super::hosts::Hosts;
use super::outcome::{Bytes, Chunks, Outcome, VmTime};
use super::trace::Trace;

struct Host {
    disk: LinkId,
    back_end: LinkId,
    /// Index of the current VM.
    at: usize,
    began: Nanos,
    /// Unfinished transfers: reading and sending run in parallel.
    open: u8,
}

pub(super) fn run(hosts: &Hosts<'_>, trace: &Trace) -> Outcome {
    let mut engine = Engine::new();
    let mut state: Vec<Host> = (0..hosts.count())
        .map(|host| Host {
            disk: engine.link(hosts.disk_bytes_per_s(host)),
            back_end: engine.link(hosts.back_end_bytes_per_s(host)),
            at: 0,
            began: 0,
            open: 0,
        })
        .collect();
    for host in 0..hosts.count() {
        begin(&mut engine, &mut state, hosts, host);
    }
    let mut vms = Vec::new();
    while let Some(host) = engine.next() {
        state[host].open -= 1;
        if state[host].open == 0 {
            let (began, ended) = (state[host].began, engine.now());
            vms.push(VmTime { host, began, ended });
            state[host].at += 1;
            begin(&mut engine, &mut state, hosts, host);
        }
    }
    let dirty = hosts.fleet.dirty_bytes();
    let all = hosts.fleet.vms.iter().map(|vm| trace.ids_of(vm.dirty_bytes)).sum();
    Outcome {
        scheme: "dirty-bit",
        memory_bytes: None,
        bytes: Bytes { local_io: dirty, stored: dirty, ..Bytes::default() },
        chunks: Chunks { all, private: all, ..Chunks::default() },
        vms,
        hosts: hosts.count(),
        slow: hosts.slow,
    }
}

fn begin(engine: &mut Engine<usize>, state: &mut [Host], hosts: &Hosts<'_>, host: usize) {
    let of = &mut state[host];
    let Some(&vm) = hosts.fleet.hosts[host].get(of.at) else {
        return;
    };
    let bytes = hosts.fleet.vms[vm].dirty_bytes;
    (of.began, of.open) = (engine.now(), 2);
    engine.send(of.disk, bytes, host);
    engine.send(of.back_end, bytes, host);
}

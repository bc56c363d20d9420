//! Processor time of a 4 KiB put to memory, over loopback with certificates on both sides: frames as they
//! ship, beside tonic.
//!
//! Both carry the same message to the same memory. Client and server have a runtime of one thread each in
//! this process, so the kernel counts their times apart. Rounds of the two alternate.

mod framed;
mod grpc;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_proto::messages;
use copal_server::CertificateAuthority;
use std::{
    fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};

/// Bytes of a body.
const BODY: usize = 4096;
/// Number of connections; calls are spread over them.
const CONNECTIONS: usize = 2;
/// Calls a second that one core must carry.
const GATE: f64 = 25_000.0;
/// Names of the measured threads.
const SERVER: &str = "gate-server";
const CLIENT: &str = "gate-client";

#[derive(Args)]
pub(crate) struct Options {
    /// Seconds of each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds of each kind; figures are medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Target of the puts; it keeps the last few thousand bodies.
pub(super) struct Memory {
    kept: Mutex<Vec<Bytes>>,
    next: AtomicUsize,
}

impl Memory {
    fn new() -> Memory {
        Memory { kept: Mutex::new(vec![Bytes::new(); 4096]), next: AtomicUsize::new(0) }
    }

    fn put(&self, put: messages::Put) {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let len = kept.len();
        // A copy of its own: the received body may be part of a larger buffer.
        kept[at % len] = Bytes::copy_from_slice(&put.body);
    }

    fn count(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }
}

/// A caller over one protocol; each connection has one.
pub(super) trait Caller: Clone + Send + 'static {
    fn put(&mut self, put: messages::Put) -> impl Future<Output = Result<()>> + Send;
}

pub(super) fn a_put(body: &Bytes) -> messages::Put {
    let id = Some(messages::Id { high: 0x0123_4567_89ab_cdef, low: 0x0fed_cba9_8765_4321 });
    messages::Put {
        group: 7,
        epoch: 12,
        volume: 0x0070_0000_0001,
        name: Bytes::from_static(b"1764032400.M123456P7890.mail"),
        head: Some(messages::FileHead {
            fid: id,
            op: id,
            size: BODY as u64,
            crc32c: 0x1234_5678,
            metadata: Bytes::new(),
        }),
        body: body.clone(),
        staged: false,
    }
}

/// One round: calls a second, and processor time in microseconds per call at the server and at the client.
#[derive(Clone, Copy)]
struct Round {
    calls_per_s: f64,
    server_us: f64,
    client_us: f64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let runtime =
        |name: &str| Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build();
    let (server, client) = (runtime(SERVER)?, runtime(CLIENT)?);
    let authority = CertificateAuthority::new("gate")?;
    let identity = authority.identity("master.copal")?;
    let memory: &'static Memory = Box::leak(Box::new(Memory::new()));
    let framed = framed::start(&server, &client, &identity, memory)?;
    let grpc = grpc::start(&server, &client, &identity, memory)?;
    for in_flight in [1, 64] {
        let mut rounds: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..options.rounds {
            rounds[0].push(round(&client, &framed, in_flight, options.seconds, memory)?);
            rounds[1].push(round(&client, &grpc, in_flight, options.seconds, memory)?);
        }
        for (name, rounds) in ["frames", "tonic"].into_iter().zip(&rounds) {
            tell(&mut report, name, in_flight, rounds)?;
        }
    }
    report.finish(root, "rpc-gate")
}

fn tell(report: &mut Report, name: &str, in_flight: usize, rounds: &[Round]) -> Result<()> {
    let middle = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect()).context("a round");
    let (server_us, client_us) = (middle(|round| round.server_us)?, middle(|round| round.client_us)?);
    let what = format!("{name}, {in_flight} in flight");
    report.fact(format!("{what}: server"), server_us, "us of processor a call");
    report.fact(format!("{what}: client"), client_us, "us of processor a call");
    report.fact(format!("{what}: calls"), middle(|round| round.calls_per_s)?, "/s");
    let per_core = 1e6 / server_us;
    let what = format!("{what}: calls a core of the server carries");
    match name {
        "frames" => report.at_least(what, per_core, "/s", GATE),
        _ => report.fact(what, per_core, "/s"),
    }
    Ok(())
}

fn round<C: Caller>(
    runtime: &Runtime,
    callers: &[C],
    in_flight: usize,
    seconds: f64,
    memory: &Memory,
) -> Result<Round> {
    runtime.block_on(calls(callers, in_flight, Duration::from_secs_f64(seconds / 10.0)))?;
    let (began, before) = (Instant::now(), memory.count());
    let (server, client) = (processor_time(SERVER)?, processor_time(CLIENT)?);
    let told = runtime.block_on(calls(callers, in_flight, Duration::from_secs_f64(seconds)))?;
    let took = began.elapsed().as_secs_f64();
    let (server, client) = (processor_time(SERVER)? - server, processor_time(CLIENT)? - client);
    let calls = memory.count() - before;
    anyhow::ensure!(calls == told, "{told} calls were answered, and {calls} came");
    let each = |time: Duration| time.as_secs_f64() * 1e6 / calls as f64;
    Ok(Round { calls_per_s: calls as f64 / took, server_us: each(server), client_us: each(client) })
}

/// Calls until the time is over, with a fixed number in flight; returns the number of answers.
async fn calls<C: Caller>(callers: &[C], in_flight: usize, time: Duration) -> Result<usize> {
    let end = Instant::now() + time;
    let body = Bytes::from(vec![0x5a; BODY]);
    // Spawned as tasks, so that they run on the runtime's thread, which is measured.
    let tasks: Vec<_> = (0..in_flight)
        .map(|at| {
            let (mut caller, body) = (callers[at % callers.len()].clone(), body.clone());
            tokio::spawn(async move {
                let mut done = 0;
                while Instant::now() < end {
                    caller.put(a_put(&body)).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done)
}

/// Processor time of this process' threads with a given name.
fn processor_time(name: &str) -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // A thread may end between the listing and the read.
        let Ok(comm) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if comm.trim_end() == name {
            let ran =
                fs::read_to_string(task.join("schedstat")).context("the kernel counts no time of threads")?;
            let first = ran.split_whitespace().next().context("a time")?;
            nanos += first.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanos))
}

//! What a 4 KiB put to memory costs the processor, over loopback with certificates on both sides: frames as
//! they ship, beside tonic.
//!
//! Both carry the same message to the same memory. Client and server have a runtime of one thread each in
//! this process, so the kernel counts the time of each apart. Rounds of the two alternate.

mod framed;
mod grpc;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_proto::messages;
use copal_server::Authority;
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

/// Bytes of a put.
const BODY: usize = 4096;
/// Connections that calls are spread over.
const CONNECTIONS: usize = 2;
/// What one core must carry, in calls a second.
const GATE: f64 = 25_000.0;
/// Names of the threads whose time is counted.
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

/// Where puts end: the last few thousand bodies are kept.
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
        // A copy of its own: what came may be part of a larger buffer.
        kept[at % len] = Bytes::copy_from_slice(&put.body);
    }

    fn count(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }
}

/// Whoever calls in one way; each of the connections is one.
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

/// One round: calls a second, and microseconds of processor time a call at the server and at the client.
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
    let authority = Authority::new("gate")?;
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

/// Calls until the time is over, so many at a time; how many were answered.
async fn calls<C: Caller>(callers: &[C], in_flight: usize, time: Duration) -> Result<usize> {
    let end = Instant::now() + time;
    let body = Bytes::from(vec![0x5a; BODY]);
    // Tasks, so that they run on the runtime's thread, whose time is counted.
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

/// Processor time of this process' threads of a name.
fn processor_time(name: &str) -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // A thread may end between being listed and being read.
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

//! Clients of a cluster in a process of their own, which `scale-cores` starts on other cores than the servers':
//! puts, then gets of the same files.
//!
//! Each client is a thread with its own connections. The connections are made and used before the measurement,
//! so that only puts and gets are in it. Prints one line of JSON.

use crate::cluster::{operations::random_bytes, running::processor_seconds_of};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use copal_client::{ClientProfile, ClusterStore};
use copal_volume::{PutOptions, ReadOptions, VolumeId, VolumeStore};
use serde_json::json;
use std::{
    path::PathBuf,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

#[derive(Args)]
pub(crate) struct Options {
    /// Profile of the clients
    #[arg(long)]
    profile: PathBuf,
    /// Process of the data server
    #[arg(long)]
    server: u32,
    /// Ids of volumes
    #[arg(long, value_delimiter = ',')]
    volumes: Vec<u64>,
    /// Number of clients
    #[arg(long)]
    clients: usize,
    /// Size of a file
    #[arg(long)]
    bytes: usize,
    /// Seconds of the puts, and of the gets
    #[arg(long)]
    seconds: f64,
}

/// Time of unmeasured operations before the measured ones, as a share of theirs.
const WARM_UP: f64 = 0.2;
/// Bytes that all clients put at most: they lie in memory.
const MOST_BYTES: usize = 1 << 30;
/// Time limit of a connection.
const TO_CONNECT: Duration = Duration::from_secs(20);

/// One client.
struct ScaleClient {
    store: ClusterStore,
    volume: VolumeId,
    prefix: String,
    /// Number of files that it has put.
    files: usize,
    /// Number of files that it may put.
    most: usize,
}

/// Cost of the measured operations of all clients.
struct LoadCost {
    operations: usize,
    seconds: f64,
    server_seconds: f64,
    client_seconds: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let profile = ClientProfile::read(&options.profile)?;
    ensure!(!options.volumes.is_empty(), "at least one volume is needed");
    let process = std::process::id();
    let most = MOST_BYTES / options.bytes.max(1) / options.clients.max(1);
    let mut clients = Vec::new();
    for number in 0..options.clients {
        let volume = VolumeId(options.volumes[number % options.volumes.len()]);
        // Files of other processes have other names.
        let prefix = format!("{process}-{number}-");
        clients.push(ScaleClient {
            store: ClusterStore::connect(&profile, TO_CONNECT)?,
            volume,
            prefix,
            files: 0,
            most,
        });
    }
    let body = random_bytes(options.bytes);
    let puts = load(&mut clients, options, |client, _| client.put(body.clone()))?;
    let gets = load(&mut clients, options, |client, number| client.get(number, options.bytes))?;
    let mut line = json!({});
    for (name, cost) in [("puts", puts), ("gets", gets)] {
        let operations = (cost.operations as f64).max(1.0);
        line[format!("{name} per second")] = json!(cost.operations as f64 / cost.seconds);
        line[format!("{name}: server us")] = json!(cost.server_seconds * 1e6 / operations);
        line[format!("{name}: clients us")] = json!(cost.client_seconds * 1e6 / operations);
    }
    println!("{line}");
    Ok(())
}

impl ScaleClient {
    fn put(&mut self, body: Bytes) -> Result<bool> {
        if self.files >= self.most {
            return Ok(false);
        }
        let name = format!("{}{}", self.prefix, self.files);
        self.store.put(self.volume, name.as_bytes(), body, &PutOptions::default())?;
        self.files += 1;
        Ok(true)
    }

    fn get(&mut self, number: usize, bytes: usize) -> Result<bool> {
        let name = format!("{}{}", self.prefix, number % self.files.max(1));
        let body = self.store.get(self.volume, name.as_bytes(), 0..u64::MAX, &ReadOptions::default())?;
        ensure!(body.len() == bytes, "a file of {bytes} bytes has {}", body.len());
        Ok(true)
    }
}

/// Runs an operation on all clients: a while before the measurement, then for its time.
fn load(
    clients: &mut [ScaleClient],
    options: &Options,
    operation: impl Fn(&mut ScaleClient, usize) -> Result<bool> + Sync,
) -> Result<LoadCost> {
    // Clients meet this thread before the measurement, and begin once it has read the clocks.
    let (ready, begin) = (Barrier::new(clients.len() + 1), Barrier::new(clients.len() + 1));
    let (operation, ready, begin) = (&operation, &ready, &begin);
    let measured = |client: &mut ScaleClient| {
        let warm = repeat(client, options.seconds * WARM_UP, operation);
        ready.wait();
        begin.wait();
        warm?;
        repeat(client, options.seconds, operation)
    };
    let measured = &measured;
    thread::scope(|scope| {
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || measured(client))).collect();
        ready.wait();
        let clocks = || -> Result<(f64, f64)> {
            Ok((processor_seconds_of(options.server)?, processor_seconds_of(std::process::id())?))
        };
        let (before, began) = (clocks(), Instant::now());
        begin.wait();
        let mut operations = 0;
        for thread in threads {
            operations += thread.join().unwrap_or_else(|_| anyhow::bail!("a client panicked"))?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let (before, after) = (before.context("reading processor times")?, clocks()?);
        Ok(LoadCost {
            operations,
            seconds,
            server_seconds: after.0 - before.0,
            client_seconds: after.1 - before.1,
        })
    })
}

/// Repeats an operation for a time, or until it refuses; returns how often it was done.
fn repeat(
    client: &mut ScaleClient,
    seconds: f64,
    operation: &(impl Fn(&mut ScaleClient, usize) -> Result<bool> + Sync),
) -> Result<usize> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut done = 0;
    while Instant::now() < end && operation(client, done)? {
        done += 1;
    }
    Ok(done)
}

//! Clients that write or read files for a given time, each on its own thread.

use anyhow::{Result, ensure};
use bytes::Bytes;
use copal_testkit::Random;
use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

/// Size of the random bytes that bodies are taken from; they are incompressible, and all bodies differ.
const POOL_BYTES: usize = 8 << 20;

/// Number of written or read files, and the time.
pub(super) struct Done {
    pub(super) files: u64,
    pub(super) seconds: f64,
}

impl Done {
    pub(super) fn megabytes_per_s(&self, bytes: usize) -> f64 {
        self.files as f64 * bytes as f64 / self.seconds / 1e6
    }
}

/// One client.
pub(super) trait Client: Send {
    fn put(&mut self, name: &str, body: Bytes) -> Result<()>;
    /// Reads a file; returns its size.
    fn get(&mut self, name: &str) -> Result<usize>;
}

/// Clients of one system, and the number of files that each has written below a prefix.
pub(super) struct Clients<C> {
    clients: Vec<C>,
    written: HashMap<String, Vec<u64>>,
    pool: Bytes,
}

impl<C: Client> Clients<C> {
    pub(super) fn new(clients: Vec<C>) -> Clients<C> {
        Clients { clients, written: HashMap::new(), pool: Bytes::from(Random::new(1).bytes(POOL_BYTES)) }
    }

    pub(super) fn write(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        let pool = self.pool.clone();
        let there = self.written.get(prefix).cloned().unwrap_or_default();
        let (done, counts) = self.each(prefix, seconds, |client, at, end| {
            let mut random = Random::new((at as u64) << 32 | bytes as u64);
            let first = there.get(at).copied().unwrap_or(0);
            let mut files = first;
            while Instant::now() < end {
                let from = random.index(pool.len() - bytes);
                client.put(&path(prefix, at, files), pool.slice(from..from + bytes))?;
                files += 1;
            }
            Ok(files - first)
        })?;
        self.written.insert(prefix.to_owned(), counts);
        Ok(done)
    }

    pub(super) fn read(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        let there = self.written.get(prefix).cloned().unwrap_or_default();
        let (done, _) = self.each(prefix, seconds, |client, at, end| {
            let mut files = 0;
            while files < there[at] && Instant::now() < end {
                let read = client.get(&path(prefix, at, files))?;
                ensure!(read == bytes, "a file of {bytes} bytes has {read}");
                files += 1;
            }
            Ok(files)
        })?;
        Ok(done)
    }

    /// Runs all clients; returns their sum, and the number of files of each.
    fn each(
        &mut self,
        prefix: &str,
        seconds: f64,
        work: impl Fn(&mut C, usize, Instant) -> Result<u64> + Sync,
    ) -> Result<(Done, Vec<u64>)> {
        let began = Instant::now();
        let end = began + Duration::from_secs_f64(seconds);
        let work = &work;
        let counts = thread::scope(|scope| {
            let threads: Vec<_> = self
                .clients
                .iter_mut()
                .enumerate()
                .map(|(at, client)| scope.spawn(move || work(client, at, end)))
                .collect();
            let counts = threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|_| anyhow::bail!("a client panicked below {prefix}"))
            });
            counts.collect::<Result<Vec<u64>>>()
        })?;
        let done = Done { files: counts.iter().sum(), seconds: began.elapsed().as_secs_f64() };
        Ok((done, counts))
    }
}

fn path(prefix: &str, client: usize, number: u64) -> String {
    format!("{prefix}/c{client}/f{number}")
}

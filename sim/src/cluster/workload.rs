//! Operations of the clients: a few names that collide and are reused often.

use super::{
    history::{CallSpan, Create, Delete, History, Listed, Read},
    hosts::ClientHost,
    network::Network,
    process::Process,
};
use anyhow::Result;
use bytes::Bytes;
use copal_client::{Cluster, machine};
use copal_volume::{
    Consistency, FileId, PutOptions, ReadOptions, SettleChoice, SettleOutcome, VolumeError, VolumeId,
    group::invariants::KnownResult,
};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const NAMES: u64 = 5;
const LONGEST_BODY: u64 = 12 << 10;
/// Size of a body of two pieces, which are uploaded before the create.
const UPLOAD_BYTES: u64 = (4 << 20) + (64 << 10);

/// Shared state of the clients of a run.
pub(super) struct Work {
    pub(super) network: Arc<Network>,
    pub(super) volumes: Vec<VolumeId>,
    pub(super) history: Mutex<History>,
    pub(super) is_over: AtomicBool,
    /// Whether the next client with an operation is to be killed in the middle of it.
    pub(super) kill_one: AtomicBool,
}

/// One client: runs operations until the end of the run, and restarts after each kill.
pub(super) async fn drive(work: Arc<Work>, host: ClientHost) -> Result<()> {
    let world = Arc::clone(&work.network.world);
    while !work.is_over.load(Ordering::Relaxed) {
        let Some((process, cluster)) = host.start(&work.network).await? else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        while !work.is_over.load(Ordering::Relaxed) && !process.is_dead() {
            let pause = if world.one_in(4) { 3000 } else { 300 };
            tokio::time::sleep(world.between(0, pause)).await;
            if work.kill_one.swap(false, Ordering::Relaxed) {
                world.sometimes("client killed mid-operation");
                world.log(|| format!("client {} will be killed", host.number));
                let (victim, network) = (Arc::clone(&process), Arc::clone(&work.network));
                let within = world.between(0, 30);
                tokio::spawn(async move {
                    tokio::time::sleep(within).await;
                    victim.kill();
                    network.reset(&victim);
                });
            }
            let client = Client {
                work: Arc::clone(&work),
                cluster: cluster.clone(),
                process: Arc::clone(&process),
                number: host.number,
            };
            client.step().await;
        }
        if cluster.hedged_reads() > 0 {
            world.sometimes("a second member was asked");
        }
        process.kill();
        work.network.reset(&process);
    }
    Ok(())
}

/// One client process.
#[derive(Clone)]
struct Client {
    work: Arc<Work>,
    cluster: Cluster,
    process: Arc<Process>,
    number: u32,
}

impl Client {
    fn now_ms(&self) -> u64 {
        self.process.world.now_ms()
    }

    fn log(&self, what: impl FnOnce() -> String) {
        self.process.world.log(|| format!("client {}: {}", self.number, what()));
    }

    fn end(&self) -> Instant {
        machine::now() + self.process.world.between(2_000, 30_000)
    }

    /// Runs a future in the process; `None`: the process was killed.
    async fn run<T: Send + 'static>(
        &self,
        asked: impl Future<Output = Result<T, VolumeError>> + Send + 'static,
    ) -> Option<Result<T, VolumeError>> {
        let answer = self.process.run(asked).await;
        if let Some(Err(error)) = &answer {
            self.process.world.sometimes(word_of(error));
        }
        answer
    }

    async fn step(&self) {
        let world = &self.process.world;
        let vid = self.work.volumes[world.below(self.work.volumes.len() as u64) as usize];
        let name = format!("name{}", world.below(NAMES)).into_bytes();
        match world.below(10) {
            0..=3 => self.put(vid, name).await,
            4..=5 => self.replace(vid, name).await,
            6..=7 => drop(self.read(vid, name).await),
            8 => self.get(vid, name).await,
            _ => self.list(vid).await,
        }
    }

    async fn put(&self, vid: VolumeId, name: Vec<u8>) {
        let world = &self.process.world;
        let body = match world.below(64) {
            0 => UPLOAD_BYTES,
            1..=16 => world.below(LONGEST_BODY),
            _ => world.below(200),
        } as usize;
        let (number, body) = {
            let mut history = self.work.history.lock();
            let number = history.creates.len();
            let mut bytes = (number as u64).to_be_bytes().to_vec();
            bytes.resize(8 + body, number as u8);
            history.creates.push(Create {
                vid,
                name: name.clone(),
                body: bytes.clone(),
                span: CallSpan { began_ms: self.now_ms(), ended_ms: None },
                known: KnownResult::Open,
                fid: None,
            });
            (number, Bytes::from(bytes))
        };
        let (cluster, end, named) = (self.cluster.clone(), self.end(), name.clone());
        // The number identifies the create in later reads.
        let options = PutOptions { metadata: Bytes::copy_from_slice(&(number as u64).to_be_bytes()) };
        let put = self.run(async move { cluster.put(vid, &named, body, &options, end).await });
        let Some(answer) = put.await else { return };
        self.log(|| {
            let answer = outcome_text(answer.as_ref().map(|info| info.fid.to_string()));
            format!("put {number} as {} in {vid}: {answer}", text(&name))
        });
        let note = |known: KnownResult, fid: Option<FileId>| {
            let mut history = self.work.history.lock();
            let ended = self.now_ms();
            let create = &mut history.creates[number];
            (create.known, create.fid) = (known, fid.or(create.fid));
            create.span.ended_ms = (known != KnownResult::Open).then_some(ended);
        };
        match &answer {
            Ok(info) => note(KnownResult::Complete, Some(info.fid)),
            Err(VolumeError::Unknown { fid }) => note(KnownResult::Open, Some(*fid)),
            Err(_) => note(KnownResult::Refused, None),
        }
        if let Err(VolumeError::Unknown { fid: of }) = answer {
            self.process.world.sometimes("settled");
            let want = if world.one_in(2) { SettleChoice::Commit } else { SettleChoice::Abort };
            let (cluster, end) = (self.cluster.clone(), self.end());
            let settled = self.run(async move { cluster.settle(vid, of, want, end).await }).await;
            self.log(|| format!("settle {of}: {settled:?}"));
            match settled {
                Some(Ok(SettleOutcome::Committed)) => note(KnownResult::Complete, None),
                Some(Ok(SettleOutcome::Aborted)) => note(KnownResult::Refused, None),
                _ => {}
            }
        }
    }

    /// Deletes the file of a name, and often puts another one there.
    async fn replace(&self, vid: VolumeId, name: Vec<u8>) {
        let Some(fid) = self.read(vid, name.clone()).await else {
            return;
        };
        let was_held = {
            let history = self.work.history.lock();
            let mut creates = history.creates.iter();
            creates.any(|create| create.fid == Some(fid) && create.known == KnownResult::Complete)
        };
        let number = {
            let mut history = self.work.history.lock();
            history.deletes.push(Delete {
                fid,
                span: CallSpan { began_ms: self.now_ms(), ended_ms: None },
                known: KnownResult::Open,
            });
            history.deletes.len() - 1
        };
        let (cluster, end, named) = (self.cluster.clone(), self.end(), name.clone());
        let deleted = self.run(async move { cluster.delete(vid, &named, fid, end).await });
        let Some(answer) = deleted.await else { return };
        self.log(|| {
            format!(
                "delete {fid} of {}: {}",
                text(&name),
                outcome_text(answer.as_ref().map(|()| String::new()))
            )
        });
        // The delete of an unacknowledged create may have come before the create.
        if answer.is_ok() && was_held {
            let mut history = self.work.history.lock();
            let delete = &mut history.deletes[number];
            (delete.known, delete.span.ended_ms) = (KnownResult::Complete, Some(self.process.world.now_ms()));
        }
        if self.process.world.one_in(2) {
            self.put(vid, name).await;
        }
    }

    async fn read(&self, vid: VolumeId, name: Vec<u8>) -> Option<FileId> {
        let began_ms = self.now_ms();
        let options = ReadOptions { consistency: Consistency::Strict, if_file: None };
        let (cluster, end, named) = (self.cluster.clone(), self.end(), name.clone());
        let read = self.run(async move { cluster.stat(vid, &named, &options, end).await }).await?;
        self.log(|| {
            format!(
                "read {} of {vid}: {}",
                text(&name),
                outcome_text(read.as_ref().map(|info| info.fid.to_string()))
            )
        });
        let shown = match read {
            Ok(info) => {
                self.work.history.lock().saw(&info);
                Some(info.fid)
            }
            Err(VolumeError::NotFound) => None,
            Err(_) => return None,
        };
        let span = CallSpan { began_ms, ended_ms: Some(self.now_ms()) };
        self.work.history.lock().reads.push(Read { vid, name, span, shown });
        shown
    }

    /// Reads with available consistency: the bytes must be those of a create of the name.
    async fn get(&self, vid: VolumeId, name: Vec<u8>) {
        let (cluster, end, named) = (self.cluster.clone(), self.end(), name.clone());
        let got = self
            .run(async move { cluster.get(vid, &named, 0..u64::MAX, &ReadOptions::default(), end).await });
        let Some(answer) = got.await else { return };
        self.log(|| {
            format!(
                "get {} of {vid}: {}",
                text(&name),
                outcome_text(answer.as_ref().map(|(_, info)| info.fid.to_string()))
            )
        });
        let Ok((bytes, info)) = answer else { return };
        let mut history = self.work.history.lock();
        let wrong = match history.create_of(&bytes) {
            Some(create) if create.vid == vid && create.name == name => {
                create.fid.is_some_and(|fid| fid != info.fid).then(|| "of another id".to_owned())
            }
            Some(create) => Some(format!("of {}", text(&create.name))),
            None => Some("that no client wrote".to_owned()),
        };
        if let Some(wrong) = wrong {
            history.wrong.push(format!("{} showed bytes {wrong}", text(&name)));
        }
    }

    async fn list(&self, vid: VolumeId) {
        let began_ms = self.now_ms();
        let (cluster, end) = (self.cluster.clone(), self.end());
        let listed =
            self.run(async move { cluster.list(vid, b"", None, 1000, &ReadOptions::STRICT, end).await });
        let Some(answer) = listed.await else { return };
        self.log(|| {
            format!("list {vid}: {}", outcome_text(answer.as_ref().map(|files| files.len().to_string())))
        });
        let Ok(files) = answer else { return };
        let span = CallSpan { began_ms, ended_ms: Some(self.now_ms()) };
        let mut history = self.work.history.lock();
        files.iter().for_each(|(_, info)| history.saw(info));
        let files = files.into_iter().map(|(name, info)| (name.to_vec(), info.fid));
        history.lists.push(Listed { vid, span, files: files.collect() });
    }
}

pub(super) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn outcome_text(answer: Result<String, &VolumeError>) -> String {
    match answer {
        Ok(text) => format!("ok {text}"),
        Err(error) => error.to_string(),
    }
}

/// Name of an error in the counts.
fn word_of(error: &VolumeError) -> &'static str {
    match error {
        VolumeError::Exists { .. } => "answered: exists",
        VolumeError::NotFound => "answered: not found",
        VolumeError::Unknown { .. } => "answered: unknown",
        VolumeError::NoSpace => "answered: no space",
        VolumeError::Degraded { .. } => "answered: degraded",
        VolumeError::Deadline { .. } => "answered: deadline",
        VolumeError::Incomplete { .. } => "answered: incomplete",
        VolumeError::Unavailable { .. } => "answered: unavailable",
        _ => "answered: other",
    }
}

//! Requests to HDFS by `hdfs-native`.
//!
//! An object is written to a file of its own and renamed to its path. The name node refuses a rename to a path that is
//! taken, so a create is exclusive, and the object is whole when it becomes visible.
//!
//! Invariants
//! - A change is sent once: `hdfs-native` repeats a change only if it certainly had no effect.
//! - Before the rename, nothing has an effect on the key. After it, a lost answer is `Unanswered`.
//! - A call ends when the command is stopped, and when no answer and no byte came for [`SILENCE`].

mod answers;
mod listing;
mod paths;

use super::{server_clock::ServerClock, stop::StopWatch};
use crate::{
    error::{RemoteError, RemoteFailure},
    keys::hex,
    retry::StopSignal,
    service::{
        ListedPage, ObjectFront, ObjectService, ObjectTag, ObjectUpload, ServiceError, StoreObservation,
    },
    url::RemoteUrl,
};
use answers::meaning_of;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hdfs_native::{
    Client, ClientBuilder, WriteOptions,
    client::FileStatus,
    file::{FileReader, FileWriter},
};
use paths::{RepositoryRoot, parent_of};
use std::{
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{runtime::Runtime, sync::Semaphore};

/// Longest time without an answer or a byte.
const SILENCE: Duration = Duration::from_secs(60);
/// Time to delete the file of a create that failed; it is swept later if that is too short.
const DISCARD: Duration = Duration::from_secs(2);
/// Bytes that are sent with one look at the time.
const PIECE_BYTES: usize = 1 << 20;
/// Tries to make a directory that other hosts remove meanwhile, or to read a file that they replace.
const TRIES: usize = 8;
/// Files that are being written for longer are swept.
const UNFINISHED_MS: u64 = 24 * 60 * 60 * 1000;
/// Only the owner and his group read a repository.
const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;
/// Port of name nodes, unless the address or the configuration of Hadoop names another.
const DEFAULT_PORT: u16 = 8020;

/// Settings of `hdfs-native` above those in HADOOP_CONF_DIR: repeated tries are ours.
const SETTINGS: [(&str, &str); 3] = [
    ("dfs.client.failover.max.attempts", "2"),
    ("dfs.client.failover.sleep.base.millis", "100"),
    ("dfs.client.failover.sleep.max.millis", "1000"),
];

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct HdfsClient {
    shared: Arc<HdfsState>,
}

struct HdfsState {
    url: RemoteUrl,
    hdfs: Client,
    root: RepositoryRoot,
    runtime: &'static Runtime,
    connections: Semaphore,
    clock: ServerClock,
    stop: StopWatch,
}

/// Threads of all clients: `hdfs-native` keeps connections in a table of the process, so these outlive each client.
fn runtime() -> Result<&'static Runtime, RemoteError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let started = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("copal-hdfs")
        .enable_all()
        .build();
    let started = started.map_err(|error| {
        RemoteError::new(RemoteFailure::Network, format!("cannot start threads for requests: {error}"))
    })?;
    Ok(RUNTIME.get_or_init(|| started))
}

/// A client of the name node, or of the service of that name in HADOOP_CONF_DIR.
fn client_at(url: &RemoteUrl, runtime: &Runtime) -> Result<Client, RemoteError> {
    let at = |address: String| {
        ClientBuilder::new()
            .with_url(address)
            .with_config(SETTINGS)
            .with_io_runtime(runtime.handle().clone())
            .build()
    };
    let named = at(format!("hdfs://{}", url.bucket));
    let built = named.or_else(|error| match url.bucket.contains(':') {
        true => Err(error),
        false => at(format!("hdfs://{}:{DEFAULT_PORT}", url.bucket)),
    });
    built.map_err(|error| meaning_of(url, &error).give_up())
}

/// The outcome of a failed step before the rename, which leaves the key as it was.
fn without_effect(error: ServiceError) -> ServiceError {
    match error {
        ServiceError::Unanswered { reason } => ServiceError::Unreachable { reason },
        ServiceError::NotFound | ServiceError::Taken => ServiceError::Conflict,
        error => error,
    }
}

/// Changes with every write of a path, but for two of the same length in one millisecond.
fn tag_of(status: &FileStatus) -> ObjectTag {
    format!("{:x}-{:x}", status.modification_time, status.length)
}

impl HdfsClient {
    /// A client of the address; sends nothing.
    /// # Errors
    /// `Usage`: the address or the configuration of Hadoop cannot be used; `Credentials`: HDFS takes no file of them.
    pub(super) fn new(
        url: &RemoteUrl,
        credentials: Option<&Path>,
        stop: StopSignal,
    ) -> Result<HdfsClient, RemoteError> {
        if credentials.is_some() {
            return Err(RemoteError::new(
                RemoteFailure::Usage,
                format!("{url}: HDFS takes no file of credentials; leave it out, and set HADOOP_USER_NAME"),
            ));
        }
        let runtime = runtime()?;
        let shared = HdfsState {
            hdfs: client_at(url, runtime)?,
            root: RepositoryRoot::new(&url.prefix),
            runtime,
            connections: Semaphore::new(url.connections as usize),
            clock: ServerClock::default(),
            stop: StopWatch::new(stop),
            url: url.clone(),
        };
        Ok(HdfsClient { shared: Arc::new(shared) })
    }

    /// Runs a request on this thread; ends early when the command is stopped.
    fn call<T>(&self, request: impl Future<Output = Result<T, ServiceError>>) -> Result<T, ServiceError> {
        let shared = &self.shared;
        shared.runtime.block_on(async {
            tokio::select! {
                outcome = async {
                    let _permit = shared.connections.acquire().await.ok();
                    request.await
                } => outcome,
                // The request may take effect all the same; the next wait ends the command.
                () = shared.stop.ended() => Err(ServiceError::Unanswered {
                    reason: "the command was stopped while a request was in progress".to_owned(),
                }),
            }
        })
    }

    /// Deletes the file of a write that failed; also in the time that a stopped command has for tidying.
    fn discard(&self, unfinished: &str) {
        let shared = &self.shared;
        let deleted = self.call(async {
            let limited = tokio::time::timeout(DISCARD, shared.step(shared.hdfs.delete(unfinished, false)));
            Ok(limited.await.is_ok_and(|deleted| deleted.is_ok()))
        });
        if deleted != Ok(true) {
            tracing::debug!("a file that was not finished stays until a prune sweeps it");
        }
    }

    fn write(&self, key: &str, body: &Bytes, overwrite: bool) -> Result<ObjectTag, ServiceError> {
        let shared = &self.shared;
        let unfinished = shared.unfinished()?;
        let written = self.call(async {
            let mut writer = shared.start(&unfinished).await.map_err(without_effect)?;
            shared.append(&mut writer, body).await.map_err(without_effect)?;
            shared.finish(&mut writer).await.map_err(without_effect)?;
            shared.publish(&unfinished, key, overwrite).await
        });
        if written.is_err() {
            self.discard(&unfinished);
        }
        written
    }
}

impl HdfsState {
    /// Waits for one answer.
    async fn step<T>(
        &self,
        request: impl Future<Output = hdfs_native::Result<T>>,
    ) -> Result<T, ServiceError> {
        match tokio::time::timeout(SILENCE, request).await {
            Ok(outcome) => outcome.map_err(|error| meaning_of(&self.url, &error)),
            Err(_) => Err(ServiceError::Unanswered {
                reason: format!("{}: no answer for {} s; check the network", self.url, SILENCE.as_secs()),
            }),
        }
    }

    /// Path of a file that nobody else writes.
    fn unfinished(&self) -> Result<String, ServiceError> {
        let random = getrandom::u64().map_err(|error| {
            let sentence = format!("the system gives no random bits: {error}");
            ServiceError::Final(RemoteError::new(RemoteFailure::Usage, sentence))
        })?;
        Ok(format!("{}/{}", self.root.unfinished(), hex(&random.to_be_bytes())))
    }

    async fn start(&self, unfinished: &str) -> Result<FileWriter, ServiceError> {
        let options = WriteOptions::default().permission(FILE_MODE).create_parent(false);
        match self.step(self.hdfs.create(unfinished, &options)).await {
            Err(ServiceError::NotFound) => {
                self.make_parent(unfinished).await?;
                self.step(self.hdfs.create(unfinished, &options)).await
            }
            started => started,
        }
    }

    async fn append(&self, writer: &mut FileWriter, data: &Bytes) -> Result<(), ServiceError> {
        let mut at = 0;
        while at < data.len() {
            let end = data.len().min(at + PIECE_BYTES);
            self.step(writer.write_bytes(data.slice(at..end))).await?;
            at = end;
        }
        Ok(())
    }

    async fn finish(&self, writer: &mut FileWriter) -> Result<(), ServiceError> {
        self.step(writer.close()).await
    }

    async fn make_parent(&self, path: &str) -> Result<(), ServiceError> {
        match parent_of(path) {
            Some(parent) => self.step(self.hdfs.mkdirs(parent, DIRECTORY_MODE, true)).await,
            None => Ok(()),
        }
    }

    /// Gives a finished file its key.
    async fn publish(&self, unfinished: &str, key: &str, overwrite: bool) -> Result<ObjectTag, ServiceError> {
        let status = self.step(self.hdfs.get_file_info(unfinished)).await.map_err(without_effect)?;
        self.clock.observe_ms(status.modification_time);
        let path = self.root.of_key(key);
        for _ in 0..TRIES {
            match self.step(self.hdfs.rename(unfinished, &path, overwrite)).await {
                Ok(()) => return Ok(tag_of(&status)),
                // Without effect: the directory is missing, or a sweep took the file.
                Err(ServiceError::NotFound) => self.make_parent(&path).await.map_err(without_effect)?,
                Err(error) => return Err(error),
            }
        }
        Err(ServiceError::Conflict)
    }

    /// An object and its tag. The tag is that of the bytes: it is equal before and after the file was opened.
    async fn open(&self, path: &str) -> Result<(FileReader, ObjectTag), ServiceError> {
        let mut before = self.step(self.hdfs.get_file_info(path)).await?;
        for _ in 0..TRIES {
            let reader = self.step(self.hdfs.read(path)).await?;
            let after = self.step(self.hdfs.get_file_info(path)).await?;
            let tag = tag_of(&after);
            if tag == tag_of(&before) && reader.file_length() == after.length {
                return Ok((reader, tag));
            }
            before = after;
        }
        Err(ServiceError::Conflict)
    }

    async fn read(&self, reader: &FileReader, range: Range<u64>) -> Result<Bytes, ServiceError> {
        let cut = || ServiceError::Unanswered { reason: format!("{}: an answer was cut", self.url) };
        // The library does not take a range beyond the end.
        if range.end > reader.file_length() as u64 {
            return Err(cut());
        }
        let bytes = (range.end - range.start) as usize;
        let mut stream = Box::pin(reader.read_range_stream(range.start as usize, bytes));
        let mut read = BytesMut::with_capacity(bytes);
        loop {
            match self.step(async { stream.next().await.transpose() }).await? {
                Some(piece) => read.extend_from_slice(&piece),
                None if read.len() == bytes => return Ok(read.freeze()),
                None => return Err(cut()),
            }
        }
    }

    /// Removes the directories of a deleted object that are empty now.
    async fn remove_empty_parents(&self, path: &str) {
        for parent in self.root.parents(path) {
            // Refused if it has an entry.
            if !self.step(self.hdfs.delete(parent, false)).await.is_ok_and(|removed| removed) {
                return;
            }
        }
    }

    /// Time of the name node.
    async fn ask_time(&self) -> Result<u64, ServiceError> {
        let unfinished = self.unfinished()?;
        let mut writer = self.start(&unfinished).await?;
        self.finish(&mut writer).await?;
        let status = self.step(self.hdfs.get_file_info(&unfinished)).await?;
        self.clock.observe_ms(status.modification_time);
        self.step(self.hdfs.delete(&unfinished, false)).await?;
        Ok(status.modification_time)
    }
}

impl ObjectService for HdfsClient {
    fn create(&self, key: &str, body: Bytes) -> Result<ObjectTag, ServiceError> {
        self.write(key, &body, false)
    }

    fn overwrite(&self, key: &str, body: Bytes) -> Result<(), ServiceError> {
        self.write(key, &body, true).map(drop)
    }

    fn upload(&self, key: &str) -> Result<Box<dyn ObjectUpload>, ServiceError> {
        let unfinished = self.shared.unfinished()?;
        let writer = self.call(self.shared.start(&unfinished)).map_err(without_effect)?;
        let (client, key) = (self.clone(), key.to_owned());
        Ok(Box::new(HdfsUpload { client, writer, unfinished, key, is_open: true }))
    }

    fn front(&self, key: &str, limit: u64) -> Result<ObjectFront, ServiceError> {
        let shared = &self.shared;
        self.call(async {
            let (reader, tag) = shared.open(&shared.root.of_key(key)).await?;
            let total = reader.file_length() as u64;
            let bytes = shared.read(&reader, 0..limit.min(total)).await?;
            Ok(ObjectFront { bytes, total, tag })
        })
    }

    fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, ServiceError> {
        let shared = &self.shared;
        self.call(async {
            let reader = shared.step(shared.hdfs.read(&shared.root.of_key(key))).await?;
            shared.read(&reader, range).await
        })
    }

    fn read_tagged(&self, key: &str, range: Range<u64>, tag: &str) -> Result<Bytes, ServiceError> {
        let (shared, path) = (&self.shared, self.shared.root.of_key(key));
        self.call(async {
            let reader = shared.step(shared.hdfs.read(&path)).await?;
            // Behind the open: an object with this tag was there before, so it was there all the time.
            let status = shared.step(shared.hdfs.get_file_info(&path)).await?;
            match tag_of(&status) == tag {
                true => shared.read(&reader, range).await,
                false => Err(ServiceError::Taken),
            }
        })
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<ListedPage, ServiceError> {
        self.call(self.shared.page(prefix, after, limit))
    }

    fn groups(&self, prefix: &str) -> Result<Vec<String>, ServiceError> {
        self.call(self.shared.groups(prefix))
    }

    /// HDFS has no condition on a delete.
    fn delete(&self, key: &str, _tag: Option<&str>) -> Result<(), ServiceError> {
        let (shared, path) = (&self.shared, self.shared.root.of_key(key));
        let deleted = self.call(async {
            if shared.step(shared.hdfs.delete(&path, false)).await? {
                shared.remove_empty_parents(&path).await;
            }
            Ok(())
        });
        deleted.map_err(|error| match error {
            ServiceError::Final(error) if error.failure == RemoteFailure::Denied => {
                let stays = format!("{error}; the file {path} stays");
                ServiceError::Final(RemoteError::new(RemoteFailure::Denied, stays))
            }
            error => error,
        })
    }

    fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    fn observation(&self) -> StoreObservation {
        // Snapshots of directories are an administrator's, and the trash is not used by these requests.
        StoreObservation { clock_offset: self.shared.clock.offset(), keeps_versions: Some(false) }
    }

    fn sweep_unfinished(&self) -> Result<u64, ServiceError> {
        let shared = &self.shared;
        self.call(async {
            let files = shared.entries(&shared.root.unfinished()).await?;
            if files.is_empty() {
                return Ok(0);
            }
            let now = shared.ask_time().await?;
            let mut removed = 0;
            for file in files.iter().filter(|file| file.modification_time + UNFINISHED_MS < now) {
                removed += u64::from(shared.step(shared.hdfs.delete(&file.path, false)).await?);
            }
            Ok(removed)
        })
    }
}

/// Upload of a long object.
struct HdfsUpload {
    client: HdfsClient,
    writer: FileWriter,
    unfinished: String,
    key: String,
    is_open: bool,
}

impl ObjectUpload for HdfsUpload {
    fn append(&mut self, data: Bytes) -> Result<(), ServiceError> {
        let client = self.client.clone();
        client.call(client.shared.append(&mut self.writer, &data)).map_err(without_effect)
    }

    fn complete(&mut self) -> Result<ObjectTag, ServiceError> {
        let client = self.client.clone();
        let tag = client.call(async {
            client.shared.finish(&mut self.writer).await.map_err(without_effect)?;
            client.shared.publish(&self.unfinished, &self.key, false).await
        })?;
        self.is_open = false;
        Ok(tag)
    }

    fn abort(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.client.discard(&self.unfinished);
        }
    }
}

impl Drop for HdfsUpload {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests;

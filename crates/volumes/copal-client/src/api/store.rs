//! A cluster as a [`VolumeStore`]: blocking calls to [`Cluster`] on a runtime of the store.
//!
//! A store may be rooted at a path. Then it shows only the volumes below that path.

use crate::{
    api::{
        cluster::{Cluster, ConnectError},
        file_writer::ClusterWriter,
        ranges::calls as divide_ranges,
    },
    net::{machine, profile::ClientProfile, trace::traced},
    operation::{
        create_race,
        writer_lease::{LeaseError, WriterLease},
    },
};
use bytes::Bytes;
use copal_volume::{
    FileId, FileInfo, FileWriter, MAX_BATCH_BYTES, PutOptions, RangeSink, ReadOptions, RemoveMode,
    SettleChoice, SettleOutcome, VolumeError, VolumeId, VolumeOptions, VolumeStats, VolumeStore,
    check_volume_name, split_parent, split_path,
};
use futures_util::future::join_all;
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Longest time of an operation, unless [`ClusterStore::with_deadline`] sets another.
const DEADLINE: Duration = Duration::from_secs(30);
/// Most threads for the connections of a store.
const MOST_THREADS: usize = 4;

/// See the module. Cheap to clone. Its calls block: do not use it inside a runtime.
#[derive(Clone)]
pub struct ClusterStore {
    runtime: Arc<Runtime>,
    cluster: Cluster,
    deadline: Duration,
    /// Path of the volume that this store shows as its root; empty: the cluster's root.
    root: String,
    /// The writer lease; `None`: the caller prevents concurrent writers by other means.
    lease: Option<Arc<WriterLease>>,
}

impl ClusterStore {
    /// Connects with a profile, on a new runtime. Blocks.
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn connect(profile: &ClientProfile, deadline: Duration) -> Result<ClusterStore, ConnectError> {
        ClusterStore::connect_within(profile, deadline, MOST_THREADS)
    }

    /// As [`ClusterStore::connect`], with at most `threads` threads for its connections, and at least two.
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn connect_within(
        profile: &ClientProfile,
        deadline: Duration,
        threads: usize,
    ) -> Result<ClusterStore, ConnectError> {
        let threads = crate::connection_threads(threads.min(MOST_THREADS));
        crate::probe_threads(threads)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let cluster = runtime.block_on(Cluster::connect(profile, deadline))?;
        Ok(ClusterStore {
            runtime: Arc::new(runtime),
            cluster,
            deadline: DEADLINE,
            root: String::new(),
            lease: None,
        })
    }

    /// The same store with another deadline for each operation.
    pub fn with_deadline(mut self, deadline: Duration) -> ClusterStore {
        self.deadline = deadline;
        self
    }

    /// A store that shows the volumes below `path`; it shares the connections of this one.
    /// # Errors
    /// `InvalidName`.
    pub fn rooted(&self, path: &str) -> Result<ClusterStore, VolumeError> {
        split_path(path)?;
        Ok(ClusterStore { root: self.below_root(path), ..self.clone() })
    }

    /// Creates the volume that this store is rooted at and its parents, where they do not exist.
    /// # Errors
    /// As [`VolumeStore::create_volume`].
    pub fn make_root(&self) -> Result<(), VolumeError> {
        let mut parent = String::new();
        for name in split_path(&self.root)? {
            let made =
                self.wait(self.cluster.create_volume(&parent, name, &VolumeOptions::default(), self.end()));
            match made {
                Ok(_) | Err(VolumeError::VolumeExists { .. }) => {}
                Err(error) => return Err(error),
            }
            parent = match parent.is_empty() {
                true => name.to_owned(),
                false => format!("{parent}/{name}"),
            };
        }
        Ok(())
    }

    /// Takes the writer lease below the store's root. From now on nothing is written without it.
    /// # Errors
    /// Another client holds it; the master is not reached.
    pub fn take_lease(&mut self, holder: &str) -> Result<(), LeaseError> {
        let lease = self.wait(self.cluster.take_lease(&self.root, holder))?;
        self.lease = Some(Arc::new(lease));
        Ok(())
    }

    /// Releases the writer lease, if no clone of this store holds it too.
    pub fn release_lease(&mut self) {
        if let Some(lease) = self.lease.take().and_then(Arc::into_inner) {
            self.wait(lease.release());
        }
    }

    /// Refuses writes after the writer lease has ended.
    fn check_lease(&self) -> Result<(), VolumeError> {
        match &self.lease {
            Some(lease) if !lease.is_held() => Err(VolumeError::Denied {
                reason: "the writer lease was not renewed in time; run the command again".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The client that the store calls.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Blocks until a future of the client ends.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(traced(future))
    }

    /// Deadline of an operation that begins now.
    pub fn end(&self) -> Instant {
        machine::now() + self.deadline
    }

    fn below_root(&self, path: &str) -> String {
        match (self.root.as_str(), path) {
            ("", path) => path.to_owned(),
            (root, "") => root.to_owned(),
            (root, path) => format!("{root}/{path}"),
        }
    }
}

impl VolumeStore for ClusterStore {
    fn now_ms(&self) -> u64 {
        self.cluster.map().now_ms()
    }

    fn is_replicated(&self) -> bool {
        true
    }

    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        split_path(parent)?;
        self.check_lease()?;
        check_volume_name(name)?;
        let parent = self.below_root(parent);
        self.wait(self.cluster.create_volume(&parent, name, options, self.end()))
    }

    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        split_parent(path)?;
        self.wait(self.cluster.open_volume(&self.below_root(path), self.end()))
    }

    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        split_parent(from)?;
        self.check_lease()?;
        split_parent(to)?;
        let (from, to) = (self.below_root(from), self.below_root(to));
        self.wait(self.cluster.rename_volume(&from, &to, self.end()))
    }

    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        split_path(parent)?;
        let path = self.below_root(parent);
        let listed = self.wait(self.cluster.list_volumes(&path, after, limit, self.end()));
        match listed {
            // A root that was not created yet is empty.
            Err(VolumeError::NotFound) if parent.is_empty() => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        self.check_lease()?;
        self.wait(self.cluster.remove_volume(vid, how, self.end()))
    }

    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        self.check_lease()?;
        self.wait(self.cluster.put(vid, name, body, options, self.end()))
    }

    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        self.check_lease()?;
        let writer = self.cluster.writer(vid, name, options)?;
        // Refuse before any byte is sent, if the name is already taken.
        let options = ReadOptions::default();
        match self.stat(vid, name, &options) {
            Ok(info) => {
                let name = Bytes::copy_from_slice(name);
                let owner = create_race::owner(&self.cluster.router, vid, &name, info.fid, self.end());
                if let Some(fid) = self.wait(owner)? {
                    return Err(VolumeError::Exists { fid });
                }
            }
            Err(VolumeError::NotFound) => {}
            Err(error) => return Err(error),
        }
        Ok(Box::new(BlockingWriter { store: self.clone(), writer }))
    }

    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        let got = self.wait(self.cluster.get(vid, name, range, options, self.end()));
        got.map(|(bytes, _)| bytes)
    }

    /// Holds at most the answer of one call.
    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        let file = self.stat(vid, name, options)?;
        let calls = divide_ranges(ranges, file.size);
        let mut is_empty = vec![true; ranges.len()];
        calls.iter().flat_map(|call| &call.numbers).for_each(|&number| is_empty[number] = false);
        for number in (0..ranges.len()).filter(|&number| is_empty[number]) {
            if sink(number, Ok(Bytes::new())).is_break() {
                return Ok(());
            }
        }
        let name = Bytes::copy_from_slice(name);
        let mut one_by_one = false;
        for call in calls {
            let read = self.cluster.read_call(vid, &name, &call, file.fid, &mut one_by_one, self.end());
            for (number, answer) in call.numbers.iter().zip(self.wait(read)?) {
                if sink(*number, answer).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        self.wait(self.cluster.stat(vid, name, options, self.end()))
    }

    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        let list = self.cluster.list(vid, prefix, after, limit, options, self.end());
        self.wait(list)
    }

    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        self.check_lease()?;
        or_already_deleted(self.wait(self.cluster.delete(vid, name, fid, self.end())))
    }

    fn settle(&self, vid: VolumeId, fid: FileId, want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        self.check_lease()?;
        self.wait(self.cluster.settle(vid, fid, want, self.end()))
    }

    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        let bytes =
            files.iter().map(|(name, body, options)| name.len() + body.len() + options.metadata.len()).sum();
        check_batch(bytes)?;
        self.check_lease()?;
        self.wait(async {
            self.cluster.router.view(vid, self.end()).await?;
            // Only the first file of each name is created: a later one must lose against it.
            let mut taken = std::collections::HashMap::new();
            let puts = files.iter().enumerate().map(|(at, (name, body, options))| {
                let first = *taken.entry(name.clone()).or_insert(at);
                async move {
                    match first == at {
                        true => self.cluster.put(vid, name, body.clone(), options, self.end()).await,
                        false => Err(VolumeError::NotFound),
                    }
                }
            });
            let puts: Vec<_> = puts.collect();
            let mut answers = join_all(puts).await;
            for (at, (name, _, _)) in files.iter().enumerate() {
                let first = taken[name];
                if first != at {
                    answers[at] = match &answers[first] {
                        Ok(info) => Err(VolumeError::Exists { fid: info.fid }),
                        Err(error) => Err(error.clone()),
                    };
                }
            }
            Ok(answers)
        })
    }

    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        let mut total = 0;
        let answers = names.iter().map(|name| {
            let info = self.stat(vid, name, options)?;
            let too_large = VolumeError::TooLarge {
                what: "the batch",
                bytes: total as u64 + info.size,
                limit: MAX_BATCH_BYTES as u64,
            };
            if total > 0 && total as u64 + info.size > MAX_BATCH_BYTES as u64 {
                return Err(too_large);
            }
            let bytes = self.get(vid, name, 0..u64::MAX, options)?;
            total += bytes.len();
            Ok(bytes)
        });
        let answers: Vec<_> = answers.collect();
        match answers.iter().all(|answer| *answer == Err(VolumeError::VolumeGone)) && !names.is_empty() {
            true => Err(VolumeError::VolumeGone),
            false => Ok(answers),
        }
    }

    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        check_batch(files.iter().map(|(name, _)| name.len() + 16).sum())?;
        self.check_lease()?;
        self.wait(async {
            self.cluster.router.view(vid, self.end()).await?;
            let deletes = files.iter().map(|(name, fid)| self.cluster.delete(vid, name, *fid, self.end()));
            Ok(join_all(deletes).await.into_iter().map(or_already_deleted).collect())
        })
    }

    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        self.wait(self.cluster.totals(vid, self.end()))
    }

    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        // Data servers reclaim space without a request.
        self.wait(self.cluster.router.view(vid, self.end())).map(drop)
    }
}

/// A delete of an absent file succeeds: an earlier call may have deleted it.
fn or_already_deleted(deleted: Result<(), VolumeError>) -> Result<(), VolumeError> {
    match deleted {
        Err(VolumeError::NotFound) => Ok(()),
        other => other,
    }
}

fn check_batch(bytes: usize) -> Result<(), VolumeError> {
    match bytes > MAX_BATCH_BYTES {
        true => Err(VolumeError::TooLarge {
            what: "the batch",
            bytes: bytes as u64,
            limit: MAX_BATCH_BYTES as u64,
        }),
        false => Ok(()),
    }
}

struct BlockingWriter {
    store: ClusterStore,
    writer: ClusterWriter,
}

impl FileWriter for BlockingWriter {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        self.store.check_lease()?;
        let end = self.store.end();
        self.store.wait(self.writer.append(data, end))
    }

    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError> {
        self.store.check_lease()?;
        let end = self.store.end();
        self.store.wait(self.writer.commit(end))
    }
}

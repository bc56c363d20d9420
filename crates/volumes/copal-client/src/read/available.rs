//! Available reads: one replica answers; others are called when it is not reached, has no answer or is damaged.
//!
//! - A hit on a replica that is not in sync may be a file that was just deleted. A miss there means nothing.
//! - A miss on a replica in sync counts once a second replica in sync misses too, or once no other one answers.

use crate::{
    net::{connection::CallError, errors::volume_error, machine},
    read::read_latency::ReadLatency,
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{CallClass, CallCost, Method, is_in_sync, messages::failure::Code};
use copal_volume::{
    VolumeError, VolumeId,
    group::{DiskId, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long one replica may take before the next one is called.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(3);

/// Replicas whose answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// Only replicas in sync.
    InSync,
    /// A hit on any replica, although it may be a file that was just deleted.
    AnyReplica,
}

/// A reply that carries the role of the replica that sent it.
pub(crate) trait RoleReply: Message + Default {
    fn role(&self) -> i32;
}

macro_rules! role_reply {
    ($($reply:ident),*) => {
        $(impl RoleReply for copal_proto::messages::$reply {
            fn role(&self) -> i32 {
                self.role
            }
        })*
    };
}
role_reply!(GetReply, GetRangesReply, StatReply, ListReply, FindReply, Totals);

/// Reads from the replicas of groups. Cheap to clone; clones share the measured latencies.
#[derive(Clone)]
pub(crate) struct ReplicaReader {
    router: CallRouter,
    latency: Arc<ReadLatency>,
}

impl ReplicaReader {
    pub(crate) fn new(router: CallRouter) -> ReplicaReader {
        ReplicaReader { router, latency: Arc::default() }
    }

    /// Reads for which a second replica was called, because the first took longer than most.
    pub(crate) fn hedged_reads(&self) -> u64 {
        self.latency.hedged()
    }

    /// Calls replicas of a volume's group until one gives an answer that counts. `request` makes the request for
    /// a view.
    /// # Errors
    /// `NotFound`, `VolumeGone`, `Corrupt`. `Incomplete`, `Deadline`: no answer counted until `end`.
    pub(crate) async fn read<Q: Message, R: RoleReply>(
        &self,
        vid: VolumeId,
        method: Method,
        source: ReadSource,
        end: Instant,
        request: impl Fn(&View) -> Q,
    ) -> Result<R, VolumeError> {
        loop {
            let view = self.router.view(vid, end).await?;
            let request = request(&view);
            if let Some(answer) = self.round(&view, method, source, end, &request).await {
                return answer;
            }
            if machine::now() + RETRY_PAUSE >= end {
                return Err(VolumeError::Incomplete { what: format!("group {}", view.group) });
            }
            // A busy server is called again. The random part separates clients that were refused together.
            tokio::time::sleep(RETRY_PAUSE / 2 + machine::jitter(RETRY_PAUSE)).await;
        }
    }

    /// Calls one replica after the other, and a second one beside a call that takes longer than most. `None`: no
    /// answer counts, but a later round may give one.
    async fn round<R: RoleReply>(
        &self,
        view: &View,
        method: Method,
        source: ReadSource,
        end: Instant,
        request: &impl Message,
    ) -> Option<Result<R, VolumeError>> {
        let message = Bytes::from(request.encode_to_vec());
        let class = CallCost::of(method, &message).class;
        let (mut in_sync, others) = replicas(view, self.router.next_turn());
        self.latency.prefer_faster(&mut in_sync);
        let (mut in_sync, mut others) = (in_sync.into_iter(), others.into_iter());
        let call = |disk, measure| self.call_replica::<R>(disk, method, message.clone(), end, measure);
        let (mut answers, mut calls) = (ReadAnswers::default(), FuturesUnordered::new());
        calls.extend(in_sync.next().map(|disk| call(disk, Some(class))));
        // Scans are too expensive to be called twice.
        let is_cheap = matches!(method, Method::Get | Method::GetRanges | Method::Stat);
        let mut hedge_at = is_cheap.then(|| machine::now() + self.latency.hedge_delay(class));
        loop {
            let answered = match hedge_at {
                Some(at) => tokio::time::timeout_at(at.into(), calls.next()).await,
                None => Ok(calls.next().await),
            };
            match answered {
                Ok(Some((disk, answer))) => {
                    if let Some(ended) = answers.add(&self.router, disk, answer) {
                        return ended;
                    }
                }
                Ok(None) => match in_sync.next().or_else(|| others.next()) {
                    Some(disk) => calls.push(call(disk, None)),
                    None => return answers.result(source),
                },
                Err(_) => {
                    hedge_at = None;
                    if in_sync.len() > 0 && self.latency.take_hedge() {
                        calls.extend(in_sync.next().map(|disk| call(disk, None)));
                    }
                }
            }
        }
    }

    /// Calls one replica. The first call of a read also measures the time that reads of its class take.
    async fn call_replica<R: RoleReply>(
        &self,
        disk: DiskId,
        method: Method,
        message: Bytes,
        end: Instant,
        measure: Option<CallClass>,
    ) -> (DiskId, Result<R, CallError>) {
        let mut timer = self.latency.start(disk, measure);
        let until = end.min(machine::now() + REPLICA_TIMEOUT);
        let answer = self.router.call_once::<R>(disk, method, message, until).await;
        if !has_read(&answer) {
            timer.mark_failed();
        }
        (disk, answer)
    }
}

/// Whether a replica has looked the file up. An immediate refusal must not count as a fast read.
fn has_read<R>(answer: &Result<R, CallError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(CallError::Failed(failure)) => failure.code() == Code::NotFound,
        Err(_) => false,
    }
}

/// Answers of one round.
struct ReadAnswers<R> {
    /// Misses on replicas in sync.
    misses: u32,
    /// A hit on a replica that is not in sync.
    uncertain: Option<R>,
    corrupt: Option<VolumeError>,
    is_busy: bool,
}

impl<R> Default for ReadAnswers<R> {
    fn default() -> ReadAnswers<R> {
        ReadAnswers { misses: 0, uncertain: None, corrupt: None, is_busy: false }
    }
}

impl<R: RoleReply> ReadAnswers<R> {
    /// Adds an answer. Returns the result of the round if the answer ends it.
    fn add(
        &mut self,
        router: &CallRouter,
        disk: DiskId,
        answer: Result<R, CallError>,
    ) -> Option<Option<Result<R, VolumeError>>> {
        let failure = match answer {
            Ok(reply) if is_in_sync(reply.role()) => return Some(Some(Ok(reply))),
            Ok(reply) => {
                self.uncertain.get_or_insert(reply);
                return None;
            }
            Err(CallError::Failed(failure)) => failure,
            Err(_) => {
                router.suspect(disk);
                return None;
            }
        };
        if let Some(newer) = &failure.view
            && router.map().learn(newer)
        {
            return Some(None);
        }
        match failure.code() {
            Code::NotFound => self.misses += 1,
            Code::Busy => self.is_busy = true,
            Code::VolumeGone => return Some(Some(Err(VolumeError::VolumeGone))),
            Code::Corrupt => self.corrupt = Some(volume_error(CallError::Failed(failure))),
            Code::Denied | Code::Invalid | Code::TooLarge => {
                return Some(Some(Err(volume_error(CallError::Failed(failure)))));
            }
            _ => {}
        }
        (self.misses == 2).then_some(Some(Err(VolumeError::NotFound)))
    }

    /// The result of the round after all replicas were called.
    fn result(self, source: ReadSource) -> Option<Result<R, VolumeError>> {
        match (self.misses, self.uncertain, self.corrupt) {
            // The busy replica may have the file.
            (1.., _, None) if self.is_busy => None,
            (1.., _, None) => Some(Err(VolumeError::NotFound)),
            // Only a replica in sync knows which files were deleted.
            (_, Some(reply), None) if source == ReadSource::AnyReplica => Some(Ok(reply)),
            (_, _, Some(corrupt)) => Some(Err(corrupt)),
            _ => None,
        }
    }
}

/// Replicas in sync, and others that are up. `turn` selects the first of those in sync, so that reads rotate.
fn replicas(view: &View, turn: usize) -> (Vec<DiskId>, Vec<DiskId>) {
    let by_sync = |wanted: bool| {
        let members = view.members.iter();
        let matching = members.filter(move |(_, role)| role.is_up() && role.is_in_sync() == wanted);
        matching.map(|(disk, _)| *disk).collect::<Vec<_>>()
    };
    let mut in_sync = by_sync(true);
    if !in_sync.is_empty() {
        let by = turn % in_sync.len();
        in_sync.rotate_left(by);
    }
    (in_sync, by_sync(false))
}

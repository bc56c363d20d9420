//! Runs an operation over the network: actions of the protocol become calls, answers become events.
//!
//! Not here: the protocol's decisions (`copal_volume::group::ClientOp`).

use crate::{
    net::{
        connection::{CallError, EncodedRequest},
        machine,
        map_cache::MapCache,
    },
    operation::{
        chain::{ChainPlan, ChainSender, HopReceiver},
        delivery::DeliveryRecord,
        upload::StagedUpload,
    },
    read::available::ReplicaReader,
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{Method, answer_of, messages, messages::failure::Code, of_id, role, view_of};
use copal_volume::{
    FileId, FileIds, OpId, VolumeError, VolumeId,
    group::{
        CallKind, ClientOp, DiskId, Epoch, MAX_OP_AHEAD_MS, MemberAnswer, OperationAction, OperationEvent,
        OperationOutcome, OperationRefusal, View,
    },
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long after its deadline a failed create may be taken back, before its outcome counts as unknown.
const UNDO_TIME: Duration = Duration::from_secs(2);

/// The bytes of a new file.
#[derive(Clone)]
pub(crate) enum FileBody {
    /// In memory, at most one piece.
    Inline(Bytes),
    /// Staged on replicas.
    Staged(Arc<StagedUpload>),
}

/// Kind of an operation.
#[derive(Clone)]
pub(crate) enum OperationKind {
    /// Create a file of these bytes.
    Create(FileBody),
    /// Copy a file that some replicas have to all of them.
    Complete(FileBody),
    /// Delete a file.
    Delete,
}

/// An operation on one file.
#[derive(Clone)]
pub(crate) struct FileOperation {
    pub(crate) vid: VolumeId,
    pub(crate) name: Bytes,
    /// Head of the file; a delete needs only its ids.
    pub(crate) head: messages::FileHead,
    pub(crate) fid: FileId,
    /// Id of the create or the delete.
    pub(crate) op: OpId,
    pub(crate) kind: OperationKind,
    /// Id of the delete that takes a failed create back.
    pub(crate) undo_op: OpId,
    /// Replicas that may have received it.
    pub(crate) delivery: DeliveryRecord,
}

/// Result of a call: events of the protocol; and the replica that denied the call, with its reason.
type CallOutcome = (Vec<OperationEvent>, Option<(DiskId, String)>);

/// How a replica is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallRoute {
    /// At once.
    Direct,
    /// After a pause: it was busy, or not reached.
    Delayed,
    /// After a pause, through another replica, which may reach it although this client does not.
    Relayed,
}

/// Runs the operations of one client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OperationRunner {
    state: Arc<OperationState>,
}

struct OperationState {
    router: CallRouter,
    reader: ReplicaReader,
    chains: ChainSender,
    ids: Mutex<FileIds>,
    /// Whether an operation ended with an unknown outcome.
    is_unsettled: AtomicBool,
}

impl OperationRunner {
    /// A runner whose ids are drawn with `incarnation`.
    pub(crate) fn new(router: CallRouter, reader: ReplicaReader, incarnation: u64) -> OperationRunner {
        let state = OperationState {
            chains: ChainSender::new(router.clone()),
            router,
            reader,
            ids: Mutex::new(FileIds::new(incarnation, 0)),
            is_unsettled: AtomicBool::new(false),
        };
        OperationRunner { state: Arc::new(state) }
    }

    pub(crate) fn router(&self) -> &CallRouter {
        &self.state.router
    }

    pub(crate) fn reader(&self) -> &ReplicaReader {
        &self.state.reader
    }

    pub(crate) fn chains(&self) -> &ChainSender {
        &self.state.chains
    }

    pub(crate) fn map(&self) -> &MapCache {
        self.state.router.map()
    }

    /// Whether an operation ended with an unknown outcome since the last [`OperationRunner::clear_unsettled`].
    pub(crate) fn is_unsettled(&self) -> bool {
        self.state.is_unsettled.load(Ordering::Relaxed)
    }

    pub(crate) fn clear_unsettled(&self) {
        self.state.is_unsettled.store(false, Ordering::Relaxed);
    }

    pub(crate) fn draw_file(&self) -> FileId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_file(now_ms)
    }

    pub(crate) fn draw_op(&self) -> OpId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_op(now_ms)
    }

    pub(crate) fn draw_op_above(&self, other: OpId) -> OpId {
        let (mut ids, now_ms) = self.ids();
        ids.draw_op_above(now_ms, other)
    }

    /// The generator of ids, and the cluster's time. A generator can run far ahead of that clock: after the
    /// clock was wrong for a while, or after the delete of a file from the future. Replicas would refuse its
    /// ids, so a new generator replaces it.
    fn ids(&self) -> (MutexGuard<'_, FileIds>, u64) {
        let now_ms = self.map().now_ms();
        let mut ids = self.state.ids.lock();
        if ids.high_ms() > now_ms.saturating_add(MAX_OP_AHEAD_MS / 2)
            && let Ok(random) = machine::draw()
        {
            let incarnation = self.router().permits().set_incarnation(random);
            *ids = FileIds::new(incarnation, 0);
        }
        (ids, now_ms)
    }

    /// Deletes a file by its id, whichever file the name refers to now.
    /// # Errors
    /// `Unknown`: some replica may have deleted it. Otherwise as the replicas refuse.
    pub(crate) async fn delete(
        &self,
        vid: VolumeId,
        name: Bytes,
        fid: FileId,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let op = self.draw_op_above(OpId(fid.0));
        let delete = FileOperation {
            vid,
            name,
            head: messages::FileHead::default(),
            fid,
            op,
            kind: OperationKind::Delete,
            undo_op: op,
            delivery: DeliveryRecord::default(),
        };
        self.run(delete, end).await
    }

    /// As [`OperationRunner::delete`], where an unknown outcome is an error that allows a repetition.
    /// # Errors
    /// `Deadline`: some replica may have deleted it, and then the delete spreads from there. `NotFound`: the
    /// file has another name.
    pub(crate) async fn delete_or_retry(
        &self,
        vid: VolumeId,
        name: Bytes,
        fid: FileId,
        end: Instant,
    ) -> Result<(), VolumeError> {
        match self.delete(vid, name, fid, end).await {
            Err(VolumeError::Unknown { .. }) => Err(VolumeError::Deadline {
                reason: "the delete has not reached every replica yet; it may be repeated".to_owned(),
            }),
            other => other,
        }
    }

    /// Runs an operation until the protocol ends it.
    /// # Errors
    /// As the replicas refuse it. `Unknown`: its outcome is not known.
    pub(crate) async fn run(&self, operation: FileOperation, end: Instant) -> Result<(), VolumeError> {
        let view = self.router().view(operation.vid, end).await?;
        let group = view.group;
        let operation = Arc::new(operation);
        let (mut op, mut actions) = match operation.kind {
            OperationKind::Create(_) => ClientOp::create(view),
            OperationKind::Complete(_) => ClientOp::complete(view),
            OperationKind::Delete => ClientOp::delete(view),
        };
        let last = end + UNDO_TIME;
        let mut calls: FuturesUnordered<BoxFuture<'static, CallOutcome>> = FuturesUnordered::new();
        let mut watch = self.map().watch();
        let mut next_clock = end;
        // Replicas whose last call from here did not reach them.
        let mut unreached = BTreeSet::new();
        let mut denials = DenialCount::default();
        loop {
            let (chain, mut hops) = self.chain_of(&operation, &actions, last).unzip();
            calls.extend(chain);
            for action in std::mem::take(&mut actions) {
                match action {
                    OperationAction::Send { disk, epoch, call } => {
                        let hop = hops.as_mut().and_then(|hops| hops.remove(&disk));
                        calls.push(match hop {
                            Some(answer) => self.await_hop(&operation, disk, epoch, call, answer),
                            None => self.send(&operation, disk, epoch, call, CallRoute::Direct, last),
                        });
                    }
                    OperationAction::SendLater { disk, epoch, call } => {
                        let route = match unreached.contains(&disk) {
                            true => CallRoute::Relayed,
                            false => CallRoute::Delayed,
                        };
                        calls.push(self.send(&operation, disk, epoch, call, route, last));
                    }
                    OperationAction::Suspect(disk) => self.router().suspect(disk),
                    OperationAction::Finish(outcome) => {
                        if outcome == OperationOutcome::Unknown {
                            self.state.is_unsettled.store(true, Ordering::Relaxed);
                        }
                        return result_of(&operation, outcome);
                    }
                }
            }
            let clock = tokio::time::sleep_until(next_clock.into());
            tokio::select! {
                // A fixed order, so that a seed of the simulator gives the same run each time.
                biased;
                Some((events, denial)) = calls.next(), if !calls.is_empty() => {
                    let view = self.map().view(group);
                    if let Some(reason) = denials.note(&events, denial, view.as_ref()) {
                        return Err(VolumeError::Denied { reason });
                    }
                    for event in events {
                        match &event {
                            OperationEvent::Unreachable { disk, .. } => drop(unreached.insert(*disk)),
                            OperationEvent::Answered { disk, .. } => drop(unreached.remove(disk)),
                            _ => {}
                        }
                        actions.extend(op.step(event));
                    }
                }
                _ = watch.changed() => {
                    if let Some(view) = self.map().view(group) {
                        actions.extend(op.step(OperationEvent::View(view)));
                    }
                }
                () = clock => {
                    let is_last = next_clock >= last;
                    next_clock = last;
                    op.only_reached(&operation.delivery.close());
                    actions.extend(op.step(if is_last { OperationEvent::GiveUp } else { OperationEvent::Deadline }));
                }
            }
        }
    }

    fn send(
        &self,
        operation: &Arc<FileOperation>,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        route: CallRoute,
        end: Instant,
    ) -> BoxFuture<'static, CallOutcome> {
        let (operations, operation) = (self.clone(), Arc::clone(operation));
        Box::pin(async move {
            if route != CallRoute::Direct {
                // The random part separates clients that were refused together.
                tokio::time::sleep(RETRY_PAUSE / 2 + machine::jitter(RETRY_PAUSE)).await;
            }
            if route == CallRoute::Relayed
                && let Ok(role) = operations.relay(&operation, disk, epoch, call, end).await
            {
                let accepted = Ok(messages::Accepted { role });
                return operations.outcome(&operation, disk, epoch, call, accepted);
            }
            let answer = operations.call_replica(&operation, disk, epoch, call, end).await;
            operations.outcome(&operation, disk, epoch, call, answer)
        })
    }

    /// The chain for the creates among `actions`, and the receiver of each hop's answer. `None`: each create is
    /// sent by itself.
    fn chain_of(
        &self,
        operation: &Arc<FileOperation>,
        actions: &[OperationAction],
        end: Instant,
    ) -> Option<(BoxFuture<'static, CallOutcome>, BTreeMap<DiskId, HopReceiver>)> {
        let (OperationKind::Create(FileBody::Inline(body)) | OperationKind::Complete(FileBody::Inline(body))) =
            &operation.kind
        else {
            return None;
        };
        let creates = actions.iter().filter_map(|action| match action {
            OperationAction::Send { disk, epoch, call: CallKind::Create } => Some((*disk, *epoch)),
            _ => None,
        });
        let creates: Vec<(DiskId, Epoch)> = creates.collect();
        let &(_, epoch) = creates.first()?;
        if !self.chains().is_faster(body.len(), creates.len()) {
            return None;
        }
        let head = chain_head(operation, epoch, CallKind::Create);
        let order = creates.iter().map(|(disk, _)| *disk).collect();
        let (chain, hops) = ChainPlan::new(order, self.router().next_turn());
        let (operations, body, delivery) = (self.clone(), body.clone(), operation.delivery.clone());
        let sent = async move {
            operations.chains().send(head, body, chain, &delivery, end).await;
            CallOutcome::default()
        };
        Some((Box::pin(sent), hops))
    }

    /// Waits for the answer of a chain's hop. A hop without an answer may not have been reached, so it counts
    /// as unreachable and is called directly.
    fn await_hop(
        &self,
        operation: &Arc<FileOperation>,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        answer: HopReceiver,
    ) -> BoxFuture<'static, CallOutcome> {
        let (operations, operation) = (self.clone(), Arc::clone(operation));
        Box::pin(async move {
            match answer.await {
                Ok(answer) => {
                    let answer = answer.map(|role| messages::Accepted { role });
                    operations.outcome(&operation, disk, epoch, call, answer)
                }
                Err(_) => (vec![OperationEvent::Unreachable { disk, call }], None),
            }
        })
    }

    async fn relay(
        &self,
        operation: &FileOperation,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        end: Instant,
    ) -> Result<i32, CallError> {
        let body = match (operation.kind.body(), call) {
            (Some(FileBody::Inline(body)), CallKind::Create) => body.clone(),
            (Some(FileBody::Staged(upload)), CallKind::Create) => {
                upload.complete_replica(self.chains(), disk, end).await?;
                Bytes::new()
            }
            _ => Bytes::new(),
        };
        let head = chain_head(operation, epoch, call);
        // A delete that takes a create back is sent after the record is closed, too.
        let delivery = match call {
            CallKind::UndoCreate => &DeliveryRecord::default(),
            _ => &operation.delivery,
        };
        self.chains().relay(operation.vid.birth_group(), disk, head, body, delivery, end).await
    }

    /// Sends one call of an operation to one replica.
    pub(crate) async fn call_replica(
        &self,
        operation: &FileOperation,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        end: Instant,
    ) -> Result<messages::Accepted, CallError> {
        let head = chain_head(operation, epoch, call);
        let delivery = &operation.delivery;
        if let Some(mut put) = head.put {
            match operation.kind.body() {
                Some(FileBody::Inline(bytes)) => put.body = bytes.clone(),
                Some(FileBody::Staged(upload)) => {
                    upload.complete_replica(self.chains(), disk, end).await?;
                }
                None => {}
            }
            return self.deliver(delivery, disk, Method::Put, &put, end).await;
        }
        if let Some(confirm) = head.confirm {
            return self.deliver(delivery, disk, Method::Confirm, &confirm, end).await;
        }
        let delete = head.delete.unwrap_or_default();
        match call {
            CallKind::UndoCreate => self.router().call(disk, Method::Delete, &delete, end).await,
            _ => self.deliver(delivery, disk, Method::Delete, &delete, end).await,
        }
    }

    /// Calls the server of a disk, and records the delivery once it is connected.
    async fn deliver<T: Message + Default>(
        &self,
        delivery: &DeliveryRecord,
        disk: DiskId,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Result<T, CallError> {
        let message = Bytes::from(request.encode_to_vec());
        let permit = self.router().permit(&message, end).await?;
        let connection = self.router().connect(disk, method, &message, end).await?;
        if !delivery.begin([disk]) {
            return Err(CallError::Deadline);
        }
        let left = end.saturating_duration_since(machine::now());
        connection.call_encoded(method, EncodedRequest { message, permit }, left).await
    }

    fn outcome(
        &self,
        operation: &FileOperation,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        answer: Result<messages::Accepted, CallError>,
    ) -> CallOutcome {
        let answered = |answer: MemberAnswer| OperationEvent::Answered { disk, epoch, call, answer };
        let denial = match &answer {
            Err(CallError::Failed(failure)) if failure.code() == Code::Denied => {
                Some((disk, failure.text.clone()))
            }
            _ => None,
        };
        let events = match answer {
            Ok(accepted) => match role(accepted.role) {
                Some(role) => vec![answered(MemberAnswer::Ok { role })],
                None => vec![OperationEvent::Unreachable { disk, call }],
            },
            Err(CallError::Failed(failure)) => match answer_of(&failure) {
                Some(answer) => {
                    if let (MemberAnswer::Missing, Some(FileBody::Staged(upload))) =
                        (&answer, operation.kind.body())
                    {
                        upload.forget_replica(disk);
                    }
                    vec![answered(answer)]
                }
                None => {
                    let newer = failure.view.as_ref();
                    if let Some(view) = newer {
                        self.map().learn(view);
                    }
                    let view = newer.and_then(view_of).filter(|view: &View| view.epoch > epoch);
                    let (again, view) = (answered(MemberAnswer::Busy), view.map(OperationEvent::View));
                    // The newer view makes the protocol call the replica again.
                    view.map_or_else(|| vec![again], |view| vec![view])
                }
            },
            Err(_) => vec![OperationEvent::Unreachable { disk, call }],
        };
        (events, denial)
    }
}

impl OperationKind {
    /// The bytes of the file; `None`: a delete.
    fn body(&self) -> Option<&FileBody> {
        match self {
            OperationKind::Create(body) | OperationKind::Complete(body) => Some(body),
            OperationKind::Delete => None,
        }
    }
}

/// Replicas that deny this client the operation. Once all of them deny it and none has accepted anything, the
/// operation has failed.
#[derive(Default)]
struct DenialCount {
    by: BTreeSet<DiskId>,
    is_accepted: bool,
}

impl DenialCount {
    /// Takes the events of one call. Returns the reason once all replicas that are up deny the operation.
    fn note(
        &mut self,
        events: &[OperationEvent],
        denial: Option<(DiskId, String)>,
        view: Option<&View>,
    ) -> Option<String> {
        let is_ok = |event: &OperationEvent| {
            matches!(event, OperationEvent::Answered { answer: MemberAnswer::Ok { .. }, .. })
        };
        self.is_accepted |= events.iter().any(is_ok);
        let (disk, reason) = denial?;
        self.by.insert(disk);
        let by_all = view.is_some_and(|view| view.up().all(|disk| self.by.contains(&disk)));
        (by_all && !self.is_accepted).then_some(reason)
    }
}

/// The request of a call in the form of a chain's head, without bytes.
fn chain_head(operation: &FileOperation, epoch: Epoch, call: CallKind) -> messages::PutChain {
    let (group, volume) = (operation.vid.birth_group().0, operation.vid.0);
    let (epoch, name) = (epoch.0, operation.name.clone());
    let head = Some(operation.head.clone());
    let mut chain = messages::PutChain::default();
    match (call, operation.kind.body()) {
        (CallKind::Create, Some(body)) => {
            chain.put = Some(messages::Put {
                group,
                epoch,
                volume,
                name,
                head,
                body: Bytes::new(),
                staged: matches!(body, FileBody::Staged(_)),
            });
        }
        (CallKind::Confirm, _) => {
            chain.confirm = Some(messages::Confirm { group, epoch, volume, name, head });
        }
        (CallKind::UndoCreate | CallKind::Delete | CallKind::Create, _) => {
            let op = if call == CallKind::UndoCreate { operation.undo_op } else { operation.op };
            chain.delete = Some(messages::Delete {
                group,
                epoch,
                volume,
                name,
                fid: Some(of_id(operation.fid.0)),
                op: Some(of_id(op.0)),
            });
        }
    }
    chain
}

fn result_of(operation: &FileOperation, outcome: OperationOutcome) -> Result<(), VolumeError> {
    let unavailable = |reason: &str| VolumeError::Unavailable { reason: reason.to_owned() };
    let refusal = match outcome {
        OperationOutcome::Complete => return Ok(()),
        OperationOutcome::Unknown => return Err(VolumeError::Unknown { fid: operation.fid }),
        OperationOutcome::Refused(refusal) => refusal,
    };
    Err(match refusal {
        OperationRefusal::Exists { fid } => VolumeError::Exists { fid },
        OperationRefusal::Deleted => {
            unavailable("another client settled this create by deleting the file; nothing of it is left")
        }
        OperationRefusal::TooOld => {
            unavailable("the operation took too long: the replicas have sealed its time bucket")
        }
        OperationRefusal::ClockSkew => {
            unavailable("the clock of a data server is more than 10 s behind the master's")
        }
        OperationRefusal::VolumeGone => VolumeError::VolumeGone,
        OperationRefusal::NoSpace => VolumeError::NoSpace,
        OperationRefusal::OtherFile if matches!(operation.kind, OperationKind::Delete) => {
            VolumeError::NotFound
        }
        OperationRefusal::OtherFile => {
            unavailable("the file's id belongs to another name or volume; create it anew")
        }
        OperationRefusal::QuotaExceeded { quota, used, wanted } => {
            VolumeError::QuotaExceeded { quota, used, wanted }
        }
        OperationRefusal::Degraded { have, need } => VolumeError::Degraded { have, need },
    })
}

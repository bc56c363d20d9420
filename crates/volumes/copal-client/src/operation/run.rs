//! Runs an operation of the rules over the network: actions become calls, answers become events.
//!
//! Not here: what follows from an answer (`copal_volume::group::ClientOp`).

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::{CallError, EncodedRequest};
use crate::net::machine;
use crate::operation::chain::{Chain, HopTold};
use crate::operation::delivery::HandedOver;
use crate::operation::upload::Upload;
use bytes::Bytes;
use copal_proto::{Method, answer_of, messages, messages::failure::Code, of_id, role, view_of};
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{Action, Answer, Call, ClientOp, DiskId, Epoch, Event, Outcome, Refusal, View},
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How long a create that has failed may be buried before its outcome is called unknown.
const TO_BURY: Duration = Duration::from_secs(2);

/// Where the bytes of a new file are.
#[derive(Clone)]
pub(crate) enum Body {
    /// Here, up to one piece.
    Here(Bytes),
    /// Staged on members.
    Staged(Arc<Upload>),
}

/// What is to be done.
#[derive(Clone)]
pub(crate) enum What {
    /// Create a file of these bytes.
    Create(Body),
    /// Bring a file to all members that some have.
    Complete(Body),
    /// Delete it.
    Delete,
}

/// What is to be done to which file.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) vid: VolumeId,
    pub(crate) name: Bytes,
    /// The file; a delete needs its ids only.
    pub(crate) head: messages::FileHead,
    pub(crate) fid: FileId,
    /// The create, or the delete.
    pub(crate) op: OpId,
    pub(crate) what: What,
    /// Of the delete that buries a create which has failed.
    pub(crate) burial: OpId,
    /// Members that it was handed to.
    pub(crate) handed: HandedOver,
}

/// What a call came to; and who refuses the caller, and why.
type Answered = (Vec<Event>, Option<(DiskId, String)>);

/// How a member is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At once.
    Now,
    /// After a moment: it was busy, or not reached.
    Later,
    /// After a moment, through another member: it is not reached from here, and may be from there.
    ThroughOthers,
}

impl Cluster {
    /// Runs an operation until it has ended.
    /// # Errors
    /// As the operation was refused; `Unknown`.
    pub(crate) async fn run(&self, wanted: Wanted, end: Instant) -> Result<(), VolumeError> {
        let view = self.view(wanted.vid, end).await?;
        let group = view.group;
        let wanted = Arc::new(wanted);
        let (mut op, mut actions) = match wanted.what {
            What::Create(_) => ClientOp::create(view),
            What::Complete(_) => ClientOp::complete(view),
            What::Delete => ClientOp::delete(view),
        };
        let last = end + TO_BURY;
        let mut calls: FuturesUnordered<BoxFuture<'static, Answered>> = FuturesUnordered::new();
        let mut watch = self.map().watch();
        let mut next_clock = end;
        // Who was not reached from here last.
        let mut cut_off = BTreeSet::new();
        let mut refusals = Refusals::default();
        loop {
            let (chain, mut hops) = self.chain_of(&wanted, &actions, last).unzip();
            calls.extend(chain);
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Send { disk, epoch, call } => {
                        let hop = hops.as_mut().and_then(|hops| hops.remove(&disk));
                        calls.push(match hop {
                            Some(told) => self.hear_hop(&wanted, disk, epoch, call, told),
                            None => self.send(&wanted, disk, epoch, call, Way::Now, last),
                        });
                    }
                    Action::SendLater { disk, epoch, call } => {
                        let way = match cut_off.contains(&disk) {
                            true => Way::ThroughOthers,
                            false => Way::Later,
                        };
                        calls.push(self.send(&wanted, disk, epoch, call, way, last));
                    }
                    Action::Suspect(disk) => self.suspect(disk),
                    Action::Finish(outcome) => {
                        if outcome == Outcome::Unknown {
                            self.inner.is_unsettled.store(true, Ordering::Relaxed);
                        }
                        return ended(&wanted, outcome);
                    }
                }
            }
            let clock = tokio::time::sleep_until(next_clock.into());
            tokio::select! {
                // In this order, so that one seed is one run in a simulator.
                biased;
                Some((events, refusal)) = calls.next(), if !calls.is_empty() => {
                    let view = self.map().view(group);
                    if let Some(reason) = refusals.note(&events, refusal, view.as_ref()) {
                        return Err(VolumeError::Denied { reason });
                    }
                    for event in events {
                        match &event {
                            Event::Unreachable { disk, .. } => drop(cut_off.insert(*disk)),
                            Event::Answered { disk, .. } => drop(cut_off.remove(disk)),
                            _ => {}
                        }
                        actions.extend(op.step(event));
                    }
                }
                _ = watch.changed() => {
                    if let Some(view) = self.map().view(group) {
                        actions.extend(op.step(Event::View(view)));
                    }
                }
                () = clock => {
                    let is_last = next_clock >= last;
                    next_clock = last;
                    op.only_reached(&wanted.handed.end());
                    actions.extend(op.step(if is_last { Event::GiveUp } else { Event::Deadline }));
                }
            }
        }
    }

    fn send(
        &self,
        wanted: &Arc<Wanted>,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        way: Way,
        end: Instant,
    ) -> BoxFuture<'static, Answered> {
        let (cluster, wanted) = (self.clone(), Arc::clone(wanted));
        Box::pin(async move {
            if way != Way::Now {
                // Who was refused together with others does not come again together with them.
                tokio::time::sleep(SOON / 2 + cluster.jitter(SOON)).await;
            }
            if way == Way::ThroughOthers
                && let Ok(role) = cluster.ask_through_others(&wanted, disk, epoch, call, end).await
            {
                return cluster.events_of(&wanted, disk, epoch, call, Ok(messages::Accepted { role }));
            }
            let answer = cluster.ask_member(&wanted, disk, epoch, call, end).await;
            cluster.events_of(&wanted, disk, epoch, call, answer)
        })
    }

    /// The chain that creates among `actions` make up, and what its hops are to say; `None`: each goes by
    /// itself.
    fn chain_of(
        &self,
        wanted: &Arc<Wanted>,
        actions: &[Action],
        end: Instant,
    ) -> Option<(BoxFuture<'static, Answered>, BTreeMap<DiskId, HopTold>)> {
        let (What::Create(Body::Here(body)) | What::Complete(Body::Here(body))) = &wanted.what else {
            return None;
        };
        let creates = actions.iter().filter_map(|action| match action {
            Action::Send { disk, epoch, call: Call::Create } => Some((*disk, *epoch)),
            _ => None,
        });
        let creates: Vec<(DiskId, Epoch)> = creates.collect();
        let &(_, epoch) = creates.first()?;
        if !self.chains(body.len(), creates.len()) {
            return None;
        }
        let head = chain_head(wanted, epoch, Call::Create);
        let order = creates.iter().map(|(disk, _)| *disk).collect();
        let (chain, told) = Chain::new(order, self.next_turn());
        let (cluster, body, handed) = (self.clone(), body.clone(), wanted.handed.clone());
        let sent = async move {
            cluster.run_chain(head, body, chain, &handed, end).await;
            Answered::default()
        };
        Some((Box::pin(sent), told))
    }

    /// Waits for what a hop of a chain says. One that says nothing was perhaps not reached: it is asked again
    /// by itself.
    fn hear_hop(
        &self,
        wanted: &Arc<Wanted>,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        told: HopTold,
    ) -> BoxFuture<'static, Answered> {
        let (cluster, wanted) = (self.clone(), Arc::clone(wanted));
        Box::pin(async move {
            match told.await {
                Ok(said) => {
                    let answer = said.map(|role| messages::Accepted { role });
                    cluster.events_of(&wanted, disk, epoch, call, answer)
                }
                Err(_) => (vec![Event::Unreachable { disk, call }], None),
            }
        })
    }

    async fn ask_through_others(
        &self,
        wanted: &Wanted,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        end: Instant,
    ) -> Result<i32, CallError> {
        let body = match (&wanted.what, call) {
            (What::Create(Body::Here(body)) | What::Complete(Body::Here(body)), Call::Create) => body.clone(),
            (What::Create(Body::Staged(upload)) | What::Complete(Body::Staged(upload)), Call::Create) => {
                upload.complete(self, disk, end).await?;
                Bytes::new()
            }
            _ => Bytes::new(),
        };
        let head = chain_head(wanted, epoch, call);
        // A burial goes out when nothing else does any more.
        let handed = match call {
            Call::Bury => &HandedOver::default(),
            _ => &wanted.handed,
        };
        self.ask_through(wanted.vid.birth_group(), disk, head, body, handed, end).await
    }

    pub(crate) async fn ask_member(
        &self,
        wanted: &Wanted,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        end: Instant,
    ) -> Result<messages::Accepted, CallError> {
        let head = chain_head(wanted, epoch, call);
        if let Some(mut put) = head.put {
            match &wanted.what {
                What::Create(Body::Here(bytes)) | What::Complete(Body::Here(bytes)) => {
                    put.body = bytes.clone()
                }
                What::Create(Body::Staged(upload)) | What::Complete(Body::Staged(upload)) => {
                    upload.complete(self, disk, end).await?;
                }
                What::Delete => {}
            }
            return self.hand_over(&wanted.handed, disk, Method::Put, &put, end).await;
        }
        if let Some(confirm) = head.confirm {
            return self.hand_over(&wanted.handed, disk, Method::Confirm, &confirm, end).await;
        }
        let delete = head.delete.unwrap_or_default();
        match call {
            Call::Bury => self.call(disk, Method::Delete, &delete, end).await,
            _ => self.hand_over(&wanted.handed, disk, Method::Delete, &delete, end).await,
        }
    }

    /// Calls the server of a disk, and notes that it may have got the call once it is connected.
    async fn hand_over<T: Message + Default>(
        &self,
        handed: &HandedOver,
        disk: DiskId,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Result<T, CallError> {
        let message = Bytes::from(request.encode_to_vec());
        let permit = self.permit(&message, end).await?;
        let connection = self.reach(disk, method, &message, end).await?;
        if !handed.begin([disk]) {
            return Err(CallError::Deadline);
        }
        let left = end.saturating_duration_since(machine::now());
        connection.call_encoded(method, EncodedRequest { message, permit }, left).await
    }

    fn events_of(
        &self,
        wanted: &Wanted,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        answer: Result<messages::Accepted, CallError>,
    ) -> Answered {
        let answered = |answer: Answer| Event::Answered { disk, epoch, call, answer };
        let refusal = match &answer {
            Err(CallError::Failed(failure)) if failure.code() == Code::Denied => {
                Some((disk, failure.text.clone()))
            }
            _ => None,
        };
        let events = match answer {
            Ok(held) => match role(held.role) {
                Some(role) => vec![answered(Answer::Ok { role })],
                None => vec![Event::Unreachable { disk, call }],
            },
            Err(CallError::Failed(failure)) => match answer_of(&failure) {
                Some(answer) => {
                    if let (
                        Answer::Missing,
                        What::Create(Body::Staged(upload)) | What::Complete(Body::Staged(upload)),
                    ) = (&answer, &wanted.what)
                    {
                        upload.forget(disk);
                    }
                    vec![answered(answer)]
                }
                None => {
                    let newer = failure.view.as_ref();
                    if let Some(view) = newer {
                        self.map().learn(view);
                    }
                    let view = newer.and_then(view_of).filter(|view: &View| view.epoch > epoch);
                    let (again, view) = (answered(Answer::Busy), view.map(Event::View));
                    // In the new view the member is asked anew.
                    view.map_or_else(|| vec![again], |view| vec![view])
                }
            },
            Err(_) => vec![Event::Unreachable { disk, call }],
        };
        (events, refusal)
    }
}

/// Members that refuse the caller, whatever is done: when all of them do and none has taken anything, the
/// operation has ended.
#[derive(Default)]
struct Refusals {
    by: BTreeSet<DiskId>,
    is_held: bool,
}

impl Refusals {
    /// Why the operation is refused, once it is.
    fn note(
        &mut self,
        events: &[Event],
        refusal: Option<(DiskId, String)>,
        view: Option<&View>,
    ) -> Option<String> {
        let is_ok = |event: &Event| matches!(event, Event::Answered { answer: Answer::Ok { .. }, .. });
        self.is_held |= events.iter().any(is_ok);
        let (disk, reason) = refusal?;
        self.by.insert(disk);
        let by_all = view.is_some_and(|view| view.up().all(|disk| self.by.contains(&disk)));
        (by_all && !self.is_held).then_some(reason)
    }
}

/// What a member is asked for, without bytes.
fn chain_head(wanted: &Wanted, epoch: Epoch, call: Call) -> messages::PutChain {
    let (group, volume) = (wanted.vid.birth_group().0, wanted.vid.0);
    let (epoch, name) = (epoch.0, wanted.name.clone());
    let head = Some(wanted.head.clone());
    let mut what = messages::PutChain::default();
    match (call, &wanted.what) {
        (Call::Create, What::Create(body) | What::Complete(body)) => {
            what.put = Some(messages::Put {
                group,
                epoch,
                volume,
                name,
                head,
                body: Bytes::new(),
                staged: matches!(body, Body::Staged(_)),
            });
        }
        (Call::Confirm, _) => {
            what.confirm = Some(messages::Confirm { group, epoch, volume, name, head });
        }
        (Call::Bury | Call::Delete | Call::Create, _) => {
            let op = if call == Call::Bury { wanted.burial } else { wanted.op };
            what.delete = Some(messages::Delete {
                group,
                epoch,
                volume,
                name,
                fid: Some(of_id(wanted.fid.0)),
                op: Some(of_id(op.0)),
            });
        }
    }
    what
}

fn ended(wanted: &Wanted, outcome: Outcome) -> Result<(), VolumeError> {
    let unavailable = |reason: &str| VolumeError::Unavailable { reason: reason.to_owned() };
    let refusal = match outcome {
        Outcome::Held => return Ok(()),
        Outcome::Unknown => return Err(VolumeError::Unknown { fid: wanted.fid }),
        Outcome::Refused(refusal) => refusal,
    };
    Err(match refusal {
        Refusal::Exists { fid } => VolumeError::Exists { fid },
        Refusal::Buried => unavailable("the file was buried by who settled it; nothing of it is there"),
        Refusal::TooOld => unavailable("the operation took too long, and its time is closed"),
        Refusal::ClockSkew => unavailable("the clock of a data server is more than 10 s behind the master's"),
        Refusal::VolumeGone => VolumeError::VolumeGone,
        Refusal::NoSpace => VolumeError::NoSpace,
        Refusal::OtherFile if matches!(wanted.what, What::Delete) => VolumeError::NotFound,
        Refusal::OtherFile => unavailable("the file's id belongs to another name or volume; create it anew"),
        Refusal::QuotaExceeded { quota, used, wanted } => VolumeError::QuotaExceeded { quota, used, wanted },
        Refusal::Degraded { have, need } => VolumeError::Degraded { have, need },
    })
}

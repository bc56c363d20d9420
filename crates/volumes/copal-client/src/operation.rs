//! Runs an operation of the rules over the network: actions become calls, answers become events.
//!
//! Not here: what follows from an answer (`copal_volume::group::ClientOp`).

use crate::{
    cluster::{Cluster, SOON},
    connection::CallError,
    upload::Upload,
};
use bytes::Bytes;
use copal_proto::{Method, answer_of, messages, of_id, role, view_of};
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{Action, Answer, Call, ClientOp, DiskId, Epoch, Event, Outcome, Refusal, View},
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{
    sync::Arc,
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
}

type Answered = Vec<Event>;

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
        loop {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Send { disk, epoch, call } => {
                        calls.push(self.send(&wanted, disk, epoch, call, Duration::ZERO, last));
                    }
                    Action::SendLater { disk, epoch, call } => {
                        calls.push(self.send(&wanted, disk, epoch, call, SOON, last));
                    }
                    Action::Suspect(disk) => self.suspect(disk),
                    Action::Finish(outcome) => return ended(&wanted, outcome),
                }
            }
            let clock = tokio::time::sleep_until(next_clock.into());
            tokio::select! {
                // In this order, so that one seed is one run in a simulator.
                biased;
                Some(events) = calls.next(), if !calls.is_empty() => {
                    for event in events {
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
        after: Duration,
        end: Instant,
    ) -> BoxFuture<'static, Answered> {
        let (cluster, wanted) = (self.clone(), Arc::clone(wanted));
        Box::pin(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            let answer = cluster.ask_member(&wanted, disk, epoch, call, end).await;
            cluster.events_of(&wanted, disk, epoch, call, answer)
        })
    }

    pub(crate) async fn ask_member(
        &self,
        wanted: &Wanted,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        end: Instant,
    ) -> Result<messages::Held, CallError> {
        let (group, volume) = (wanted.vid.birth_group().0, wanted.vid.0);
        let (epoch, name) = (epoch.0, wanted.name.clone());
        let head = Some(wanted.head.clone());
        let delete = |op: OpId| messages::Delete {
            group,
            epoch,
            volume,
            name: wanted.name.clone(),
            fid: Some(of_id(wanted.fid.0)),
            op: Some(of_id(op.0)),
        };
        match (call, &wanted.what) {
            (Call::Create, What::Create(body) | What::Complete(body)) => {
                let (body, staged) = match body {
                    Body::Here(bytes) => (bytes.clone(), false),
                    Body::Staged(upload) => {
                        upload.complete(self, disk, end).await?;
                        (Bytes::new(), true)
                    }
                };
                let request = messages::Put {
                    group,
                    epoch,
                    volume,
                    name,
                    head,
                    body,
                    staged,
                };
                self.call(disk, Method::Put, &request, end).await
            }
            (Call::Confirm, _) => {
                let request = messages::Confirm {
                    group,
                    epoch,
                    volume,
                    name,
                    head,
                };
                self.call(disk, Method::Confirm, &request, end).await
            }
            (Call::Bury, _) => self.call(disk, Method::Delete, &delete(wanted.burial), end).await,
            (Call::Delete | Call::Create, _) => {
                self.call(disk, Method::Delete, &delete(wanted.op), end).await
            }
        }
    }

    fn events_of(
        &self,
        wanted: &Wanted,
        disk: DiskId,
        epoch: Epoch,
        call: Call,
        answer: Result<messages::Held, CallError>,
    ) -> Answered {
        let answered = |answer: Answer| Event::Answered {
            disk,
            epoch,
            call,
            answer,
        };
        match answer {
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
        }
    }
}

fn ended(wanted: &Wanted, outcome: Outcome) -> Result<(), VolumeError> {
    let unavailable = |reason: &str| VolumeError::Unavailable {
        reason: reason.to_owned(),
    };
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
        Refusal::QuotaExceeded { quota, used, wanted } => VolumeError::QuotaExceeded { quota, used, wanted },
        Refusal::Degraded { have, need } => VolumeError::Degraded { have, need },
    })
}

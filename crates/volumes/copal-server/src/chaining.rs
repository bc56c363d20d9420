//! Files and pieces that go from member to member: each hop passes bytes on while they come, takes them when
//! all have come, and answers for itself and for those behind it.
//!
//! A hop that is not reached or is silent is told to the sender, which serves it directly with the same ids.
//! What a hop takes, and whether it does, is decided as if the sender had called it (`data_server`); when an
//! operation holds the sender decides. Rule: VOL-32, docs/design/cluster.md
//! Paper: beanfs §3.4.4 (serial multicast)
//! Who calls shows its permit to each hop, for one may know of a newer right to write than another. It is
//! looked at again when the bytes have come.
//! Invariant: bytes go to other members of the group in this server's own view, and to nobody else.

use crate::{
    answers::{encoded, read},
    caller::Caller,
    data_calls::{confirm_of, delete_of},
    data_server::{DataServer, create},
    listener::{Acks, Part, Parts},
    status::Status,
};
use bytes::Bytes;
use copal_client::{CallError, EncodedRequest, MAX_CALL_TIME, StreamedCall, name_of_server};
use copal_proto::{
    CallClass, ChainBody, Method, checked_hops,
    messages::{self, ChainAck, ChainCommit, ChainData, HopAnswer, PutChain, failure::Code},
};
use copal_volume::group::{DiskId, Epoch, GroupId};
use std::{sync::Arc, time::Duration};

/// How long a hop may be silent before it is passed over.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the sender may.
const TO_SEND: Duration = Duration::from_secs(10);

/// After so many parts a hop says that it is there.
const SIGN_OF_LIFE: u32 = 16;
/// Signs of life that are passed back at most.
const MOST_SIGNS: u32 = 12;

/// The chain behind this hop.
struct Onward {
    streamed: StreamedCall,
    /// Who has not answered yet.
    waiting: Vec<DiskId>,
}

impl DataServer {
    /// Takes a chain, and passes it on; hops answer over `acks`, and what is known last is returned.
    pub(crate) async fn take_chain(
        self: Arc<Self>,
        head: PutChain,
        (caller, permit): (Caller, Bytes),
        mut parts: Parts,
        acks: &Acks,
    ) -> Result<ChainAck, Status> {
        let (group, epoch) = place_of(&head)?;
        self.matched(group, epoch).await?;
        let members: Vec<DiskId> = self
            .map
            .view(group)
            .map(|view| view.members.iter().map(|(disk, _)| *disk).collect())
            .unwrap_or_default();
        let hops = checked_hops(&head.hops, self.disk(), &members)?;
        let mut body = ChainBody::new(head.len)?;
        let mut lost = Vec::new();
        let mut onward = self.pass_on(&head, &permit, hops, &mut lost).await;
        let mut come = 0;
        let commit = loop {
            let part = tokio::time::timeout(TO_SEND, parts.recv()).await.ok().flatten();
            match part {
                Some(Part::Data(message)) => {
                    body.add(&read::<ChainData>(message.clone())?)?;
                    send(&mut onward, &mut lost, Method::ChainData, message, false).await;
                    come += 1;
                    if come % SIGN_OF_LIFE == 0 {
                        acks.tell(encoded(&ChainAck::default())).await;
                    }
                }
                Some(Part::Commit(message)) => {
                    let commit: ChainCommit = read(message.clone())?;
                    let whole = body.finish(&commit)?;
                    send(&mut onward, &mut lost, Method::ChainCommit, message, true).await;
                    break whole;
                }
                None => return Err(Status::new(Code::Invalid, "a chain ended before its last frame")),
            }
        };
        if !lost.is_empty() {
            acks.tell(encoded(&unreached(lost))).await;
        }
        let this = Arc::clone(&self);
        let own = async {
            if head.pass {
                return None;
            }
            let disk = this.disk().0;
            let mut answer = HopAnswer { disk, ..HopAnswer::default() };
            match Arc::clone(&this).take_own(&caller, head, commit).await {
                Ok(role) => answer.role = role,
                Err(refusal) => answer.failure = Some(refusal.into()),
            }
            let ack = ChainAck { hops: vec![answer] };
            acks.tell(encoded(&ack)).await;
            Some(())
        };
        let behind = async {
            match onward {
                Some(onward) => onward.answers(acks).await,
                None => Vec::new(),
            }
        };
        let (_, silent) = tokio::join!(own, behind);
        Ok(unreached(silent))
    }

    /// Does what the chain brought, as if it had been asked for alone; the role, 0 for a piece.
    async fn take_own(self: Arc<Self>, caller: &Caller, head: PutChain, body: Bytes) -> Result<i32, Status> {
        let held = match head {
            PutChain { piece: Some(mut piece), .. } => {
                piece.bytes = body;
                self.stage(caller, piece).await?;
                return Ok(0);
            }
            PutChain { put: Some(mut put), .. } => {
                put.body = body;
                let (group, epoch) = (put.group, put.epoch);
                self.operate(caller, group, epoch, create(caller, put)).await?
            }
            PutChain { confirm: Some(confirm), .. } => {
                let (group, epoch) = (confirm.group, confirm.epoch);
                self.operate(caller, group, epoch, confirm_of(confirm)).await?
            }
            PutChain { delete: Some(delete), .. } => {
                let (group, epoch) = (delete.group, delete.epoch);
                self.operate(caller, group, epoch, delete_of(delete)).await?
            }
            _ => return Err(nothing()),
        };
        let held: messages::Accepted = read(held)?;
        Ok(held.role)
    }

    /// Begins the chain at the next hop that is reached; those that are not are `lost`.
    async fn pass_on(
        &self,
        head: &PutChain,
        permit: &Bytes,
        hops: Vec<DiskId>,
        lost: &mut Vec<DiskId>,
    ) -> Option<Onward> {
        for (at, disk) in hops.iter().enumerate() {
            let waiting = hops[at..].to_vec();
            let behind = &waiting[1..];
            let next =
                PutChain { hops: behind.iter().map(|disk| disk.0).collect(), pass: false, ..head.clone() };
            let next = EncodedRequest { message: encoded(&next), permit: permit.clone() };
            let begun = tokio::time::timeout(SILENCE, self.begin_at(*disk, next)).await;
            match begun {
                Ok(Ok(streamed)) => return Some(Onward { streamed, waiting }),
                Ok(Err(_)) | Err(_) => lost.push(*disk),
            }
        }
        None
    }

    async fn begin_at(&self, disk: DiskId, head: EncodedRequest) -> Result<StreamedCall, CallError> {
        let place = self.map.place(disk).ok_or_else(|| CallError::Unreachable {
            address: format!("disk {disk}"),
            reason: "the map does not say where it is".to_owned(),
        })?;
        let name = name_of_server(&place.server_uuid);
        let connection = self.connections.connect(&place.address, name, CallClass::Bulk).await?;
        let farewell = ChainCommit { drop: true, ..ChainCommit::default() };
        let farewell = (Method::ChainCommit, encoded(&farewell));
        connection.begin(Method::PutChain, head, farewell, MAX_CALL_TIME).await
    }
}

impl Onward {
    /// Passes on what hops behind this one answer; returns those that did not in time.
    async fn answers(mut self, acks: &Acks) -> Vec<DiskId> {
        let mut signs = 0;
        while !self.waiting.is_empty() {
            match self.streamed.next::<ChainAck>(SILENCE).await {
                Some(Ok(ack)) => {
                    let known = |hop: &HopAnswer| self.waiting.contains(&DiskId(hop.disk));
                    let hops: Vec<HopAnswer> = ack.hops.into_iter().filter(known).collect();
                    self.waiting.retain(|disk| hops.iter().all(|hop| hop.disk != disk.0));
                    // Also that nothing is new, but that it goes on.
                    signs += 1;
                    if !hops.is_empty() || signs < MOST_SIGNS {
                        acks.tell(encoded(&ChainAck { hops })).await;
                    }
                }
                Some(Err(CallError::Failed(failure))) => {
                    // The next hop refused the chain as a whole: it answers for itself only.
                    let next = self.waiting.remove(0);
                    let answer = HopAnswer { disk: next.0, failure: Some(*failure), ..HopAnswer::default() };
                    acks.tell(encoded(&ChainAck { hops: vec![answer] })).await;
                    break;
                }
                Some(Err(_)) | None => break,
            }
        }
        self.waiting
    }
}

/// Passes a frame on, as long as there is somebody to pass it to.
async fn send(
    onward: &mut Option<Onward>,
    lost: &mut Vec<DiskId>,
    method: Method,
    message: Bytes,
    is_last: bool,
) {
    let Some(next) = onward else {
        return;
    };
    let sent = match is_last {
        true => next.streamed.finish(method, message, SILENCE).await,
        false => next.streamed.send(method, message, SILENCE).await,
    };
    if sent.is_err()
        && let Some(gone) = onward.take()
    {
        lost.extend(gone.waiting);
    }
}

fn unreached(disks: Vec<DiskId>) -> ChainAck {
    let hop = |disk: DiskId| HopAnswer { disk: disk.0, unreached: true, ..HopAnswer::default() };
    ChainAck { hops: disks.into_iter().map(hop).collect() }
}

/// The group and epoch that a chain means.
fn place_of(head: &PutChain) -> Result<(GroupId, Epoch), Status> {
    let places = [
        head.put.as_ref().map(|put| (put.group, put.epoch)),
        head.piece.as_ref().map(|piece| (piece.group, piece.epoch)),
        head.confirm.as_ref().map(|confirm| (confirm.group, confirm.epoch)),
        head.delete.as_ref().map(|delete| (delete.group, delete.epoch)),
    ];
    let mut places = places.into_iter().flatten();
    match (places.next(), places.next()) {
        (Some((group, epoch)), None) => Ok((GroupId(group), Epoch(epoch))),
        _ => Err(nothing()),
    }
}

fn nothing() -> Status {
    Status::new(Code::Invalid, "a chain brings one thing")
}

//! Chained writes: each hop forwards the bytes as they arrive, applies them when all are there, and answers
//! for itself and for the hops behind it.
//!
//! The sender learns of a hop that is unreachable or silent, and serves it directly with the same ids. A hop
//! decides about an operation as if the sender had called it directly (`server`); the sender decides when an
//! operation is complete.
//!
//! Each hop receives the caller's permit, since one hop may know of a newer writer lease than another. It
//! checks the permit again when the bytes are complete.
//!
//! Rule: VOL-32, docs/design/cluster.md
//! Paper: beanfs §3.4.4 (serial multicast)
//! Invariant: bytes are forwarded only to members of the group in this server's own view.

use crate::data::server::{DataServer, confirm_of, create, delete_of};
use crate::net::chain_frames::{ChainAcks, ChainPart, ChainParts};
use crate::net::messages::{encoded, read};
use crate::net::status::Status;
use crate::security::caller::CallerPermit;
use bytes::Bytes;
use copal_client::{CallError, EncodedRequest, MAX_CALL_TIME, StreamedCall, name_of_server};
use copal_proto::{
    CallClass, ChainBody, Method, checked_hops,
    messages::{self, ChainAck, ChainCommit, ChainData, HopAnswer, PutChain, failure::Code},
};
use copal_volume::group::{DiskId, Epoch, GroupId};
use std::{sync::Arc, time::Duration};

/// Silence after which a hop is skipped.
const SILENCE: Duration = Duration::from_secs(2);
/// Silence after which the sender is given up.
const SENDER_TIMEOUT: Duration = Duration::from_secs(10);

/// A hop sends an empty answer after this many parts.
const PARTS_PER_ACK: u32 = 16;
/// Empty answers passed back at most.
const MAX_EMPTY_ACKS: u32 = 12;

/// The rest of the chain, behind this hop.
struct NextHop {
    streamed: StreamedCall,
    /// Hops that have not answered yet.
    waiting: Vec<DiskId>,
}

/// Receives a chain and forwards it. Answers of hops go to `acks`; the last one is returned.
pub(crate) async fn receive(
    server: Arc<DataServer>,
    head: PutChain,
    (caller, permit): (CallerPermit, Bytes),
    mut parts: ChainParts,
    acks: &ChainAcks,
) -> Result<ChainAck, Status> {
    let (group, epoch) = place_of(&head)?;
    server.host.require_epoch(group, epoch).await?;
    let members: Vec<DiskId> = server
        .host
        .map
        .view(group)
        .map(|view| view.members.iter().map(|(disk, _)| *disk).collect())
        .unwrap_or_default();
    let hops = checked_hops(&head.hops, server.host.disk(), &members)?;
    let mut body = ChainBody::new(head.len)?;
    let mut lost = Vec::new();
    let mut onward = forward(&server, &head, &permit, hops, &mut lost).await;
    let mut arrived = 0;
    let commit = loop {
        let part = tokio::time::timeout(SENDER_TIMEOUT, parts.recv()).await.ok().flatten();
        match part {
            Some(ChainPart::Data(message)) => {
                body.add(&read::<ChainData>(message.clone())?)?;
                send(&mut onward, &mut lost, Method::ChainData, message, false).await;
                arrived += 1;
                if arrived % PARTS_PER_ACK == 0 {
                    acks.send(encoded(&ChainAck::default())).await;
                }
            }
            Some(ChainPart::Commit(message)) => {
                let commit: ChainCommit = read(message.clone())?;
                let bytes = body.finish(&commit)?;
                send(&mut onward, &mut lost, Method::ChainCommit, message, true).await;
                break bytes;
            }
            None => return Err(Status::new(Code::Invalid, "a chain ended before its last frame")),
        }
    };
    if !lost.is_empty() {
        acks.send(encoded(&unreached(lost))).await;
    }
    let this = Arc::clone(&server);
    let own = async {
        if head.pass {
            return None;
        }
        let disk = this.host.disk().0;
        let mut answer = HopAnswer { disk, ..HopAnswer::default() };
        match apply_own(Arc::clone(&this), &caller, head, commit).await {
            Ok(role) => answer.role = role,
            Err(refusal) => answer.failure = Some(refusal.into()),
        }
        let ack = ChainAck { hops: vec![answer] };
        acks.send(encoded(&ack)).await;
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

/// Applies the request of the chain as if it had been sent directly. Returns the role, 0 for a piece.
async fn apply_own(
    server: Arc<DataServer>,
    caller: &CallerPermit,
    head: PutChain,
    body: Bytes,
) -> Result<i32, Status> {
    let held = match head {
        PutChain { piece: Some(mut piece), .. } => {
            piece.bytes = body;
            server.stage(caller, piece).await?;
            return Ok(0);
        }
        PutChain { put: Some(mut put), .. } => {
            put.body = body;
            let (group, epoch) = (put.group, put.epoch);
            server.operate(caller, group, epoch, create(caller, put)).await?
        }
        PutChain { confirm: Some(confirm), .. } => {
            let (group, epoch) = (confirm.group, confirm.epoch);
            server.operate(caller, group, epoch, confirm_of(confirm)).await?
        }
        PutChain { delete: Some(delete), .. } => {
            let (group, epoch) = (delete.group, delete.epoch);
            server.operate(caller, group, epoch, delete_of(delete)).await?
        }
        _ => return Err(nothing()),
    };
    let held: messages::Accepted = read(held)?;
    Ok(held.role)
}

/// Opens the chain at the next reachable hop; unreachable ones are added to `lost`.
async fn forward(
    server: &DataServer,
    head: &PutChain,
    permit: &Bytes,
    hops: Vec<DiskId>,
    lost: &mut Vec<DiskId>,
) -> Option<NextHop> {
    for (at, disk) in hops.iter().enumerate() {
        let waiting = hops[at..].to_vec();
        let behind = &waiting[1..];
        let next = PutChain { hops: behind.iter().map(|disk| disk.0).collect(), pass: false, ..head.clone() };
        let next = EncodedRequest { message: encoded(&next), permit: permit.clone() };
        let begun = tokio::time::timeout(SILENCE, begin_at(server, *disk, next)).await;
        match begun {
            Ok(Ok(streamed)) => return Some(NextHop { streamed, waiting }),
            Ok(Err(_)) | Err(_) => lost.push(*disk),
        }
    }
    None
}

async fn begin_at(
    server: &DataServer,
    disk: DiskId,
    head: EncodedRequest,
) -> Result<StreamedCall, CallError> {
    let place = server.host.map.place(disk).ok_or_else(|| CallError::Unreachable {
        address: format!("disk {disk}"),
        reason: "the map does not say where it is".to_owned(),
    })?;
    let name = name_of_server(&place.server_uuid);
    let connection = server.host.connections.connect(&place.address, name, CallClass::Bulk).await?;
    let farewell = ChainCommit { drop: true, ..ChainCommit::default() };
    let farewell = (Method::ChainCommit, encoded(&farewell));
    connection.begin(Method::PutChain, head, farewell, MAX_CALL_TIME).await
}

impl NextHop {
    /// Passes back the answers of the hops behind this one. Returns the hops that did not answer in time.
    async fn answers(mut self, acks: &ChainAcks) -> Vec<DiskId> {
        let mut signs = 0;
        while !self.waiting.is_empty() {
            match self.streamed.next::<ChainAck>(SILENCE).await {
                Some(Ok(ack)) => {
                    let known = |hop: &HopAnswer| self.waiting.contains(&DiskId(hop.disk));
                    let hops: Vec<HopAnswer> = ack.hops.into_iter().filter(known).collect();
                    self.waiting.retain(|disk| hops.iter().all(|hop| hop.disk != disk.0));
                    // An empty answer, too: it shows that the chain is alive.
                    signs += 1;
                    if !hops.is_empty() || signs < MAX_EMPTY_ACKS {
                        acks.send(encoded(&ChainAck { hops })).await;
                    }
                }
                Some(Err(CallError::Failed(failure))) => {
                    // The next hop refused the whole chain, so it answers for itself only.
                    let next = self.waiting.remove(0);
                    let answer = HopAnswer { disk: next.0, failure: Some(*failure), ..HopAnswer::default() };
                    acks.send(encoded(&ChainAck { hops: vec![answer] })).await;
                    break;
                }
                Some(Err(_)) | None => break,
            }
        }
        self.waiting
    }
}

/// Forwards a frame if a next hop is left.
async fn send(
    onward: &mut Option<NextHop>,
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
        && let Some(next) = onward.take()
    {
        lost.extend(next.waiting);
    }
}

fn unreached(disks: Vec<DiskId>) -> ChainAck {
    let hop = |disk: DiskId| HopAnswer { disk: disk.0, unreached: true, ..HopAnswer::default() };
    ChainAck { hops: disks.into_iter().map(hop).collect() }
}

/// Group and epoch of a chain.
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
    Status::new(Code::Invalid, "a chain carries exactly one request")
}

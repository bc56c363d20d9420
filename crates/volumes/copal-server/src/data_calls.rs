//! The calls of a data server, each to whoever answers it.

use crate::{
    answers::{encoded, read},
    data_server::{DataServer, checked, create, new_head},
    listener::{Acks, Handler, Parts, Peer},
    status::Status,
};
use bytes::Bytes;
use copal_client::name_of_master;
use copal_data::Operation;
use copal_proto::{
    Method, id,
    messages::{self, failure::Code},
};
use copal_volume::{FileId, OpId, ReferenceClock, VolumeId};
use std::sync::Arc;

impl Handler for DataServer {
    fn clock_ms(&self) -> Option<u64> {
        self.map.reference_ms()
    }

    async fn call(self: Arc<Self>, peer: Peer, method: Method, message: Bytes) -> Result<Bytes, Status> {
        self.access.check(&peer, method, &message, self.map.now_ms())?;
        let caller = self.access.caller(&peer)?;
        match method {
            Method::Ping => Ok(encoded(&messages::Ping {})),
            Method::Put => {
                let request: messages::Put = read(message)?;
                let (group, epoch) = (request.group, request.epoch);
                self.operate(&caller, group, epoch, create(&caller, request)).await
            }
            Method::Confirm => {
                let request: messages::Confirm = read(message)?;
                let (group, epoch) = (request.group, request.epoch);
                self.operate(&caller, group, epoch, confirm_of(request)).await
            }
            Method::Delete => {
                let request: messages::Delete = read(message)?;
                let (group, epoch) = (request.group, request.epoch);
                self.operate(&caller, group, epoch, delete_of(request)).await
            }
            Method::PutPiece => self.stage(&caller, read(message)?).await,
            Method::GetPiece => self.staged_piece(read(message)?).await,
            Method::Get | Method::Stat | Method::List | Method::Find | Method::Totals | Method::Verify => {
                self.read_call(method, message).await
            }
            Method::VolumeState => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master says that"));
                }
                self.tell_volume(read(message)?).await
            }
            Method::WhatSeen => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master asks for that"));
                }
                self.show_what_was_seen(read(message)?).await
            }
            Method::AcceptAll => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master orders that"));
                }
                self.accept_all(read(message)?).await
            }
            Method::SyncOpen => self.open_snapshot(read(message)?).await,
            Method::SyncNext => self.next_of_snapshot(read(message)?).await,
            Method::SyncJournal => self.journal_of_snapshot(read(message)?).await,
            Method::SyncName => self.name_of_snapshot(read(message)?).await,
            Method::Gossip => self.hear_gossip(&peer, read(message)?).await,
            Method::JournalOf => self.show_journal(read(message)?).await,
            Method::Compare => self.compare(read(message)?).await,
            Method::SyncFetch => self.fetch_of_snapshot(read(message)?).await,
            Method::SyncClose => {
                let request: messages::SyncClose = read(message)?;
                self.snapshots.remove(request.sync);
                Ok(encoded(&messages::Done {}))
            }
            _ => Err(Status::new(Code::Invalid, "a data server does not answer that")),
        }
    }

    async fn chain(
        self: Arc<Self>,
        peer: Peer,
        message: Bytes,
        parts: Parts,
        acks: Acks,
    ) -> Result<Bytes, Status> {
        let head: messages::PutChain = read(message)?;
        for (method, request) in head.calls() {
            self.access.check(&peer, method, &request, self.map.now_ms())?;
        }
        let caller = self.access.caller(&peer)?;
        let last = self.take_chain(head, (caller, peer.permit), parts, &acks).await?;
        Ok(encoded(&last))
    }
}

pub(crate) fn confirm_of(request: messages::Confirm) -> Result<Operation, Status> {
    Ok(Operation::Confirm {
        vid: VolumeId(request.volume),
        name: checked(request.name)?,
        head: new_head(request.head)?,
    })
}

pub(crate) fn delete_of(request: messages::Delete) -> Result<Operation, Status> {
    Ok(Operation::Delete {
        vid: VolumeId(request.volume),
        name: checked(request.name)?,
        fid: FileId(id(request.fid)),
        op: OpId(id(request.op)),
    })
}

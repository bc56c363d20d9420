//! Dispatch of a data server's calls.

use crate::data::chain;
use crate::data::server::{DataServer, confirm_of, create, delete_of};
use crate::net::chain_frames::{ChainAcks, ChainParts};
use crate::net::handler::CallHandler;
use crate::net::messages::{encoded, read};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::resync::donor;
use crate::resync::force_accept;
use crate::resync::gossip;
use crate::resync::roll_forward;
use bytes::Bytes;
use copal_client::name_of_master;
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_volume::ReferenceClock;
use std::sync::Arc;

impl CallHandler for DataServer {
    fn clock_ms(&self) -> Option<u64> {
        self.host.map.reference_ms()
    }

    async fn call(
        self: Arc<Self>,
        peer: PeerIdentity,
        method: Method,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        self.host.access.check(&peer, method, &message, self.host.map.now_ms())?;
        let caller = self.host.access.caller_permit(&peer)?;
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
            Method::Get
            | Method::GetRanges
            | Method::Stat
            | Method::List
            | Method::Find
            | Method::Totals
            | Method::Verify => self.answer_read(method, message).await,
            Method::VolumeState => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master may set the state of a volume"));
                }
                self.set_volume_state(read(message)?).await
            }
            Method::WhatSeen => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master may ask for group states"));
                }
                Arc::clone(&self.host).report_seen(read(message)?).await
            }
            Method::AcceptAll => {
                if !peer.is(&name_of_master()) {
                    return Err(Status::new(Code::Denied, "only a master may order a forced accept"));
                }
                force_accept::accept(Arc::clone(&self.host), read(message)?).await
            }
            Method::SyncOpen => donor::open_snapshot(Arc::clone(&self.host), read(message)?).await,
            Method::SyncNext => donor::entry_page(Arc::clone(&self.host), read(message)?).await,
            Method::SyncJournal => donor::journal_page(Arc::clone(&self.host), read(message)?).await,
            Method::SyncName => donor::live_name(Arc::clone(&self.host), read(message)?).await,
            Method::Gossip => gossip::answer_gossip(&self.host, &peer, read(message)?).await,
            Method::JournalOf => roll_forward::bucket_page(Arc::clone(&self.host), read(message)?).await,
            Method::Compare => donor::compare_groups(Arc::clone(&self.host), read(message)?).await,
            Method::SyncFetch => donor::read_file(Arc::clone(&self.host), read(message)?).await,
            Method::SyncClose => {
                let request: messages::SyncClose = read(message)?;
                self.host.snapshots.remove(request.sync);
                Ok(encoded(&messages::Done {}))
            }
            _ => Err(Status::new(Code::Invalid, "a data server does not answer that")),
        }
    }

    async fn chain(
        self: Arc<Self>,
        peer: PeerIdentity,
        message: Bytes,
        parts: ChainParts,
        acks: ChainAcks,
    ) -> Result<Bytes, Status> {
        let head: messages::PutChain = read(message)?;
        for (method, request) in head.calls() {
            self.host.access.check(&peer, method, &request, self.host.map.now_ms())?;
        }
        let caller = self.host.access.caller_permit(&peer)?;
        let last = chain::receive(self, head, (caller, peer.permit), parts, &acks).await?;
        Ok(encoded(&last))
    }
}

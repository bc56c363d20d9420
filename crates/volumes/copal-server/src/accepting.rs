//! A member of a group none of whose members is whole goes on from what it has, by an operator's order.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Not here: who may order it, and what the master writes down (`force_accept`).

use crate::{
    answers::{blocking, encoded},
    data_server::DataServer,
    status::Status,
    syncing::{NotYet, Ready},
};
use bytes::Bytes;
use copal_data::{Disputed, Membership, Operation};
use copal_proto::{
    messages::{self, failure::Code},
    role_of,
};
use copal_volume::group::{BUCKET_MS, Epoch, GroupId, Term};
use std::{sync::Arc, time::Duration};

/// Names with two files that are looked at in one go.
const DISPUTED: usize = 1000;
/// Looks for the view that follows the order, and how long between two.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

impl DataServer {
    /// Tells what this member has of a group, and unless that is all that is asked for, takes it for
    /// everything.
    pub(crate) async fn accept_all(self: Arc<Self>, request: messages::AcceptAll) -> Result<Bytes, Status> {
        let group = GroupId(request.group);
        let this = Arc::clone(&self);
        let obeys = blocking(move || this.must_obey(Term(request.term)));
        obeys.await?;
        let mut membership = self.own(group).await?;
        let mut disputed = self.disputed(group).await?;
        if !request.dry_run {
            membership = self.wait_for(group, Epoch(request.epoch)).await?;
            if !membership.role.is_in_sync() {
                while !disputed.is_empty() {
                    self.keep_the_first(group, &disputed).await?;
                    disputed = self.disputed(group).await?;
                }
                membership = self.take_for_everything(membership).await?;
            }
        }
        Ok(encoded(&messages::AcceptAllReply {
            epoch: membership.epoch.0,
            role: role_of(membership.role).into(),
            covered: membership.is_covered,
            horizon_ms: membership.horizon.0.saturating_mul(BUCKET_MS),
            second_files: disputed.iter().map(|name| name.claims.len() as u32 - 1).sum(),
        }))
    }

    async fn own(&self, group: GroupId) -> Result<Membership, Status> {
        let store = self.store.clone();
        blocking(move || {
            let own = store.membership(group)?;
            own.ok_or_else(|| Status::new(Code::NotFound, "this server is no member of that group yet"))
        })
        .await
    }

    async fn disputed(&self, group: GroupId) -> Result<Vec<Disputed>, Status> {
        let store = self.store.clone();
        blocking(move || Ok(store.disputed(group, DISPUTED)?)).await
    }

    /// The view that follows the order, or a later one.
    async fn wait_for(&self, group: GroupId, epoch: Epoch) -> Result<Membership, Status> {
        for _ in 0..LOOKS {
            let own = self.own(group).await?;
            if own.epoch >= epoch {
                return Ok(own);
            }
            self.refresh().await;
            tokio::time::sleep(PAUSE).await;
        }
        let text = "this server has not entered the view that follows the order; give it again";
        Err(Status::new(Code::Unavailable, text))
    }

    /// Of a name with two files the first stays: nobody can say any more which was acknowledged.
    async fn keep_the_first(&self, group: GroupId, disputed: &[Disputed]) -> Result<(), Status> {
        for name in disputed {
            for loser in name.claims.iter().skip(1) {
                let op = self.ids.lock().draw_op_above(self.map.now_ms(), loser.op);
                let bury =
                    Operation::TakeOverDelete { vid: name.vid, name: name.name.clone(), fid: loser.fid, op };
                tracing::warn!(%group, loser = %loser.fid, "of two files of a name one goes, by order");
                self.take(group, name.vid, bury).await.map_err(of_not_yet)?;
            }
        }
        Ok(())
    }

    /// Becomes whole as after a donor's snapshot, which here is its own.
    async fn take_for_everything(&self, own: Membership) -> Result<Membership, Status> {
        let ready = Ready {
            group: own.group,
            generation: self.repairs.generation(own.group),
            asked_in: own.epoch,
            closing: own.closing,
        };
        let became = self.be_whole(&[ready]).await.map_err(of_not_yet)?;
        match became.is_empty() {
            false => self.own(own.group).await,
            true => {
                let text =
                    "the view has changed meanwhile, or damage is being given up; give the order again";
                Err(Status::new(Code::Unavailable, text))
            }
        }
    }
}

fn of_not_yet(error: NotYet) -> Status {
    match error {
        NotYet::Here(refused) => refused,
        error => Status::new(Code::Unavailable, error.to_string()),
    }
}

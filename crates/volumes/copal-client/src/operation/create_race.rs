//! Creators of one name at one time: exactly one of them wins.
//!
//! Without a primary two creators may each be first at another member, and refuse each other: at most one is
//! acknowledged, and maybe none. So whoever is refused looks whether the name has an owner on all whole
//! members. If it has none, all of them were losers, and the create is tried again, at one member first:
//! there one creator comes before all others.

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::CallError;
use crate::net::machine;
use crate::operation::run::Wanted;
use bytes::Bytes;
use copal_proto::{
    Method, id, is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::{FileId, VolumeError, VolumeId, group::Call};
use futures_util::future::join_all;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

impl Cluster {
    /// Creates at one member ahead of the others.
    /// # Errors
    /// `Exists`: another creator was there before; nothing was sent to anybody else.
    pub(crate) async fn create_first(&self, wanted: &Wanted, end: Instant) -> Result<(), VolumeError> {
        let view = self.view(wanted.vid, end).await?;
        let Some(disk) = view.in_sync().next() else {
            return Ok(());
        };
        match self.ask_member(wanted, disk, view.epoch, Call::Create, end).await {
            Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Exists) => {
                Err(VolumeError::Exists { fid: FileId(id(failure.fid)) })
            }
            // Whatever else became of it, the operation finds out.
            _ => Ok(()),
        }
    }

    /// The file that has a name on all whole members; `None`: the name is free on all of them.
    pub(crate) async fn owner(
        &self,
        vid: VolumeId,
        name: &Bytes,
        seen: FileId,
        end: Instant,
    ) -> Result<Option<FileId>, VolumeError> {
        let mut pause = Duration::from_millis(5);
        loop {
            let view = self.view(vid, end).await?;
            let request = messages::Stat {
                group: view.group.0,
                epoch: view.epoch.0,
                volume: vid.0,
                name: name.clone(),
                if_file: None,
            };
            let calls =
                view.up().map(|disk| self.call::<messages::StatReply>(disk, Method::Stat, &request, end));
            let (mut owners, mut may_read) = (BTreeSet::new(), true);
            for answer in join_all(calls).await {
                match answer {
                    Ok(reply) if is_in_sync(reply.role) => {
                        owners.insert(reply.head.map(|head| FileId(id(head.fid))));
                    }
                    Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => {
                        owners.insert(None);
                    }
                    Err(CallError::Failed(failure)) if failure.code == i32::from(Code::VolumeGone) => {
                        return Err(VolumeError::VolumeGone);
                    }
                    Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => {
                        may_read = false
                    }
                    _ => {}
                }
            }
            if owners.is_empty() && !may_read {
                // However long it asks: a client that may not read goes by the refusal that it got.
                return Ok(Some(seen));
            }
            if owners.len() == 1 {
                return Ok(owners.into_iter().next().flatten());
            }
            // On their way, some in and some out again.
            if machine::now() + pause >= end {
                return Ok(Some(seen));
            }
            tokio::time::sleep(pause + self.jitter(pause)).await;
            pause = (pause * 2).min(SOON);
        }
    }

    /// Up to as much again, so that those who collided do not do so for ever.
    pub(crate) fn jitter(&self, of: Duration) -> Duration {
        let drawn = machine::draw().unwrap_or(0) as u32;
        of.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
    }
}

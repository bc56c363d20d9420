//! What became of a create whose outcome is unknown: found out, and decided where it is not.
//!
//! A file that a whole member lacks was never acknowledged: an operation holds on every member that is up,
//! and a member that is whole has all that ever held. A file that all whole members have may be held, and is
//! then never buried. A member that is away may have taken a burial of which nobody else knows, and brings it
//! along when it returns: that a file is there to stay is said only when all members of the group have said
//! that they have it.
//!
//! Rule: VOL-61, docs/design/cluster.md

use crate::api::cluster::{Cluster, SOON};
use crate::api::files::info;
use crate::net::machine;
use crate::operation::delivery::HandedOver;
use crate::operation::run::{Body, Wanted, What};
use crate::operation::upload::{PIECE_BYTES, Upload};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{Method, id, is_in_sync, messages, of_id};
use copal_volume::{
    FileId, OpId, Outcome, ReadOptions, Settle, UNKNOWN_FILE_NAME, VolumeError, VolumeId,
    group::{DiskId, Epoch, MAX_OP_AHEAD_MS, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::{sync::Arc, time::Instant};

impl Cluster {
    /// Decides a create; final when it returns.
    /// # Errors
    /// As [`VolumeStore::settle`](copal_volume::VolumeStore::settle); `NotFound`: no client can have drawn
    /// that id yet; `Denied`: this client may not read there, or not create; `Incomplete`, `Deadline`: ask
    /// again.
    pub async fn settle(
        &self,
        vid: VolumeId,
        fid: FileId,
        want: Settle,
        end: Instant,
    ) -> Result<Outcome, VolumeError> {
        loop {
            let view = self.view(vid, end).await?;
            let found = self.find_everywhere(&view, vid, fid, false, end).await;
            found.check()?;
            let latest_ms = self.map().now_ms().saturating_add(MAX_OP_AHEAD_MS);
            if found.is_unknown() && (fid == FileId(0) || fid.ms() > latest_ms) {
                // Members refuse a delete of it, so that it could never be decided.
                return Err(VolumeError::NotFound);
            }
            match found.verdict() {
                Verdict::Held => return Ok(Outcome::Committed),
                Verdict::Buried => {
                    self.bury_found(vid, fid, &found, end).await?;
                    return Ok(Outcome::Aborted);
                }
                Verdict::NotHeld if want == Settle::Commit && found.live.is_some() => {
                    self.complete(vid, &found, end).await?;
                }
                Verdict::NotHeld => {
                    self.bury_found(vid, fid, &found, end).await?;
                    return Ok(Outcome::Aborted);
                }
                Verdict::Open => self.complete(vid, &found, end).await?,
                Verdict::Unreached => {}
            }
            if machine::now() + SOON >= end {
                return Err(VolumeError::Deadline {
                    reason: format!(
                        "not every member of the group told of file {fid}; start the servers that are down, and settle it again"
                    ),
                });
            }
            tokio::time::sleep(SOON).await;
        }
    }

    /// Whether a member that is up has a file among the deleted; all of them are asked, until all answer in
    /// one view, whose epoch is returned, too.
    pub(crate) async fn is_buried_somewhere(
        &self,
        vid: VolumeId,
        fid: FileId,
        end: Instant,
    ) -> Result<(bool, Epoch), VolumeError> {
        loop {
            let view = self.view(vid, end).await?;
            let found = self.find_everywhere(&view, vid, fid, true, end).await;
            found.check()?;
            if found.is_buried || found.told == found.up {
                return Ok((found.is_buried, view.epoch));
            }
            if machine::now() + SOON >= end {
                return Err(VolumeError::Deadline {
                    reason: "not every member that is up told whether the file is deleted; delete it again"
                        .to_owned(),
                });
            }
            tokio::time::sleep(SOON).await;
        }
    }

    pub(crate) async fn find_everywhere(
        &self,
        view: &View,
        vid: VolumeId,
        fid: FileId,
        buried_only: bool,
        end: Instant,
    ) -> FoundEverywhere {
        let request = messages::Find {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            fid: Some(of_id(fid.0)),
            buried_only,
        };
        let calls = view.up().map(|disk| {
            let call = self.call::<messages::FindReply>(disk, Method::Find, &request, end);
            async move { (disk, call.await) }
        });
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut all = FoundEverywhere {
            up: view.up().count(),
            members: view.members.len(),
            needed: view.needed(),
            ..FoundEverywhere::default()
        };
        while let Some((disk, answer)) = calls.next().await {
            match answer {
                Ok(found) => all.take(disk, found),
                Err(crate::net::connection::CallError::Failed(failure)) => {
                    let gone = messages::failure::Code::VolumeGone;
                    all.is_gone |= failure.code == i32::from(gone);
                    if let Some(newer) = &failure.view {
                        self.map().learn(newer);
                    }
                    if failure.code == i32::from(messages::failure::Code::Denied) {
                        all.refusal = Some(failure.text);
                    }
                }
                Err(_) => self.suspect(disk),
            }
        }
        all
    }

    async fn bury_found(
        &self,
        vid: VolumeId,
        fid: FileId,
        found: &FoundEverywhere,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let name = found.live.as_ref().map(|(_, name, _)| name.clone());
        // Who has the file may be away now, and finds it by its id when it hears of the delete.
        let name = name.unwrap_or_else(|| Bytes::from_static(UNKNOWN_FILE_NAME));
        self.bury(vid, name, fid, end).await
    }

    /// Brings a file that some members have to all others that are up.
    async fn complete(
        &self,
        vid: VolumeId,
        found: &FoundEverywhere,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let Some((_, name, head)) = found.live.clone() else {
            return Ok(());
        };
        let fid = FileId(id(head.fid));
        let op = OpId(id(head.op));
        let body = self.body_for_others(vid, &name, &head, end).await?;
        let wanted = Wanted {
            vid,
            name,
            head,
            fid,
            op,
            what: What::Complete(body),
            burial: self.draw_op_above(op),
            handed: HandedOver::default(),
        };
        match self.run(wanted, end).await {
            // All are asked once more, with those that were away.
            Ok(()) | Err(VolumeError::Unavailable { .. } | VolumeError::Unknown { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn body_for_others(
        &self,
        vid: VolumeId,
        name: &[u8],
        head: &messages::FileHead,
        end: Instant,
    ) -> Result<Body, VolumeError> {
        let options = ReadOptions { if_file: Some(FileId(id(head.fid))), ..ReadOptions::default() };
        let info = info(Some(head.clone()))?;
        if info.size <= PIECE_BYTES as u64 {
            let (bytes, _) = self.get(vid, name, 0..info.size, &options, end).await?;
            if crc32c(0, &bytes) != info.crc32c {
                let what = format!("the body of file {}", info.fid);
                return Err(VolumeError::Corrupt { what });
            }
            return Ok(Body::Here(bytes));
        }
        let upload = Arc::new(Upload::new(vid, info.fid));
        let mut at = 0;
        while at < info.size {
            let until = info.size.min(at + PIECE_BYTES as u64);
            let (bytes, _) = self.get(vid, name, at..until, &options, end).await?;
            at = until;
            upload.stage(self, bytes, end).await?;
        }
        Ok(Body::Staged(upload))
    }
}

/// What members say of a file.
#[derive(Default)]
pub(crate) struct FoundEverywhere {
    up: usize,
    members: usize,
    needed: usize,
    told: usize,
    live_count: usize,
    whole: usize,
    whole_with: usize,
    is_buried: bool,
    is_gone: bool,
    live: Option<(DiskId, Bytes, messages::FileHead)>,
    /// Why a member refuses this client.
    refusal: Option<String>,
}

enum Verdict {
    /// Every member has it, and none has buried it.
    Held,
    /// A member has it among the deleted.
    Buried,
    /// A whole member lacks it: it was never acknowledged.
    NotHeld,
    /// All whole members have it, and some other lacks it.
    Open,
    /// Too few answered to tell, or a member is away.
    Unreached,
}

impl FoundEverywhere {
    /// Fails where asking again changes nothing.
    /// # Errors
    /// `VolumeGone`; `Denied`: all members that answered refuse this client.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        match &self.refusal {
            _ if self.is_gone => Err(VolumeError::VolumeGone),
            Some(reason) if self.told == 0 => Err(VolumeError::Denied { reason: reason.clone() }),
            _ => Ok(()),
        }
    }

    /// Whether all members that are up have the file, whole or not.
    pub(crate) fn is_with_all_that_are_up(&self) -> bool {
        !self.is_buried && self.told == self.up && self.live_count == self.up
    }

    /// Whether members answered, and none of them knows the file.
    fn is_unknown(&self) -> bool {
        self.told > 0 && self.live_count == 0 && !self.is_buried
    }

    fn take(&mut self, disk: DiskId, found: messages::FindReply) {
        self.told += 1;
        let is_whole = is_in_sync(found.role);
        self.whole += usize::from(is_whole);
        self.is_buried |= found.buried;
        if found.live {
            self.live_count += 1;
            self.whole_with += usize::from(is_whole);
            if let Some(head) = found.head {
                self.live = Some((disk, found.name, head));
            }
        }
    }

    fn verdict(&self) -> Verdict {
        if self.is_buried {
            return Verdict::Buried;
        }
        if self.whole > self.whole_with {
            return Verdict::NotHeld;
        }
        if self.told < self.up || self.whole == 0 {
            return Verdict::Unreached;
        }
        match (self.live_count == self.up, self.up == self.members) {
            (true, true) => Verdict::Held,
            (true, false) if self.up >= self.needed => Verdict::Unreached,
            _ => Verdict::Open,
        }
    }
}

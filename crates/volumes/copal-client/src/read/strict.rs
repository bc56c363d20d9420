//! Strict reads: what all members that are up say in one view.
//!
//! An operation holds when every member that is up in a view has it (VOL-12), and a member becomes whole only
//! in a view that its donor is in, too. So when all members that are up in a view answer in it, nothing held
//! in a later one before they were asked, and what whole members agree on is what was acknowledged (VOL-22).
//! Nobody has to keep a lease, and no master has to be there; one member that is away and not yet known to be
//! keeps strict reads waiting, as it keeps writes.
//!
//! Design: docs/design/cluster.md#rules VOL-22
//! Invariant: what a strict read has shown, or shown to be gone, stays so.
//! Not here: lists (`list`).

mod list;

pub(crate) use list::{ListedBelow, Page};

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::CallError;
use crate::net::errors::volume_error;
use crate::net::machine;
use crate::read::available::FromMember;
use bytes::Bytes;
use copal_proto::{
    Method, id, is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{BUCKET_MS, DiskId, MAX_OP_AGE_MS, MAX_OP_AHEAD_MS, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::Message;
use std::{collections::BTreeSet, time::Instant};

/// A create of this age is refused by nobody any more: by the clocks of all it has been too old for long.
const DECIDED_MS: u64 = MAX_OP_AGE_MS + MAX_OP_AHEAD_MS + BUCKET_MS;

/// What one member says.
enum Said<R> {
    /// A whole member; none: there is no such file.
    Whole(Option<R>),
    /// It is in the view and not whole: what it has, if anything, counts for nothing by itself.
    InView(Option<R>),
    /// The volume is gone.
    Gone,
    /// It cannot read what it has, or this client may not.
    Failed(VolumeError),
    /// Nothing that counts.
    Nothing,
}

/// What all members that are up say in one view.
enum Answers<R> {
    All {
        /// Of each whole one; none: there is no such file.
        whole: Vec<Option<R>>,
        /// Of each that is not; none: it has nothing to say.
        others: Vec<Option<R>>,
    },
    /// The volume is gone.
    Gone,
    /// Not all have answered; why, if no whole one could say more.
    NotAll(Option<VolumeError>),
}

/// What all of them say.
enum Agreed {
    Held(messages::FileHead),
    /// All whole members have it; others that are up do not say.
    HeldByWhole(messages::FileHead),
    NotFound,
    /// Whole members differ, or a member that is not whole has a file that none of them has: a create or a
    /// delete may be on its way.
    Differ(BTreeSet<FileId>),
    Gone,
    /// Not all have answered in one view.
    Not,
    /// This client may not read there.
    Refused(VolumeError),
}

impl Cluster {
    /// The live file of a name, by the word of all members that are up.
    /// # Errors
    /// `NotFound`, `VolumeGone`, `Denied`; `Deadline`: not all of them answered in one view until `end`.
    pub(crate) async fn stat_strictly(
        &self,
        vid: VolumeId,
        name: &Bytes,
        end: Instant,
    ) -> Result<messages::FileHead, VolumeError> {
        loop {
            let view = self.view(vid, end).await?;
            match self.ask_all(&view, vid, name, end).await {
                Agreed::Held(head) => return Ok(head),
                Agreed::HeldByWhole(head) => {
                    if !self.may_be_refused(&view, vid, &head, end).await? {
                        return Ok(head);
                    }
                }
                Agreed::NotFound => return Err(VolumeError::NotFound),
                Agreed::Gone => return Err(VolumeError::VolumeGone),
                Agreed::Differ(fids) => {
                    // A delete that has begun is brought to its end, since whoever looks next may ask others;
                    // a create that has begun was promised to nobody.
                    let mut is_not_there = true;
                    for fid in fids {
                        let (is_buried, epoch) = self.is_buried_somewhere(vid, fid, end).await?;
                        if is_buried {
                            is_not_there &= self.bury_for_others(vid, name, fid, end).await?;
                        } else if epoch != view.epoch {
                            // Whoever had the delete may be away in this view, and the file is there as
                            // before.
                            is_not_there = false;
                        }
                    }
                    if is_not_there {
                        return Err(VolumeError::NotFound);
                    }
                }
                Agreed::Not => {}
                Agreed::Refused(error) => return Err(error),
            }
            self.pause(end).await?;
        }
    }

    /// Brings a delete of somebody else to its end. `false`: this client may not, and waits until who deletes
    /// does it, or the members among themselves.
    async fn bury_for_others(
        &self,
        vid: VolumeId,
        name: &Bytes,
        fid: FileId,
        end: Instant,
    ) -> Result<bool, VolumeError> {
        match self.bury(vid, name.clone(), fid, end).await {
            // A file of another name is not this name's.
            Ok(()) | Err(VolumeError::NotFound) => Ok(true),
            Err(VolumeError::Denied { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a member that is up and not whole may yet refuse a create that all whole ones have, upon which
    /// whoever creates the file takes it back: it lacks the file, and the create is not too old to be
    /// refused.
    async fn may_be_refused(
        &self,
        view: &View,
        vid: VolumeId,
        head: &messages::FileHead,
        end: Instant,
    ) -> Result<bool, VolumeError> {
        if is_decided(head, self.map().now_ms()) {
            return Ok(false);
        }
        let found = self.find_everywhere(view, vid, FileId(id(head.fid)), false, end).await;
        found.check()?;
        Ok(!found.is_with_all_that_are_up())
    }

    async fn pause(&self, end: Instant) -> Result<(), VolumeError> {
        if machine::now() + SOON >= end {
            return Err(VolumeError::Deadline {
                reason: "a strict read takes an answer of every member that is up; try again, or read what is available"
                    .to_owned(),
            });
        }
        tokio::time::sleep(SOON).await;
        Ok(())
    }

    async fn ask_all(&self, view: &View, vid: VolumeId, name: &Bytes, end: Instant) -> Agreed {
        let request = messages::Stat {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            if_file: None,
        };
        let (whole, others) = match self.ask_each(view, Method::Stat, &request, end).await {
            Answers::All { whole, others } => (whole, others),
            Answers::Gone => return Agreed::Gone,
            Answers::NotAll(Some(error @ VolumeError::Denied { .. })) => return Agreed::Refused(error),
            Answers::NotAll(_) => return Agreed::Not,
        };
        let heads = |replies: Vec<Option<messages::StatReply>>| {
            let head = |reply: Option<messages::StatReply>| reply.and_then(|reply| reply.head);
            replies.into_iter().map(head).collect()
        };
        agreed(heads(whole), heads(others))
    }

    /// Asks all members that are up.
    async fn ask_each<R: FromMember>(
        &self,
        view: &View,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Answers<R> {
        // Nothing could hold in so small a view, so members that were away meanwhile are whole without what
        // it saw.
        if view.up().count() < view.needed() {
            return Answers::NotAll(None);
        }
        let calls = view.up().map(|disk| self.ask_one(disk, method, request, end));
        let mut calls: FuturesUnordered<_> = calls.collect();
        let (mut whole, mut others, mut failure) = (Vec::new(), Vec::new(), None);
        while let Some(said) = calls.next().await {
            match said {
                Said::Whole(reply) => whole.push(reply),
                Said::InView(reply) => others.push(reply),
                Said::Gone => return Answers::Gone,
                Said::Failed(error) => failure = Some(error),
                Said::Nothing => {}
            }
        }
        match whole.len() + others.len() < view.up().count() {
            // Where another whole member can read it, the damaged one is soon not whole any more.
            true => Answers::NotAll(failure.filter(|_| whole.is_empty())),
            false => Answers::All { whole, others },
        }
    }

    async fn ask_one<R: FromMember>(
        &self,
        disk: DiskId,
        method: Method,
        request: &impl Message,
        end: Instant,
    ) -> Said<R> {
        match self.call::<R>(disk, method, request, end).await {
            Ok(reply) if is_in_sync(reply.role()) => Said::Whole(Some(reply)),
            Ok(reply) => Said::InView(Some(reply)),
            Err(CallError::Failed(failure)) => {
                if let Some(newer) = &failure.view {
                    self.map().learn(newer);
                }
                match Code::try_from(failure.code).unwrap_or(Code::Unspecified) {
                    Code::NotFound => Said::Whole(None),
                    Code::NotAuthoritative => Said::InView(None),
                    Code::VolumeGone => Said::Gone,
                    Code::Corrupt | Code::Denied => Said::Failed(volume_error(CallError::Failed(failure))),
                    _ => Said::Nothing,
                }
            }
            Err(_) => {
                self.suspect(disk);
                Said::Nothing
            }
        }
    }
}

/// Whether a create is too old to be refused by anybody, at a time by the cluster's clock: its id was drawn
/// by that clock, too.
fn is_decided(head: &messages::FileHead, now_ms: u64) -> bool {
    let age_ms = now_ms.saturating_sub(OpId(id(head.op)).ms());
    age_ms > DECIDED_MS
}

fn fid_of(head: &Option<messages::FileHead>) -> Option<FileId> {
    head.as_ref().map(|head| FileId(id(head.fid)))
}

/// What follows from the heads that whole members have, and others that are up.
fn agreed(whole: Vec<Option<messages::FileHead>>, others: Vec<Option<messages::FileHead>>) -> Agreed {
    let fids = |heads: &[Option<messages::FileHead>]| -> BTreeSet<FileId> {
        heads.iter().filter_map(fid_of).collect()
    };
    let are_equal = whole.windows(2).all(|two| fid_of(&two[0]) == fid_of(&two[1]));
    let by_whole = fids(&whole);
    match (whole.into_iter().next(), are_equal) {
        // Nobody is whole who could know.
        (None, _) => Agreed::Not,
        (Some(Some(head)), true) if others.is_empty() => Agreed::Held(head),
        (Some(Some(head)), true) => Agreed::HeldByWhole(head),
        (Some(None), true) if others.iter().all(Option::is_none) => Agreed::NotFound,
        // It may become whole by what it had before the delete, and then the file is back.
        (Some(None), true) => Agreed::Differ(fids(&others)),
        (Some(_), false) => Agreed::Differ(by_whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_proto::of_id;

    fn head(fid: u128) -> Option<messages::FileHead> {
        Some(messages::FileHead { fid: Some(of_id(fid)), ..messages::FileHead::default() })
    }

    /// Symptom: strict reads of a client whose own clock was ahead showed files that were refused later.
    /// Cause: the age of a create was judged by the client's wall clock, while its id has the cluster's time.
    /// Fix: ages are judged by the cluster's clock.
    #[test]
    fn the_age_of_a_create_is_judged_by_the_clock_that_drew_its_id() {
        let fresh = messages::FileHead {
            op: Some(of_id(FileId::new(1_000_000, 1, 1).0)),
            ..messages::FileHead::default()
        };
        // This machine's own clock shows a time long after; the cluster's shows that one.
        let map = crate::net::map_cache::MapCache::default();
        map.apply(&messages::Map { now_ms: 1_000_000, ..messages::Map::default() });
        assert!(!is_decided(&fresh, map.now_ms()), "a create that has just begun may be refused yet");
        map.apply(&messages::Map { now_ms: 1_000_000 + DECIDED_MS + 1, ..messages::Map::default() });
        assert!(is_decided(&fresh, map.now_ms()));
    }

    #[test]
    fn only_what_all_whole_members_say_is_so() {
        let all = |whole| agreed(whole, vec![]);
        assert!(matches!(all(vec![head(1), head(1)]), Agreed::Held(_)));
        assert!(matches!(all(vec![None, None]), Agreed::NotFound));
        assert!(matches!(all(vec![]), Agreed::Not), "nobody is whole");
        for heads in [vec![head(1), None], vec![None, head(1)], vec![head(1), head(2)]] {
            assert!(matches!(all(heads), Agreed::Differ(fids) if fids.contains(&FileId(1))));
        }
    }

    #[test]
    fn what_only_a_member_has_that_is_not_whole_may_be_a_file_whose_delete_has_begun() {
        let with = |whole, other| agreed(vec![whole], vec![other]);
        assert!(matches!(with(head(1), None), Agreed::HeldByWhole(_)));
        assert!(matches!(with(head(1), head(2)), Agreed::HeldByWhole(_)));
        assert!(matches!(with(None, None), Agreed::NotFound));
        assert!(matches!(with(None, head(2)), Agreed::Differ(fids) if fids.contains(&FileId(2))));
    }
}

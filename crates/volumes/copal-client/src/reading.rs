//! Reads: from a whole member, and from another where that one is not reached, does not know or is damaged.
//!
//! A hit on a member that is not whole may be a file that was just deleted; a miss there says nothing. A miss on a whole one is
//! believed when a second whole one, if there is one that answers, has not got it either.

use crate::{
    cluster::{Cluster, SOON},
    connection::CallError,
    errors::volume_error,
    machine,
};
use bytes::Bytes;
use copal_proto::{Method, messages::failure::Code, role};
use copal_volume::{
    VolumeError, VolumeId,
    group::{DiskId, Role, View},
};
use prost::Message;
use std::time::{Duration, Instant};

/// How long one member may take before another is asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whose answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Those of whole members only.
    Whole,
    /// A hit on any member; it may be a file that was just deleted.
    All,
}

/// A reply that says in which state the member is that gave it.
pub(crate) trait FromMember: Message + Default {
    fn role(&self) -> i32;
}

macro_rules! from_member {
    ($($reply:ident),*) => {
        $(impl FromMember for copal_proto::messages::$reply {
            fn role(&self) -> i32 {
                self.role
            }
        })*
    };
}
from_member!(Got, StatReply, ListReply, Found, Totals);

impl Cluster {
    /// Asks members of a volume's group until one gives an answer that counts; `request` is made for a view.
    /// # Errors
    /// `NotFound`, `VolumeGone`, `Corrupt`; `Incomplete`, `Deadline`: none did until `end`.
    pub(crate) async fn read<Q: Message, R: FromMember>(
        &self,
        vid: VolumeId,
        method: Method,
        counts: Counts,
        end: Instant,
        request: impl Fn(&View) -> Q,
    ) -> Result<R, VolumeError> {
        loop {
            let view = self.view(vid, end).await?;
            let request = request(&view);
            if let Some(answer) = self.round(&view, method, counts, end, &request).await {
                return answer;
            }
            if machine::now() + SOON >= end {
                return Err(VolumeError::Incomplete {
                    what: format!("group {}", view.group),
                });
            }
            // Who has no room is asked again, and not by all at once.
            tokio::time::sleep(SOON / 2 + self.jitter(SOON)).await;
        }
    }

    /// As [`Cluster::read`] of whole members, in a view in which all members that are up have answered afterwards.
    /// # Errors
    /// As [`Cluster::read`].
    pub(crate) async fn read_strictly<Q: Message, R: FromMember>(
        &self,
        vid: VolumeId,
        method: Method,
        end: Instant,
        request: impl Fn(&View) -> Q,
    ) -> Result<R, VolumeError> {
        loop {
            let view = self.view(vid, end).await?;
            let request = request(&view);
            match self.round(&view, method, Counts::Whole, end, &request).await {
                Some(Ok(reply)) if self.is_present(vid, &view, end).await? => return Ok(reply),
                Some(Err(error)) if error != VolumeError::NotFound => return Err(error),
                Some(_) | None => self.pause(end).await?,
            }
        }
    }

    /// Asks each member once; `None`: nothing that counts, but that may change.
    async fn round<R: FromMember>(
        &self,
        view: &View,
        method: Method,
        counts: Counts,
        end: Instant,
        request: &impl Message,
    ) -> Option<Result<R, VolumeError>> {
        let (mut misses, mut maybe, mut corrupt, mut is_busy) = (0, None, None, false);
        let message = Bytes::from(request.encode_to_vec());
        for disk in in_order(view, self.next_turn()) {
            let until = end.min(machine::now() + PATIENCE);
            let asked = self.call_once::<R>(disk, method, message.clone(), until);
            match asked.await {
                Ok(reply) if role(reply.role()) == Some(Role::Normal) => return Some(Ok(reply)),
                Ok(reply) => maybe = maybe.or(Some(reply)),
                Err(CallError::Failed(failure)) => {
                    if let Some(newer) = &failure.view
                        && self.map().learn(newer)
                    {
                        return None;
                    }
                    match Code::try_from(failure.code).unwrap_or(Code::Unspecified) {
                        Code::NotFound => misses += 1,
                        Code::Busy => is_busy = true,
                        Code::VolumeGone => return Some(Err(VolumeError::VolumeGone)),
                        Code::Corrupt => corrupt = Some(volume_error(CallError::Failed(failure))),
                        Code::Denied | Code::Invalid | Code::TooLarge => {
                            return Some(Err(volume_error(CallError::Failed(failure))));
                        }
                        _ => {}
                    }
                    if misses == 2 {
                        return Some(Err(VolumeError::NotFound));
                    }
                }
                Err(_) => self.suspect(disk),
            }
        }
        match (misses, maybe, corrupt) {
            // Who has no room now is there, and may say otherwise.
            (1.., _, None) if is_busy => None,
            (1.., _, None) => Some(Err(VolumeError::NotFound)),
            // Only a whole member knows what was deleted.
            (_, Some(reply), None) if counts == Counts::All => Some(Ok(reply)),
            (_, _, Some(corrupt)) => Some(Err(corrupt)),
            _ => None,
        }
    }
}

/// Members that are up, whole ones first; which comes first changes from call to call.
fn in_order(view: &View, turn: usize) -> Vec<DiskId> {
    let in_role = |wanted: bool| {
        let members = view.members.iter();
        let of_role = members.filter(move |(_, role)| role.is_up() && (*role == Role::Normal) == wanted);
        of_role.map(|(disk, _)| *disk).collect::<Vec<_>>()
    };
    let (mut whole, others) = (in_role(true), in_role(false));
    if !whole.is_empty() {
        let by = turn % whole.len();
        whole.rotate_left(by);
    }
    whole.extend(others);
    whole
}

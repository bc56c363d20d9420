//! Reads: from a whole member, and from another where that one is not reached, does not know or is damaged.
//!
//! A hit on a member that is not whole may be a file that was just deleted; a miss there says nothing. A miss
//! on a whole one is believed when a second whole one, if there is one that answers, has not got it either.

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::CallError;
use crate::net::errors::volume_error;
use crate::net::machine;
use bytes::Bytes;
use copal_proto::{CallClass, CallCost, Method, is_in_sync, messages::failure::Code};
use copal_volume::{
    VolumeError, VolumeId,
    group::{DiskId, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
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
from_member!(GetReply, StatReply, ListReply, FindReply, Totals);

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
                return Err(VolumeError::Incomplete { what: format!("group {}", view.group) });
            }
            // Who has no room is asked again, and not by all at once.
            tokio::time::sleep(SOON / 2 + self.jitter(SOON)).await;
        }
    }

    /// Asks one member after the other, and one more beside who takes longer than most; `None`: nothing that
    /// counts, but that may change.
    async fn round<R: FromMember>(
        &self,
        view: &View,
        method: Method,
        counts: Counts,
        end: Instant,
        request: &impl Message,
    ) -> Option<Result<R, VolumeError>> {
        let message = Bytes::from(request.encode_to_vec());
        let class = CallCost::of(method, &message).class;
        let (mut whole, others) = members(view, self.next_turn());
        self.pace().order(&mut whole);
        let (mut whole, mut others) = (whole.into_iter(), others.into_iter());
        let ask = |disk, measure| self.read_at::<R>(disk, method, message.clone(), end, measure);
        let (mut told, mut asked) = (Told::default(), FuturesUnordered::new());
        asked.extend(whole.next().map(|disk| ask(disk, Some(class))));
        // A scan is too much to be asked for twice.
        let is_cheap = matches!(method, Method::Get | Method::Stat);
        let mut hedge_at = is_cheap.then(|| machine::now() + self.pace().patience(class));
        loop {
            let answered = match hedge_at {
                Some(at) => tokio::time::timeout_at(at.into(), asked.next()).await,
                None => Ok(asked.next().await),
            };
            match answered {
                Ok(Some((disk, answer))) => {
                    if let Some(ended) = told.take(self, disk, answer) {
                        return ended;
                    }
                }
                Ok(None) => match whole.next().or_else(|| others.next()) {
                    Some(disk) => asked.push(ask(disk, None)),
                    None => return told.end(counts),
                },
                Err(_) => {
                    hedge_at = None;
                    if whole.len() > 0 && self.pace().may_hedge() {
                        asked.extend(whole.next().map(|disk| ask(disk, None)));
                    }
                }
            }
        }
    }

    /// Asks one member; the first of a read is measured as what reads of its class take.
    async fn read_at<R: FromMember>(
        &self,
        disk: DiskId,
        method: Method,
        message: Bytes,
        end: Instant,
        measure: Option<CallClass>,
    ) -> (DiskId, Result<R, CallError>) {
        let mut timed = self.pace().time(disk, measure);
        let until = end.min(machine::now() + PATIENCE);
        let answer = self.call_once::<R>(disk, method, message, until).await;
        if !has_read(&answer) {
            timed.has_failed();
        }
        (disk, answer)
    }
}

/// Whether a member has looked for what was asked; who refuses at once is not fast.
fn has_read<R>(answer: &Result<R, CallError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(CallError::Failed(failure)) => failure.code() == Code::NotFound,
        Err(_) => false,
    }
}

/// What the members that were asked have said.
struct Told<R> {
    misses: u32,
    /// Of one that is not whole.
    maybe: Option<R>,
    corrupt: Option<VolumeError>,
    is_busy: bool,
}

impl<R> Default for Told<R> {
    fn default() -> Told<R> {
        Told { misses: 0, maybe: None, corrupt: None, is_busy: false }
    }
}

impl<R: FromMember> Told<R> {
    /// Takes an answer; what ends the round, if it does.
    fn take(
        &mut self,
        cluster: &Cluster,
        disk: DiskId,
        answer: Result<R, CallError>,
    ) -> Option<Option<Result<R, VolumeError>>> {
        let failure = match answer {
            Ok(reply) if is_in_sync(reply.role()) => return Some(Some(Ok(reply))),
            Ok(reply) => {
                self.maybe.get_or_insert(reply);
                return None;
            }
            Err(CallError::Failed(failure)) => failure,
            Err(_) => {
                cluster.suspect(disk);
                return None;
            }
        };
        if let Some(newer) = &failure.view
            && cluster.map().learn(newer)
        {
            return Some(None);
        }
        match failure.code() {
            Code::NotFound => self.misses += 1,
            Code::Busy => self.is_busy = true,
            Code::VolumeGone => return Some(Some(Err(VolumeError::VolumeGone))),
            Code::Corrupt => self.corrupt = Some(volume_error(CallError::Failed(failure))),
            Code::Denied | Code::Invalid | Code::TooLarge => {
                return Some(Some(Err(volume_error(CallError::Failed(failure)))));
            }
            _ => {}
        }
        (self.misses == 2).then_some(Some(Err(VolumeError::NotFound)))
    }

    /// What follows when all have been asked.
    fn end(self, counts: Counts) -> Option<Result<R, VolumeError>> {
        match (self.misses, self.maybe, self.corrupt) {
            // Who has no room now is there, and may say otherwise.
            (1.., _, None) if self.is_busy => None,
            (1.., _, None) => Some(Err(VolumeError::NotFound)),
            // Only a whole member knows what was deleted.
            (_, Some(reply), None) if counts == Counts::All => Some(Ok(reply)),
            (_, _, Some(corrupt)) => Some(Err(corrupt)),
            _ => None,
        }
    }
}

/// Members that are whole, and others that are up; which whole one comes first changes from call to call.
fn members(view: &View, turn: usize) -> (Vec<DiskId>, Vec<DiskId>) {
    let in_role = |wanted: bool| {
        let members = view.members.iter();
        let of_role = members.filter(move |(_, role)| role.is_up() && role.is_in_sync() == wanted);
        of_role.map(|(disk, _)| *disk).collect::<Vec<_>>()
    };
    let mut whole = in_role(true);
    if !whole.is_empty() {
        let by = turn % whole.len();
        whole.rotate_left(by);
    }
    (whole, in_role(false))
}

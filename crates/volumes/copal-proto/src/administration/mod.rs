//! Administration of a cluster: each request with its method and the struct of its reply.
//!
//! Requests are messages of `proto/copal/administration.proto`. Replies travel as JSON, which `copal --json`
//! prints field by field: a renamed field is another protocol.
//!
//! Invariants
//! - A reply that lacks a field is refused as a whole ([`ReplyError`]); fields that are unknown are passed
//!   over.
//! - A field that is null at times is still there: `nullable`.
//!
//! Not here: rights (`copal-server`), text for people (`copal`).

mod client;
mod disk;
mod group;
mod rebalance;
mod server;
mod status;

pub use client::{ClientCertificate, ClientList, ClientRights, RemovedClient};
pub use disk::{DiskList, DiskUsage};
pub use group::{
    AcceptReport, AwayMember, BoostReport, EventList, EventRecord, GroupList, GroupMembers, GroupStory,
    MemberRole, MemberStory,
};
pub use rebalance::{CancelReport, DiskForecast, MoveReport, PauseReport, PlannedMove, RebalancePlan};
pub use server::{AbsenceReport, DrainReport, JoinSecret, LossReport, RemovalReport};
pub use status::{
    ClusterStatus, GroupCounts, MasterStatus, RecoveryStatus, ServerStatus, TaskPriority, TaskStatus,
};

use crate::{Method, messages};
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

/// A request of an operator.
pub trait AdminRequest: Message + Default + 'static {
    /// Its call.
    const METHOD: Method;
    /// What the master answers.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

/// A reply that is none of this release.
#[derive(Debug, thiserror::Error)]
#[error("the master answers in another release's form: {0}")]
pub struct ReplyError(#[from] serde_json::Error);

/// The message that carries a reply.
/// # Errors
/// A number of the reply has no form in JSON.
pub fn reply_message<R: AdminRequest>(
    reply: &R::Reply,
) -> Result<messages::AdministrationReply, serde_json::Error> {
    Ok(messages::AdministrationReply { json: serde_json::to_string(reply)? })
}

/// The reply in a message.
/// # Errors
/// A field is missing, or of another type.
pub fn reply_of<R: AdminRequest>(message: &messages::AdministrationReply) -> Result<R::Reply, ReplyError> {
    Ok(serde_json::from_str(&message.json)?)
}

/// A field that may be null and may not be missing.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

macro_rules! requests {
    ($($request:ident => $reply:ty,)*) => {
        /// The messages of the requests.
        pub mod requests {
            pub use crate::messages::{$($request,)* WantedMove};
        }

        impl Method {
            /// Calls of operators to a master.
            pub const ADMINISTRATION: &[Method] = &[$(Method::$request),*];
        }

        $(impl AdminRequest for messages::$request {
            const METHOD: Method = Method::$request;
            type Reply = $reply;
        })*

        /// Whether JSON is the reply to a request, by its method. What is read can be written and read again.
        #[cfg(any(test, feature = "fuzz"))]
        pub(crate) const READERS: &[(Method, fn(&str) -> bool)] = &[
            $((Method::$request, |json| {
                let reply = serde_json::from_str::<$reply>(json);
                if let Ok(reply) = &reply {
                    let again = serde_json::to_string(reply).expect("a reply that was read");
                    assert!(serde_json::from_str::<$reply>(&again).is_ok(), "{again}");
                }
                reply.is_ok()
            })),*
        ];
    };
}

requests! {
    ShowStatus => ClusterStatus,
    ListGroups => GroupList,
    ShowGroup => GroupMembers,
    ExplainGroup => GroupStory,
    ListDisks => DiskList,
    ListEvents => EventList,
    ListClients => ClientList,
    PlanRebalance => RebalancePlan,
    DrawToken => JoinSecret,
    DrainServer => DrainReport,
    RemoveServer => RemovalReport,
    AnnounceAbsence => AbsenceReport,
    LoseServer => LossReport,
    BoostGroup => BoostReport,
    MoveGroup => MoveReport,
    CancelMove => CancelReport,
    ApplyRebalance => MoveReport,
    PauseRebalance => PauseReport,
    ForceAccept => AcceptReport,
    AddClient => ClientCertificate,
    RenewClient => ClientCertificate,
    RemoveClient => RemovedClient,
}

#[cfg(test)]
mod tests;

//! Administration of a cluster: requests of operators, each with its method and the struct of its reply.
//!
//! Requests are messages of `proto/copal/administration.proto`. Replies are sent as JSON, and `copal --json` prints
//! the same fields. So a renamed field changes the protocol.
//!
//! Invariants
//! - A reply that lacks a field is refused ([`ReplyError`]). Unknown fields are ignored.
//! - A nullable field is always present: `nullable`.
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
    /// Method of the request.
    const METHOD: Method;
    /// The master's reply.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
}

/// A reply in the form of another release.
#[derive(Debug, thiserror::Error)]
#[error("the master answers in another release's form: {0}")]
pub struct ReplyError(#[from] serde_json::Error);

/// Encodes a reply as a message.
/// # Errors
/// JSON cannot represent a number of the reply.
pub fn reply_message<R: AdminRequest>(
    reply: &R::Reply,
) -> Result<messages::AdministrationReply, serde_json::Error> {
    Ok(messages::AdministrationReply { json: serde_json::to_string(reply)? })
}

/// Decodes the reply in a message.
/// # Errors
/// A field is missing or has another type.
pub fn reply_of<R: AdminRequest>(message: &messages::AdministrationReply) -> Result<R::Reply, ReplyError> {
    Ok(serde_json::from_str(&message.json)?)
}

/// Deserializes a field that may be null but must be present.
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
            /// Methods of operators' requests to a master.
            pub const ADMINISTRATION: &[Method] = &[$(Method::$request),*];
        }

        $(impl AdminRequest for messages::$request {
            const METHOD: Method = Method::$request;
            type Reply = $reply;
        })*

        /// For each method: whether a JSON text is a valid reply. A valid reply can be written and read again.
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

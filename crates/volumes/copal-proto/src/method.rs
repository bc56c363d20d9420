//! The calls of the cluster, each with its number.

/// Refusal of a call that the server's release does not know. Earlier releases send the same text: callers recognise
/// an older release by it.
pub const UNKNOWN_CALL: &str = "this release knows no such call";

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A method. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Method {
            $($(#[$doc])* $name = $number,)*
        }

        impl Method {
            /// All of them.
            pub const ALL: &[Method] = &[$(Method::$name),*];

            /// Its name in logs and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Method::$name => stringify!($name),)*
                }
            }

            /// The method with this number.
            pub fn of_number(number: u16) -> Option<Method> {
                match number {
                    $($number => Some(Method::$name),)*
                    _ => None,
                }
            }
        }
    };
}

methods! {
    /// Any process to any process: answer, nothing else.
    Ping = 1,
    /// Client to data server: stage one piece of a larger body.
    PutPiece = 16,
    /// Client to data server: create a file.
    Put = 17,
    /// Client to data server: confirm in this epoch that the replica has a file.
    Confirm = 18,
    /// Client to data server: delete a file by its id.
    Delete = 19,
    /// Client to data server: read part of a file.
    Get = 20,
    /// Client to data server: read the head of a file.
    Stat = 21,
    /// Client to data server: list heads in the order of their names.
    List = 22,
    /// Client to data server: state of a file id: live, deleted or unknown.
    Find = 23,
    /// Client to data server: files and bytes of a volume.
    Totals = 24,
    /// Client to data server: read a staged piece.
    GetPiece = 25,
    /// Operator to data server: count and hash a part of a group.
    Verify = 26,
    /// Client or replica to replica: begin a chain with a file or a piece.
    PutChain = 27,
    /// Client or replica to replica: bytes of a chain.
    ChainData = 28,
    /// Client or replica to replica: end of a chain's bytes.
    ChainCommit = 29,
    /// Client to data server: read several ranges of a file.
    GetRanges = 30,
    /// Replica to replica: open a snapshot of a group.
    SyncOpen = 32,
    /// Replica to replica: read entries of a snapshot.
    SyncNext = 33,
    /// Replica to replica: read a file of a snapshot.
    SyncFetch = 34,
    /// Replica to replica: close a snapshot.
    SyncClose = 35,
    /// Replica to replica: read operations of a snapshot.
    SyncJournal = 37,
    /// Replica to replica: find the live file of a name in a snapshot.
    SyncName = 38,
    /// Replica to replica: exchange sealed buckets and their digests.
    Gossip = 39,
    /// Replica to replica: read operations of a sealed bucket.
    JournalOf = 40,
    /// Replica to replica: find the groups in which nothing was missed.
    Compare = 41,
    /// Master to data server: ask for the newest term and map version that it knows.
    WhatSeen = 42,
    /// Master to replica, by an operator's order: accept the data of this replica as complete.
    AcceptAll = 43,
    /// Master to replica: set the state of a volume: live, being removed, removed.
    VolumeState = 36,
    /// Client to master: find the volume at a path.
    Resolve = 48,
    /// Client to master: create a volume.
    Mkdir = 49,
    /// Client to master: remove a volume.
    Rmdir = 50,
    /// Client to master: move a volume to another path.
    Rename = 51,
    /// Client to master: list the volumes below a path.
    ListDirs = 52,
    /// Any process to master: wait for changed views and addresses.
    WatchMap = 53,
    /// Any process to master: report a data server that does not answer.
    Suspect = 54,
    /// Client to master: whether a volume was ever created.
    Known = 56,
    /// Client to master: request a permit.
    Permit = 57,
    /// Client to master: take, renew or release the writer lease below a path.
    WriterLease = 58,
    /// New data server to master: join with a token.
    Join = 64,
    /// Data server to master: report its state, every second.
    Heartbeat = 65,
    /// Data server to master: report replicas that are in sync.
    BecomeWhole = 66,
    /// Any process to master: whether it is the leader.
    Leading = 67,
    /// New master to the leader: join with a token.
    JoinMaster = 68,
    /// Data server or client to master: renew the certificate before it expires.
    Renew = 69,
    /// Operator's command as text, of earlier releases. Refused.
    Ask = 80,
    /// Agent to agent: exchange names and releases, as the first call on a connection.
    AgentHello = 96,
    /// Agent to agent: send a batch of ids to the owner of their partition.
    AgentAsk = 97,
    /// Agent to agent: marker that the sender asks nothing more in a round.
    AgentMark = 98,
    /// Agent to agent: fetch answers that are ready.
    AgentTake = 99,
    /// Operator or agent to agent: run a command.
    AgentCommand = 100,
    /// Operator to master: health, servers, groups and tasks.
    ShowStatus = 112,
    /// Operator to master: all groups and their members.
    ListGroups = 113,
    /// Operator to master: a group and its members.
    ShowGroup = 114,
    /// Operator to master: why a group lacks a replica in sync.
    ExplainGroup = 115,
    /// Operator to master: disks, their usage and free space.
    ListDisks = 116,
    /// Operator to master: events.
    ListEvents = 117,
    /// Operator to master: named clients and their rights.
    ListClients = 118,
    /// Operator to master: plan moves that balance the disks.
    PlanRebalance = 119,
    /// Operator to master: draw a token with which a server or a master joins.
    DrawToken = 120,
    /// Operator to master: drain a server, or stop that.
    DrainServer = 121,
    /// Operator to master: remove a server that holds no group.
    RemoveServer = 122,
    /// Operator to master: announce that a server will be down for a while.
    AnnounceAbsence = 123,
    /// Operator to master: declare a server that is down lost.
    LoseServer = 124,
    /// Operator to master: copy a group before others of its age.
    BoostGroup = 125,
    /// Operator to master: move a replica of a group.
    MoveGroup = 126,
    /// Operator to master: end the move of a group.
    CancelMove = 127,
    /// Operator to master: carry out a plan of moves.
    ApplyRebalance = 128,
    /// Operator to master: start no further moves.
    PauseRebalance = 129,
    /// Operator to master: continue a group from one replica.
    ForceAccept = 130,
    /// Operator to master: add a named client.
    AddClient = 131,
    /// Operator to master: renew the certificate of a named client.
    RenewClient = 132,
    /// Operator to master: remove a named client.
    RemoveClient = 133,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_finds_its_method() {
        for &method in Method::ALL {
            assert_eq!(Method::of_number(method as u16), Some(method), "{}", method.name());
        }
        assert_eq!(Method::of_number(0), None);
    }
}

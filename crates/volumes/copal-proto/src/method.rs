//! The calls of the cluster, each with its number.

/// The refusal of a call whose number the server's release does not know. Earlier releases send the same:
/// callers tell an older release by it.
pub const UNKNOWN_CALL: &str = "this release knows no such call";

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A call. Numbers are never used twice.
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

            /// The call with this number.
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
    /// Nothing: whether the other side answers.
    Ping = 1,
    /// Client to data server: one piece of a larger body.
    PutPiece = 16,
    /// Client to data server: a file.
    Put = 17,
    /// Client to data server: whether a file is held in this epoch.
    Confirm = 18,
    /// Client to data server: delete a file by its id.
    Delete = 19,
    /// Client to data server: part of a file.
    Get = 20,
    /// Client to data server: the head of a file.
    Stat = 21,
    /// Client to data server: heads in the order of their names.
    List = 22,
    /// Client to data server: what became of a file id.
    Find = 23,
    /// Client to data server: files and bytes of a volume.
    Totals = 24,
    /// Client to data server: a piece that is staged.
    GetPiece = 25,
    /// Operator to data server: a part of a group, counted and hashed.
    Verify = 26,
    /// Client or member to member: a file or a piece that goes on to others.
    PutChain = 27,
    /// Client or member to member: bytes of a chain.
    ChainData = 28,
    /// Client or member to member: the end of a chain's bytes.
    ChainCommit = 29,
    /// Member to member: a snapshot of a group.
    SyncOpen = 32,
    /// Member to member: entries of a snapshot.
    SyncNext = 33,
    /// Member to member: a file of a snapshot.
    SyncFetch = 34,
    /// Member to member: the snapshot is not needed any more.
    SyncClose = 35,
    /// Member to member: operations of a snapshot.
    SyncJournal = 37,
    /// Member to member: the live file of a name in a snapshot.
    SyncName = 38,
    /// Member to member: what is closed, and digests of it.
    Gossip = 39,
    /// Member to member: operations of a closed bucket.
    JournalOf = 40,
    /// Member to member: whether anything was missed, in many groups.
    Compare = 41,
    /// Master to data server: the newest reign and map that it has heard of.
    WhatSeen = 42,
    /// Master to member, by an operator's order: go on from what is there.
    AcceptAll = 43,
    /// Master to member: a volume is removed, or not any more.
    VolumeState = 36,
    /// Client to master: the volume at a path.
    Resolve = 48,
    /// Client to master: a new volume.
    Mkdir = 49,
    /// Client to master: a volume is removed.
    Rmdir = 50,
    /// Client to master: a volume moves.
    Rename = 51,
    /// Client to master: volumes below one.
    ListDirs = 52,
    /// Anybody to master: views and addresses, when they change.
    WatchMap = 53,
    /// Anybody to master: a data server does not answer.
    Suspect = 54,
    /// Client to master: whether a volume was ever made.
    Known = 56,
    /// Client to master: what it may do, signed.
    Permit = 57,
    /// Client to master: the right to write below a path, taken, renewed or given back.
    WriterLease = 58,
    /// A new data server to master, with a token.
    Join = 64,
    /// Data server to master, every second.
    Heartbeat = 65,
    /// Data server to master: it has everything of a group.
    BecomeWhole = 66,
    /// Anybody to master: whether it leads.
    Leading = 67,
    /// A new master to the one that leads, with a token.
    JoinMaster = 68,
    /// Data server or client to master: another certificate before its own ends.
    Renew = 69,
    /// Of earlier releases: a question or an order of an operator, in words. Refused.
    Ask = 80,
    /// Agent to agent: name and release, the first call on a connection.
    AgentHello = 96,
    /// Agent to agent: a batch of ids for the owner of their partition.
    AgentAsk = 97,
    /// Agent to agent: the sender has asked all it will ask in a round.
    AgentMark = 98,
    /// Agent to agent: answers that are ready.
    AgentTake = 99,
    /// Operator or agent to agent: a command.
    AgentCommand = 100,
    /// Operator to master: health, servers, groups and tasks.
    ShowStatus = 112,
    /// Operator to master: all groups and their members.
    ListGroups = 113,
    /// Operator to master: a group and its members.
    ShowGroup = 114,
    /// Operator to master: why a group lacks a copy.
    ExplainGroup = 115,
    /// Operator to master: disks, how full they are and what they take.
    ListDisks = 116,
    /// Operator to master: events.
    ListEvents = 117,
    /// Operator to master: named clients and their rights.
    ListClients = 118,
    /// Operator to master: moves that would make disks equally full.
    PlanRebalance = 119,
    /// Operator to master: a token with which a server or a master joins.
    DrawToken = 120,
    /// Operator to master: empty a server, or stop that.
    DrainServer = 121,
    /// Operator to master: remove a server that holds no group.
    RemoveServer = 122,
    /// Operator to master: a server will be away for a while.
    AnnounceAbsence = 123,
    /// Operator to master: give a server up that is away.
    LoseServer = 124,
    /// Operator to master: put the copy of a group first.
    BoostGroup = 125,
    /// Operator to master: move a copy of a group.
    MoveGroup = 126,
    /// Operator to master: end the move of a group.
    CancelMove = 127,
    /// Operator to master: carry out a plan of moves.
    ApplyRebalance = 128,
    /// Operator to master: begin no more moves.
    PauseRebalance = 129,
    /// Operator to master: a group goes on from one replica.
    ForceAccept = 130,
    /// Operator to master: add a named client.
    AddClient = 131,
    /// Operator to master: a new certificate of a named client.
    RenewClient = 132,
    /// Operator to master: take a named client away.
    RemoveClient = 133,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_call() {
        for &method in Method::ALL {
            assert_eq!(Method::of_number(method as u16), Some(method), "{}", method.name());
        }
        assert_eq!(Method::of_number(0), None);
    }
}

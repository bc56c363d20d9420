//! State of a server, kind of a membership, and the role of a member that follows from both.
//!
//! Each question about a state is an exhaustive `match` in this file.
//!
//! Not here: the questions about a role (`copal_volume::group::Role`), changes of a state
//! (`membership::servers`).

use copal_volume::group::Role;

/// State of a server or disk (the paper's N, R, F).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Up, and all its groups are in sync.
    Normal,
    /// Up, and some of its groups may lack operations.
    Recovering,
    /// Down.
    Failed,
    /// Given up by an operator: it is not let back in.
    Lost,
}

impl ServerState {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            ServerState::Normal => "N",
            ServerState::Recovering => "R",
            ServerState::Failed => "F",
            ServerState::Lost => "L",
        }
    }

    /// Whether it takes part in no operation.
    pub fn is_away(self) -> bool {
        match self {
            ServerState::Failed | ServerState::Lost => true,
            ServerState::Normal | ServerState::Recovering => false,
        }
    }

    /// Whether it is down and may return.
    pub fn is_down(self) -> bool {
        match self {
            ServerState::Failed => true,
            ServerState::Normal | ServerState::Recovering | ServerState::Lost => false,
        }
    }

    /// Whether an operator gave it up.
    pub fn is_lost(self) -> bool {
        match self {
            ServerState::Lost => true,
            ServerState::Normal | ServerState::Recovering | ServerState::Failed => false,
        }
    }

    /// Whether all its groups are in sync, by the map.
    pub fn is_in_sync(self) -> bool {
        match self {
            ServerState::Normal => true,
            ServerState::Recovering | ServerState::Failed | ServerState::Lost => false,
        }
    }

    /// The role of a member in a view, by the state of its server and the kind of its membership.
    pub(crate) fn role(self, kind: MemberKind) -> Role {
        match (self, kind) {
            (ServerState::Failed | ServerState::Lost, _) => Role::Failed,
            (_, MemberKind::Joining) => Role::Joining,
            (ServerState::Recovering, MemberKind::Full | MemberKind::Leaving) => Role::Recovering,
            (ServerState::Normal, MemberKind::Full | MemberKind::Leaving) => Role::Normal,
        }
    }

    /// Its word in reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ServerState::Normal => "up",
            ServerState::Recovering => "recovering",
            ServerState::Failed => "down",
            ServerState::Lost => "lost",
        }
    }

    pub(crate) fn of_letter(letter: &str) -> Option<ServerState> {
        match letter {
            "N" => Some(ServerState::Normal),
            "R" => Some(ServerState::Recovering),
            "F" => Some(ServerState::Failed),
            "L" => Some(ServerState::Lost),
            _ => None,
        }
    }
}

/// Kind of a disk's membership in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Permanent member.
    Full,
    /// New member, to which the group is being copied.
    Joining,
    /// Member that leaves when another one has taken its place.
    Leaving,
}

impl MemberKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            MemberKind::Full => "full",
            MemberKind::Joining => "joining",
            MemberKind::Leaving => "leaving",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<MemberKind> {
        [MemberKind::Full, MemberKind::Joining, MemberKind::Leaving]
            .into_iter()
            .find(|kind| kind.word() == word)
    }
}

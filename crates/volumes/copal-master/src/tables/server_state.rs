//! State of a server, kind of a membership, and the role that both give a member in a view.
//!
//! Each question about a state is an exhaustive `match` in this file.
//!
//! Not here: the questions about a role (`copal_volume::group::Role`), changes of a state (`servers`).

use copal_volume::group::Role;

/// State of a server or disk (the paper's N, R, F).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// There, and whole.
    Normal,
    /// There, and some of its groups may lack something.
    Recovering,
    /// Away.
    Failed,
    /// Away for good, by an operator's word: it is not let back in.
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

    /// Whether it takes part in nothing now.
    pub fn is_away(self) -> bool {
        match self {
            ServerState::Failed | ServerState::Lost => true,
            ServerState::Normal | ServerState::Recovering => false,
        }
    }

    /// Whether it is away and may come back.
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

    /// Whether all its groups have everything, as far as the map tells.
    pub fn is_in_sync(self) -> bool {
        match self {
            ServerState::Normal => true,
            ServerState::Recovering | ServerState::Failed | ServerState::Lost => false,
        }
    }

    /// The role of a member in a view: the state of its server, and how the disk is a member.
    pub(crate) fn role(self, kind: MemberKind) -> Role {
        match (self, kind) {
            (ServerState::Failed | ServerState::Lost, _) => Role::Failed,
            (_, MemberKind::Joining) => Role::Joining,
            (ServerState::Recovering, MemberKind::Full | MemberKind::Leaving) => Role::Recovering,
            (ServerState::Normal, MemberKind::Full | MemberKind::Leaving) => Role::Normal,
        }
    }

    /// The word for it in what is shown.
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

/// How a disk is a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// A member as any.
    Full,
    /// New, being copied to.
    Joining,
    /// To go when another has taken its place.
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

//! State of one member of a group, and the questions that other code asks about it.
//!
//! Each question is an exhaustive `match` in this file. A new state fails to compile here; elsewhere no comparison
//! takes it silently for one of the others.
//!
//! Paper:  beanfs §5.1 (replica states)
//! Design: docs/design/cluster.md#rules VOL-15
//! Not here: the state that a new view gives a member (`own_state`), numbers on the wire (`copal-proto`).

/// Role of one member of a group (the paper's N, R, F, M).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// In sync: has every acknowledged operation.
    Normal,
    /// Recovering: was down, accepts all operations, and lacks those it missed.
    Recovering,
    /// Down.
    Failed,
    /// Joining: is new, accepts all operations, and is being copied to.
    Joining,
}

impl Role {
    /// Each state once, in the order in which lists show them.
    pub const ALL: [Role; 4] = [Role::Normal, Role::Recovering, Role::Failed, Role::Joining];

    /// Has everything that was acknowledged: its answers alone count, and others copy from it.
    pub fn is_in_sync(self) -> bool {
        match self {
            Role::Normal => true,
            Role::Recovering | Role::Failed | Role::Joining => false,
        }
    }

    /// Answers calls: it is not away.
    pub fn is_up(self) -> bool {
        match self {
            Role::Normal | Role::Recovering | Role::Joining => true,
            Role::Failed => false,
        }
    }

    /// Takes operations: none holds without its word (VOL-12).
    pub fn takes_writes(self) -> bool {
        match self {
            Role::Normal | Role::Recovering | Role::Joining => true,
            Role::Failed => false,
        }
    }

    /// Was in sync before, and copies what it missed or lost.
    pub fn is_recovering(self) -> bool {
        match self {
            Role::Recovering => true,
            Role::Normal | Role::Failed | Role::Joining => false,
        }
    }

    /// Is new, and has never been in sync.
    pub fn is_joining(self) -> bool {
        match self {
            Role::Joining => true,
            Role::Normal | Role::Recovering | Role::Failed => false,
        }
    }

    /// The state once the member may lack something.
    #[must_use]
    pub fn out_of_sync(self) -> Role {
        match self {
            Role::Normal => Role::Recovering,
            Role::Recovering | Role::Failed | Role::Joining => self,
        }
    }

    /// The paper's letter.
    pub fn letter(self) -> char {
        match self {
            Role::Normal => 'N',
            Role::Recovering => 'R',
            Role::Failed => 'F',
            Role::Joining => 'M',
        }
    }

    /// The state with this letter.
    pub fn of_letter(letter: char) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.letter() == letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stand_for_states() {
        for letter in ['N', 'R', 'F', 'M'] {
            assert_eq!(Role::of_letter(letter).unwrap().letter(), letter);
        }
        assert_eq!(Role::of_letter('X'), None);
    }

    #[test]
    fn questions_agree_with_each_other() {
        for role in Role::ALL {
            assert!(role.is_up() || !role.takes_writes(), "{role:?}: a member that is away takes no writes");
            assert!(role.is_up() || !role.is_in_sync(), "{role:?}: a member that is away lacks something");
            assert!(!role.out_of_sync().is_in_sync(), "{role:?}");
            assert_eq!(role.out_of_sync().is_up(), role.is_up(), "{role:?}");
            assert!(!role.is_recovering() || !role.is_joining(), "{role:?}");
        }
    }
}

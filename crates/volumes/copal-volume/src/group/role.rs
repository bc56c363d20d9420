//! Role of one member of a group, and the questions that other code asks about it.
//!
//! Each question is an exhaustive `match` in this file. A new role fails to compile here, so no comparison
//! elsewhere can silently confuse it with another one.
//!
//! Paper:  beanfs §5.1 (replica states)
//! Design: docs/design/cluster.md#rules VOL-15
//! Not here: the role that a new view gives a member (`own_state`), numbers on the wire (`copal-proto`).

/// Role of one member of a group (the paper's N, R, F, M).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// In sync: has every acknowledged operation.
    Normal,
    /// Recovering: was down, accepts all operations, and lacks some of those completed meanwhile.
    Recovering,
    /// Down.
    Failed,
    /// Joining: is new, accepts all operations, and is the target of a copy.
    Joining,
}

impl Role {
    /// Each role once, in the order of lists.
    pub const ALL: [Role; 4] = [Role::Normal, Role::Recovering, Role::Failed, Role::Joining];

    /// Whether it has every acknowledged operation: only its answers count, and others copy from it.
    pub fn is_in_sync(self) -> bool {
        match self {
            Role::Normal => true,
            Role::Recovering | Role::Failed | Role::Joining => false,
        }
    }

    /// Whether it answers calls.
    pub fn is_up(self) -> bool {
        match self {
            Role::Normal | Role::Recovering | Role::Joining => true,
            Role::Failed => false,
        }
    }

    /// Whether it accepts operations: none completes without its acknowledgement (VOL-12).
    pub fn takes_writes(self) -> bool {
        match self {
            Role::Normal | Role::Recovering | Role::Joining => true,
            Role::Failed => false,
        }
    }

    /// Whether it was in sync before, and copies the operations that it lacks.
    pub fn is_recovering(self) -> bool {
        match self {
            Role::Recovering => true,
            Role::Normal | Role::Failed | Role::Joining => false,
        }
    }

    /// Whether it is new and was never in sync.
    pub fn is_joining(self) -> bool {
        match self {
            Role::Joining => true,
            Role::Normal | Role::Recovering | Role::Failed => false,
        }
    }

    /// The role of a member that may lack an operation.
    #[must_use]
    pub fn out_of_sync(self) -> Role {
        match self {
            Role::Normal => Role::Recovering,
            Role::Recovering | Role::Failed | Role::Joining => self,
        }
    }

    /// The letter of the paper.
    pub fn letter(self) -> char {
        match self {
            Role::Normal => 'N',
            Role::Recovering => 'R',
            Role::Failed => 'F',
            Role::Joining => 'M',
        }
    }

    /// The role with this letter.
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
            assert!(
                role.is_up() || !role.takes_writes(),
                "{role:?}: a member that is down accepts no writes"
            );
            assert!(role.is_up() || !role.is_in_sync(), "{role:?}: a member that is down is out of sync");
            assert!(!role.out_of_sync().is_in_sync(), "{role:?}");
            assert_eq!(role.out_of_sync().is_up(), role.is_up(), "{role:?}");
            assert!(!role.is_recovering() || !role.is_joining(), "{role:?}");
        }
    }
}

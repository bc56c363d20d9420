//! What an open handle may do to a repository.
//!
//! Not here: the keys behind them (`keys`), how they are kept (`role_key`), what a record needs
//! (`catalog::record`).

use crate::keys::role::Role;
use crate::request::error::{Error, Result};

/// What an open repository may be used for, by the password or key that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The most it may do.
    pub highest: Role,
    /// Whether the repository has had role keys: then what takes something away has to be signed.
    pub are_split: bool,
}

impl Roles {
    /// Whether this role is among them.
    pub fn has(self, role: Role) -> bool {
        role <= self.highest
    }

    /// Refuses what needs another role.
    /// # Errors
    /// `Denied`.
    pub(crate) fn require(self, role: Role) -> Result<()> {
        if self.has(role) {
            return Ok(());
        }
        let reason = format!(
            "the key given is for {}, and this needs one for {role}, or the password; nothing was changed",
            self.highest
        );
        Err(Error::Denied { reason })
    }
}

//! The rights of an open handle.
//!
//! Not here: the keys behind them (`keys`), how they are stored (`role_key`), the signature of a record
//! (`catalog::record`).

use crate::keys::role::Role;
use crate::request::error::{Error, Result};

/// Rights in an open repository, given by the password or key that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The highest role of the handle.
    pub highest: Role,
    /// Whether the repository has had role keys: then each record that removes something must be signed.
    pub are_split: bool,
}

impl Roles {
    /// Whether the handle has this role.
    pub fn has(self, role: Role) -> bool {
        role <= self.highest
    }

    /// Refuses an operation that needs a higher role.
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

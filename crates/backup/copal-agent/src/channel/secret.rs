//! The secret that the members of a domain share.

use std::fmt;
use zeroize::Zeroizing;

/// 32 bytes that every member of a domain holds and nobody else. Wiped when dropped, and never printed.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Takes the bytes: derived from the domain's key, or random.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

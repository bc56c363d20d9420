//! Roles, and the key file of a role.
//!
//! Not here: the rights of an open handle (`roles`), encoding of key files and slots (`role_key`).

use std::fmt;
use zeroize::Zeroizing;

const NAME: &str = "copal v1 role key id";

/// Rights that a key gives. Each role includes the rights of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Backs up and reads; removes nothing.
    Backup,
    /// Forgets, holds and frees snapshots, removes VMs, repairs.
    Delete,
    /// Adds and removes keys. A password has this role.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Backup, Role::Delete, Role::Admin];

    /// Its name on the command line and in key files.
    pub fn name(self) -> &'static str {
        match self {
            Role::Backup => "backup",
            Role::Delete => "delete",
            Role::Admin => "admin",
        }
    }

    /// The role with that name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Role::Backup => 1,
            Role::Delete => 2,
            Role::Admin => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.code() == code)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Public identifier of a key; it reveals nothing about the secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

impl KeyId {
    /// Name of the file of the key's slot.
    pub(crate) fn file_name(self) -> String {
        format!("key.{self}")
    }

    /// The key whose slot file has that name.
    pub(crate) fn of_file_name(name: &[u8]) -> Option<KeyId> {
        let digits = std::str::from_utf8(name).ok()?.strip_prefix("key.")?;
        unhex(digits).map(KeyId).filter(|id| id.to_string() == digits)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Content of a key file. Wiped from memory when dropped; `Debug` shows its id alone.
#[derive(Clone)]
pub struct RoleKey {
    pub(crate) role: Role,
    pub(crate) secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for RoleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoleKey({} {})", self.role, self.id())
    }
}

impl RoleKey {
    /// Its identifier, derived from the secret.
    pub fn id(&self) -> KeyId {
        let name = blake3::derive_key(NAME, &self.secret[..]);
        KeyId(*name.first_chunk().expect("32 bytes begin with 8"))
    }

    /// The role named in the key file. The slot decides which role the key really opens.
    pub fn role(&self) -> Role {
        self.role
    }
}

/// Decodes `N` bytes from 2 `N` hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

//! Role keys: the key file given to a host or person, and the slot of the catalog that it opens.
//!
//! Format: docs/formats/backup-key-slot.md v2
//! Invariants
//! - A slot for backup or delete holds the derived keys of its role, never the master key.
//! - A secret is 32 random bytes and opens one slot. It cannot be guessed, so no slow hash is needed.
//! - A key without the admin role cannot make a slot that an admin accepts as one of the repository's.
//!
//! Not here: passwords (`key_slot`), adding and removing keys (`key_list`).

use crate::keys::role::{KeyId, Role, RoleKey, unhex};
use crate::keys::{BUNDLE_BYTES, DomainKeys, MAC_BYTES, host_signer, random};
use crate::request::error::{Error, Result};
use crate::request::peers::HostKey;
use aes_gcm::aead::{AeadInOut, inout::InOutBuf};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALKEY", name: "key slot", oldest: 2, version: 2, known_flags: 0 };

const KIND_ROLE: u8 = 3;
const TAG_BYTES: usize = 16;
/// Clear part of the body: kind, role, zeros, key id, salt, domain.
const CLEAR_BYTES: usize = 44;

const WRAP: &str = "copal v1 role key slot";
/// First words of a key file.
const FILE_WORDS: [&str; 2] = ["copal-key", "1"];

impl RoleKey {
    /// Draws a fresh key. It opens nothing until a slot is made for it.
    pub(crate) fn draw(role: Role) -> Result<RoleKey> {
        let secret = Zeroizing::new(random()?);
        Ok(RoleKey { role, secret })
    }

    #[cfg(test)]
    pub(crate) fn of_secret(role: Role, secret: [u8; 32]) -> RoleKey {
        let secret = Zeroizing::new(secret);
        RoleKey { role, secret }
    }

    /// Reads a key file.
    /// # Errors
    /// `Invalid`: the text is no key file, or was changed.
    pub fn parse(text: &str) -> Result<RoleKey> {
        let invalid =
            |reason: &str| Error::Invalid { reason: format!("this is no key file of Copal: {reason}") };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [magic, version, role, id, secret] = words[..] else {
            return Err(invalid("a key file is one line of five words"));
        };
        if magic != FILE_WORDS[0] {
            return Err(invalid("it does not begin with copal-key"));
        }
        if version != FILE_WORDS[1] {
            return Err(invalid("its version is not known to this program; use a newer copal"));
        }
        let role = Role::from_name(role).ok_or_else(|| invalid("its role is not known"))?;
        let secret =
            unhex(secret).map(Zeroizing::new).ok_or_else(|| invalid("its secret is not 64 digits"))?;
        let key = RoleKey { role, secret };
        match unhex(id) == Some(key.id().0) {
            true => Ok(key),
            false => Err(invalid("its secret is not the one that was written")),
        }
    }

    /// The text of its key file.
    pub fn text(&self) -> Zeroizing<String> {
        use std::fmt::Write;
        let mut text = Zeroizing::new(String::with_capacity(160));
        let [magic, version] = FILE_WORDS;
        // Writing to a string does not fail. The capacity suffices, so the string does not grow and leaves no
        // copy of the secret.
        let _ = write!(text, "{magic} {version} {} {} ", self.role, self.id());
        for byte in *self.secret {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        text
    }

    /// The public half of the signing key of the host that holds this key.
    pub(crate) fn host_key(&self) -> HostKey {
        HostKey(host_signer(&self.secret).public())
    }

    /// The key that encrypts its slot.
    fn wrapping(&self, salt: &[u8; 16]) -> Zeroizing<[u8; 32]> {
        let secret = Zeroizing::new([&self.secret[..], salt].concat());
        Zeroizing::new(blake3::derive_key(WRAP, &secret))
    }
}

/// Encodes the slot of `key`. `salt` is fresh for every slot.
/// # Errors
/// `Denied`: `keys` are not those of an admin.
pub(crate) fn encode(key: &RoleKey, domain: [u8; 16], salt: [u8; 16], keys: &DomainKeys) -> Result<Vec<u8>> {
    keys.roles().require(Role::Admin)?;
    let mut secret = match key.role {
        Role::Admin => keys.master().map(|master| Zeroizing::new(master.to_vec())),
        role => keys.bundle(role),
    }
    .expect("an admin has the keys of every role");
    let mut bytes = vec![0; ENVELOPE_LEN];
    bytes.put_u8(KIND_ROLE);
    bytes.put_u8(key.role.code());
    bytes.put_zeros(2);
    bytes.put_bytes(&key.id().0);
    bytes.put_bytes(&salt);
    bytes.put_bytes(&domain);
    let cipher = Aes256Gcm::new((&*key.wrapping(&salt)).into());
    let tag: [u8; TAG_BYTES] = cipher
        .encrypt_inout_detached(&Nonce::default(), &bytes[ENVELOPE_LEN..], InOutBuf::from(&mut secret[..]))
        .expect("a few keys are far below the 64 GiB that GCM can encrypt")
        .into();
    bytes.put_bytes(&secret);
    bytes.put_bytes(&tag);
    let mac = keys.admin_mac(&key.id().file_name(), &bytes[ENVELOPE_LEN..]);
    bytes.put_bytes(&mac.expect("an admin has that key"));
    Envelope::seal(&FORMAT, 0, 0, &mut bytes);
    Ok(bytes)
}

/// The fields of a slot that has not been decrypted yet.
#[derive(Debug)]
pub(crate) struct RoleSlot<'a> {
    pub(crate) role: Role,
    pub(crate) id: KeyId,
    pub(crate) domain: [u8; 16],
    salt: [u8; 16],
    clear: &'a [u8],
    encrypted: &'a [u8],
    tag: [u8; TAG_BYTES],
    sealed: &'a [u8],
    mac: [u8; MAC_BYTES],
}

/// Decodes a slot without decrypting it.
pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<RoleSlot<'_>, String> {
    let (_, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
    let text = |error: DecodeError| error.to_string();
    let mut input = Reader::new(body);
    let kind = input.u8().map_err(text)?;
    let role = input.u8().map_err(text)?;
    if kind != KIND_ROLE {
        return Err(format!("key slots of kind {kind} are not known to this program; use a newer one"));
    }
    let role = Role::from_code(role).ok_or("its role is not known to this program; use a newer one")?;
    input.zeros(2).map_err(text)?;
    let id = KeyId(input.array().map_err(text)?);
    let salt = input.array().map_err(text)?;
    let domain = input.array().map_err(text)?;
    let length = match role {
        Role::Admin => 32,
        Role::Backup | Role::Delete => BUNDLE_BYTES,
    };
    let encrypted = input.bytes(length).map_err(text)?;
    let tag = input.array().map_err(text)?;
    let sealed = &body[..CLEAR_BYTES + length + TAG_BYTES];
    let mac = input.array().map_err(text)?;
    input.finish().map_err(text)?;
    Ok(RoleSlot { role, id, domain, salt, clear: &body[..CLEAR_BYTES], encrypted, tag, sealed, mac })
}

impl RoleSlot<'_> {
    /// Decrypts the keys of the slot; `None` if the slot was made for another key.
    pub(crate) fn open(&self, key: &RoleKey) -> Option<DomainKeys> {
        let mut secret = Zeroizing::new(self.encrypted.to_vec());
        let cipher = Aes256Gcm::new((&*key.wrapping(&self.salt)).into());
        let (nonce, tag) = (Nonce::default(), Tag::from(self.tag));
        cipher.decrypt_inout_detached(&nonce, self.clear, InOutBuf::from(&mut secret[..]), &tag).ok()?;
        let keys = match self.role {
            Role::Admin => secret[..].try_into().ok().map(DomainKeys::derive),
            role => secret[..].try_into().ok().map(|bundle| DomainKeys::of_bundle(role, bundle)),
        };
        keys.map(|keys| keys.with_host(host_signer(&key.secret)))
    }

    /// Whether an admin of the repository made the slot. `keys` must be those of an admin.
    pub(crate) fn is_of(&self, keys: &DomainKeys) -> bool {
        let mac = keys.admin_mac(&self.id.file_name(), self.sealed);
        mac.is_some_and(|mac| bool::from(mac.ct_eq(&self.mac)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_round_trips_and_a_changed_one_is_refused() {
        for role in Role::ALL {
            let key = RoleKey::of_secret(role, [0x5e; 32]);
            let text = key.text();
            let read = RoleKey::parse(&text).unwrap();
            assert_eq!((read.role(), read.id()), (role, key.id()));
            assert_eq!(read.secret, key.secret);
            assert!(text.ends_with('\n') && text.lines().count() == 1, "{}", text.len());
            let shown = format!("{key:?}");
            assert!(!shown.contains("5e5e5e"), "{shown}");
            for cut in 0..text.len() - 1 {
                assert!(RoleKey::parse(&text[..cut]).is_err(), "{cut}");
            }
        }
        for (text, part) in [
            ("", "five words"),
            ("a b c d e", "copal-key"),
            ("copal-key 2 backup a b", "newer"),
            ("copal-key 1 king a b", "role"),
            ("copal-key 1 backup a b", "64 digits"),
            (
                "copal-key 1 backup 0011223344556677 5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e",
                "not the one",
            ),
        ] {
            let error = RoleKey::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_slot_opens_only_with_its_key_and_holds_the_keys_of_its_role() {
        let keys = DomainKeys::derive(&[0x11; 32]);
        for role in Role::ALL {
            let key = RoleKey::of_secret(role, [0x5e; 32]);
            let bytes = encode(&key, [0xd0; 16], [0x5a; 16], &keys).unwrap();
            let slot = decode(&bytes).unwrap();
            assert!(slot.is_of(&keys) && !slot.is_of(&DomainKeys::derive(&[0x12; 32])));
            let opened = slot.open(&key).unwrap();
            assert_eq!(opened.roles().highest, role);
            assert_eq!(opened.master().is_some(), role == Role::Admin);
            assert_eq!(opened.mac("a", b"b"), keys.mac("a", b"b"));
            assert_eq!(opened.agents(), keys.agents());
            assert_eq!(opened.public(), keys.public());
            assert!(slot.open(&RoleKey::of_secret(role, [0x5f; 32])).is_none(), "another key");
            // A role without all the needed keys cannot make a slot.
            if role != Role::Admin {
                assert!(encode(&key, [0xd0; 16], [0x5a; 16], &opened).is_err());
                assert!(opened.bundle(Role::Delete).is_some() == (role == Role::Delete));
            }
            // A changed slot does not open, or is not accepted as the repository's.
            for at in ENVELOPE_LEN..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                Envelope::seal(&FORMAT, 0, 0, &mut changed);
                let Ok(slot) = decode(&changed) else { continue };
                assert!(!slot.is_of(&keys), "byte {at}");
            }
        }
    }
}

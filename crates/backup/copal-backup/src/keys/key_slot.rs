//! Key slot of a password: holds the master key, encrypted by the password, or in the clear for
//! `--insecure-no-password`.
//!
//! Format: docs/formats/backup-key-slot.md v1
//! Not here: slots of role keys (`role_key`).
//! Invariants
//! - The cost of the password hash is bounded before the hash is computed: a forged slot cannot make a reader
//!   allocate more than 1 GiB, or compute for more than minutes.
//! - All clear fields are associated data of the encryption: a changed slot does not open.

use crate::keys::random;
use crate::request::Unlock;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use aes_gcm::aead::{AeadInOut, inout::InOutBuf};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};
use argon2::{Algorithm, Argon2, Params, Version};
use copal_codec::{ENVELOPE_LEN, Envelope, Format, Put, Reader};
use zeroize::Zeroizing;

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALKEY", name: "key slot", oldest: 1, version: 1, known_flags: 0 };

const KIND_ARGON2ID: u8 = 1;
const KIND_CLEAR: u8 = 2;
/// Far above the size of any slot file.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 10;
const MAX_MEMORY_KIB: u32 = 1 << 20;
const MAX_PASSES: u32 = 64;
const MAX_LANES: u32 = 16;
/// Clear part of the body: kind, zeros, memory, passes, lanes, salt, domain.
const CLEAR_BYTES: usize = 48;

/// Cost parameters of the password hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashCost {
    pub(crate) memory_kib: u32,
    pub(crate) passes: u32,
    pub(crate) lanes: u32,
}

/// Encodes a slot that holds `master`. `salt` is fresh for every slot.
pub(crate) fn encode(
    unlock: &Unlock,
    domain: [u8; 16],
    salt: [u8; 16],
    cost: HashCost,
    master: &[u8; 32],
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; ENVELOPE_LEN];
    let clear = match unlock {
        Unlock::Password(_) => KIND_ARGON2ID,
        Unlock::Insecure => KIND_CLEAR,
        Unlock::Key(_) => return Err(key_opens_nothing()),
    };
    bytes.put_u8(clear);
    bytes.put_zeros(3);
    bytes.put_u32(cost.memory_kib);
    bytes.put_u32(cost.passes);
    bytes.put_u32(cost.lanes);
    bytes.put_bytes(&salt);
    bytes.put_bytes(&domain);
    let mut secret = Zeroizing::new(*master);
    let tag = match unlock {
        Unlock::Insecure | Unlock::Key(_) => [0; 16],
        Unlock::Password(password) => {
            let key = stretch(password, &salt, cost)?;
            let body = &bytes[ENVELOPE_LEN..];
            let tag = Aes256Gcm::new((&*key).into())
                .encrypt_inout_detached(&Nonce::default(), body, InOutBuf::from(&mut secret[..]))
                .expect("32 bytes are far below the 64 GiB that GCM can encrypt");
            tag.into()
        }
    };
    bytes.put_bytes(&secret[..]);
    bytes.put_bytes(&tag);
    Envelope::seal(&FORMAT, 0, 0, &mut bytes);
    Ok(bytes)
}

/// The fields of a slot that has not been decrypted yet.
pub(crate) struct PasswordSlot {
    kind: u8,
    cost: HashCost,
    salt: [u8; 16],
    pub(crate) domain: [u8; 16],
    clear: [u8; CLEAR_BYTES],
    encrypted: [u8; 32],
    tag: [u8; 16],
}

/// Decodes a slot without decrypting it.
pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<PasswordSlot, String> {
    let (_, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
    let text = |error: copal_codec::DecodeError| error.to_string();
    let clear: [u8; CLEAR_BYTES] = Reader::new(body).array().map_err(text)?;
    let mut input = Reader::new(body);
    let kind = input.u8().map_err(text)?;
    input.zeros(3).map_err(text)?;
    let cost = HashCost {
        memory_kib: input.u32().map_err(text)?,
        passes: input.u32().map_err(text)?,
        lanes: input.u32().map_err(text)?,
    };
    let salt = input.array().map_err(text)?;
    let domain = input.array().map_err(text)?;
    let encrypted = input.array().map_err(text)?;
    let tag = input.array().map_err(text)?;
    input.finish().map_err(text)?;
    if kind != KIND_ARGON2ID && kind != KIND_CLEAR {
        return Err(format!("key slots of kind {kind} are not known to this program; use a newer one"));
    }
    let bounded = cost.memory_kib <= MAX_MEMORY_KIB && cost.passes <= MAX_PASSES && cost.lanes <= MAX_LANES;
    if kind == KIND_ARGON2ID && !bounded && !broken::by(Flaw::UnboundedCost) {
        return Err("the cost of the password hash is out of bounds".into());
    }
    Ok(PasswordSlot { kind, cost, salt, domain, clear, encrypted, tag })
}

impl PasswordSlot {
    /// Whether a password is needed.
    pub(crate) fn needs_password(&self) -> bool {
        self.kind == KIND_ARGON2ID
    }

    /// Decrypts the master key; `None` if the password is wrong.
    pub(crate) fn open(&self, unlock: &Unlock) -> Result<Option<Zeroizing<[u8; 32]>>> {
        let mut secret = Zeroizing::new(self.encrypted);
        match (unlock, self.needs_password()) {
            (Unlock::Key(_), _) => Err(key_opens_nothing()),
            (Unlock::Insecure, true) => Err(Error::PasswordNeeded),
            (Unlock::Password(_), false) => Err(Error::PasswordNotUsed),
            (Unlock::Insecure, false) => Ok(Some(secret)),
            (Unlock::Password(password), true) => {
                let key = stretch(password, &self.salt, self.cost)?;
                let tag = Tag::from(self.tag);
                let opened = Aes256Gcm::new((&*key).into()).decrypt_inout_detached(
                    &Nonce::default(),
                    &self.clear,
                    InOutBuf::from(&mut secret[..]),
                    &tag,
                );
                Ok(opened.is_ok().then_some(secret))
            }
        }
    }
}

fn key_opens_nothing() -> Error {
    Error::Invalid {
        reason:
            "a new repository begins with a password: make it with one, then add keys with `copal key add`"
                .into(),
    }
}

/// Draws a fresh salt.
pub(crate) fn salt() -> Result<[u8; 16]> {
    random()
}

fn stretch(password: &str, salt: &[u8; 16], cost: HashCost) -> Result<Zeroizing<[u8; 32]>> {
    let invalid =
        |error: argon2::Error| Error::Invalid { reason: format!("the password cannot be hashed: {error}") };
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(32)).map_err(invalid)?;
    let mut key = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(password.as_bytes(), salt, &mut key[..])
        .map_err(invalid)?;
    Ok(key)
}

//! Encryption of packs: one AES-256-GCM frame per chunk, one key per pack.
//!
//! The nonce is the slot. A pack key is derived from a random 128-bit pack id that is used for one attempt
//! only, so no (key, nonce) pair occurs twice. Associated data are the pack id, the slot and the first 16
//! bytes of the chunk's id: a frame opens at its own location or not at all (BAK-12).

use aes_gcm::aead::{AeadInOut, inout::InOutBuf};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};

/// Length of the authentication tag: an encrypted frame is longer than its payload by this.
pub(crate) const TAG_BYTES: usize = 16;

/// The cipher of one pack.
pub(crate) struct PackCipher {
    cipher: Aes256Gcm,
    pack_id: [u8; 16],
}

impl PackCipher {
    pub(crate) fn new(key: &[u8; 32], pack_id: [u8; 16]) -> PackCipher {
        PackCipher { cipher: Aes256Gcm::new(key.into()), pack_id }
    }

    /// Encrypts `bytes` in place and returns the tag, which the caller appends.
    pub(crate) fn encrypt(&self, slot: u32, id: &[u8; 16], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self
            .cipher
            .encrypt_inout_detached(&nonce(slot), &self.associated(slot, id), InOutBuf::from(bytes))
            .expect("a frame is far below the 64 GiB that GCM can encrypt");
        tag.into()
    }

    /// Decrypts a frame in place; `None` if its tag does not match. The buffer is then unusable.
    #[must_use]
    pub(crate) fn decrypt<'a>(
        &self,
        slot: u32,
        id: &[u8; 16],
        encrypted: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let at = encrypted.len().checked_sub(TAG_BYTES)?;
        let (bytes, tag) = encrypted.split_at_mut(at);
        let tag = Tag::try_from(&*tag).ok()?;
        self.cipher
            .decrypt_inout_detached(
                &nonce(slot),
                &self.associated(slot, id),
                InOutBuf::from(&mut *bytes),
                &tag,
            )
            .ok()?;
        Some(bytes)
    }

    fn associated(&self, slot: u32, id: &[u8; 16]) -> [u8; 36] {
        let mut data = [0; 36];
        data[..16].copy_from_slice(&self.pack_id);
        data[16..20].copy_from_slice(&slot.to_le_bytes());
        data[20..].copy_from_slice(id);
        data
    }
}

fn nonce(slot: u32) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&slot.to_le_bytes());
    bytes.into()
}

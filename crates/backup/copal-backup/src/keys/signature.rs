//! Ed25519 signatures of the delete role: the holder of a backup key can verify them and cannot make them.
//!
//! A keyed hash would not separate the roles: anyone able to verify it can forge it. Ed25519 (RFC 8032), its
//! seed derived from the master key.
//!
//! Not here: which records carry a signature (`catalog::record`), and when one is needed (`keys`).

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

/// Length of a signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;
/// Length of the public key.
pub(crate) const PUBLIC_BYTES: usize = 32;

/// A private signing key. Wiped from memory when dropped.
pub(crate) struct SigningKey(Zeroizing<[u8; 32]>);

impl SigningKey {
    pub(crate) fn new(seed: Zeroizing<[u8; 32]>) -> SigningKey {
        SigningKey(seed)
    }

    pub(crate) fn seed(&self) -> &[u8; 32] {
        &self.0
    }

    /// The public half of the key.
    pub(crate) fn public(&self) -> [u8; PUBLIC_BYTES] {
        let mut public = [0; PUBLIC_BYTES];
        public.copy_from_slice(self.pair().public_key().as_ref());
        public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(self.pair().sign(message).as_ref());
        signature
    }

    // Made anew for each signature: the seed is wiped on drop, but the key pair of `ring` is not.
    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.0[..]).expect("any 32 bytes are a seed")
    }
}

/// Whether `signature` was made with the private half of `public`.
pub(crate) fn is_signed(public: &[u8; PUBLIC_BYTES], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test 1 of RFC 8032, section 7.1.
    #[test]
    fn signatures_match_rfc_8032() {
        let hex = |text: &str| -> Vec<u8> {
            let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
            (0..text.len()).step_by(2).map(byte).collect()
        };
        let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let signer = SigningKey::new(Zeroizing::new(seed.try_into().unwrap()));
        let public = hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        assert_eq!(signer.public()[..], public[..]);
        let signature = hex(concat!(
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555",
            "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ));
        assert_eq!(signer.sign(b"")[..], signature[..]);
        assert!(is_signed(&signer.public(), b"", &signature));
        assert!(!is_signed(&signer.public(), b"x", &signature));
        assert!(!is_signed(&signer.public(), b"", &signature[1..]));
    }
}

//! The keys of a domain, derived from one master key. The holder of a role key has the keys of its role only.
//!
//! Derivation is BLAKE3 in its key-derivation mode with the context strings below. Each use has its own key,
//! so none of them reveals anything about another.
//!
//! Invariants
//! - In a repository that has had role keys, a record of the delete role and a checkpoint count only with a
//!   signature (BAK-19). A handle learns that the repository has role keys when it opens it, or from the
//!   first signature that it meets.
//!
//! Not here: storage of the master key (`key_slot`), role keys (`role_key`), encryption of frames
//! (`pack_cipher`).

pub(crate) mod key_slot;
pub(crate) mod role;
pub(crate) mod role_key;
pub(crate) mod roles;
pub(crate) mod signature;

use crate::keys::role::Role;
use crate::keys::roles::Roles;
use crate::keys::signature::{PUBLIC_BYTES, SIGNATURE_BYTES, SigningKey, is_signed};
use crate::request::peers::HostKey;
use crate::rules::broken::{self, Flaw};
use copal_chunk::{ChunkId, IdKey};
use std::sync::atomic::{AtomicU8, Ordering};
use uuid::Uuid;
use zeroize::Zeroizing;

/// Length of the code that authenticates a record, a checkpoint or a manifest.
pub(crate) const MAC_BYTES: usize = 32;

const GEAR: &str = "copal v1 gear table key";
const ID: &str = "copal v1 chunk id key";
const DATA: &str = "copal v1 pack data key";
const RECIPE: &str = "copal v1 recipe id key";
const MAC: &str = "copal v1 catalog mac key";
const AGENTS: &str = "copal v1 agents secret";
const DELETE: &str = "copal v1 delete signing key";
const ADMIN: &str = "copal v1 admin mac key";
const HOST: &str = "copal v1 host signing key";
const PASSWORD_HOST: &str = "copal v1 host signing key of the password";

/// The signing key of the host whose role key has this secret.
pub(crate) fn host_signer(secret: &[u8; 32]) -> SigningKey {
    SigningKey::new(Zeroizing::new(blake3::derive_key(HOST, secret)))
}

/// 32 secret bytes.
type Secret = Zeroizing<[u8; 32]>;

/// Keys that a role key for backup or delete holds, 32 bytes each.
const BUNDLED: usize = 7;
/// Length of the keys of a role for backup or delete.
pub(crate) const BUNDLE_BYTES: usize = BUNDLED * 32;

/// Whether records of the delete role need a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SignatureState {
    /// The repository never had role keys, as far as this handle knows: no signature is made or needed.
    None = 0,
    /// The first role key is being added: signatures are made, but not needed yet.
    Begun = 1,
    /// Signatures are made and needed.
    Needed = 2,
}

/// Keys that only the admin role holds.
struct AdminKeys {
    master: Secret,
    mac: Secret,
}

/// The derived keys of one domain. Wiped from memory when dropped.
pub(crate) struct DomainKeys {
    pub(crate) gear: Secret,
    pub(crate) id: IdKey,
    id_bytes: Secret,
    data: Secret,
    recipe: Secret,
    /// Key of the MACs. All roles have it, so a MAC only shows that the writer held some key of the
    /// repository.
    mac: Secret,
    agents: Secret,
    /// Verifies signatures of the delete role.
    public: [u8; PUBLIC_BYTES],
    signer: Option<SigningKey>,
    /// Signs in the name of the host that holds this key.
    host: Option<SigningKey>,
    admin: Option<AdminKeys>,
    signatures: AtomicU8,
}

impl DomainKeys {
    /// Derives all keys from the master key.
    pub(crate) fn derive(master: &[u8; 32]) -> DomainKeys {
        let key = |context: &str| Zeroizing::new(blake3::derive_key(context, master));
        let signer = SigningKey::new(key(DELETE));
        DomainKeys {
            gear: key(GEAR),
            id: IdKey::new(*key(ID)),
            id_bytes: key(ID),
            data: key(DATA),
            recipe: key(RECIPE),
            mac: key(MAC),
            agents: key(AGENTS),
            public: signer.public(),
            signer: Some(signer),
            host: Some(SigningKey::new(key(PASSWORD_HOST))),
            admin: Some(AdminKeys { master: Zeroizing::new(*master), mac: key(ADMIN) }),
            signatures: AtomicU8::new(SignatureState::None as u8),
        }
    }

    /// The keys of the backup or delete role, in the order of a slot. The last one signs, or verifies
    /// signatures. `None`: these keys lack some of that role's.
    pub(crate) fn bundle(&self, role: Role) -> Option<Zeroizing<Vec<u8>>> {
        let last = match role {
            Role::Backup => &self.public,
            Role::Delete => self.signer.as_ref()?.seed(),
            Role::Admin => return None,
        };
        let mut bundle = Zeroizing::new(Vec::with_capacity(BUNDLE_BYTES));
        for key in [&*self.gear, &self.id_bytes, &self.data, &self.recipe, &self.mac, &self.agents, last] {
            bundle.extend_from_slice(key);
        }
        Some(bundle)
    }

    /// Rebuilds the keys of the backup or delete role from a bundle.
    pub(crate) fn of_bundle(role: Role, bundle: &[u8; BUNDLE_BYTES]) -> DomainKeys {
        let (keys, _) = bundle.as_chunks::<32>();
        let key = |at: usize| Zeroizing::new(keys[at]);
        let (signer, public) = match role {
            Role::Backup => (None, keys[BUNDLED - 1]),
            Role::Delete | Role::Admin => {
                let signer = SigningKey::new(key(BUNDLED - 1));
                let public = signer.public();
                (Some(signer), public)
            }
        };
        DomainKeys {
            gear: key(0),
            id: IdKey::new(*key(1)),
            id_bytes: key(1),
            data: key(2),
            recipe: key(3),
            mac: key(4),
            agents: key(5),
            public,
            signer,
            host: None,
            admin: None,
            // A repository with a role key has signatures.
            signatures: AtomicU8::new(SignatureState::Needed as u8),
        }
    }

    /// The same keys, with the signing key of a host.
    pub(crate) fn with_host(self, host: SigningKey) -> DomainKeys {
        DomainKeys { host: Some(host), ..self }
    }

    /// The public key of the host in whose name these keys sign records about popular packs. `None`: the
    /// repository never had role keys.
    pub(crate) fn host_key(&self) -> Option<HostKey> {
        let is_wanted = self.signatures() != SignatureState::None;
        let host = self.host.as_ref().filter(|_| is_wanted)?;
        Some(HostKey(host.public()))
    }

    /// Signs the body stored under `name` in the name of `host`; `None` if these keys belong to another host.
    pub(crate) fn sign_as(&self, host: &HostKey, name: &str, body: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
        let signer = self.host.as_ref().filter(|signer| signer.public() == host.0)?;
        Some(signer.sign(&placed(name, body)))
    }

    /// The rights that these keys give.
    pub(crate) fn roles(&self) -> Roles {
        Roles {
            highest: match (&self.admin, &self.signer) {
                (Some(_), _) => Role::Admin,
                (None, Some(_)) => Role::Delete,
                (None, None) => Role::Backup,
            },
            are_split: self.signatures() == SignatureState::Needed,
        }
    }

    /// The master key, if these keys hold it.
    pub(crate) fn master(&self) -> Option<&[u8; 32]> {
        self.admin.as_ref().map(|admin| &*admin.master)
    }

    /// The secret by which agents of the domain authenticate each other.
    pub(crate) fn agents(&self) -> Secret {
        self.agents.clone()
    }

    /// The public half of the delete role's signing key; every role has it.
    #[cfg(test)]
    pub(crate) fn public(&self) -> &[u8; PUBLIC_BYTES] {
        &self.public
    }

    /// Whether records need signatures, as far as this handle knows.
    pub(crate) fn signatures(&self) -> SignatureState {
        match self.signatures.load(Ordering::Acquire) {
            0 => SignatureState::None,
            1 => SignatureState::Begun,
            _ => SignatureState::Needed,
        }
    }

    pub(crate) fn set_signatures(&self, signatures: SignatureState) {
        self.signatures.store(signatures as u8, Ordering::Release);
    }

    /// Whether these keys can write a valid record of the delete role.
    pub(crate) fn can_sign(&self) -> bool {
        self.signer.is_some() || self.signatures() == SignatureState::None
    }

    /// Signs the body stored under `name`; `None` if the repository needs no signatures, or these keys cannot
    /// sign.
    pub(crate) fn sign(&self, name: &str, body: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
        let is_wanted = self.signatures() != SignatureState::None;
        let signer = self.signer.as_ref().filter(|_| is_wanted)?;
        Some(signer.sign(&placed(name, body)))
    }

    /// Whether a record of the delete role is valid with this signature, or without one.
    pub(crate) fn counts(&self, name: &str, body: &[u8], signature: Option<&[u8]>) -> bool {
        let is_looked_at = !broken::by(Flaw::NoSignature);
        let Some(signature) = signature else {
            return self.signatures() != SignatureState::Needed || !is_looked_at;
        };
        let is_signed = is_signed(&self.public, &placed(name, body), signature);
        if is_signed {
            // Another process added role keys while this handle was open. From now on this handle signs too.
            let (none, needed) = (SignatureState::None as u8, SignatureState::Needed as u8);
            let _ = self.signatures.compare_exchange(none, needed, Ordering::AcqRel, Ordering::Acquire);
        }
        is_signed || !is_looked_at
    }

    /// The key that encrypts the frames of one pack.
    pub(crate) fn pack_key(&self, pack_id: &[u8; 16]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*blake3::keyed_hash(&self.data, pack_id).as_bytes())
    }

    /// The key that names recipes, pages and roots of one VM.
    ///
    /// One key per VM: equal recipes of two VMs have different names, so no VM needs another's packs.
    pub(crate) fn recipe_key(&self, vm: Uuid) -> RecipeKey {
        RecipeKey(Zeroizing::new(*blake3::keyed_hash(&self.recipe, vm.as_bytes()).as_bytes()))
    }

    /// The MAC of a record or manifest. `name` is the path at which the body is stored.
    pub(crate) fn mac(&self, name: &str, body: &[u8]) -> [u8; MAC_BYTES] {
        keyed(&self.mac, name, body)
    }

    /// Whether `tag` is the MAC of `body`, compared in constant time.
    pub(crate) fn mac_fits(&self, name: &str, body: &[u8], tag: &[u8]) -> bool {
        use subtle::ConstantTimeEq;
        bool::from(self.mac(name, body).ct_eq(tag))
    }

    /// Like `mac`, for data that only the admin role writes; `None`: these keys lack that role.
    pub(crate) fn admin_mac(&self, name: &str, body: &[u8]) -> Option<[u8; MAC_BYTES]> {
        let admin = self.admin.as_ref()?;
        Some(keyed(&admin.mac, name, body))
    }
}

fn keyed(key: &[u8; 32], name: &str, body: &[u8]) -> [u8; MAC_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(body);
    *hasher.finalize().as_bytes()
}

/// Whether `signature` is the signature of `host` over the body stored under `name`.
pub(crate) fn is_signed_by(host: &HostKey, name: &str, body: &[u8], signature: &[u8]) -> bool {
    is_signed(&host.0, &placed(name, body), signature)
}

/// The message that is signed: the same bytes that a MAC covers.
fn placed(name: &str, body: &[u8]) -> Vec<u8> {
    [&(name.len() as u64).to_le_bytes()[..], name.as_bytes(), body].concat()
}

/// Names the recipes of one VM.
#[derive(Clone)]
pub(crate) struct RecipeKey(Zeroizing<[u8; 32]>);

impl RecipeKey {
    /// The id of a recipe, page or root from the bytes that define it.
    pub(crate) fn id(&self, level: u8, logical: &[u8]) -> ChunkId {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[level]);
        hasher.update(logical);
        ChunkId(*hasher.finalize().as_bytes())
    }
}

/// Draws random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> crate::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| crate::Error::Invalid {
        reason: format!("the operating system gives no random bytes: {error}"),
    })?;
    Ok(bytes)
}

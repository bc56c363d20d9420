//! The keys of a domain, all derived from one master key.
//!
//! Derivation is BLAKE3 in its key-derivation mode with the context strings below; each use has its
//! own key, so none of them tells anything about another.
//!
//! Not here: how the master key is kept (`key_slot`), how frames are encrypted (`pack_cipher`).

use copal_chunk::{ChunkId, IdKey};
use uuid::Uuid;
use zeroize::Zeroizing;

/// Length of the code that authenticates a record, a checkpoint or a manifest.
pub(crate) const MAC_BYTES: usize = 32;

const GEAR: &str = "copal v1 gear table key";
const ID: &str = "copal v1 chunk id key";
const DATA: &str = "copal v1 pack data key";
const RECIPE: &str = "copal v1 recipe id key";
const MAC: &str = "copal v1 catalog mac key";

/// The derived keys of one domain. Wiped from memory when dropped.
pub(crate) struct Keys {
    pub(crate) gear: Zeroizing<[u8; 32]>,
    pub(crate) id: IdKey,
    data: Zeroizing<[u8; 32]>,
    recipe: Zeroizing<[u8; 32]>,
    mac: Zeroizing<[u8; 32]>,
}

impl Keys {
    /// Derives everything from the master key.
    pub(crate) fn derive(master: &[u8; 32]) -> Keys {
        let key = |context: &str| Zeroizing::new(blake3::derive_key(context, master));
        Keys {
            gear: key(GEAR),
            id: IdKey::new(*key(ID)),
            data: key(DATA),
            recipe: key(RECIPE),
            mac: key(MAC),
        }
    }

    /// The key that encrypts the frames of one pack.
    pub(crate) fn pack_key(&self, pack_id: &[u8; 16]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*blake3::keyed_hash(&self.data, pack_id).as_bytes())
    }

    /// The key under which recipes, pages and roots of one VM are named.
    ///
    /// One key per VM: equal recipes of two VMs have different names, so no VM needs another's packs.
    pub(crate) fn recipe_key(&self, vm: Uuid) -> RecipeKey {
        RecipeKey(Zeroizing::new(
            *blake3::keyed_hash(&self.recipe, vm.as_bytes()).as_bytes(),
        ))
    }

    /// Authenticates a record or manifest. `name` says what it is and where it stands.
    pub(crate) fn mac(&self, name: &str, body: &[u8]) -> [u8; MAC_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.mac);
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(body);
        *hasher.finalize().as_bytes()
    }

    /// Whether `tag` is the MAC of `body`, in constant time.
    pub(crate) fn mac_fits(&self, name: &str, body: &[u8], tag: &[u8]) -> bool {
        use subtle::ConstantTimeEq;
        bool::from(self.mac(name, body).ct_eq(tag))
    }
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

/// Fresh random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> crate::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| crate::Error::Invalid {
        reason: format!("the operating system gives no random bytes: {error}"),
    })?;
    Ok(bytes)
}

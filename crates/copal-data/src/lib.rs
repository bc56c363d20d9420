//! Data node on the key-value engine. Here: the embedded one.
#![allow(missing_docs, unused_variables, clippy::todo)]
/// All of `VolumeStore` on one `copal-kv` store: no network, no runtime.
pub struct LocalStore {
    _p: (),
}
impl LocalStore {
    pub fn open(kv: copal_kv::Store) -> Result<LocalStore, copal_volume::VolumeError> {
        todo!()
    }
}

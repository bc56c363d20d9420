//! Packs and the volumes that hold them: format, encryption, reading, appending.

pub(crate) mod home;
pub(crate) mod pack;
pub(crate) mod pack_appender;
pub(crate) mod pack_cipher;
pub(crate) mod pack_store;
pub(crate) mod volumes;

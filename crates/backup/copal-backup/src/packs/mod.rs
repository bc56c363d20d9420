//! Packs and the volumes that hold them: format, encryption, reading, appending.

pub(crate) mod frame_plan;
pub(crate) mod frame_ranges;
pub(crate) mod frame_reader;
pub(crate) mod frame_search;
pub(crate) mod home;
pub(crate) mod ordered_pool;
pub(crate) mod pack;
pub(crate) mod pack_appender;
pub(crate) mod pack_cipher;
pub(crate) mod pack_store;
pub(crate) mod volumes;

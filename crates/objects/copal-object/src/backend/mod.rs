//! Address spaces below a store besides a device: files of a directory, and a device with lenient reads.

pub(crate) mod home;
pub(crate) mod hostfs;
pub(crate) mod lenient;

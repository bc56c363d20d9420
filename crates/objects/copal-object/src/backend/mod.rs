//! Backends: the placement of each, files of a directory, and a device with lenient reads.

pub(crate) mod cow;
pub(crate) mod hostfs;
pub(crate) mod lenient;
pub(crate) mod log;

//! Streams: appended frames, the reader, the walk that finds their end, and raw extents.

pub(crate) mod append;
pub(crate) mod extent;
pub(crate) mod frame_reader;
pub(crate) mod new_frame;
pub(crate) mod raw_extent;
pub(crate) mod read_ahead;
pub(crate) mod reserved_frame;
mod riding_frame;
pub(crate) mod walk;

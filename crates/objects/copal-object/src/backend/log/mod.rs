//! `log`: data and records appended to segments of one device, for disks that seek.
//!
//! A group is one contiguous write: its record's first page, its small data and stream frames, its remaining
//! operations. Long data goes to a segment of its own first.
//!
//! Design: docs/design/object.md#log
//! Invariants
//! - A segment's header is durable before a record in the segment counts (OBJ-32).
//! - A segment with records that recovery may replay is not used again (OBJ-31).
//!
//! Not here: groups, epochs, recovery, which are independent of the backend.

mod append_head;
mod commit_head;
mod group_buffer;
mod placement;

pub(crate) use commit_head::{CommitHead, NextSegments};
pub(crate) use placement::LogPlacement;

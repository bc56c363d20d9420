//! What QEMU says of its nodes, of what uses what, and of what it can do.
//!
//! Taken from JSON field by field: what is missing or of another shape is passed over, and never a reason to
//! panic.

pub(crate) mod graph;
pub(crate) mod nodes;
pub(crate) mod schema;

//! Parsers for replies of QEMU: block nodes, block graph, schema.
//!
//! Replies are decoded field by field. A missing or malformed field is skipped and never causes a panic.

pub(crate) mod graph;
pub(crate) mod nodes;
pub(crate) mod schema;

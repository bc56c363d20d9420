//! What a store keeps in memory of its tables, beside others that share the memory.

use super::{cache::TableCache, rows::Rows};
use std::sync::Arc;

/// See the module.
pub(crate) struct Caches {
    pub(crate) cache: Arc<TableCache>,
    pub(crate) rows: Rows,
}

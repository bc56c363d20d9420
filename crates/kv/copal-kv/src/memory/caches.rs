//! What a store keeps in memory of its tables, beside others that share the memory.

use super::{cache::TableCache, rows::RowCache};
use std::sync::Arc;

/// See the module.
pub(crate) struct StoreCaches {
    pub(crate) cache: Arc<TableCache>,
    pub(crate) rows: RowCache,
}

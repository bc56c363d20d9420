//! Caches of one store within its memory budget, which other stores may share.

use super::{cache::TableCache, rows::RowCache};
use std::sync::Arc;

/// Caches of one store; see the module.
pub(crate) struct StoreCaches {
    pub(crate) cache: Arc<TableCache>,
    pub(crate) rows: RowCache,
}

//! How many owners an open store has, and of which kind.

use parking_lot::Mutex;

/// Owners of an open store.
#[derive(Default)]
pub(crate) struct Owners(pub(crate) Mutex<Counts>);

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) readers: usize,
    pub(crate) writer: bool,
}

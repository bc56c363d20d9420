//! Home of pages: the owner and the class they are taken for.

/// For whom pages are taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageHome {
    /// Kind and lifetime, so that like lies near like.
    pub(crate) class: usize,
    /// The object or stream; the store itself is [`PageHome::STORE`].
    pub(crate) owner: u64,
}

impl PageHome {
    /// Owner of what belongs to no object.
    pub(crate) const STORE: u64 = u64::MAX;
    /// Owner of second copies.
    pub(crate) const STORE_COPY: u64 = u64::MAX - 1;
}

//! Home of pages: the owner and the placement class for which they are allocated.

/// Owner and class of an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageHome {
    /// Kind and lifetime: data of one class is placed together.
    pub(crate) class: usize,
    /// The object or stream; [`PageHome::STORE`] is the store itself.
    pub(crate) owner: u64,
    /// The pages are written by the open group. A backend may place them beside the group's record.
    pub(crate) in_group: bool,
    /// The pages are a frame that only its record proves: with `in_group`, a backend that lets frames ride places them
    /// beside the record, for any number of them.
    pub(crate) is_frame: bool,
}

impl PageHome {
    /// Owner of pages that belong to no object.
    pub(crate) const STORE: u64 = u64::MAX;
    /// Owner of second copies.
    pub(crate) const STORE_COPY: u64 = u64::MAX - 1;
    /// Owner of pages that the cleaner moves.
    pub(crate) const SURVIVORS: u64 = u64::MAX - 2;
}

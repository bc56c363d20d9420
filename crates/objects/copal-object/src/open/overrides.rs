//! Overrides of an open store for tests; programs use [`OpenOverrides::default`].

use crate::{
    flaw::BrokenRule,
    state::{cleaner::CleanerTrigger, entropy::EntropySource, inline_pages::InlineLimits},
};

/// Settings that tests change.
#[derive(Clone, Debug)]
pub(crate) struct OpenOverrides {
    pub(crate) entropy: EntropySource,
    pub(crate) broken: BrokenRule,
    pub(crate) eager: bool,
    pub(crate) stream_extent_pages: Option<u64>,
    /// Mount as if the journal had no room for the mount record.
    pub(crate) mount_by_checkpoint: bool,
    /// Tables in chunks of a few entries, chain pages of one page, and one of them in flight: commits come
    /// between the pages of a checkpoint.
    pub(crate) short_chain_pages: bool,
    /// Always allocate the lowest free pages, so that freed ones are reused soon.
    pub(crate) lowest_first: bool,
    /// Discard free space in chunks of so many pages, on any device and without a pace.
    pub(crate) discard_pages: Option<u64>,
    /// Shrinking frees the lowest pages and keeps none in addition, so that holes are used again soon.
    pub(crate) gives_lowest: bool,
    /// No data lies in groups.
    pub(crate) data_apart: bool,
    pub(crate) cleaner_trigger: CleanerTrigger,
    pub(crate) inline: Option<InlineLimits>,
}

impl Default for OpenOverrides {
    fn default() -> OpenOverrides {
        OpenOverrides {
            entropy: EntropySource::System,
            broken: BrokenRule::default(),
            eager: false,
            stream_extent_pages: None,
            mount_by_checkpoint: false,
            short_chain_pages: false,
            lowest_first: false,
            discard_pages: None,
            gives_lowest: false,
            data_apart: false,
            cleaner_trigger: CleanerTrigger::default(),
            inline: None,
        }
    }
}

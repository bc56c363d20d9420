//! What tests change about an open store; a program opens with [`OpenOverrides::default`].

use crate::{flaw::BrokenRule, state::entropy::EntropySource};

/// What tests change about an open store.
#[derive(Clone, Debug)]
pub(crate) struct OpenOverrides {
    pub(crate) entropy: EntropySource,
    pub(crate) broken: BrokenRule,
    pub(crate) eager: bool,
    pub(crate) stream_extent_pages: Option<u64>,
    /// Mount as if the journal had no room for the mount record.
    pub(crate) mount_by_checkpoint: bool,
    /// Always take the lowest free pages, so that freed ones are reused soon.
    pub(crate) lowest_first: bool,
    /// Give the lowest free pages back, so that holes are soon met, and leave none to spare.
    pub(crate) gives_lowest: bool,
}

impl Default for OpenOverrides {
    fn default() -> OpenOverrides {
        OpenOverrides {
            entropy: EntropySource::System,
            broken: BrokenRule::default(),
            eager: false,
            stream_extent_pages: None,
            mount_by_checkpoint: false,
            lowest_first: false,
            gives_lowest: false,
        }
    }
}

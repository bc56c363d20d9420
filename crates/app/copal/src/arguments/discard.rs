//! `--discard`: whether free space of a store is discarded.

use clap::ValueEnum;
use copal_object::DiscardMode;

/// Discards of free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiscardWord {
    /// On block devices that take discards and do not turn
    Auto,
    /// On every block device that takes discards
    On,
    /// Never
    #[default]
    Off,
}

impl From<DiscardWord> for DiscardMode {
    fn from(word: DiscardWord) -> DiscardMode {
        match word {
            DiscardWord::Auto => DiscardMode::Auto,
            DiscardWord::On => DiscardMode::On,
            DiscardWord::Off => DiscardMode::Off,
        }
    }
}

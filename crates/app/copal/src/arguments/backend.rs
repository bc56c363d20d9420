//! `--backend`: the kind of a store that a command makes.

use clap::{Args, ValueEnum};
use copal_object::BackendKind;

/// Backend of a new store.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct BackendArgs {
    /// Kind of a new store, fixed for its life (default: cow)
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendWord>,
}

/// Kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendWord {
    /// Measure the disk for up to 30 seconds, keep the figures, and take cow
    Auto,
    /// One preallocated file, or a block device: copy on write, one flush per commit
    Cow,
    /// The same, but everything is appended to segments: for disks that turn; at least 256MiB
    Log,
    /// Files in a directory, one per object: any file system that can sync
    Hostfs,
}

/// A backend, or the wish to find out which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendChoice {
    /// The one for the disk.
    Auto,
    /// This one.
    Given(BackendKind),
}

impl BackendArgs {
    /// The given backend, or `usual`.
    pub(crate) fn choice(self, usual: BackendKind) -> BackendChoice {
        BackendChoice::Given(match self.backend {
            Some(BackendWord::Auto) => return BackendChoice::Auto,
            None => usual,
            Some(BackendWord::Cow) => BackendKind::Cow,
            Some(BackendWord::Log) => BackendKind::Log,
            Some(BackendWord::Hostfs) => BackendKind::Hostfs,
        })
    }
}

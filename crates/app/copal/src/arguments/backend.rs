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
    /// One preallocated file, or a block device: copy on write, one flush per commit
    Cow,
    /// The same, but everything is appended to segments: for disks that turn; at least 256MiB
    Log,
    /// Files in a directory, one per object: any file system that can sync
    Hostfs,
}

impl BackendArgs {
    /// The given backend, or the usual one.
    pub(crate) fn kind(self) -> BackendKind {
        self.kind_or(BackendKind::Cow)
    }

    /// The given backend, or `usual`.
    pub(crate) fn kind_or(self, usual: BackendKind) -> BackendKind {
        match self.backend {
            None => usual,
            Some(BackendWord::Cow) => BackendKind::Cow,
            Some(BackendWord::Log) => BackendKind::Log,
            Some(BackendWord::Hostfs) => BackendKind::Hostfs,
        }
    }
}

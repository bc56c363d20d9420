//! What can be typed behind `copal init` and `copal repair`.

use crate::human;
use clap::{Args, Subcommand, ValueEnum};
use copal_node::NewStore;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
The repository is encrypted with the password; there is no way back to the data without it.

DIR gets one preallocated file, or with --backend hostfs a directory of files: for file systems where \
preallocation promises nothing (network shares, btrfs, ZFS); slower. A block device given as the \
repository is the store itself; one that is not empty is refused unless --force is given.

Examples:
  copal init --repo /backup/copal --password-file /root/copal.password
  copal init --repo /dev/vg/copal --password-file /root/copal.password
  copal init --repo /mnt/share/copal --backend hostfs
  copal init --repo copal://127.0.0.1:7400/vms   (in a cluster, see `copal master --help`)
  copal init --repo /backup/copal                (asks for the password)")]
pub(crate) struct Init {
    /// Bytes to preallocate, at least 64MiB (the default); the store file grows when they are used up
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) size: Option<u64>,
    /// How disks are cut into chunks, fixed for the life of the repository
    #[arg(long, value_enum, default_value_t = Chunking::Default)]
    pub(crate) chunking: Chunking,
    /// What the store lies in, fixed for the life of the repository (default: cow)
    #[arg(long, value_enum)]
    pub(crate) backend: Option<Backend>,
    /// Overwrite a block device that holds something
    #[arg(long)]
    pub(crate) force: bool,
}

impl Init {
    pub(crate) fn new_store(&self) -> NewStore {
        NewStore {
            backend: match self.backend {
                None | Some(Backend::Cow) => copal_node::Backend::File,
                Some(Backend::Hostfs) => copal_node::Backend::Files,
            },
            size_bytes: self.size.unwrap_or(64 << 20),
            overwrite: self.force,
        }
    }
}

/// What a store lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// One preallocated file, or a block device: copy on write, one flush per commit
    Cow,
    /// Files in a directory, one per object: any file system that can sync
    Hostfs,
}

/// How disks are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Chunking {
    /// Content-defined, 16 KiB on average: the best for nearly everybody
    Default,
    /// Content-defined, 4 KiB on average, as in the paper: a little less space, four times the index
    Paper,
    /// Fixed 64 KiB: for disks cloned from one template; sizes betray nothing
    Clone,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Repair {
    /// Throw the index of chunks away and build it anew from the packs
    #[command(after_help = "\
The index says which chunks are stored already and where. Restores do not need it, and nothing is lost with it. Run \
this when a command says that the index failed; `copal check` says whether anything else is damaged.

Example:
  copal repair index")]
    Index,
    /// Save every snapshot that is whole from a damaged repository into a new one
    #[command(after_help = "\
For a repository that does not open, or of which `copal check` says that much is damaged. It is opened for reading as \
far as it can be understood, and nothing of it is changed. The new repository has the same password, the same ids and \
times; it holds the snapshots of which every byte was found whole, each chunk compared with its fingerprint. What was \
saved and what was lost is listed. Exit code 20: something was lost, or an older state had to be read, of which newer \
snapshots may be missing. It takes as much space as the old one uses.

Example:
  copal repair store --to /mnt/new/copal")]
    Store(RepairStore),
}

#[derive(Debug, Args)]
pub(crate) struct RepairStore {
    /// Directory of the new repository, or a block device; none may be there
    #[arg(long, value_name = "NEW")]
    pub(crate) to: PathBuf,
}

//! What can be typed behind `copal init` and `copal repair`.

use crate::{
    failure::{Failure, Outcome},
    human,
};
use clap::{Args, Subcommand, ValueEnum};
use copal_backup::Layout;
use copal_node::NewStore;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
The repository is encrypted with the password; there is no way back to the data without it.

DIR gets one preallocated file, or with --backend hostfs a directory of files: for file systems where \
preallocation promises nothing (network shares, btrfs, ZFS); slower. A block device given as the \
repository is the store itself; one that is not empty is refused unless --force is given.

In the layout solo all snapshots share all chunks, and one process at a time writes: best for one host, and the default. In the layout fleet each VM has chunks of its own and shares those that are popular among all VMs, so many hosts write at once, and deleting a VM's snapshots costs what that VM has: the default with copal://. Neither becomes the other.

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
    /// Who shares chunks with whom, fixed for the life of the repository (default: solo; fleet with copal://)
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LayoutWord>,
    /// Layout fleet: how much of all unique chunks may be popular, shared by all VMs (default: 4%, for
    /// hundreds of VMs; give 100% for a few dozen)
    #[arg(long, value_name = "SHARE", value_parser = human::parse_share)]
    pub(crate) pds_fraction: Option<u32>,
    /// What the store lies in, fixed for the life of the repository (default: cow)
    #[arg(long, value_enum)]
    pub(crate) backend: Option<Backend>,
    /// Overwrite a block device that holds something
    #[arg(long)]
    pub(crate) force: bool,
}

impl Init {
    /// The layout that was asked for, or that goes with the place.
    /// # Errors
    /// A share of popular chunks for the layout that has none.
    pub(crate) fn layout(&self, is_in_cluster: bool) -> Outcome<Layout> {
        let usual = if is_in_cluster { LayoutWord::Fleet } else { LayoutWord::Solo };
        match (self.layout.unwrap_or(usual), self.pds_fraction) {
            (LayoutWord::Solo, None) => Ok(Layout::Solo),
            (LayoutWord::Solo, Some(_)) => Err(Failure::usage(
                "--pds-fraction is for --layout fleet: in the layout solo all chunks are shared",
            )),
            (LayoutWord::Fleet, share) => {
                Ok(Layout::Fleet { popular_millionths: share.unwrap_or(Layout::DEFAULT_POPULAR_MILLIONTHS) })
            }
        }
    }

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

/// Who shares chunks with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutWord {
    /// All snapshots share all chunks; one process at a time writes
    Solo,
    /// VMs share popular chunks only; many hosts write
    Fleet,
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
    /// In a fleet: find what deletions have left of a VM
    #[command(after_help = "\
A deletion by summary vectors keeps about one frame in a thousand by chance, and packs of backups that never ended stay. This \
walks all snapshots of the VM: what none of them refers to is dead, its packs go or are rewritten once they are mostly dead. `copal \
stats --vm NAME` shows an estimate of what there is to find.

Example:
  copal repair leak --vm web")]
    Leak(RepairLeak),
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
pub(crate) struct RepairLeak {
    /// The VM, by name or UUID
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: String,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Of one VM of a fleet, by name or UUID
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

/// `copal sessions`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsWord {
    /// List backups that have begun and not ended
    #[command(after_help = "\
Example:
  copal sessions ls")]
    Ls,
    /// End the backups of a VM whose host has died, so that it is backed up again
    #[command(after_help = "\
One that is alive after all publishes nothing any more, and says so; what it stored is used by the next backup. On one machine \
nobody needs this: the next backup does it.

Example:
  copal sessions fence web")]
    Fence(SessionsFence),
}

#[derive(Debug, Args)]
pub(crate) struct SessionsFence {
    /// The VM, by name or UUID
    #[arg(value_name = "NAME")]
    pub(crate) vm: String,
}

/// `copal vm`.
#[derive(Debug, Subcommand)]
pub(crate) enum VmWord {
    /// List the VMs of the repository
    #[command(after_help = "\
Example:
  copal vm ls")]
    Ls,
    /// In a fleet: remove a VM with all that it has
    #[command(after_help = "\
Nothing of another VM is read or touched. What is removed is gone for good: a VM with snapshots needs --force, one with a held \
snapshot is refused. The name is free then, for another VM.

Example:
  copal vm rm web --force")]
    Rm(VmRm),
}

#[derive(Debug, Args)]
pub(crate) struct VmRm {
    /// The VM, by name or UUID
    #[arg(value_name = "NAME")]
    pub(crate) vm: String,
    /// Remove its snapshots, too
    #[arg(long)]
    pub(crate) force: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots:
    /// a hold that ended meanwhile has ended
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RepairStore {
    /// Directory of the new repository, or a block device; none may be there
    #[arg(long, value_name = "NEW")]
    pub(crate) to: PathBuf,
}

//! Arguments of `copal init`, `copal repair`, `copal sessions`, `copal stats` and `copal vm`.

use super::backend::BackendArgs;
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
The repository is encrypted with the password; without it the data cannot be read. Each command hashes the password, in 67 MB of memory. For timers and agents, make a key file with `copal key add`: it needs no hash. The first key changes the repository, and older programs cannot open it.

The store is one preallocated file in DIR. With --backend log it appends everything, for disks that turn. With --backend hostfs it is a directory of files, which is slower: for file systems on \
which preallocation reserves no space (network shares, btrfs, ZFS). A block device given as the repository becomes the store itself; \
a device that is not empty is refused unless --force is given.

In the layout solo, all snapshots share all chunks, and one process at a time writes. It is best for one host, and the default. In the layout fleet, each VM has its own chunks, and all VMs share popular ones. Many hosts can then write at once, and the cost of deleting a VM's snapshots depends on that VM alone. It is the default with copal://, and the only one in an object store. A layout cannot be changed later.

Examples:
  copal init --repo /backup/copal --password-file /root/copal.password
  copal init --repo /dev/vg/copal --password-file /root/copal.password
  copal init --repo /mnt/share/copal --backend hostfs
  copal init --repo /dev/vg/disk --backend log
  copal init --repo /backup/copal --backend auto   (measures the disk, and takes cow or log)
  copal init --repo copal://127.0.0.1:7400/vms   (in a cluster, see `copal master --help`)
  copal init --repo s3://BUCKET/PREFIX           (in an object store, see `copal store probe`)
  copal init --repo /backup/copal                (asks for the password)")]
pub(crate) struct InitArgs {
    /// Bytes to preallocate for a store file, at least 64MiB (the default), for the backend log 256MiB; a full store
    /// file grows
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) size: Option<u64>,
    /// How disks are cut into chunks, fixed for the life of the repository
    #[arg(long, value_enum, default_value_t = ChunkingWord::Default)]
    pub(crate) chunking: ChunkingWord,
    /// Sharing of chunks, fixed for the life of the repository (default: solo; fleet with copal://)
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LayoutWord>,
    /// Layout fleet: share of all unique chunks that may be popular, that is shared by all VMs (default: 4%, for
    /// hundreds of VMs; give 100% for a few dozen)
    #[arg(long, value_name = "SHARE", value_parser = human::parse_share)]
    pub(crate) pds_fraction: Option<u32>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Overwrite a block device that holds data
    #[arg(long)]
    pub(crate) force: bool,
}

impl InitArgs {
    /// Layout of the options, or the default of a local or clustered repository.
    /// # Errors
    /// `--pds-fraction` with the layout solo.
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

    /// The new store, but for its backend.
    pub(crate) fn new_store(&self) -> NewStore {
        NewStore { size_bytes: self.size, overwrite: self.force, ..NewStore::default() }
    }
}

/// Sharing of chunks in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutWord {
    /// All snapshots share all chunks; one process at a time writes
    Solo,
    /// VMs share popular chunks only; many hosts write
    Fleet,
}

/// How disks are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChunkingWord {
    /// Content-defined, 16 KiB on average: best for nearly all uses
    Default,
    /// Content-defined, 4 KiB on average, as in the paper: a little less space, four times the index
    Paper,
    /// Fixed 64 KiB: for disks cloned from one template; chunk sizes reveal nothing about the content
    Clone,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RepairCommand {
    /// Rebuild the index of chunks from the packs
    #[command(after_help = "\
The index lists the stored chunks and their locations. Restores do not use it, and the rebuild loses no data. Run this command when \
another one reports that the index failed; `copal check` shows any other damage.

Example:
  copal repair index")]
    Index,
    /// In a fleet: find the dead data of a VM that deletions have left
    #[command(after_help = "\
A deletion by summary vectors keeps about one dead frame in a thousand by chance, and packs of unfinished backups remain. This \
command walks all snapshots of the VM. Frames that no snapshot refers to are dead; packs without a live frame are removed, and packs \
that are mostly dead are rewritten. `copal stats --vm NAME` shows an estimate of the dead data.

Example:
  copal repair leak --vm web")]
    Leak(RepairLeak),
    /// Copy every undamaged snapshot from a damaged repository into a new one
    #[command(after_help = "\
For a repository that does not open, or in which `copal check` finds much damage. The command opens it read-only, as far as its \
structures can be read, and changes nothing in it. The new repository has the same password, ids and times. It holds the snapshots \
in which every chunk matches its fingerprint. Saved and lost snapshots are listed. Exit code 20: a snapshot was lost, or only an \
older state could be read, in which newer snapshots may be missing. The new repository needs as much space as the old one. \
It is of the same kind unless --backend is given.

Example:
  copal repair store --to /mnt/new/copal")]
    Store(RepairStore),
}

#[derive(Debug, Args)]
pub(crate) struct RepairLeak {
    /// Name or UUID of the VM
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: String,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Only this VM of a fleet (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

/// `copal sessions`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List backups in progress
    #[command(after_help = "\
Example:
  copal sessions ls")]
    Ls,
    /// End the sessions of a VM whose host has died, so that the VM can be backed up again
    #[command(after_help = "\
If such a backup still runs, it publishes no snapshot and reports an error; the next backup uses the data that it stored. On a \
single machine the command is not needed: the next backup does the same.

Example:
  copal sessions fence web")]
    Fence(SessionsFence),
}

#[derive(Debug, Args)]
pub(crate) struct SessionsFence {
    /// Name or UUID of the VM
    #[arg(value_name = "NAME")]
    pub(crate) vm: String,
}

/// `copal vm`.
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// List the VMs of the repository
    #[command(after_help = "\
Example:
  copal vm ls")]
    Ls,
    /// In a fleet: remove a VM and all its data
    #[command(after_help = "\
Data of other VMs is neither read nor changed. The removal is final: a VM with snapshots needs --force, and a VM with a held \
snapshot is refused. Afterwards the name is free for another VM.

Example:
  copal vm rm web --force")]
    Rm(VmRm),
}

#[derive(Debug, Args)]
pub(crate) struct VmRm {
    /// Name or UUID of the VM
    #[arg(value_name = "NAME")]
    pub(crate) vm: String,
    /// Also remove its snapshots
    #[arg(long)]
    pub(crate) force: bool,
    /// Trust the clock of this machine although it is more than 45 days ahead of the newest snapshots: holds
    /// that expired by this clock have ended
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RepairStore {
    /// Directory of the new repository, or a block device; it must not hold a repository
    #[arg(long, value_name = "NEW")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// Commands on an object store.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Show whether an object store can hold a repository
    #[command(after_help = PROBE_HELP)]
    Probe,
}

const PROBE_HELP: &str = "\
The probe writes about ten small objects below the prefix and removes them. Exit code 0: usable; 21: the store lacks a property; 12: credentials; 10: no such bucket; 42: no answer.

Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE or ~/.aws (S3), AZURE_STORAGE_ACCOUNT_KEY (Azure), GOOGLE_APPLICATION_CREDENTIALS (Google). HDFS takes the user of HADOOP_USER_NAME, and settings from HADOOP_CONF_DIR.

Parameters of an address: endpoint=URL, region=NAME and style=path|host (S3), ca=FILE, tls=none, rps=N, connections=N, imds=yes (credentials of this machine's metadata service). HDFS has tls=none and connections=N.

Examples:
  copal store probe --repo 's3://vms/office?region=eu-central-1'
  copal store probe --repo 's3://vms/office?endpoint=https://minio.example:9000' --json";

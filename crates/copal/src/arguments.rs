//! What can be typed: commands, options and the help that teaches them. One definition makes the
//! parser, `--help` and the shell completions.
//!
//! Not here: what the words mean (`commands`).

use crate::{
    failure::{Failure, Outcome},
    human,
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use copal_node::{NewStore, StoreOptions};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed, or standard output took not all of the result; the sentence on standard error says why
    2  the words of the command line make no sense, or fit several snapshots or VMs
    3  a source could not be read (missing image, bad disk, qemu-nbd missing), or was cut or replaced while it was; no
       snapshot was made
   10  no repository there, or the file is not a Copal store
   11  another process is using the store
   12  wrong password, no password where one is needed, or a repository without one (see --insecure-no-password)
   20  stored data is damaged, cut off or missing
   21  denied: by a guard of the retention rules, because the store is read-only, or because the target exists
   22  --strict-incremental: a disk could not be backed up from its changed extents
   28  the store is full and cannot grow
  130  interrupted; the store is consistent

Any other code is a failure too.

Environment:
  COPAL_REPOSITORY     the repository, instead of --repo
  COPAL_PASSWORD_FILE  a file whose first line is the password, instead of --password-file
  COPAL_PASSWORD       the password itself; a file is safer
  COPAL_WAIT           how long to wait for a store in use, instead of --wait
  COPAL_LOG            more words on standard error, such as info or copal_object=debug

A first tour:
  export COPAL_REPOSITORY=/backup/copal COPAL_PASSWORD_FILE=/root/copal.password
  copal init
  copal backup --vm web /var/lib/images/web.raw
  copal snapshots
  copal restore latest --vm web --target /tmp/web.raw
  copal prune --keep-daily 7 --keep-weekly 4";

/// Backs up disks of virtual machines: deduplicated, compressed, encrypted, deleted in seconds.
///
/// A repository is a directory with one preallocated file. The second backup of a disk stores what
/// changed, and with --changed-extents it also reads only what changed.
#[derive(Debug, Parser)]
#[command(name = "copal", version, after_help = EXIT_CODES, propagate_version = true, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes, before or after its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Directory of the repository, or the block device that is one
    #[arg(long, short, global = true, env = "COPAL_REPOSITORY", value_name = "DIR")]
    pub(crate) repo: Option<PathBuf>,
    /// File whose first line is the password
    #[arg(long, global = true, env = "COPAL_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Make or open a repository without encryption: whoever reads the file reads the disks. Without this option such a
    /// one is refused
    #[arg(long, global = true)]
    pub(crate) insecure_no_password: bool,
    /// Speak JSON lines on standard output: {"v":1,"message_type":"status|verbose|item|summary|error|exit_error",...}
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing on success, unless it was asked for (a listing, statistics, a dry run)
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Most memory the process may take, at least 80M
    #[arg(long, global = true, value_name = "SIZE", default_value = "96M", value_parser = human::parse_bytes)]
    pub(crate) memory: u64,
    /// Most bytes the store file may grow to (default: as far as its file system goes)
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) store_limit: Option<u64>,
    /// Open a store whose last acknowledged writes are damaged, without them
    #[arg(long, global = true)]
    pub(crate) accept_tail_loss: bool,
    /// Wait so long for a store that another process is using: 90s, 10m, 2h (default: exit code 11)
    #[arg(long, global = true, env = "COPAL_WAIT", value_name = "DURATION", value_parser = human::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Use pread and pwrite even where the kernel offers io_uring
    #[arg(long, global = true)]
    pub(crate) no_io_uring: bool,
    /// Accept a repository on a copy-on-write file system (btrfs, ZFS), where preallocation promises nothing
    #[arg(long, global = true)]
    pub(crate) allow_cow: bool,
    /// Accept a repository on a file system in memory (tmpfs), which a reboot empties
    #[arg(long, global = true)]
    pub(crate) allow_volatile: bool,
    /// Write every look-up in the engine to a new file, for the simulator of filter rules (`copal-sim rules --trace`): a
    /// line for each key, as many as there are chunks
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) record_gets: Option<PathBuf>,
}

impl Common {
    /// The directory or device that was named.
    /// # Errors
    /// None was.
    pub(crate) fn repository(&self) -> Outcome<&Path> {
        let none = || Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY");
        self.repo.as_deref().ok_or_else(none)
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions {
            limit_bytes: self.store_limit,
            accept_tail_loss: self.accept_tail_loss,
            force_pread: self.no_io_uring,
            allow_cow: self.allow_cow,
            allow_volatile: self.allow_volatile,
        }
    }
}

/// Below each command, in the place of the options that all of them take.
const COMMON_HELP: &str = "\
{before-help}{about-with-newline}
{usage-heading} {usage}

{all-args}

Common options:
  --repo, --json, --quiet, --wait and others go with every command; `copal --help` lists them{after-help}";

/// Takes the words of the command line apart.
/// # Errors
/// They make no sense, or ask for help or the version.
pub(crate) fn parse() -> Result<Arguments, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The definition with the common options shown once, by `copal --help`. What is hidden below the commands is also not
/// demanded by their usage errors, whoever gave it: the environment mostly.
fn command() -> clap::Command {
    let mut command = Arguments::command();
    let common: Vec<clap::Id> = command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.get_id().clone())
        .collect();
    // From here on the commands below have the common options.
    command.build();
    command.mut_subcommands(|below| hide(below, &common))
}

fn hide(command: clap::Command, common: &[clap::Id]) -> clap::Command {
    let is_common = |argument: &clap::Arg| common.contains(argument.get_id());
    command
        .mut_args(|argument| match is_common(&argument) {
            true => argument.hide(true),
            false => argument,
        })
        .help_template(COMMON_HELP)
        .mut_subcommands(|below| hide(below, common))
}

const STATS_HELP: &str = "\
Disks as they were is the sum over all snapshots, In packs what that takes after deduplication and compression. Space \
that is free inside the store file is used before the file grows; the file does not shrink.

Examples:
  copal stats
  copal stats --json";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a repository
    Init(Init),
    /// Back up the disks of one VM
    Backup(Backup),
    /// List snapshots
    Snapshots(Snapshots),
    /// Show what the disks of a snapshot consist of
    Ls(Ls),
    /// Write a disk of a snapshot to a file, a block device or standard output
    Restore(Restore),
    /// Decode every chunk of a snapshot and compare it with its fingerprint
    Verify(Verify),
    /// Look for damage in the whole repository
    Check(Check),
    /// Make snapshots invisible, by name or by a retention policy; frees nothing yet
    Forget(Forget),
    /// Protect snapshots: nothing forgets them until the hold ends
    Hold(Hold),
    /// Free the space of forgotten snapshots, rewriting nothing
    Delete(Delete),
    /// Forget by policy, free the space and rewrite packs that are partly unused
    Prune(Prune),
    /// Show the size and shape of the repository
    #[command(after_help = STATS_HELP)]
    Stats,
    /// Repair what can be rebuilt
    #[command(subcommand)]
    Repair(Repair),
    /// Look into the key-value engine below a repository, or into any store of it
    Kv(crate::kv_arguments::Kv),
    /// Show the version
    Version,
    /// Print a completion script for a shell
    Completions(Completions),
}

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
  copal init --repo /backup/copal                (asks for the password)")]
pub(crate) struct Init {
    /// Bytes to preallocate, at least 64MiB; the store file grows when they are used up
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = human::parse_bytes)]
    pub(crate) size: u64,
    /// How disks are cut into chunks, fixed for the life of the repository
    #[arg(long, value_enum, default_value_t = Chunking::Default)]
    pub(crate) chunking: Chunking,
    /// What the store lies in, fixed for the life of the repository
    #[arg(long, value_enum, default_value_t = Backend::Cow)]
    pub(crate) backend: Backend,
    /// Overwrite a block device that holds something
    #[arg(long)]
    pub(crate) force: bool,
}

impl Init {
    pub(crate) fn new_store(&self) -> NewStore {
        NewStore {
            backend: match self.backend {
                Backend::Cow => copal_node::Backend::File,
                Backend::Hostfs => copal_node::Backend::Files,
            },
            size_bytes: self.size,
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

#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a raw image (sparse or not), a block device, a qcow2 image (read through qemu-nbd), an NBD \
export (nbd://host/export, nbd+unix:///export?socket=/path), or - for standard input. The image must \
not change while it is read: back up a snapshot of a running VM, not its disk.

A format is never guessed from content alone, because a guest can write a qcow2 header into its raw \
disk: name qcow2 images .qcow2, or say --format.

What is not known to have changed is taken from the newest snapshot unread, so something must vouch for that. A dirty bitmap \
(qcow2, NBD) is believed if the newest snapshot says that it began there: name the bitmap that records from now on with \
--starts-bitmap, and next time the same one with --bitmap. A list of changed extents is believed if it names its base, in the \
file or by --base ID; `latest` does not vouch, since after a backup that failed it is an older snapshot than the list begins \
with. In every other case (another bitmap, a cleared, inconsistent or missing one, another size or serial) that disk is read \
in full, which the summary says (--strict-incremental: exit code 22).

--changed-extents takes {\"v\":1,\"size\":N,\"base\":\"<snapshot>\",\"extents\":[{\"offset\":O,\"length\":L, \
\"type\":\"dirty\"|\"zero\"}]} or what `nbdinfo --json --map=qemu:dirty-bitmap:NAME URI` prints. A list of another size is \
refused.

Examples:
  copal backup --vm web /var/lib/images/web.raw
  copal backup --vm db --disk sda=/dev/vg/db-root --disk sdb=/dev/vg/db-data
  qemu-img bitmap --add web.qcow2 b1; copal backup --vm web web.qcow2 --starts-bitmap b1
  qemu-img bitmap --add web.qcow2 b2; copal backup --vm web web.qcow2 --bitmap b1 --starts-bitmap b2
  copal backup --vm web --disk sda='nbd+unix:///?socket=/run/vm' --bitmap b2 --starts-bitmap b3
  copal backup --vm web /var/lib/images/web.raw --changed-extents today.json --base 3fa8c1d2
  zstdcat old.raw.zst | copal backup --vm archive -")]
pub(crate) struct Backup {
    /// Name or UUID of the VM; a new one is entered
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: String,
    /// The only disk of the VM; it is called sda
    #[arg(
        value_name = "IMAGE",
        required_unless_present = "disks",
        conflicts_with = "disks"
    )]
    pub(crate) image: Option<String>,
    /// One disk of several (repeat)
    #[arg(long = "disk", value_name = "NAME=IMAGE")]
    pub(crate) disks: Vec<String>,
    /// Format of image files
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(crate) format: Format,
    /// What changed since the newest snapshot, as a JSON file; NAME=FILE with several disks (repeat)
    #[arg(long, value_name = "FILE")]
    pub(crate) changed_extents: Vec<String>,
    /// Take what changed from this dirty bitmap of a qcow2 image or an NBD export, if the newest snapshot began it
    #[arg(long, value_name = "NAME", conflicts_with = "changed_extents")]
    pub(crate) bitmap: Option<String>,
    /// Note that this dirty bitmap has recorded every write since the moment that is backed up, or longer
    #[arg(long, value_name = "NAME")]
    pub(crate) starts_bitmap: Option<String>,
    /// Snapshot that the changed extents are relative to, when they do not say so themselves: its id
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) base: Option<String>,
    /// What tells a disk from another one that may get its name; NAME=SERIAL with several disks (repeat). With another serial
    /// than before it is read in full
    #[arg(long, value_name = "SERIAL")]
    pub(crate) serial: Vec<String>,
    /// Share of the unchanged data of a disk that is read and compared all the same, at least 16 MiB; 0% for none. A
    /// difference is warned of and makes the disk be read in full
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = human::parse_share)]
    pub(crate) spot_check: u32,
    /// Read everything, whatever changed
    #[arg(long, conflicts_with_all = ["changed_extents", "bitmap", "strict_incremental"])]
    pub(crate) full: bool,
    /// Fail (exit code 22) instead of reading a whole disk when its changed extents cannot be used
    #[arg(long)]
    pub(crate) strict_incremental: bool,
    /// Word kept with the snapshot (repeat)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Text kept with the snapshot
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) description: String,
}

/// Format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By name and first bytes together; asks when they disagree
    Auto,
    /// The bytes of the file are the bytes of the disk
    Raw,
    /// Read through qemu-nbd (apt install qemu-utils)
    Qcow2,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Size is that of the disks, New what nobody in the repository held before that backup, Stored what the backup added to \
the store, compressed. What forgetting a snapshot would free is another number: others may need what it brought.

Examples:
  copal snapshots
  copal snapshots --vm web
  copal snapshots --tag before-upgrade --description kernel
  copal snapshots --json | jq -r '.snapshots[] | [.short_id, .time, .vm.name] | @tsv'")]
pub(crate) struct Snapshots {
    /// Only those of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Only those that carry this tag (repeat: every one of them)
    #[arg(long = "tag", value_name = "WORD")]
    pub(crate) tags: Vec<String>,
    /// Only those whose description holds this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

/// A snapshot as people name it.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Id, a unique beginning of one (4 digits or more), or `latest`
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: String,
    /// VM that `latest` means, by name or UUID; needed once several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Data is what a restore writes, holes are what it leaves out. The mode says how the disk was read: full, as the first of \
its VM; rescan, all of it again; incremental, only its changed extents. The reason says why not incremental.

Examples:
  copal ls latest --vm web
  copal ls 3fa8c1d2 --json")]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A new file is written as FILE.copal-partial and gets its name when it is whole. Holes stay holes. \
Whatever exists already is refused unless --force is given.

Examples:
  copal restore latest --vm web --target /tmp/web.raw
  copal restore 3fa8c1d2 --disk sdb --target /dev/vg/db-data --force
  copal restore latest --vm web --target - | zstd > web.raw.zst
  copal restore 3fa8c1d2 --disk sda --target a.raw && qemu-img convert -f raw -O qcow2 a.raw a.qcow2")]
pub(crate) struct Restore {
    #[command(flatten)]
    pub(crate) which: Which,
    /// File, block device, or - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) target: String,
    /// Which disk, when the snapshot has several
    #[arg(long, value_name = "NAME")]
    pub(crate) disk: Option<String>,
    /// Overwrite an existing file or a block device
    #[arg(long, alias = "overwrite")]
    pub(crate) force: bool,
    /// Packs fetched at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) fetches: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads what a restore would read and writes no disk. A snapshot that is found whole is remembered as verified, and \
retention keeps the newest such of each VM. Damage is listed, and the exit code is 20.

Examples:
  copal verify latest --vm web
  copal verify 3fa8c1d2")]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without options every reference is followed and every pack's structure is looked at; --read-data also \
decodes the data and reads every byte of the store that stands under a checksum. Damage is listed with \
the snapshots it hurts, and the exit code is 20.

Examples:
  copal check
  copal check --read-data
  copal check --read-data --coverage             (and which bytes of the file that was)
  copal check --read-data-subset 3/7             (a seventh per day of the week)")]
pub(crate) struct Check {
    /// Decode all data and compare it with its fingerprints
    #[arg(long)]
    pub(crate) read_data: bool,
    /// Decode one slice of the packs: n/t
    #[arg(long, value_name = "n/t", value_parser = parse_slice, conflicts_with = "read_data")]
    pub(crate) read_data_subset: Option<(u32, u32)>,
    /// Say which bytes of the store were compared with a checksum, and which hold nothing
    #[arg(long, requires = "read_data")]
    pub(crate) coverage: bool,
}

/// What to keep. Options apply in this order, from the newest snapshot back.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retention")]
pub(crate) struct Keep {
    /// Keep the newest so many
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_last: u32,
    /// Keep the newest of each of the last N hours that have one
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_hourly: u32,
    /// The same for days
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_daily: u32,
    /// The same for ISO weeks
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_weekly: u32,
    /// The same for months
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_monthly: u32,
    /// The same for years
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_yearly: u32,
    /// Keep all that are at most this much older than the newest: 30d, 1y6m, 12h
    #[arg(long, value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) keep_within: Option<jiff::SignedDuration>,
    /// Keep all that carry this tag (repeat)
    #[arg(long, value_name = "WORD")]
    pub(crate) keep_tag: Vec<String>,
}

const RETENTION_HELP: &str = "\
Retention follows Proxmox Backup Server: each VM is judged alone; hours, days and so on without a \
snapshot do not count; a period that an earlier option already keeps a snapshot of is not counted \
again; --keep-within and --keep-tag come on top, and so do held snapshots (copal hold) and the newest \
one that was verified (copal verify). A policy that would remove more than half of a VM's \
snapshots (of five or more) needs --force. A snapshot whose time cannot be (a clock was wrong) stays \
until it is named, and counts for nothing; what goes by age alone, when the clock has jumped by more \
than 45 days, needs --accept-clock.";

#[derive(Debug, Args)]
#[command(after_help = RETENTION_HELP, after_long_help = format!("{RETENTION_HELP}

Examples:
  copal forget 3fa8c1d2
  copal forget --vm web --keep-last 3 --keep-daily 7 --keep-weekly 4 --dry-run"))]
pub(crate) struct Forget {
    /// Snapshots to forget: ids or unique beginnings
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    #[command(flatten)]
    pub(crate) keep: Keep,
    /// Say what would be forgotten and why, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Forget more than half of a VM's snapshots at once
    #[arg(long)]
    pub(crate) force: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  copal hold latest --vm web
  copal hold 3fa8c1d2
  copal hold 3fa8c1d2 --for 1y
  copal hold 3fa8c1d2 --release")]
pub(crate) struct Hold {
    /// Snapshots: ids, unique beginnings, or `latest`
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
    /// VM that `latest` means, by name or UUID; needed once several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// End the hold by itself after this time: 30d, 1y6m, 12h (default: it ends by --release)
    #[arg(long = "for", value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) within: Option<jiff::SignedDuration>,
    /// End the hold now
    #[arg(long, conflicts_with = "within")]
    pub(crate) release: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A pack that no snapshot needs any more goes at once; one that is needed in part stays as it is until `copal prune` \
rewrites it. Snapshots that are named here are forgotten first; held ones are refused.

Examples:
  copal delete                                   (after `copal forget`)
  copal delete 3fa8c1d2 --dry-run
  copal delete 3fa8c1d2")]
pub(crate) struct Delete {
    /// Snapshots to forget first: ids or unique beginnings
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Say what would happen, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots: a hold that
    /// ended meanwhile has ended
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RETENTION_HELP, after_long_help = format!("{RETENTION_HELP}

Examples:
  copal prune                                    (only what was forgotten before)
  copal prune --keep-daily 7 --keep-weekly 4"))]
pub(crate) struct Prune {
    /// Judge only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    #[command(flatten)]
    pub(crate) keep: Keep,
    /// Unused share of the stored bytes to leave, such as 5%; rewriting the rest costs more than it frees
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    pub(crate) max_unused: u8,
    /// Say what would happen, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Forget more than half of a VM's snapshots at once
    #[arg(long)]
    pub(crate) force: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots
    #[arg(long)]
    pub(crate) accept_clock: bool,
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

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal completions bash > /etc/bash_completion.d/copal")]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `5%` or `5`.
fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    match number {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err(format!("{text:?} is not a share from 0% to 100%")),
    }
}

/// `3/7`.
fn parse_slice(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once('/')
        .and_then(|(n, t)| Some((n.parse().ok()?, t.parse().ok()?)));
    match parsed {
        Some((n, t)) if (1..=t).contains(&n) => Ok((n, t)),
        _ => Err(format!("{text:?} is not a slice like 3/7")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
        command().debug_assert();
    }

    /// Symptom: paragraphs of the help had lines of one or two words.
    /// Cause: they were broken by hand, at another width than that of the terminal.
    /// Fix: a paragraph is one line, which is broken where the terminal ends.
    #[test]
    fn help_is_wrapped_by_the_terminal_and_teaches_by_example() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2) {
                let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(' ');
                assert!(
                    !is_paragraph(pair[0]) || !is_paragraph(pair[1]),
                    "{path}: {pair:?}"
                );
            }
            let has_more = command.has_subcommands();
            if !has_more && command.get_name() != "version" {
                let long = command.get_after_long_help().map(ToString::to_string);
                let all = help + &long.unwrap_or_default();
                assert!(all.contains("Example"), "{path} has no example");
            }
            for one in command.get_subcommands() {
                look(one, &path);
            }
        }
        look(&Arguments::command(), "");
    }

    #[test]
    fn the_promised_forms_are_understood() {
        for line in [
            "copal init --repo R",
            "copal backup --repo R --vm NAME IMAGE",
            "copal backup --repo R --vm NAME --disk sda=IMAGE --disk sdb=OTHER",
            "copal --repo R backup --vm NAME -",
            "copal snapshots --repo R --json",
            "copal restore --repo R latest --vm NAME --target OUT",
            "copal restore --repo R 3fa8 --target - --overwrite",
            "copal forget --repo R --keep-last 1 --keep-within 1y6m --dry-run",
            "copal check --repo R --read-data-subset 3/7",
            "copal prune --repo R --keep-daily 7 --memory 128M",
            "copal prune --repo R --max-unused 5% --accept-clock --keep-last 1",
            "copal prune --repo R --max-unused 0",
            "copal completions bash",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "copal",
            "copal backup --vm NAME",
            "copal backup IMAGE",
            "copal backup --vm NAME IMAGE --disk sda=IMAGE",
            "copal restore 3fa8",
            "copal check --read-data-subset 8/7",
            "copal check --read-data-subset 0/7",
            "copal forget --keep-within 3",
            "copal prune --max-unused 101%",
            "copal stats --memory lots",
        ] {
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}

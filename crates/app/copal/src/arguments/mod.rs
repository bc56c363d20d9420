//! Arguments of the command line: commands, options and their help. One definition makes the parser, `--help`
//! and the shell completions.
//!
//! Not here: the execution of commands (`commands`).

mod agent;
mod backend;
mod backup;
mod bitmap;
mod client;
mod cluster;
mod cluster_process;
mod copy;
mod device;
mod discard;
mod export;
mod global;
mod key;
pub(crate) mod kv;

mod repository;
mod retention;
mod snapshot;

pub(crate) use agent::{
    AgentArgs, AgentCommand, JobCommand, JobOptions, JobRun, JobStatus, PdsCleanup, PdsCommand, PdsPrune,
    SchemeWord,
};
pub(crate) use backend::{BackendArgs, BackendChoice, BackendWord};
pub(crate) use backup::{BackupArgs, FormatWord, FreezeWord};
pub(crate) use bitmap::{BitmapCommand, BitmapLs, BitmapRm};
pub(crate) use client::ClientCommand;
pub(crate) use cluster::{
    DiskCommand, DoctorArgs, EventsArgs, FileArgs, FsArgs, FsCommand, GroupCommand, MetaCommand, NodeCommand,
    RebalanceCommand, StatusArgs, TransferWord,
};
pub(crate) use cluster_process::{DataArgs, MasterArgs, ServeArgs};
pub(crate) use copy::CopyArgs;
pub(crate) use device::{
    DeviceCommand, DeviceDfArgs, DeviceDumpArgs, DeviceFsckArgs, DeviceProbeArgs, DeviceProfileArgs,
    DeviceScrubArgs, InspectCommand,
};
pub(crate) use export::{MountArgs, NbdArgs};
pub(crate) use global::{CommonArgs, WaitCondition};
pub(crate) use key::{KeyAdd, KeyCommand, KeyRm, RoleWord};
pub(crate) use repository::{
    ChunkingWord, InitArgs, RepairCommand, RepairLeak, RepairStore, SessionsCommand, SessionsFence,
    StatsArgs, StoreCommand, VmCommand, VmRm,
};
pub(crate) use retention::{AcceptArgs, DeleteArgs, ForgetArgs, HoldArgs, KeepArgs, MethodWord, PruneArgs};
pub(crate) use snapshot::{CheckArgs, LsArgs, RestoreArgs, SnapshotsArgs, VerifyArgs};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
    0  success
    1  failure, or standard output did not take the whole result; standard error gives the reason
    2  invalid command line, or a name that matches several snapshots or VMs
    3  a source could not be read (missing image, bad disk, qemu-nbd missing), is empty, incomplete, smaller than before
       or of another format, or was truncated or replaced while it was read; no snapshot was made. Or an object of an
       object store is in an archive tier
   10  no repository at this place, the file is not a Copal store, or an object store has no such bucket
   11  another process is using the store
   12  wrong or missing password or key, a repository without encryption (see --insecure-no-password), an expired
       certificate of a cluster (see `copal client renew`), or credentials that an object store does not accept
   20  stored data is damaged, truncated or missing
   21  refused: by a guard of the retention rules, by the rights of the key or credentials, because the store is
       read-only or unsuitable, or because the target exists
   22  --strict-incremental: a disk could not be backed up from its changed extents
   28  the store is full and cannot grow
   40  no such file or volume in the cluster
   41  the name is taken
   42  too few servers are up, or no answer in time; the operation did not happen
   43  the operation may have happened or not; `copal fs settle` decides it
   44  the cluster is full, or the volume's quota is reached
  130  interrupted; the store is consistent

Any other code is a failure, too.

`copal device fsck`, `df`, `dump` and `scrub` have the codes of other checkers:
    0  no damage
    1  damage found
    2  the command could not run
  130  interrupted

Environment:
  COPAL_REPOSITORY     repository, instead of --repo
  COPAL_PASSWORD_FILE  file whose first line is the password, instead of --password-file
  COPAL_PASSWORD       password; a file is safer
  COPAL_KEY_FILE       key file of `copal key add`, instead of --key
  COPAL_CLUSTER        profile of the cluster, instead of --cluster
  COPAL_WAIT           longest wait for a store in use, instead of --wait
  COPAL_THREADS        number of threads, instead of --threads
  COPAL_LOG            log filter for standard error, such as info or copal_object=debug

A first tour:
  export COPAL_REPOSITORY=/backup/copal COPAL_PASSWORD_FILE=/root/copal.password
  copal init
  copal backup --vm web /var/lib/images/web.raw
  copal snapshots
  copal restore latest --vm web --target /tmp/web.raw
  copal prune --keep-daily 7 --keep-weekly 4";

/// Backs up disks of virtual machines: deduplicated, compressed, encrypted, deleted in seconds.
///
/// A repository is a directory with one preallocated file. The second backup of a disk stores only the changed
/// data, and with --changed-extents it also reads only the changed data.
#[derive(Debug, Parser)]
#[command(name = "copal", version, after_help = EXIT_CODES, propagate_version = true, max_term_width = 100)]
pub(crate) struct CopalArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(subcommand)]
    pub(crate) command: CopalCommand,
}

/// Help of each command, with one line instead of the common options.
const COMMON_HELP: &str = "\
{before-help}{about-with-newline}
{usage-heading} {usage}

{all-args}

Common options:
  Every command takes --repo, --json, --quiet, --wait and others; `copal --help` lists them{after-help}";

/// Parses the command line.
/// # Errors
/// The command line is invalid, or asks for help or the version.
pub(crate) fn parse() -> Result<CopalArgs, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    CopalArgs::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The definition with the common options shown once, by `copal --help`. The commands hide them, so their usage
/// errors do not demand an option that the environment has already set.
fn command() -> clap::Command {
    let mut command = CopalArgs::command();
    let common: Vec<clap::Id> = command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.get_id().clone())
        .collect();
    // The build copies the common options to the subcommands.
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
`Disks as they were` is the sum of the disk sizes over all snapshots, `In packs` their size after deduplication and compression. \
The store uses free space inside its file before the file grows; the file does not shrink.

Examples:
  copal stats
  copal stats --vm web --json                    (space and leaked bytes of a VM of a fleet)";

#[derive(Debug, Subcommand)]
pub(crate) enum CopalCommand {
    /// Create a repository
    Init(InitArgs),
    /// Back up the disks of one VM
    Backup(Box<BackupArgs>),
    /// List snapshots
    Snapshots(SnapshotsArgs),
    /// Show the disks of a snapshot: data, holes, and how they were read
    Ls(LsArgs),
    /// Write a disk of a snapshot to a file, a block device or standard output
    Restore(RestoreArgs),
    /// Export the disks of a snapshot to NBD clients: virtual machines, nbdcopy, qemu-img
    Nbd(NbdArgs),
    /// Mount snapshots as files in a directory
    Mount(MountArgs),
    /// Copy snapshots to another repository
    Copy(CopyArgs),
    /// Decode every chunk of a snapshot and compare it with its fingerprint
    Verify(VerifyArgs),
    /// Check the whole repository for damage
    Check(CheckArgs),
    /// Hide snapshots, by name or by a retention policy, without freeing space
    Forget(ForgetArgs),
    /// Protect snapshots from being forgotten until the hold ends
    Hold(HoldArgs),
    /// Accept snapshots that were made despite a warning
    Accept(AcceptArgs),
    /// Free the space of forgotten snapshots without rewriting packs
    Delete(DeleteArgs),
    /// Forget snapshots by policy, free their space and rewrite partly unused packs
    Prune(PruneArgs),
    /// Show sizes and counts of the repository
    #[command(after_help = STATS_HELP)]
    Stats(StatsArgs),
    /// Run the agent of a host, list the agents, or remove one
    Agent(AgentArgs),
    /// Back up the VMs of all agents
    #[command(subcommand)]
    Job(JobCommand),
    /// Manage popular chunks, which many VMs share
    #[command(subcommand)]
    Pds(PdsCommand),
    /// Manage sessions, which are backups in progress
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Manage VMs of the repository
    #[command(subcommand)]
    Vm(VmCommand),
    /// Manage dirty bitmaps that backups have created in QEMU
    #[command(subcommand)]
    Bitmap(BitmapCommand),
    /// Manage keys of the repository with restricted rights
    #[command(subcommand)]
    Key(KeyCommand),
    /// Examine an object store that other people run (s3://, az://, gs://, hdfs://)
    #[command(subcommand)]
    Store(StoreCommand),
    /// Repair a repository
    #[command(subcommand)]
    Repair(RepairCommand),
    /// Run a master of a cluster
    Master(MasterArgs),
    /// Run a data server of a cluster
    Data(DataArgs),
    /// Run a cluster on this machine, for tests
    Serve(ServeArgs),
    /// Show the health of a cluster
    Status(StatusArgs),
    /// Manage volumes and files of a cluster
    Fs(FsArgs),
    /// Manage servers of a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show disks of a cluster
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Manage clients of a cluster with restricted rights
    #[command(subcommand)]
    Client(ClientCommand),
    /// Manage groups of volumes of a cluster and their replicas
    #[command(subcommand)]
    Group(GroupCommand),
    /// Move groups between servers: plan, apply, pause
    #[command(subcommand)]
    Rebalance(RebalanceCommand),
    /// Show the events of a cluster
    Events(EventsArgs),
    /// Check certificates, clocks, disks and limits of a cluster
    Doctor(DoctorArgs),
    /// Back up, restore or check the database of a master
    #[command(subcommand)]
    Meta(MetaCommand),
    /// Measure disks, and look into stores: check, space, structures, profile
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Inspect or repair the key-value engine below a repository, or any of its stores
    Kv(kv::KvArgs),
    /// Resume a guest that a killed backup had stopped; for the guardian of the backup
    #[command(hide = true)]
    ResumeGuest(ResumeGuest),
    /// Thaw a guest that a killed backup had frozen; for the guardian of the backup
    #[command(hide = true)]
    ThawGuest(ThawGuest),
    /// Show the version
    Version,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal resume-guest /run/web.qmp copal-0123abcd-stop")]
pub(crate) struct ResumeGuest {
    /// QMP socket of the guest
    pub(crate) socket: PathBuf,
    /// Object in QEMU that names the backup which stopped the guest
    pub(crate) mark: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal thaw-guest /run/web-qga.sock")]
pub(crate) struct ThawGuest {
    /// Socket of the guest's agent
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal completions bash > /etc/bash_completion.d/copal")]
pub(crate) struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        for word in [copal_live::RESUME, copal_live::THAW] {
            assert!(CopalArgs::command().find_subcommand(word).is_some(), "{word}");
        }
        CopalArgs::command().debug_assert();
        command().debug_assert();
    }

    /// Symptom: paragraphs of the help had lines of one or two words.
    /// Cause: their line breaks were fixed, at another width than that of the terminal.
    /// Fix: a paragraph is one line, which is wrapped at the width of the terminal.
    #[test]
    fn help_is_wrapped_by_the_terminal_and_teaches_by_example() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2) {
                let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(' ');
                assert!(!is_paragraph(pair[0]) || !is_paragraph(pair[1]), "{path}: {pair:?}");
            }
            let has_more = command.has_subcommands();
            if !has_more && command.get_name() != "version" {
                let long = command.get_after_long_help().map(ToString::to_string);
                let all = help + &long.unwrap_or_default();
                assert!(all.contains("Example"), "{path} has no example");
            }
            for subcommand in command.get_subcommands() {
                look(subcommand, &path);
            }
        }
        look(&CopalArgs::command(), "");
    }

    #[test]
    fn the_promised_forms_are_understood() {
        for line in [
            "copal init --repo R",
            "copal backup --repo R --vm NAME IMAGE",
            "copal backup --repo R --vm NAME --disk sda=IMAGE --disk sdb=OTHER",
            "copal --repo R backup --vm NAME -",
            "copal backup --vm NAME --qmp S --node sda=N --node sdb=M --freeze agent --fleece-dir D --fleece-limit 10%",
            "copal backup --vm NAME --qmp S --node sda=N --format raw --allow-smaller --full-every 30d",
            "copal backup --vm NAME --from-command ssh -C host dd --repo x if=/dev/vg/web",
            "copal accept 3fa8 latest --vm web",
            "copal copy --repo R --vm NAME --since 30d --to s3://B/P --to-password-file F --dry-run",
            "copal copy latest --vm NAME --to copal://H:7400/V?profile=F --json",
            "copal copy --all --to R --to-key F",
            "copal bitmap ls --qmp S",
            "copal bitmap rm --qmp S --node N NAME",
            "copal bitmap rm --qmp S --node N --all",
            "copal snapshots --repo R --json",
            "copal restore --repo R latest --vm NAME --target OUT",
            "copal restore --repo R 3fa8 --target - --overwrite",
            "copal forget --repo R --keep-last 1 --keep-within 1y6m --dry-run",
            "copal check --repo R --read-data-subset 3/7",
            "copal prune --repo R --keep-daily 7 --memory 128M",
            "copal prune --repo R --max-unused 5% --accept-clock --keep-last 1",
            "copal prune --repo R --max-unused 0",
            "copal check --repo R --read-data --threads 16",
            "copal key add --role backup --out F",
            "copal --key F key ls",
            "copal key rm 5c1d --key F",
            "copal completions bash",
        ] {
            CopalArgs::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "copal",
            "copal backup --vm NAME",
            "copal backup IMAGE",
            "copal backup --vm NAME --qmp S",
            "copal backup --vm NAME --node sda=N",
            "copal backup --vm NAME --qmp S --node sda=N IMAGE",
            "copal backup --vm NAME IMAGE --from-command zstdcat",
            "copal backup --vm NAME --from-command",
            "copal accept",
            "copal bitmap rm --qmp S --node N",
            "copal bitmap rm --qmp S --node N NAME --all",
            "copal backup --vm NAME IMAGE --disk sda=IMAGE",
            "copal restore 3fa8",
            "copal check --read-data-subset 8/7",
            "copal check --read-data-subset 0/7",
            "copal forget --keep-within 3",
            "copal prune --max-unused 101%",
            "copal stats --memory lots",
            "copal check --threads 0",
            "copal check --threads four",
            "copal check --threads 1025",
            "copal key",
            "copal key add --role king --out F",
            "copal key add --role backup",
            "copal key rm",
        ] {
            assert!(CopalArgs::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}

//! What can be typed: commands, options and the help that teaches them. One definition makes the
//! parser, `--help` and the shell completions.
//!
//! Not here: what the words mean (`commands`).

mod agent;
mod backup;
mod bitmap;
mod client;
mod cluster;
mod door;
mod global;
mod key;
pub(crate) mod kv;
mod reading;
mod repository;
mod retention;

pub(crate) use agent::{
    Agent, AgentWord, JobOptions, JobRun, JobStatus, JobWord, PdsCleanup, PdsPrune, PdsWord, SchemeWord,
};
pub(crate) use backup::{Backup, Format, FreezeWord};
pub(crate) use bitmap::{BitmapLs, BitmapRm, BitmapWord};
pub(crate) use client::Client;
pub(crate) use cluster::{
    Data, Disk, Doctor, Events, FileWords, Fs, FsVerb, Group, Master, Meta, Node, Rebalance, Serve, Status,
    TransferWord,
};
pub(crate) use door::{Mount, Nbd};
pub(crate) use global::{Common, Wait};
pub(crate) use key::{KeyAdd, KeyRm, KeyWord, RoleWord};
pub(crate) use reading::{Check, Ls, Restore, Snapshots, Verify};
pub(crate) use repository::{
    Chunking, Init, Repair, RepairLeak, RepairStore, SessionsFence, SessionsWord, Stats, VmRm, VmWord,
};
pub(crate) use retention::{Accept, Delete, Forget, Hold, Keep, MethodWord, Prune};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed, or standard output took not all of the result; the sentence on standard error says why
    2  the words of the command line make no sense, or fit several snapshots or VMs
    3  a source could not be read (missing image, bad disk, qemu-nbd missing), is empty, broken off, smaller than before or
       of another format, or was cut or replaced while it was read; no snapshot was made
   10  no repository there, or the file is not a Copal store
   11  another process is using the store
   12  wrong password or key, none where one is needed, a repository without one (see --insecure-no-password), or a
       certificate of a cluster that has ended (see `copal client renew`)
   20  stored data is damaged, cut off or missing
   21  denied: by a guard of the retention rules, because the key given is for less, because the store is read-only, or
       because the target exists
   22  --strict-incremental: a disk could not be backed up from its changed extents
   28  the store is full and cannot grow
   40  no such file or volume in the cluster
   41  the name is taken
   42  too few servers are up, or no answer in time; what was asked for did not happen
   43  it may have happened or not; `copal fs settle` decides it
   44  the cluster is full, or the volume's quota is reached
  130  interrupted; the store is consistent

Any other code is a failure too.

Environment:
  COPAL_REPOSITORY     the repository, instead of --repo
  COPAL_PASSWORD_FILE  a file whose first line is the password, instead of --password-file
  COPAL_PASSWORD       the password itself; a file is safer
  COPAL_KEY_FILE       a file of `copal key add`, instead of --key
  COPAL_CLUSTER        the profile of the cluster, instead of --cluster
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

/// The definition with the common options shown once, by `copal --help`. What is hidden below the commands is
/// also not demanded by their usage errors, whoever gave it: the environment mostly.
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
  copal stats --vm web --json                    (what a VM of a fleet takes, and what has leaked)";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a repository
    Init(Init),
    /// Back up the disks of one VM
    Backup(Box<Backup>),
    /// List snapshots
    Snapshots(Snapshots),
    /// Show what the disks of a snapshot consist of
    Ls(Ls),
    /// Write a disk of a snapshot to a file, a block device or standard output
    Restore(Restore),
    /// Serve the disks of a snapshot to NBD clients: virtual machines, nbdcopy, qemu-img
    Nbd(Nbd),
    /// Show snapshots as files in a directory
    Mount(Mount),
    /// Decode every chunk of a snapshot and compare it with its fingerprint
    Verify(Verify),
    /// Look for damage in the whole repository
    Check(Check),
    /// Make snapshots invisible, by name or by a retention policy; frees nothing yet
    Forget(Forget),
    /// Protect snapshots: nothing forgets them until the hold ends
    Hold(Hold),
    /// Take snapshots as they are, whatever was warned of when they were made
    Accept(Accept),
    /// Free the space of forgotten snapshots, rewriting nothing
    Delete(Delete),
    /// Forget by policy, free the space and rewrite packs that are partly unused
    Prune(Prune),
    /// Show the size and shape of the repository
    #[command(after_help = STATS_HELP)]
    Stats(Stats),
    /// Run the agent of a host of VMs, or list the agents
    Agent(Agent),
    /// Back up the VMs of all agents
    #[command(subcommand)]
    Job(JobWord),
    /// Chunks that many VMs have
    #[command(subcommand)]
    Pds(PdsWord),
    /// Backups that have begun and not ended
    #[command(subcommand)]
    Sessions(SessionsWord),
    /// VMs of the repository
    #[command(subcommand)]
    Vm(VmWord),
    /// Dirty bitmaps that backups of running VMs have begun in QEMU
    #[command(subcommand)]
    Bitmap(BitmapWord),
    /// Keys of the repository that may do less than its password
    #[command(subcommand)]
    Key(KeyWord),
    /// Repair what can be rebuilt
    #[command(subcommand)]
    Repair(Repair),
    /// Run a master of a cluster
    Master(Master),
    /// Run a data server of a cluster
    Data(Data),
    /// Run a whole cluster on this machine, to try things on
    Serve(Serve),
    /// Show how a cluster is
    Status(Status),
    /// Volumes and files of a cluster
    Fs(Fs),
    /// Servers of a cluster
    #[command(subcommand)]
    Node(Node),
    /// Disks of a cluster
    #[command(subcommand)]
    Disk(Disk),
    /// Clients of a cluster that may do only what they were granted
    #[command(subcommand)]
    Client(Client),
    /// Groups of volumes of a cluster, and their members
    #[command(subcommand)]
    Group(Group),
    /// Spread groups over servers: plan, apply, pause
    #[command(subcommand)]
    Rebalance(Rebalance),
    /// Show what happened in a cluster
    Events(Events),
    /// Look for what an operator stumbles over: certificates, clocks, disks, limits
    Doctor(Doctor),
    /// Keep the database of a master elsewhere, put it back, check it
    #[command(subcommand)]
    Meta(Meta),
    /// Look into the key-value engine below a repository, or into any store of it
    Kv(kv::Kv),
    /// Let a guest go on that a backup has stopped; for the guardian of a backup that was killed
    #[command(hide = true)]
    ResumeGuest(ResumeGuest),
    /// Thaw a guest that a backup has frozen; for the guardian of a backup that was killed
    #[command(hide = true)]
    ThawGuest(ThawGuest),
    /// Show the version
    Version,
    /// Print a completion script for a shell
    Completions(Completions),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal resume-guest /run/web.qmp copal-0123abcd-stop")]
pub(crate) struct ResumeGuest {
    /// The QMP socket
    pub(crate) socket: PathBuf,
    /// The object in QEMU that says which backup has stopped the guest
    pub(crate) mark: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal thaw-guest /run/web-qga.sock")]
pub(crate) struct ThawGuest {
    /// The socket of the guest's agent
    pub(crate) socket: PathBuf,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        for word in [copal_live::RESUME, copal_live::THAW] {
            assert!(Arguments::command().find_subcommand(word).is_some(), "{word}");
        }
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
            "copal backup --vm NAME --qmp S --node sda=N --node sdb=M --freeze agent --fleece-dir D --fleece-limit 10%",
            "copal backup --vm NAME --qmp S --node sda=N --format raw --allow-smaller --full-every 30d",
            "copal backup --vm NAME --from-command ssh -C host dd --repo x if=/dev/vg/web",
            "copal accept 3fa8 latest --vm web",
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
            "copal key add --role backup --out F",
            "copal --key F key ls",
            "copal key rm 5c1d --key F",
            "copal completions bash",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
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
            "copal key",
            "copal key add --role king --out F",
            "copal key add --role backup",
            "copal key rm",
        ] {
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}

//! Arguments of the commands on retention: `forget`, `hold`, `accept`, `delete`, `prune`.

use clap::{Args, ValueEnum};

/// Retention policy. The options apply in this order, from the newest snapshot back.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retention")]
pub(crate) struct KeepArgs {
    /// Keep the N newest snapshots
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) keep_last: u32,
    /// Keep the newest snapshot of each of the last N hours that have one
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
    /// Keep snapshots that are older than the newest by at most this: 30d, 1y6m, 12h
    #[arg(long, value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) keep_within: Option<jiff::SignedDuration>,
    /// Keep snapshots with this tag (repeat)
    #[arg(long, value_name = "WORD")]
    pub(crate) keep_tag: Vec<String>,
}

const RETENTION_HELP: &str = "\
Retention follows Proxmox Backup Server. Each VM is judged alone. Hours, days and so on without a \
snapshot do not count. A period in which an earlier option already keeps a snapshot is not counted \
again. Kept in addition are snapshots by --keep-within and --keep-tag, held snapshots (copal hold) and the newest \
verified snapshot (copal verify). A policy that would remove more than half of a VM's \
snapshots (of five or more) needs --force.

A snapshot with an impossible time (a clock was wrong) counts for no option, and is forgotten only by name. A snapshot that was made \
despite a warning (copal snapshots: `doubtful`) displaces no good one: the two kinds are judged separately, until `copal accept` \
lifts the warning. If the clock has jumped by more than 45 days, removals by age alone need --accept-clock.";

#[derive(Debug, Args)]
#[command(after_help = RETENTION_HELP, after_long_help = format!("{RETENTION_HELP}

Examples:
  copal forget 3fa8c1d2
  copal forget --vm web --keep-last 3 --keep-daily 7 --keep-weekly 4 --dry-run"))]
pub(crate) struct ForgetArgs {
    /// Snapshots to forget: ids or their unique beginnings
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    /// Show the snapshots that would be forgotten, with reasons; change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Forget even more than half of a VM's snapshots at once, and snapshots that `copal nbd` or `copal mount`
    /// shows; these exports are closed
    #[arg(long)]
    pub(crate) force: bool,
    /// Trust the clock of this machine although it is more than 45 days ahead of the newest snapshots
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
pub(crate) struct HoldArgs {
    /// Snapshots: ids, their unique beginnings, or `latest`
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
    /// VM for `latest`, by name or UUID; required if several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Time after which the hold ends by itself: 30d, 1y6m, 12h (default: only --release ends it)
    #[arg(long = "for", value_name = "DURATION", value_parser = copal_backup::retention::parse_within)]
    pub(crate) within: Option<jiff::SignedDuration>,
    /// End the hold now
    #[arg(long, conflicts_with = "within")]
    pub(crate) release: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A snapshot is doubtful if its backup continued despite a warning: a disk was smaller than before, looked like another format, lost \
the end of its backing file, was written during the read, or was suddenly blank. `copal ls` shows the warning. A doubtful snapshot \
can be restored like any other. It never takes the place of a good one in retention, and the next backup compares its disks with \
the newest good one. An accepted snapshot counts as good.

Examples:
  copal accept 3fa8c1d2
  copal accept latest --vm web")]
pub(crate) struct AcceptArgs {
    /// Snapshots: ids, their unique beginnings, or `latest`
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
    /// VM for `latest`, by name or UUID; required if several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A pack that no snapshot needs is removed at once; a pack that is needed in part stays until `copal prune` rewrites it. Snapshots \
that are named here are forgotten first; held ones are refused.

In a fleet, the command looks up the references of the forgotten snapshots in the summary vectors of the VM's remaining snapshots, \
which it does not read. Frames that none of these needs count as free at once, and a pack that is mostly dead is rewritten. About one dead frame in a \
thousand is kept by chance; `copal repair leak` finds them. A VM that is being backed up is skipped.

Examples:
  copal delete                                   (after `copal forget`)
  copal delete 3fa8c1d2 --dry-run
  copal delete 3fa8c1d2")]
pub(crate) struct DeleteArgs {
    /// Snapshots to forget first: ids or their unique beginnings
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// In a fleet: walk all snapshots of the VMs concerned instead of using their summary vectors, like --method
    /// local
    #[arg(long, conflicts_with = "method")]
    pub(crate) exact: bool,
    /// In a fleet: how to find frames that no snapshot needs; the first two methods are for comparison
    #[arg(long, value_name = "METHOD", value_enum)]
    pub(crate) method: Option<MethodWord>,
    /// Show the effect, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also delete snapshots that `copal nbd` or `copal mount` shows; these exports are closed
    #[arg(long)]
    pub(crate) force: bool,
    /// Trust the clock of this machine although it is more than 45 days ahead of the newest snapshots: holds
    /// that expired by this clock have ended
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RETENTION_HELP, after_long_help = format!("{RETENTION_HELP}

Examples:
  copal prune                                    (only snapshots forgotten before)
  copal prune --keep-daily 7 --keep-weekly 4"))]
pub(crate) struct PruneArgs {
    /// Judge only snapshots of this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    /// Unused share of the stored bytes to leave, such as 5%; freeing this rest costs more than it yields
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    pub(crate) max_unused: u8,
    /// Show the effect, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Forget even more than half of a VM's snapshots at once, and snapshots that `copal nbd` or `copal mount`
    /// shows; these exports are closed
    #[arg(long)]
    pub(crate) force: bool,
    /// Trust the clock of this machine although it is more than 45 days ahead of the newest snapshots
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

/// `5%` or `5`.
fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    match number {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err(format!("{text:?} is not a share from 0% to 100%")),
    }
}

/// `--method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MethodWord {
    /// Walk the snapshots of all VMs for each VM that frees data
    MarkSweep,
    /// The same, but of the other VMs only those that free data themselves
    Grouped,
    /// Walk the snapshots of the VM
    Local,
    /// Use the summary vectors of the VM's snapshots: the default
    Summary,
}

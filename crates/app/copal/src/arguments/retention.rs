//! What can be typed behind commands that let snapshots go or keep them: `forget`, `hold`, `delete`, `prune`.

use clap::{Args, ValueEnum};

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
until it is named, and counts for nothing. One that was made in spite of a warning (copal snapshots: `doubtful`) pushes no \
good one out: the two kinds are judged apart, until `copal accept` lifts the warning. What goes by age alone, when the clock has jumped by more \
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
    /// Forget more than half of a VM's snapshots at once, and what `copal nbd` or `copal mount` shows: they
    /// are closed
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
A snapshot is doubtful if its backup went on in spite of a warning: a disk was smaller than before, looked like another \
format, lost the end of a file behind it, was written while it was read, or was suddenly blank. `copal ls` says which. A \
doubtful one restores like any other; retention keeps good ones beside it, and the next backup compares its disks with the \
newest good one. What is accepted counts as good from then on.

Examples:
  copal accept 3fa8c1d2
  copal accept latest --vm web")]
pub(crate) struct Accept {
    /// Snapshots: ids, unique beginnings, or `latest`
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub(crate) snapshots: Vec<String>,
    /// VM that `latest` means, by name or UUID; needed once several VMs have snapshots
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A pack that no snapshot needs any more goes at once; one that is needed in part stays as it is until `copal prune` \
rewrites it. Snapshots that are named here are forgotten first; held ones are refused.

In a fleet what only the forgotten snapshots of a VM had is found by summary vectors of those that stay, without reading them: \
it counts as free at once, and a pack that is mostly dead is rewritten. About one frame in a thousand is kept by chance; `copal \
repair leak` finds them. A VM that is being backed up is left alone.

Examples:
  copal delete                                   (after `copal forget`)
  copal delete 3fa8c1d2 --dry-run
  copal delete 3fa8c1d2")]
pub(crate) struct Delete {
    /// Snapshots to forget first: ids or unique beginnings
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// In a fleet: walk all snapshots of the VMs concerned instead of asking their vectors, as --method local
    /// does
    #[arg(long, conflicts_with = "method")]
    pub(crate) exact: bool,
    /// In a fleet: how it is found out what nobody needs any more; the first two are for comparison
    #[arg(long, value_name = "METHOD", value_enum)]
    pub(crate) method: Option<MethodWord>,
    /// Say what would happen, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Delete what `copal nbd` or `copal mount` shows, too: they are closed
    #[arg(long)]
    pub(crate) force: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots:
    /// a hold that ended meanwhile has ended
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
    /// Forget more than half of a VM's snapshots at once, and what `copal nbd` or `copal mount` shows: they
    /// are closed
    #[arg(long)]
    pub(crate) force: bool,
    /// The clock of this machine is right, though it stands more than 45 days ahead of the newest snapshots
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
    /// Walk the snapshots of all VMs for each VM that frees something
    MarkSweep,
    /// The same, but of the other VMs only those that free something themselves
    Grouped,
    /// Walk the snapshots of the VM
    Local,
    /// Ask the summary vectors of the VM's snapshots: the default
    Summary,
}
